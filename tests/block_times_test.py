"""Steps of a block timed by the events of a device, and hr.tune judging by them; a stand-in has a time of its own."""

import math
from functools import partial

import headrace as hr
import pytest
import torch
from headrace import _subject
from headrace._block_times import BlockTimes
from headrace._device_times import DeviceTimes
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

FUSED = "fused optimizer"


class Device:
    """Works behind its host: what was launched until `now` is done as soon as somebody waits."""

    def __init__(self, event_s=0.0):
        self.now = self.reached = 0.0
        self.waits, self.event_s = 0, event_s

    def record(self):
        self.now += self.event_s
        return Event(self)

    def wait(self):
        self.waits += 1
        self.reached = self.now


class Event:
    def __init__(self, device):
        self.device, self.at = device, device.now

    def query(self):
        return self.at <= self.device.reached

    def elapsed_time(self, end):
        assert self.query() and end.query()  # torch raises.
        return (end.at - self.at) * 1000


def times_on(device):
    return BlockTimes(partial(DeviceTimes, device.record), device.wait)


def block(times, device, seconds, losses=()):
    times.begin()
    for step, took in enumerate(seconds):
        device.now += took
        times.stepped(losses[step] if losses else torch.tensor(1.0), 0.001)


def test_steps_take_what_the_device_takes_and_one_wait_ends_a_block():
    device = Device()
    times = times_on(device)
    for seconds in ([0.01, 0.02, 0.03], [0.5]):
        waits = device.waits
        block(times, device, seconds)
        assert device.waits == waits
        assert times.seconds() == pytest.approx(seconds) and device.waits == waits + 1
    block(times, device, [])
    assert times.seconds() == []


@pytest.mark.parametrize("loss", [math.nan, -math.inf])
def test_a_loss_that_is_not_finite_ends_its_block_and_not_the_next(loss):
    device = Device()
    times = times_on(device)
    block(times, device, [0.01, 0.01], [torch.tensor([2.0]), torch.tensor(loss)])
    with pytest.raises(hr.errors.NumericsError, match=f"tune: the loss is {abs(loss)}"):
        times.seconds()
    block(times, device, [0.01])
    assert times.seconds() == pytest.approx([0.01])


def test_where_no_event_can_be_recorded_that_is_said():
    times = BlockTimes(lambda: DeviceTimes(lambda: None), lambda: None)
    times.begin()
    times.stepped(torch.tensor(1.0), 0.001)
    with pytest.raises(hr.errors.UnsupportedError, match="a step was not timed: its time on the device is not known"):
        times.seconds()


def test_tune_judges_by_the_device_and_waits_for_it_at_the_end_of_blocks_alone(monkeypatch):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [(torch.randn(4, 8), torch.randint(2, (4,))) for _ in range(16)]
    device, waits = Device(event_s=0.0001), []
    times = times_on(device)
    begin, launched = times.begin, []

    def begins():
        waits.append(device.waits)
        begin()

    times.begin = begins
    monkeypatch.setattr(_subject, "block_times_of", lambda _model: times)

    def forward(model, batch):  # Without the fused optimizer a step is twice as long, by the device's time alone.
        device.now += 0.0019 if optimizer.param_groups[0]["fused"] else 0.0039
        launched.append(device.waits)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    tuned = hr.tune(model, batches, optimizer, forward, budget_s=10, only=[FUSED], on_progress=lambda *told: None)
    (trial,) = tuned.trials
    assert (trial.verdict, tuned.kept) == ("kept", [FUSED]), trial.sentence
    assert trial.gain[0] == pytest.approx(1, abs=0.05) and tuned.speedup == pytest.approx(2, abs=0.1)
    assert all(1 <= after - before <= 2 for before, after in zip(waits, waits[1:]))  # One where nothing is computed.
    assert len(launched) > device.waits  # Blocks have many steps.
    rows = {row["key"]: row for row in tuned.ledger["settings"]}
    assert rows["tune.step_times"]["applied"] == "events" and "launching" in rows["tune.step_times"]["reason"]
