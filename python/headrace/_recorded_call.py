"""One outermost forward call of a loop, recorded and made again with the gradients that arrived at its outputs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ._call_state import CallState, version_of
from ._free_memory import used_bytes
from ._gradient_distance import squares
from ._state import map_tensors, tensors_in
from .errors import UnsupportedError

Gradients = dict[nn.Parameter, torch.Tensor]
Autocast = tuple[bool, dict[str, tuple[bool, torch.dtype]]]  # Whether casts are cached; by device, whether on and to what.

_WITHIN = 0.1  # An output whose gradient differs by less from what came through the call's other outputs got it all from there.


class Replay:
    """What a replay of all kept calls gave."""

    def __init__(self) -> None:
        self.gradients: Gradients = {}  # Sums over the calls; a parameter without one is not in it.
        self.outputs: list[torch.Tensor] = []
        self.seconds = 0.0  # Of forward and backward.
        self.needed = 0  # Bytes, the largest of a call.


class RecordedCall:
    """One outermost forward: what it was given, what it started from, and the gradients that arrived at its outputs."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], began: int, earlier: CallState | None,
                 ambient: Autocast | None) -> None:
        """`ambient`: the autocast in force where the unit began. One of the loop's own around the call is another, and is set
        again in a replay; what a setting has put around all is not."""
        if _holds_iterator((args, kwargs)):
            raise UnsupportedError(f"an input of {type(module).__name__} is an iterator, which can be read only once")
        if any(map(replays_graph, module.modules())):
            raise UnsupportedError(f"{type(module).__name__} replays a CUDA graph, whose gradients lie in memory that it uses again")
        copies: dict[int, torch.Tensor] = {}
        self.module = module
        self.state = CallState(module, earlier)  # Before anything is drawn or computed.
        self.began = began
        self.reached: int | None = None  # When the first gradient arrived at an output.
        self.arrived: dict[int, torch.Tensor] = {}  # Gradients by the output's place among the tensors returned.
        self._args, self._kwargs = map_tensors(partial(_copy, copies), args), map_tensors(partial(_copy, copies), kwargs)
        self._given = [(tensor, version_of(tensor)) for tensor in tensors_in((args, kwargs))]
        self._device = next(module.parameters()).device
        now = autocast_now(self._device)
        self._autocast = now if now != ambient else None
        self._roots: dict[int, torch.Tensor] | None = None  # Gradients that backward begins with; None: not known yet.
        self._hooks: list[Any] = []

    def end(self, result: Any, arrived: Callable[[RecordedCall, int, torch.Tensor | None], None]) -> None:
        """Behind the call. UnsupportedError where it cannot be made again. `arrived` is told each output's gradient."""
        name = type(self.module).__name__
        if any(version_of(tensor) != version for tensor, version in self._given):
            raise UnsupportedError(f"{name} changes an input in place")
        if (changed := self.state.changed_in_place()) is not None:
            raise UnsupportedError(f"{name} changes its {changed} in place")
        seen = {id(tensor) for tensor, _ in self._given}  # A tensor that is handed through got its gradient elsewhere, too.
        self._given = []
        for index, tensor in enumerate(tensors_in(result)):
            if tensor.grad_fn is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                self._hooks.append(tensor.register_hook(partial(arrived, self, index)))

    def drop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.arrived, self._roots = [], {}, None

    def replay(self, result: Replay) -> None:
        """Adds gradients, outputs, seconds and memory to `result`."""
        used = used_bytes(self._device)
        torch.clear_autocast_cache()  # Of weights as another setting had them.
        begin = _moment(self._device)
        with torch.enable_grad():
            with _autocast_as(self._autocast):
                returned = self.module(*map_tensors(_same, self._args), **map_tensors(_same, self._kwargs))
            forward_s = _moment(self._device) - begin
            outputs = list(tensors_in(returned))
            if used is not None:
                result.needed = max(result.needed, (used_bytes(self._device) or used) - used)
            if self._roots is None:
                self._roots = self._gradients_from_outside(outputs)
            parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            begin = _moment(self._device)
            found = torch.autograd.grad(
                [outputs[i] for i in self._roots],
                parameters, [gradient.to(outputs[i].dtype) for i, gradient in self._roots.items()], allow_unused=True)
            result.seconds += forward_s + _moment(self._device) - begin
        torch.clear_autocast_cache()
        for parameter, gradient in zip(parameters, found):
            if gradient is not None:  # Not added in place: a gradient may be the kept one itself.
                known = result.gradients.get(parameter)
                result.gradients[parameter] = gradient.detach() if known is None else known + gradient.detach()
        result.outputs += [output.detach() for output in outputs]

    def _gradients_from_outside(self, outputs: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """What arrived, without what came from other outputs of this very call (a loss that the model computes from the logits
        that it returns as well): backward brings that anew."""
        arrived = {index: gradient.detach() for index, gradient in self.arrived.items()}
        if any(index >= len(outputs) or outputs[index].shape != gradient.shape for index, gradient in arrived.items()):
            raise UnsupportedError(f"{type(self.module).__name__} returns other tensors than in the loop: {shapes_of(outputs)}")
        inner = _computed_from([outputs[index] for index in arrived])
        inner_indices = [index for index in arrived if any(outputs[index] is tensor for tensor in inner)]
        if not inner_indices:
            return arrived
        from_within: dict[int, torch.Tensor] = {}

        def exchange(index: int, gradient: torch.Tensor) -> torch.Tensor:
            from_within[index] = gradient.detach()
            return arrived[index].to(gradient.dtype)  # For the outputs behind it: all that arrived here.

        hooks = [outputs[index].register_hook(partial(exchange, index)) for index in inner_indices]
        begin = {index: torch.zeros_like(gradient) if index in inner_indices else gradient for index, gradient in arrived.items()}
        torch.autograd.grad([outputs[index] for index in begin], inner,
                            [gradient.to(outputs[index].dtype) for index, gradient in begin.items()], retain_graph=True)
        for hook in hooks:
            hook.remove()
        for index in inner_indices:
            if squares(arrived[index], from_within[index]).relative_l2 <= _WITHIN:
                del arrived[index]
            else:
                arrived[index] = arrived[index] - from_within[index]
        return arrived


@contextlib.contextmanager
def full_float32(device: torch.device) -> Iterator[None]:
    """cuDNN's convolutions and recurrent layers on a CUDA device without TF32, which they round their inputs to unless told
    otherwise. Another layout's kernels then give outputs that differ by 6e-4 in a ResNet-18 and gradients by 7 %, where in full
    precision it is 2e-6 and 0.5 % (docs/measured/gpu.md): a change of the function would be hidden. Products of matrices are
    left as they are, in full precision unless the loop asked for TF32: torch.compile looks at that switch and compiles anew."""
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    switches = [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]  # From torch 2.9 on.
    before = [switch.fp32_precision for switch in switches]
    allowed: bool | None
    try:
        allowed = cudnn.allow_tf32  # The older switch, which has to say the same: a model may read it.
    except RuntimeError:  # Convolutions and recurrent layers differ, so that nobody can read it.
        allowed = None
    try:
        if allowed is not None:
            cudnn.allow_tf32 = False
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        if allowed is not None:
            cudnn.allow_tf32 = allowed
        for switch, precision in zip(switches, before):
            switch.fp32_precision = precision


def replays_graph(module: nn.Module) -> bool:
    """Whether it is one of those that torch.cuda.make_graphed_callables returns."""
    return "make_graphed_callables" in getattr(vars(module).get("forward"), "__qualname__", "")


def _copy(copies: dict[int, torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """Cut off from its graph; one copy of a tensor that is given twice, as attention looks whether query is key."""
    if isinstance(tensor, nn.Parameter):
        return tensor
    if id(tensor) not in copies:
        copies[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return copies[id(tensor)]


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _holds_iterator(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_iterator, value.values()))
    return any(map(_holds_iterator, value)) if isinstance(value, (list, tuple)) else isinstance(value, Iterator)


def _computed_from(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those of the outputs that others of them were computed from. Walks through their graph where there are several."""
    if len(outputs) < 2:
        return []
    edges, seen = set(), set()
    waiting = [output.grad_fn for output in outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for edge in node.next_functions:
            edges.add(edge)
            waiting.append(edge[0])
    return [output for output in outputs if (output.grad_fn, output.output_nr) in edges]


def autocast_now(device: torch.device) -> Autocast:
    return torch.is_autocast_cache_enabled(), {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                                               for kind in dict.fromkeys(("cpu", device.type))}


def _autocast_as(kept: Autocast | None) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    if kept is not None:
        cache_enabled, devices = kept
        for kind, (enabled, dtype) in devices.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled))
    return stack


def _moment(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def shapes_of(tensors: list[torch.Tensor]) -> str:
    return f"{len(tensors)} tensors of shapes {', '.join(str(tuple(tensor.shape)) for tensor in tensors)}"
