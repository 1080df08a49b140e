"""A call of a module whose saved tensors are dropped and computed again by the backward ("activation checkpointing").

The form is that of torch.utils.checkpoint with use_reentrant=False: hooks on saved tensors put a handle into the graph in place of
each tensor, and the first handle that the backward asks for has the call made again, up to the last tensor that it saves. Beyond
torch's: BatchNorm's statistics and all other buffers stand aside while the call is made again, so that they are updated once; the
generators of Python and NumPy are replayed as torch's are; tensors in keyword arguments and in nested lists and dicts are saved as
those of positional arguments; an exception leaves no hooks in force; a call can tell what it saves.

What is kept until the backward: the tensors among the arguments, the states of the generators, and the earlier values of buffers
that the call has changed. One thread may call and go backward through a module at a time.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_flatten, tree_unflatten

from ._call_state import version_of
from ._state import Generators
from .errors import UnsupportedError


def call_recomputed(name: str, module: nn.Module, forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *,
                    replays_draws: bool, to_host: bool, saved: Callable[[torch.Tensor], None] | None = None) -> Any:
    """forward(*args, **kwargs), whose saved tensors are computed again in the backward, by the same forward.

    name: of the module, for errors.
    module: whose buffers and modes the call reads and changes.
    replays_draws: False: dropout draws anew, and gradients are wrong where the call draws.
    to_host: the kept arguments of a device lie in page-locked memory of the host until the backward.
    saved: is told each tensor that would have been saved.

    UnsupportedError: the call changes an argument in place, so that it cannot be made again; or, from the backward, the second time it
    saved other tensors than the first time. Costs a copy of the buffers other than BatchNorm's, and one of the generators' states.
    """
    call = _Call(name, module, forward, args, kwargs, replays_draws, to_host, saved)
    with torch.autograd.graph.saved_tensors_hooks(call.pack, call.unpack):
        result = forward(*args, **kwargs)
    call.end()
    return result


class _Enough(BaseException):
    """All that the backward wants has been computed. No Exception, so that no forward takes it for a failure of its own."""


class _Saved:
    """Stands in the graph for a tensor; `value` is there between its computation and its use."""

    __slots__ = ("__weakref__", "value")

    def __init__(self) -> None:
        self.value: torch.Tensor | None = None


class _KeptInputs(torch.autograd.Function):
    """Keeps the arguments by what autograd keeps tensors with: of a call within another recomputed one they are dropped, too. Nothing
    goes backward through it."""

    @staticmethod
    def forward(anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise AssertionError("nothing depends on it")


class _Call:
    """Lives as long as one of its handles in the graph."""

    def __init__(self, name: str, module: nn.Module, forward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any],
                 replays_draws: bool, to_host: bool, told: Callable[[torch.Tensor], None] | None) -> None:
        self._name, self._forward, self._told = name, forward, told
        leaves, self._structure = tree_flatten((tuple(args), kwargs))
        self._is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self._others = [None if is_tensor else leaf for leaf, is_tensor in zip(leaves, self._is_tensor)]
        tensors = [leaf for leaf, is_tensor in zip(leaves, self._is_tensor) if is_tensor]
        with torch.autograd.graph.save_on_cpu(pin_memory=True) if to_host else contextlib.nullcontext():
            self._kept = _KeptInputs.apply(torch.empty(0, requires_grad=True), *tensors)
        self._before = [(tensor, version_of(tensor)) for tensor in tensors]  # Until the forward is over.
        self._saved: list[weakref.ref[_Saved]] = []
        self._forms: list[tuple[Any, ...]] = []
        self._draws = Generators(None) if replays_draws else None
        self._autocast = _AutocastState({tensor.device.type for tensor in (*tensors, *module.parameters())})
        self._default_device = torch.get_default_device()
        self._buffers = _Buffers(module)
        self._modes = [(part, part.training) for part in module.modules()]

    def pack(self, tensor: torch.Tensor) -> _Saved:
        saved = _Saved()
        self._saved.append(weakref.ref(saved))
        self._forms.append(_form(tensor))
        if self._told is not None:
            self._told(tensor)
        return saved

    def unpack(self, saved: _Saved) -> torch.Tensor:
        if saved.value is None:
            self._recompute()
        value, saved.value = saved.value, None  # So that it goes with its use; a second use computes again.
        assert value is not None
        return value

    def end(self) -> None:
        """The forward is over."""
        changed = any(version_of(tensor) != version for tensor, version in self._before)
        self._before, self._told = [], None
        if changed:
            raise UnsupportedError(f"gradient_checkpointing: {self._name}: wanted a forward that leaves its arguments alone, found one "
                                   "that changes a tensor of them in place: it cannot be computed again. Name the modules to be "
                                   "recomputed without this one")
        self._buffers.forget_unmoved()

    def _recompute(self) -> None:
        """Fills the handles that are still in the graph."""
        args, kwargs = self._arguments()
        found = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal found
            self._check(found, tensor)
            value = tensor.detach()
            saved = self._saved[found]()
            if saved is not None:
                saved.value = value
            found += 1
            if found == len(self._saved):
                raise _Enough
            return value

        try:
            with self._as_in_forward(), torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
                self._forward(*args, **kwargs)
            raise UnsupportedError(f"{self._differs()}: the first time it saved {len(self._saved)} tensors, now {found}")
        except _Enough:
            pass
        except BaseException:
            for reference in self._saved:
                if (saved := reference()) is not None:
                    saved.value = None
            raise

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tensors = iter(self._kept.grad_fn.saved_tensors[1:])
        leaves = [next(tensors) if is_tensor else other for is_tensor, other in zip(self._is_tensor, self._others)]
        return tree_unflatten(leaves, self._structure)

    def _check(self, place: int, tensor: torch.Tensor) -> None:
        if self._forms[place] != _form(tensor):
            shape, dtype, device = self._forms[place]
            raise UnsupportedError(f"{self._differs()}: tensor {place} that it saved was {tuple(shape)} of {dtype} on {device}, and is "
                                   f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device} now")

    def _differs(self) -> str:
        return (f"gradient_checkpointing: {self._name}: wanted a forward that computes the same when it is made again, found one that "
                "depends on something that has changed")

    @contextlib.contextmanager
    def _as_in_forward(self) -> Iterator[None]:
        """Gradients, generators, autocast, modes, buffers and the default device as they were then; afterwards as now."""
        now = Generators(None) if self._draws is not None else None
        modes = [(part, part.training) for part, training in self._modes if part.training != training]
        try:
            if self._draws is not None:
                self._draws.restore()
            for part, _ in modes:
                part.training = not part.training
            with contextlib.ExitStack() as stack:
                if self._default_device.type != "cpu":  # As a mode it costs time at every operator.
                    stack.enter_context(self._default_device)
                self._autocast.enter(stack)
                stack.enter_context(torch.enable_grad())
                stack.enter_context(self._buffers.replaced())
                yield
        finally:
            for part, training in modes:
                part.training = training
            if now is not None:
                now.restore()


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


class _AutocastState:
    """As torch.autocast has it now, for the CPU and these types of devices."""

    def __init__(self, device_types: set[str]) -> None:
        self._caches = torch.is_autocast_cache_enabled()
        self._of_type = [(device_type, torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type))
                         for device_type in sorted({"cpu", *device_types}) if torch.amp.is_autocast_available(device_type)]

    def enter(self, stack: contextlib.ExitStack) -> None:
        for device_type, is_enabled, dtype in self._of_type:
            stack.enter_context(torch.autocast(device_type, dtype=dtype, enabled=is_enabled, cache_enabled=self._caches))


class _Buffers:
    """The buffers of a module and its parts, as a call finds them. BatchNorm's running statistics do not enter what it computes in
    training, so no copy of them is kept; of the others one is, where the call moves them."""

    def __init__(self, module: nn.Module) -> None:
        self._held: list[tuple[nn.Module, str, torch.Tensor, int, torch.Tensor | None]] = []
        for part in module.modules():
            if isinstance(part, _NormBase) and not part.training:
                continue  # Read and never changed.
            for name, buffer in part._buffers.items():
                if buffer is not None and not buffer.requires_grad:
                    copy = None if isinstance(part, _NormBase) else buffer.detach().clone()
                    self._held.append((part, name, buffer, version_of(buffer), copy))

    def forget_unmoved(self) -> None:
        """After the call: lets the copies of those go that are as they were."""
        self._held = [(part, name, buffer, version,
                       None if part._buffers.get(name) is buffer and version_of(buffer) == version else copy)
                      for part, name, buffer, version, copy in self._held]

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Copies stand in their places, with the values that the call found; what happens to them is nobody's."""
        aside = []
        for part, name, _, _, copy in self._held:
            if (present := part._buffers.get(name)) is not None:
                aside.append((part, name, present))
                part._buffers[name] = (present.detach() if copy is None else copy).clone()
        try:
            yield
        finally:
            for part, name, present in aside:
                part._buffers[name] = present
