"""Mixed precision, numerical stability and steps by hand, by the names that published examples use."""

import collections
import copy
import dataclasses
import logging
import math
import os
import re
from types import SimpleNamespace

import pytest
import torch
from performance_optimization_system import (ClippingConfig, DebugConfig, NanConfig, NumericalStabilityManager,
                                             PerformanceOptimizationConfig, RxVisionTrainer, create_training_wrapper,
                                             setup_mixed_precision_training, training_step_with_amp)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="of a machine without CUDA")


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(16, 4, generator=generator) for _ in range(count)]
    return [(part, part.sum(1, keepdim=True)) for part in inputs]


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr)


def of_the_head(model, lr=0.05):
    """Leaves the first layer, whose gradients a backward makes too, alone."""
    return torch.optim.SGD(model[2].parameters(), lr=lr)


def clipped_steps_of_the_head(model, data, max_grad_norm):
    optimizer = of_the_head(model)
    for inputs, targets in data:
        model.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model[2].parameters(), max_grad_norm)
        optimizer.step()


class PerformanceOptimizer:
    """What its name says, and no optimizer of parameters."""

    def step(self):
        pass


def assert_same(ours, theirs, tolerance=0.0):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# ---- Mixed precision ----


class RecordingScaler:
    """Notes its calls; the loss scale is 1024."""

    def __init__(self, calls):
        self.calls = calls

    def scale(self, loss):
        self.calls.append("scale")
        return loss * 1024.0

    def step(self, optimizer):
        self.calls.append("step")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(1024.0)
        optimizer.step()

    def update(self):
        self.calls.append("update")


@without_cuda
def test_without_cuda_there_is_no_mixed_precision_and_it_is_logged(caplog):
    caplog.set_level(logging.INFO, "performance_optimization")
    assert setup_mixed_precision_training(SimpleNamespace(batch_size=8)) == (False, None)
    assert [record.getMessage() for record in caplog.records] == ["mixed precision: off: wanted CUDA, found none"]


def test_with_cuda_there_is_a_new_scaler_unless_the_configuration_says_no(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "performance_optimization")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device: SimpleNamespace(device=device, get_scale=lambda: 65536.0))
    enabled, scaler = setup_mixed_precision_training({"mixed_precision": True})
    assert enabled and scaler.device == "cuda" and "begins at 65536" in caplog.records[-1].getMessage()
    assert setup_mixed_precision_training({"enable_amp": False}) == (False, None)
    with pytest.raises(ValueError, match="enable_mixed_precision=True, enable_amp=False, which are names of the same setting"):
        setup_mixed_precision_training({"enable_amp": False, "enable_mixed_precision": True})


def test_a_step_with_amp_zeroes_scales_steps_and_updates_in_that_order():
    model, calls, seen = network(), [], []
    optimizer, (batch,) = sgd(model), batches(1)
    zero_grad = optimizer.zero_grad
    optimizer.zero_grad = lambda *given, **options: (calls.append("zero_grad"), zero_grad(*given, **options))
    model[2].bias.register_hook(lambda gradient: calls.append("backward"))

    def criterion(outputs, targets):
        calls.append("loss")
        seen.append((outputs.dtype, torch.is_autocast_enabled("cpu")))
        return nn.functional.mse_loss(outputs.float(), targets)

    before = copy.deepcopy(model.state_dict())
    loss = training_step_with_amp(model, (*batch, "a.jpg"), optimizer, RecordingScaler(calls), criterion)
    assert calls == ["zero_grad", "loss", "scale", "backward", "step", "update"]
    assert seen == [(torch.bfloat16, True)]
    model.load_state_dict(before)
    with torch.no_grad(), torch.autocast("cpu"):
        assert loss == nn.functional.mse_loss(model(batch[0]).float(), batch[1]).item()


@without_cuda
def test_the_example_of_mixed_precision_trains_as_the_plain_loop_does_without_cuda():
    criterion = nn.MSELoss()
    theirs, model = network(), network()
    optimizer = sgd(theirs)
    for inputs, targets in batches(20):
        optimizer.zero_grad()
        criterion(theirs(inputs), targets).backward()
        optimizer.step()
    use_amp, scaler = setup_mixed_precision_training({})
    assert not use_amp
    optimizer = sgd(model)
    losses = [training_step_with_amp(model, batch, optimizer, scaler, criterion) for batch in batches(20)]
    assert losses[-1] < losses[0]
    assert_same(model.state_dict(), theirs.state_dict())


def test_a_scaler_that_is_off_asks_for_full_precision():
    model, seen = network(), []

    def criterion(outputs, targets):
        seen.append(outputs.dtype)
        return nn.functional.mse_loss(outputs, targets)

    training_step_with_amp(model, batches(1)[0], sgd(model), torch.amp.GradScaler("cpu", enabled=False), criterion)
    assert seen == [torch.float32]


def test_a_performance_optimizer_is_no_optimizer_and_a_model_wants_parameters():
    model, (batch,), mse = network(), batches(1), nn.functional.mse_loss
    wrapper = create_training_wrapper()
    for step in (lambda: training_step_with_amp(model, batch, PerformanceOptimizer(), None, mse),
                 lambda: RxVisionTrainer(model, PerformanceOptimizer()),
                 lambda: wrapper.step(model, batch, PerformanceOptimizer(), mse),
                 lambda: wrapper.manager.step(model, mse(model(batch[0]), batch[1]), PerformanceOptimizer())):
        with pytest.raises(TypeError, match="wanted a torch.optim.Optimizer .*, found PerformanceOptimizer; a performance optimizer"):
            step()
    empty = nn.ReLU()
    with pytest.raises(ValueError, match="model: wanted one with parameters, found none in ReLU"):
        training_step_with_amp(empty, batch, sgd(model), None, mse)
    with pytest.raises(ValueError, match="model: wanted one with parameters, found none in ReLU"):
        RxVisionTrainer(empty, sgd(model))


# ---- Steps by hand ----


class NormNoting(torch.optim.SGD):
    """Notes the norm of all gradients just before each step."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.norms = []

    def step(self, closure=None):
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        self.norms.append(torch.nn.utils.get_total_norm(gradients).item())
        return super().step(closure)


class Regression(RxVisionTrainer):
    def compute_loss(self, batch):
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])


def test_a_class_that_gives_its_loss_trains_and_its_gradients_are_clipped_after_they_were_unscaled():
    model = network()
    optimizer = NormNoting(model.parameters(), lr=0.05)
    trainer = Regression(model, optimizer, SimpleNamespace(max_grad_norm=0.25), scaler=torch.amp.GradScaler("cpu"))
    assert trainer.scaler.get_scale() == 65536.0 and trainer.automatic_optimization is False
    means = trainer.fit(batches(10), epochs=10)
    assert means[-1] < means[0]
    assert len(optimizer.norms) == 100 and max(optimizer.norms) <= 0.25 + 1e-6
    assert optimizer.norms[0] == pytest.approx(0.25, rel=1e-4)  # Clipped before, it would be 0.25 / 65536.


def test_a_norm_is_limited_to_1_where_hparams_say_nothing():
    for hparams in (None, {}, SimpleNamespace(lr=1.0), {"max_grad_norm": 2.0}):
        wanted = 2.0 if hparams == {"max_grad_norm": 2.0} else 1.0
        model = network()
        assert Regression(model, sgd(model), hparams).hparams.max_grad_norm == wanted


def test_an_update_is_clipped_once_by_whichever_name_hparams_have():
    model = network()
    assert Regression(model, sgd(model), {"gradient_clip_val": 0.5}).hparams.max_grad_norm == 0.5
    assert Regression(model, sgd(model), {"gradient_clip_val": 0.5, "max_grad_norm": 0.5}).hparams.max_grad_norm == 0.5
    with pytest.raises(ValueError, match="found max_grad_norm=1.0, gradient_clip_val=0.5, which are names of the same setting"):
        Regression(model, sgd(model), {"gradient_clip_val": 0.5, "max_grad_norm": 1.0})


class OfAClass:
    max_grad_norm = 0.25

    def method(self):
        pass


@dataclasses.dataclass(slots=True)
class Slots:
    max_grad_norm: float = 0.25
    activation: object = torch.relu


@pytest.mark.parametrize("hparams", [OfAClass(), Slots(), collections.namedtuple("Named", ["max_grad_norm"])(0.25),
                                     {"max_grad_norm": 0.25}, SimpleNamespace(max_grad_norm=0.25, activation=torch.relu)])
def test_hparams_may_be_of_any_form(hparams):
    model = network()
    found = Regression(model, sgd(model), hparams).hparams
    assert found.max_grad_norm == 0.25 and not hasattr(found, "method") and not hasattr(found, "count")
    assert hasattr(found, "activation") == hasattr(hparams, "activation")


def test_a_trainer_clips_by_the_gradients_of_what_its_optimizer_steps():
    theirs, ours = network(), network()
    clipped_steps_of_the_head(theirs, batches(5), 0.25)
    Regression(ours, of_the_head(ours), {"max_grad_norm": 0.25}).fit(batches(5))
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)


def test_the_example_of_a_trainer_with_manual_optimization_trains_as_the_plain_loop_does():
    class Mine(RxVisionTrainer):
        def configure_training(self):
            self.automatic_optimization = False
            self.scaler = torch.amp.GradScaler("cpu")

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            with torch.autocast("cpu", enabled=False):
                loss = self.compute_loss(batch)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.hparams.max_grad_norm)
            self.scaler.step(optimizer)
            self.scaler.update()
            return loss.detach()

        compute_loss = Regression.compute_loss

    theirs, model = network(), network()
    optimizer = sgd(theirs)
    for inputs, targets in batches(20):
        optimizer.zero_grad()
        nn.functional.mse_loss(theirs(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
    Mine(model, sgd(model), {"max_grad_norm": 1.0}).fit(batches(20))
    assert_same(model.state_dict(), theirs.state_dict(), tolerance=1e-6)


def test_a_trainer_without_a_loss_and_a_loader_without_a_batch_are_named():
    model = network()
    with pytest.raises(NotImplementedError, match="RxVisionTrainer.compute_loss: wanted a method"):
        RxVisionTrainer(model, sgd(model)).fit(batches(1))
    with pytest.raises(ValueError, match="Regression.fit: wanted a batch in epoch 0, found none"):
        Regression(model, sgd(model)).fit([])


# ---- Numerical stability ----


def test_names_of_mixed_precision_are_one_setting():
    names = ("enable_mixed_precision", "mixed_precision", "enable_amp")
    for name in names:
        config = PerformanceOptimizationConfig(**{name: False})
        assert [getattr(config, other) for other in names] == [False] * 3
        setattr(config, name, True)
        assert [getattr(config, other) for other in names] == [True] * 3
        other = next(other for other in names if other != name)
        with pytest.raises(ValueError, match="names of the same setting"):
            PerformanceOptimizationConfig(**{name: False, other: True})
    assert PerformanceOptimizationConfig() == PerformanceOptimizationConfig(True, "advanced", True, True, True, True)


@without_cuda
def test_a_setting_without_its_capability_says_that_it_is_not_applied_and_why():
    assert PerformanceOptimizationConfig().report()["enable_memory_optimization"] == {
        "requested": True, "status": "not applied", "reason": "wanted optimize_model(model), which was not called"}
    report = PerformanceOptimizationConfig(enable_memory_optimization=False).report()
    assert report["enable_mixed_precision"] == {"requested": True, "status": "not applied", "reason": "wanted CUDA, found none"}
    assert report["enable_model_compilation"]["status"] == "not applied" and report["enable_model_compilation"]["reason"]
    assert report["integrate_with_stability"] == {"requested": True, "status": "applied", "reason": ""}
    assert report["enable_memory_optimization"] == {"requested": False, "status": "", "reason": ""}
    off = PerformanceOptimizationConfig(enable_performance_optimization=False).report()
    assert {entry["status"] for entry in off.values()} == {"not applied"}
    with pytest.raises(ValueError, match="optimization_level: wanted basic | advanced | ultra, found 'fast'".replace("|", r"\|")):
        PerformanceOptimizationConfig(optimization_level="fast")


@pytest.mark.parametrize("make, words", [
    (lambda: ClippingConfig(max_grad_norm=-1), "ClippingConfig.max_grad_norm: wanted a number above 0, and finite, found -1"),
    (lambda: ClippingConfig(max_grad_norm=0.0), "found 0.0"), (lambda: ClippingConfig(max_grad_norm=math.inf), "found inf"),
    (lambda: ClippingConfig(clip_grad_value=math.nan), "ClippingConfig.clip_grad_value: wanted a number above 0, and finite, found nan"),
    (lambda: ClippingConfig(clip_factor="0.01"), "ClippingConfig.clip_factor: wanted a number above 0, and finite, found '0.01'"),
    (lambda: ClippingConfig(mode="all"), "ClippingConfig.mode: wanted norm | value | layer | adaptive, found 'all'"),
    (lambda: NanConfig(keep_every=0), "NanConfig.keep_every: wanted a whole number above 0, found 0"),
    (lambda: NanConfig(max_in_a_row=1.5), "NanConfig.max_in_a_row: wanted a whole number above 0, found 1.5"),
    (lambda: NanConfig(lr_factor=2.0), "NanConfig.lr_factor: wanted a number above 0 and below 1, found 2.0"),
    (lambda: DebugConfig(suspicious_factor=1), "DebugConfig.suspicious_factor: wanted a number above 1, and finite, found 1"),
    (lambda: NanConfig("stop"), "NanConfig.policy: wanted raise | skip | replace | lower_lr | rollback, found 'stop'")])
def test_a_value_that_cannot_be_is_refused_by_its_name(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_configurations_without_arguments_have_the_defaults_of_their_names():
    assert (ClippingConfig().mode, ClippingConfig().max_grad_norm) == ("norm", 1.0)
    assert NanConfig().policy == "raise" and not DebugConfig().detect_anomaly and not DebugConfig().gradient_statistics


PARTS = {"clipping_config": ClippingConfig, "nan_config": NanConfig, "debug_config": DebugConfig,
         "performance_config": PerformanceOptimizationConfig}


@pytest.mark.parametrize("given", [*[(name,) for name in PARTS], (), tuple(PARTS)], ids=lambda given: "+".join(given) or "none")
def test_each_configuration_may_stand_alone(given):
    model = network()
    manager = NumericalStabilityManager(**{name: PARTS[name]() for name in given})
    for inputs, targets in batches(3):
        result = manager.step(model, nn.functional.mse_loss(model(inputs), targets), sgd(model))
    assert math.isfinite(result["loss"]) and manager.steps == 3
    assert ("performance_metrics" in result) == ("performance_config" in given)


def test_a_guarded_step_is_a_clipped_step_written_by_hand_also_where_backward_was_run_before():
    theirs, ours, other = network(), network(), network()
    optimizers = [sgd(model, lr=0.5) for model in (theirs, ours, other)]
    manager = NumericalStabilityManager(ClippingConfig(max_grad_norm=0.1), NanConfig())
    for inputs, targets in batches(5):
        optimizers[0].zero_grad()
        nn.functional.mse_loss(theirs(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        optimizers[0].step()
        result = manager.step(ours, nn.functional.mse_loss(ours(inputs), targets), optimizers[1])
        assert result["clipped"] and result["gradient_norm"] > 0.1 >= result["gradient_norm_clipped"] - 1e-6
        loss = nn.functional.mse_loss(other(inputs), targets)
        loss.backward()
        manager.step(other, loss, optimizers[2])
    assert manager.clip_count == 10
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)
    assert_same(other.state_dict(), ours.state_dict())


@pytest.mark.parametrize("make_scaler", [lambda: None, lambda: torch.amp.GradScaler("cpu")], ids=["no scaler", "scaler"])
def test_what_the_optimizer_does_not_step_changes_no_step(make_scaler):
    theirs, ours, wrapped, data, config = network(), network(), network(), batches(5), ClippingConfig(max_grad_norm=0.25)
    clipped_steps_of_the_head(theirs, data, 0.25)
    manager, wrapper = NumericalStabilityManager(config, NanConfig()), create_training_wrapper(config, NanConfig())
    optimizer, other, scaler = of_the_head(ours), of_the_head(wrapped), make_scaler()
    for inputs, targets in data:
        result = manager.step(ours, nn.functional.mse_loss(ours(inputs), targets), optimizer, scaler)
        assert not result["skipped"]
        assert wrapper.step(wrapped, (inputs, targets), other, nn.functional.mse_loss, scaler)["gradient_norm"] == pytest.approx(
            result["gradient_norm"])
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)
    assert_same(wrapped.state_dict(), theirs.state_dict(), tolerance=1e-6)


def test_statistics_of_gradients_are_their_norms_by_name():
    model = nn.Linear(2, 1)
    manager = NumericalStabilityManager(debug_config=DebugConfig(gradient_statistics=True))
    result = manager.step(model, model.weight[0, 0] * 3.0 + model.bias[0] * 4.0, sgd(model))
    assert result["gradient_norms"] == {"weight": 3.0, "bias": 4.0} and result["gradient_norm"] == 5.0
    assert "gradient_norms" not in NumericalStabilityManager().step(model, model.bias.sum(), sgd(model))


def test_statistics_of_activations_are_those_of_each_module_of_the_steps_own_forward():
    class Planted(nn.Module):
        def forward(self, inputs):
            return torch.tensor([[0.0, 3.0], [-4.0, math.inf]]) + 0 * inputs[:2, :1]

    model = nn.Sequential(nn.Linear(2, 2), Planted(), nn.Linear(2, 1))
    wrapper = create_training_wrapper(debug_config=DebugConfig(activation_statistics=True))
    batch = torch.randn(2, 2), torch.zeros(2, 1)
    result = wrapper.step(model, batch, sgd(model), lambda outputs, targets: outputs[:1].sum())
    assert list(result["activation_statistics"]) == ["0", "1", "2"]
    of_planted = result["activation_statistics"]["1"]
    assert of_planted == pytest.approx({"mean": -1 / 3, "std": (74 / 9) ** 0.5, "abs_max": 4.0, "zeros": 0.25, "not_finite": 1})
    assert not any(module._forward_hooks for module in model.modules())
    manager = wrapper.manager
    assert "activation_statistics" not in manager.step(model, model[0].weight.sum(), sgd(model))  # Its forward was not looked at.
    with manager.debugged_forward(model):
        loss = model(batch[0])[:1].sum()
    assert list(manager.step(model, loss, sgd(model))["activation_statistics"]) == ["0", "1", "2"]


def test_what_is_not_asked_for_hooks_nothing_and_logs_nothing(caplog):
    model = nn.Linear(2, 1)
    seen = []
    wrapper = create_training_wrapper(debug_config=DebugConfig())

    def criterion(outputs, targets):
        seen.append(len(model._forward_hooks))
        return outputs.sum() * (1e6 if len(seen) > 11 else 1.0)

    for _ in range(12):
        assert "activation_statistics" not in wrapper.step(model, (torch.ones(1, 2), None), sgd(model), criterion)
    assert seen == [0] * 12 and caplog.records == []


class Counted(TorchDispatchMode):
    """Counts the operators that run within it."""

    count = 0

    def __torch_dispatch__(self, function, types, given=(), options=None):
        self.count += 1
        return function(*given, **(options or {}))


def operators_of_a_step(debug_config):
    model, (batch,) = network(), batches(1)
    wrapper, optimizer = create_training_wrapper(ClippingConfig(), NanConfig(), debug_config), sgd(model)
    with Counted() as counted:
        wrapper.step(model, batch, optimizer, nn.functional.mse_loss)
    return counted.count


def test_what_is_off_runs_no_operator():
    """PREC-13: off costs less than 1 %, of whatever a step costs."""
    plain = operators_of_a_step(None)
    assert operators_of_a_step(DebugConfig()) == plain > 0
    assert operators_of_a_step(DebugConfig(activation_statistics=True)) > plain


def test_a_step_that_looks_wrong_is_logged_with_what_it_is_compared_with(caplog):
    model = nn.Linear(1, 1, bias=False)
    debug_config = DebugConfig(log_suspicious_steps=True, suspicious_factor=5)
    manager = NumericalStabilityManager(nan_config=NanConfig("skip"), debug_config=debug_config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for slope in [2.0] * 12 + [30.0, 2.0, math.nan]:
        nn.init.ones_(model.weight)
        manager.step(model, model.weight.sum() * slope, optimizer)
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("performance_optimization", "WARNING", "step 13: loss is 30, 15.0 times the median of the 12 steps before; "
                                                "gradient_norm is 30, 15.0 times the median of the 12 steps before"),
        ("performance_optimization", "WARNING", "step 15: loss is not finite; loss is nan; its update was left out")]


@pytest.mark.parametrize("config, wanted", [
    (ClippingConfig("norm", max_grad_norm=1.0), [[0.6, 0.0], [0.8]]),
    (ClippingConfig("layer", max_grad_norm=3.5), [[3.0, 0.0], [3.5]]),
    (ClippingConfig("value", clip_grad_value=2.0), [[2.0, 0.0], [2.0]]),
    (ClippingConfig("adaptive", clip_factor=0.5), [[2.5, 0.0], [0.5e-3]]),
    (ClippingConfig("norm", max_grad_norm=5.5), [[3.0, 0.0], [4.0]]),
], ids=["norm", "layer", "value", "adaptive", "below the limit"])
def test_each_mode_clips_to_the_values_computed_by_hand(config, wanted):
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
        model.bias.zero_()
    loss = model.weight[0, 0] * 3.0 + model.bias[0] * 4.0
    taken = []
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(lambda *given: taken.extend([model.weight.grad[0].tolist(), model.bias.grad.tolist()]))
    result = NumericalStabilityManager(config).step(model, loss, optimizer)
    assert [value for part in taken for value in part] == pytest.approx([value for part in wanted for value in part], rel=1e-5)
    assert result["clipped"] == (wanted != [[3.0, 0.0], [4.0]]) and result["gradient_norm"] == 5.0
    assert result["clipped"] or taken == wanted  # Bit for bit.


@pytest.mark.parametrize("policy", ["raise", "skip", "replace", "lower_lr", "rollback"])
def test_a_nan_of_one_step_is_named_and_each_policy_does_what_it_says(policy):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    manager = NumericalStabilityManager(nan_config=NanConfig(policy=policy))
    for i, (inputs, targets) in enumerate(batches(8)):
        before = copy.deepcopy(model.state_dict())
        hook = model[2].weight.register_hook(lambda gradient: gradient * math.nan) if i == 4 else None
        loss = nn.functional.mse_loss(model(inputs), targets)
        if i == 4 and policy == "raise":
            with pytest.raises(FloatingPointError, match="gradient of 2.weight is not finite in step 5"):
                manager.step(model, loss, optimizer)
            assert_same(model.state_dict(), before)
        else:
            result = manager.step(model, loss, optimizer)
            if i == 4:
                assert result["nan_detected"] == "gradient of 2.weight is not finite" and result["nan_count"] == 1
                assert result["skipped"] == (policy != "replace")
                if policy != "replace":
                    assert_same(model.state_dict(), before)
        if hook is not None:
            hook.remove()
    assert optimizer.param_groups[0]["lr"] == (0.025 if policy == "lower_lr" else 0.05)
    assert math.isfinite(result["loss"]) and result["nan_detected"] is None and manager.nan_count == 1


@pytest.mark.parametrize("policy", ["raise", "skip", "replace", "lower_lr", "rollback"])
def test_a_loss_that_is_no_number_leaves_its_update_out_under_every_policy(policy):
    model, ((inputs, targets), (more, labels)) = network(), batches(2)
    optimizer, manager = sgd(model), NumericalStabilityManager(nan_config=NanConfig(policy))
    before = copy.deepcopy(model.state_dict())
    loss = nn.functional.mse_loss(model(inputs * math.nan), targets)
    if policy == "raise":
        with pytest.raises(FloatingPointError, match="loss is not finite in step 1"):
            manager.step(model, loss, optimizer)
    else:
        result = manager.step(model, loss, optimizer)
        assert result["skipped"] and result["nan_detected"] == "loss is not finite" and manager.skipped_steps == 1
    assert_same(model.state_dict(), before)
    assert optimizer.param_groups[0]["lr"] == (0.025 if policy == "lower_lr" else 0.05)
    assert not manager.step(model, nn.functional.mse_loss(model(more), labels), optimizer)["skipped"]


@pytest.mark.parametrize("policy", ["raise", "skip", "replace", "lower_lr", "rollback"])
def test_a_weight_that_an_update_made_bad_is_put_right_or_ends_training(policy):
    model, data = network(), batches(3)
    optimizer, manager = sgd(model), NumericalStabilityManager(nan_config=NanConfig(policy))

    def step(inputs, targets):
        return manager.step(model, nn.functional.mse_loss(model(inputs), targets), optimizer)

    step(*data[0])
    before = copy.deepcopy(model.state_dict())
    hook = optimizer.register_step_post_hook(lambda *given: model[0].weight.data[1, 2].fill_(math.inf))
    if policy in ("raise", "skip", "lower_lr"):
        with pytest.raises(FloatingPointError, match="0.weight is not finite in step 2, 1 in a row"):
            step(*data[1])
        return
    result = step(*data[1])
    hook.remove()
    assert result["nan_detected"] == "0.weight is not finite" and result["skipped"] == (policy == "rollback")
    if policy == "rollback":
        assert_same(model.state_dict(), before)
    else:
        assert model[0].weight[1, 2] == 0.0 and not torch.equal(model[0].weight, before["0.weight"])
    assert math.isfinite(step(*data[2])["loss"])


def test_a_rollback_puts_back_weights_buffers_and_momentum_and_no_rate():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    manager = NumericalStabilityManager(nan_config=NanConfig("rollback", keep_every=2))
    for i, (inputs, targets) in enumerate(batches(6)):
        if i == 2:  # After two good steps.
            kept, of_optimizer = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()["state"])
        if i == 3:
            assert not torch.equal(model[0].weight, kept["0.weight"])
            inputs = inputs * math.nan
        result = manager.step(model, nn.functional.mse_loss(model(inputs), targets), optimizer)
        if i == 3:
            assert result["skipped"] and result["nan_detected"] == "loss is not finite"
            assert_same(model.state_dict(), kept)
            assert_same(optimizer.state_dict()["state"], of_optimizer)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.9**6)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_gradients_whose_bad_elements_were_replaced_are_clipped_as_any():
    model = nn.Linear(2, 1)
    model.weight.register_hook(lambda gradient: gradient * torch.tensor([[1e6, math.nan]]))
    optimizer = NormNoting(model.parameters(), lr=0.05)
    manager = NumericalStabilityManager(ClippingConfig(max_grad_norm=1.0), NanConfig("replace"))
    result = manager.step(model, model(torch.ones(1, 2)).sum(), optimizer)
    assert result["nan_detected"] == "gradient of weight is not finite" and not result["skipped"] and result["clipped"]
    assert result["gradient_norm"] == pytest.approx(1e6) and result["gradient_norm_clipped"] == pytest.approx(1.0)
    assert optimizer.norms == [pytest.approx(1.0)] and manager.clip_count == 1


def test_a_nan_that_stays_ends_training_under_every_policy():
    model = network()
    manager = NumericalStabilityManager(nan_config=NanConfig(policy="skip", max_in_a_row=2))
    ((inputs, targets),) = batches(1)
    for _ in range(2):
        assert manager.step(model, nn.functional.mse_loss(model(inputs * math.nan), targets), sgd(model))["skipped"]
    with pytest.raises(FloatingPointError, match="loss is not finite in step 3, 3 in a row"):
        manager.step(model, nn.functional.mse_loss(model(inputs * math.nan), targets), sgd(model))


def test_an_overflow_that_the_scaler_forgives_is_no_nan():
    model, scaler = network(), torch.amp.GradScaler("cpu")
    before = copy.deepcopy(model.state_dict())
    manager = NumericalStabilityManager(ClippingConfig(max_grad_norm=0.1), NanConfig())
    ((inputs, targets),) = batches(1)
    optimizer = sgd(model)
    result = manager.step(model, nn.functional.mse_loss(model(inputs), targets) * 1e36, optimizer, scaler)
    assert result["skipped"] and result["nan_detected"] is None and manager.nan_count == 0 and manager.overflows == 1
    assert scaler.get_scale() == 32768.0
    assert_same(model.state_dict(), before)
    result = manager.step(model, nn.functional.mse_loss(model(inputs), targets), optimizer, scaler)
    model.load_state_dict(before)
    unscaled = NumericalStabilityManager().step(model, nn.functional.mse_loss(model(inputs), targets), sgd(model))
    assert not result["skipped"] and result["gradient_norm"] == pytest.approx(unscaled["gradient_norm"])
    assert result["clipped"] and result["gradient_norm_clipped"] == pytest.approx(0.1, rel=1e-4)


def test_a_nan_is_traced_to_its_operation():
    class Root(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs).sqrt()

    model = Root(4, 1)
    with torch.no_grad():
        model.bias.fill_(-100.0)
    wrapper = create_training_wrapper(debug_config=DebugConfig(detect_anomaly=True))
    with pytest.warns(UserWarning, match="Error detected in SqrtBackward0"), pytest.raises(RuntimeError, match="SqrtBackward0"):
        wrapper.step(model, batches(1)[0], sgd(model), lambda outputs, targets: outputs.sum())


def test_metrics_of_performance_move_with_memory_and_say_what_nobody_could_measure():
    model = network()
    manager = NumericalStabilityManager(performance_config=PerformanceOptimizationConfig())
    ((inputs, targets),) = batches(1)

    def metrics():
        result = manager.step(model, nn.functional.mse_loss(model(inputs), targets), sgd(model))
        return result.get("performance_metrics", {})

    before = metrics()
    held = torch.ones(2**30, dtype=torch.uint8)
    after = metrics()
    share = 100 * held.numel() / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    assert after["memory_usage_percent"] - before["memory_usage_percent"] == pytest.approx(share, rel=0.2)
    assert ("gpu_memory_mb" in after["unavailable"]) == (not torch.cuda.is_available())
    assert torch.cuda.is_available() or after["gpu_memory_mb"] == 0


@pytest.mark.parametrize("config", [PerformanceOptimizationConfig(integrate_with_stability=False),
                                    PerformanceOptimizationConfig(enable_performance_optimization=False)], ids=["apart", "off"])
def test_steps_that_are_not_integrated_have_no_performance_metrics(config):
    model = network()
    manager = NumericalStabilityManager(performance_config=config)
    ((inputs, targets),) = batches(1)
    result = manager.step(model, nn.functional.mse_loss(model(inputs), targets), sgd(model))
    assert "performance_metrics" not in result and "performance_metrics" not in manager.get_performance_summary()


def test_a_hundred_steps_of_a_wrapper_are_those_of_the_loop_with_a_manager():
    configs = {"clipping_config": ClippingConfig(max_grad_norm=0.5), "nan_config": NanConfig(), "debug_config": DebugConfig(),
               "performance_config": PerformanceOptimizationConfig()}
    theirs, ours, criterion = network(), network(), nn.MSELoss()
    manager, their_optimizer = NumericalStabilityManager(**configs), sgd(theirs)
    wrapper, our_optimizer = create_training_wrapper(**configs), sgd(ours)
    for inputs, targets in batches(100):
        loss = criterion(theirs(inputs), targets)
        wanted = manager.step(theirs, loss, their_optimizer)
        assert wrapper.step(ours, (inputs, targets), our_optimizer, criterion)["loss"] == wanted["loss"]
    assert_same(ours.state_dict(), theirs.state_dict())
    assert wrapper.manager.clip_count == manager.clip_count > 0


def test_the_example_of_an_integration_with_stability_runs_end_to_end(monkeypatch):
    monkeypatch.setattr("headrace._compiled.MODES", ("aot_eager",))  # Which needs no compiler.
    performance_config = PerformanceOptimizationConfig(
        enable_performance_optimization=True, optimization_level="advanced", integrate_with_stability=True, enable_mixed_precision=True,
        enable_model_compilation=True, enable_memory_optimization=True)
    manager = NumericalStabilityManager(clipping_config=ClippingConfig(), nan_config=NanConfig(), debug_config=DebugConfig(),
                                        performance_config=performance_config)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Unflatten(1, (2, 2, 1)), nn.Conv2d(2, 8, (2, 1)), nn.Flatten(), nn.ReLU(), nn.Linear(8, 1))
    (inputs, _), *_ = batches(1)
    before = model(inputs)
    optimized = manager.optimize_model(model)
    assert optimized[1].weight.is_contiguous(memory_format=torch.channels_last) and not optimized[1].weight.is_contiguous()
    assert_same(optimized(inputs), before, tolerance=1e-5)
    optimizer, losses = sgd(optimized), []
    for inputs, targets in batches(50):
        loss = nn.functional.mse_loss(optimized(inputs), targets)
        result = manager.step(optimized, loss, optimizer)
        performance_metrics = result.get("performance_metrics", {})
        assert performance_metrics.get("memory_usage_percent", 0) > 0 and performance_metrics.get("gpu_memory_mb", 0) >= 0
        losses.append(result["loss"])
    summary = manager.get_performance_summary()
    assert losses[-1] < losses[0] and summary["steps"] == 50
    assert summary["optimizations"]["enable_memory_optimization"] == {"requested": True, "status": "applied", "reason": ""}
    assert summary["optimizations"]["enable_model_compilation"] == {"requested": True, "status": "applied", "reason": ""}
    assert manager.model_optimizer.compile_enabled and manager.model_optimizer.report()["compilation"]["applied"] == "aot_eager"
    assert summary["performance_metrics"]["memory_usage_percent"] > 0


def test_a_model_is_set_up_where_there_is_what_it_wants_and_asks_for():
    def weight_and_status(layer, **config):
        manager = NumericalStabilityManager(performance_config=PerformanceOptimizationConfig(**config))
        assert manager.optimize_model(layer) is layer
        entry = manager.get_performance_summary()["optimizations"]["enable_memory_optimization"]
        return layer.weight.is_contiguous(), entry["status"], entry["reason"]

    assert weight_and_status(nn.Conv2d(2, 3, 3)) == (False, "applied", "")
    assert weight_and_status(nn.Conv2d(2, 3, 3), enable_memory_optimization=False) == (True, "", "")
    off = weight_and_status(nn.Conv2d(2, 3, 3), enable_performance_optimization=False)
    assert off == (True, "not applied", "enable_performance_optimization is False")
    reason = "the model has no 2-d convolution whose weights could be channels-last"
    assert weight_and_status(nn.Linear(2, 3)) == (True, "not applied", reason)


def optimized_blocks(level, **settings):
    """What is told of three blocks that were set up so and trained for a step, and how often the first layer ran."""
    manager = NumericalStabilityManager(performance_config=PerformanceOptimizationConfig(
        optimization_level=level, enable_model_compilation=False, enable_memory_optimization=False, **settings))
    before = manager.get_performance_summary()["optimizations"]["optimization_level"]
    assert before == {"requested": level, "status": "not applied", "reason": "wanted optimize_model(model), which was not called"}
    runs, model = [], nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
    manager.optimize_model(model)[0][0].register_forward_hook(lambda *given: runs.append(1))
    model(torch.randn(3, 4)).sum().backward()
    return manager.get_performance_summary()["optimizations"], len(runs)


def test_a_level_chooses_what_is_recomputed_and_which_kernel_attention_is_asked_for():
    def told(level):
        optimizations, runs = optimized_blocks(level)
        assert not {"enable_gradient_checkpointing", "enable_flash_attention"} & optimizations.keys()
        return optimizations["optimization_level"], runs

    assert told("basic") == ({"requested": "basic", "status": "applied", "reason": ""}, 1)
    assert told("advanced") == ({"requested": "advanced", "status": "applied", "reason": ""}, 2)
    entry, runs = told("ultra")
    assert (entry["status"], runs) == ("applied", 2) and entry["reason"].startswith("enable_flash_attention: the model has no headrace.")


def test_what_somebody_has_set_goes_before_the_level_of_an_integration():
    optimizations, runs = optimized_blocks("advanced", enable_gradient_checkpointing=False)
    assert runs == 1 and optimizations["optimization_level"] == {"requested": "advanced", "status": "applied", "reason": ""}
    assert optimizations["enable_gradient_checkpointing"] == {"requested": False, "status": "", "reason": ""}
    optimizations, runs = optimized_blocks("basic", enable_gradient_checkpointing=True)
    assert runs == 2 and optimizations["optimization_level"] == {"requested": "basic", "status": "applied", "reason": ""}
    assert optimizations["enable_gradient_checkpointing"] == {"requested": True, "status": "applied", "reason": ""}


def test_a_model_on_the_cpu_of_a_machine_with_cuda_runs_in_full_precision(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model, seen = network(), []

    def criterion(outputs, targets):
        seen.append((outputs.dtype, torch.is_autocast_enabled("cuda")))
        return nn.functional.mse_loss(outputs, targets)

    wrapper = create_training_wrapper(performance_config=PerformanceOptimizationConfig(integrate_with_stability=False))
    wrapper.step(model, batches(1)[0], sgd(model), criterion)
    assert seen == [(torch.float32, False)]
