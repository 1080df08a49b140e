"""headrace.autotune as a callback of Hugging Face's Trainer. Importing it imports transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import transformers
from torch import nn

from ._autotune import AutoTune as Handle
from ._autotune_request import requested
from ._loop_objects import raw_objects
from ._settings import PRECISION

# Of TrainingArguments: what is in the way where one is set.
_REFUSED = {
    "deepspeed": "DeepSpeed updates the weights, not the optimizer that is hooked",
    "fsdp": "the weights are shared out among processes, which would have to switch at the same update",
    "torch_compile": "nothing is seen in a model that is compiled",
    "fp16": "a scaler leaves updates out and keeps the optimizer's implementation",
}


class AutoTune(transformers.TrainerCallback):
    """Tunes a run of Hugging Face's Trainer while it is under way, as headrace.autotune does a loop:

        trainer = transformers.Trainer(..., callbacks=[headrace.transformers.AutoTune()])

    Takes headrace.autotune's keyword arguments. The run's length is what the Trainer says, unless `steps` or `epochs` does.
    `handle` is what headrace.autotune returns, from the start of train() on.

    At the end of train() kept changes stay in force; handle.undo() gives model and process back. Where train() raises, call
    handle.stop() or handle.undo(). Another train() with the same callback undoes them and begins anew. Checkpoints hold nothing
    of headrace's.

    With bf16 precision stays as it is. With deepspeed, fsdp, torch_compile or fp16 one line says why nothing is tuned,
    handle.problem holds it, and the run goes on as it was. The Trainer's own default optimizer is fused already in recent
    versions (optim="adamw_torch_fused").
    """

    def __init__(self, *, on_progress: Callable[[str, str], Any] | None = None, **options: Any) -> None:
        """InvalidArgumentError for what makes no sense; `allow`, `gain_min`, the names in `only` and the ledger of `replay` are
        looked at in train()."""
        self._request, self._on_progress = requested(**options), on_progress
        self.handle: Handle | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Any,
                       train_dataloader: Any = None, **others: Any) -> None:
        del control, others
        if self.handle is not None:
            self.handle.undo()
            self.handle = None
        request, refusal = self._request, _refusal(args)
        left = state.max_steps - state.global_step
        request = request.with_rest(left if left > 0 else None)
        if args.bf16:
            request = dataclasses.replace(request, fixed=[*request.fixed, PRECISION])
        objects = ([model], [], None) if refusal else raw_objects(model, optimizer, train_dataloader)
        self.handle = Handle(*objects, request, self._on_progress, refusal=refusal)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        del args, state, control, others
        if self.handle is not None:
            self.handle.stop()


def _refusal(args: Any) -> str | None:
    """Why such a run is not tuned; None: it may be."""
    for name, reason in _REFUSED.items():
        if getattr(args, name, None):
            return f"TrainingArguments sets {name}: {reason}"
    return None
