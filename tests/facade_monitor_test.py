"""performance_optimization.PerformanceMonitor and the rules of bottlenecks, as published examples use them."""

import json
import logging
import math

import pytest
from own_python import run_python
from performance_optimization._bottlenecks import find_bottlenecks
from performance_optimization._performance_monitor import PerformanceMonitor
from planted_loop import Clock


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def monitor(here):
    clock = Clock()
    one = PerformanceMonitor(clock=clock, system_s=0)
    one.clock = clock
    yield one
    one.close()


def test_the_example_of_recorded_metrics_writes_event_files_where_it_says(here):  # EX-002-14
    performance_monitor = PerformanceMonitor()
    performance_monitor.record_metrics(step=100, metrics={"training_loss": 0.5, "validation_accuracy": 0.9})
    performance_monitor.close()
    (path,) = (here / "runs" / "performance_optimization").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    content = path.read_bytes()
    assert b"training_loss" in content and b"validation_accuracy" in content
    assert performance_monitor.get_metrics(100)["training_loss"] == 0.5


def test_the_example_of_a_summary_has_the_average_step_time(monitor):  # EX-002-13
    for step in range(3):
        monitor.record_metrics(step=step, metrics={"loss": 1.0})
        monitor.clock.now += 0.02
    performance_summary = monitor.get_performance_summary()
    assert f"Average step time: {performance_summary['average_step_time']:.3f}s" == "Average step time: 0.020s"


def test_the_example_of_a_report_is_logged_without_arguments(monitor, caplog):  # EX-002-15
    monitor.record_metrics(step=1, metrics={"step_time": 0.25})
    with caplog.at_level(logging.INFO, "performance_optimization"):
        report = monitor.log_performance_report()
    (record,) = [record for record in caplog.records if record.name == "performance_optimization"]
    assert record.getMessage() == report and record.performance_report["average_step_time"] == 0.25
    for part in ("steps: 1 in 0.250 s", "average step time: 0.250000 s", "memory: ", "GPU utilization: unavailable", "tensorboard: "):
        assert part in report


def test_fifty_steps_of_20_ms_are_20_ms_on_average(monitor):
    for step in range(51):
        monitor.record_metrics(step, {"loss": 1.0})
        monitor.clock.now += 0.020
    summary = monitor.get_performance_summary()
    assert summary["total_steps"] == 50
    assert summary["average_step_time"] == pytest.approx(0.020)
    assert summary["step_time"]["p99"] == pytest.approx(0.020)


def test_a_record_each_tenth_step_still_tells_the_time_of_one(monitor):
    for step in range(0, 101, 10):
        monitor.record_metrics(step, {"loss": 1.0})
        monitor.clock.now += 0.2
    summary = monitor.get_performance_summary()
    assert summary["total_steps"] == 100 and summary["average_step_time"] == pytest.approx(0.020)


def test_values_come_back_by_step_and_join_those_of_the_same_step(monitor):
    monitor.record_metrics(1, {"a": 1, "b": 2})
    monitor.record_metrics(1, {"c": 3})
    monitor.record_metrics(2, {"a": 4})
    assert {name: value for name, value in monitor.get_metrics(1).items() if "/" not in name} == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert sorted(monitor.get_metrics()) == [1, 2]
    assert monitor.get_metrics(3) == {}


# In a process of its own: in this one, threads of earlier tests may give memory back at any moment.
SPIKE = """
import json, time
from performance_optimization._performance_monitor import PerformanceMonitor

monitor = PerformanceMonitor(system_s=0)
held = []
for step in range(40):
    if step == 30:
        held.append(b"x" * 200_000_000)
        time.sleep(0.05)
        held.clear()
    monitor.record_metrics(step, {"loss": 1.0})
peaks = [monitor.get_metrics(step).get("performance/memory_peak_bytes") for step in range(40)]
print(json.dumps({"peaks": peaks, "memory": monitor.get_performance_summary()["memory"]}))
monitor.close()
"""


def test_a_spike_of_memory_is_in_its_step(here):
    done = run_python("-c", SPIKE, cwd=here)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    peaks, memory = found["peaks"], found["memory"]
    if peaks[0] is None:  # A system that does not tell.
        assert memory is None
        return
    assert peaks[30] > peaks[29] + 150e6 and peaks[30] > peaks[32] + 150e6
    assert memory["peak"] == max(peaks) and memory["mean"] < memory["peak"] and memory["current"] < memory["peak"]


def test_a_slow_down_within_the_run_is_told(monitor):
    for step in range(600):
        monitor.record_metrics(step, {"step_time": 0.02 if step < 500 else 0.024})
    slowdown = monitor.get_performance_summary()["step_time"]["slowdown"]
    assert 500 <= slowdown["found_at"] < 600 and slowdown["ratio"] == pytest.approx(1.2)
    assert "steps take 1.20 times as long" in monitor.log_performance_report()


def test_text_and_json_of_the_report_say_the_same_and_json_has_no_nan(monitor):
    monitor.record_metrics(1, {"loss": math.nan, "step_time": 0.5})
    monitor.flush()
    report = json.loads(monitor.log_performance_report("json"), parse_constant=lambda text: pytest.fail(text))
    assert report["average_step_time"] == 0.5 and report["not_finite"] == 1 and report["recorded"] == 1
    assert report["gpu"]["available"] is False and report["gpu"]["reason"].startswith("unavailable: ")
    with pytest.raises(ValueError, match="wanted 'text' or 'json', found 'xml'"):
        monitor.log_performance_report("xml")


def test_before_the_first_step_the_time_is_unavailable_and_not_zero(monitor):
    summary = monitor.get_performance_summary()
    assert summary["average_step_time"] is None and summary["total_steps"] == 0 and summary["memory"] is None
    assert "average step time: unavailable" in monitor.log_performance_report()


def test_cleared_counts_begin_anew_and_the_configuration_stays(monitor):
    monitor.record_metrics(1, {"step_time": 9.0})
    monitor.clear_metrics()
    assert monitor.get_metrics() == {} and monitor.get_performance_summary()["total_steps"] == 0
    monitor.record_metrics(1, {"step_time": 0.5})
    summary = monitor.get_performance_summary()
    assert summary["average_step_time"] == 0.5
    assert [sink["applied"] for sink in summary["sinks"]] == ["runs/performance_optimization"]


def test_a_folder_without_room_for_events_leaves_the_run_alone(here):
    (here / "runs").write_text("a file where a folder would be")
    monitor = PerformanceMonitor(system_s=0)
    monitor.record_metrics(1, {"step_time": 0.5})
    monitor.close()
    summary = monitor.get_performance_summary()
    assert summary["average_step_time"] == 0.5
    assert summary["sinks"][0]["applied"] == "off" and "runs" in summary["sinks"][0]["reason"]


def test_what_is_no_metric_is_named(monitor):
    for step, metrics, message in [(-1, {}, "step: wanted"), (True, {}, "step: wanted"), (1, {"loss": "high"}, "metrics\\['loss'\\]: wanted"),
                                   (1, {"loss": "0.5"}, "wanted a number, found str"),
                                   (1, {"loss": None}, "wanted a number, found NoneType"), (1, [1.0], "wanted numbers by name")]:
        with pytest.raises(ValueError, match=message):
            monitor.record_metrics(step, metrics)
    assert monitor.get_metrics() == {}


# PROF-07.

HEALTHY = dict(data_loading_s=0.03, compute_s=0.1, memory_bytes=8e9, speeds=[100.0] * 30 + [75.0] * 10)


@pytest.mark.parametrize(("change", "code"), [
    ({}, None),  # Each figure at its limit: the mean of all speeds is 93.75, of which 0.8 is 75.
    ({"data_loading_s": 0.0300001}, "data_loading_slow"),
    ({"memory_bytes": 8e9 + 1}, "high_memory"),
    ({"speeds": [100.0] * 30 + [74.9] * 10}, "speed_degraded"),
])
def test_each_rule_holds_just_beyond_its_limit_and_alone(change, code):
    found = find_bottlenecks(**(HEALTHY | change))
    assert [one["code"] for one in found] == ([] if code is None else [code])
    assert all(one["sentence"] and one["advice"] for one in found)


def test_limits_can_be_set_and_unknown_ones_are_refused():
    assert find_bottlenecks(**HEALTHY, thresholds={"data_loading_ratio": 0.2, "memory_bytes": 7e9, "speed_ratio": 0.9}) != []
    assert find_bottlenecks(0.05, 0.1, None, [], thresholds={"data_loading_ratio": 0.6}) == []
    with pytest.raises(ValueError, match="thresholds: wanted data_loading_ratio, memory_bytes, speed_ratio, found 'speed'"):
        find_bottlenecks(**HEALTHY, thresholds={"speed": 1})
    with pytest.raises(ValueError, match="data_loading_s"):
        find_bottlenecks(-1.0, 0.1, None, [])


@pytest.mark.parametrize("name", ["data_loading_ratio", "memory_bytes", "speed_ratio"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), 2.0**63, "0.5", None, True])
def test_a_limit_outside_its_range_is_named_with_what_was_found(name, value):
    with pytest.raises(ValueError) as raised:
        find_bottlenecks(**HEALTHY, thresholds={name: value})
    assert str(raised.value) == f"thresholds: {name}: wanted a number of at least 0 and below 2^63, found {value!r}"
    assert find_bottlenecks(**HEALTHY, thresholds={name: {"data_loading_ratio": 0.3, "memory_bytes": 8e9, "speed_ratio": 0.8}[name]}) == []
