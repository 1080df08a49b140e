"""hr.hardware_settings: threads, cores, priority, and torch's settings for a GPU, each applied, read back, shown and undone."""

from __future__ import annotations

import dataclasses
import numbers
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch

from . import _core, _gpu_settings
from ._charts import aligned, paragraph, table
from ._gpu_settings import CUBLAS_WORKSPACE, variable
from ._hardware_change import Change, HardwareSetting, refused, switched, text
from ._pickling import refused_pickling
from .errors import InvalidArgumentError

_CALLER = "hardware_settings"
_HEAD = ("setting", "requested", "before", "now", "how", "reason", "set by")
# What the libraries under an operator ask for their number of threads, each when it is loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_THREADS_MAX = 1024  # As compute.intra_op_threads has it.
_LOADED = "the libraries of this process have read it already"
_MAX_SPLIT_LEAST_MB = 20  # torch refuses less.
_in_force: list[Change] = []  # What this process has applied and not undone, in its order.


class HardwareSettings:
    """The settings that hardware_settings() made, in order. As a context manager it undoes them at the end of the block."""

    def __init__(self, changes: Iterable[Change], remarks: Iterable[str] = ()) -> None:
        self._changes = list(changes)
        self._settings = tuple(change.setting for change in self._changes)
        self._remarks = tuple(remarks)

    @classmethod
    def in_force(cls) -> HardwareSettings:
        """All that hardware_settings(), and the functions of performance_optimization that set hardware, have applied in this process and
        nobody has undone, in order: a setting that was made twice has two rows, and undoing the first undoes the second. Its undo() puts
        back what was before the first of them; the objects that made them have nothing left to undo then."""
        return cls(_in_force)

    @property
    def settings(self) -> tuple[HardwareSetting, ...]:
        return self._settings

    @property
    def remarks(self) -> tuple[str, ...]:
        """The warnings that were given, as sentences."""
        return self._remarks

    def undo(self) -> tuple[HardwareSetting, ...]:
        """Puts back the values from before, the last setting first, whatever was set since. Returns a row for each setting that had been
        applied, in which `requested` is the value from before. A second call does nothing and returns (). An exception of torch's is
        raised after all other settings were put back."""
        undone = []
        failed: Exception | None = None
        while self._changes:
            change = self._changes.pop()
            if change.undo is None or not _takes_out(change):
                continue
            try:
                undone.append(dataclasses.replace(change.undo(), set_by="undo"))
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return tuple(undone)

    def as_dict(self) -> dict[str, dict[str, str]]:
        """By name, for JSON."""
        return {setting.name: dataclasses.asdict(setting) for setting in self._settings}

    __reduce__ = refused_pickling("a headrace.HardwareSettings belongs to the process whose settings it undoes; keep as_dict()")

    def __enter__(self) -> HardwareSettings:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()

    def __repr__(self) -> str:
        lines = aligned([_HEAD, *self._rows()]) if self._settings else []
        return "\n".join([f"<headrace.HardwareSettings: {self._sentence()}", *lines]) + ">"

    def _repr_html_(self) -> str:
        return paragraph(self._sentence()) + table(_HEAD, self._rows())

    def _sentence(self) -> str:
        applied = sum(setting.is_applied for setting in self._settings)
        return "; ".join([f"{applied} applied, {len(self._settings) - applied} not", *self._remarks])

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for setting in self._settings:
            yield (setting.name, setting.requested, setting.before, setting.now, setting.how, setting.reason, setting.set_by)


def hardware_settings(*, compute_threads: int | None = None, child_threads: int | None = None, niceness: int | None = None,
                      affinity: str | Iterable[int] | None = None, tf32: bool | None = None, cudnn_benchmark: bool | None = None,
                      reproducible: bool | None = None, memory_fraction: float | None = None, max_split_size_mb: int | None = None,
                      wait_policy: str | None = None, workers: int | None = None) -> HardwareSettings:
    """Applies the settings that are given, and no other. Each value is read back from torch or the operating system. A setting that
    cannot be applied changes nothing, and its row gives the reason.

    affinity: the cores that all threads of this process may use: "0-3,6", "node0" (a NUMA node), or a list of numbers. Threads and
        processes that start later inherit it. It can only narrow what the process has.
    niceness: of all threads of this process, -20 to 19; 19 gives way to all others. Without special rights it can be raised but not
        lowered again.
    compute_threads: threads of one operator on the CPU, as torch.set_num_threads(), 1 to 1024.
    child_threads: OMP_NUM_THREADS, MKL_NUM_THREADS and OPENBLAS_NUM_THREADS for processes that start from here on, 1 to 1024.
    wait_policy: OMP_WAIT_POLICY for processes that start from here on: whether an idle compute thread spins ("active") or sleeps
        ("passive").
    reproducible: True: deterministic algorithms only, also on the CPU; an operator that has none raises an error. cuDNN uses its
        deterministic kernels, and its benchmark is off. False: torch's defaults for both, and the benchmark as it is.
    cudnn_benchmark: cuDNN times its kernels at the first call of each shape and takes the fastest. The next run may take another one.
    tf32: float32 matrix products and convolutions in TF32, with errors of about 1e-3 instead of 1e-6; needs compute capability 8.0. The
        CPU's products are left alone, with one exception: if torch.set_float32_matmul_precision() had lowered both, False raises both.
    memory_fraction: the part of the current CUDA device's memory that this process may hold, above 0 and at most 1. Beyond it comes
        torch.OutOfMemoryError. There is no cap unless you ask for one; torch takes memory as it needs it.
    max_split_size_mb: the caching allocator splits no block larger than this, in MiB, at least 20.
    workers: the number of data loading workers. It sets nothing: if they and the compute threads together are more than twice the cores
        that this process may use, a UserWarning gives the numbers.

    Settings hold for the whole process: call this from one thread. Without CUDA a GPU's settings are not applied. Only memory_fraction
    and tf32=True initialise CUDA. Costs a few microseconds for each thread and setting.

    InvalidArgumentError: a value that makes no sense, a core that does not exist, or cudnn_benchmark=True with reproducible=True; nothing
    is changed then.
    """
    threads = {name: _whole(name, value, 1, _THREADS_MAX) for name, value in (
        ("compute_threads", compute_threads), ("child_threads", child_threads)) if value is not None}
    if workers is not None:
        _whole("workers", workers, 0, _THREADS_MAX)
    for name, switch in (("tf32", tf32), ("cudnn_benchmark", cudnn_benchmark), ("reproducible", reproducible)):
        if switch is not None and not isinstance(switch, bool):
            raise InvalidArgumentError(f"{_CALLER}: {name}: wanted True, False or None, found {switch!r}")
    if reproducible and cudnn_benchmark:
        raise InvalidArgumentError(f"{_CALLER}: cudnn_benchmark: wanted False or None with reproducible=True, as the kernel that is the "
                                   "fastest may be another one in each run, found True")
    wanted: dict[str, Any] = {
        "affinity": _cores(affinity),
        "niceness": None if niceness is None else _whole("niceness", niceness, -20, 19),
        **threads,
        "wait_policy": _policy(wait_policy),
        "tf32": tf32,
        **({} if reproducible is None else _reproducible(reproducible)),
        **({} if cudnn_benchmark is None else {"cudnn_benchmark": cudnn_benchmark}),
        "memory_fraction": _fraction(memory_fraction),
        "max_split_size_mb": None if max_split_size_mb is None else _whole("max_split_size_mb", max_split_size_mb, _MAX_SPLIT_LEAST_MB,
                                                                           2**30),
    }
    return apply_settings(_CALLER, wanted, is_explicit=True, workers=workers)


def apply_settings(set_by: str, wanted: Mapping[str, Any], *, is_explicit: bool, workers: int | None = None) -> HardwareSettings:
    """Applies what is not None in `wanted`, in its order; names are those of _ON_CPU and _gpu_settings. is_explicit: False for a
    function's own values, which give way to those that a caller named. An exception leaves everything as it was."""
    done: list[Change] = []
    try:
        for name, value in wanted.items():
            if value is not None:
                for change in _changes(name, value, set_by, is_explicit):
                    done.append(change._replace(setting=dataclasses.replace(change.setting, set_by=set_by)))
                    if change.undo is not None:
                        _in_force.append(done[-1])
        remark = "" if workers is None else _core.oversubscription(workers, torch.get_num_threads())
        if remark:
            warnings.warn(f"headrace: {remark}", UserWarning, stacklevel=3)
    except BaseException:
        HardwareSettings(done).undo()
        raise
    return HardwareSettings(done, [remark] if remark else [])


def _takes_out(undone: Change) -> bool:
    """Of _in_force, with later changes of the same setting, whose value goes with it. False: it was undone before."""
    for place, change in enumerate(_in_force):
        if change is undone:
            _in_force[place:] = [later for later in _in_force[place + 1:] if later.setting.name != undone.setting.name]
            return True
    return False


def _changes(name: str, value: Any, set_by: str, is_explicit: bool) -> list[Change]:
    on_cpu = _ON_CPU.get(name)
    return on_cpu(value) if on_cpu is not None else [_gpu_settings.change(name, value, set_by, is_explicit)]


# ---- Values ----


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= value <= most:
        raise InvalidArgumentError(f"{_CALLER}: {name}: wanted a whole number of {least} to {most}, found {value!r}")
    return int(value)


def _fraction(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value <= 1):
        raise InvalidArgumentError(f"{_CALLER}: memory_fraction: wanted a number above 0 and at most 1, found {value!r}")
    return None if value is None else float(value)


def _policy(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or value not in ("active", "passive")):
        raise InvalidArgumentError(f'{_CALLER}: wait_policy: wanted "active", "passive" or None, found {value!r}')
    return value


def _cores(value: Any) -> str | None:
    """As _core.set_affinity() takes them, which refuses those that are not there."""
    if value is None or isinstance(value, str):
        return value
    try:
        cores = [_whole("affinity", core, 0, 2**20) for core in value]
    except TypeError:
        cores = []
    if not cores:
        raise InvalidArgumentError(f'{_CALLER}: affinity: wanted cores as "0-3,6" or a list of numbers, found {value!r}')
    return ",".join(map(str, sorted(set(cores))))


def _reproducible(on: bool) -> dict[str, Any]:
    switches: dict[str, Any] = {"deterministic_algorithms": on, "cudnn_deterministic": on}
    return {CUBLAS_WORKSPACE: _gpu_settings.CUBLAS_REPEATABLE, **switches, "cudnn_benchmark": False} if on else switches


# ---- Settings of the CPU ----


def _system_change(make: Callable[[Any], Any], value: Any) -> Change:
    """Of a _core.HardwareChange."""
    change = make(value)
    setting = HardwareSetting(**change.setting)
    return Change(setting, (lambda: HardwareSetting(**change.undo())) if setting.is_applied else None)


def _affinity(cores: str) -> list[Change]:
    return [_system_change(_core.set_affinity, cores)]


def _niceness(value: int) -> list[Change]:
    return [_system_change(_core.set_niceness, value)]


def _compute_threads(count: int) -> list[Change]:
    before = torch.get_num_threads()
    return [switched("compute_threads", text(count), lambda: text(torch.get_num_threads()), lambda: torch.set_num_threads(count),
                     lambda: torch.set_num_threads(before))]


def _child_threads(count: int) -> list[Change]:
    return [variable(name, text(count), _LOADED) for name in THREAD_VARIABLES]


def _wait_policy(policy: str) -> list[Change]:
    name = "OMP_WAIT_POLICY"
    if "GOMP_SPINCOUNT" in os.environ:
        return [refused(name, policy, os.environ.get(name, "unset"), "GOMP_SPINCOUNT is set, beside which libgomp asks no policy")]
    return [variable(name, policy, _LOADED)]


def _deterministic_algorithms(on: bool) -> list[Change]:
    before, warns_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return [switched("deterministic_algorithms", text(on), lambda: text(torch.are_deterministic_algorithms_enabled()),
                     lambda: torch.use_deterministic_algorithms(on),
                     lambda: torch.use_deterministic_algorithms(before, warn_only=warns_only))]


_ON_CPU: dict[str, Callable[[Any], list[Change]]] = {
    "affinity": _affinity,
    "niceness": _niceness,
    "compute_threads": _compute_threads,
    "child_threads": _child_threads,
    "wait_policy": _wait_policy,
    "deterministic_algorithms": _deterministic_algorithms,
}
