"""Which parts of a module a training loop calls itself, where it does not call the module's own forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ._inert_hook import InertHook
from ._seen_calls import is_compiled_in_place


class OutermostCalls:
    """Finds the module and those of its parts that are called with gradients while this listens, but not within the call of
    another part. Listens from the beginning on, by hooks on all parts; end() takes them away. One thread.

    What is compiled is not seen: hooks there would be compiled, too. Nor are ScriptModules, which take no hooks."""

    def __init__(self, module: nn.Module) -> None:
        self._found: list[nn.Module] = []
        self._depth = 0
        self._hooks = []
        for part in dict.fromkeys(_plain_parts(module)):
            self._hooks.append(part.register_forward_pre_hook(InertHook(self._before)))
            self._hooks.append(part.register_forward_hook(InertHook(self._after), always_call=True))

    def end(self) -> list[nn.Module]:
        """In the order of their first calls."""
        for hook in self._hooks:
            hook.remove()
        return self._found

    def _before(self, module: nn.Module, inputs: Any) -> None:
        self._depth += 1
        if self._depth == 1 and torch.is_grad_enabled() and module not in self._found and any(
                parameter.requires_grad for parameter in module.parameters()):
            self._found.append(module)

    def _after(self, module: nn.Module, inputs: Any, result: Any) -> None:
        self._depth -= 1


def _plain_parts(module: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(module, torch.jit.ScriptModule) and not is_compiled_in_place(module):
        yield module
        if "_orig_mod" not in module._modules:  # What torch.compile returned is called from outside, and what it holds is compiled.
            for child in module.children():
                yield from _plain_parts(child)
