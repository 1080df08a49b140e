"""What hr.tune offers to try on a user's objects, and what it says of the rest.

tests/recorded/candidates.json holds what scripts were offered while hr.tune had a list of its own."""

import json
import os
import pathlib

import headrace as hr
import pytest
import torch
from headrace import _engine_door
from headrace._subject import Subject
from python_tune_test import Loop, batches, fashion, without_batch_statistics, write_digits  # noqa: F401
from torch import nn
from torch.utils.data import DataLoader

RECORDED = json.loads((pathlib.Path(__file__).resolve().parent / "recorded" / "candidates.json").read_text())["scripts"]

DIVISION = {"data.num_workers", "compute.intra_op_threads"}  # Changed together: offered since then.

pytestmark = pytest.mark.usefixtures("one_thread")


def with_loader(loader, **options):
    loop = Loop()
    loop.loader = loader
    return loop, options


def flat(loader=None, optimizer=torch.optim.RMSprop, **options):
    loop = Loop()
    loop.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    loop.optimizer = optimizer(loop.model.parameters())
    loop.loader = loader or loop.loader
    return loop, options


def digits(folder, **options):
    write_digits(folder)
    return hr.Loader(f"idx:{folder}", batch_size=8, **options)


# By name: a loop and how it is tuned.
SCRIPTS = {
    "convolutions": lambda folder: with_loader(Loop().loader),
    "convolutions, whole step": lambda folder: with_loader(Loop().loader, whole_step=True),
    "each sample for itself": lambda folder: (without_batch_statistics(), {"whole_step": True}),
    "dropout": lambda folder: (without_batch_statistics(0.2), {"whole_step": True}),
    "fused": lambda folder: (without_batch_statistics(fused=True), {"whole_step": True}),
    "two workers": lambda folder: with_loader(DataLoader(Loop().loader.dataset, 8, num_workers=2, prefetch_factor=3)),
    "long run": lambda folder: with_loader(Loop().loader, run_steps=1000, budget_s=120),
    "list": lambda folder: with_loader(list(batches())),
    "function": lambda folder: with_loader(batches),
    "RMSprop": lambda folder: flat(),
    "fashion": lambda folder: with_loader(DataLoader(fashion(folder), 16, shuffle=True)),
    "fashion in order": lambda folder: with_loader(DataLoader(fashion(folder), 16)),
    "fashion, workers fixed": lambda folder: with_loader(DataLoader(fashion(folder), 16, shuffle=True), fixed=["data.num_workers"]),
    "fashion, loader fixed": lambda folder: with_loader(DataLoader(fashion(folder), 16, shuffle=True), fixed=["data.loader"]),
    "headrace.Loader": lambda folder: flat(digits(folder), torch.optim.AdamW),
    "headrace.Loader, two threads": lambda folder: flat(digits(folder, num_workers=2, prefetch_batches="auto")),
    "headrace.Loader, padded": lambda folder: flat(digits(folder, last_batch="pad"), torch.optim.AdamW, whole_step=True),
}


def offered(script, folder, bound):
    """Candidates and what is not tried, by name. `only` spares the worker processes that tell whether batches stay the same."""
    loop, options = SCRIPTS[script](folder)
    options = {"run_steps": None, "budget_s": 60, "only": ["none"], **options}
    subject = Subject(loop.model, loop.loader, loop.optimizer, lambda model, batch: loop.loss(batch), **options)
    found = [{"name": each.name, "changes": dict(each.changes), "numerics": each.numerics, "resource": each.resource}
             for each in subject.offer(bound).candidates]
    return found, {each.name: [each.key, each.reason] for each in subject.not_applicable}


# By name, what the engine alone can do: compute.allocator and train.engine.
BY_ENGINE = {"arena for tensors": "compute.allocator", "native step": "train.engine"}


def recorded_keys():
    return {key for cores in RECORDED.values() for each in cores["2"]["candidates"] for key in each["changes"]}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_offered_what_it_was_in_the_order_it_was(script, tmp_path, monkeypatch):
    """With the engine and without it, where these are not offered but told."""
    keys, refusals = recorded_keys(), _engine_door.refusals()
    out_of_reach = {name for name, key in BY_ENGINE.items() if key in refusals}
    for cores, recorded in RECORDED[script].items():
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=int(cores): set(range(count)))
        for bound in ("compute", "data", "memory"):
            folder = tmp_path / cores / bound
            folder.mkdir(parents=True)
            found, not_applicable = offered(script, folder, bound)
            found = [each for each in found if each["changes"].keys() <= keys and not each["changes"].keys() >= DIVISION]
            assert [each["name"] for each in found] == [name for name in recorded[bound] if name not in out_of_reach]
            assert refusals.items() <= dict(not_applicable.values()).items()
        if "candidates" in recorded:
            wanted = [each for each in recorded["candidates"] if each["name"] not in out_of_reach]
            assert sorted(found, key=lambda each: each["name"]) == sorted(wanted, key=lambda each: each["name"])
            for name, (key, reason) in recorded["not_applicable"].items():
                if key in refusals:
                    continue
                assert not_applicable[name][0] == key
                # Of two reasons the objects' own comes first now: a last batch that is smaller, before the run's length.
                assert not_applicable[name][1] == reason or (name == "torch.compile" and "last batch" in not_applicable[name][1])


@pytest.mark.parametrize("script", ["convolutions", "list", "headrace.Loader"])
def test_what_only_the_other_door_can_try_has_its_reason(script, tmp_path):
    _, not_applicable = offered(script, tmp_path, "compute")
    assert not_applicable["fused normalisation"] == ["model.fusion", "the network is your own: it replaces layers of headrace's"]
    assert not_applicable["wait policy"] == ["compute.wait_policy", "read when libgomp loads: set OMP_WAIT_POLICY before Python starts"]
    for name in ("entropy index", "scaled decoding", "cache of decoded images"):
        key, reason = not_applicable[name]
        assert key.startswith("data.") and reason


def of_images(folder, **options):
    """A loop over the JPEG files of a headrace.Loader, so that there is something to decode."""
    from PIL import Image
    for number in range(12):
        path = folder / "train" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 40), 60 + number).convert("RGB").save(path)
    loop = Loop()
    loop.model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    transform = {"size": 16, "crop": "random_resized"}
    loop.loader = hr.Loader(f"folder:{folder}", batch_size=4, num_workers=0, seed=1, transform=transform, **options)
    return loop


def subject_of(loop, run_steps):
    return Subject(loop.model, loop.loader, loop.optimizer, lambda model, batch: loop.loss(batch), run_steps=run_steps, budget_s=60)


def test_a_native_loader_is_offered_a_cache_which_changes_no_byte_and_is_undone(tmp_path):
    loop = of_images(tmp_path)
    subject = subject_of(loop, run_steps=12)
    (cache,) = [each for each in subject.offer("data").candidates if each.key == "data.cache"]
    assert cache.changes == {"data.cache": '"decoded"'} and cache.numerics == "bit_equal"
    assert cache.late_share == pytest.approx(1 / 4)  # 12 steps are 4 epochs, and all images have room.
    assert json.loads(subject.baseline()["data.cache"]) == "none"

    def pixels():
        subject.restore()
        return torch.cat([batch[0].clone() for batch in subject.new_epoch()])

    plain = pixels()
    subject.configure(cache.changes)
    assert all(torch.equal(pixels(), plain) for _ in range(2))
    hits = loop.loader.statistics()["cache_hits"]
    assert hits == 12
    subject.configure({})
    assert torch.equal(pixels(), plain) and loop.loader.statistics()["cache_hits"] == hits
    subject.configure(cache.changes)  # It was kept for the next trial.
    assert torch.equal(pixels(), plain) and loop.loader.statistics()["cache_hits"] == 2 * hits
    subject.give_back()
    assert loop.loader.options["cache"] == "none"
    subject.switch(cache.changes)  # What was kept in trials is gone.
    assert torch.equal(pixels(), plain) and loop.loader.statistics()["cache_hits"] == 2 * hits


def test_a_cache_is_not_tried_where_it_cannot_pay_or_would_freeze_what_a_data_set_draws(tmp_path):
    def reason(loop, run_steps):
        subject = subject_of(loop, run_steps)
        names = [each.name for each in subject.offer("data").candidates]
        assert "cache of decoded images" not in names
        return {each.key: each.reason for each in subject.not_applicable}["data.cache"]

    assert "length of the run" in reason(of_images(tmp_path), None)
    assert "the run has one" in reason(of_images(tmp_path), 4)
    assert "already" in reason(of_images(tmp_path, cache="decoded"), 12)

    class Own:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return torch.full((16, 16, 3), index, dtype=torch.uint8).numpy(), 0

    loop = of_images(tmp_path)
    loop.loader = hr.Loader(Own(), batch_size=4)
    assert "of your own" in reason(loop, 12)


def test_summary_and_ledger_say_what_was_not_tried_and_why(tmp_path):
    tuned = Loop().tune(only=["fused optimizer"], gain_min=10.0, out=tmp_path)
    entries = json.loads((tmp_path / "ledger.json").read_text())["not_tried"]
    assert {entry["key"]: entry["reason"] for entry in entries} == {entry.key: entry.reason for entry in tuned.not_applicable}
    assert "model.fusion" in {entry["key"] for entry in entries}
    text = " ".join(tuned.summary().split())
    for entry in entries:
        assert f"{entry['name']} ({entry['key']}): {entry['reason']}." in text
    assert "<h3>Not tried</h3>" in (tmp_path / "report.html").read_text()
    assert "setting_not_applied" not in (tmp_path / "report.html").read_text()
