"""Random numbers of one run in another that has its tensors in other memory layouts.

Torch draws along memory: dropout of a channels-last tensor drops other elements than dropout of the same tensor in C order. Both
are as good, but not to be compared with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_IN_PLACE = {_ATEN.bernoulli_, _ATEN.uniform_, _ATEN.normal_, _ATEN.exponential_, _ATEN.random_, _ATEN.geometric_,
             _ATEN.log_normal_, _ATEN.cauchy_}
_LIKE = {_ATEN.rand_like, _ATEN.randn_like, _ATEN.randint_like, _ATEN.native_dropout}  # Others draw in the order of indices.

Draw = tuple[Any, torch.Size, tuple[int, ...]]  # Operation; shape; dimensions of more than one element, the outermost in memory first.


class _Mode(TorchDispatchMode):
    """Of one thread. What torch.compile has made or makes stays compiled, and its draws are not seen. An operation costs some
    microseconds."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        del types
        packet, named = getattr(function, "overloadpacket", None), dict(kwargs or {})
        is_draw = packet in _IN_PLACE or (packet in _LIKE and named.get("memory_format") in (None, torch.preserve_format))
        return self._draw(function, args, named) if is_draw else function(*args, **named)

    def _draw(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        raise NotImplementedError


class NotedDraws(_Mode):
    """Within its block: notes in which order of memory random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def _draw(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        result = function(*args, **named)
        target = result[0] if isinstance(result, tuple) else result
        self.draws.append((function.overloadpacket, target.shape, _order(target)))
        return result


class RepeatedDraws(_Mode):
    """Within its block: the n-th draw is made in the order of memory of the n-th that was noted. From the first one on that is of
    another operation or shape, draws are left alone."""

    def __init__(self, noted: Sequence[Draw]) -> None:
        super().__init__()
        self.found = False  # Whether one would have had another order.
        self._left = list(reversed(noted))

    def _draw(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        target = args[0]
        own = target if function.overloadpacket in _IN_PLACE else torch.empty_like(target)
        operation, shape, order = self._left.pop() if self._left else (None, None, ())
        if (operation, shape) != (function.overloadpacket, own.shape):
            self._left = []
            return function(*args, **named)
        if order == _order(own):
            return function(*args, **named)
        self.found = True
        alike = torch.empty_permuted(own.shape, [d for d in range(own.dim()) if d not in order] + list(order), dtype=own.dtype,
                                     device=own.device)
        if own is target:
            return target.copy_(function(alike, *args[1:], **named))
        result = function(alike.copy_(target), *args[1:], **named)
        if not isinstance(result, tuple):
            return torch.empty_like(own, dtype=result.dtype).copy_(result)
        return tuple(torch.empty_like(own, dtype=tensor.dtype).copy_(tensor) for tensor in result)


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    large = [dimension for dimension in range(tensor.dim()) if tensor.shape[dimension] > 1]
    return tuple(sorted(large, key=lambda dimension: -tensor.stride(dimension)))
