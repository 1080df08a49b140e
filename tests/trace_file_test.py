"""trace.json of a profile, checked against the Trace Event Format as Google documents it: what Perfetto's and Chrome's
viewers need to show it, and what they would show wrongly without a word. The keys and their meanings are the document's
("Trace Event Format", Nduca, 2016); nothing here calls our own reader."""

import json

import pytest

from tiny_run import headrace, write_idx

STEPS = 1000  # Some tenths of a second, in which the thread that reads memory gets a core often, whatever else runs.
MICROSECONDS_ROUNDED = 0.0015  # Times are written with three decimals.


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    data = folder / "data"
    data.mkdir()
    write_idx(data, "train", 1280)
    write_idx(data, "t10k", 320)
    recipe = folder / "tiny.toml"
    recipe.write_text(f'[data]\nsource = "idx:{data}"\nbatch_size = 32\n[model]\nname = "mlp"\n[compute]\nintra_op_threads = 1\n')
    result = headrace("profile", recipe, "--steps", STEPS, "--out", folder / "run")
    assert result.returncode == 0, result.stderr
    return folder / "run"


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


@pytest.fixture(scope="module")
def trace(profiled):
    return json.loads((profiled / "trace.json").read_text(encoding="utf-8"), parse_constant=refuse_constant)


def events(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_it_is_the_documented_object_with_documented_events(trace):
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    assert isinstance(trace["traceEvents"], list) and len(trace["traceEvents"]) > 100
    for event in trace["traceEvents"]:
        assert event["ph"] in ("X", "C", "M", "s", "f"), event
        is_flow = event["ph"] in "sf"
        assert set(event) <= {"ph", "pid", "tid", "ts", "dur", "name", "cat"} | ({"id", "bp"} if is_flow else {"args"}), event
        assert isinstance(event["name"], str) and event["name"], event
        assert isinstance(event["pid"], int), event
        assert isinstance(event["id"] if is_flow else event["args"], int if is_flow else dict), event


def test_it_says_who_recorded_it_and_each_batch_that_was_loaded_points_to_where_it_was_taken(trace):
    assert trace["otherData"]["recorder"] == "headrace"
    spans = {(event["tid"], event["ts"], event["name"]): event for event in events(trace, "X")}
    targets = {event["id"]: event for event in events(trace, "f")}
    assert len(events(trace, "s")) == len(targets) > STEPS // 2  # But those that were loaded before it began.
    for start in events(trace, "s"):
        end = targets[start["id"]]
        loaded, taken = spans[start["tid"], start["ts"], "load_chunk"], spans[end["tid"], end["ts"], "take_batch"]
        assert loaded["args"]["value"] == taken["args"]["value"] and loaded["ts"] <= taken["ts"]


def test_threads_and_process_have_names_and_every_event_belongs_to_one(trace):
    named = {event["tid"]: event["args"]["name"] for event in events(trace, "M") if event["name"] == "thread_name"}
    assert [event["args"]["name"] for event in events(trace, "M") if event["name"] == "process_name"] == ["headrace"]
    assert {"main", "memory"} <= set(named.values())
    for event in events(trace, "X") + events(trace, "C"):
        assert event["tid"] in named, event


def test_complete_events_have_a_time_a_length_and_come_in_order(trace):
    before = 0
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            continue
        assert type(event["ts"]) in (int, float) and event["ts"] >= before, event
        before = event["ts"]
        if event["ph"] == "X":
            assert type(event["dur"]) in (int, float) and event["dur"] > 0, event


def test_complete_events_of_a_thread_nest(trace):
    """A viewer draws an event that outlives the one around it over its neighbours."""
    open_until = {}
    for event in events(trace, "X"):
        ends = open_until.setdefault(event["tid"], [])
        while ends and ends[-1] <= event["ts"] + MICROSECONDS_ROUNDED:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + MICROSECONDS_ROUNDED, event
        ends.append(end)


def test_every_step_holds_its_parts(trace):
    steps = [event for event in events(trace, "X") if event["name"] == "step"]
    assert len(steps) == STEPS
    for part in ("data_wait", "transfer", "forward", "backward", "optimizer"):
        found = [event for event in events(trace, "X") if event["name"] == part and event["cat"] == "step"]
        assert len(found) == STEPS, part
        for step, event in zip(steps, found):
            assert step["ts"] <= event["ts"] + MICROSECONDS_ROUNDED
            assert event["ts"] + event["dur"] <= step["ts"] + step["dur"] + MICROSECONDS_ROUNDED


def test_counter_tracks_hold_numbers_and_the_same_series_at_every_moment(trace):
    series = {}
    for event in events(trace, "C"):
        assert event["args"], event
        for value in event["args"].values():
            assert type(value) is int, event
        # A series that is missing at one moment would be drawn as 0 there.
        assert series.setdefault(event["name"], set(event["args"])) == set(event["args"]), event
    assert {"parameters", "gradients", "optimizer", "activations", "batches", "other"} <= series["memory"]
    assert "memory.resident" in series


def test_memory_classes_and_the_rest_make_up_what_is_resident(trace):
    resident = {event["ts"]: event["args"]["value"] for event in events(trace, "C") if event["name"] == "memory.resident"}
    stacks = [event for event in events(trace, "C") if event["name"] == "memory"]
    assert len(stacks) == len(resident) > 0
    for event in stacks:
        counted = sum(value for name, value in event["args"].items() if name != "other")
        assert event["args"]["other"] == max(0, resident[event["ts"]] - counted)
        assert event["args"]["parameters"] > 0 and event["args"]["optimizer"] > event["args"]["parameters"]


def test_profile_json_tells_memory_over_time_by_class(profiled):
    memory = json.loads((profiled / "profile.json").read_text())["memory"]
    assert memory["unit"] == "bytes"
    assert len(memory["at_s"]) == len(memory["resident"]) > 1
    assert memory["peak"]["bytes"] == max(memory["resident"])
    assert max(memory["classes"]["activations"]["values"]) > 0
    assert memory["classes"]["optimizer"]["last"] > memory["classes"]["parameters"]["last"] > 0
    for entry in memory["classes"].values():
        assert entry is None or len(entry["values"]) == len(memory["at_s"])
