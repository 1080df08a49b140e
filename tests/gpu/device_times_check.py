"""Times of updates on a real GPU, against the host's clock where the device is waited for, and what timing them adds: no wait.
Needs a CUDA device, so that no other run of pytest collects it: make check ON=gpu names the folder and the form of the name."""

import statistics
import time
from collections import Counter

import headrace as hr
import pytest
import torch
from headrace._boundary import Boundary
from headrace._device_times import times_of
from headrace._kept_call import KeptCalls
from torch import nn

UNITS = 20  # Of a block.
# Without the fused optimizer: to switch that off, torch wants each state's `step` on the host, which waits for the device.
CHANGES = ["bf16 autocast", "channels-last"]


BATCHES = 7


class Loop:
    """Few kernels that take some milliseconds together: the host launches a step in less. reads: every so many steps the loss is
    read, which bounds how far the host is ahead; 0: never."""

    def __init__(self, reads=8):
        torch.manual_seed(1)
        self.reads, self.made = reads, 0
        width = 256
        self.model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
                                   nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batches = [(torch.randn(64, 3, 64, 64, device="cuda"), torch.randint(0, 10, (64,), device="cuda"))
                        for _ in range(BATCHES)]

    def steps(self, count):
        for _ in range(count):
            images, labels = self.batches[self.made % BATCHES]
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            self.made += 1
            if self.reads and self.made % self.reads == 0:
                loss.item()


@pytest.fixture
def waits(monkeypatch):
    """Counts calls that wait for a device, by name; those within a replay of a kept call are the gate's own."""
    counted, is_replaying = Counter(), []

    def replaying(plain):
        def call(*given):
            is_replaying.append(True)
            try:
                return plain(*given)
            finally:
                is_replaying.pop()

        return call

    def counting(name, plain):
        def wait(*given, **named):
            counted[name if not is_replaying else "in replays"] += 1
            return plain(*given, **named)

        return wait

    for name in ("replay", "distance_between_calls"):
        monkeypatch.setattr(KeptCalls, name, replaying(getattr(KeptCalls, name)))
    for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
        monkeypatch.setattr(owner, "synchronize", counting(f"{owner.__name__}.synchronize", owner.synchronize))
    return counted


def test_blocks_of_units_take_by_events_what_they_take_by_the_clock_within_3_percent():
    loop = Loop()
    times = times_of([loop.model])
    told = []  # Of each update from the second on, in their order.

    def follow(unit):
        times.add(unit, kept_call=False)
        told.extend(times.known())

    boundary = Boundary([loop.model], [loop.optimizer], None, on_unit=follow, before_update=lambda: None)
    boundary.install()
    loop.steps(10)
    ratios = []
    for _ in range(7):
        torch.cuda.synchronize()
        begin, before = time.perf_counter(), boundary.updates
        loop.steps(UNITS)
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        loop.steps(1)  # At its boundary all of the block's are known.
        of_block = told[before - 1:before - 1 + UNITS]
        assert len(of_block) == UNITS and all(unit.countable for unit in of_block)
        ratios.append(sum(unit.seconds for unit in of_block) / took)
    boundary.remove()
    assert statistics.median(ratios) == pytest.approx(1, abs=0.03), ratios


def test_timing_waits_for_nothing(waits):
    loop = Loop()
    told = []
    handle = hr.autotune(loop.model, loop.optimizer, steps=100_000, only=CHANGES, allow="reduced_precision",
                         on_progress=lambda *one: told.append(one))
    for _ in range(400):
        loop.steps(10)
        if not handle.watching or any(kind == "ended" for kind, _ in told):
            break
    assert handle.problem is None and handle.trials and any(trial.pairs > 0 for trial in handle.trials)
    assert {name: count for name, count in waits.items() if name != "in replays"} == {}
    assert waits["in replays"] > 0  # Or the count counts nothing.
    handle.undo()


def test_a_step_that_does_not_wait_as_written_does_not_wait_when_it_is_timed():
    loop = Loop(reads=0)
    loop.steps(3)
    times = times_of([loop.model])
    boundary = Boundary([loop.model], [loop.optimizer], None, before_update=lambda: None,
                        on_unit=lambda unit: (times.add(unit, kept_call=False), list(times.known())))
    boundary.install()
    torch.cuda.set_sync_debug_mode("error")  # Whatever waits raises from here on.
    try:
        loop.steps(50)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        boundary.remove()
    assert boundary.updates == 50


def test_a_replayed_run_on_the_gpu_has_the_bits_of_the_first(tmp_path):
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        first = Loop()
        tuned = hr.autotune(first.model, first.optimizer, only=CHANGES, allow="reduced_precision", out=tmp_path,
                            on_progress=lambda *told: None)
        first.steps(1000)
        tuned.stop()
        assert len(tuned.ledger["turns"]) > 4
        second = Loop()
        replay = hr.autotune(second.model, second.optimizer, replay=tmp_path / "ledger.json", on_progress=lambda *told: None)
        second.steps(1000)
        assert replay.problem is None
        assert all(map(torch.equal, second.model.parameters(), first.model.parameters()))
