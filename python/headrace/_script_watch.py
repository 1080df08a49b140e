"""hr.watch of a whole script: what lies beside the parts of its steps is told apart, too."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import torch

from ._watch import watch


class ScriptWatch(watch):
    """A watch that also knows transfers (Tensor.to and Tensor.cuda outside of calls), checkpoints (torch.save, safetensors' save_file)
    and what is done to gradients without an update (zero_grad, clip_grad_norm_, clip_grad_value_: optimizer). A call of one of these
    costs two calls of the native half more. It keeps a million events of each thread, of all together 64 MiB."""

    _EVENTS = 1 << 20

    def __enter__(self) -> ScriptWatch:
        super().__enter__()
        try:
            for owner, name, what in _told_apart():
                self._tell_apart(owner, name, what)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _tell_apart(self, owner: Any, name: str, what: str) -> None:
        seen, plain, own = self._watch, getattr(owner, name), vars(owner).get(name)

        @functools.wraps(plain)
        def told(*args: Any, **kwargs: Any) -> Any:
            seen.beside_begins(what)
            try:
                return plain(*args, **kwargs)
            finally:
                seen.beside_ends()

        setattr(owner, name, told)

        def undo() -> None:
            if vars(owner).get(name) is not told:  # The script's own stands above it, and may call it.
                return
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        self._undo.append(undo)


def _told_apart() -> Iterator[tuple[Any, str, str]]:
    """Each function by its owner and name, and what it is."""
    for name in ("to", "cuda"):
        yield torch.Tensor, name, "transfer"
    yield torch.optim.Optimizer, "zero_grad", "optimizer"
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        yield torch.nn.utils, name, "optimizer"
    yield torch, "save", "checkpoint"
    if importlib.util.find_spec("safetensors") is not None:
        import safetensors.torch

        yield safetensors.torch, "save_file", "checkpoint"
