"""ModelOptimizer, PerformanceConfig and PerformanceOptimizer, by the names that published examples use."""

import copy
import json
import os
import pickle

import headrace as hr
import pytest
import torch
from performance_optimization_system import (MemoryFormat, ModelOptimizer, OptimizationLevel, PerformanceConfig,
                                             PerformanceOptimizationConfig, PerformanceOptimizer, create_performance_optimizer,
                                             training_step_with_amp)
from torch import nn


def as_captured(graph, inputs):
    return graph.forward


def failing(graph, inputs):
    raise RuntimeError("no such instruction")


@pytest.fixture(autouse=True)
def no_compiler(nothing_compiled, monkeypatch):
    monkeypatch.setattr("headrace._compiled.MODES", (failing, as_captured))


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), nn.Flatten(),
                         nn.Linear(8 * 4 * 4, 4))


def image() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def gradients_of(model):
    model.zero_grad()
    outputs = model(image())
    outputs.square().sum().backward()
    return [outputs.detach(), *(parameter.grad for parameter in model.parameters())]


# ---- The configuration ----


def test_a_configuration_without_arguments_has_the_defaults_of_both_its_forms():
    config = PerformanceConfig()
    found = {name: getattr(config, name) for name in ("enable_caching", "enable_parallelization", "enable_memory_optimization",
                                                      "enable_profiling", "enable_compression", "cache_size", "max_workers",
                                                      "memory_threshold", "batch_size_optimization", "mixed_precision",
                                                      "gradient_accumulation", "gradient_accumulation_steps")}
    assert list(found.values()) == [True, True, True, True, True, 1000, os.cpu_count(), 0.8, True, True, True, 4]
    assert (config.num_workers, config.pin_memory, config.persistent_workers, config.prefetch_factor,
            config.enable_async_data_loading) == (4, True, True, 2, True)
    assert (config.optimization_level, config.memory_format) == (OptimizationLevel.ADVANCED, MemoryFormat.CHANNELS_LAST)
    assert config.enable_amp and config.enable_compile and config.enable_gradient_checkpointing
    assert config.enable_memory_format_optimization and not config.enable_flash_attention and not config.enable_memory_profiling


@pytest.mark.parametrize("level, four, flash, workers, steps", [
    ("basic", False, False, 4, 1), ("advanced", True, False, 4, 1), ("ULTRA", True, True, 8, 8), ("custom", False, False, 4, 4)])
def test_a_level_gives_defaults_by_name_or_member_and_what_is_said_goes_before_it(level, four, flash, workers, steps):
    config = PerformanceConfig(level)
    assert config == PerformanceConfig(optimization_level=OptimizationLevel[level.upper()])
    switches = (config.enable_amp, config.enable_compile, config.enable_gradient_checkpointing, config.enable_memory_format_optimization)
    assert switches == (four,) * 4
    assert (config.enable_flash_attention, config.num_workers, config.gradient_accumulation_steps) == (flash, workers, steps)
    other = PerformanceConfig(level, enable_amp=not four, num_workers=3)
    assert other.enable_amp is (not four) and other.num_workers == 3 and other.enable_compile is four


def test_names_of_one_setting_never_disagree():
    for alias, name in (("mixed_precision", "enable_amp"), ("enable_mixed_precision", "enable_amp"),
                        ("enable_batch_optimization", "batch_size_optimization")):
        config = PerformanceConfig(**{alias: False})
        assert getattr(config, alias) is getattr(config, name) is False
        setattr(config, alias, True)
        assert getattr(config, name) is True
        with pytest.raises(ValueError, match="names of the same setting"):
            PerformanceConfig(**{alias: False, name: True})
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("make, error, words", [
    (lambda: PerformanceConfig("fast"), ValueError, r"optimization_level: wanted basic \| advanced \| ultra \| custom, found 'fast'"),
    (lambda: PerformanceConfig(memory_format="nhwc"), ValueError, "memory_format: wanted contiguous"),
    (lambda: PerformanceConfig(enable_compil=True), TypeError, "no setting is called 'enable_compil'; did you mean 'enable_compile'"),
    (lambda: PerformanceConfig().workers, AttributeError, "PerformanceConfig has no setting 'workers'")])
def test_what_is_no_setting_is_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


# ---- The examples ----


def test_the_example_of_compilation_that_fails_goes_on_with_the_next_mode_and_shows_its_attempts():
    config = PerformanceConfig(optimization_level="custom", enable_compile=True)
    optimizer, model, plain = create_performance_optimizer(config), network(), network()
    optimized = optimizer.model_optimizer.optimize_model(model)
    assert optimized is model
    before = optimizer.get_optimization_status()
    assert before["config"]["compile_enabled"] is False
    assert before["features"]["enable_compile"]["reason"] == "the model was not called yet: torch compiles at its first call"
    for _ in range(2):
        torch.testing.assert_close(optimized(image()), plain(image()), rtol=1e-5, atol=1e-6)
    status = json.loads(json.dumps(optimizer.get_optimization_status(), allow_nan=False))
    assert status["config"]["compile_enabled"] is True and status["compilation"]["applied"] == "as_captured"
    attempts = [(one["mode"], one["tried"], one["applied"], one["reason"]) for one in status["compilation"]["attempts"]]
    assert attempts == [("failing", True, False, "RuntimeError: no such instruction"), ("as_captured", True, True, ""),
                        ("eager", False, False, "a mode before it is in use")]


def test_where_no_mode_applies_it_is_said_and_the_model_runs_on():
    optimizer = PerformanceOptimizer(PerformanceConfig("custom", enable_compile=True), compile_modes=[failing])
    model = optimizer.optimize_model(network(), image())
    assert torch.equal(model(image()), network()(image()))
    entry = optimizer.get_optimization_status()["features"]["enable_compile"]
    assert entry == {"requested": True, "status": "not applied", "reason": "failing: RuntimeError: no such instruction"}


def test_the_example_of_the_level_ultra_sets_a_model_up():
    config = PerformanceConfig(optimization_level="ultra", enable_amp=True, enable_compile=True, enable_gradient_checkpointing=True,
                               enable_flash_attention=True, enable_memory_format_optimization=True, num_workers=8,
                               gradient_accumulation_steps=8)
    performance_optimizer = create_performance_optimizer(config)
    model, plain = network(), network()
    optimized_model = performance_optimizer.model_optimizer.optimize_model(model)
    for _ in range(2):
        for found, wanted in zip(gradients_of(optimized_model), gradients_of(plain), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert optimized_model[0][0].weight.is_contiguous(memory_format=torch.channels_last)
    features = performance_optimizer.get_optimization_status()["features"]
    for name in ("enable_memory_format_optimization", "enable_compile"):
        assert features[name] == {"requested": True, "status": "applied", "reason": ""}
    assert features["enable_gradient_checkpointing"] == {"requested": True, "status": "not applied",
                                                         "reason": "torch.compile chooses by itself what it computes again"}
    performance_optimizer.model_optimizer.compiled.undo()
    assert performance_optimizer.get_optimization_status()["features"]["enable_gradient_checkpointing"]["status"] == "applied"
    for name in ("enable_amp", "enable_flash_attention", "num_workers", "gradient_accumulation_steps", "enable_caching"):
        assert features[name]["status"] == "not applied" and features[name]["reason"], name
    assert features["enable_memory_profiling"] == {"requested": False, "status": "", "reason": ""}


@pytest.mark.parametrize("kernel, asked, entry", [
    ("auto", "flash", {"requested": True, "status": "applied", "reason": ""}),
    ("math", "math", {"requested": True, "status": "not applied", "reason": "wanted flash, the last forward ran math"})])
def test_flash_attention_is_asked_for_of_attention_modules_and_applied_where_it_ran(kernel, asked, entry):
    torch.manual_seed(3)
    model, inputs = hr.MultiheadAttention(16, 4, batch_first=True, kernel=kernel), torch.randn(2, 5, 16)
    plain = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    plain.load_state_dict(model.state_dict())
    optimizer = PerformanceOptimizer(PerformanceConfig("custom", enable_flash_attention=True))
    optimizer.optimize_model(model)
    assert model.attention.kernel == asked
    assert optimizer.get_optimization_status()["features"]["enable_flash_attention"]["status"] == "not applied"  # Nothing ran yet.
    torch.testing.assert_close(model(inputs, inputs, inputs)[0], plain(inputs, inputs, inputs)[0], rtol=1e-5, atol=1e-5)
    assert optimizer.get_optimization_status()["features"]["enable_flash_attention"] == entry


def test_without_an_argument_the_level_is_advanced():
    assert create_performance_optimizer().config == PerformanceConfig("advanced")


# ---- A model ----


@pytest.mark.parametrize("setting", ModelOptimizer.SETTINGS)
def test_each_setting_alone_changes_no_result_and_off_it_changes_nothing(setting):
    model = network()
    optimizer = ModelOptimizer(PerformanceConfig("custom", **{setting: True}))
    assert optimizer.report()[setting]["reason"] == "wanted optimize_model(model), which was not called"
    optimizer.optimize_model(model)
    model(image())  # In which the first mode fails.
    for found, wanted in zip(gradients_of(model), gradients_of(network()), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    told = optimizer.report()
    assert {name: told[name]["status"] for name in ModelOptimizer.SETTINGS} == {
        name: "applied" if name == setting else "" for name in ModelOptimizer.SETTINGS}

    untouched = network()
    ModelOptimizer(PerformanceConfig("custom")).optimize_model(untouched)
    assert untouched.__dict__.keys() == network().__dict__.keys() and not untouched._forward_pre_hooks
    assert untouched[0][0].weight.is_contiguous()


def test_a_format_that_the_model_has_no_weights_for_is_not_applied():
    optimizer = ModelOptimizer(PerformanceConfig("custom", enable_memory_format_optimization=True, memory_format="channels_last_3d"))
    optimizer.optimize_model(network())
    assert optimizer.report()["enable_memory_format_optimization"] == {
        "requested": True, "status": "not applied", "reason": "the model has no 3-d convolution whose weights could be channels-last"}


def test_set_up_again_it_is_compiled_anew_and_once():
    optimizer, model = ModelOptimizer(PerformanceConfig("custom", enable_compile=True)), network()
    for _ in range(2):
        assert optimizer.optimize_model(model, image()) is model
        assert optimizer.compile_enabled and optimizer.report()["compilation"]["attempts"][1]["compiled_ms"] > 0
    optimizer.compiled.undo()
    assert "forward" not in model.__dict__ and not optimizer.compile_enabled


def test_an_integration_asks_for_what_it_enables():
    asked = PerformanceOptimizationConfig().performance_config()
    assert asked.enable_compile and asked.enable_memory_format_optimization
    off = PerformanceOptimizationConfig(enable_performance_optimization=False).performance_config()
    assert not off.enable_compile and not off.enable_memory_format_optimization and not off.enable_gradient_checkpointing
    of_levels = {}
    for level in ("basic", "advanced", "ultra"):
        asked = PerformanceOptimizationConfig(optimization_level=level).performance_config()
        of_levels[level] = asked.enable_gradient_checkpointing, asked.enable_flash_attention
    assert of_levels == {"basic": (False, False), "advanced": (True, False), "ultra": (True, True)}
    said = PerformanceOptimizationConfig(optimization_level="ultra", enable_gradient_checkpointing=False).performance_config()
    assert (said.enable_gradient_checkpointing, said.enable_flash_attention) == (False, True)
    said = PerformanceOptimizationConfig(optimization_level="basic", enable_flash_attention=True).performance_config()
    assert (said.enable_gradient_checkpointing, said.enable_flash_attention) == (False, True)


def test_a_performance_optimizer_is_no_optimizer_of_a_step():
    with pytest.raises(TypeError, match="wanted a torch.optim.Optimizer .*, found PerformanceOptimizer; a performance optimizer"):
        training_step_with_amp(network(), (image(), torch.zeros(2)), create_performance_optimizer(), None, nn.functional.mse_loss)
    with pytest.raises(hr.errors.InvalidArgumentError, match="model: wanted a torch.nn.Module, found list"):
        ModelOptimizer(PerformanceConfig("custom", enable_compile=True)).optimize_model([])
