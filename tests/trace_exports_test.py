"""Exports of a trace and of metrics, each read by what is not ours: json, csv, a protobuf reader by the wire format with the field
numbers that Perfetto and TensorFlow publish. readers/export_readers_test.py has TensorBoard, protobuf and Prometheus read them."""

import collections
import csv
import json
import os
import struct
import threading
import time

import headrace as hr
import pytest
from export_probe import HISTOGRAM, events_of_a_killed_writer, probe, write_metrics
from protobuf_fields import field, fields, fixed64, signed

FORMS = ["chrome", "perfetto", "folded", "csv", "jsonl"]


@pytest.fixture(scope="module")
def trace():
    def load():
        for _ in range(20):
            with hr.span("load"):
                with hr.span("read"):
                    time.sleep(0.0002)

    with hr.Trace() as recorded:
        thread = threading.Thread(target=load)
        thread.start()
        for _ in range(30):
            with hr.span("step"):
                with hr.span("forward"):
                    pass
                with hr.span("backward"):
                    pass
        thread.join()
        with pytest.raises(KeyError), hr.span("fails"):
            raise KeyError
    return recorded


@pytest.fixture(scope="module")
def events(trace, tmp_path_factory):
    """The spans as Chrome's JSON has them: (name, thread's name, begin in ns, length in ns)."""
    (path,) = trace.write(tmp_path_factory.mktemp("chrome") / "trace.json")
    read = json.loads(path.read_text())["traceEvents"]
    threads = {event["tid"]: event["args"]["name"] for event in read if event["name"] == "thread_name"}
    return sorted((event["name"], threads[event["tid"]], round(event["ts"] * 1000), round(event["dur"] * 1000))
                  for event in read if event["ph"] == "X")


def test_every_form_is_written_to_the_path_that_was_given(trace, tmp_path):
    for form in FORMS:
        assert trace.write(tmp_path / form, form) == [tmp_path / form]
        assert (tmp_path / form).stat().st_size > 100
    assert sorted(os.listdir(tmp_path)) == sorted(FORMS)  # Nothing aside is left.


def test_a_form_or_folder_that_is_not_there_is_named(trace, tmp_path):
    with pytest.raises(hr.errors.InvalidArgumentError, match='found "perfeto"; did you mean perfetto'):
        trace.write(tmp_path / "x", "perfeto")
    for form in FORMS:
        with pytest.raises(hr.Error, match="nowhere"):
            trace.write(tmp_path / "nowhere" / "x", form)
    assert not os.listdir(tmp_path)


def test_csv_has_every_event_with_its_times(trace, events, tmp_path):
    trace.write(tmp_path / "events.csv", "csv")
    with (tmp_path / "events.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted((row["name"], row["thread"], int(row["begin_ns"]), int(row["duration_ns"]))
                  for row in rows if row["kind"] == "span") == events
    (raised,) = [row for row in rows if row["name"] == "fails: exception"]
    assert raised["kind"] == "gauge" and raised["duration_ns"] == ""
    assert rows[-1]["name"] == "dropped events" and rows[-1]["value"] == "0"


def test_json_lines_have_every_event_with_its_times(trace, events, tmp_path):
    trace.write(tmp_path / "events.jsonl", "jsonl")
    first, *rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert first["format"] == "headrace-events" and first["version"] == 1 and first["dropped"] == 0
    assert sorted((row["name"], row["thread"], row["begin_ns"], row["duration_ns"])
                  for row in rows if row["kind"] == "span") == events


def test_folded_stacks_add_up_to_the_outermost_spans(trace, events, tmp_path):
    trace.write(tmp_path / "stacks", "folded")
    stacks = {}
    for line in (tmp_path / "stacks").read_text().splitlines():
        stack, _, ns = line.rpartition(" ")
        stacks[stack] = int(ns)
    loader = next(thread for name, thread, _, _ in events if name == "load")
    lasted = collections.Counter()
    for name, _, _, ns in events:
        lasted[name] += ns
    assert stacks[f"{loader};load;read"] == lasted["read"]
    assert stacks[f"{loader};load"] + stacks[f"{loader};load;read"] == lasted["load"]
    steps = sum(ns for stack, ns in stacks.items() if ";step" in stack)
    assert steps == lasted["step"]


def read_perfetto(path):
    """Spans as (name, track's name, begin, length) and flows as {id: [(name, kind)]}, as Perfetto's protos say that they are read."""
    tracks, spans, flows = {}, [], collections.defaultdict(list)
    sequences = collections.defaultdict(dict)
    for number, packet in fields(path.read_bytes()):
        assert number == 1
        state = sequences[field(packet, 10)]
        if descriptor := field(packet, 60):
            thread = field(descriptor, 4)
            tracks[field(descriptor, 1)] = (field(thread, 5) if thread else field(descriptor, 2, b"process")).decode()
        if snapshot := field(packet, 6):
            assert field(snapshot, 2) == 3  # MONOTONIC is the trace's clock.
            clocks = {field(clock, 1): field(clock, 2) for number, clock in fields(snapshot) if number == 1}
            state.update(now=clocks[64], names={}, categories={}, open=collections.defaultdict(list), base=clocks[3])
        for number, entry in fields(field(packet, 12, b"")):
            if number == 2:
                state["names"][field(entry, 1)] = field(entry, 2).decode()
        if defaults := field(packet, 59):
            assert field(defaults, 58) == 64
            state["track"] = field(field(defaults, 11), 11)
        if event := field(packet, 11):
            state["now"] += field(packet, 8)
            at = state["now"] - state["base"]
            track = field(event, 11, state["track"])
            kind = field(event, 9)
            if kind == 1:
                name = state["names"][field(event, 10)]
                state["open"][track].append((name, at))
                for number, value in fields(event):
                    if number in (47, 48):
                        flows[fixed64(value)].append((name, number))
            elif kind == 2:
                name, begin = state["open"][track].pop()
                spans.append((name, tracks[track], begin, at - begin))
            elif kind == 4:
                spans.append((tracks[track], None, at, signed(field(event, 30))))
    assert not any(stack for state in sequences.values() for stack in state.get("open", {}).values())
    return spans, dict(flows)


def test_perfetto_has_every_span_with_its_times(trace, events, tmp_path):
    trace.write(tmp_path / "trace.pftrace", "perfetto")
    spans, _ = read_perfetto(tmp_path / "trace.pftrace")
    assert sorted(span for span in spans if span[1]) == events
    gauges = [span for span in spans if span[1] is None]
    assert ("fails: exception", None) in [span[:2] for span in gauges]


def chrome_trace(path, spans):
    """A trace of ours with these spans: (thread, name, begin, end, value)."""
    threads = sorted({span[0] for span in spans})
    lines = [{"ph": "M", "pid": 1, "tid": i, "name": "thread_name", "args": {"name": name}} for i, name in enumerate(threads)]
    for thread, name, begin, end, value in sorted(spans, key=lambda span: (span[2], -span[3])):
        lines.append({"ph": "X", "pid": 1, "tid": threads.index(thread), "ts": begin / 1000, "dur": (end - begin) / 1000, "name": name,
                      "cat": "work", "args": {"value": value}})
    facts = {"format": "headrace-trace", "version": 1, "dropped": 0, "duration_ns": 10**6, "counters": {"bytes": 5}}
    path.write_text(json.dumps({"displayTimeUnit": "ns", "otherData": facts, "traceEvents": lines}))
    return path


OVERLAPPING = [("main", "wait", 100, 300, 1), ("main", "use", 200, 500, 2), ("main", "use", 600, 700, 1), ("loader", "load", 0, 90, 1),
               ("loader", "load", 90, 190, 2)]


def test_spans_that_overlap_lie_on_tracks_on_which_spans_nest(tmp_path):
    """chrome://tracing and Perfetto draw nonsense where two spans of a track overlap without one holding the other."""
    given = chrome_trace(tmp_path / "in.json", OVERLAPPING)
    probe("trace", given, "perfetto", tmp_path / "out.pftrace")
    spans, _ = read_perfetto(tmp_path / "out.pftrace")
    assert ("wait", "main", 100, 200) in spans and ("use", "main (2)", 200, 300) in spans and ("use", "main", 600, 100) in spans
    probe("trace", given, "chrome", tmp_path / "out.json")
    read = [event for event in json.loads((tmp_path / "out.json").read_text())["traceEvents"] if event["ph"] == "X"]
    ends = collections.defaultdict(list)
    for event in read:
        open_ends = ends[event["tid"]]
        while open_ends and open_ends[-1] <= event["ts"] + 1e-6:
            open_ends.pop()
        assert not open_ends or event["ts"] + event["dur"] <= open_ends[-1] + 1e-6, event
        open_ends.append(event["ts"] + event["dur"])
    assert len(read) == len(OVERLAPPING)


def test_flows_go_from_what_was_made_to_its_use(tmp_path):
    given = chrome_trace(tmp_path / "in.json", OVERLAPPING)
    probe("trace", given, "perfetto", tmp_path / "out.pftrace", "load", "use")
    _, flows = read_perfetto(tmp_path / "out.pftrace")
    assert [sorted(flow) for flow in flows.values()] == [[("load", 47), ("use", 48)]] * 2
    probe("trace", given, "chrome", tmp_path / "out.json", "load", "use")
    read = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    spans = {(event["tid"], event["ts"]): event for event in read if event["ph"] == "X"}
    for source in (event for event in read if event["ph"] == "s"):
        (target,) = [event for event in read if event["ph"] == "f" and event["id"] == source["id"]]
        made, used = spans[source["tid"], source["ts"]], spans[target["tid"], target["ts"]]
        assert (made["name"], used["name"]) == ("load", "use") and made["args"] == used["args"]
        assert target["bp"] == "e" and used["ts"] >= made["ts"]


def test_a_span_takes_at_most_30_bytes(tmp_path):
    spans = [("main", f"part {i % 5}", 2_000_000 * i, 2_000_000 * i + 1_000_000, 0) for i in range(2000)]
    probe("trace", chrome_trace(tmp_path / "in.json", spans), "perfetto", tmp_path / "out.pftrace")
    assert len(read_perfetto(tmp_path / "out.pftrace")[0]) == 2001  # And the counter.
    assert (tmp_path / "out.pftrace").stat().st_size <= 30 * 2000 + 500  # What opens the file.


# The metrics of three steps: numbers that float32 holds, what is unavailable, NaN, infinities, labels, a counter, a histogram.
STEPS = [[{"name": "train.loss", "value": loss, "help": "Mean of the batch."},
          {"name": "gpu.power", "value": None, "labels": {"gpu": "0"}, "unit": "watts"},
          {"name": "gpu.power", "value": 61.5 + step, "labels": {"gpu": "1"}, "unit": "watts"},
          {"name": "data.read", "value": 1024 * step, "kind": "counter", "unit": "bytes"},
          {"name": "step.duration", "histogram": HISTOGRAM, "unit": "seconds"}]
         for step, loss in enumerate([0.5, "nan", "-inf"])]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    write_metrics(folder, STEPS)
    return folder


def test_metrics_as_csv_and_json_lines_are_what_was_given(metrics):
    with (metrics / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    values = collections.defaultdict(list)
    for row in rows:
        values[row["metric"], row["labels"]].append((row["wall_time"], int(row["step"]), row["value"]))
    assert values["train.loss", ""] == [("1700000000.000000000", 0, "0.5"), ("1700000001.000000000", 1, "nan"),
                                        ("1700000002.000000000", 2, "-inf")]
    assert [value for _, _, value in values["gpu.power", "gpu=0"]] == ["", "", ""]
    assert [float(value) for _, _, value in values["gpu.power", "gpu=1"]] == [61.5, 62.5, 63.5]
    assert [value for _, _, value in values["step.duration.count", ""]] == ["5", "5", "5"]

    lines = [json.loads(line) for line in (metrics / "metrics.jsonl").read_text().splitlines()]
    losses = [line for line in lines if line["metric"] == "train.loss"]
    assert [(line["value"], line.get("text")) for line in losses] == [(0.5, None), (None, "nan"), (None, "-inf")]
    assert [line["value"] for line in lines if line["labels"] == {"gpu": "0"}] == [None, None, None]
    assert {key: value for key, value in HISTOGRAM.items() if key != "sum_of_squares"} == lines[4]["histogram"]
    assert {line["version"] for line in lines} == {1}


def test_metrics_as_otlp_are_the_published_json(metrics):
    """Names and types of opentelemetry-proto's metrics.proto in its JSON encoding."""
    (resource,) = json.loads((metrics / "metrics.otlp.json").read_text())["resourceMetrics"]
    assert resource["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "export_probe"}}]
    (scope,) = resource["scopeMetrics"]
    found = {metric["name"]: metric for metric in scope["metrics"]}
    assert list(found) == ["train.loss", "gpu.power", "data.read", "step.duration"]
    for metric in found.values():
        (kind,) = {"gauge", "sum", "histogram"} & metric.keys()
        for point in metric[kind]["dataPoints"]:
            assert point["timeUnixNano"] == "1700000002000000000"
    assert found["train.loss"]["gauge"]["dataPoints"][0]["asDouble"] == "-Infinity"
    missing, power = found["gpu.power"]["gauge"]["dataPoints"]
    assert missing["flags"] == 1 and "asDouble" not in missing
    assert power["asDouble"] == 63.5 and power["attributes"] == [{"key": "gpu", "value": {"stringValue": "1"}}]
    assert found["data.read"]["sum"]["isMonotonic"] is True and found["data.read"]["sum"]["aggregationTemporality"] == 2
    assert found["data.read"]["unit"] == "By" and found["data.read"]["sum"]["dataPoints"][0]["asDouble"] == 2048
    point = found["step.duration"]["histogram"]["dataPoints"][0]
    assert point["bucketCounts"] == ["3", "0", "2"] and point["explicitBounds"] == [0.5, 1.5] and point["count"] == "5"


def crc32c(data):
    """Bit by bit, RFC 3720."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The payloads of the whole TFRecords at the front; the rest must be the start of one more."""
    found = []
    while len(data) >= 12:
        size, crc = struct.unpack_from("<QI", data)
        assert crc == masked(data[:8])
        if len(data) < size + 16:
            break
        payload = data[12:12 + size]
        assert struct.unpack_from("<I", data, 12 + size)[0] == masked(payload)
        found.append(payload)
        data = data[size + 16:]
    return found


def scalars(payloads):
    """(tag, step, value) of events with a simple_value."""
    found = []
    for payload in payloads:
        value = field(field(payload, 5, b""), 1, b"")
        if number := field(value, 2):
            found.append((field(value, 1).decode(), signed(field(payload, 2)), struct.unpack("<f", number)[0]))
    return found


def test_checksums_and_values_of_an_event_file_are_right_whatever_byte_it_is_cut_at(metrics):
    (path,) = metrics.glob("events.out.tfevents.*")
    data = path.read_bytes()
    whole = records(data)
    assert field(whole[0], 3) == b"brain.Event:2"
    assert [value for tag, _, value in scalars(whole) if tag == "gpu.power/1"] == [61.5, 62.5, 63.5]
    assert not [tag for tag, _, _ in scalars(whole) if tag == "gpu.power/0"]  # Unavailable is no 0.
    assert [(step, value) for tag, step, value in scalars(whole) if tag == "data.read"] == [(0, 0), (1, 1024), (2, 2048)]
    ends = [sum(len(payload) + 16 for payload in whole[:count + 1]) for count in range(len(whole))]
    for size in range(0, len(data), 7):
        assert len(records(data[:size])) == sum(end <= size for end in ends)


def test_a_killed_writer_leaves_a_file_of_whole_records(tmp_path):
    found = scalars(records(events_of_a_killed_writer(tmp_path)[:60_000]))
    assert [(step, value) for _, step, value in found] == [(step, step) for step in range(len(found))]
    assert len(found) > 100
