"""performance_optimization's PerformanceProfiler and its functions, nearly as the published examples use them."""

import threading
import time

import headrace as hr
import pytest
import torch
from performance_optimization import PerformanceProfiler, profile_memory, profile_memory_usage, profile_performance
from planted_loop import Clock
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def test_the_example_of_a_profiled_training_step_has_a_summary():
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profiler = PerformanceProfiler()
    with profiler.profile("training_step"):
        loss = nn.functional.mse_loss(model(torch.randn(4, 8)), torch.randn(4, 2))
        loss.backward()
        optimizer.step()
    summary = profiler.get_profile_summary()
    assert summary["total_operations"] == 1 and summary["total_duration"] > 0
    assert summary["operations"][0]["name"] == "training_step"


def test_scopes_nest_to_a_tree_and_nested_time_counts_once():
    profiler = PerformanceProfiler()
    with profiler.profile("outer"):
        for _ in range(2):
            with profiler.profile("inner"):
                time.sleep(0.01)
    (root,) = profiler.tree()
    assert root["name"] == "outer" and [child["name"] for child in root["children"]] == ["inner", "inner"]
    summary = profiler.get_profile_summary()
    assert summary["total_operations"] == 3
    assert summary["total_duration"] == pytest.approx(root["seconds"], abs=1e-6)
    by_name = {one["name"]: one for one in summary["operations"]}
    assert by_name["inner"]["count"] == 2 and by_name["inner"]["min_s"] >= 0.01


def test_ten_scopes_of_known_length_are_counted_and_their_sums_are_told_within_two_percent():
    """Known by the same clock, read around each scope: whoever else has the cores makes both longer."""
    profiler, around, within = PerformanceProfiler(), 0, 0
    with hr.Trace() as trace:
        for length in range(1, 11):
            before = time.perf_counter_ns()
            with profiler.profile("wait"):
                begin = time.perf_counter_ns()
                while time.perf_counter_ns() - begin < length * 1_000_000:
                    pass
                within += time.perf_counter_ns() - begin
            around += time.perf_counter_ns() - before
    for summary in (profiler.get_profile_summary(), trace.summary()):
        (entry,) = summary["operations"]
        assert (summary["total_operations"], entry["name"], entry["count"]) == (10, "wait", 10)
        for told in (entry["total_s"], summary["total_duration"]):
            assert 0.98e-9 * within <= told <= 1.02e-9 * around
        assert entry["min_s"] <= entry["mean_s"] <= entry["max_s"] and entry["mean_s"] == pytest.approx(entry["total_s"] / 10)


def test_an_exception_closes_a_scope_marks_it_and_passes_through():
    profiler = PerformanceProfiler()
    with pytest.raises(KeyError), profiler.profile("fails"):
        raise KeyError
    with profiler.profile("after"):
        pass
    assert [(node["name"], node["failed"], node["children"]) for node in profiler.tree()] == [("fails", True, []), ("after", False, [])]


def test_scopes_of_threads_lie_beside_each_other():
    profiler = PerformanceProfiler()

    def work():
        with profiler.profile("thread"):
            time.sleep(0.005)

    threads = [threading.Thread(target=work) for _ in range(3)]
    with profiler.profile("main"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(node["name"] for node in profiler.tree()) == ["main", "thread", "thread", "thread"]
    assert profiler.get_profile_summary()["total_operations"] == 4


def test_a_scope_is_a_span_of_a_trace_too():
    profiler = PerformanceProfiler()
    with hr.Trace() as trace, profiler.profile("mine"):
        pass
    assert [one["name"] for one in trace.summary()["operations"]] == ["mine"]


def test_profiling_that_is_off_records_nothing():
    profiler = PerformanceProfiler(enable_profiling=False)
    with profiler.profile("a"):
        pass
    assert profiler.get_profile_summary()["total_operations"] == 0
    assert profiler.profile("a") is profiler.profile("b")  # Nothing is made.


@pytest.mark.engine
def test_a_scope_tells_what_it_kept_and_the_most_it_held_by_thread():
    profiler = PerformanceProfiler(enable_memory_profiling=True)
    kept = []

    def work(name, temporary, rest):
        with profiler.profile(name):
            held = torch.empty(temporary, dtype=torch.uint8)
            kept.append(torch.empty(rest, dtype=torch.uint8))
            del held

    thread = threading.Thread(target=work, args=("other", 7_000_000, 3_000_000))
    thread.start()
    work("main", 200_000_000, 50_000_000)
    thread.join()
    summary = profiler.get_profile_summary()
    assert summary["memory_reason"] == ""
    assert summary["memory"]["main"]["net_bytes"] == 50_000_000 and summary["memory"]["main"]["peak_bytes"] == 250_000_000
    assert summary["memory"]["other"]["net_bytes"] == 3_000_000 and summary["memory"]["other"]["peak_bytes"] == 10_000_000


def test_memory_that_nobody_measured_is_unavailable_with_the_reason():
    profiler = PerformanceProfiler()
    with profiler.profile("a"):
        torch.empty(1000)
    summary = profiler.get_profile_summary()
    assert summary["memory"]["a"]["net_bytes"] is None and summary["memory_reason"] == "enable_memory_profiling is off"


def test_the_example_of_batch_metrics_gives_exact_series_and_a_report():
    clock = Clock()
    profiler = PerformanceProfiler(clock=clock)
    for seconds, batch_size in ((0.5, 32), (0.25, 32)):
        profiler.start_batch_timer()
        clock.now += seconds
        profiler.record_batch_metrics(batch_size, 0.0625, 0.125, 0.03125)
    assert profiler.metrics["training_speed"] == [64.0, 128.0]
    assert profiler.metrics["data_loading_time"] == [0.28125, 0.03125]
    report = profiler.get_performance_report()
    assert report["total_training_time"] == 0.75
    assert report["average_training_speed"] == 96.0 and report["peak_training_speed"] == 128.0
    assert report["time_breakdown"] == {"data_loading": 0.15625, "forward_pass": 0.0625, "backward_pass": 0.125, "optimizer": 0.03125}
    assert [one["code"] for one in profiler.identify_bottlenecks()] == ["data_loading_slow"]


def test_an_empty_profiler_has_a_valid_empty_report():
    profiler = PerformanceProfiler()
    report = profiler.get_performance_report()
    assert report["total_training_time"] == report["peak_training_speed"] == report["peak_memory_usage"] == 0
    assert report["recorded_batches"] == 0 and report["memory_available"] is False
    assert profiler.identify_bottlenecks() == []
    assert profiler.get_profile_summary()["total_operations"] == 0


def test_a_batch_that_was_not_started_and_numbers_that_cannot_be_are_named():
    clock = Clock()
    profiler = PerformanceProfiler(clock=clock)
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted start_batch_timer"):
        profiler.record_batch_metrics(8, 0.1, 0.1, 0.1)
    profiler.start_batch_timer()
    for arguments, words in [((0, 0.1, 0.1, 0.1), "batch_size: wanted an integer of at least 1, found 0"),
                             ((8, -1.0, 0.1, 0.1), "forward_time: wanted seconds, at least 0, found -1.0"),
                             ((8, 0.1, float("nan"), 0.1), "backward_time: wanted seconds, at least 0, found nan"),
                             ((8, 0.1, 0.1, 0.1), "wanted a batch that takes time")]:
        with pytest.raises(hr.errors.InvalidArgumentError, match=words):
            profiler.record_batch_metrics(*arguments)
    clock.now += 1
    profiler.record_batch_metrics(8, 0.1, 0.1, 0.1)
    with pytest.raises(hr.errors.InvalidArgumentError, match="found none since the last one"):
        profiler.record_batch_metrics(8, 0.1, 0.1, 0.1)
    assert profiler.metrics["training_speed"] == [8.0]


def test_series_that_headrace_measured_by_itself_are_taken():
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hr.watch(model, optimizer) as watch:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    profiler = PerformanceProfiler()
    profiler.take_metrics(watch.document["metrics"])
    assert len(profiler.metrics["forward_pass_time"]) == watch.steps > 0
    assert profiler.get_performance_report()["time_breakdown"]["forward_pass"] > 0


SERIES = ("training_speed", "memory_usage", "data_loading_time", "forward_pass_time", "backward_pass_time", "optimizer_time")


def plain_loop(steps, fail_at=-1):
    """As somebody writes it who knows no profiler."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (inputs, targets) in enumerate(DataLoader(TensorDataset(torch.randn(4 * steps, 8), torch.randn(4 * steps, 2)), 4)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        if step == fail_at:
            raise KeyError("made up")
        optimizer.step()


def test_a_plain_loop_within_its_block_fills_all_six_series_without_a_call():
    with PerformanceProfiler() as profiler:
        plain_loop(6)
    assert {name: len(profiler.metrics[name]) for name in SERIES} == dict.fromkeys(SERIES, 6)
    assert all(value > 0 for name in SERIES for value in profiler.metrics[name])
    assert profiler.metrics_reason == "" and all(2e-3 < gigabytes < 1e3 for gigabytes in profiler.metrics["memory_usage"])
    parts = [sum(profiler.metrics[name][step] for name in SERIES[2:]) for step in range(6)]
    assert all(speed <= 4 / seconds for speed, seconds in zip(profiler.metrics["training_speed"], parts))
    report = profiler.get_performance_report()
    assert report["recorded_batches"] == 6 and report["memory_available"] is True
    assert report["total_training_time"] == pytest.approx(sum(parts))
    with profiler:  # A second block goes on.
        plain_loop(3)
    assert {len(profiler.metrics[name]) for name in SERIES} == {9}


def test_a_block_that_raises_keeps_its_steps_and_one_without_steps_says_so():
    profiler = PerformanceProfiler()
    with pytest.raises(KeyError, match="made up"), profiler:
        plain_loop(6, fail_at=3)
    assert {len(profiler.metrics[name]) for name in SERIES} == {4}
    empty = PerformanceProfiler()
    with empty, pytest.raises(hr.errors.InvalidArgumentError, match="recording is running already"), PerformanceProfiler():
        pass
    assert "no training step was seen" in empty.metrics_reason and not any(empty.metrics.values())
    off = PerformanceProfiler(enable_profiling=False)
    with off, hr.Trace():  # Nothing records for it.
        plain_loop(2)
    assert not any(off.metrics.values()) and off.metrics_reason == "enable_profiling is off"


@pytest.mark.parametrize("with_stack", [True, False], ids=["as published", "without stacks"])
def test_the_example_of_a_scheduled_profile_writes_two_traces(tmp_path, with_stack):
    model = nn.Linear(4, 2)
    seen = []

    def train_step(batch):
        seen.append(batch)
        model(batch).sum().backward()

    profile = profile_performance(train_step, [torch.randn(3, 4) for _ in range(15)], log_dir=tmp_path / "log" / "profile",
                                  with_stack=with_stack)
    assert len(seen) == 15 and profile.windows == 2
    assert len(list((tmp_path / "log" / "profile").iterdir())) == 2
    assert {row.name: row.calls for row in profile.key_averages()}["aten::linear"] == 3


def test_the_example_of_a_memory_profile_prints_a_table(capsys):
    averages = profile_memory(nn.Linear(64, 10), torch.randn(16, 64), torch.randint(10, (16,)))
    printed = capsys.readouterr().out
    assert "operator" in printed and len(averages) > 0
    assert any(row.name == "aten::linear" for row in averages)
    if not torch.cuda.is_available():
        assert printed.startswith("cuda_memory_usage: unavailable")


def test_memory_usage_without_cuda_is_empty(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert profile_memory_usage() == {}


def test_memory_usage_tells_what_torch_says_and_what_is_in_no_role(monkeypatch):
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model[0](torch.ones(1, 100)).sum().backward()
    optimizer.step()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # The tensors stay on the CPU: what is told is what torch.cuda says.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: 2_000_000_000)
    usage = profile_memory_usage(model, optimizer)
    assert usage["memory_stats"] == {"allocated": 2.0, "reserved": 2.0, "max_allocated": 2.0, "max_reserved": 2.0}
    assert usage["tensor_breakdown"] == {"other": 2.0}
