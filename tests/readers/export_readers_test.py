"""What our exporters write, read by the programs that it is for: TensorBoard's loader, W&B's reader of TensorBoard's events, Prometheus's
own tool and its parser of its text, protobuf's parser with the messages that Perfetto publishes. In an environment of its own: make check
PARTS=frameworks."""

import math
import re
import subprocess
from pathlib import Path

import numpy
import pytest
from export_probe import events_of_a_killed_writer
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from wandb.integration.tensorboard.log import tf_summary_to_dict

ROOT = Path(__file__).resolve().parents[2]
WALL_S = 1.7e9  # Of step 0; a second a step.
LABEL = 'a "b" \\ \n'


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
    assert [loss[:2] for loss in losses] == [(step, WALL_S + step) for step in range(3)]
    assert losses[0][2] == numpy.float32(0.1) and math.isnan(losses[1][2]) and losses[2][2] == -math.inf
    assert [value.item() for tag, _, _, value in points if tag == f"gpu.power/1/{LABEL}"] == [61.5, 62.5, 63.5]
    assert not [tag for tag, *_ in points if tag.startswith("gpu.power/0")]
    histograms = [value for tag, _, _, value in points if tag == "step.duration"]
    assert len(histograms) == 3
    # Left edge, right edge, count: TensorBoard takes min and max as the outer edges.
    assert histograms[0].tolist() == [[0.25, 0.5, 3], [0.5, 1.5, 0], [1.5, 2.5, 2]]


def test_tensorboard_opens_a_file_cut_at_any_byte(metrics, tmp_path):
    (path,) = metrics.glob("events.out.tfevents.*")
    data = path.read_bytes()
    whole = [(tag, step, value.tobytes()) for tag, step, _, value in load(path)]
    counts = []
    for size in range(len(data) + 1):
        (tmp_path / "events").write_bytes(data[:size])
        found = [(tag, step, value.tobytes()) for tag, step, _, value in load(tmp_path / "events")]
        assert found == whole[:len(found)]
        counts.append(len(found))
    assert counts == sorted(counts) and set(counts) == set(range(len(whole) + 1))


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
    assert power.labels == {"gpu": "1", "name": LABEL} and power.value == 63.5
    assert families["headrace_train_loss"].samples[0].value == -math.inf
    assert [(one.name, one.value) for one in families["headrace_data_read_bytes"].samples] == [("headrace_data_read_bytes_total", 2048)]
    buckets = {(one.name.rpartition("_")[2], one.labels.get("le")): one.value for one in families["headrace_step_duration_seconds"].samples}
    assert buckets == {("bucket", "0.5"): 3, ("bucket", "1.5"): 3, ("bucket", "+Inf"): 5, ("sum", None): 7.5, ("count", None): 5}


@pytest.fixture(scope="module")
def promtool():
    """Runs it; its output. Lint is told on stderr with status 3."""
    path = subprocess.run([ROOT / "tools" / "promtool.sh"], check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout.strip()

    def run(*words, text=None, status=0):
        done = subprocess.run([path, *map(str, words)], input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout

    return run


def test_promtool_finds_nothing_wrong_but_what_has_no_help(metrics, promtool):
    lint = promtool("check", "metrics", text=(metrics / "metrics.prom").read_text(), status=3)
    assert set(lint.splitlines()) == {f"headrace_{name} no help text" for name in (
        "data_read_bytes_total", "gpu_power_watts", "step_duration_seconds")}
    with pytest.raises(AssertionError, match="error while linting"):
        promtool("check", "metrics", text="headrace_a{ 1\n")


def test_promtool_keeps_every_sample_in_its_database(metrics, promtool, tmp_path):
    """Its import takes samples with a time of each, an end, and comments of another form."""
    samples = [line for line in (metrics / "metrics.prom").read_text().splitlines() if not line.startswith("#")]
    (tmp_path / "samples").write_text("".join(f"{line} {WALL_S + 2}\n" for line in samples) + "# EOF\n")
    promtool("tsdb", "create-blocks-from", "openmetrics", tmp_path / "samples", tmp_path / "database")
    (tmp_path / "database" / "wal").mkdir()  # A dump wants one.
    dumped = [re.fullmatch(r"\{(.*)\} (\S+) (\d+)", line) for line in promtool("tsdb", "dump", tmp_path / "database").splitlines() if line]
    assert {line[3] for line in dumped} == {"1700000002000"}
    name = "headrace_step_duration_seconds"
    assert {line[1].replace('__name__="headrace', '"headrace'): float(line[2]) for line in dumped} == {
        '"headrace_train_loss"': -math.inf, '"headrace_data_read_bytes_total"': 2048, f'"{name}_sum"': 7.5, f'"{name}_count"': 5,
        f'"{name}_bucket", le="0.5"': 3, f'"{name}_bucket", le="1.5"': 3, f'"{name}_bucket", le="+Inf"': 5,
        r'"headrace_gpu_power_watts", gpu="1", name="a \"b\" \\ \n"': 63.5}


def test_wandb_reads_every_figure_of_an_event_file(metrics):
    (path,) = metrics.glob("events.out.tfevents.*")
    read = [tf_summary_to_dict(event) for event in EventFileLoader(str(path)).Load() if event.HasField("summary")]
    assert [(values["global_step"], values["_timestamp"]) for values in read] == [(step, WALL_S + step) for step in range(3) for _ in range(4)]
    figures = [(name, value) for values in read for name, value in values.items() if name[0] != "_" and name != "global_step"]
    histogram = {"_type": "histogram", "values": [3, 0, 2], "bins": [0.25, 0.5, 1.5, 2.5]}
    assert [value.to_json() for name, value in figures if name == "step.duration"] == [histogram] * 3
    scalars = {name: [float(value) for other, value in figures if other == name] for name, _ in figures if name != "step.duration"}
    losses = scalars.pop("train.loss")
    assert losses[0] == numpy.float32(0.1) and math.isnan(losses[1]) and losses[2] == -math.inf
    assert scalars == {f"gpu.power/1/{LABEL}": [61.5, 62.5, 63.5], "data.read": [0, 1024, 2048]}


def test_protobuf_parses_a_perfetto_trace_whole_and_without_unknown_fields(trace):
    parsed = Trace.FromString((trace / "perfetto").read_bytes())
    # What a field that the messages do not have would add.
    parsed.DiscardUnknownFields()
    assert parsed.SerializeToString() and parsed.ByteSize() == (trace / "perfetto").stat().st_size

    tracks = {packet.track_descriptor.uuid: packet.track_descriptor for packet in parsed.packet if packet.HasField("track_descriptor")}
    assert {track.thread.thread_name for track in tracks.values()} == {"", "main"}
    counters = {uuid: track.name for uuid, track in tracks.items() if track.HasField("counter")}
    assert sorted(counters.values()) == ["bytes", "dropped events", "fill"]
    now, begins, ends, values = {}, [], [], {name: [] for name in counters.values()}
    for packet in parsed.packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.HasField("clock_snapshot"):
            now[sequence] = next(clock.timestamp for clock in packet.clock_snapshot.clocks if clock.is_incremental)
        if not packet.HasField("track_event"):
            continue
        now[sequence] += packet.timestamp
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            begins.append((now[sequence], sum(one.int_value for one in event.debug_annotations)))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            ends.append(now[sequence])
        else:
            assert event.type == TrackEvent.TYPE_COUNTER
            values[counters[event.track_uuid]].append((now[sequence], event.counter_value))
    assert begins == [(10_000 * i, i - 2) for i in range(50)]
    assert ends == [10_000 * i + 9_000 for i in range(50)]
    assert values == {"fill": [(10_000 * i + 1_000, -i) for i in range(50)], "bytes": [(10**6, 5)], "dropped events": [(10**6, 4)]}
