"""What a training call of a part saves for the backward, with and without recomputed blocks."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from ._recompute_choice import BlockCall
from ._saved_storages import SavedStorages
from ._state import tensors_in


class MeasuredCall:
    """One call of the part, with what each block in it saves and takes."""

    def __init__(self, part: nn.Module) -> None:
        self._part = part
        self._is_cuda = any(tensor.is_cuda for tensor in part.parameters())
        self._constant = SavedStorages([*part.parameters(), *part.buffers()])
        self._outside, self._arguments = SavedStorages(), SavedStorages()  # Of recomputed blocks. Both are kept by autograd itself.
        self._blocks = 0  # That are being called.
        self.calls: list[BlockCall] = []

    def counting(self) -> torch.autograd.graph.saved_tensors_hooks:
        """What is packed within it counts as kept. It stays where it is."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            # Of a recomputed block these hooks see its arguments alone.
            (self._arguments if self._blocks else self._outside).add(tensor)
            return tensor.detach()

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def block(self, name: str, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """call(saved=), of a recomputed block, with its seconds."""
        inputs, saved = SavedStorages(tensors_in((args, kwargs))), SavedStorages()
        begin = self.now()
        self._blocks += 1
        result = call(saved=saved.add)
        self._blocks -= 1
        self.calls.append(BlockCall(name, self.now() - begin, saved.without(self._constant), inputs.without(self._constant)))
        return result

    def bytes_after(self) -> int:
        return sum({**self.outside(), **self._arguments.without(self._constant)}.values())

    def outside(self) -> dict[Any, int]:
        """What is kept beside what recomputed blocks save or take."""
        return self._outside.without(self._constant)

    def now(self) -> float:
        if self._is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()
