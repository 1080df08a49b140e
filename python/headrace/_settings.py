"""Settings that both of the tuner's doors apply to a loop's objects, by the keys of their knobs, and why one cannot be applied:
headrace.tune on a snapshot (_subject.py), headrace.autotune between the updates of a run (_live_knobs.py)."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any, Iterable, Mapping

import torch
from torch.optim.optimizer import _default_to_fused_or_foreach
from torch.utils.data import DataLoader

from . import _core, _engine_door
from .errors import InvalidArgumentError, UnsupportedError

MEMORY_FORMAT = "model.memory_format"
PRECISION = "train.precision"
FUSED = "optimizer.fused"
FOREACH = "optimizer.foreach"
THREADS = "compute.intra_op_threads"
ALLOCATOR = "compute.allocator"
DENORMALS = "compute.flush_denormal"
COMPILE = "model.compile"
ENGINE = "train.engine"  # "native": the step by headrace's engine.
MICRO_BATCHES = "train.micro_batches"  # That each batch is cut into.

# By key: what an optimizer's groups say where they use this implementation of its update. torch takes one at a time.
_IMPLEMENTATIONS = {FUSED: {"fused": True, "foreach": False}, FOREACH: {"fused": False, "foreach": True}}
_CHECK = "_need_device_dtype_check_for_fused"  # A mark that torch leaves in an optimizer at its first fused step.
_NUMBERS = {4: "four", 5: "five"}


def text(settings: Mapping[str, str], key: str) -> str | None:
    """A setting that is a text; None: it is not named."""
    return json.loads(settings[key]) if key in settings else None


class UpdateSwitch:
    """Which implementation of its update an optimizer's groups use: the one they were written with, FUSED or FOREACH.

    The groups are looked up at each switch, because load_state_dict() puts other dicts in their place: one that was not seen
    before is as its owner wrote it. On a device other than the CPU the fused implementation wants each state's `step` beside
    its parameter, and the others want it on the CPU: it is moved.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._seen: list[tuple[dict[str, Any], dict[str, Any]]] = []  # Groups, and what they were written with.
        self._was_checked = _CHECK in vars(optimizer)
        self._off_cpu = any(parameter.device.type != "cpu" for group in optimizer.param_groups for parameter in group["params"])
        self.on: str | None = None  # FUSED or FOREACH; None: as written.
        self.written()

    def written(self) -> list[dict[str, Any]]:
        """Of each group `fused` and `foreach`, as far as it has them, as their owner wrote them."""
        known = {id(group): written for group, written in self._seen}
        self._seen = [(group, known.get(id(group)) or {key: group[key] for key in ("fused", "foreach") if key in group})
                      for group in self._optimizer.param_groups]
        return [written for _, written in self._seen]

    def uses(self, implementation: str) -> list[bool]:
        """Of each group, whether it uses FUSED or FOREACH as its owner wrote it, by torch's own choice too."""
        if implementation == FUSED:
            return [bool(written.get("fused")) for written in self.written()]
        return [self._uses_foreach(group["params"], written)
                for group, written in zip(self._optimizer.param_groups, self.written())]

    def set(self, implementation: str | None) -> None:
        """FUSED, FOREACH, or None for the one that the groups were written with."""
        values: Mapping[str, bool] = {} if implementation is None else _IMPLEMENTATIONS[implementation]
        for group, written in zip(self._optimizer.param_groups, self.written()):
            group.update({key: values.get(key, value) for key, value in written.items()})
        fused = implementation == FUSED
        if not fused and not self._was_checked:
            vars(self._optimizer).pop(_CHECK, None)
        if self._off_cpu and fused != (self.on == FUSED):
            self._move_steps(fused)
        self.on = implementation

    def put_into(self, state_dict: dict[str, Any]) -> None:
        """Makes what state_dict() returned as it would be without a switch."""
        for packed, written in zip(state_dict["param_groups"], self.written()):
            packed.update(written)
        if self._off_cpu and self.on == FUSED:
            state_dict["state"] = {key: {**state, "step": state["step"].cpu()} if "step" in state else state
                                   for key, state in state_dict["state"].items()}

    def _uses_foreach(self, parameters: list[torch.Tensor], written: Mapping[str, Any]) -> bool:
        if any(value is not None for value in written.values()):
            return bool(written.get("foreach"))
        # Left to torch, which loops on a CPU. Adafactor loops everywhere.
        if "foreach" not in written or isinstance(self._optimizer, torch.optim.Adafactor):
            return False
        return bool(parameters) and _default_to_fused_or_foreach(parameters, differentiable=False)[1]

    def _move_steps(self, fused: bool) -> None:
        """One transfer for all that go from one device to another."""
        moving: dict[tuple[torch.device, torch.device], list[dict[str, Any]]] = {}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter, {})
                target = parameter.device if fused else torch.device("cpu")
                if isinstance(state.get("step"), torch.Tensor) and state["step"].device != target:
                    moving.setdefault((state["step"].device, target), []).append(state)
        for (_, target), states in moving.items():
            moved = torch.stack([state["step"] for state in states]).to(target)
            for state, step in zip(states, moved):
                state["step"] = step.clone()


def process_settings() -> dict[str, str]:
    """What is in force for the caller of the settings of the whole process, as TOML texts; of the allocator where the engine can be
    had, which alone applies it."""
    found = {} if _engine_door.why_not() is not None else {ALLOCATOR: _engine_door.engine(ALLOCATOR).allocator()}
    return {**found, DENORMALS: json.dumps(_core.flushes_denormals())}


class ProcessSettings:
    """The compute threads, and the other settings of the whole process."""

    def __init__(self, caller: str) -> None:
        self._caller = caller  # That its errors begin with.
        self.threads = self._threads_most = torch.get_num_threads()
        self.written = process_settings()

    def apply(self, settings: Mapping[str, str]) -> None:
        """What is not named is as it was when this was made. UnsupportedError where one cannot be."""
        threads = int(settings.get(THREADS, self.threads))
        has_other_threads = threads != torch.get_num_threads()
        if has_other_threads:
            torch.set_num_threads(threads)
            self._threads_most = max(self._threads_most, threads)
        in_force = process_settings()
        for key, written in self.written.items():
            wanted = settings.get(key, written)
            if wanted == in_force[key] and not has_other_threads:  # New threads have none of it.
                continue
            if key == ALLOCATOR:
                requested, applied, reason = _engine_door.engine(ALLOCATOR).set_allocator(wanted)
            else:
                requested, applied, reason = self._set_denormals(wanted)
            if applied != requested:
                raise UnsupportedError(f"{self._caller}: {key} stays {applied}: {reason}")

    def _set_denormals(self, wanted: str) -> tuple[str, str, str]:
        """Requested, applied, and why they differ. The mode is each thread's own: torch sets the caller's, which all that compute
        for it get, those too that only settings of before had use for. Where they cannot be reached the caller keeps its own."""
        if wanted not in ("true", "false"):
            raise InvalidArgumentError(f"{self._caller}: {DENORMALS}: wanted true or false, found {wanted}")
        before = _core.flushes_denormals()
        torch.set_flush_denormal(wanted == "true")
        if _core.flushes_denormals() != (wanted == "true"):
            return wanted, json.dumps(before), "this processor has no such mode"
        reason = _core.share_float_mode(self._threads_most)
        if reason:
            torch.set_flush_denormal(before)
            _core.share_float_mode(self._threads_most)  # Of those that were reached.
        return wanted, json.dumps(_core.flushes_denormals()), reason


def not_float32(tensors: Iterable[torch.Tensor]) -> str | None:
    types = {tensor.dtype for tensor in tensors}
    if types != {torch.float32}:
        return f"the parameters are not float32 alone: {', '.join(sorted(map(str, types)))}"
    return None


def no_channels_last(parameters: Iterable[torch.Tensor], formats: Mapping[int, torch.memory_format]) -> str | None:
    """`formats`: by number of dimensions, the layout that parameters would get."""
    parameters = list(parameters)
    weights = [parameter for parameter in parameters if parameter.dim() in formats]
    if not weights:
        return f"the model has no parameter of {' or '.join(_NUMBERS[dimensions] for dimensions in formats)} dimensions"
    if all(weight.is_contiguous(memory_format=formats[weight.dim()]) for weight in weights):
        return "the parameters are in that layout already"
    addresses = [parameter.untyped_storage().data_ptr() for parameter in parameters]
    if len(set(addresses)) != len(addresses):
        return "parameters share memory"
    return None


def no_implementation(key: str, optimizer: torch.optim.Optimizer) -> str | None:
    """Of its update; `key` is FUSED or FOREACH."""
    name, kind = type(optimizer).__name__, key.rpartition(".")[2]
    groups = optimizer.param_groups
    if kind not in groups[0]:
        return f"{name} has no {kind} implementation"
    if any(group.get("differentiable") or group.get("capturable") for group in groups):
        return f"{name} is differentiable or capturable"
    return _no_foreach(optimizer) if key == FOREACH else None


def _no_foreach(optimizer: torch.optim.Optimizer) -> str | None:
    groups = optimizer.param_groups
    # torch adds the momentum to the gradients where they are, unless weight decay or maximize has copied them.
    if any(group.get("nesterov") and not group.get("weight_decay") and not group.get("maximize") for group in groups):
        return "with nesterov and no weight decay foreach writes into the gradients"
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) and any(
            isinstance(value, torch.Tensor) for group in groups for value in (group["lr"], *group["betas"])):
        return f"lr or betas is a tensor, which {type(optimizer).__name__} does not take with foreach"
    return None


def no_compile(loader: Any) -> str | None:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "there is no C++ compiler, which torch.compile needs"
    if isinstance(loader, DataLoader) and not loader.drop_last and _last_is_smaller(loader):
        return "the last batch of an epoch is smaller than the others, so that it would compile twice"
    return None


def _last_is_smaller(loader: DataLoader) -> bool:
    try:
        return loader.batch_size is not None and len(loader.sampler) % loader.batch_size != 0
    except TypeError:
        return False
