"""Which resource runs out first, of real loops with one fault each. Faults are sleeps, many times as long as the rest of a step: what else
the machine does moves no verdict."""

import gc
import json
import time

import headrace as hr
import pytest
import torch
from headrace import _core
from headrace.errors import InvalidArgumentError
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch

SLEEP = 0.02
pytestmark = pytest.mark.usefixtures("one_thread")


class Samples(Dataset):
    def __init__(self, fault):
        self._fault = fault
        self.transform = self.change

    def __len__(self):
        return 24

    def read(self):
        sleep_if(self._fault, "storage", 4)

    def decode(self):
        sleep_if(self._fault, "decode", 4)

    def change(self, sample):
        sleep_if(self._fault, "augment", 4)
        return sample

    def __getitem__(self, index):
        self.read()
        self.decode()
        return self.transform(torch.full((4,), float(index))), index % 2


def sleep_if(fault, name, of=1):
    if fault == name:
        time.sleep(SLEEP / of)


class Loop:
    def __init__(self, fault, workers=0):
        torch.manual_seed(1)
        self.fault = fault
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = SlowStep(self.model.parameters(), fault)
        self.loader = DataLoader(Samples(fault), 4, num_workers=workers, collate_fn=self.collate)

    def collate(self, samples):
        sleep_if(self.fault, "collate")
        return torch.utils.data.default_collate(samples)

    def forward(self, model, batch):
        sleep_if(self.fault, "synchronisation")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def train(self, epochs=2):
        for _ in range(epochs):
            for batch in self.loader:
                self.optimizer.zero_grad()
                self.forward(self.model, batch).backward()
                self.optimizer.step()


class SlowStep(torch.optim.SGD):
    def __init__(self, parameters, fault):
        super().__init__(parameters, lr=0.1)
        self._fault = fault

    def step(self, closure=None):
        sleep_if(self._fault, "optimizer")
        return super().step(closure)


FAULTS = ["storage", "decode", "augment", "collate", "optimizer", "synchronisation"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_watch_names_the_resource_of_a_planted_sleep_with_what_it_costs(fault):
    loop = Loop(fault)
    with hr.watch() as seen:
        loop.train()
    verdict = seen.verdict
    assert verdict["first"] == fault, verdict["sentence"]
    assert not verdict["healthy"] and not verdict["confirmed"]
    assert "(not confirmed: one run; " in verdict["sentence"] and verdict["to_confirm"] in seen.summary().replace("\n  ", " ")
    loss = verdict["losses"][0]
    assert loss["resource"] == fault and loss["lost_s"] >= 0.8 * SLEEP
    assert loss["gain"]["low"] <= loss["gain"]["middle"] <= loss["gain"]["high"]
    assert loss["advice"] and loss["keys"]
    assert seen.findings[0]["code"] == f"{fault}_limits"
    assert f"{fault} runs out first" in seen.summary()


def test_a_watch_confirms_a_wait_by_its_loader_alone_and_draws_nothing():
    loop = Loop("storage")
    with hr.watch(loop.model, loop.optimizer, loop.loader) as seen:
        loop.train()
    assert not seen.verdict["losses"][0]["confirmed"] and "confirm(loader)" in seen.verdict["to_confirm"]
    generator = torch.get_rng_state()
    verdict = seen.confirm()
    assert verdict["first"] == "storage" and verdict["losses"][0]["confirmed"], verdict["sentence"]
    assert verdict["confirmed"] and verdict["to_confirm"] is None and "(confirmed by a differential run; " in verdict["sentence"]
    assert torch.equal(torch.get_rng_state(), generator)
    assert seen.confirm(loop.loader) == seen.verdict
    with pytest.raises(InvalidArgumentError, match="wanted an epoch of at least 6 batches, found 2"):
        seen.confirm([1, 2])
    with pytest.raises(InvalidArgumentError, match="confirm: steps: wanted a whole number of at least 5, found 4"):
        seen.confirm(steps=4)
    with pytest.raises(InvalidArgumentError, match="confirm: loader: wanted an iterable, or a function that makes one, found int"):
        seen.confirm(3)


def test_a_watch_that_knows_no_loader_confirms_nothing():
    loop = Loop("")
    with hr.watch() as seen:
        loop.train(1)
    with pytest.raises(InvalidArgumentError, match="watch: confirm: wanted the loop's loader, found none"):
        seen.confirm()


@pytest.mark.forks
def test_of_workers_the_stage_is_named_that_they_spend_their_time_on():
    loop = Loop("decode", workers=1)
    with hr.watch(loop.model, loop.optimizer, loop.loader) as seen:
        loop.train()
    assert seen.verdict["first"] == "decode", seen.verdict["sentence"]


def test_the_peak_is_measured_once_and_kept_for_this_machine(own_cache, monkeypatch):
    kept = own_cache / "headrace" / "machine_peaks.json"
    assert not kept.exists()
    loop = Loop("")
    with hr.watch() as seen:
        loop.train(1)
    assert seen.verdict["peak_share"] > 0
    document = json.loads(kept.read_text())
    assert (document["format"], document["version"], len(document["peaks"])) == ("headrace-machine-peaks", 1, 1)

    document["peaks"][0]["others"] = 0.0  # Beside others it would be measured again.
    kept.write_text(json.dumps(document))

    def forbidden(n):
        raise AssertionError("measured again")

    found = _core.machine_peaks(forbidden)
    assert found["flops_per_s"] == document["peaks"][0]["flops_per_s"] > 0
    assert found["copy_bytes_per_s"] > 0 and found["page_fault_s"] > 0 and found["others"] == 0.0


def test_what_measuring_a_peak_raises_passes():
    def fails(n):
        raise ValueError("no product")

    with pytest.raises(ValueError, match="no product"):
        _core.machine_peaks(fails)


@pytest.mark.parametrize("fault", ["storage", "collate", "optimizer"])
def test_differential_runs_confirm_the_data_and_leave_every_bit_as_it_was(fault):
    loop = Loop(fault)
    before = {name: value.clone() for name, value in loop.model.state_dict().items()}
    generator = torch.get_rng_state()
    found = hr.diagnose_loop(loop.model, loop.loader, loop.optimizer, loop.forward, steps=8, budget_s=30)  # Its 22 short blocks fit well.
    verdict = found["resources"]
    assert verdict["first"] == fault, verdict["sentence"]
    assert verdict["losses"][0]["confirmed"] == verdict["confirmed"] == (fault != "optimizer")
    assert ("(not confirmed: no differential run shows it; " in verdict["sentence"]) == (fault == "optimizer")
    assert verdict["losses"][0]["lost_s"] >= 0.5 * SLEEP
    assert found["bound"] == ("compute" if fault == "optimizer" else "data")
    for name, value in loop.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert torch.equal(torch.get_rng_state(), generator)
    assert not loop.optimizer.state and isinstance(found, hr.Diagnosis)


@pytest.mark.parametrize("given, message", [
    ({"steps": 4}, "diagnose_loop: steps: wanted a whole number of at least 5, found 4"),
    ({"steps": 8.0}, "diagnose_loop: steps: wanted a whole number of at least 5, found 8.0"),
    ({"budget_s": "3"}, "diagnose_loop: budget_s: wanted a number above 0, found '3'"),
    ({"budget_s": 0}, "diagnose_loop: budget_s: wanted a number above 0, found 0"),
    ({"budget_s": float("nan")}, "diagnose_loop: budget_s: wanted a number above 0, found nan")])
def test_a_diagnosis_of_no_steps_or_no_time_is_refused(given, message):
    loop = Loop("")
    with pytest.raises(InvalidArgumentError) as raised:
        hr.diagnose_loop(loop.model, loop.loader, loop.optimizer, loop.forward, **given)
    assert str(raised.value) == message


def test_what_the_users_code_raises_passes_and_leaves_no_hook():
    before = (fetch._MapDatasetFetcher.fetch, fetch._BaseDatasetFetcher.__init__, len(gc.callbacks))
    loop = Loop("")

    def fails(model, batch):
        raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        hr.diagnose_loop(loop.model, loop.loader, loop.optimizer, fails)
    assert (fetch._MapDatasetFetcher.fetch, fetch._BaseDatasetFetcher.__init__, len(gc.callbacks)) == before
