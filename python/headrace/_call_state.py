"""What a module's call starts from beside its inputs and the values of its parameters, kept and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from ._seen_calls import COMPILED_CALL
from ._state import Generators, tensors_in

# Of a module's attributes: torch's own, kept in another way, and what settings and SeenCalls put there (ForwardSwitch, PlainSaves).
_NOT_STATE = frozenset(vars(nn.Module())) | {"forward", "__getstate__", COMPILED_CALL}
# A longer list or dict as an attribute is taken for a table (a vocabulary), which no call changes.
_ITEMS_MAX = 256
_ABSENT = object()


def version_of(tensor: torch.Tensor) -> int:
    """Counts the changes of a tensor in place; a tensor of inference mode has no count and cannot be changed."""
    return -1 if tensor.is_inference() else tensor._version


class CallState:
    """Generators (torch's, Python's, NumPy's, those in the module's attributes), buffers, attributes, modes and which parameters
    require gradients, of a module and all of its parts, as they are now.

    Attributes are kept as objects: lists and dicts of up to 256 items with what is in them, tensors without a copy. Costs a
    copy of the buffers and 0.1 ms to 1 ms for looking through the modules."""

    def __init__(self, module: nn.Module, earlier: CallState | None = None) -> None:
        """`earlier`: of the same module; buffers that are as they were then share its copies, but for those on CUDA."""
        parts = list(module.modules())
        self._modes = [(part, part.training) for part in parts]
        self._requires_grad = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
        self._buffers = [(part, dict(part._buffers)) for part in parts]
        known = earlier._copies if earlier is not None else {}
        self._copies = {id(buffer): (buffer, _copy_of(buffer, known.get(id(buffer)))) for buffer in module.buffers()
                        if buffer.layout == torch.strided and not buffer.is_inference()}
        self._attributes = [(part, _attributes_of(part)) for part in parts]
        self._is_whole = True  # Attributes that are not kept did not exist.
        values = [value for _, attributes in self._attributes for value in attributes.values()]
        self._contents = [(value, value.copy()) for value in values if type(value) in (list, dict) and len(value) <= _ITEMS_MAX]
        self._generators = Generators(None)
        self._generators_inside = [kept for value in values if (kept := _generator_state(value)) is not None]
        self._versions = [(name, tensor, version_of(tensor)) for name, tensor in self._tensors_that_stay(module)]

    def restore(self) -> None:
        """Puts all of it back, into the same objects."""
        for part, training in self._modes:
            if part.training != training:
                part.training = training
        for parameter, requires_grad in self._requires_grad:
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)
        for part, buffers in self._buffers:
            if not _same_items(part._buffers, buffers):
                part._buffers.clear()
                part._buffers.update(buffers)
        for buffer, values in self._copies.values():
            if not torch.equal(buffer, values):  # Batch normalisation changes its buffers without counting a version.
                buffer.detach().copy_(values)
        for part, attributes in self._attributes:
            present = vars(part)
            for name in _attributes_of(part).keys() - attributes.keys() if self._is_whole else ():
                del present[name]
            for name, value in attributes.items():
                if value is _ABSENT:
                    present.pop(name, None)
                elif present.get(name, _ABSENT) is not value:
                    present[name] = value
        for container, items in self._contents:
            if not _same_items(container, items):
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(items)
        self._generators.restore()
        for put_back, state in self._generators_inside:
            put_back(state)

    def forget_unmoved(self) -> None:
        """From now on restore() leaves modes, attributes and what requires gradients alone where they are as they were: what a
        setting does to them later stays in force. Generators and buffers it puts back all the same. The first time counts."""
        if not self._is_whole:
            return
        self._is_whole = False
        self._modes = [(part, training) for part, training in self._modes if part.training != training]
        self._requires_grad = [(parameter, flag) for parameter, flag in self._requires_grad if parameter.requires_grad != flag]
        self._contents = [(container, items) for container, items in self._contents if not _same_items(container, items)]
        self._attributes = [(part, _moved(_attributes_of(part), attributes)) for part, attributes in self._attributes]

    def changed_in_place(self) -> str | None:
        """The first parameter or attribute whose numbers have been changed since: a call that does so cannot be made twice.
        Buffers may: they are put back."""
        return next((name for name, tensor, version in self._versions if version_of(tensor) != version), None)

    def held_of_a_graph(self) -> str | None:
        """The first attribute or buffer that is a tensor of an earlier call's graph."""
        for part, held in (*self._attributes, *self._buffers):
            for name, value in held.items():
                if any(tensor.grad_fn is not None for tensor in _tensors_of_attribute(value)):
                    return f"{type(part).__name__}.{name}"
        return None

    def _tensors_that_stay(self, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in module.named_parameters():
            yield f"parameter {name}", parameter
        for part, attributes in self._attributes:
            for name, value in attributes.items():
                for tensor in _tensors_of_attribute(value):
                    if id(tensor) not in self._copies and not isinstance(tensor, nn.Parameter):
                        yield f"attribute {type(part).__name__}.{name}", tensor


def _copy_of(buffer: torch.Tensor, known: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    is_cheap = not buffer.is_cuda  # There a copy costs less than the answer, which waits for the device.
    if is_cheap and known is not None and known[0] is buffer and known[1].shape == buffer.shape and torch.equal(buffer, known[1]):
        return known[1]
    return buffer.detach().clone()


def _tensors_of_attribute(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor) or (isinstance(value, (list, tuple, dict)) and len(value) <= _ITEMS_MAX):
        yield from tensors_in(value)


def _generator_state(value: Any) -> tuple[Callable[[Any], Any], Any] | None:
    """What puts a generator back, and its state; None: the value is none."""
    if isinstance(value, torch.Generator):
        return value.set_state, value.get_state()
    if isinstance(value, random.Random):
        return value.setstate, value.getstate()
    if numpy := sys.modules.get("numpy"):
        if isinstance(value, numpy.random.RandomState):
            return value.set_state, value.get_state()
        if isinstance(value, numpy.random.Generator):
            return partial(setattr, value.bit_generator, "state"), value.bit_generator.state
    return None


def _attributes_of(part: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(part).items() if name not in _NOT_STATE}


def _moved(present: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Those of the kept attributes that are others now, and those that did not exist."""
    moved = {name: value for name, value in kept.items() if present.get(name, _ABSENT) is not value}
    return {**moved, **{name: _ABSENT for name in present.keys() - kept.keys()}}


def _same_items(now: Any, before: Any) -> bool:
    """Of two lists or two dicts: the same objects in the same places."""
    if len(now) != len(before):
        return False
    if isinstance(now, list):
        return all(a is b for a, b in zip(now, before))
    return all(name in now and now[name] is value for name, value in before.items())
