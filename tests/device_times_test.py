"""Times of updates on a device that works behind its host: told in order, once the device is there, by nobody who waits for it.
The device is a clock, and its events are done when a test says so."""

import re

import headrace as hr
import pytest
import torch
from headrace import _device_times
from headrace._boundary import Unit
from headrace._device_times import DeviceTimes, times_of, why_not_timed
from planted_loop import ARENA, FASTER, FUSED, SLOWER, STEP_S, Loop, hooks_of, texts
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

LAUNCHED_BEFORE = "it was launched before the switch"


class Event:
    """As a torch.cuda.Event that was recorded: done after so many questions. Nobody may wait for it."""

    def __init__(self, at, questions):
        self.at, self.questions = at, questions

    def query(self):
        if self.questions == 0:
            return True
        self.questions -= 1
        return False

    def elapsed_time(self, end):
        assert self.questions == 0 and end.questions == 0  # torch raises.
        return (end.at - self.at) * 1000

    def synchronize(self):
        raise AssertionError

    wait = synchronize


class Device:
    """Its time, and events that are done after `questions`."""

    def __init__(self, questions=0):
        self.now, self.questions, self.events = 0.0, questions, []

    def record(self):
        self.events.append(Event(self.now, self.questions))
        return self.events[-1]

    def reach(self, events):
        """The device has passed the first so many."""
        for event in self.events[:events]:
            event.questions = 0


class Units:
    """Units that a host ends, each a millisecond long by its clock, and what is told of them."""

    def __init__(self, device):
        self.device, self.times, self.count = device, DeviceTimes(device.record), 0

    def end(self, seconds=0.05, *, kept_call=False, countable=True, wait_s=0.0):
        self.device.now += seconds
        self.count += 1
        self.times.add(Unit(0.001, float(self.count), wait_s, countable, "" if countable else "evaluation"), kept_call=kept_call)

    def told(self):
        return list(self.times.known())

    def works(self):
        """Numbers of the units that are told."""
        return [unit.work for unit in self.told()]


def begun(questions=0):
    """Behind the first unit, of which nobody knows when it began on the device."""
    units = Units(Device(questions))
    units.end()
    (first,) = units.told()
    assert not first.countable and first.why_not == "its time on the device is not known"
    return units


def test_units_are_told_once_their_events_are_done():
    units = begun(questions=10**6)
    for seconds in (0.05, 0.07):
        units.end(seconds)
    assert units.told() == []
    units.device.reach(1)  # The start of the second unit.
    assert units.told() == []
    units.device.reach(2)
    (unit,) = units.told()
    assert unit.seconds == pytest.approx(0.05) and unit.work == 2.0 and unit.countable and unit.why_not == ""
    assert units.told() == []
    units.device.reach(3)
    (unit,) = units.told()
    assert unit.seconds == pytest.approx(0.07) and unit.work == 3.0
    assert units.told() == []


def test_how_far_the_host_is_ahead_is_the_most_that_it_was():
    units = begun(questions=10**6)
    assert units.times.most_ahead == 0
    for _ in range(3):
        units.end()
        units.told()
    assert units.times.most_ahead == 3
    units.device.reach(4)
    assert len(units.told()) == 3 and units.times.most_ahead == 3
    for _ in range(512):  # It holds for a while, and not for ever.
        units.device.questions = 0
        units.end()
        units.told()
    assert units.times.most_ahead == 0


def test_an_event_is_asked_as_often_as_it_takes_and_not_waited_for():
    units = begun(questions=2)
    units.end()
    assert [len(units.told()) for _ in range(6)] == [0, 0, 0, 0, 1, 0]  # Two for the start, two for the end.


def test_several_units_that_are_done_at_once_are_told_in_their_order():
    units = begun(questions=10**6)
    for number in range(5):
        units.end(0.01 * (number + 1))
    units.device.reach(4)
    assert units.works() == [2.0, 3.0, 4.0]
    units.device.reach(6)
    told = units.told()
    assert [unit.work for unit in told] == [5.0, 6.0] and [unit.seconds for unit in told] == pytest.approx([0.04, 0.05])


def test_a_unit_that_is_done_before_an_earlier_one_waits_for_it():
    units = begun(questions=10**6)
    for _ in range(3):
        units.end()
    units.device.events[0].questions = units.device.events[2].questions = units.device.events[3].questions = 0
    assert units.works() == []
    units.device.events[1].questions = 0
    assert units.works() == [2.0, 3.0, 4.0]


def test_units_that_were_launched_before_a_switch_and_are_told_after_it_do_not_count():
    units = begun(questions=10**6)
    for _ in range(4):
        units.end()
    units.device.reach(2)
    assert units.works() == [2.0]
    units.times.note_switch()  # Behind the fifth unit of the host.
    units.end()
    units.device.reach(6)
    told = units.told()
    assert [(unit.work, unit.countable, unit.why_not) for unit in told] == [
        (3.0, False, LAUNCHED_BEFORE), (4.0, False, LAUNCHED_BEFORE), (5.0, False, LAUNCHED_BEFORE), (6.0, True, "")]
    assert all(unit.seconds == pytest.approx(0.05) for unit in told)  # They took their time all the same.


def test_a_switch_between_two_units_that_are_told_at_once_holds_for_the_second():
    units = begun()
    for _ in range(3):
        units.end()
    seen = []
    for unit in units.times.known():
        seen.append((unit.work, unit.why_not))
        if unit.work == 3.0:
            units.times.note_switch()
    assert seen == [(2.0, ""), (3.0, ""), (4.0, LAUNCHED_BEFORE)]


def test_what_does_not_count_by_itself_keeps_its_reason():
    units = begun(questions=10**6)
    units.end(countable=False)
    units.times.note_switch()
    units.device.reach(2)
    (unit,) = units.told()
    assert not unit.countable and unit.why_not == "evaluation" and unit.seconds == pytest.approx(0.05)


def test_a_unit_with_a_kept_call_is_told_at_once_with_those_that_are_still_out():
    units = begun(questions=10**6)
    for _ in range(3):
        units.end()
    units.end(kept_call=True)
    (unit,) = units.told()
    assert (unit.work, unit.countable, unit.why_not) == (2.0 + 3.0 + 4.0 + 5.0, False, "a call was kept")
    assert unit.seconds == pytest.approx(0.004)  # By the host's clock.
    units.end(0.03)
    units.device.reach(6)
    (unit,) = units.told()
    assert unit.work == 6.0 and unit.countable and unit.seconds == pytest.approx(0.03)


def test_what_was_left_in_the_middle_comes_the_next_time():
    units = begun()
    for _ in range(3):
        units.end()
    assert next(units.times.known()).work == 2.0
    assert units.works() == [3.0, 4.0]


def test_waiting_for_data_is_no_longer_than_the_unit():
    units = begun()
    units.end(0.05, wait_s=0.02)
    units.end(0.05, wait_s=0.2)
    assert [unit.wait_s for unit in units.told()] == pytest.approx([0.02, 0.05])


def test_where_no_event_can_be_recorded_the_units_on_both_sides_do_not_count():
    units = begun()
    record, units.times._record = units.times._record, lambda: None  # As while a CUDA graph is captured.
    units.end()
    units.times._record = record
    units.end()
    units.end()
    assert [(unit.countable, unit.why_not) for unit in units.told()] == [
        (False, "its time on the device is not known"), (False, "its time on the device is not known"), (True, "")]


# A whole run on such a device.


class Behind(Loop):
    """Its device takes the time of a step, and the host a millisecond to launch it. An event is done when the host has recorded
    `ahead` others."""

    def __init__(self, ahead):
        super().__init__()
        self.ahead, self.device_s, self.recorded, self.in_force = ahead, 0.0, 0, []
        self.measured_under = None  # What was in force in the unit that was asked for its time last.
        self.told_units = []  # Each with that, and with what was in force when it was told.
        self.times = NotingTimes(self)

    def step(self, batch):
        self.in_force.append(dict(self.knobs.planted))
        super().step(batch)

    def take(self, seconds):
        self.device_s += seconds
        self.clock.now += 0.001


class EventOfLoop:
    def __init__(self, loop):
        loop.recorded += 1
        self.loop, self.number, self.at, self.in_force = loop, loop.recorded, loop.device_s, dict(loop.knobs.planted)

    def query(self):
        return self.loop.recorded >= self.number + self.loop.ahead

    def elapsed_time(self, end):
        assert self.query() and end.query()
        self.loop.measured_under = end.in_force
        return (end.at - self.at) * 1000


class NotingTimes(DeviceTimes):
    def __init__(self, loop):
        super().__init__(lambda: EventOfLoop(loop))
        self.loop = loop

    def known(self):
        for unit in super().known():
            self.loop.told_units.append((unit, self.loop.measured_under, dict(self.loop.knobs.planted)))
            yield unit


def in_force_by(turns, updates):
    """What the turns of a ledger say of each update."""
    found, settings, left = [], {}, list(turns)
    for update in range(1, updates + 1):
        while left and left[0]["update"] <= update:
            settings = left.pop(0)["settings"]
        found.append(settings)
    return found


@pytest.mark.parametrize("ahead", [0, 1, 6])
def test_a_change_that_pays_on_the_device_is_kept_however_far_the_host_is_ahead(ahead):
    loop = Behind(ahead)
    handle = loop.autotune(FASTER)
    assert loop.run(3000, until=lambda: texts(loop.told, "ended"))
    (trial,) = handle.trials
    assert handle.kept == [FUSED] and 0.5 < trial.gain[1] <= trial.gain[2] < 0.7  # By the host's clock it gains nothing.
    (began,) = texts(loop.told, "began")
    assert float(re.search(r"(\S+) ms a step", began)[1]) == pytest.approx(STEP_S * 1000, rel=0.1)
    behind = [unit for unit, _, _ in loop.told_units if unit.why_not == LAUNCHED_BEFORE]
    assert len(behind) >= 9 * ahead and (ahead > 0 or not behind)
    # A switch that a unit led to holds from the host's next update on, and that is what the ledger says.
    assert in_force_by(handle.ledger["turns"], loop.steps) == loop.in_force


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_unit_counts_where_it_ran_under_what_is_in_force_when_it_is_told(ahead):
    loop = Behind(ahead)
    loop.autotune(FASTER)
    loop.run(400)
    assert all(under == now for unit, under, now in loop.told_units if unit.countable)
    assert sum(unit.countable and now == {"optimizer.fused": "true"} for unit, _, now in loop.told_units) >= 9
    assert any(under != now for _, under, now in loop.told_units)  # Which is why some do not.


def test_a_change_that_costs_on_the_device_is_dropped():
    loop = Behind(2)
    before = hooks_of(loop)
    handle = loop.autotune(SLOWER, only=[ARENA], allow="bit_equal")
    assert loop.run(3000, until=lambda: not handle.watching)
    assert [trial.verdict for trial in handle.trials] == ["refused"] and loop.knobs.planted == {} and hooks_of(loop) == before


# Which models are timed how.


def on(devices):
    """As device_of(), by a tensor's number of elements."""
    return lambda tensor: torch.device(devices.get(tensor.numel(), "cpu"))


def test_models_on_the_cpu_are_timed_by_the_hosts_clock():
    assert times_of([nn.Linear(4, 2)]) is None and times_of([nn.ReLU()]) is None and why_not_timed([nn.Linear(4, 2)]) is None


def test_models_on_one_gpu_are_timed_by_its_events(monkeypatch):
    monkeypatch.setattr(_device_times, "device_of", lambda tensor: torch.device("cuda", 1))
    assert why_not_timed([nn.Linear(4, 2), nn.BatchNorm1d(3)]) is None
    assert isinstance(times_of([nn.Linear(4, 2)]), DeviceTimes)


@pytest.mark.parametrize("devices, said", [
    ({8: "cuda:0"}, "parameter weight is on cuda:0, parameter bias on cpu; wanted all of them on one device"),
    ({8: "cuda:0", 2: "cuda:1"}, "parameter weight is on cuda:0, parameter bias on cuda:1; wanted all of them on one device"),
    ({2: "mps"}, "parameter bias is on mps; wanted the CPU or a CUDA device"),
    ({8: "xpu:0", 2: "xpu:0"}, "parameter weight is on xpu:0; wanted the CPU or a CUDA device"),
])
def test_models_elsewhere_or_on_two_devices_are_refused_by_name(monkeypatch, devices, said):
    monkeypatch.setattr(_device_times, "device_of", on(devices))
    model = nn.Linear(4, 2)
    assert why_not_timed([model]).startswith(said)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    told = []
    handle = hr.autotune(model, optimizer, on_progress=lambda *one: told.append(one))
    assert handle.problem.startswith(said) and not handle.watching
    assert [kind for kind, _ in told] == ["problem"] and not optimizer._optimizer_step_post_hooks


def test_nothing_is_recorded_while_a_cuda_graph_is_captured(monkeypatch):
    recorded = []

    class Recorded(Event):
        def __init__(self, *, enable_timing):
            assert enable_timing
            super().__init__(0.0, 0)

        def record(self, stream):
            recorded.append(stream)

    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the current one of {device}")
    monkeypatch.setattr(torch.cuda, "Event", Recorded)
    monkeypatch.setattr(_device_times, "device_of", lambda tensor: torch.device("cuda", 1))
    times = times_of([nn.Linear(4, 2)])
    unit = Unit(0.001, 1.0, 0.0, True, "")
    times.add(unit, kept_call=False)
    assert recorded == []
    capturing[0] = False
    times.add(unit, kept_call=False)
    assert recorded == ["the current one of cuda:1"]
