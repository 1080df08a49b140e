"""PerformanceOptimizer: what it sets of a configuration, what it measures of it and tells, and what it puts back."""

import copy
import json
import logging
import os
import re
import threading
from dataclasses import fields

import headrace as hr
import performance_optimization._config
import pytest
import torch
from headrace import _autotune
from performance_optimization_system import (NumericalStabilityManager, OptimizationLevel, PerformanceConfig,
                                             PerformanceOptimizationConfig, PerformanceOptimizer, create_performance_optimizer,
                                             optimize_training_pipeline, profile_operation)
from planted_loop import hooks_of
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.engine

NOT_BUILT = "unavailable: not built yet"


def as_captured(graph, inputs):
    return graph.forward


@pytest.fixture(autouse=True)
def no_compiler(nothing_compiled, monkeypatch):
    monkeypatch.setattr("headrace._compiled.MODES", (as_captured,))
    yield
    for handle in list(_autotune._open_handles):  # Of pipelines that nobody has cleaned up.
        handle.undo()


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def images() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), nn.Flatten(),
                         nn.Linear(8 * 4 * 4, 4))


def loader(count: int = 64, size: tuple[int, ...] = (8,)) -> DataLoader:
    inputs = torch.randn(count, *size, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(inputs, inputs.flatten(1)[:, :4].argmax(1)), batch_size=16)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


criterion = nn.CrossEntropyLoss()


def train(model, batches, optimizer, epochs: int = 1) -> list[float]:
    losses = []
    for _ in range(epochs):
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def through_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


# ---- A job from its start to its end ----


@pytest.mark.forks
@pytest.mark.parametrize("level", ["basic", OptimizationLevel.ADVANCED, "custom"])
def test_a_job_of_a_level_trains_its_own_loop_and_tells_of_it(level):
    model, dataloader = network(), loader()
    optimizer = sgd(model)

    with create_performance_optimizer(level) as performance_optimizer:
        requested = performance_optimizer.optimize_training_pipeline(model, dataloader, optimizer, criterion, epochs=3)
        losses = train(model, performance_optimizer.dataloader, optimizer, 3)
        status = through_json(performance_optimizer.get_optimization_status())
        summary = through_json(performance_optimizer.get_performance_summary())

    assert len(losses) == 12 and sum(losses[-4:]) < sum(losses[:4])
    assert list(requested) == ["data", "batch", "model", "training", "memory", "profiling"]
    name = getattr(level, "value", level)
    assert summary["config"] == status["config"] == {"optimization_level": name, "mixed_precision": False,
                                                     "compile_enabled": name == "advanced"}
    assert status["live_tuning"]["status"] == ("not applied" if name == "custom" else "applied"), status["live_tuning"]["reason"]
    asked = {name for name, entry in status["features"].items() if "verdict" in entry}
    assert asked == ({"enable_amp", "enable_compile", "enable_gradient_checkpointing", "enable_memory_format_optimization"}
                     if name == "advanced" else set())
    for entry in status["features"].values():
        assert entry["status"] in ("applied", "not applied", "") and (entry["status"] != "not applied" or entry["reason"])
    assert summary["cache_stats"] == summary["memory_trends"] == NOT_BUILT


def test_of_the_level_basic_none_of_the_three_is_active():
    model = images()
    optimizer = create_performance_optimizer("basic")
    optimizer.optimize_training_loop(model, loader(32, (3, 8, 8)), sgd(model), criterion, 1)
    status = optimizer.get_optimization_status()
    assert (status["config"]["mixed_precision"], status["config"]["compile_enabled"]) == (False, False)
    for name in ("enable_amp", "enable_compile", "enable_gradient_checkpointing"):
        assert status["features"][name] == {"requested": False, "status": "", "reason": ""}


def test_of_the_level_ultra_eight_workers_are_applied_as_asked_and_too_many_are_told():
    model, dataloader = network(), loader()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        optimizer = create_performance_optimizer("ultra")
        optimizer.optimize_training_pipeline(model, dataloader, sgd(model), criterion)
        entry = optimizer.get_optimization_status()["features"]["num_workers"]
    finally:
        os.sched_setaffinity(0, cores)
    assert (entry["requested"], entry["status"]) == (8, "applied") and "more than the 1 cores" in entry["reason"]
    assert optimizer.dataloader.num_workers == 8 and dataloader.num_workers == 0
    assert entry["verdict"]["verdict"] == "not measured" and entry["verdict"]["reason"]
    optimizer.cleanup()


def test_custom_with_nothing_set_changes_nothing():
    ours, theirs, dataloader = images(), images(), loader(64, (3, 8, 8))
    our_optimizer, their_optimizer = sgd(ours), sgd(theirs)
    before, threads = hooks_like(ours, our_optimizer, dataloader), torch.get_num_threads()
    performance_optimizer = create_performance_optimizer("custom")
    summary = performance_optimizer.optimize_training_pipeline(ours, dataloader, our_optimizer, criterion)
    assert performance_optimizer.dataloader is dataloader and performance_optimizer.tuning is None
    assert hooks_like(ours, our_optimizer, dataloader) == before and torch.get_num_threads() == threads
    assert train(ours, dataloader, our_optimizer, 2) == train(theirs, dataloader, their_optimizer, 2)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert {entry["status"] for component in summary.values() for entry in component.values()} <= {"", "not applied"}


def hooks_like(model, optimizer, dataloader):
    return hooks_of(type("Loop", (), {"model": model, "optimizer": optimizer, "loader": dataloader}))


def test_a_loop_of_custom_is_the_loop_written_by_hand():
    ours, theirs, dataloader = network(), network(), loader()
    theirs.train()
    train(theirs, dataloader, sgd(theirs), 2)
    results = create_performance_optimizer("custom").optimize_training_loop(ours, dataloader, sgd(ours), criterion, 2)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert results["memory_cleanups"] == 0 and "profile" not in results["epochs"][0]


def test_custom_tries_strategies_of_ones_own_and_nothing_else():
    class Pause(hr.Strategy):
        name, sentence, numerics = "pause", "A pause.", "bit_equal"

        def apply(self, context):
            del context

        def undo(self, context):
            del context

    model, config = network(), PerformanceConfig("custom", enable_profiling=True)
    with PerformanceOptimizer(config) as optimizer:
        optimizer.optimize_training_pipeline(model, loader(), sgd(model), criterion)
        assert optimizer.get_optimization_status()["live_tuning"]["reason"].startswith("the level is custom, and no strategy")
    hr.register_strategy(Pause())
    try:
        with PerformanceOptimizer(config) as optimizer:
            optimizer.optimize_training_pipeline(model, loader(), sgd(model), criterion)
            assert list(optimizer.get_optimization_status()["live_tuning"]["trials"]) == ["pause"]
    finally:
        hr.unregister_strategy("pause")


# ---- What is measured beside a request ----


def test_a_request_is_applied_as_asked_whatever_the_verdict_beside_it(monkeypatch):
    asked = {}

    def slower(model, loader, optimizer, forward, **options):
        asked.update(options, weights=model[0][0].weight.is_contiguous())
        trial = hr.Trial("channels-last", "refused", "slower", "Slower: -10 %.", (-0.1, -0.2, -0.05), 12, {})
        return type("Tuned", (), {"trials": [trial]})

    monkeypatch.setattr(hr, "tune", slower)
    model = images()
    optimizer = PerformanceOptimizer(PerformanceConfig("advanced", enable_compile=False), trial_s=3)
    optimizer.optimize_training_loop(model, loader(32, (3, 8, 8)), sgd(model), criterion, 2)
    assert (asked["budget_s"], asked["steps"], asked["only"], asked["apply"], asked["weights"]) == (3.0, 4, ["channels-last"], False, True)
    entry = through_json(optimizer.get_optimization_status())["features"]["enable_memory_format_optimization"]
    assert entry == {"requested": True, "status": "applied", "reason": "",
                     "verdict": {"verdict": "refused", "gain": [-0.1, -0.2, -0.05], "pairs": 12, "reason": "Slower: -10 %."}}
    assert model[0][0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_verdict_is_measured_on_the_loop_as_it_was_given_and_leaves_its_state():
    model, before, dataloader = images(), images(), loader(256, (3, 8, 8))
    generator = torch.get_rng_state()
    optimizer = PerformanceOptimizer(PerformanceConfig("advanced", enable_compile=False, num_workers=0), trial_s=1.0)
    summary = through_json(optimizer.optimize_training_pipeline(model, dataloader, sgd(model), criterion))
    verdict = summary["model"]["enable_memory_format_optimization"]["verdict"]
    assert verdict["verdict"] in ("kept", "refused", "inconclusive") and verdict["reason"] and verdict["pairs"] >= 0
    assert verdict["gain"] is None or len(verdict["gain"]) == 3
    assert summary["training"]["enable_amp"]["verdict"]["verdict"] == "not measured"
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), generator)
    optimizer.cleanup()


@pytest.mark.parametrize("make, reason", [
    (lambda: PerformanceOptimizer("advanced", trial_s=0), "trial_s is 0"),
    (lambda: PerformanceOptimizer(PerformanceConfig("advanced", enable_profiling=False)), "enable_profiling is False")])
def test_where_nothing_is_to_be_measured_the_verdict_says_so(make, reason, monkeypatch):
    monkeypatch.setattr(hr, "tune", None)
    model, optimizer = images(), make()
    features = optimizer.optimize_training_loop(model, loader(16, (3, 8, 8)), sgd(model), criterion, 1)["features"]
    assert features["enable_compile"]["verdict"] == {"verdict": "not measured", "gain": None, "pairs": 0, "reason": reason}
    assert optimizer.model_optimizer.compiled is not None


def test_a_model_that_was_set_up_before_has_no_verdict_and_says_why():
    model = images()
    optimizer = create_performance_optimizer("advanced")
    optimizer.optimize_model(model)
    features = optimizer.optimize_training_loop(model, loader(16, (3, 8, 8)), sgd(model), criterion, 1)["features"]
    assert "was set up before" in features["enable_memory_format_optimization"]["verdict"]["reason"]


@pytest.mark.parametrize("seconds", [-1, "5", True, float("inf"), float("nan")])
def test_seconds_that_cannot_be_are_named(seconds):
    with pytest.raises(ValueError, match="trial_s: wanted a number of at least 0, found "):
        PerformanceOptimizer(trial_s=seconds)


# ---- The live tuner ----


def test_what_somebody_has_said_is_fixed_for_the_live_tuner():
    model, dataloader = network(), loader()
    optimizer = sgd(model)
    before = hooks_like(model, optimizer, dataloader)
    performance_optimizer = PerformanceOptimizer(PerformanceConfig("basic", num_workers=0))
    performance_optimizer.optimize_training_pipeline(model, dataloader, optimizer, criterion, epochs=2)
    tuning = performance_optimizer.tuning
    assert tuning.watching and set(tuning._request.fixed) >= {"train.precision", "model.compile", "model.memory_format", "data.num_workers"}
    train(model, performance_optimizer.dataloader, optimizer, 2)
    told = through_json(performance_optimizer.get_performance_summary())["live_tuning"]
    assert told["status"] == "applied" and told["kept"] == tuning.kept
    performance_optimizer.cleanup()
    assert hooks_like(model, optimizer, dataloader) == before and performance_optimizer.tuning is None
    assert performance_optimizer.get_optimization_status()["live_tuning"]["reason"] == "it was ended, and what it kept undone"
    performance_optimizer.cleanup()


def test_a_second_pipeline_takes_the_place_of_the_first():
    performance_optimizer = create_performance_optimizer("basic")
    for _ in range(2):
        model, dataloader = network(), [(torch.zeros(4, 8), torch.zeros(4, dtype=torch.long))]
        performance_optimizer.optimize_training_pipeline(model, dataloader, sgd(model), criterion)
        assert performance_optimizer.tuning.problem is None and performance_optimizer.dataloader is dataloader
    performance_optimizer.cleanup()


def test_a_headrace_loader_is_changed_in_place_and_has_its_own_workers_back(tmp_path):
    from tiny_run import write_idx

    write_idx(tmp_path, "train", 64)
    dataloader = hr.Loader(f"idx:{tmp_path}", batch_size=16, num_workers=1, prefetch_batches=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = PerformanceOptimizer(PerformanceConfig("custom", num_workers=2, prefetch_factor=2))
    summary = optimizer.optimize_training_pipeline(model, dataloader, sgd(model), criterion)
    assert optimizer.dataloader is dataloader and dataloader.statistics()["num_workers"] == 2
    assert summary["data"]["num_workers"]["status"] == "applied"
    assert summary["data"]["pin_memory"]["reason"].startswith("nobody asked for it")
    optimizer.cleanup()
    assert (dataloader.statistics()["num_workers"], dataloader.options["prefetch_batches"]) == (1, 2)


# ---- Every field ----


def loop_of(**settings):
    model = nn.Linear(8, 4)
    optimizer = PerformanceOptimizer(PerformanceConfig("custom", **settings), trial_s=0)
    return optimizer.optimize_training_loop(model, loader(), sgd(model), criterion, 1)


def pipeline_of(**settings):
    model = network()
    optimizer = PerformanceOptimizer(PerformanceConfig("custom", **settings))
    optimizer.optimize_training_pipeline(model, loader(), sgd(model), criterion)
    return optimizer


def model_of(**settings):
    model, seen = images(), []
    optimizer = PerformanceOptimizer(PerformanceConfig("custom", **settings))
    optimizer.optimize_model(model)
    for module in model.modules():
        module.register_forward_hook(lambda *given: seen.append(1))
    if optimizer.model_optimizer.compiled is None:
        model(torch.ones(2, 3, 8, 8)).sum().backward()
    return optimizer, model, len(seen)


def kernel_of(**settings):
    model = hr.MultiheadAttention(16, 4, batch_first=True)
    PerformanceOptimizer(PerformanceConfig("custom", **settings)).optimize_model(model)
    return model.attention.kernel


def probes_of(**settings):
    optimizer, model = PerformanceOptimizer(PerformanceConfig("custom", **settings)), network()
    optimizer.batch_optimizer.initial_batch_size, optimizer.batch_optimizer.max_batch_size = 16, 32
    optimizer.batch_optimizer.optimize_batch_size(model, loader())
    return len(optimizer.get_performance_summary()["batch_optimization"]["probes"]) > 0


def of_loader(name, **settings):
    return next(json.loads(now) for key, _, now, _ in pipeline_of(**settings).dataloader.applied if key == name)


# By field two values, and what differs between them in a run.
SEEN = {
    "optimization_level": ("basic", "advanced", lambda value: PerformanceOptimizer(value).config.enable_compile),
    "enable_compile": (True, False, lambda value: model_of(enable_compile=value)[0].model_optimizer.compiled is None),
    "enable_gradient_checkpointing": (True, False, lambda value: model_of(enable_gradient_checkpointing=value)[2]),
    "enable_flash_attention": (True, False, lambda value: kernel_of(enable_flash_attention=value)),
    "enable_memory_format_optimization": (
        True, False, lambda value: model_of(enable_memory_format_optimization=value)[1][0][0].weight.is_contiguous()),
    "memory_format": ("channels_last", "contiguous", lambda value: model_of(
        enable_memory_format_optimization=True, memory_format=value)[1][0][0].weight.is_contiguous()),
    "num_workers": (2, 1, lambda value: pipeline_of(num_workers=value).dataloader.num_workers),
    "persistent_workers": (True, False, lambda value: pipeline_of(num_workers=1, persistent_workers=value).dataloader.persistent_workers),
    "prefetch_factor": (3, 2, lambda value: pipeline_of(num_workers=1, prefetch_factor=value).dataloader.prefetch_factor),
    "enable_async_data_loading": (
        True, False, lambda value: of_loader("enable_async_data_loading", enable_async_data_loading=value)),
    "gradient_accumulation": (True, False, lambda value: loop_of(gradient_accumulation=value)["epochs"][0]["optimizer_steps"]),
    "gradient_accumulation_steps": (4, 2, lambda value: loop_of(gradient_accumulation_steps=value)["epochs"][0]["optimizer_steps"]),
    "enable_profiling": (True, False, lambda value: "profile" in loop_of(enable_profiling=value)["epochs"][0]),
    "enable_memory_profiling": (True, False, lambda value: "memory_profile" in loop_of(enable_memory_profiling=value)["epochs"][0]),
    "enable_memory_optimization": (True, False, lambda value: loop_of(enable_memory_optimization=value)["memory_cleanups"]),
    "batch_size_optimization": (True, False, lambda value: probes_of(batch_size_optimization=value)),
}
NEEDS_CUDA = ("enable_amp", "memory_threshold", "pin_memory")
OF_PARTS_NOT_BUILT = {"enable_caching": True, "cache_size": 10, "enable_compression": True, "enable_parallelization": True, "max_workers": 2}


@pytest.mark.parametrize("name", SEEN)
def test_a_field_has_an_effect_that_another_value_has_not(name):
    value, other, seen = SEEN[name]
    assert seen(value) != seen(other)


def test_fields_of_a_gpu_have_their_effect_on_one_and_say_so_elsewhere(monkeypatch):
    entries = loop_of(enable_amp=True, enable_memory_optimization=True, pin_memory=True)["features"]
    if not torch.cuda.is_available():
        assert "no CUDA" in entries["pin_memory"]["reason"]
    for name in ("enable_amp", "memory_threshold"):  # The model is on the CPU.
        assert entries[name]["status"] == "not applied" and "CUDA" in entries[name]["reason"]
    calls, types = [], []
    monkeypatch.setattr(performance_optimization._config, "device_type", lambda model: "cuda")
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 9 * 10**8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: type("Made", (), {"total_memory": 10**9}))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))

    def noting(outputs, targets):
        types.append(outputs.dtype)
        return criterion(outputs.float(), targets)

    for settings in ({"enable_amp": True, "memory_threshold": 0.8}, {"memory_threshold": 0.95}):
        model = nn.Linear(8, 4)
        PerformanceOptimizer(PerformanceConfig("custom", enable_memory_optimization=True, **settings)).optimize_training_loop(
            model, loader(16), sgd(model), noting, 1)
    assert types == [torch.float16, torch.float32] and calls == ["empty_cache"]


@pytest.mark.parametrize("name, value", OF_PARTS_NOT_BUILT.items())
def test_a_field_of_a_part_that_is_not_built_says_so_and_off_it_says_nothing(name, value):
    assert loop_of(**{name: value})["features"][name] == {"requested": value, "status": "not applied", "reason": NOT_BUILT}
    off = type(value)(0)
    assert loop_of(**{name: off})["features"][name] == {"requested": off, "status": "", "reason": ""}


def test_the_fields_that_are_looked_at_are_all_that_there_are():
    assert SEEN.keys() | set(NEEDS_CUDA) | OF_PARTS_NOT_BUILT.keys() == {field.name for field in fields(PerformanceConfig)}


# ---- Production and debugging ----


def test_production_keeps_what_optimizes_and_measures_nothing():
    model, seen = images(), set()

    def noting(outputs, targets):
        seen.update(thread.name for thread in threading.enumerate())
        return criterion(outputs, targets)

    names = {thread.name for thread in threading.enumerate()}
    optimizer = PerformanceOptimizer(PerformanceConfig.preset("production", enable_compile=False))
    results = optimizer.optimize_training_loop(model, loader(128, (3, 8, 8)), sgd(model), noting, 1)
    assert seen <= names and "profile" not in results["epochs"][0]
    for name in ("enable_memory_format_optimization", "gradient_accumulation", "enable_memory_optimization"):
        assert results["features"][name]["status"] == "applied"
    optimizer.optimize_training_pipeline(model, loader(), sgd(model), criterion)
    assert optimizer.tuning is None and optimizer.get_optimization_status()["live_tuning"]["reason"] == "enable_profiling is False"


def test_the_example_of_debugging_logs_each_epoch_at_the_level_debug(caplog):
    caplog.set_level(logging.DEBUG, "performance_optimization")
    config = PerformanceConfig(optimization_level="basic", enable_profiling=True, enable_memory_profiling=True)
    model = network()
    results = create_performance_optimizer(config).optimize_training_loop(model, loader(), sgd(model), criterion, 2)
    records = [record for record in caplog.records if record.levelno == logging.DEBUG]
    assert len(records) == 2 and all("'loss'" in record.getMessage() and "'profile'" in record.getMessage() for record in records)
    assert all(epoch["profile"]["steps"] == 4 and epoch["memory_profile"] for epoch in through_json(results)["epochs"])
    caplog.clear()
    PerformanceOptimizer(PerformanceConfig("basic")).optimize_training_loop(model, loader(), sgd(model), criterion, 1)
    assert [record for record in caplog.records if record.levelno == logging.DEBUG] == []


# ---- Hardware, and what is put back ----


def of_system():
    cudnn = torch.backends.cudnn
    return {"threads": torch.get_num_threads(), "affinity": os.sched_getaffinity(0), "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "cudnn": (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32), "deterministic": torch.are_deterministic_algorithms_enabled(),
            "variables": {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
            "running": threading.active_count()}


@pytest.mark.parametrize("settings", [{}, {"compute_threads": 3, "child_threads": 2, "reproducible": True}], ids=["published", "own"])
def test_one_call_applies_hardware_settings_and_cleanup_undoes_them(settings):
    before = of_system()
    optimizer = create_performance_optimizer("custom")
    told = optimizer.apply_hardware_settings(**settings, **({"affinity": [min(before["affinity"])]} if settings else {}))
    during = of_system()
    assert json.dumps(during["threads"]) == told["compute_threads"]["applied"]
    assert during["variables"]["OMP_NUM_THREADS"] == told["OMP_NUM_THREADS"]["applied"]
    if settings:
        assert (during["threads"], during["deterministic"], during["affinity"]) == (3, True, {min(before["affinity"])})
    assert through_json(optimizer.get_optimization_status())["hardware"]["settings"] == told
    optimizer.cleanup()
    assert of_system() == before and optimizer.get_optimization_status()["hardware"]["settings"] == {}


def test_the_end_of_a_block_cleans_up_also_where_it_raises():
    before = of_system()
    with pytest.raises(KeyError, match="mine"), PerformanceOptimizer("custom") as optimizer:
        optimizer.apply_hardware_settings(compute_threads=3)
        optimizer.apply_hardware_settings(compute_threads=2)
        raise KeyError("mine")
    assert of_system() == before


# ---- The examples ----


def test_the_example_of_a_status_has_its_two_keys():
    config = PerformanceConfig(optimization_level="advanced")
    performance_optimizer = create_performance_optimizer(config)
    status = performance_optimizer.get_optimization_status()
    assert status["config"]["mixed_precision"] is False and status["config"]["compile_enabled"] is False
    model = network()
    performance_optimizer.optimize_model(model)
    model(torch.randn(4, 8))
    assert performance_optimizer.get_optimization_status()["config"]["compile_enabled"] is True


def test_the_example_of_a_summary_has_its_four_keys_until_metrics_are_cleared():
    model = network()
    optimizer = PerformanceOptimizer(PerformanceConfig("basic"))
    optimizer.optimize_training_loop(model, loader(), sgd(model), criterion, num_epochs=2)
    optimizer.batch_optimizer.optimize_batch_size(model, loader())
    summary = through_json(optimizer.get_performance_summary())
    of_its_part = optimizer.batch_optimizer.get_performance_summary()
    assert summary["batch_optimization"] == through_json(of_its_part)["batch_optimization"]
    assert summary["features"]["batch_size_optimization"]["status"] == "applied"
    assert {"cache_stats", "memory_trends", "profiling_summary"} <= summary.keys() and len(summary["training_loops"]) == 1
    config, profiler = optimizer.config, optimizer.profiler
    with profiler.profile("scope"):
        pass
    optimizer.batch_optimizer.max_batch_size = 48
    optimizer.clear_metrics()
    cleared = optimizer.get_performance_summary()
    assert cleared["training_loops"] == [] and cleared["batch_optimization"]["probes"] == [] and optimizer.config is config
    assert cleared["profiling_summary"]["total_operations"] == 0 and optimizer.profiler is profiler
    assert optimizer.batch_optimizer.max_batch_size == 48  # A setting.
    optimizer.optimize_training_loop(model, loader(32), sgd(model), criterion, num_epochs=1)
    (again,) = optimizer.get_performance_summary()["training_loops"]
    assert [epoch["samples"] for epoch in again["epochs"]] == [32]


@pytest.mark.parametrize("config", [PerformanceConfig(cache_size=100, max_workers=2), PerformanceConfig("ultra"),
                                    PerformanceOptimizationConfig(), {"enable_compile": True}, "basic"])
def test_a_configuration_of_either_form_makes_an_object_with_all_its_attributes(config):
    optimizer = PerformanceOptimizer(config)
    assert optimizer.model_optimizer.config is optimizer.config
    for name, method in (("cache", "get_stats"), ("memory_optimizer", "get_memory_trends"), ("memory_manager", "get_memory_usage")):
        part = getattr(optimizer, name)
        assert str(part) == NOT_BUILT and not hasattr(part, method)
        with pytest.raises(AttributeError, match=f"^{name}.{method}: {NOT_BUILT}$"):
            getattr(part, method)()


def test_the_example_of_a_decorated_function_is_recorded_under_its_name():
    @profile_operation("data_preprocessing")
    def preprocess(values):
        return [2 * value for value in values]

    with hr.Trace() as trace:
        assert preprocess([1, 2]) == preprocess([1, 2]) == [2, 4]
    spans = {entry["name"]: entry["count"] for entry in trace.summary()["operations"]}
    assert spans["data_preprocessing"] == 2


def test_the_example_of_memory_trends_runs_up_to_what_is_not_built():
    optimizer = PerformanceOptimizer(PerformanceConfig("custom"))

    @profile_operation("model_training")
    def train_model():
        return "trained"

    assert train_model() == "trained"
    with pytest.raises(AttributeError, match=f"memory_optimizer.get_memory_trends: {NOT_BUILT}"):
        optimizer.memory_optimizer.get_memory_trends()


def test_the_example_of_a_monitor_runs_up_to_what_is_not_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    performance_optimizer = create_performance_optimizer()
    assert performance_optimizer.get_optimization_status()["features"]
    monitor = performance_optimizer.performance_monitor
    assert performance_optimizer.performance_monitor is monitor
    monitor.record_metrics(step=100, metrics={"loss": 0.5, "accuracy": 0.9})
    assert "average_step_time" in monitor.get_performance_summary()
    assert through_json(performance_optimizer.get_performance_summary())["performance_monitor"]["recorded"] == 1
    monitor.log_performance_report()
    with pytest.raises(AttributeError, match=f"memory_manager.get_memory_usage: {NOT_BUILT}"):
        performance_optimizer.memory_manager.get_memory_usage()
    performance_optimizer.clear_metrics()
    performance_optimizer.cleanup()


@pytest.mark.parametrize("is_on", [True, False])
def test_scopes_are_recorded_as_the_configuration_says(is_on):
    optimizer = PerformanceOptimizer(PerformanceConfig("custom", enable_profiling=is_on))
    with optimizer.profiler.profile("work"):
        pass
    assert optimizer.get_performance_summary()["profiling_summary"]["total_operations"] == int(is_on)


def test_the_example_of_a_failure_in_a_scope_tells_of_it_and_runs_up_to_what_is_not_built(caplog):
    logger = logging.getLogger("an_example")
    optimizer = PerformanceOptimizer(PerformanceConfig("custom", enable_profiling=True))

    def critical_operation():
        raise RuntimeError("mine")

    with pytest.raises(AttributeError, match=f"memory_optimizer.optimize_memory: {NOT_BUILT}"):
        try:
            with optimizer.profiler.profile("critical_operation"):
                critical_operation()
        except RuntimeError:
            summary = optimizer.get_performance_summary()
            logger.error("Operation failed: %s", json.dumps(summary, indent=2))
            optimizer.memory_optimizer.optimize_memory()
    (record,) = [record for record in caplog.records if record.name == "an_example"]
    assert json.loads(record.getMessage().partition(": ")[2])["profiling_summary"]["total_operations"] == 1


@pytest.mark.parametrize("part, keys, limit", [("cache_stats", ("cache_hit_rate",), lambda value: value < 0.5),
                                               ("memory_trends", ("cpu_memory_trend", "trend"), lambda value: value == "increasing")])
def test_the_example_of_alerts_over_a_summary_runs_up_to_what_is_not_built(part, keys, limit):
    alerts = []

    def check(optimizer):
        value = optimizer.get_performance_summary()[part]
        for key in keys:
            value = value[key]
        if limit(value):
            alerts.append(part)

    optimizer = PerformanceOptimizer(PerformanceConfig("custom"))
    with pytest.raises(KeyError, match=re.escape(f"{part}[{keys[0]!r}]: {NOT_BUILT}")):
        check(optimizer)
    summary = copy.deepcopy(optimizer.get_performance_summary())
    assert alerts == [] and through_json(summary)[part] == summary[part] == NOT_BUILT and summary[part][:11] == "unavailable"
    with pytest.raises(KeyError, match=re.escape(NOT_BUILT)):
        summary[part][keys[0]]


def test_an_integration_with_stability_asks_a_model_optimizer_as_a_performance_optimizer_does():
    model = images()
    manager = NumericalStabilityManager(performance_config=PerformanceOptimizationConfig(enable_model_compilation=False))
    manager.optimize_model(model)
    assert model[0][0].weight.is_contiguous(memory_format=torch.channels_last)


def test_the_function_of_a_pipeline_says_that_the_loader_stays():
    model, dataloader = network(), loader()
    data = optimize_training_pipeline(model, dataloader, sgd(model), criterion, PerformanceConfig("custom", num_workers=2))["data"]
    assert data["num_workers"]["status"] == "not applied" and "the loader that was given" in data["num_workers"]["reason"]
    assert dataloader.num_workers == 0


def test_the_function_of_a_pipeline_tunes_the_loop_that_follows():
    model, dataloader = network(), loader()
    optimizer = sgd(model)
    before = hooks_like(model, optimizer, dataloader)
    summary = optimize_training_pipeline(model, dataloader, optimizer, criterion, PerformanceConfig("basic", num_workers=0))
    assert summary["training"]["enable_amp"]["status"] == "" and hooks_like(model, optimizer, dataloader) != before
    assert summary["data"]["num_workers"] == {"requested": 0, "status": "applied", "reason": ""}  # As it is.
    train(model, dataloader, optimizer)
