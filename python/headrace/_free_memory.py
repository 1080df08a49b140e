"""What memory a process uses and what it can still get, where its tensors lie."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from . import _core


def used_bytes(device: torch.device) -> int | None:
    """Bytes that this process holds: resident on the CPU, in tensors on a CUDA device. None: unavailable. About 10 us."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    text = _text(Path("/proc/self/statm"))
    return None if text is None else int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_bytes(device: torch.device) -> int | None:
    """Bytes that this process can still get. None: unavailable. On the CPU the least of what the kernel calls available and what
    its control groups leave (free_memory() of src/core/hardware/machine.h); on a CUDA device what no process has, and what
    torch's allocator holds unused."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    return _core.free_memory()


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
