#!/usr/bin/env python3
"""Runs one of scripts/ as its user would, does before its loop what an arm of a bench is, and prints what came of it as JSON.

usage: play.py REQUEST

REQUEST is JSON: {"script": "cnn", "steps": 300, "seed": 1, "arm": "untouched"}; beside these "options" (further words for the
script), "limit_s" (ends the run then), "least_steps" (but not before them), "step_s": true (tell each step's seconds),
"begin_at" (steps that are no figures, as the arm is not yet whole in them), "digest": true (tell the bits that the training has
made) and what the arm asks for, which its class says. A step is from one update of the script's last optimizer to the next.
"""

import hashlib
import importlib.util
import json
import statistics
import sys
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
from live_tuning.turns import Settings, Turns, shape_of  # noqa: E402

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LOADING = "data."  # What keys of loading begin with.


class Enough(Exception):
    """Ends a script whose arm has all that it wants."""


@dataclass(frozen=True)
class Loop:
    """What the script handed over, as it did and as lists of bare objects."""

    model: Any
    optimizer: Any
    loader: Any
    steps: int
    script: ModuleType

    @property
    def models(self) -> list:
        return list(self.model) if isinstance(self.model, (list, tuple)) else [self.model]

    @property
    def optimizers(self) -> list:
        """Accelerate, of which Hugging Face's Trainer is made, wraps the optimizer."""
        given = self.optimizer if isinstance(self.optimizer, (list, tuple)) else [self.optimizer]
        return [getattr(optimizer, "optimizer", optimizer) for optimizer in given]

    def knobs(self) -> Any:
        """hr.autotune's."""
        from headrace._live_knobs import LiveKnobs

        return LiveKnobs(self.models, self.optimizers, self.loader)

    def batches_ahead(self, settings: Settings) -> int:
        """That a DataLoader prepares at most under these settings."""
        if not hasattr(self.loader, "num_workers"):
            return 0
        workers = int(settings.get("data.num_workers", self.loader.num_workers))
        return workers * int(settings.get("data.prefetch_batches", self.loader.prefetch_factor or 2))

    def digest(self) -> str:
        """Of every bit that the training has made: parameters, buffers and the optimizers' state."""
        import torch

        found = hashlib.sha256()

        def add(name: str, value: Any) -> None:
            found.update(name.encode())
            if isinstance(value, torch.Tensor):
                found.update(value.detach().cpu().contiguous().numpy().tobytes())
            else:
                found.update(repr(value).encode())

        for place, model in enumerate(self.models):
            for name, value in sorted(model.state_dict().items()):
                add(f"model {place} {name}", value)
        for place, optimizer in enumerate(self.optimizers):
            for number, parameter in enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]):
                for name, value in sorted(optimizer.state.get(parameter, {}).items()):
                    add(f"optimizer {place} {number} {name}", value)
        return found.hexdigest()


def why_not_applied(knobs: Any, settings: Settings) -> str | None:
    """Makes settings hold; else why they cannot."""
    from headrace.errors import Error

    try:
        knobs.apply(settings)
    except Error as error:
        return str(error)
    return None


class Untouched:
    """The script alone."""

    def __init__(self, loop: Loop, request: dict[str, Any]) -> None:
        self.loop, self.request = loop, request

    def ready(self) -> None:
        """Just before the loop."""

    def stepped(self, step: int) -> None:
        """Behind each update."""

    def figures(self) -> dict[str, Any]:
        return {}


class Autotuned(Untouched):
    """hr.autotune; "allow", "only" where not all changes are wanted, and "out" where the ledger is to be written."""

    def ready(self) -> None:
        import headrace as hr

        loop, request = self.loop, self.request
        self.handle = hr.autotune(loop.model, loop.optimizer, loop.loader, allow=request["allow"], steps=loop.steps,
                                  only=request.get("only", ()), out=request.get("out"), seed=request["seed"],
                                  title=request["script"])

    def figures(self) -> dict[str, Any]:
        self.handle.stop()
        return {"kept": list(self.handle.kept), "settings": dict(self.handle.settings), "problem": self.handle.problem,
                "told_steps": self.loop.steps, "trials": [asdict(trial) for trial in self.handle.trials], "ledger": self.handle.ledger,
                "report": self.handle.report()}


class Replayed(Untouched):
    """hr.autotune repeats the run whose ledger is the file "ledger"."""

    def ready(self) -> None:
        import headrace as hr

        loop = self.loop
        self.handle = hr.autotune(loop.model, loop.optimizer, loop.loader, replay=self.request["ledger"])

    def figures(self) -> dict[str, Any]:
        self.handle.stop()
        return {"kept": list(self.handle.kept), "problem": self.handle.problem}


class Tuned(Untouched):
    """hr.tune, with trials on a snapshot before the loop, then the loop with what it kept. The script must have loss_of(model,
    batch). What is the loader's stays, as the script goes on with the loader that it has."""

    def ready(self) -> None:
        import headrace as hr

        loop, request = self.loop, self.request
        self.tuned = hr.tune(loop.model, loop.loader, loop.optimizer, loop.script.loss_of, budget_s=request["budget_s"],
                             steps=loop.steps, fixed=["data"], seed=request["seed"])

    def figures(self) -> dict[str, Any]:
        return {"kept": self.tuned.kept, "settings": self.tuned.settings}


class WithSettings(Untouched):
    """With "settings" from the first step on."""

    def ready(self) -> None:
        self.knobs = self.loop.knobs()
        self.knobs.follow()
        self.knobs.apply(self.request["settings"])


class PytorchAutotune(Untouched):
    """What pytorch-autotune's one call switches on, carried over to the script's own objects, as its loop goes on with these."""

    def ready(self) -> None:
        import torch
        from pytorch_autotune import quick_optimize

        def is_channels_last(model: Any) -> bool:
            return any(parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
                       and not parameter.is_contiguous() for parameter in model.parameters())

        self.applied: list[str] = []
        for model, optimizer in zip(self.loop.models, self.loop.optimizers):
            returned, own, scaler = quick_optimize(model, device="cpu", verbose=False)
            if is_channels_last(model):
                self.applied.append("channels-last")
            if returned is not model:
                model.compile()
                self.applied.append("compile")
            if own.defaults.get("fused"):
                for group in optimizer.param_groups:
                    group.update(fused=True, foreach=False)
                self.applied.append("fused")
            if scaler is not None:
                self.applied.append("a gradient scaler, which the loop does not use")

    def figures(self) -> dict[str, Any]:
        return {"applied": sorted(set(self.applied)), "version": harness.version_of("pytorch-autotune")}


class Offered(Untouched):
    """What there is to try in a run of "run_steps" (null: of unknown length), of every class of numbers, and why not the rest. No
    step is made."""

    def ready(self) -> None:
        self.offer = self.loop.knobs().offer("reduced_precision", (), (), self.request["run_steps"])
        raise Enough

    def figures(self) -> dict[str, Any]:
        return {"candidates": [{"name": one.name, "key": one.key, "changes": one.changes, "numerics": one.numerics}
                               for one in self.offer.candidates],
                "not_tried": [{"name": one.name, "key": one.key, "reason": one.reason} for one in self.offer.not_tried]}


class Measured(Untouched):
    """What has to know a step's time before it begins: the median of the later half of a second and at least ten steps, and of
    "begin_at" steps where that is given."""

    step_s: float | None = None

    def ready(self) -> None:
        self.knobs = self.loop.knobs()
        self.knobs.follow()
        self.work = 0.0  # Numbers in the inputs of the models' calls with gradients, in the step at hand.
        for model in self.loop.models:
            model.register_forward_pre_hook(self._called, with_kwargs=True)
        self._warm_up = [time.perf_counter()]

    def _called(self, model: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        import torch

        if torch.is_grad_enabled():
            self.work += sum(value.numel() for value in (*given, *named.values()) if isinstance(value, torch.Tensor))

    def stepped(self, step: int) -> None:
        work, self.work = self.work or 1.0, 0.0
        if self.step_s is not None:
            self.measure(step, work)
            return
        self._warm_up.append(time.perf_counter())
        is_warm = len(self._warm_up) > 10 and self._warm_up[-1] - self._warm_up[0] >= 1
        if is_warm and step >= self.request.get("begin_at", 0):
            ends = self._warm_up[len(self._warm_up) // 2:]
            self.step_s = statistics.median(after - before for before, after in zip(ends, ends[1:]))
            self.begin(step)

    def begin(self, step: int) -> None:
        """Once, between two updates, when step_s is known."""

    def measure(self, step: int, work: float) -> None:
        """Behind each update from then on."""

    def queue(self, *settings: Settings) -> int:
        """Batches to wash out behind a switch between these: "queue", which the loop waits for, and all that is loaded ahead
        where they load differently."""
        loads = any(key.startswith(LOADING) for each in settings for key in each)
        ahead = [self.loop.batches_ahead(each) for each in ({}, *settings)] if loads else []
        return max([self.request.get("queue", 0), *ahead])


class Pairs(Measured):
    """Blocks with and without "changes" take turns, "pairs" times; "queue": batches that the loader holds, where the loop waits
    for it."""

    def begin(self, step: int) -> None:
        changes = self.request["changes"]
        self.turns = Turns(lambda settings: why_not_applied(self.knobs, settings), [{}, changes], self.request["pairs"],
                           shape_of(self.step_s, queue=self.queue(changes)), self.request["seed"])

    def measure(self, step: int, work: float) -> None:
        self.turns.stepped(work)
        if self.turns.done:
            raise Enough

    def figures(self) -> dict[str, Any]:
        if self.step_s is None:
            return {"plain_step_s": None, "without_s": [], "with_s": [], "without_work": [], "with_work": [], "refused": None,
                    "prepare_s": None}
        turns = self.turns
        (without_s, with_s), (without_work, with_work) = turns.found, turns.work
        first_s = turns.first_s.get(1)
        return {"plain_step_s": self.step_s, "without_s": without_s, "with_s": with_s, "without_work": without_work,
                "with_work": with_work, "refused": turns.refused.get(1),
                "prepare_s": None if first_s is None else max(0.0, first_s - turns.uncounted_at_first * self.step_s)}


class Cells(Measured):
    """All of "cells", which are settings, take turns in "rounds" rounds, "cell_s" seconds each in all. One that cannot be applied
    is left out, with the reason."""

    def begin(self, step: int) -> None:
        self.cells, rounds = self.request["cells"], self.request["rounds"]
        shape = shape_of(self.step_s, self.request["cell_s"] / rounds, self.queue(*self.cells))
        self.turns = Turns(lambda settings: why_not_applied(self.knobs, settings), self.cells, rounds, shape,
                           self.request["seed"])

    def measure(self, step: int, work: float) -> None:
        self.turns.stepped(work)
        if self.turns.done:
            raise Enough

    def figures(self) -> dict[str, Any]:
        if self.step_s is None:
            return {"plain_step_s": None, "cells": [], "refused": []}
        turns = self.turns
        return {"plain_step_s": self.step_s,
                "refused": [{"settings": self.cells[place], "reason": reason} for place, reason in turns.refused.items()],
                "cells": [{"settings": cell, "step_s": turns.found[place], "work": turns.work[place]}
                          for place, cell in enumerate(self.cells) if place not in turns.refused]}


class Optuna(Measured):
    """Optuna's TPE asks for the value of each of "choices" (by key, a list of settings) block by block, for "search_steps"
    steps."""

    searched = 0  # Steps of the search.

    def begin(self, step: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna = optuna
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=self.request["seed"]))
        choices = [settings for values in self.request["choices"].values() for settings in values]
        self.shape = shape_of(self.step_s, 0.25, self.queue(*choices))
        self.ask()

    def ask(self) -> None:
        while True:
            self.trial = self.study.ask()
            self.settings: dict[str, str] = {}
            for key, values in self.request["choices"].items():
                self.settings |= values[self.trial.suggest_categorical(key, list(range(len(values))))]
            if why_not_applied(self.knobs, self.settings) is None:
                break
            self.study.tell(self.trial, state=self.optuna.trial.TrialState.FAIL)
        self.trial.set_user_attr("settings", self.settings)
        self.steps = 0

    def measure(self, step: int, work: float) -> None:
        self.searched += 1
        self.steps += 1
        if self.steps == self.shape.wash_out:
            self.began = time.perf_counter()
        elif self.steps == self.shape.wash_out + self.shape.counted:
            self.study.tell(self.trial, (time.perf_counter() - self.began) / self.shape.counted)
            if self.searched >= self.request["search_steps"]:
                raise Enough
            self.ask()

    def figures(self) -> dict[str, Any]:
        told = [trial for trial in self.study.trials if trial.value is not None] if self.step_s is not None else []
        best = min(told, key=lambda trial: trial.value, default=None)
        return {"trials": len(told), "settings": best and best.user_attrs["settings"], "version": harness.version_of("optuna"),
                "searched": self.searched, "allowed": self.request["search_steps"]}


class Numerics(Untouched):
    """Every one of "candidates" (as the arm "offered" tells them) on "calls" kept calls of the loop, by the replay of
    hr.autotune; the step is made as it was written. A change of loading alone has nothing to show on a kept call, which has its
    batch."""

    def ready(self) -> None:
        from headrace._kept_call import KeptCalls

        self.knobs = self.loop.knobs()
        self.kept = KeptCalls(self.loop.models, self.loop.optimizers)
        self.tried = [one for one in self.request["candidates"] if not all(key.startswith(LOADING) for key in one["changes"])]
        self.found: dict[str, list[dict[str, Any]]] = {one["name"]: [] for one in self.request["candidates"]}
        self.calls = 0
        self.loop.optimizers[-1].register_step_pre_hook(self._before)

    def stepped(self, step: int) -> None:
        if self.calls == self.request["calls"]:
            raise Enough
        if step >= 5 and step % 3 == 0:
            self.kept.arm()

    def _before(self, *_: Any) -> None:
        if self.calls == self.request["calls"] or not self.kept.ready():
            return
        for one in self.tried:
            distance = self.kept.replay(self.knobs.apply, {}, one["changes"], {})
            self.found[one["name"]].append({**distance, "between_calls": self.kept.distance_between_calls()})
        self.calls += 1
        self.kept.disarm()

    def figures(self) -> dict[str, Any]:
        why_not = self.kept.why_not
        self.kept.end()
        return {"calls": self.calls, "distances": self.found, "why_not": why_not}


ARMS: dict[str, type[Untouched]] = {
    "untouched": Untouched, "autotuned": Autotuned, "replayed": Replayed, "tuned": Tuned, "settings": WithSettings,
    "pytorch_autotune": PytorchAutotune, "offered": Offered, "pairs": Pairs, "cells": Cells, "optuna": Optuna,
    "numerics": Numerics}


class Run:
    """A script from the moment before its loop."""

    def __init__(self, request: dict[str, Any], script: ModuleType) -> None:
        self.request, self.script = request, script
        self.loop: Loop | None = None
        self.arm: Untouched | None = None
        self.ends = array("d")  # Of each step, in seconds since the moment before the loop.

    def begin(self, model: Any, optimizer: Any, loader: Any) -> None:
        """The script's on_ready. What the arm does in it counts."""
        self._begin = time.perf_counter()
        self.loop = Loop(model, optimizer, loader, self.request["steps"], self.script)
        self.arm = ARMS[self.request["arm"]](self.loop, self.request)
        self.arm.ready()
        self.loop.optimizers[-1].register_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.ends.append(time.perf_counter() - self._begin)
        self.arm.stepped(len(self.ends))
        has_steps = len(self.ends) >= self.request.get("least_steps", 0)
        if has_steps and self.ends[-1] > self.request.get("limit_s", float("inf")):
            raise Enough

    def figures(self) -> dict[str, Any]:
        if self.arm is None or self.loop is None:
            raise SystemExit(f"play: {self.request['script']} ended before its loop")
        found: dict[str, Any] = {"steps": len(self.ends)}
        if self.ends:
            warm = max(min(20, len(self.ends) // 4), self.request.get("begin_at", 0))
            rest = [after - before for before, after in zip(self.ends[warm:], self.ends[warm + 1:])]
            found |= {"seconds": self.ends[-1],
                      "tenths_s": [self.ends[-(-len(self.ends) * tenth // 10) - 1] for tenth in range(1, 11)],
                      "median_step_s": statistics.median(rest) if rest else self.ends[-1]}
            if self.request.get("step_s"):
                found["step_s"] = rest
        found |= self.arm.figures()
        return {**found, "digest": self.loop.digest()} if self.request.get("digest") else found


def load(name: str) -> ModuleType:
    path = SCRIPTS / f"{name}.py"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # Worker processes may have to find its classes.
    specification.loader.exec_module(module)
    return module


def main() -> int:
    request = json.loads(sys.argv[1])
    if request["arm"] not in ARMS:
        raise SystemExit(f"play: arm: wanted one of {', '.join(ARMS)}, found {request['arm']}")
    script = load(request["script"])
    run = Run(request, script)
    script.on_ready = run.begin
    sys.argv = [str(script.__file__), "--steps", str(request["steps"]), "--seed", str(request["seed"]),
                *request.get("options", [])]
    try:
        script.main()
    except Enough:
        pass
    print(json.dumps(run.figures()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
