"""What memory a process uses and what it can still get, where its tensors lie."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def used_bytes(device: torch.device) -> int | None:
    """Bytes that this process holds: resident on the CPU, in tensors on a CUDA device. None: unavailable. About 10 us."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    text = _text(Path("/proc/self/statm"))
    return None if text is None else int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_bytes(device: torch.device, root: Path = Path("/")) -> int | None:
    """Bytes that this process can still get. None: unavailable.

    On the CPU the least of what the kernel calls available and what the limit of each control group of version 2 leaves, this
    process's own and those above; file pages that have not been used lately (inactive_file) count as free there, because the
    kernel gives them up first. On a CUDA device what no process has, and what torch's allocator holds unused. `root` is
    prefixed to every path that is read."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    known = [left for left in (_available(root), *_left_in_groups(root)) if left is not None]
    return max(0, min(known)) if known else None


def _available(root: Path) -> int | None:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_in_groups(root: Path) -> list[int | None]:
    top = root / "sys/fs/cgroup"
    group = ""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            group = line[len("0::"):].strip("/")
    folders = [top]
    for part in group.split("/") if group else ():
        folders.append(folders[-1] / part)
    return [_left_in(folder) for folder in folders]


def _left_in(folder: Path) -> int | None:
    """None: the group has no limit, or there is no such folder, as where a container does not see its own group."""
    most, current = _text(folder / "memory.max"), _text(folder / "memory.current")
    if most is None or current is None or most.strip() == "max":
        return None
    reclaimable = 0
    for line in (_text(folder / "memory.stat") or "").splitlines():
        if line.startswith("inactive_file "):
            reclaimable = int(line.split()[1])
    return int(most) - int(current) + reclaimable


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
