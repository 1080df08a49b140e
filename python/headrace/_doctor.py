"""hr.doctor: what the native half finds on this machine, in a run's folder or in a summary, and what is missing or wrong of what Python finds."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Collection, Mapping
from typing import Any

from . import _core, _engine_door

_KERNEL_DRIVER = "/proc/driver/nvidia/version"
_HIDDEN = ("", "-1")  # Of CUDA_VISIBLE_DEVICES: no device is to be seen.


def doctor(run: str | os.PathLike[str] | Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """What makes measuring or training worse on this machine, and which library or driver is missing; or what is wrong with a run: a list of
    dicts of code, sentence and advice; empty when nothing is. docs/troubleshooting.md has the codes.

    run: a run's folder; or what a PerformanceOptimizer's get_performance_summary() returned, as it is or as a JSON file. None: this machine.
    Without it torch is imported where there is one.

    headrace.errors.NotFoundError: there is no such folder or file; CorruptDataError: it is no such summary.
    """
    if isinstance(run, Mapping):
        return _of_summary(run)
    if run is not None:
        return _core.doctor(run)
    found = _core.doctor()
    return [*found, *_missing({one["code"] for one in found}), *_other_copies()]


def _of_summary(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="headrace-summary-", suffix=".json") as file:
        json.dump(summary, file)
        file.flush()
        return _core.doctor(file.name)


def _finding(code: str, sentence: str, advice: str) -> dict[str, Any]:
    return {"code": code, "sentence": sentence, "advice": advice}


def _missing(native: Collection[str]) -> list[dict[str, Any]]:
    """Libraries and drivers. native: the codes of what was found already."""
    try:
        import torch  # noqa: F401
    except Exception as error:  # noqa: BLE001 - whatever a torch that does not fit this machine raises.
        return [_finding("no_torch", f"torch cannot be imported: {error}", "pip install torch. Loaders, traces and reports work without it.")]
    from ._settings import no_compile

    found = []
    if (reason := _engine_door.why_not()) is not None:
        found.append(_finding("no_engine", f"hr.Trainer, and what else needs headrace._engine, is not applicable: {reason}", _advice_on(reason)))
    if (reason := no_compile(None)) is not None:
        found.append(_finding("no_compiler", f"torch.compile does not work on the CPU: {reason}",
                              "Install one (apt install g++), or name yours in CXX. Without it models run as they are written."))
    if os.path.exists(_KERNEL_DRIVER) and "gpu_not_reachable" not in native:
        found += _cuda_faults()
    return found


def _advice_on(reason: str) -> str:
    if reason.startswith("built for torch "):
        minor = reason.removeprefix("built for torch ").split(",")[0]
        return f"pip install 'torch=={minor}.*'. Loaders, hr.watch, hr.tune and hr.autotune work with any torch."
    return ("Install headrace for this Python and this torch; in a checkout run make build. Loaders, hr.watch, hr.tune and hr.autotune work "
            "without it.")


def _cuda_faults() -> list[dict[str, Any]]:
    """Of a machine whose kernel has NVIDIA's driver."""
    import torch

    if torch.version.cuda is None:
        return [_finding("torch_without_cuda", f"this machine has an NVIDIA GPU, and torch {torch.__version__} is built without CUDA",
                         "Install torch's wheel with CUDA: https://pytorch.org/get-started/locally has its line for pip.")]
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN or torch.cuda.is_available():
        return []
    return [_finding("no_cuda", f"this machine has an NVIDIA GPU, and torch cannot use it: {_why_no_cuda()}",
                     f"Compare the driver (nvidia-smi) with CUDA {torch.version.cuda}, for which this torch is built: a newer CUDA wants a newer "
                     "driver.")]


def _why_no_cuda() -> str:
    import torch

    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001 - RuntimeError or AssertionError, by what is missing.
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return "torch.cuda.is_available() is False"


def _other_copies() -> list[dict[str, Any]]:
    """Packages of this name behind the one that was imported: who installs into their place sees no change."""
    own = os.path.realpath(sys.modules["headrace"].__path__[0])
    places = {os.path.realpath(os.path.join(folder, "headrace")) for folder in sys.path} - {own}
    return [_finding("two_copies", f"headrace is on sys.path twice: the one in {own} is in use, and not that in {other}",
                     "Uninstall one of them, or take its folder off sys.path (PYTHONPATH).")
            for other in sorted(places) if os.path.isfile(os.path.join(other, "__init__.py"))]
