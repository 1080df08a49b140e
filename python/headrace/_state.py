"""What a training loop changes, saved, and put back into the same objects."""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Callable, Iterable

import torch
from torch import nn

from .batch import Batch, RaggedTensor

_MARKS = ("_opt_called", "_step_count")  # That an optimizer has stepped, for torch's schedulers.


def generators_of(loader: Any) -> list[torch.Generator]:
    """The torch.Generators that a DataLoader's order is drawn from, other than the global one."""
    found = []
    holders = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    holders.append(getattr(holders[2], "sampler", None))
    for holder in holders:
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found):
            found.append(generator)
    return found


class Generators:
    """The states of every generator that a loop may draw from: torch's, Python's, NumPy's, the loader's."""

    def __init__(self, loader: Any) -> None:
        self._states: list[tuple[Callable[[Any], Any], Any]] = [
            (torch.set_rng_state, torch.get_rng_state()),
            (random.setstate, random.getstate()),
        ]
        if torch.cuda.is_initialized():
            self._states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
        if numpy := sys.modules.get("numpy"):
            self._states.append((numpy.random.set_state, numpy.random.get_state()))
        for generator in generators_of(loader):
            self._states.append((generator.set_state, generator.get_state()))
        # A loader that tells where it stands: headrace's, torchdata's.
        if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
            self._states.append((loader.load_state_dict, copy.deepcopy(loader.state_dict())))

    def restore(self) -> None:
        for put_back, state in self._states:
            put_back(state)


class _Held:
    """A tensor object, the memory it has and the values that were in it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.object = tensor
        self.memory = tensor.data
        self.values = tensor.detach().clone()

    def put_back(self) -> None:
        self.object.detach().copy_(self.values)


class State:
    """Parameters, buffers, gradients, modes, optimizer state and generators as they are now."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
        self._model = model
        self._optimizer = optimizer
        self.generators = Generators(loader)
        self._modes = [(module, module.training) for module in model.modules()]
        self.parameters = {name: _Held(parameter) for name, parameter in model.named_parameters()}
        self._gradients = [
            (held.object, held.object.grad, None if held.object.grad is None else held.object.grad.clone())
            for held in self.parameters.values()
        ]
        self._buffers = [
            (module, name, _Held(buffer))
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._optimizer_state = {
            parameter: {key: _Held(value) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
                        for key, value in state.items()}
            for parameter, state in optimizer.state.items()
        }
        self._groups = [_values_of(group) for group in optimizer.param_groups]
        self._marks = {key: optimizer.__dict__[key] for key in _MARKS if key in optimizer.__dict__}

    def restore(self, gradients: bool = False) -> None:
        """Puts the values back, whatever layout the parameters have now. Gradients are dropped, or with `gradients` put
        back too."""
        with torch.no_grad():
            for held in self.parameters.values():
                held.put_back()
            for module, name, held in self._buffers:
                module._buffers[name] = held.object
                held.put_back()
            self._restore_optimizer()
            for parameter, gradient, values in self._gradients:
                parameter.grad = gradient if gradients else None
                if gradients and gradient is not None:
                    gradient.copy_(values)
        for module, training in self._modes:
            module.training = training
        self.generators.restore()

    def _restore_optimizer(self) -> None:
        for group, values in zip(self._optimizer.param_groups, self._groups):
            for key, value in values.items():
                if isinstance(value, _Held):
                    value.put_back()
                    group[key] = value.object
                else:
                    group[key] = value
        for key in _MARKS:
            self._optimizer.__dict__.pop(key, None)
        self._optimizer.__dict__.update(self._marks)
        state = self._optimizer.state
        for parameter in [p for p in state if p not in self._optimizer_state]:
            del state[parameter]
        for parameter, saved in self._optimizer_state.items():
            current = state[parameter]
            for key in [key for key in current if key not in saved]:
                del current[key]
            for key, value in saved.items():
                if isinstance(value, _Held):
                    value.put_back()
                    current[key] = in_layout_of(parameter, value.object)
                else:
                    current[key] = copy.deepcopy(value)


def _values_of(group: dict[str, Any]) -> dict[str, Any]:
    """Of a parameter group, all but the parameters and the implementation, which are settings."""
    return {key: _Held(value) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
            for key, value in group.items() if key not in ("params", "fused", "foreach")}


def in_layout_of(parameter: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """`state` itself, or a copy where it has the parameter's shape and another layout: fused optimizers walk through
    both in the order of their memory."""
    if state.shape == parameter.shape and state.stride() != parameter.stride():
        return torch.empty_like(parameter.detach(), dtype=state.dtype, device=state.device).copy_(state.detach())
    return state


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """Every tensor of a batch, looking into mappings, lists, tuples and the fields of dataclasses."""
    for field in fields_in(value):
        yield from field.tensors() if isinstance(field, RaggedTensor) else [field]


def fields_in(value: Any) -> Iterable[torch.Tensor | RaggedTensor]:
    """The same, where a ragged tensor is one."""
    if isinstance(value, (torch.Tensor, RaggedTensor)):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from fields_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from fields_in(item)
    elif _is_record(value):
        for field in dataclasses.fields(value):
            yield from fields_in(getattr(value, field.name, None))


def _is_record(value: Any) -> bool:
    """An object of a dataclass; a module is none, whose parameters are its own."""
    return dataclasses.is_dataclass(value) and not isinstance(value, (type, nn.Module))


def same_values(a: Any, b: Any) -> bool:
    """Whether two batches hold the same tensors, bit for bit, the same texts, and lack the same."""
    first, second = [[*tensors_in(batch), *_presence_in(batch)] for batch in (a, b)]
    return _texts_in(a) == _texts_in(b) and len(first) == len(second) and all(
        x.dtype == y.dtype and x.shape == y.shape and torch.equal(x, y) for x, y in zip(first, second))


def _presence_in(value: Any) -> list[torch.Tensor]:
    """Of a Loader's batch, which samples have the fields that some lack."""
    return [present for name in value.keys() if (present := value.present(name)) is not None] if isinstance(value, Batch) else []


def _texts_in(value: Any) -> list[str]:
    """Those of a Loader's batch."""
    if not isinstance(value, Batch):
        return []
    return [text for field in value if isinstance(field, list) for text in field if isinstance(text, str)]


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any,
                change_ragged: Callable[[RaggedTensor], RaggedTensor] | None = None) -> Any:
    """The same structure of mappings, lists, tuples and dataclasses with every tensor changed; other things as they are. A
    mapping that cannot be written to becomes a dict. Of a ragged tensor the values are changed, or what `change_ragged` says."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, RaggedTensor):
        return value.map(change) if change_ragged is None else change_ragged(value)
    if isinstance(value, Mapping):
        # A copy keeps what it is: Hugging Face's ModelOutput is a dict with attributes, its BatchEncoding a UserDict.
        result = copy.copy(value) if isinstance(value, MutableMapping) else dict(value)
        for key in list(result):
            result[key] = map_tensors(change, result[key], change_ragged)
        return result
    if isinstance(value, Batch):
        return value.with_fields({name: map_tensors(change, field, change_ragged) for name, field in value.fields.items()})
    if isinstance(value, tuple):
        items = [map_tensors(change, item, change_ragged) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [map_tensors(change, item, change_ragged) for item in value]
    if _is_record(value):
        result = copy.copy(value)
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                object.__setattr__(result, field.name, map_tensors(change, getattr(value, field.name), change_ragged))
        return result
    return value

