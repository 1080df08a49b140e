"""What a step of a watched loop computes at least, and what its update moves at least."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ._seen_calls import is_compiled_in_place

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


class ModelFlops:
    """Of linear, convolution and recurrent layers of models, in the first training call of each, forward and backward: a multiplication
    and an addition are two. What else a model computes is not counted. A later call counts as the first one of its model."""

    def __init__(self) -> None:
        self.why_not = ""  # Why there is no count; empty: there is one.
        self._of_call: dict[int, float] = {}
        self._calls: dict[int, int] = {}
        self._hooks: list[Any] = []

    def call_begins(self, model: nn.Module) -> None:
        """A training call of the outermost module."""
        at = id(model)
        self._calls[at] = self._calls.get(at, 0) + 1
        if at in self._of_call:
            return
        self._of_call[at] = 0.0
        if _is_compiled(model):  # A hook on its parts would have it compiled again.
            self.why_not = "the model is compiled, and its layers cannot be watched"
            return

        def count(layer: nn.Module, inputs: Any, output: Any) -> None:
            self._of_call[at] += _flops(layer, inputs, output)

        self._hooks = [layer.register_forward_hook(count) for layer in model.modules() if _counts(layer)]

    def call_ends(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def per_step(self, steps: int) -> float | None:
        """None: why_not says why."""
        total = sum(flops * self._calls[at] for at, flops in self._of_call.items())
        if self.why_not or not total > 0:
            self.why_not = self.why_not or "no layer was seen whose work is counted: linear, convolution, recurrent"
            return None
        return total / max(1, steps)


def update_work(optimizers: Iterable[torch.optim.Optimizer]) -> tuple[int | None, int]:
    """Bytes that one update of each reads and writes at least, and the number of their parameters; None bytes: there is no optimizer."""
    found, tensors = 0, 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if not parameter.requires_grad or is_lazy(parameter):
                    continue
                size = parameter.numel() * parameter.element_size()
                state = sum(value.numel() * value.element_size() for value in optimizer.state.get(parameter, {}).values()
                            if isinstance(value, torch.Tensor) and value.dim() > 0)
                found, tensors = found + 3 * size + 2 * state, tensors + 1
    return (found or None), tensors


def seconds_between_operators(work: Callable[[], Any]) -> float | None:
    """CPU seconds that this thread spends in `work`, a forward and backward, outside of torch's operators: the interpreter's. None: another
    profiler of torch's is at work."""
    if torch.autograd._profiler_enabled():
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        began = time.thread_time()
        work()
        seconds = time.thread_time() - began
    spans = sorted((event.time_range.start, event.time_range.end) for event in profiled.events()
                   if event.device_type == torch.autograd.DeviceType.CPU)
    return max(0.0, seconds - 1e-6 * _covered(spans))


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of their union; they come in order of their beginnings."""
    covered, end = 0.0, float("-inf")
    for begin, until in spans:
        covered += max(0.0, until - max(begin, end))
        end = max(end, until)
    return covered


def matrix_product() -> Callable[[int], None]:
    """What a machine's peak is measured by: a product of two float32 matrices of n x n. Draws from no generator."""
    kept: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def multiply(n: int) -> None:
        if n not in kept:
            kept[n] = (torch.full((n, n), 0.5, dtype=torch.float32, device="cpu"),
                       torch.full((n, n), 2.0, dtype=torch.float32, device="cpu"), torch.empty((n, n), dtype=torch.float32, device="cpu"))
        a, b, product = kept[n]
        with torch.no_grad():
            torch.mm(a, b, out=product)

    return multiply


def _is_compiled(model: nn.Module) -> bool:
    return any(type(module).__name__ == "OptimizedModule" or is_compiled_in_place(module)
               or isinstance(module, torch.jit.ScriptModule) for module in model.modules())


def _counts(layer: nn.Module) -> bool:
    return isinstance(layer, (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED, *_RECURRENT))


def _flops(layer: nn.Module, inputs: Any, output: Any) -> float:
    """Of forward, and of the gradients that are wanted: of the weight, and of what came in."""
    given = next((value for value in inputs if isinstance(value, torch.Tensor)), None)
    if given is None:
        return 0.0
    weights = [parameter for parameter in layer.parameters() if not is_lazy(parameter) and parameter.dim() > 1]
    times = 1 + any(weight.requires_grad for weight in weights) + bool(given.requires_grad)
    if isinstance(layer, _RECURRENT):
        steps = given.numel() / max(1, given.shape[-1])  # Moments of all sequences of the batch.
        return 2.0 * times * steps * sum(weight.numel() for weight in weights)
    pixels = given if isinstance(layer, _TRANSPOSED) else output
    if not isinstance(pixels, torch.Tensor) or not weights:
        return 0.0
    return 2.0 * times * pixels.numel() * weights[0].numel() / max(1, weights[0].shape[0])
