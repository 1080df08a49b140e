"""hr.profile's schedule, its refusals, and profiles by torch.profiler where headrace's engine cannot be had."""

import json

import pytest
import torch

import headrace as hr
from headrace import _operator_profile


@pytest.mark.parametrize("numbers", [dict(wait=1, warmup=1, active=3, repeat=2), dict(wait=0, warmup=1, active=1), dict(wait=2, warmup=3, active=1,
                         repeat=1, skip_first=4)], ids=str)
def test_a_schedule_says_of_each_step_what_torchs_says(numbers):
    ours, theirs = hr.schedule(**numbers), torch.profiler.schedule(**numbers)
    assert [ours(step) for step in range(40)] == [theirs(step).name for step in range(40)]


@pytest.fixture
def without_engine(monkeypatch):
    monkeypatch.setattr(_operator_profile._engine_door, "why_not", lambda: "built for torch 2.11, found 2.9")


def test_without_the_engine_torch_records_and_the_result_says_so(without_engine, tmp_path):
    with hr.profile(["cpu"], hr.schedule(wait=1, warmup=1, active=3, repeat=2), hr.write_traces(tmp_path), record_shapes=True,
                    profile_memory=True) as profile:
        for _ in range(15):
            torch.ones(3, 4) @ torch.ones(4, 5)
            profile.step()
    assert profile.source == "torch" and profile.trace is None
    assert profile.explain()["source"] == {"requested": "auto", "applied": "torch", "reason": "built for torch 2.11, found 2.9"}
    found = {(row.name, row.input_shapes): row.calls for row in profile.key_averages(group_by_input_shape=True)}
    assert found["aten::mm", "[[3, 4], [4, 5]]"] == 3
    assert all(row.bytes is not None and row.device_bytes is None for row in profile.key_averages())
    steps = []
    for file in sorted(tmp_path.iterdir()):
        names = {event.get("name", "") for event in json.loads(file.read_text())["traceEvents"]}
        steps.append(sorted(name for name in names if name.startswith("ProfilerStep#")))
    assert steps == [["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"], ["ProfilerStep#7", "ProfilerStep#8", "ProfilerStep#9"]]


def test_the_engine_by_name_is_refused_with_the_reason(without_engine):
    with pytest.raises(hr.errors.UnsupportedError, match="wanted engine: not applicable: built for torch 2.11, found 2.9"):
        hr.profile(["cpu"], source="engine")


@pytest.fixture
def without_kineto(monkeypatch):
    monkeypatch.setattr(torch.profiler, "kineto_available", lambda: False)


NO_KINETO = "this torch has no Kineto, with which torch.profiler records"


def test_without_kineto_torchs_profiler_by_name_is_refused_with_the_reason(without_kineto):
    with pytest.raises(hr.errors.UnsupportedError, match=f"wanted torch: not applicable: {NO_KINETO}"):
        hr.profile(["cpu"], source="torch")


def test_without_kineto_and_engine_both_reasons_are_told(without_kineto, without_engine):
    with pytest.raises(hr.errors.UnsupportedError, match=f"wanted auto: not applicable: built for torch .*; and {NO_KINETO}"):
        hr.profile(["cpu"])


@pytest.mark.engine
def test_without_kineto_the_engine_records_the_cpu_and_says_what_is_missing(without_kineto, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with hr.profile(["cpu", "cuda"], with_stack=True) as profile:
        torch.ones(3)
    told = profile.explain()
    assert profile.source == "engine" and "aten::ones" in {row.name for row in profile.key_averages()}
    assert told["activities"] == {"requested": "cpu, cuda", "applied": "cpu", "reason": f"cuda: {NO_KINETO}"}
    assert told["with_stack"] == {"requested": "true", "applied": "false", "reason": NO_KINETO}


def test_cuda_that_is_not_here_is_told_and_the_cpu_recorded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with hr.profile(["cuda"]) as profile:
        torch.ones(3)
    assert profile.explain()["activities"] == {"requested": "cuda", "applied": "cpu", "reason": "cuda: torch finds no CUDA device here"}
    assert "aten::ones" in {row.name for row in profile.key_averages()}


@pytest.mark.parametrize("arguments, words", [
    (dict(activities=["gpu"]), "activities: wanted cpu and cuda, found 'gpu'"),
    (dict(activities="cpu"), "activities: wanted a list, found 'cpu'"),
    (dict(activities=[]), "activities: wanted at least one of cpu and cuda, found none"),
    (dict(schedule=3), "schedule: wanted a function, found int"),
    (dict(on_trace_ready="log"), "on_trace_ready: wanted a function, found str"),
    (dict(source="kineto"), "source: wanted auto, engine or torch, found 'kineto'"),
], ids=lambda value: None if isinstance(value, dict) else value)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(hr.errors.InvalidArgumentError) as raised:
        hr.profile(**arguments)
    assert words in str(raised.value)


@pytest.mark.parametrize("numbers, words", [
    (dict(wait=-1, warmup=0, active=1), "wait: wanted an integer of at least 0, found -1"),
    (dict(wait=0, warmup=0, active=0), "active: wanted an integer of at least 1, found 0"),
    (dict(wait=0, warmup=1.5, active=1), "warmup: wanted an integer of at least 0, found 1.5"),
], ids=["below 0", "no active step", "a fraction"])
def test_a_schedule_that_cannot_be_is_refused(numbers, words):
    with pytest.raises(hr.errors.InvalidArgumentError) as raised:
        hr.schedule(**numbers)
    assert words in str(raised.value)


def test_what_was_not_recorded_is_not_made_up(tmp_path):
    profile = hr.profile(["cpu"], source="torch")
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted a window that was recorded, found none"):
        profile.key_averages()
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted one that runs"):
        profile.step()
    with profile:
        torch.ones(3)
        with pytest.raises(hr.errors.InvalidArgumentError, match="found that it runs"):
            profile.start()
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted a profile with record_shapes=True"):
        profile.key_averages(group_by_input_shape=True)
    with pytest.raises(hr.errors.InvalidArgumentError, match="form: wanted chrome, which torch.profiler writes, found 'perfetto'"):
        profile.export(tmp_path / "trace.perfetto-trace", "perfetto")
    with pytest.raises(hr.errors.InvalidArgumentError, match="did you mean folded"):
        hr.write_traces(tmp_path, "foldet")
    with pytest.raises(hr.errors.InvalidArgumentError, match="did you mean 'cpu_memory_usage'"):
        profile.key_averages().table(sort_by="cpu_memory_usag")
    with pytest.raises(hr.errors.InvalidArgumentError, match="row_limit: wanted at least 1, or -1 for all, found 0"):
        profile.key_averages().table(row_limit=0)
