"""Random numbers in the order of a tensor's indices, whatever its layout in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ._forward import CHANNELS_LAST

_ATEN = torch.ops.aten
_IN_PLACE = {_ATEN.bernoulli_, _ATEN.uniform_, _ATEN.normal_, _ATEN.exponential_, _ATEN.random_, _ATEN.geometric_,
             _ATEN.log_normal_, _ATEN.cauchy_}
_OF_ITS_SHAPE = {_ATEN.rand_like, _ATEN.randn_like, _ATEN.randint_like, _ATEN.native_dropout}


class WrittenDraws(TorchDispatchMode):
    """Within its block, of one thread: what is drawn for a tensor in channels-last memory, as dropout's masks are, is drawn as for
    the same tensor in C order. Torch itself draws along memory, so that another layout drops other elements: as good as those of
    the loop as written, but not to be compared with them.

    Tensors in other orders are left alone: a model that has permuted an axis itself draws in that order under each layout. What
    torch.compile has made does not come by here. Costs some microseconds an operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = False  # Whether something was drawn so.

    def __torch_dispatch__(self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        del types
        packet, named = function.overloadpacket, dict(kwargs or {})
        if not args or not (packet in _IN_PLACE or packet in _OF_ITS_SHAPE) or not _is_channels_last(args[0]):
            return function(*args, **named)
        self.found = True
        if packet in _OF_ITS_SHAPE:
            return _each(_laid_out, function(args[0].contiguous(), *args[1:], **named))
        drawn = torch.empty(args[0].shape, dtype=args[0].dtype, device=args[0].device)
        return args[0].copy_(function(drawn, *args[1:], **named))


def _each(change: Callable[[torch.Tensor], torch.Tensor], result: Any) -> Any:
    return tuple(map(change, result)) if isinstance(result, tuple) else change(result)


def _laid_out(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim()])


def _is_channels_last(tensor: torch.Tensor) -> bool:
    wanted = CHANNELS_LAST.get(tensor.dim())
    return wanted is not None and tensor.is_contiguous(memory_format=wanted) and not tensor.is_contiguous()
