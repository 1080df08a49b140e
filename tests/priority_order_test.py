"""The order in which a run that tunes itself goes about its faults: what the process computes with, the data pipeline, the
training loop, the model."""

import math
import random

import headrace as hr
import pytest
import torch
from autotune_test import STEP_S, Clock, PlantedKnobs, request, texts
from headrace._autotune import AutoTune
from headrace._tuned_loop import TunedLoop
from tiny_run import write_idx
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

# By key, in the order wanted: the change that mends a fault of the loop below.
CHANGES = {"compute.allocator": "arena for tensors", "data.prefetch_batches": "deeper prefetch",
           "optimizer.fused": "fused optimizer", "model.memory_format": "channels-last"}
TABLES = ("compute", "data", "train", "optimizer", "model")


class FaultyLoop:
    """A network of convolutions, each of whose steps would be a third faster with any of the changes, on a clock of its own."""

    def __init__(self, folder):
        torch.manual_seed(1)
        write_idx(folder, "train", 800)
        self.loader = hr.Loader(f"idx:{folder}", batch_size=8, num_workers=1, prefetch_batches=2)
        self.model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.clock, self.noise, self.told = Clock(), random.Random(7), []
        self.knobs = PlantedKnobs([self.model], [self.optimizer], self.loader, dict.fromkeys(CHANGES, 1 / 1.5))

    def autotune(self):
        return AutoTune([self.model], [self.optimizer], self.loader, request(only=list(CHANGES.values())),
                        lambda *told: self.told.append(told), knobs=self.knobs, clock=self.clock)

    def run_until_decided(self, steps_max):
        """Whether it was."""
        steps = 0
        while steps < steps_max:
            for images, labels in self.loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(images), labels).backward()
                self.clock.now += STEP_S * self.knobs.factor() * math.exp(self.noise.gauss(0, 0.02))
                self.optimizer.step()
                steps += 1
                if texts(self.told, "ended"):
                    return True
        return False


def test_faults_in_all_four_places_are_tackled_from_the_hardware_to_the_model(tmp_path, monkeypatch):
    checked, replay = [], TunedLoop.replay

    def noted(self, reference, candidate, full_precision):
        checked.extend(candidate)
        return replay(self, reference, candidate, full_precision)

    monkeypatch.setattr(TunedLoop, "replay", noted)
    loop = FaultyLoop(tmp_path)
    planned = [candidate.key for candidate in loop.knobs.offer("rounding", [], [], 1000).candidates]
    assert [key for key in planned if key in CHANGES] == list(CHANGES)
    places = [TABLES.index(key.split(".")[0]) for key in planned]
    assert places == sorted(places)

    handle = loop.autotune()
    assert loop.run_until_decided(6000)
    assert [trial.name for trial in handle.trials] == list(CHANGES.values()) == handle.kept
    at_the_gate = list(dict.fromkeys(checked))  # What loads batches may pass it without a replay, which takes none.
    assert at_the_gate == [key for key in CHANGES if key in at_the_gate]
    assert len(at_the_gate) >= 3
    handle.undo()
