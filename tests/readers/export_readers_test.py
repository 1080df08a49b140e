"""What our exporters write, read by the programs that it is for: TensorBoard's loader, protobuf's own parser with Perfetto's
published messages, Prometheus's parser of its text. In an environment of its own: make check PARTS=frameworks."""

import json
import math

import numpy
import pytest
from export_probe import HISTOGRAM, events_of_a_killed_writer, probe, write_metrics
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

STEPS = [[{"name": "train.loss", "value": loss, "help": 'Mean of the "batch"\nand a \\.'},
          {"name": "gpu.power", "value": None, "labels": {"gpu": "0", "name": 'a "b" \\ \n'}, "unit": "watts"},
          {"name": "gpu.power", "value": 61.5 + step, "labels": {"gpu": "1", "name": 'a "b" \\ \n'}, "unit": "watts"},
          {"name": "data.read", "value": 1024 * step, "kind": "counter", "unit": "bytes"},
          {"name": "step.duration", "histogram": HISTOGRAM, "unit": "seconds"}]
         for step, loss in enumerate([0.1, "nan", "-inf"])]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    write_metrics(folder, STEPS)
    return folder


def array_of(tensor):
    """A TensorProto of float32: TensorBoard keeps one number as float_val, more as bytes."""
    if tensor.float_val:
        return numpy.array(tensor.float_val[0], numpy.float32)
    return numpy.frombuffer(tensor.tensor_content, numpy.float32).reshape([dim.size for dim in tensor.tensor_shape.dim])


def load(path):
    """(tag, step, wall time, value) of each point, as TensorBoard shows it; the file's version is left out."""
    return [(value.tag, event.step, event.wall_time, array_of(value.tensor))
            for event in EventFileLoader(str(path)).Load() for value in event.summary.value]


def test_tensorboard_loads_every_scalar_and_histogram(metrics):
    (path,) = metrics.glob("events.out.tfevents.*")
    points = load(path)
    losses = [(step, wall, value.item()) for tag, step, wall, value in points if tag == "train.loss"]
    assert [loss[:2] for loss in losses] == [(0, 1.7e9), (1, 1.7e9 + 1), (2, 1.7e9 + 2)]
    assert losses[0][2] == numpy.float32(0.1) and math.isnan(losses[1][2]) and losses[2][2] == -math.inf
    assert [value.item() for tag, _, _, value in points if tag == 'gpu.power/1/a "b" \\ \n'] == [61.5, 62.5, 63.5]
    assert not [tag for tag, *_ in points if tag.startswith("gpu.power/0")]
    histograms = [value for tag, _, _, value in points if tag == "step.duration"]
    assert len(histograms) == 3
    # Left edge, right edge, count: TensorBoard takes min and max as the outer edges.
    assert histograms[0].tolist() == [[0.25, 0.5, 3], [0.5, 1.5, 0], [1.5, 2.5, 2]]


def test_tensorboard_opens_a_file_cut_at_any_byte(metrics, tmp_path):
    (path,) = metrics.glob("events.out.tfevents.*")
    data = path.read_bytes()
    whole = len(load(path))
    seen = set()
    for size in range(0, len(data) + 1, 3):
        (tmp_path / "events").write_bytes(data[:size])
        seen.add(len(load(tmp_path / "events")))
    assert seen >= set(range(whole))


def test_tensorboard_reads_what_a_killed_writer_left(tmp_path):
    (tmp_path / "front").write_bytes(events_of_a_killed_writer(tmp_path)[:200_000])
    points = load(tmp_path / "front")
    assert [(step, value.item()) for _, step, _, value in points] == [(step, step) for step in range(len(points))]
    assert len(points) > 100


def test_prometheus_parses_every_sample(metrics):
    families = {family.name: family for family in text_string_to_metric_families((metrics / "metrics.prom").read_text())}
    assert {name: family.type for name, family in families.items()} == {
        "headrace_train_loss": "gauge", "headrace_gpu_power_watts": "gauge", "headrace_data_read_bytes": "counter",
        "headrace_step_duration_seconds": "histogram"}
    assert families["headrace_train_loss"].documentation == 'Mean of the "batch"\nand a \\.'
    (power,) = families["headrace_gpu_power_watts"].samples  # What is unavailable has none.
    assert power.labels == {"gpu": "1", "name": 'a "b" \\ \n'} and power.value == 63.5
    assert families["headrace_train_loss"].samples[0].value == -math.inf
    assert [(one.name, one.value) for one in families["headrace_data_read_bytes"].samples] == [("headrace_data_read_bytes_total", 2048)]
    buckets = {(one.name.rpartition("_")[2], one.labels.get("le")): one.value for one in families["headrace_step_duration_seconds"].samples}
    assert buckets == {("bucket", "0.5"): 3, ("bucket", "1.5"): 3, ("bucket", "+Inf"): 5, ("sum", None): 7.5, ("count", None): 5}


# Fields of google/perfetto's protos/perfetto/trace that an importer reads: (name, number, type).
MESSAGES = {
    "Trace": [("packet", 1, "*TracePacket")],
    "TracePacket": [("clock_snapshot", 6, "ClockSnapshot"), ("timestamp", 8, "uint64"), ("trusted_packet_sequence_id", 10, "uint32"),
                    ("track_event", 11, "TrackEvent"), ("interned_data", 12, "InternedData"), ("sequence_flags", 13, "uint32"),
                    ("timestamp_clock_id", 58, "uint32"), ("trace_packet_defaults", 59, "TracePacketDefaults"),
                    ("track_descriptor", 60, "TrackDescriptor")],
    "ClockSnapshot": [("clocks", 1, "*Clock"), ("primary_trace_clock", 2, "int32")],
    "Clock": [("clock_id", 1, "uint32"), ("timestamp", 2, "uint64"), ("is_incremental", 3, "bool")],
    "TracePacketDefaults": [("track_event_defaults", 11, "TrackEventDefaults"), ("timestamp_clock_id", 58, "uint32")],
    "TrackEventDefaults": [("track_uuid", 11, "uint64")],
    "InternedData": [("event_categories", 1, "*Interned"), ("event_names", 2, "*Interned"), ("debug_annotation_names", 3, "*Interned")],
    "Interned": [("iid", 1, "uint64"), ("name", 2, "string")],
    "TrackDescriptor": [("uuid", 1, "uint64"), ("name", 2, "string"), ("process", 3, "ProcessDescriptor"), ("thread", 4, "ThreadDescriptor"),
                        ("parent_uuid", 5, "uint64"), ("counter", 8, "CounterDescriptor")],
    "ProcessDescriptor": [("pid", 1, "int32"), ("process_name", 6, "string")],
    "ThreadDescriptor": [("pid", 1, "int32"), ("tid", 2, "int32"), ("thread_name", 5, "string")],
    "CounterDescriptor": [("type", 1, "int32")],
    "TrackEvent": [("category_iids", 3, "*uint64"), ("debug_annotations", 4, "*DebugAnnotation"), ("type", 9, "int32"),
                   ("name_iid", 10, "uint64"), ("track_uuid", 11, "uint64"), ("counter_value", 30, "int64"), ("flow_ids", 47, "*fixed64"),
                   ("terminating_flow_ids", 48, "*fixed64")],
    "DebugAnnotation": [("name_iid", 1, "uint64"), ("int_value", 4, "int64")],
}


@pytest.fixture(scope="module")
def trace_message():
    file = descriptor_pb2.FileDescriptorProto(name="perfetto_subset.proto", package="perfetto", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, members in MESSAGES.items():
        message = file.message_type.add(name=name)
        for member, number, kind in members:
            field = message.field.add(name=member, number=number, label=kinds.LABEL_REPEATED if kind[0] == "*" else kinds.LABEL_OPTIONAL)
            kind = kind.lstrip("*")
            if kind in MESSAGES:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".perfetto.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.Trace"))


def test_protobuf_parses_a_perfetto_trace_whole_and_without_unknown_fields(trace_message, tmp_path):
    events = [{"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "main"}}]
    for i in range(50):
        events.append({"ph": "X", "pid": 1, "tid": 0, "ts": 10 * i, "dur": 9, "name": "step", "cat": "step", "args": {"value": i - 2}})
        events.append({"ph": "C", "pid": 1, "tid": 0, "ts": 10 * i + 1, "name": "fill", "cat": "mark", "args": {"value": -i}})
    facts = {"format": "headrace-trace", "version": 1, "dropped": 4, "duration_ns": 10**6, "counters": {"bytes": 5}}
    (tmp_path / "in.json").write_text(json.dumps({"displayTimeUnit": "ns", "otherData": facts, "traceEvents": events}))
    probe("trace", tmp_path / "in.json", "perfetto", tmp_path / "out", "step", "step")
    trace = trace_message.FromString((tmp_path / "out").read_bytes())
    # What a field that the messages do not have would add.
    trace.DiscardUnknownFields()
    assert trace.SerializeToString() and trace.ByteSize() == (tmp_path / "out").stat().st_size

    tracks = {packet.track_descriptor.uuid: packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")}
    assert {track.thread.thread_name for track in tracks.values()} == {"", "main"}
    counters = {uuid: track.name for uuid, track in tracks.items() if track.HasField("counter")}
    assert sorted(counters.values()) == ["bytes", "dropped events", "fill"]
    now, begins, ends, values = {}, [], [], {name: [] for name in counters.values()}
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.HasField("clock_snapshot"):
            now[sequence] = next(clock.timestamp for clock in packet.clock_snapshot.clocks if clock.is_incremental)
        if not packet.HasField("track_event"):
            continue
        now[sequence] += packet.timestamp
        event = packet.track_event
        if event.type == 1:
            begins.append((now[sequence], sum(one.int_value for one in event.debug_annotations)))
        elif event.type == 2:
            ends.append(now[sequence])
        else:
            values[counters[event.track_uuid]].append((now[sequence], event.counter_value))
    assert begins == [(10_000 * i, i - 2) for i in range(50)]
    assert ends == [10_000 * i + 9_000 for i in range(50)]
    assert values == {"fill": [(10_000 * i + 1_000, -i) for i in range(50)], "bytes": [(10**6, 5)], "dropped events": [(10**6, 4)]}
