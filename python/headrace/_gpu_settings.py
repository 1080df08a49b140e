"""Settings of torch for its current CUDA device: TF32, cuDNN, the caching allocator. Where CUDA is not in use yet, it is initialised only
for those that say so."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from ._gpu_power import highest_power_limit
from ._hardware_change import BY_CALL, FOR_CHILDREN, NOT_APPLIED, UNAVAILABLE, Change, HardwareSetting, refused, switched, text

NO_CUDA = "no CUDA device here"
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_REPEATABLE = (":4096:8", ":16:8")  # Either will do for torch.use_deterministic_algorithms().
_TF32_SINCE = (8, 0)  # Compute capability.
_MB, _GIB = 2**20, 2**30
_UNLIMITED = "unlimited"
_MAX_SPLIT = re.compile(r"\bmax_split_size_mb\s*:\s*\d+")


class Cap(NamedTuple):
    """Who capped this process's memory on a device, at which fraction of it, and whether a caller named the value."""

    fraction: str
    set_by: str
    is_explicit: bool


_caps: dict[int, Cap] = {}  # By device: torch tells the fraction, and not whose it is.


def change(name: str, wanted: Any, set_by: str, is_explicit: bool) -> Change:
    """`name` is a key of _CHANGES. is_explicit: False: the value is a function's own, which gives way to a caller's."""
    if not torch.cuda.is_available():
        return refused(name, _requested(wanted), UNAVAILABLE, NO_CUDA)
    if name == "memory_fraction":
        return _memory_fraction(wanted, set_by, is_explicit)
    return _CHANGES[name](wanted)


def _requested(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else " or ".join(wanted) if isinstance(wanted, tuple) else text(wanted)


# ---- TF32 ----
#
# torch 2.11 has two interfaces over it: allow_tf32 with torch.set_float32_matmul_precision(), and fp32_precision. The older one sets
# both, and reading it is an error once the newer one alone was used. So the older one is written where it can be read, and the newer one
# where it cannot; what is put back is both.


@contextmanager
def _no_advice() -> Iterator[None]:
    """Without torch's advice to take the newer interface, which is for whoever calls the older one by hand."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _older(read: Callable[[], Any]) -> Any:
    """None: torch says that it was mixed with the newer interface."""
    with _no_advice():
        try:
            return read()
        except RuntimeError:
            return None


def _refuses_tf32(wanted: bool) -> str | None:
    """CUDA is initialised where it is wanted."""
    if wanted and (found := torch.cuda.get_device_capability()) < _TF32_SINCE:
        return f"compute capability {found[0]}.{found[1]} has no TF32; {_TF32_SINCE[0]}.{_TF32_SINCE[1]} and later have"
    return None


def _precisions(operations: Mapping[str, Any]) -> dict[str, str]:
    return {name: operation.fp32_precision for name, operation in operations.items()}


def _is_tf32(operations: Mapping[str, Any]) -> str:
    return text(all(value == "tf32" for value in _precisions(operations).values()))


def _tf32_of(name: str, wanted: bool, operations: Mapping[str, Any], older: Any, write_older: Callable[[Any], object],
             of_bool: Callable[[bool], Any]) -> Change:
    """`operations`: those that have an fp32_precision, by name. `older`: what the older interface has, None where it cannot be read;
    of_bool makes such a value of a bool."""
    def read() -> str:
        return _is_tf32(operations)

    if (reason := _refuses_tf32(wanted)) is not None:
        return refused(name, text(wanted), read(), reason)
    before = _precisions(operations)

    def write() -> None:
        if older is None:
            for operation in operations.values():
                operation.fp32_precision = "tf32" if wanted else "ieee"
        elif read() != text(wanted):
            with _no_advice():
                write_older(of_bool(wanted))

    def restore() -> None:
        if older is not None:
            with _no_advice():
                write_older(older)
        for operation, value in before.items():
            operations[operation].fp32_precision = value

    return switched(name, text(wanted), read, write, restore)


def _tf32_matmul(wanted: bool) -> Change:
    cpu = torch.backends.mkldnn.matmul
    of_cpu = cpu.fp32_precision

    def write(precision: str) -> None:
        torch.set_float32_matmul_precision(precision)
        if precision != "highest" or of_cpu in ("none", "ieee"):  # Else torch takes the CPU's for a mixture.
            cpu.fp32_precision = of_cpu  # A setting of GPUs leaves the CPU's products alone.

    return _tf32_of("tf32_matmul", wanted, {"matmul": torch.backends.cuda.matmul}, _older(torch.get_float32_matmul_precision), write,
                    lambda on: "high" if on else "highest")


def _tf32_cudnn(wanted: bool) -> Change:
    cudnn = torch.backends.cudnn

    def write(on: bool) -> None:
        cudnn.allow_tf32 = on

    return _tf32_of("tf32_cudnn", wanted, {"conv": cudnn.conv, "rnn": cudnn.rnn}, _older(lambda: cudnn.allow_tf32), write, bool)


def _tf32(wanted: bool) -> Change:
    """Matrix products and cuDNN, which torch sets apart, as one setting."""
    before = _tf32_state()
    ways_back: list[Callable[[], HardwareSetting]] = []

    def undo() -> HardwareSetting:
        undone: list[HardwareSetting] = []
        with ExitStack() as last_first:  # All of them, also where one raises.
            for way_back in ways_back:
                last_first.callback(lambda way_back=way_back: undone.append(way_back()))
        reason = "; ".join(setting.reason for setting in undone if setting.reason)
        return HardwareSetting("tf32", before, text(wanted), _tf32_state(), NOT_APPLIED if reason else BY_CALL, reason)

    try:
        for make in (_tf32_matmul, _tf32_cudnn):
            change = make(wanted)
            if change.undo is None:
                undo()
                return refused("tf32", text(wanted), _tf32_state(), change.setting.reason)
            ways_back.append(change.undo)
    except BaseException:
        undo()
        raise
    return Change(HardwareSetting("tf32", text(wanted), before, _tf32_state(), BY_CALL, ""), undo)


def _tf32_state() -> str:
    cudnn = torch.backends.cudnn
    of_matmul = _is_tf32({"matmul": torch.backends.cuda.matmul})
    of_cudnn = _is_tf32({"conv": cudnn.conv, "rnn": cudnn.rnn})
    return of_matmul if of_matmul == of_cudnn else f"matmul {of_matmul}, cudnn {of_cudnn}"


# ---- cuDNN and cuBLAS ----


def _cudnn_benchmark(wanted: bool) -> Change:
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark

    def write(on: bool) -> None:
        cudnn.benchmark = on

    reason = ("cudnn_deterministic is on: only deterministic kernels are timed, and which is the fastest may differ from run to run"
              if wanted and cudnn.deterministic else "")
    return switched("cudnn_benchmark", text(wanted), lambda: text(cudnn.benchmark), lambda: write(wanted), lambda: write(before),
                    reason=reason)


def _cudnn_deterministic(wanted: bool) -> Change:
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic

    def write(on: bool) -> None:
        cudnn.deterministic = on

    return switched("cudnn_deterministic", text(wanted), lambda: text(cudnn.deterministic), lambda: write(wanted),
                    lambda: write(before))


def _cublas_workspace(choices: tuple[str, ...]) -> Change:
    """The first of these, unless one of them is in force."""
    found = os.environ.get(CUBLAS_WORKSPACE)
    reason = ("cuBLAS reads it at its first call, which may have been before: CUDA is initialised here" if torch.cuda.is_initialized()
              else "in this process, too, as CUDA is not initialised yet")
    return variable(CUBLAS_WORKSPACE, found if found in choices else choices[0], reason)


def variable(name: str, wanted: str, reason: str) -> Change:
    """One of the environment, for processes that start from here on."""
    before = os.environ.get(name)

    def restore() -> None:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before

    return switched(name, wanted, lambda: os.environ.get(name, "unset"), lambda: os.environ.__setitem__(name, wanted), restore,
                    FOR_CHILDREN, reason)


# ---- The caching allocator ----


def _fraction_text(fraction: float) -> str:
    """To 6 digits: torch keeps whole bytes."""
    return f"{fraction:.6g}"


def _memory_fraction(wanted: float, set_by: str, is_explicit: bool) -> Change:
    """CUDA is initialised for it."""
    cuda, name = torch.cuda, "memory_fraction"
    device = cuda.current_device()
    fraction = cuda.get_per_process_memory_fraction(device)
    before, cap = _fraction_text(fraction), _caps.get(device)
    if cap is None or cap.fraction != before:
        cap = Cap(before, "torch", True) if fraction < 1 else None
    if cap is not None and cap.is_explicit and not is_explicit:
        return refused(name, _fraction_text(wanted), before, f"{before} is in force, set by {cap.set_by}, and an explicit value wins")

    def write() -> None:
        cuda.set_per_process_memory_fraction(float(wanted), device)
        _caps[device] = Cap(_fraction_text(wanted), set_by, is_explicit)

    def restore() -> None:
        cuda.set_per_process_memory_fraction(fraction, device)
        _caps.pop(device, None)
        if cap is not None:
            _caps[device] = cap

    total = cuda.get_device_properties(device).total_memory
    return switched(name, _fraction_text(wanted), lambda: _fraction_text(cuda.get_per_process_memory_fraction(device)), write, restore,
                    reason=f"at most {wanted * total / _GIB:.1f} of {total / _GIB:.1f} GiB of device {device}")


def _allocator_settings() -> dict[str, Any]:
    """Of a snapshot without the history of allocations."""
    return torch._C._cuda_memorySnapshot((0, 0, False))["allocator_settings"]  # type: ignore[arg-type]


def _max_split_size() -> str:
    size = _allocator_settings()["max_split_size"]  # Bytes; -1, and what no memory has: no limit.
    return text(size // _MB) if 0 <= size < 2**62 else _UNLIMITED


def with_max_split_size(settings: str, mb: int) -> str:
    """Settings as PYTORCH_CUDA_ALLOC_CONF has them, with this one: torch takes those that a text leaves out for their defaults."""
    kept = [part for part in re.split(r",(?![^\[]*\])", _MAX_SPLIT.sub("", settings)) if part.strip()]
    return ",".join([*kept, f"max_split_size_mb:{mb}"])


def _max_split_size_mb(wanted: int) -> Change:
    """By the allocator's own call, which holds from the next allocation on, also of an allocator that is in use."""
    name = "max_split_size_mb"
    if (backend := torch.cuda.get_allocator_backend()) != "native":
        return refused(name, text(wanted), UNAVAILABLE, f"the allocator is {backend}, which splits no blocks")
    before = _allocator_settings()["PYTORCH_CUDA_ALLOC_CONF"]
    reason = "blocks that were split before stay so" if torch.cuda.is_initialized() else ""
    return switched(name, text(wanted), _max_split_size,
                    lambda: torch._C._accelerator_setAllocatorSettings(with_max_split_size(before, wanted)),
                    lambda: torch._C._accelerator_setAllocatorSettings(before), reason=reason)


def _power_mode(wanted: str) -> Change:
    """The only mode is "high". CUDA is initialised for it."""
    return highest_power_limit(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))


_CHANGES: dict[str, Callable[[Any], Change]] = {
    "tf32": _tf32,
    "tf32_matmul": _tf32_matmul,
    "tf32_cudnn": _tf32_cudnn,
    "cudnn_benchmark": _cudnn_benchmark,
    "cudnn_deterministic": _cudnn_deterministic,
    CUBLAS_WORKSPACE: _cublas_workspace,
    "max_split_size_mb": _max_split_size_mb,
    "power_mode": _power_mode,
}
