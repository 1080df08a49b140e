"""The order of a headrace.Loader that draws it by itself, where a script asks for a DataLoader's sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._loader import Loader


class OwnOrder:
    """len() is the number of samples in an epoch, of all ranks together, and set_epoch() that of the Loader, so that
    loader.sampler.set_epoch(epoch) does what it does where a DistributedSampler gives the order. The indices themselves are drawn
    in C++ while the Loader goes over its epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.samples

    def set_epoch(self, epoch: int) -> None:
        """The Loader's next iteration is this epoch."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        raise TypeError("the order of a headrace.Loader is drawn in C++ and has no indices to go over here: iterate over the "
                        "Loader, or give it a sampler of your own")

    def __repr__(self) -> str:
        options = self._loader.options
        if options["sampler"] != "each":
            drawn = f"drawn with replacement, {options['sampler']}"
        else:
            drawn = "shuffled" if options["training"] and options["shuffle"] else "in order"
        return f"<order of a headrace.Loader: {drawn}, seed {options['seed']}>"
