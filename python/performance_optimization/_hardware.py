"""Settings of the GPU and the CPU with the values of published examples. headrace.hardware_settings() makes them with your own values, and
undoes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import HardwareSetting, HardwareSettings

_OF_CUDA = {"memory_fraction": 0.9, "cudnn_deterministic": False, "cudnn_benchmark": True, "tf32_cudnn": True, "max_split_size_mb": 128}


def optimize_cuda_settings() -> dict[str, dict[str, str]]:
    """Settings for the current CUDA device: at most 0.9 of its memory for this process, unless a caller set another fraction before; an
    empty cache of torch's allocator; cuDNN's benchmark on, its deterministic mode off, its TF32 on; and max_split_size_mb 128, by the
    allocator's own call.

    Returns for each setting, by name, what was requested, what is in force (read back), and the reason if they differ, or a remark.
    Without CUDA it changes nothing, returns at once, and every reason says so.
    """
    import torch

    told = _apply("optimize_cuda_settings", _OF_CUDA)
    return {**told, "empty_cache": _emptied_cache() if torch.cuda.is_available() else _row(
        "true", "unavailable", "not applied: no CUDA device here")}


def optimize_gpu() -> dict[str, dict[str, str]]:
    """Settings for the current CUDA device: the highest power limit of the board, if this process is permitted to set it; TF32 for matrix
    products and cuDNN; cuDNN's benchmark on and its deterministic mode off.

    There is no environment variable for a GPU's power mode that a driver reads. The power limit is set through NVML, the driver's
    library, for the whole board; the row power_mode has the limit and clock that were found, and whether setting it was permitted.

    Returns the same as optimize_cuda_settings(). Without CUDA it changes nothing and returns at once.
    """
    return _apply("optimize_gpu", {"power_mode": "high", "tf32_matmul": True, "tf32_cudnn": True, "cudnn_deterministic": False,
                                   "cudnn_benchmark": True})


def optimize_cpu_settings() -> dict[str, dict[str, str]]:
    """As many compute threads as this process may use cores (by its affinity and its container's quota), by torch.set_num_threads(); and
    OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS of the same value, for processes that start from here on: the libraries in
    this process have read them already.

    Returns for each setting, by name, what was requested (the number of the machine's cores), what is in force (read back), and why they
    differ.
    """
    from headrace import _core

    machine, usable = os.cpu_count(), _core.usable_cores()
    told = _apply("optimize_cpu_settings", _of_cpu(usable))
    if machine is None or machine == usable:
        return told
    fewer = f"this process may use {usable} of the machine's {machine} cores"
    return {name: _row(str(machine), row["applied"], "; ".join(filter(None, (fewer, row["reason"])))) for name, row in told.items()}


def apply_both(set_by: str) -> HardwareSettings:
    """The settings of optimize_cpu_settings() and optimize_cuda_settings(), without emptying the cache, and with undo(). A value that a
    caller named stays."""
    from headrace import _core
    from headrace._hardware_settings import apply_settings

    return apply_settings(set_by, {**_of_cpu(_core.usable_cores()), **_OF_CUDA}, is_explicit=False)


def fastest_cudnn(set_by: str) -> HardwareSettings:
    """cuDNN's benchmark on and its deterministic kernels off, until undo() or the end of a block. Without CUDA nothing is set."""
    from headrace._hardware_settings import apply_settings

    return apply_settings(set_by, {"cudnn_deterministic": False, "cudnn_benchmark": True}, is_explicit=False)


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
