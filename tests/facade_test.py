"""The packages performance_optimization and performance_optimization_system: functions by the names that published examples use."""

import itertools
import logging
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import performance_optimization
import performance_optimization_system
import pytest
import torch
from performance_optimization_system import (create_optimized_optimizer, effective_batch_size, setup_gradient_accumulation,
                                             training_step_with_accumulation)
from torch.utils.data import DataLoader, TensorDataset


def as_object(config: dict) -> SimpleNamespace:
    return SimpleNamespace(**{name: as_object(value) if isinstance(value, dict) else value for name, value in config.items()})


FORMS = {"mapping": dict, "object": as_object, "object with a mapping": lambda config: SimpleNamespace(**config)}
any_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


# ---- The packages ----


def test_both_packages_export_the_same_objects():
    assert performance_optimization_system.__all__ == performance_optimization.__all__
    assert {"setup_gradient_accumulation", "training_step_with_accumulation", "create_optimized_optimizer"} <= set(
        performance_optimization.__all__)
    for name in performance_optimization.__all__:
        assert getattr(performance_optimization_system, name) is getattr(performance_optimization, name)


def test_both_packages_are_typed():
    for package in (performance_optimization, performance_optimization_system):
        assert Path(package.__file__).with_name("py.typed").is_file()


def test_importing_them_needs_neither_torch_nor_headrace():
    code = ("import sys; sys.modules.update(torch=None, headrace=None); from performance_optimization_system import *; "
            "print(effective_batch_size({'batch_size': 24}))")
    environment = {**os.environ, "PYTHONPATH": str(Path(performance_optimization.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd="/", timeout=120)
    assert (done.returncode, done.stdout) == (0, "48\n"), done.stderr


# ---- Gradient accumulation ----


class Noting(torch.nn.Linear):
    """Notes when it runs forward and backward."""

    def __init__(self, calls: list[str]):
        super().__init__(3, 1, dtype=torch.float64)
        self.calls = calls
        self.bias.register_hook(lambda gradient: calls.append("backward"))

    def forward(self, inputs):
        self.calls.append("forward")
        return super().forward(inputs)


class Recording(torch.optim.SGD):
    """Notes its calls, and the gradients at each update; the weights stay as they are."""

    def __init__(self, model: torch.nn.Module, calls: list[str]):
        super().__init__(model.parameters(), lr=0.0)
        self.calls, self.updates = calls, []

    def step(self, closure=None):
        self.calls.append("step")
        self.updates.append([parameter.grad.clone() for group in self.param_groups for parameter in group["params"]])
        return super().step(closure)

    def zero_grad(self, set_to_none=True):
        self.calls.append("zero_grad")
        super().zero_grad(set_to_none)


def recorded_model():
    torch.manual_seed(3)
    calls: list[str] = []
    model = Noting(calls)
    return model, Recording(model, calls), calls


def random_batches(count: int, size: int = 4):
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(size, 3, dtype=torch.float64, generator=generator), torch.randn(size, 1, dtype=torch.float64, generator=generator))
            for _ in range(count)]


@any_form
def test_steps_fit_into_64_samples_and_the_effective_batch_size_is_logged(form, caplog):
    caplog.set_level(logging.INFO, "performance_optimization")
    for batch_size, steps in {1: 64, 3: 21, 8: 8, 16: 4, 24: 2, 33: 1, 48: 1, 64: 1, 128: 1}.items():
        caplog.clear()
        config, samples = form({"batch_size": batch_size}), batch_size * steps
        assert setup_gradient_accumulation(config) == steps
        (record,) = caplog.records
        told = f"gradient accumulation: {steps} x {batch_size} samples, an effective batch of {samples}"
        if samples < 64:
            assert (record.levelname, record.getMessage()) == ("WARNING", f"{told}; wanted 64")
        else:
            assert (record.levelname, record.getMessage()) == ("INFO", told)
        assert effective_batch_size(config) == samples


@pytest.mark.parametrize("config, found", [({}, "none"), (SimpleNamespace(), "none"), ({"batch_size": 0}, "0"), ({"batch_size": -8}, "-8"),
                                           ({"batch_size": 1.5}, "1.5"), ({"batch_size": "24"}, "'24'"),
                                           ({"batch_size": True}, "True")])
def test_a_batch_size_that_is_missing_or_none_is_named(config, found):
    for call in (setup_gradient_accumulation, effective_batch_size):
        with pytest.raises(ValueError) as raised:
            call(config)
        assert str(raised.value) == f"config.batch_size: wanted a whole number of at least 1, found {found}"


def test_a_step_divides_the_loss_and_updates_at_the_end_of_each_window():
    model, optimizer, calls = recorded_model()
    criterion, batches = torch.nn.MSELoss(), random_batches(8)
    losses = [training_step_with_accumulation(model, batch, optimizer, 4, step, criterion) for step, batch in enumerate(batches)]
    assert calls == (["forward", "backward"] * 4 + ["step", "zero_grad"]) * 2
    assert losses == [(criterion(model(inputs), targets) / 4).item() for inputs, targets in batches]
    assert [parameter.grad for parameter in model.parameters()] == [None, None]


def test_a_batch_may_hold_more_than_inputs_and_targets():
    model, optimizer, _ = recorded_model()
    ((inputs, targets),) = random_batches(1)
    loss = training_step_with_accumulation(model, [inputs, targets, ["a.jpg"] * 4, [(640, 480)] * 4], optimizer, 1, 0,
                                           criterion=torch.nn.MSELoss())
    assert loss == torch.nn.MSELoss()(model(inputs), targets).item()


@pytest.mark.parametrize("count", [9, 10, 11, 12])
def test_the_last_window_of_an_epoch_is_the_mean_of_the_batches_that_it_has(count):
    model, optimizer, _ = recorded_model()
    criterion, batches = torch.nn.MSELoss(), random_batches(count)
    for step, batch in enumerate(batches):
        training_step_with_accumulation(model, batch, optimizer, 4, step, criterion=criterion, last_of_window=step == count - 1)
    assert len(optimizer.updates) == 3
    assert [parameter.grad for parameter in model.parameters()] == [None, None]
    for begin, found in zip((0, 4, 8), optimizer.updates, strict=True):
        window = batches[begin:begin + 4]
        loss = sum(criterion(model(inputs), targets) for inputs, targets in window) / len(window)
        torch.testing.assert_close(found, list(torch.autograd.grad(loss, list(model.parameters()))), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("accumulation_steps, step", [(0, 0), (-4, 0), (4, -1)])
def test_a_window_of_no_batch_and_a_step_below_0_are_refused(accumulation_steps, step):
    model, optimizer, calls = recorded_model()
    with pytest.raises(ValueError, match=f"at least 1 and a step of at least 0, found {accumulation_steps} and {step}$"):
        training_step_with_accumulation(model, random_batches(1)[0], optimizer, accumulation_steps, step, torch.nn.MSELoss())
    assert calls == []


def test_the_example_of_accumulation_trains_as_batches_of_64_do():
    config = SimpleNamespace(batch_size=16)
    criterion = torch.nn.MSELoss()
    torch.manual_seed(7)
    inputs = torch.randn(128, 3, dtype=torch.float64)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model, large = torch.nn.Linear(3, 1, dtype=torch.float64), torch.nn.Linear(3, 1, dtype=torch.float64)
    large.load_state_dict(model.state_dict())
    optimizer, optimizer_of_large = (torch.optim.SGD(one.parameters(), lr=0.2) for one in (model, large))

    accumulation_steps = setup_gradient_accumulation(config)
    for _ in range(10):
        for step, batch in enumerate(DataLoader(dataset, batch_size=config.batch_size)):
            loss = training_step_with_accumulation(model, batch, optimizer, accumulation_steps, step, criterion=criterion)
    for _ in range(10):
        for inputs, targets in DataLoader(dataset, batch_size=64):
            optimizer_of_large.zero_grad()
            criterion(large(inputs), targets).backward()
            optimizer_of_large.step()
    assert loss * accumulation_steps < 0.01
    torch.testing.assert_close(model.state_dict(), large.state_dict(), rtol=1e-9, atol=1e-12)


def test_the_variance_of_gradients_falls_as_one_by_the_batches_in_a_window():
    """Over all windows that can be drawn from three batches, so that the variances are the exact ones."""
    samples, criterion = random_batches(3, size=1), torch.nn.MSELoss()
    variances = []
    for count in range(1, 5):
        model, optimizer, _ = recorded_model()
        for window in itertools.product(samples, repeat=count):
            for step, batch in enumerate(window):
                training_step_with_accumulation(model, batch, optimizer, count, step, criterion)
        gradients = torch.stack([torch.cat([part.flatten() for part in update]) for update in optimizer.updates])
        assert len(gradients) == 3 ** count
        variances.append(gradients.var(0, correction=0))
    assert variances[0].min() > 0
    for count, variance in enumerate(variances, 1):
        torch.testing.assert_close(variance, variances[0] / count, rtol=1e-9, atol=1e-12)


# ---- The optimizer ----


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        self.stem = torch.nn.Linear(4, 4)
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        self.neck = torch.nn.Linear(4, 4)
        self.backbone[0].requires_grad_(False)
        self.neck.bias.requires_grad_(False)


def names_by_group(model, optimizer):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


@any_form
@pytest.mark.parametrize("weight_decay, in_force", [(None, 0.0005), (0.02, 0.02), (0, 0.0)])
def test_the_backbone_has_a_tenth_of_the_learning_rate_and_what_is_frozen_is_left_out(form, weight_decay, in_force):
    model = Detector()
    settings = {"learning_rate": 0.01, **({} if weight_decay is None else {"weight_decay": weight_decay})}
    optimizer = create_optimized_optimizer(model, form({"model_config": settings}))
    assert names_by_group(model, optimizer) == [["stem.weight", "stem.bias", "backbone.1.weight", "backbone.1.bias"],
                                                ["head.weight", "head.bias", "neck.weight"]]
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.01 * 0.1, in_force), (0.01, in_force)]


def test_the_learning_rate_is_scaled_with_the_samples_of_an_update_where_asked(caplog):
    caplog.set_level(logging.INFO, "performance_optimization")
    config = {"batch_size": 24, "model_config": {"learning_rate": 0.02}}  # Two batches an update.
    assert [group["lr"] for group in create_optimized_optimizer(Detector(), config).param_groups] == [0.02 * 0.1, 0.02]
    assert caplog.messages == []
    config["model_config"]["base_batch_size"] = 16
    rates = [group["lr"] for group in create_optimized_optimizer(Detector(), config).param_groups]
    assert rates == pytest.approx([0.006, 0.06]) and caplog.messages == ["learning rate: 0.02 x 48 / 16 samples = 0.06"]
    for changes, message in (({"batch_size": 24, "base": 0}, r"config\.model_config\.base_batch_size: .* found 0"),
                             ({"batch_size": None, "base": 16}, r"config\.batch_size: .* found none")):
        with pytest.raises(ValueError, match=message):
            create_optimized_optimizer(Detector(), {
                "batch_size": changes["batch_size"], "model_config": {"learning_rate": 0.02, "base_batch_size": changes["base"]}})


def test_a_group_without_parameters_is_left_out():
    config = {"model_config": {"learning_rate": 0.01}}
    for name, rate in (("stem", 0.01 * 0.1), ("head", 0.01)):
        model = torch.nn.ModuleDict({name: torch.nn.Linear(4, 2)})
        optimizer = create_optimized_optimizer(model, config)
        assert names_by_group(model, optimizer) == [[f"{name}.weight", f"{name}.bias"]]
        assert optimizer.param_groups[0]["lr"] == rate
    with pytest.raises(ValueError, match="wanted a model with parameters that require gradients, found none$"):
        create_optimized_optimizer(torch.nn.Linear(4, 2).requires_grad_(False), config)


@any_form
@pytest.mark.parametrize("name", [None, "auto", "Auto", "adamw", "AdamW", "ADAMW"])
def test_adamw_is_the_default_and_a_name_may_be_in_any_case(form, name):
    settings = {"learning_rate": 0.01, **({} if name is None else {"optimizer": name})}
    optimizer = create_optimized_optimizer(Detector(), form({"model_config": settings}))
    assert type(optimizer) is torch.optim.AdamW
    assert [(group["betas"], group["eps"]) for group in optimizer.param_groups] == [((0.9, 0.999), 1e-8)] * 2


@any_form
@pytest.mark.parametrize("name", ["sgd", "SGD"])
def test_sgd_has_nesterovs_momentum(form, name):
    optimizer = create_optimized_optimizer(Detector(), form({"model_config": {"learning_rate": 0.01, "optimizer": name}}))
    assert type(optimizer) is torch.optim.SGD
    assert [(group["momentum"], group["nesterov"], group["dampening"]) for group in optimizer.param_groups] == [(0.937, True, 0)] * 2


@pytest.mark.parametrize("name, wanted", [("adamw", 2 * (1 - 0.1 * 0.01) - 0.1 * 0.5 / (0.5 + 1e-8)),
                                          ("sgd", 2 - 0.1 * (1 + 0.937) * (0.5 + 0.01 * 2))])
def test_one_step_is_the_formula(name, wanted):
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.constant_(model.weight, 2.0)
    optimizer = create_optimized_optimizer(model, {"model_config": {"learning_rate": 0.1, "weight_decay": 0.01, "optimizer": name}})
    model.weight.grad = torch.full_like(model.weight, 0.5)
    optimizer.step()
    assert model.weight.item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["lion", "adam", "", "adamw ", 5])
def test_another_optimizer_is_refused_with_the_list(name):
    with pytest.raises(ValueError) as raised:
        create_optimized_optimizer(Detector(), {"model_config": {"learning_rate": 0.01, "optimizer": name}})
    assert str(raised.value) == f"config.model_config.optimizer: wanted auto, adamw or sgd, found {name!r}"


@pytest.mark.parametrize("config, name, found", [
    ({}, "learning_rate", "none"),
    ({"model_config": {}}, "learning_rate", "none"),
    (SimpleNamespace(model_config=None), "learning_rate", "none"),
    ({"model_config": {"learning_rate": -1}}, "learning_rate", "-1"),
    ({"model_config": {"learning_rate": "1e-3"}}, "learning_rate", "'1e-3'"),
    ({"model_config": {"learning_rate": True}}, "learning_rate", "True"),
    ({"model_config": {"learning_rate": 0.01, "weight_decay": float("nan")}}, "weight_decay", "nan"),
])
def test_a_setting_of_the_optimizer_that_is_missing_or_no_number_is_named(config, name, found):
    with pytest.raises(ValueError) as raised:
        create_optimized_optimizer(Detector(), config)
    assert str(raised.value) == f"config.model_config.{name}: wanted a number of at least 0, found {found}"


@pytest.mark.parametrize("name", ["auto", "sgd"])
def test_the_example_of_an_optimizer_trains(name):
    config = SimpleNamespace(model_config={"learning_rate": 0.02, "weight_decay": 0.0005, "optimizer": name})
    torch.manual_seed(7)
    model = torch.nn.Sequential(OrderedDict(backbone=torch.nn.Linear(4, 4), head=torch.nn.Linear(4, 2)))
    torch.nn.init.eye_(model.backbone.weight)
    criterion, inputs, losses = torch.nn.MSELoss(), torch.randn(64, 4), []
    targets = inputs[:, :2]
    optimizer = create_optimized_optimizer(model, config)
    assert isinstance(optimizer, torch.optim.Optimizer)
    for _ in range(100):
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
