"""A training loop whose time is a clock that passes when the loop says so, with what a change gains planted on that clock, for
the tests of hr.autotune."""

import contextlib
import math
import random
from unittest import mock

import torch
from headrace import _engine_door
from headrace._autotune import AutoTune
from headrace._autotune_request import Request
from headrace._live_knobs import LiveKnobs
from headrace._seen_calls import COMPILED_CALL
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEP_S = 0.05
FUSED, FOREACH, ARENA = "fused optimizer", "foreach optimizer", "arena for tensors"
FASTER, SLOWER = {"optimizer.fused": 1 / 1.6}, {"compute.allocator": 1.25}  # Of a step's seconds.


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class PlantedKnobs(LiveKnobs):
    """The changes that there are for these objects, none of which does anything but to the clock: those that need the engine, too,
    where it cannot be had."""

    def __init__(self, models, optimizers, loader, factors):
        super().__init__(models, optimizers, loader)
        self.factors, self.planted, self.applied, self.undone = factors, {}, [], 0

    @contextlib.contextmanager
    def as_with_the_engine(self):
        written = {"compute.allocator": '"system"', **self._process.written}
        with mock.patch.object(_engine_door, "refusals", dict), mock.patch.object(self._process, "written", written):
            yield

    def offer(self, *given):
        with self.as_with_the_engine():
            return super().offer(*given)

    def check(self, settings):
        with self.as_with_the_engine():
            super().check(settings)

    def baseline(self):
        with self.as_with_the_engine():
            return super().baseline()

    def apply(self, settings):
        self.planted = dict(settings)
        self.applied.append(self.planted)
        return [(key, value, value, "") for key, value in self.planted.items()]

    def in_force(self):
        return dict(self.planted)

    def undo(self):
        super().undo()
        self.planted = {}
        self.undone += 1

    def end(self, key, reason):
        """As a compiled model that recompiles, or a loop that has an autocast of its own."""
        self._calls.ended[key] = reason

    def factor(self):
        return math.prod(self.factors.get(key, 1.0) for key in self.planted)


class Loop:
    """A small training loop whose steps take 50 ms, give or take 2 %, on a clock of its own."""

    times = None  # As AutoTune takes it.

    def __init__(self):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(TensorDataset(torch.randn(800, 4), torch.randint(0, 2, (800,))), 8)
        self.clock, self.noise, self.steps = Clock(), random.Random(7), 0
        self.knobs, self.told = None, []

    def autotune(self, factors=None, on_progress=None, **options):
        self.knobs = PlantedKnobs([self.model], [self.optimizer], self.loader, factors or {})
        return AutoTune([self.model], [self.optimizer], self.loader, request(**options),
                        on_progress or (lambda *told: self.told.append(told)), knobs=self.knobs, clock=self.clock,
                        times=self.times)

    def step(self, batch):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.scores(batch[0]), batch[1]).backward()
        self.take(STEP_S * (self.knobs.factor() if self.knobs else 1) * math.exp(self.noise.gauss(0, 0.02)))
        self.optimizer.step()
        self.steps += 1

    def scores(self, features):
        return self.model(features)

    def take(self, seconds):
        self.clock.now += seconds

    def run(self, steps, until=lambda: False):
        """So many steps, over as many epochs as they take, or until something has happened: whether it has."""
        while steps > 0:
            for batch in self.loader:
                self.step(batch)
                steps -= 1
                if until():
                    return True
                if steps == 0:
                    return False
        return False


def request(**options):
    return Request(**{"allow": "rounding", "steps": None, "epochs": None, "only": [FUSED], "fixed": [], "gain_min": 0.02,
                      "out": None, "auto_tune": True, "seed": 0, "title": "loop", **options})


def hooks_of(loop):
    """Everything that a tuning may hang itself on."""
    owners = [*loop.model.modules(), loop.optimizer]
    modules = nn.modules.module
    return ([{name: len(hooks) for name, hooks in vars(owner).items() if "_hooks" in name and isinstance(hooks, dict)}
             for owner in owners],
            [vars(owner).keys() & {"forward", "step", "state_dict", "__getstate__", COMPILED_CALL} for owner in owners],
            [len(hooks) for name, hooks in vars(modules).items() if name.startswith("_global_") and name.endswith("_hooks")],
            type(loop.loader), vars(loop.loader).keys())


def in_one_line(handle):
    return " ".join(handle.report().split())


def texts(told, kind):
    return [text for found, text in told if found == kind]
