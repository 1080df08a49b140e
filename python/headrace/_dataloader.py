"""What gives batches in a script: a DataLoader, whose settings change here, or anything else to iterate."""

from __future__ import annotations

from typing import Any, Iterator

from torch.utils.data import DataLoader


def change(loader: DataLoader, **settings: Any) -> None:
    """Sets attributes past DataLoader.__setattr__, which lets some of them be set only while it is built. Workers that
    persist are let go: the next epoch starts others."""
    loader.__dict__.update(settings)
    loader.__dict__["_iterator"] = None


def epoch_of(loader: Any) -> Iterator[Any]:
    """A new epoch of an iterable, or of what a function makes."""
    return iter(loader if hasattr(loader, "__iter__") else loader())
