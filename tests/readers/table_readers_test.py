"""The tables that our exporters write, read by pandas. In an environment of its own: make check PARTS=frameworks."""

import math

import pandas
import pytest
from export_probe import HISTOGRAM

LABEL = 'a "b" \\ \n'
OF_HISTOGRAM = {"count": 5, "sum": 7.5, "min": 0.25, "max": 2.5}
SPANS = 50


@pytest.fixture(scope="module")
def lines(metrics):
    return pandas.read_json(metrics / "metrics.jsonl", lines=True, convert_dates=False, dtype=False, precise_float=True)


def is_same(found, wanted):
    return len(found) == len(wanted) and all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(found, wanted))


def test_pandas_reads_every_figure_of_metrics_as_csv(metrics):
    table = pandas.read_csv(metrics / "metrics.csv", float_precision="round_trip")
    assert list(table.columns) == ["wall_time", "step", "metric", "labels", "value"] and len(table) == 3 * 8
    assert (table.wall_time == 1.7e9 + table.step).all()
    values = {key: list(rows.value) for key, rows in table.fillna({"labels": ""}).groupby(["metric", "labels"])}
    assert {key: rows for key, rows in values.items() if key[0] not in ("train.loss", "gpu.power")} == {
        ("data.read", ""): [0, 1024, 2048], **{(f"step.duration.{part}", ""): [value] * 3 for part, value in OF_HISTOGRAM.items()}}
    assert is_same(values["train.loss", ""], [0.1, math.nan, -math.inf])
    assert is_same(values["gpu.power", f"gpu=0;name={LABEL}"], [math.nan] * 3)  # Unavailable.
    assert values["gpu.power", f"gpu=1;name={LABEL}"] == [61.5, 62.5, 63.5]


def test_pandas_reads_every_figure_of_metrics_as_json_lines(lines):
    assert set(lines.version) == {1} and (lines.wall_time == 1.7e9 + lines.step).all() and len(lines) == 3 * 5
    of_gpu = lines[lines.metric == "gpu.power"]
    assert list(of_gpu.labels) == [{"gpu": number, "name": LABEL} for _ in range(3) for number in "01"]
    assert is_same(list(of_gpu.value.astype(float)), [value for step in range(3) for value in (math.nan, 61.5 + step)])
    assert list(lines[lines.metric == "data.read"].value) == [0, 1024, 2048]
    losses = lines[lines.metric == "train.loss"]
    assert is_same(list(losses.value.astype(float)), [0.1, math.nan, math.nan]) and list(losses.text[1:]) == ["nan", "-inf"]
    buckets = {name: value for name, value in HISTOGRAM.items() if name != "sum_of_squares"}
    assert list(lines[lines.metric == "step.duration"].histogram) == [buckets] * 3


def read_trace(folder, form):
    if form == "csv":
        return pandas.read_csv(folder / form)
    table = pandas.read_json(folder / form, lines=True)
    head = table.iloc[0]
    assert (head.kind, head.format, head.version, head.duration_ns, head.dropped) == ("trace", "headrace-events", 1, 10**6, 4)
    return table[1:]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_pandas_reads_every_event_of_a_trace(trace, form):
    table = read_trace(trace, form)
    spans, gauges, counters = (table[table.kind == kind] for kind in ("span", "gauge", "counter"))
    assert len(spans) == len(gauges) == SPANS and len(spans) + len(gauges) + len(counters) == len(table)
    assert set(spans.name) == {"step"} and set(spans.thread) == {"main"} and set(spans.duration_ns) == {9000}
    assert list(spans.begin_ns) == [10_000 * i for i in range(SPANS)] and list(spans.value) == [i - 2 for i in range(SPANS)]
    assert set(gauges.name) == {"fill"} and gauges.duration_ns.isna().all()
    assert list(gauges.begin_ns) == [10_000 * i + 1_000 for i in range(SPANS)] and list(gauges.value) == [-i for i in range(SPANS)]
    totals = dict(zip(counters.name, counters.value, strict=True))
    assert totals == {"bytes": 5, **({"dropped events": 4} if form == "csv" else {})}
