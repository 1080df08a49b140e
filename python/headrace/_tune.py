"""hr.tune: the loop of `headrace tune` on the user's own objects."""

from __future__ import annotations

import json
import pathlib
from contextlib import nullcontext
from typing import Any, Callable, Iterable

import torch
from torch import nn

from . import _core
from ._ledger import Ledger
from ._pickling import refused_pickling
from ._pipeline import OptimizedLoader
from ._progress import shown_progress
from ._subject import Subject
from ._trial import Trial
from .errors import InvalidArgumentError


class Tuned:
    """What hr.tune found, and the objects it was given. While it is applied, these run with what was kept."""

    def __init__(self, subject: Subject, document: dict[str, Any], report: str, report_path: pathlib.Path | None) -> None:
        self._subject = subject
        self._report = report
        self.ledger = Ledger(document)  # ledger.json; a notebook shows it as a table and a chart.
        self.report_path = report_path  # report.html; None without `out`.
        self.applied = False
        self._loader = subject.loader

    @property
    def model(self) -> nn.Module:
        return self._subject.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._subject.optimizer

    @property
    def loader(self) -> Any:
        """The loader to train with: the one that was given, with other settings, unless another kind was kept."""
        return self._loader

    @property
    def speedup(self) -> float:
        """Of the last paired comparison of all that was kept with the loop as written; 1.0 when nothing was kept. NaN:
        Not compared."""
        median = self.ledger["speedup"]["median"]
        return float("nan") if median is None else median

    @property
    def trials(self) -> list[Trial]:
        return self.ledger.trials

    @property
    def kept(self) -> list[str]:
        """Names of the changes that were kept, in the order in which they were tried."""
        return [trial.name for trial in self.trials if trial.verdict == "kept"]

    @property
    def settings(self) -> dict[str, str]:
        """What was kept, as TOML values."""
        return dict(self.ledger["best"]["settings"])

    @property
    def not_applicable(self) -> list[_core.NotApplicable]:
        """Changes that are not tried on these objects: name, key, reason."""
        return list(self._subject.not_applicable)

    def apply(self) -> Tuned:
        """Lets the objects run with what was kept. Their values stay as they are now."""
        if not self.applied:
            self._loader = self._subject.switch(self.settings)
            self.applied = True
        return self

    def undo(self) -> Tuned:
        """Lets the objects run as they did before hr.tune. Their values stay as they are now."""
        if self.applied:
            self._loader = self._subject.switch({})
            self.applied = False
        return self

    def step(self, batch: Any) -> torch.Tensor:
        """One step of the loop that was tuned: zero_grad, forward, backward, update, in the way that was kept. Returns the
        loss, detached."""
        return self._subject.step(batch)

    def summary(self) -> str:
        """The report as text."""
        return self._report

    def __repr__(self) -> str:
        kept = ", ".join(self.kept) or "nothing"
        return f"<headrace.Tuned {self.speedup:.2f} times as fast; kept: {kept}; {len(self.trials)} tried>"

    def _repr_html_(self) -> str:
        return self.ledger._repr_html_()

    __reduce__ = refused_pickling("a headrace.Tuned cannot be pickled or copied: it holds the objects of your loop. Keep its ledger and "
                                  "settings, and the model by its state_dict()")


def tune(model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer, forward: Callable[[nn.Module, Any], Any], *,
         budget_s: float = 60.0, epochs: int | None = None, steps: int | None = None, only: Iterable[str] = (),
         fixed: Iterable[str] = (), gain_min: float = 0.02, allow: str = "reduced_precision",
         out: str | pathlib.Path | None = None, apply: bool = True, whole_step: bool = False, seed: int = 0,
         title: str = "training loop", on_progress: Callable[[str, str], None] | None = None) -> Tuned:
    """Makes a training loop faster and proves it: measures the loop as it is, tries one change at a time in interleaved
    pairs from one state, checks that each computes the same, keeps what pays.

    model, optimizer: as you train them. loader: a DataLoader, a headrace.Loader, a list of batches, or a function that
    returns an iterable; of what a DataPipelineOptimizer made, the one it goes over is tuned, and is Tuned.loader.
    forward(model, batch) returns the loss, a tensor of one number, or a tuple or dict with the loss in it.

    budget_s: seconds for everything. epochs or steps: how long you will train; a change that costs time once
    (compiling) is tried only when the run is known to be long enough. only: candidates by name. fixed:
    settings that must stay, as "data.num_workers": a headrace.Loader that is tried in a DataLoader's place then has as many
    threads as that has processes. gain_min: the smallest gain worth keeping. allow: what a kept change may do to the numbers,
    "bit_equal" nothing, "rounding" what another order of the same sums or other random draws do, or "reduced_precision"
    gradients that differ by at most half as much as those of two batches; what needs more is not tried ("not_allowed").
    Where a change brings other batches (other draws, a headrace.Loader in the DataLoader's place), the mean gradient of 4 of
    them may be at most 1.5 times as far from that of 4 of your loader's as two such sets of your loader's are apart. out: a
    folder for report.html, ledger.json and the traces. apply: False leaves the objects as they were; Tuned.apply() does it
    later. whole_step: True says that your loop will call Tuned.step(batch) in place of its own zero_grad, forward, backward and
    optimizer.step; then what only such a step can do is tried, too: headrace's native engine (as in headrace.Trainer), and
    micro-batches, which cut each batch into parts and keep the update. Strategies of your own (headrace.register_strategy) are
    tried behind headrace's changes. on_progress(kind, text) is told what happens: "step", "diagnosis", "machine" (it is not
    quiet: fewer changes are tried, the first ones), "decided"; without it each is a line on stderr, and where that is a terminal or a
    notebook and tqdm is installed, a bar shows how much of the budget is spent. `on_progress=lambda kind, text: None` is silent.

    Afterwards parameters, buffers, gradients, optimizer state, modes and the generators of torch, Python, NumPy and the
    loader are bit for bit what they were, also when this raises; with what was kept, the layout of parameters, the forward
    of the instance, the optimizer's fused and foreach, thread counts and the loader's workers differ; Tuned.loader is the
    loader to train with, which may be a headrace.Loader then. What the data set itself counts or caches is its own.

    Model and optimizer are on the CPU or on one CUDA device, batches on either of the two: UnsupportedError names what is
    elsewhere. On a CUDA device steps are timed by events, as by hr.autotune, and waited for at the end of each block of steps.
    Settings of the CPU and headrace's own step are not tried there, and of a step's parts the report has the host's time, which is
    what launching takes: what the device works beyond it is `other`. report.html and ledger.json tell what memory was for:
    parameters with buffers, gradients, optimizer state, the batch at hand; activations are unavailable, because nobody counts
    them.

    Raises headrace.Error for objects that do not fit together, and whatever your own code raises, KeyboardInterrupt
    included.
    """
    if isinstance(loader, OptimizedLoader):
        loader = loader.loader
    if epochs is not None and steps is None:
        try:
            steps = epochs * len(loader)
        except TypeError:
            raise InvalidArgumentError("tune: epochs: the loader has no length; give steps instead") from None
    if out is not None:
        out = pathlib.Path(out)
        out.mkdir(parents=True, exist_ok=True)
    only, fixed = list(only), list(fixed)
    subject = Subject(model, loader, optimizer, forward, run_steps=steps, budget_s=budget_s, whole_step=whole_step, only=only,
                      fixed=fixed, on_cuda=True)
    request = {
        "budget_s": float(budget_s), "gain_min": float(gain_min), "allow": allow, "only": only, "fixed": fixed,
        "seed": seed, "title": title, "out": "" if out is None else str(out),
        "command": f"headrace.tune({type(model).__name__}, {type(loader).__name__}, {type(optimizer).__name__}, "
                   f"budget_s={budget_s:g})",
    }
    try:
        with shown_progress("headrace.tune", budget_s) if on_progress is None else nullcontext(on_progress) as tell:
            document, report = _core.tune_objects(subject, request, tell)
    except BaseException:
        subject.give_back()
        raise
    tuned = Tuned(subject, json.loads(document), report, None if out is None else out / "report.html")
    subject.give_back()
    return tuned.apply() if apply else tuned
