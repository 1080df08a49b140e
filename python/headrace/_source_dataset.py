"""What a headrace.Loader reads, where a script asks for a DataLoader's data set and there is no object of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from .errors import UnsupportedError

if TYPE_CHECKING:
    from ._loader import Loader


class SourceDataset:
    """The length, classes, class_to_idx, samples and targets that torchvision's data sets have. It holds no image: those come
    from the Loader, in batches. Of a part of an object of one's own labels are known when a sample is read: there are no targets."""

    def __init__(self, loader: Loader, name: str, *, knows_labels: bool) -> None:
        self._loader, self._name, self._knows_labels = loader, name, knows_labels

    def __len__(self) -> int:
        return self._loader.samples

    @property
    def classes(self) -> list[str] | None:
        """As those of the Loader."""
        return self._loader.classes

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        """As that of the Loader."""
        return self._loader.class_to_idx

    @property
    def samples(self) -> Sequence[tuple[str, int]]:
        """Of each sample its name, as a folder's the path of the file, and its label, in the order of the data set; -1 where
        that is known when the sample is read."""
        return _Samples(self._loader)

    @property
    def targets(self) -> list[int]:
        """The labels of all samples, in the order of the data set. UnsupportedError: it is a part of an object of one's own."""
        if not self._knows_labels:
            raise UnsupportedError(f"{self._name}: labels are known when a sample is read; ask your own data set for them")
        return [label for _, label in self.samples]

    def __repr__(self) -> str:
        return f"<data set of a headrace.Loader: {self._name}: {len(self):,} samples>"


class _Samples(Sequence[tuple[str, int]]):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return self._loader.samples

    @overload
    def __getitem__(self, index: int) -> tuple[str, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, int]]: ...
    def __getitem__(self, index: Any) -> Any:
        count = len(self)
        if isinstance(index, slice):
            return [self._loader.sample(place) for place in range(*index.indices(count))]
        return self._loader.sample(index + count if index < 0 else index)  # IndexError beyond the last.
