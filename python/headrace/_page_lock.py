"""pin_memory=True: the memory of a Loader's batches is page-locked, so that a copy to a CUDA device with non_blocking=True is made beside
the loop. It is by the CUDA runtime of the torch that is here, with the engine or without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import _core

_BY_OTHERS = "a Trainer on a device, or another Loader, has those of the whole process locked"


class PageLock:
    """Of a Loader that is about to be made, whose memory is allocated then. What is asked for holds for pools of all Loaders that are
    made later, too; what locks them already, such as a Trainer on a device, goes on doing it."""

    def __init__(self, asked: bool) -> None:
        self._asked = asked
        self._refusal = _lock_pages() if asked else ""
        is_installed, self._before, self._refused_before, _ = _core.page_locking()
        self._is_locked = is_installed and not self._refusal

    def note_made(self) -> None:
        """That its blocks have been allocated."""
        _, blocks, refused, why = _core.page_locking()
        if refused > self._refused_before:
            self._is_locked = False
            self._refusal = f"CUDA refused {refused - self._refused_before} of {blocks - self._before} blocks: {why}"

    @property
    def state(self) -> tuple[bool, str]:
        """Whether it is in force, and why it is not what was asked for; "": it is."""
        if self._asked:
            return self._is_locked, self._refusal
        return self._is_locked, _BY_OTHERS if self._is_locked else ""


def pinning_refusal() -> str:
    """Why no memory can be page-locked here; "": it can."""
    torch = _torch()
    return "" if torch is not None and torch.cuda.is_available() else "no CUDA"


def _lock_pages() -> str:
    if _core.page_locking()[0]:
        return ""
    if refusal := pinning_refusal():
        return refusal
    torch = _torch()
    try:
        device = torch.cuda.current_device()  # Initialises CUDA, which it refuses in a forked process.
    except RuntimeError as error:
        return f"CUDA cannot be used here: {str(error).splitlines()[0]}"
    return _core.lock_pages(str(library_of(torch)), device)


def library_of(torch: Any) -> Path:
    """Which has its own functions and, among what it needs, those of CUDA."""
    return Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"


def _torch() -> Any:
    """None: there is none, and batches are NumPy's arrays."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return None
    return torch
