"""The part timm of make bench NAME=train-peers tells good from bad, and hr.Trainer follows a schedule of timm's form: without timm, and
nothing is timed."""

import importlib.util
import itertools
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from train_peers import rivals, timm_recipe  # noqa: E402

GONE = {"unavailable": "gone"}


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    """bench/train_peers/run.py."""
    specification = importlib.util.spec_from_file_location("timm_recipe_bench", ROOT / "bench" / "train_peers" / "run.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def bits(same: bool = True, averages: float = 1e-7, repeats: bool | None = None) -> dict[str, Any]:
    return {"updates": 50, "same_bits": same, "loop_repeats": repeats, "weights_apart": 0.0 if same else 2e-6, "averages_apart": averages}


def photographs(timm: list[float | None], ours: list[float | None]) -> dict[str, list[dict[str, Any]]]:
    """A process a round; None: it was unavailable."""
    arms = {rivals.TIMM_PHOTOGRAPHS.name: timm, rivals.HR_PHOTOGRAPHS.name: ours}
    return {name: [GONE if rate is None else {"samples_per_s": rate} for rate in rates] for name, rates in arms.items()}


@pytest.mark.parametrize("same, averages, met", [
    (True, 1e-6, [True, True]), (False, 1e-6, [False, True]), (True, 1.1e-6, [True, False]), (True, math.nan, [True, False])])
def test_weights_are_judged_by_bits_and_averages_by_distance(peers, same, averages, met):
    assert [bar.met for bar in peers.bits_bars(bits(same, averages, repeats=None if same else True))] == met


def test_other_bits_are_told_beside_a_second_run_of_timms_own_loop(peers):
    assert peers.bits_told(bits(False, repeats=True)) == (
        "50 updates: weights are 2e-06 apart; timm's loop, run twice, has the same bits; averages are 1e-07 apart")
    assert "run twice, has others, too" in peers.bits_told(bits(False, repeats=False))
    assert peers.bits_told(bits()) == "50 updates: weights have the same bits; averages are 1e-07 apart"


@pytest.mark.parametrize("ours, met", [([99.0, 100.0, 101.0], True), ([99.0, 101.0, 101.0], False)])
def test_a_step_is_judged_by_the_median_of_the_rounds_shares(peers, ours, met):
    bar = peers.recipe_step_bar({"ms": {"timm": [100.0] * 3, "ours": ours}})
    assert bar.met is met and bar.wanted == "at most 1"


@pytest.mark.parametrize("rate, met", [(105.0, True), (104.0, False)])
def test_rates_from_jpeg_are_judged_by_the_rounds_in_which_both_ran(peers, rate, met):
    found = photographs([100.0, 100.0, 1.0, None], [rate, rate, None, 900.0])
    assert peers.rates_where_both_ran(found) == dict(zip(found, ([100.0, 100.0], [rate, rate])))
    assert peers.photographs_bar(found).met is met


def test_what_did_not_run_leaves_its_bars_open(peers):
    bars = [*peers.bits_bars(GONE), peers.recipe_step_bar(GONE), peers.photographs_bar(photographs([1.0, None], [None, 1.0]))]
    assert [bar.met for bar in bars] == [None] * 4 and {bar.found for bar in bars} == {"unavailable: gone"}


class KeptBench:
    """A harness.Bench that keeps nothing."""

    def keep(self, found: Any, title: str = "") -> None:
        pass

    def measure(self, arms: Any, rounds: int, warm_up: int = 0, title: str = "") -> dict[str, list[Any]]:
        return {arm.name: [arm.figures(number) for number in range(1, rounds + 1)] for arm in arms}


def test_the_part_asks_for_each_figure_and_ends_with_four_bars(peers, monkeypatch, tmp_path, capsys):
    (tmp_path / "train").mkdir()
    asked = []

    def figures_of(rival, script, options):
        asked.append((rival.word, script, options))
        return {**bits(), "ms": {"timm": [100.0] * 9, "ours": [90.0] * 9}, "by": "the engine", "threads": 2, "version": "1",
                "samples_per_s": 120.0 if rival is rivals.HR_PHOTOGRAPHS else 100.0}

    monkeypatch.setattr(rivals, "figures_of", figures_of)
    arguments = peers.parsed(["timm", "--photos", str(tmp_path), "--photograph-rounds", "1"])
    assert [bar.met for bar in peers.run_timm(KeptBench(), arguments)] == [True] * 4
    assert [word for word, _, _ in asked] == ["bits", "step", "timm-photographs", "hr-photographs"]
    assert {word for word, _, _ in asked} == set(timm_recipe.MEASURED)
    assert {script for _, script, _ in asked} == {"timm_recipe.py"} and asked[0][2] == {"updates": 50}
    told = capsys.readouterr().out
    assert "round 1, from JPEG, hr.Loader, hr.Trainer: 120.0 samples/s" in told and "0.900 [0.900, 0.900]" in told


def test_without_photographs_the_rest_is_still_measured(peers, tmp_path):
    arguments = peers.parsed(["timm", "--photos", str(tmp_path)])
    bar = peers.photographs_bar(peers.measured_photographs(KeptBench(), arguments))
    assert bar.met is None and f"no photographs in {tmp_path}/train" in bar.found


class Halving:
    """A schedule of timm's form: told the number of updates, it halves the rate with each."""

    def __init__(self, optimizer: torch.optim.Optimizer, rate: float) -> None:
        self.optimizer, self._rate = optimizer, rate
        self.told: list[int] = []

    def step_update(self, num_updates: int) -> None:
        self.told.append(num_updates)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate * group["lr_scale"] / 2**num_updates

    def state_dict(self) -> dict[str, Any]:
        return {"told": list(self.told)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.told = list(state["told"])


def two_groups(rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """With scales of timm's layer decay in the groups."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    groups = [{"params": list(layer.parameters()), "lr_scale": scale} for layer, scale in zip(model, (0.5, 1.0))]
    return model, torch.optim.AdamW(groups, lr=rate, fused=True)


def loss_of(model: nn.Module, batch: timm_recipe.Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.engine
def test_the_trainer_follows_a_schedule_of_timms_form_as_a_loop_does():
    torch.manual_seed(2)
    batches = [(torch.randn(4, 8), torch.randint(4, (4,))) for _ in range(5)]
    model, optimizer = two_groups(0.1)
    schedule = Halving(optimizer, 0.1)
    for number, batch in enumerate(batches, 1):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step_update(num_updates=number)
    ours, our_optimizer = two_groups(0.1)
    our_schedule = Halving(our_optimizer, 0.1)
    stepped = timm_recipe.SteppedByUpdate(our_schedule)
    trainer = hr.Trainer(ours, our_optimizer, loss_of, lr_scheduler={"scheduler": stepped, "interval": "step"})
    for batch in batches:
        trainer.step(batch)
    assert our_schedule.told == [1, 2, 3, 4, 5]
    assert [group["lr"] for group in our_optimizer.param_groups] == [group["lr"] for group in optimizer.param_groups]
    torch.testing.assert_close(ours.state_dict(), model.state_dict(), rtol=1e-6, atol=1e-6)


def test_a_schedule_that_is_loaded_goes_on_with_the_next_update():
    schedules = [Halving(two_groups(0.1)[1], 0.1) for _ in range(2)]
    first, second = map(timm_recipe.SteppedByUpdate, schedules)
    first.step()
    first.step()
    second.load_state_dict(first.state_dict())
    second.step()
    assert schedules[1].told == [1, 2, 3]


def test_the_farthest_number_is_found_by_name_and_a_nan_is_not_passed_over():
    some = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
    assert timm_recipe.farthest(some, {"b": torch.tensor([[3.25]]), "a": torch.tensor([1.0, 1.5])}) == 0.5
    assert math.isnan(timm_recipe.farthest(some, {"a": torch.tensor([1.0, math.nan]), "b": some["b"]}))
    with pytest.raises(KeyError):
        timm_recipe.farthest(some, {"a": some["a"]})


def test_both_loops_are_given_the_same_batches():
    first, second = (list(itertools.islice(timm_recipe.drawn_batches(), 2)) for _ in range(2))
    for (images, labels), (others, other_labels) in zip(first, second):
        assert torch.equal(images, others) and torch.equal(labels, other_labels)
    assert not torch.equal(first[0][0], first[1][0]) and first[0][0].shape == (64, 3, 96, 96)
