"""hr.monitor(loader=, trainer=): figures that it reads itself, without a call of record(), and sinks that may not be written."""

import json
import logging
import os
import re
import subprocess
import sys

import headrace as hr
import pytest
import user_sources
from tiny_run import ANY_USER, write_idx


@pytest.fixture
def folder(tmp_path):
    write_idx(tmp_path, "train", 64)
    write_idx(tmp_path, "t10k", 16)
    return tmp_path


class Told(hr.Loader):
    """Whose statistics are what the test says."""

    told = None

    def statistics(self):
        return self.told or super().statistics()


def statistics_of(batches, waited, hits=0, misses=0):
    return {"batches": batches, "stages": [{"name": "read", "queue": 0.0}, {"name": "consume", "queue": waited / batches}],
            "cache_hits": hits, "cache_misses": misses}


def test_a_loader_tells_its_queue_between_two_looks_and_its_cache(folder):
    loader = Told(f"idx:{folder}", batch_size=16, num_workers=0)
    loader.told = statistics_of(10, waited=10)
    with hr.monitor(loader=loader, system_s=0) as watch:
        assert watch.flush() and watch.latest() == {}, "what was before is not this run's"
        loader.told = statistics_of(14, waited=20, hits=3, misses=1)
        assert watch.flush()
        assert watch.latest() == {"loader.queue_depth": 2.5, "cache.hit_rate": 0.75, "cache.lookups": 4}
        watch.clear()
        loader.told = statistics_of(2, waited=1)  # Its counts have begun anew.
        assert watch.flush() and watch.latest() == {}
        loader.told = statistics_of(3, waited=4)
        assert watch.flush() and watch.latest() == {"loader.queue_depth": 3.0}, "no cache was asked"


def test_a_loader_with_a_cache_tells_its_hit_rate():
    loader = hr.Loader(user_sources.Images(), batch_size=8, cache="decoded", transform={"flip_probability": 0.5, "pad": 1})
    with hr.monitor(loader=loader, system_s=0) as watch:
        for _ in range(3):
            assert sum(1 for _ in loader) == 3
        assert watch.flush()
        statistics, latest = loader.statistics(), watch.latest()
    assert statistics["cache_hits"] == 48, "24 samples, of which the first epoch has found none"
    assert latest["cache.lookups"] == 48 + statistics["cache_misses"]
    assert latest["cache.hit_rate"] == 48 / latest["cache.lookups"]


class Trainer:
    """As far as a monitor sees it."""

    def __init__(self):
        self.told = {"steps": 0, "samples_per_second": None, "loss": None, "epoch": 0}
        self.asked = 0

    def live(self):
        self.asked += 1
        if self.told is None:
            raise RuntimeError("gone")
        return self.told


def test_a_trainer_gives_step_rate_and_loss_once_a_step(tmp_path):
    trainer = Trainer()
    with hr.monitor(trainer=trainer, json_lines=tmp_path / "m.jsonl", system_s=0) as watch:
        assert watch.flush()
        trainer.told = {"steps": 1, "samples_per_second": None, "loss": 0.5, "epoch": 0}
        assert watch.flush() and watch.flush()
        trainer.told = {"steps": 2, "samples_per_second": 64.0, "loss": 0.25, "epoch": 1}
        assert watch.flush()
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert sorted((row["step"], row["metric"], row["value"]) for row in rows) == [
        (1, "train.epoch", 1), (1, "train.loss", 0.5), (2, "samples_per_s", 64.0), (2, "train.epoch", 2), (2, "train.loss", 0.25)]


@pytest.mark.engine
def test_a_real_trainer_and_its_loader_are_seen_while_it_fits(folder):
    import torch

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1),
                         lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]))
    loader = hr.Loader(f"idx:{folder}", batch_size=16, num_workers=1)
    with hr.monitor(trainer=trainer, loader=loader, system_s=0) as watch:
        trainer.fit(loader, 1)
        assert watch.flush()
        latest = watch.latest()
    assert latest["train.loss"] > 0 and "loader.queue_depth" in latest


def test_what_fails_to_tell_is_logged_once_and_not_asked_again(caplog):
    trainer = Trainer()
    with caplog.at_level(logging.ERROR, "headrace"), hr.monitor(trainer=trainer, system_s=0) as watch:
        trainer.told = None
        assert watch.flush()
        asked = trainer.asked
        assert watch.flush() and watch.record(1, {"loss": 1.0}) and watch.flush()
    assert trainer.asked == asked and watch.latest() == {"loss": 1.0}
    (logged,) = caplog.records
    assert "the figures of the trainer cannot be read" in logged.getMessage() and logged.exc_info[0] is RuntimeError


@pytest.mark.parametrize(("arguments", "message"), [({"loader": [1, 2]}, "loader: wanted a headrace.Loader, found list"),
                                                    ({"watch": object()}, "watch: wanted a headrace.watch, found object"),
                                                    ({"trainer": object()}, "trainer: wanted a headrace.Trainer, found object")])
def test_what_is_no_loader_watch_or_trainer_is_named(arguments, message):
    with pytest.raises(hr.errors.InvalidArgumentError, match=re.escape(message)):
        hr.monitor(**arguments)


IN_A_CLOSED_FOLDER = """
import json, sys
import headrace as hr
closed, key = sys.argv[1:]
with hr.monitor(**{key: closed + "/within"}, system_s=0) as watch:
    assert watch.record(1, {"loss": 1.0}) and watch.flush()
    print(json.dumps(watch.status()["sinks"]))
"""


@pytest.mark.parametrize("key", ["tensorboard", "csv", "json_lines", "events"])
def test_a_folder_that_may_not_be_written_turns_its_sink_off(tmp_path, key):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    done = subprocess.run([*ANY_USER, sys.executable, "-c", IN_A_CLOSED_FOLDER, str(closed), key], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, timeout=120)
    assert done.returncode == 0, done.stderr
    (sink,) = json.loads(done.stdout)
    assert sink["applied"] == "off" and "Permission denied" in sink["reason"] and str(closed / "within") in sink["reason"]
    assert list(closed.iterdir()) == []
