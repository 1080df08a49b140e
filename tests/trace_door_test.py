"""What hr.watch, hr.profile and `headrace profile` have in common of a trace: who recorded it, what is chosen, what threads waited for,
histograms, flows, and that worker processes of a DataLoader, which are forks of the recorded process, come through. Counts and order,
never upper bounds of times."""

import json
import os
import signal
import time
import urllib.request

import pytest
import torch
from protobuf_fields import records
from tiny_run import write_photos
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr

STEPS = 6


class Loop:
    def __init__(self, workers=0):
        torch.manual_seed(1)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = TensorDataset(torch.randn(8 * STEPS, 4), torch.randint(0, 2, (8 * STEPS,)))
        self.loader = DataLoader(self.data, 8, num_workers=workers)

    def step(self, inputs, labels):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(inputs), labels).backward()
        self.optimizer.step()

    def epoch(self):
        with hr.span("an epoch"):
            for inputs, labels in self.loader:
                with hr.span("a batch"):
                    self.step(inputs, labels)


def spans_of(path):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def names_of(path):
    return [event["name"] for event in spans_of(path)]


def watched(tmp_path, **choice):
    loop = Loop()
    with hr.watch(**choice) as seen:
        loop.epoch()
    seen.write_trace(tmp_path / "trace.json")
    return seen, names_of(tmp_path / "trace.json")


PARTS = ["data_wait", "forward", "backward", "optimizer", "step"]


def test_a_watch_of_chosen_names_still_has_every_part_of_every_step(tmp_path):
    seen, names = watched(tmp_path, names=["a b*"])
    assert all(names.count(part) == STEPS for part in PARTS)
    assert names.count("a batch") == STEPS and "an epoch" not in names
    assert seen.steps == STEPS and seen.document["choice"] == {"names": ["a b*"], "every_steps": 1, "from_s": 0, "length_s": 0}


def test_a_watch_of_every_third_step_has_the_rest_in_these_alone(tmp_path):
    seen, names = watched(tmp_path, every_steps=3)
    assert all(names.count(part) == STEPS for part in PARTS)
    assert names.count("a batch") == STEPS // 3
    assert seen.diagnosis and seen.step_histogram["count"] == STEPS


def test_a_watch_of_a_time_that_never_comes_has_its_parts_alone(tmp_path):
    seen, names = watched(tmp_path, from_s=1e6)
    assert all(names.count(part) == STEPS for part in PARTS) and "a batch" not in names
    assert seen.waits["io_s"] is None and seen.waits["why_no_io"].startswith("not all waits were recorded")


@pytest.mark.parametrize("wrong, words", [
    (dict(names="a*"), "names: wanted a list of patterns, found 'a*'"),
    (dict(names=["a", ""]), "names: wanted a list of patterns"),
    (dict(every_steps=0), "every_steps: wanted a whole number of at least 1, found 0"),
    (dict(every_steps=True), "every_steps: wanted a whole number of at least 1, found True"),
    (dict(from_s=-1), "from_s: wanted seconds from 0 on, found -1"),
    (dict(length_s=float("nan")), "length_s: wanted seconds from 0 on, found nan"),
], ids=lambda value: str(value) if isinstance(value, dict) else None)
@pytest.mark.parametrize("door", [hr.watch, hr.profile], ids=["watch", "profile"])
def test_a_choice_that_cannot_be_names_its_word(door, wrong, words):
    with pytest.raises(hr.errors.InvalidArgumentError) as raised:
        door(**wrong)
    assert words in str(raised.value)


def test_waits_of_a_loader_of_headrace_over_files_are_figures_and_each_batch_points_to_its_taking(tmp_path):
    write_photos(tmp_path / "photos", train=STEPS)
    loader = hr.Loader(f"folder:{tmp_path / 'photos'}", batch_size=2, num_workers=1, transform={"size": 24, "crop": "random_resized"})
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(2, 3, 24, 24))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hr.watch() as seen:
        for images, labels in loader:
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    waits = seen.waits
    assert all(waits[name] is not None and waits[name] >= 0 for name in ("empty_queue_s", "full_queue_s", "lock_s", "io_s"))
    assert waits["why_no_lock"] is None and waits["why_no_io"] is None
    assert waits["io_s"] > 0  # Each photograph is read.
    seen.write_trace(tmp_path / "trace.json")
    spans, names = spans_of(tmp_path / "trace.json"), names_of(tmp_path / "trace.json")
    assert names.count("io_read") == 2 * STEPS and names.count("take_batch") == STEPS
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    by_place = {(span["tid"], span["ts"], span["name"]): span["args"]["value"] for span in spans}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    starts = [event for event in events if event["ph"] == "s"]
    assert len(starts) == len(ends) == names.count("load_chunk")
    for start in starts:
        end = ends[start["id"]]
        assert by_place[start["tid"], start["ts"], "load_chunk"] == by_place[end["tid"], end["ts"], "take_batch"]


def test_waits_of_other_loaders_and_reads_of_python_are_unavailable_with_the_reason():
    loop = Loop()
    with hr.watch() as seen:
        loop.epoch()
    assert seen.waits["lock_s"] is None and seen.waits["why_no_lock"].startswith("no Loader of headrace's ran")
    assert seen.waits["io_s"] is None and seen.waits["why_no_io"].startswith("no Loader of headrace's ran")
    loader = hr.Loader(loop.data, batch_size=8, num_workers=1)
    with hr.watch() as seen:
        for inputs, labels in loader:
            loop.step(inputs, labels)
    assert seen.waits["io_s"] is None and seen.waits["why_no_io"].startswith("a data set in Python reads")
    assert seen.waits["lock_s"] > 0  # A thread of the loader's takes Python's lock for every sample.


def test_a_wait_of_100_ms_is_recorded_within_5_ms_of_what_clocks_within_and_around_it_say():
    """Both ends, and no limit on how late a busy machine wakes a thread: a clock within the scope shows the least that the wait took,
    and one around it the most."""
    with hr.Trace() as trace:
        around = time.perf_counter()
        with hr.span("wait"):
            within = time.perf_counter()
            time.sleep(0.1)
            within = time.perf_counter() - within
        around = time.perf_counter() - around
    (found,) = trace.summary()["operations"]
    assert found["name"] == "wait" and within >= 0.1
    assert within - 0.005 <= found["total_s"] <= around + 0.005


def test_every_file_says_who_recorded_it(tmp_path):
    with hr.Trace() as trace, hr.span("one"):
        pass
    for form in ("chrome", "jsonl", "perfetto"):
        trace.write(tmp_path / form, form)
    assert json.loads((tmp_path / "chrome").read_text())["otherData"]["recorder"] == "headrace"
    assert json.loads((tmp_path / "jsonl").read_text().splitlines()[0])["recorder"] == "headrace"
    assert b"recorder: headrace" in (tmp_path / "perfetto").read_bytes()
    with hr.profile(["cpu"], source="torch") as profile:
        torch.ones(3)
    profile.export(tmp_path / "torch.json")
    assert json.loads((tmp_path / "torch.json").read_text())["recorder"].startswith(f"torch.profiler of torch {torch.__version__}")


def test_a_histogram_has_each_span_of_the_name_once_in_ranges_without_gaps():
    with hr.Trace() as trace:
        for _ in range(20):
            with hr.span("one"):
                pass
        with hr.span("two"):
            pass
    found = trace.histogram("one")
    ranges = found["ranges"]
    assert found["count"] == sum(one["count"] for one in ranges) == 20
    assert all(one["to_s"] == following["from_s"] for one, following in zip(ranges, ranges[1:]))
    assert ranges[0]["from_s"] <= found["min_s"] <= found["p50_s"] <= found["p99_s"] <= found["max_s"] < ranges[-1]["to_s"]
    assert trace.histogram("three") == {"count": 0, "mean_s": None, "min_s": None, "max_s": None, "p50_s": None, "p95_s": None,
                                        "p99_s": None, "ranges": []}


def test_a_monitor_gives_a_histogram_of_the_durations_that_it_is_asked_for(tmp_path):
    with hr.monitor(prometheus=0, tensorboard=tmp_path / "runs", system_s=0, histograms=["step_s"]) as watch:
        for step in range(10):
            watch.record(step, {"step_s": 0.01 * (step + 1), "loss": 1.0})
        assert watch.flush()
        url = next(sink for sink in watch.status()["sinks"] if sink["name"] == "prometheus")["applied"]
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    assert "# TYPE headrace_step_s_distribution_seconds histogram" in lines
    assert 'headrace_step_s_distribution_seconds_bucket{le="+Inf"} 10' in lines
    assert "headrace_step_s_distribution_seconds_count 10" in lines and not any("loss_distribution" in line for line in lines)
    (path,) = (tmp_path / "runs").iterdir()
    assert any(b"step_s.distribution" in record for record in records(path.read_bytes()))
    with pytest.raises(hr.errors.InvalidArgumentError, match="monitor: histograms: wanted patterns of names, found 3"):
        hr.monitor(system_s=0, histograms=[3])


def test_a_cache_is_a_role_of_its_own_and_unavailable_where_nobody_tells_it(tmp_path):
    write_photos(tmp_path, train=4)
    loader = hr.Loader(f"folder:{tmp_path}", batch_size=2, num_workers=1, cache="decoded", transform={"size": 24, "crop": "random_resized"})
    assert hr.memory_by_role(loader=loader).bytes["cache"] == 0
    assert sum(1 for _ in loader) == 4
    memory = hr.memory_by_role(loader=[loader])
    assert memory.bytes["cache"] == loader.statistics()["cache_bytes"] > 0
    assert memory.total == 0 and "cache" not in memory.why_not
    without = hr.memory_by_role()
    assert without.bytes["cache"] is None and without.why_not["cache"].startswith("no headrace.Loader was given")
    assert hr.memory_by_role(loader=DataLoader([1, 2])).bytes["cache"] is None


# Worker processes of a DataLoader: forks, in which the recorder's threads are not, and its memory is.


@pytest.mark.forks
def test_forked_workers_come_through_a_trace_and_leave_its_spans_alone():
    loop = Loop(workers=2)
    for _ in range(2):
        with hr.Trace() as trace:
            loop.epoch()
        assert {one["name"]: one["count"] for one in trace.summary()["operations"]} == {"an epoch": 1, "a batch": STEPS}


class Traced(torch.utils.data.Dataset):
    """Records spans where it loads: in a fork what is recorded goes nowhere, and must not go wrong."""

    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, index):
        with hr.span("an item"):
            return torch.full((4,), float(index)), index % 2


@pytest.mark.forks
def test_spans_of_forked_workers_are_in_no_trace_of_their_parent():
    loop = Loop()
    loop.loader = DataLoader(Traced(), 8, num_workers=2, persistent_workers=True)
    with hr.Trace() as trace:
        for _ in range(2):
            loop.epoch()
    counts = {one["name"]: one["count"] for one in trace.summary()["operations"]}
    assert counts == {"an epoch": 2, "a batch": 2 * STEPS}


@pytest.mark.forks
def test_forked_workers_come_through_a_flight_recorder_and_its_signal(tmp_path):
    loop = Loop(workers=2)
    with hr.watch(flights=tmp_path / "flights") as seen:
        for _ in range(2):
            loop.epoch()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert seen.dump() is not None
        loop.epoch()
    assert seen.steps == 3 * STEPS and seen.flights["problem"] is None
    assert any(dump["reason"] == "request" for dump in seen.flights["dumps"])
    for dump in seen.flights["dumps"]:
        assert "step" in names_of(tmp_path / "flights" / os.path.basename(dump["path"]))


@pytest.mark.engine
@pytest.mark.forks
@pytest.mark.parametrize("more", [{}, {"record_shapes": True, "profile_memory": True}], ids=["plain", "shapes and memory"])
def test_forked_workers_come_through_a_profile_of_operators(more):
    loop = Loop(workers=2)
    with hr.profile(["cpu"], source="engine", **more) as profile:
        for _ in range(2):
            for inputs, labels in loop.loader:
                loop.step(inputs, labels)
                profile.step()
    rows = {row.name: row.calls for row in profile.key_averages()}
    assert rows["Optimizer.step#SGD.step"] == 2 * STEPS and profile.trace.histogram("profiler_step")["count"] == 2 * STEPS


@pytest.mark.engine
def test_a_profile_of_chosen_names_has_these_operators_and_its_steps_alone():
    loop = Loop()
    inputs, labels = loop.data[:8]
    with hr.profile(["cpu"], names=["aten::addmm", "Optimizer.*"]) as profile:
        for _ in range(STEPS):
            loop.step(inputs, labels)
            profile.step()
    rows = {row.name: row.calls for row in profile.key_averages()}
    assert rows == {"aten::addmm": STEPS, "Optimizer.step#SGD.step": STEPS, "Optimizer.zero_grad#SGD.zero_grad": STEPS}
    assert profile.step_histogram()["count"] == STEPS
    assert profile.explain()["names"]["applied"] == '["aten::addmm", "Optimizer.*"]'
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted a window with every operator, found one of chosen names"):
        profile.diagnose(8)


@pytest.mark.engine
def test_a_profile_of_every_third_step_has_the_operators_of_these_alone():
    loop = Loop()
    inputs, labels = loop.data[:8]
    with hr.profile(["cpu"], every_steps=3) as profile:
        for _ in range(STEPS):
            loop.step(inputs, labels)
            profile.step()
    rows = {row.name: row.calls for row in profile.key_averages()}
    assert rows["Optimizer.step#SGD.step"] == STEPS // 3 == profile.step_histogram()["count"]


def test_of_torchs_profiler_no_choice_is_in_force_and_the_profile_says_so():
    profile = hr.profile(["cpu"], source="torch", every_steps=3)
    assert profile.explain()["every_steps"] == {"requested": "3", "applied": "1",
                                                "reason": "torch.profiler records all of a window's steps"}
    with profile:
        torch.ones(3)
    with pytest.raises(hr.errors.InvalidArgumentError, match="step_histogram: wanted a window that headrace's engine recorded"):
        profile.step_histogram()
