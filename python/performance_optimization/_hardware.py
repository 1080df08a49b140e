"""Settings of the GPU and the CPU by the values of published examples. headrace.hardware_settings() has them with values of one's own, and
puts back what was before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import HardwareSetting, HardwareSettings

_OF_CUDA = {"memory_fraction": 0.9, "cudnn_deterministic": False, "cudnn_benchmark": True, "tf32_cudnn": True, "max_split_size_mb": 128}


def optimize_cuda_settings() -> dict[str, dict[str, str]]:
    """For the current CUDA device: at most 0.9 of its memory for this process, unless a caller named another fraction before; the cache
    of torch's allocator emptied; cuDNN's benchmark on, its deterministic kernels alone off, its convolutions in TF32; and no block above
    128 MiB split, by the allocator's own call.

    Returns by name requested, applied (what was read back) and reason: why it was not applied, or what one has to know of it. Without
    CUDA nothing is changed, at once, and every reason says so.
    """
    import torch

    told = _apply("optimize_cuda_settings", _OF_CUDA)
    return {**told, "empty_cache": _emptied_cache() if torch.cuda.is_available() else _row(
        "true", "unavailable", "not applied: no CUDA device here")}


def optimize_gpu() -> dict[str, dict[str, str]]:
    """For the current CUDA device: the highest power limit that the board takes, where this process may set it; products and convolutions
    in TF32; cuDNN's benchmark on and its deterministic kernels alone off.

    No variable of the environment sets a GPU's power mode, so NVML, the driver's library, is asked: the row power_mode says what limit is
    in force, the clock, and whether setting it is permitted. The limit holds for all processes of the board.

    Returns what optimize_cuda_settings() does. Without CUDA nothing is changed, at once.
    """
    return _apply("optimize_gpu", {"power_mode": "high", "tf32_matmul": True, "tf32_cudnn": True, "cudnn_deterministic": False,
                                   "cudnn_benchmark": True})


def optimize_cpu_settings() -> dict[str, dict[str, str]]:
    """As many compute threads as there are cores that this process may use (affinity and the quota of a container count), by torch's own
    call, and OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS to the same, for processes that start from here on: the libraries
    of this one have read them already.

    Returns by name requested (the number of the machine's cores), applied (what was read back) and reason.
    """
    from headrace import _core

    machine, usable = os.cpu_count(), _core.usable_cores()
    told = _apply("optimize_cpu_settings", _of_cpu(usable))
    if machine is None or machine == usable:
        return told
    fewer = f"this process may use {usable} of the machine's {machine} cores"
    return {name: _row(str(machine), row["applied"], "; ".join(filter(None, (fewer, row["reason"])))) for name, row in told.items()}


def apply_both(set_by: str) -> HardwareSettings:
    """What optimize_cpu_settings() and optimize_cuda_settings() set, but for the emptied cache, with undo(). A value that somebody named
    stays."""
    from headrace import _core
    from headrace._hardware_settings import apply_settings

    return apply_settings(set_by, {**_of_cpu(_core.usable_cores()), **_OF_CUDA}, is_explicit=False)


def told_of(settings: HardwareSettings) -> dict[str, dict[str, str]]:
    """By name requested, applied (what was read back) and reason."""
    return {setting.name: _told(setting) for setting in settings.settings}


def _of_cpu(cores: int) -> dict[str, int]:
    return {"compute_threads": cores, "child_threads": cores}


def _apply(set_by: str, wanted: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    from headrace._hardware_settings import apply_settings

    return told_of(apply_settings(set_by, wanted, is_explicit=False))


def _told(setting: HardwareSetting) -> dict[str, str]:
    how = "" if setting.how == "by call" else setting.how
    return _row(setting.requested, setting.now, ": ".join(filter(None, (how, setting.reason))))


def _row(requested: str, applied: str, reason: str) -> dict[str, str]:
    return {"requested": requested, "applied": applied, "reason": reason}


def _emptied_cache() -> dict[str, str]:
    import torch

    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    return _row("true", "true", f"{before - torch.cuda.memory_reserved()} bytes given back")
