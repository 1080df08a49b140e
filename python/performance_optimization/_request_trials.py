"""What the requests of a configuration gain on this machine, measured by headrace.tune() before they are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._engine_trainer import forward_by
from ._performance_config import DEFAULT, MemoryFormat

if TYPE_CHECKING:
    import torch
    from headrace import Trial

    from ._performance_config import PerformanceConfig

# By setting, the key of the tuner's change that does the same.
TUNED_KEYS = {
    "enable_amp": "train.precision",
    "enable_compile": "model.compile",
    "enable_memory_format_optimization": "model.memory_format",
    "num_workers": "data.num_workers",
    "prefetch_factor": "data.prefetch_batches",
}
# Requests whose gain is a matter of seconds, and why one is not told.
_UNTRIED = {
    "enable_amp": "headrace.tune() has no float16 with a loss scale among its changes",
    "enable_gradient_checkpointing": "it gives time for memory, and pairs of steps tell of time alone",
    "enable_flash_attention": "which kernel runs is told by the modules that run it, and headrace.tune() has no such change",
    "num_workers": "headrace.tune() tries no such number here",
    "enable_compile": "headrace.tune() does not try it here",
    "enable_memory_format_optimization": "headrace.tune() tries channels_last alone",
}

Verdict = dict[str, Any]


def fixed_keys(config: PerformanceConfig) -> list[str]:
    """Keys that a tuner leaves alone: whoever set these settings, the user, a preset, the level or a table of hardware, goes before it."""
    return [key for name, key in TUNED_KEYS.items() if config.set_by(name) != DEFAULT]


def verdicts(config: PerformanceConfig, model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
             criterion: Callable[..., torch.Tensor], *, budget_s: float, steps: int | None, refusal: str = "") -> dict[str, Verdict]:
    """For JSON, by setting that was asked for {"verdict", "gain", "pairs", "reason"}: kept, refused, inconclusive or failed as
    headrace.tune() has them, or "not measured"; the gain's median and 95 % interval, 0.21 is 21 % faster, None: not measured; and a
    sentence. Changes are tried one at a time, each beside what was kept of those before it.

    The objects are as before afterwards, bit for bit. Takes at most about budget_s seconds, and none where nothing that was asked for can
    be tried. steps: how many the run has; None: unknown. refusal: why nothing is measured. What criterion and model raise passes as it is.
    """
    asked = [name for name in _UNTRIED if getattr(config, name) and config.set_by(name) != DEFAULT]
    if not asked:
        return {}
    reason = refusal or ("enable_profiling is False" if not config.enable_profiling else "trial_s is 0" if budget_s <= 0 else "")
    changes = {} if reason else _changes(config, asked)
    found: dict[str, Verdict] = {}
    if changes:
        found, reason = _tried(changes, model, dataloader, optimizer, criterion, budget_s, steps)
    return {name: found.get(name) or _not_measured(reason or _UNTRIED[name]) for name in asked}


def _changes(config: PerformanceConfig, asked: list[str]) -> dict[str, str]:
    """By the tuner's name of a change, the setting that does the same."""
    from headrace import _core

    changes = {"torch.compile": "enable_compile"}
    if config.num_workers <= _core.usable_cores():  # No more are tried.
        changes[f"num_workers {config.num_workers}"] = "num_workers"
    if config.memory_format is MemoryFormat.CHANNELS_LAST:
        changes["channels-last"] = "enable_memory_format_optimization"
    return {change: name for change, name in changes.items() if name in asked}


def _tried(changes: dict[str, str], model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
           criterion: Callable[..., torch.Tensor], budget_s: float, steps: int | None) -> tuple[dict[str, Verdict], str]:
    """The verdicts, and why there is none at all; else empty."""
    import headrace

    forward = forward_by(criterion)
    found: dict[str, Verdict] = {}
    try:
        offered, found = _offered(changes, model, dataloader, optimizer, forward, budget_s, steps)
        if not offered:
            return found, ""
        tuned = headrace.tune(model, dataloader, optimizer, forward, budget_s=budget_s, steps=steps, only=offered, apply=False,
                              title="requests of a configuration", on_progress=lambda kind, text: None)
    except headrace.Error as error:
        return found, str(error)
    found.update((changes[trial.name], verdict_of(trial)) for trial in tuned.trials)
    return found, ""


def _offered(changes: dict[str, str], model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
             forward: Callable[..., torch.Tensor], budget_s: float, steps: int | None) -> tuple[list[str], dict[str, Verdict]]:
    """Those of the changes that headrace.tune() would try, and of the others, as far as it says so, why not. Times nothing."""
    import headrace
    from headrace._subject import Subject

    loader = dataloader.loader if isinstance(dataloader, headrace.OptimizedLoader) else dataloader
    subject = Subject(model, loader, optimizer, forward, run_steps=steps, budget_s=budget_s, only=list(changes))
    try:
        offer = subject.offer("")
    finally:
        subject.give_back()
    refused = {changes[one.name]: _not_measured(one.reason) for one in offer.not_tried if one.name in changes}
    return [one.name for one in offer.candidates if one.name in changes], refused


def verdict_of(trial: Trial) -> Verdict:
    gain = None if trial.gain is None else list(trial.gain)
    return {"verdict": trial.verdict, "gain": gain, "pairs": trial.pairs, "reason": trial.sentence}


def _not_measured(reason: str) -> Verdict:
    return {"verdict": "not measured", "gain": None, "pairs": 0, "reason": reason}
