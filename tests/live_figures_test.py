"""Trainer.live(): figures that a second thread reads while the training loop runs."""

import math
import threading
import time

import headrace as hr
import pytest
import torch
from performance_optimization_system import OptimizedTrainer, PerformanceConfig, TrainingOptimizer
from torch import nn

pytestmark = pytest.mark.engine

PLACE = ("epoch", "batch", "optimizer_steps", "skipped_updates")
BARE = {"gradient_accumulation": False, "enable_profiling": False, "enable_memory_optimization": False}


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(16, 8, generator=generator), torch.randint(4, (16,), generator=generator)) for _ in range(count)]


def forward(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def trainer_of(model, **options) -> hr.Trainer:
    return hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, **options)


class Polling:
    """A thread that looks all the time, and a loader whose next batch comes after it has looked once more."""

    def __init__(self, look):
        self.look, self.seen, self.problem = look, [], None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            while not self.ended.is_set():
                self.seen.append(self.look())
                time.sleep(0.0002)
        except BaseException as error:  # noqa: BLE001 - the test tells of it.
            self.problem = error

    def paced(self, data):
        for batch in data:
            looks, deadline = len(self.seen), time.monotonic() + 60
            while len(self.seen) < looks + 2 and self.problem is None and time.monotonic() < deadline:
                time.sleep(0.0005)
            yield batch

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *raised):
        self.ended.set()
        self.thread.join()


def test_before_the_first_step_what_nobody_measured_is_none():
    found = trainer_of(network()).live()
    assert found == {**dict.fromkeys(PLACE, 0), "steps": 0, "samples": 0, "samples_per_second": None, "seconds_since_step": None, "loss": None}


def test_after_a_step_they_are_its_own():
    trainer, data = trainer_of(network(), gradient_accumulation_steps=2), batches(3)
    losses = [trainer.step(batch) for batch in data[:1]]
    found = trainer.live()
    assert (found["steps"], found["samples"], found["loss"], found["samples_per_second"]) == (1, 16, losses[-1].item(), None)
    losses += [trainer.step(batch) for batch in data[1:]]
    found = trainer.live()
    assert (found["steps"], found["samples"], found["loss"], found["optimizer_steps"]) == (3, 48, losses[-1].item(), 1)
    assert found["samples_per_second"] > 0 and found["seconds_since_step"] >= 0
    trainer.finish_window()
    assert trainer.live()["optimizer_steps"] == 2 and trainer.live()["steps"] == 3
    assert {name: trainer.live()[name] for name in PLACE} == {name: trainer.progress[name] for name in PLACE}


def test_a_second_thread_sees_the_run_go_on():
    data, theirs, model = batches(40), network(), network()
    trainer_of(theirs).fit(data, epochs=2)
    trainer = trainer_of(model)
    with Polling(trainer.live) as polling:
        trainer.fit(lambda: polling.paced(data), epochs=2)
    assert polling.problem is None
    steps = [found["steps"] for found in polling.seen]
    assert steps == sorted(steps) and set(range(1, 80)) <= set(steps)
    assert {found["epoch"] for found in polling.seen} >= {0, 1}
    updates = [found["optimizer_steps"] for found in polling.seen]
    assert updates == sorted(updates) and len(set(updates)) >= 79
    assert len({found["loss"] for found in polling.seen}) > 40
    rates = {found["samples_per_second"] for found in polling.seen} - {None}
    assert len(rates) > 40 and all(0 < rate < math.inf for rate in rates)
    for found in polling.seen:  # Each look is of one moment.
        assert found["samples"] == 16 * found["steps"] and found["optimizer_steps"] == found["steps"]
        assert found["steps"] == 40 * found["epoch"] + found["batch"]
    last = trainer.live()
    assert (last["epoch"], last["batch"], last["steps"], last["samples"]) == (2, 0, 80, 1280)
    torch.testing.assert_close(model.state_dict(), theirs.state_dict(), rtol=0, atol=0)  # Looking changes nothing.


def test_it_may_be_asked_within_a_step_and_a_step_that_raises_does_not_count():
    seen, model = [], network()

    def looking(model, batch):
        seen.append(trainer.live()["steps"])
        if len(seen) == 2:
            raise KeyError("made up")
        return forward(model, batch)

    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), looking)
    data = batches(3)
    trainer.step(data[0])
    with pytest.raises(KeyError, match="made up"):
        trainer.step(data[1])
    trainer.step(data[2])
    assert seen == [0, 1, 1] and trainer.live()["steps"] == 2


def test_after_a_load_the_place_is_that_of_the_checkpoint(tmp_path):
    trainer = trainer_of(network())
    trainer.fit(batches(4), epochs=1)
    trainer.save(tmp_path / "checkpoint.safetensors")
    other = trainer_of(network())
    other.load(tmp_path / "checkpoint.safetensors")
    assert {name: other.live()[name] for name in PLACE} == {**dict.fromkeys(PLACE, 0), "epoch": 1, "optimizer_steps": 4}
    assert other.live()["steps"] == 0 and other.live()["loss"] is None


def test_loops_of_published_names_tell_them_too():
    data, model = batches(10), network()
    trainer = OptimizedTrainer(model, PerformanceConfig("custom", **BARE))
    assert trainer.live() == {}
    with Polling(trainer.live) as polling:
        trainer.train_epoch(lambda: polling.paced(data), 1, 1)
    assert polling.problem is None and {found.get("steps") for found in polling.seen} >= set(range(1, 10))
    training = TrainingOptimizer(PerformanceConfig("custom", **BARE))
    assert training.live() == {}
    with Polling(training.live) as polling:
        training.train(model, lambda: polling.paced(data), trainer.optimizer, nn.functional.cross_entropy, 2)
    assert polling.problem is None and {found.get("steps") for found in polling.seen} >= set(range(1, 20))
    assert training.live()["steps"] == 20
