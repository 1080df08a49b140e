"""bench/always_on adds up and judges what is always on. Figures are made by hand, but for one run of two pairs, of which no time is judged."""

import json

import pytest
from bench_scripts import script

TOLD = """201 repeats of 50000 calls each
span, nothing records                      0.63 ns   (5 % 0.33, 95 % 0.71)
span, a trace records                     36.62 ns   (5 % 34.99, 95 % 60.08)
counter, a trace records                   0.49 ns   (5 % 0.45, 95 % 0.70)
"""


@pytest.fixture(scope="module")
def bench():
    return script("always_on")


@pytest.fixture(scope="module")
def cost(bench):
    import always_on.cost

    return always_on.cost


@pytest.mark.parametrize("monitor_ns, is_met", [(8_000, True), (8_001, False)])
def test_parts_add_up_and_a_thousandth_of_a_step_is_the_most(cost, monitor_ns, is_met):
    counted = cost.Counted(events=25.0, event_ns=40.0, record_ns=1000.0, monitor_ns=monitor_ns, step_s=0.01)
    assert counted.ns == 2000 + monitor_ns and counted.is_met is is_met
    assert str(counted).startswith("counted: 25.0 events a step x 40.0 ns + 1,000 ns of the loop's call + ")
    assert str(counted).endswith("met" if is_met else "MISSED")


@pytest.mark.parametrize("high, is_met", [(0.0099, True), (0.01, False), (0.2, False)])
def test_what_is_measured_is_judged_by_the_intervals_upper_end(cost, high, is_met):
    line, found = cost.measured([0.0] * 800 + [high] * 800)
    assert found is is_met and line.startswith("measured: ") and line.endswith("met" if is_met else "MISSED") and "1,600 pairs" in line


def test_a_spans_nanoseconds_are_those_that_trace_bench_tells(cost):
    assert cost.span_ns(TOLD) == 36.62
    with pytest.raises(ValueError, match="trace_bench printed no line"):
        cost.span_ns("span, nothing records                      0.63 ns   (5 % 0.33, 95 % 0.71)\n")


def test_spans_and_gauges_count_and_what_tells_of_the_trace_does_not(cost):
    kinds = ["trace", "span", "span", "gauge", "counter"]
    assert cost.events_in(json.dumps({"kind": kind, "name": "a"}) for kind in kinds) == 3


def test_cpu_time_is_that_of_the_threads_that_are_named(cost, tmp_path):
    for name, ns in (("10", 1_000), ("11", 20_000), ("12", 300_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(f"{ns} 7 3\n")
    assert cost.threads(tmp_path) == {"10", "11", "12"} and cost.cpu_ns(["10", "12"], tmp_path) == 301_000


def test_a_run_has_blocks_of_every_kind_and_counts_their_events(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "WARM_UP", 2)
    monkeypatch.setattr(bench, "CALLS", 10)
    found, profiled, events, record_ns, monitor_ns = bench.run_of(2, 1, tmp_path)
    assert {kind: len(times) for kind, times in found.items()} == {bench.ON: 2, bench.OFF: 2} and len(profiled) == 1
    assert len(events) == 2 and min(events) >= 4 * bench.BLOCK  # Each step has its own, its forward, backward and update.
    assert record_ns > 0 and monitor_ns >= 0
    rows = (tmp_path / "metrics.csv").read_text().splitlines()
    assert sum(",step_s," in row for row in rows) == 10 + 2 * bench.BLOCK  # What blocks that are off hand over: nothing.
