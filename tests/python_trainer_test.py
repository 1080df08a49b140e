"""headrace.Trainer against the loop that people write, and against everything that can be handed to it by mistake."""

import collections
import copy
import os
import random
import signal
import sys
import threading
import time
import traceback
import types

import numpy
import pytest
import torch
from safetensors import safe_open
from torch import nn

import headrace as hr
from held_memory import counted_elsewhere, storages

pytestmark = pytest.mark.engine


def network(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))


def plain_network():  # Without running statistics, which any forward changes, and without draws.
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))


def batches(count: int, seed: int = 2, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, 32, generator=generator), torch.randint(10, (size,), generator=generator))
            for _ in range(count)]


def forward(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, **options)


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=1e-2, **options)


def assert_same_state(ours, theirs, tolerance=0.0):
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert (ours[name].double() - theirs[name].double()).abs().max() <= tolerance, name


def assert_same_optimizer(ours, theirs):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for place, entry in ours["state"].items():
        assert entry.keys() == theirs["state"][place].keys()
        for name, tensor in entry.items():
            assert torch.equal(tensor, theirs["state"][place][name]), (place, name)


def plain_loop(model, optimizer, data, scheduler=None, max_grad_norm=None, scale=1.0):
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = forward(model, batch)
        (loss * scale).backward()
        if scale != 1.0:
            for parameter in model.parameters():
                parameter.grad.div_(scale)
        if max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("make", [
    adamw,
    lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    lambda model: sgd(model, momentum=0.9, nesterov=True, weight_decay=1e-3, fused=True),
    sgd,
    lambda model: torch.optim.AdamW([{"params": model[0].parameters(), "lr": 1e-3, "weight_decay": 0.0},
                                     {"params": model[1].parameters()}, {"params": model[4].parameters()}], lr=1e-2,
                                    fused=True),
], ids=["adamw fused", "adamw plain", "sgd fused nesterov", "sgd plain", "three groups"])
def test_twenty_steps_are_those_of_the_plain_loop_bit_for_bit(make):
    data = batches(20)
    theirs, ours = network(), network()
    their_optimizer, our_optimizer = make(theirs), make(ours)
    torch.manual_seed(7)
    their_losses = plain_loop(theirs, their_optimizer, data)
    trainer = hr.Trainer(ours, our_optimizer, forward)
    torch.manual_seed(7)
    our_losses = [trainer.step(batch) for batch in data]
    assert torch.equal(torch.stack(our_losses), torch.stack(their_losses))
    assert_same_state(ours.state_dict(), theirs.state_dict())
    assert_same_optimizer(our_optimizer, their_optimizer)


def test_clipping_and_a_loss_scale_agree_within_rounding():
    data = batches(20)
    theirs, ours = plain_network(), plain_network()
    plain_loop(theirs, adamw(theirs), data, max_grad_norm=0.5, scale=1024.0)
    trainer = hr.Trainer(ours, adamw(ours), forward, max_grad_norm=0.5)
    for batch in data:
        trainer.step(batch)
    assert_same_state(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)


def surging(model, batch):
    return forward(model, batch) * (batch[2] if len(batch) == 3 else 1.0)


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
@pytest.mark.parametrize("make", [adamw, lambda model: sgd(model, momentum=0.9)], ids=["adamw fused", "sgd"])
def test_a_loss_scale_is_that_of_torchs_grad_scaler_also_where_gradients_overflow(make, max_grad_norm):
    data = batches(20)
    for place in (7, 12, 13):
        data[place] = (*data[place], 1e36)  # A finite loss; 65536 times that is not.
    theirs, ours = plain_network(), plain_network()
    optimizer = make(theirs)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    for batch in data:
        optimizer.zero_grad()
        scaler.scale(surging(theirs, batch)).backward()
        if max_grad_norm:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        scaler.step(optimizer)
        scaler.update()
    trainer = hr.Trainer(ours, make(ours), surging, max_grad_norm=max_grad_norm, loss_scale=65536.0)
    result = trainer.fit(data, 1)[0]
    assert trainer.loss_scale == scaler.get_scale() == 8192.0
    assert trainer.progress["skipped_updates"] == result["skipped_updates"] == 3
    assert trainer.progress["optimizer_steps"] == 17
    assert_same_state(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)


def test_a_loss_scale_survives_a_checkpoint_and_does_not_hide_a_loss_that_is_nan(tmp_path):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), surging, loss_scale=65536.0)
    assert trainer.loss_scale == 65536.0
    trainer.step((*batches(1)[0], 1e36))
    trainer.save(tmp_path / "c.safetensors")
    again = hr.Trainer(model, adamw(model), surging, loss_scale=65536.0)
    assert again.load(tmp_path / "c.safetensors")["skipped_updates"] == 1 and again.loss_scale == 32768.0
    with pytest.raises(hr.errors.NumericsError, match="loss is nan"):
        again.step((*batches(1)[0], float("nan")))
    for_ever = hr.Trainer(model, adamw(model), lambda m, batch: (m(batch[0]).sum() * 0).sqrt(), loss_scale=2.0)
    with pytest.raises(hr.errors.NumericsError, match="not finite, down to a loss scale"):
        for _ in range(60):
            for_ever.step(batches(1)[0])


def test_a_scheduler_of_torch_sets_the_rate_and_does_not_warn(recwarn):
    data = batches(12)
    theirs, ours = network(), network()
    their_optimizer, our_optimizer = adamw(theirs), adamw(ours)
    torch.manual_seed(7)
    plain_loop(theirs, their_optimizer, data, torch.optim.lr_scheduler.StepLR(their_optimizer, 3, 0.5))
    scheduler = torch.optim.lr_scheduler.StepLR(our_optimizer, 3, 0.5)
    trainer = hr.Trainer(ours, our_optimizer, forward)
    torch.manual_seed(7)
    for batch in data:
        trainer.step(batch)
        scheduler.step()
    assert_same_state(ours.state_dict(), theirs.state_dict())
    assert [str(warning.message) for warning in recwarn] == []


def test_python_may_go_on_where_the_trainer_stopped_and_back():
    data = batches(9)
    theirs, ours = network(), network()
    their_optimizer, our_optimizer = adamw(theirs), adamw(ours)
    torch.manual_seed(7)
    plain_loop(theirs, their_optimizer, data)
    trainer = hr.Trainer(ours, our_optimizer, forward)
    torch.manual_seed(7)
    for batch in data[:3]:
        trainer.step(batch)
    plain_loop(ours, our_optimizer, data[3:6])
    our_optimizer.load_state_dict(copy.deepcopy(our_optimizer.state_dict()))  # Other tensors from here on.
    for batch in data[6:]:
        trainer.step(batch)
    assert_same_state(ours.state_dict(), theirs.state_dict())
    assert_same_optimizer(our_optimizer, their_optimizer)


def test_accumulated_batches_are_one_large_batch():
    model = nn.Sequential(nn.Linear(32, 10))
    other = copy.deepcopy(model)
    whole = batches(3, size=32)
    trainer = hr.Trainer(model, sgd(model), forward, gradient_accumulation_steps=2)
    reference = hr.Trainer(other, sgd(other), forward)
    for images, labels in whole:
        trainer.step((images[:16], labels[:16]))
        trainer.step((images[16:], labels[16:]))
        reference.step((images, labels))
    assert trainer.progress["optimizer_steps"] == 3
    assert_same_state(model.state_dict(), other.state_dict(), tolerance=1e-6)


def test_bf16_reaches_operators_called_from_python_and_ends_with_the_step():
    seen = []

    def looking(model, batch):
        output = model(batch[0])
        seen.append((output.dtype, torch.is_autocast_enabled("cpu")))
        return nn.functional.cross_entropy(output, batch[1])

    model = nn.Linear(32, 10)
    trainer = hr.Trainer(model, sgd(model), looking, precision="bf16")
    trainer.step(batches(1)[0])
    assert seen == [(torch.bfloat16, True)]
    assert not torch.is_autocast_enabled("cpu")


def loaders():
    data = batches(5)
    dataset = torch.utils.data.TensorDataset(torch.cat([b[0] for b in data]), torch.cat([b[1] for b in data]))
    return {
        "list": data,
        "DataLoader": torch.utils.data.DataLoader(dataset, batch_size=16),
        "workers": torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=1),
        "function": lambda: (batch for batch in data),
        "dicts": [{"image": images, "labels": labels} for images, labels in data],
    }


@pytest.mark.parametrize("kind", ["list", "DataLoader", "workers", "function", "dicts"])
def test_fit_takes_whatever_gives_batches(kind):
    def either(model, batch):
        if isinstance(batch, dict):
            batch = batch["image"], batch["labels"]
        return forward(model, batch)

    model = network().eval()  # No draws: every kind sees the same.
    reference = network().eval()
    torch.manual_seed(3)
    plain_loop(reference, adamw(reference), batches(5) * 2)
    torch.manual_seed(3)
    epochs = []
    results = hr.Trainer(model, adamw(model), either).fit(loaders()[kind], 2, on_epoch=epochs.append)
    assert [result["epoch"] for result in results] == [1, 2] and epochs == results
    assert all(result["samples"] == 80 and result["samples_per_second"] > 0 for result in results)
    assert results[1]["loss"] < results[0]["loss"]
    assert_same_state(model.state_dict(), reference.state_dict())


def test_a_regression_is_learned_and_results_are_those_of_a_log_kept_outside():
    generator = torch.Generator().manual_seed(4)
    slopes = torch.randn(8, 1, generator=generator)
    inputs = torch.randn(200, 8, generator=generator)
    data = [(part, part @ slopes) for part in inputs.split(32)]  # The last one is smaller.
    model = nn.Linear(8, 1)
    trainer = hr.Trainer(model, sgd(model, momentum=0.9), lambda m, batch: nn.functional.mse_loss(m(batch[0]), batch[1]))
    log = []
    results = trainer.fit(data, 10, on_step=lambda loss: log.append(loss.item()))
    assert len(log) == 70 and [result["epoch"] for result in results] == list(range(1, 11))
    assert [result["optimizer_steps"] for result in results] == list(range(7, 71, 7))
    weights = torch.tensor([len(batch[0]) for batch in data], dtype=torch.float64)
    for result, losses in zip(results, torch.tensor(log, dtype=torch.float64).view(10, 7)):
        assert result["loss"] == pytest.approx(((losses * weights).sum() / 200).item(), rel=1e-12)
        assert result["samples"] == 200 and result["skipped_updates"] == 0 and result["resident_memory"] > 0
    assert results[-1]["loss"] < 1e-2


def test_schedule_of_the_trainer_is_that_of_torch():
    model = nn.Linear(32, 10)
    trainer = hr.Trainer(model, sgd(model), forward, lr_scheduler="CosineAnnealingLR")
    rates = []
    trainer.fit(batches(10), 2, on_step=lambda loss: rates.append(trainer.progress["optimizer_steps"]))
    assert rates == list(range(1, 21))
    assert trainer.learning_rate < 1e-4
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted steps="):
        hr.Trainer(model, sgd(model), forward, lr_scheduler={"name": "StepLR", "gamma": 0.5}).step(batches(1)[0])


def test_evaluation_changes_nothing_and_gives_named_means():
    model = network()
    model[1].eval()  # Frozen by the user: stays so.

    def with_accuracy(model, batch):
        logits = model(batch[0])
        return nn.functional.cross_entropy(logits, batch[1]), {"accuracy": (logits.argmax(1) == batch[1]).float().mean()}

    trainer = hr.Trainer(model, adamw(model), with_accuracy)
    before = copy.deepcopy(model.state_dict())
    data = [*batches(3), *batches(1, size=4)]
    result = trainer.evaluate(data)
    assert_same_state(model.state_dict(), before)
    assert model.training and not model[1].training and model[3].training
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        model.eval()
        logits = torch.cat([model(images) for images, _ in data])
    labels = torch.cat([labels for _, labels in data])
    assert result["samples"] == 52
    assert result["loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-6)
    assert result["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


@pytest.mark.parametrize("stop_at", [2, 6], ids=["at an epoch's end", "within an epoch"])
def test_resumed_training_ends_with_the_same_bits(tmp_path, stop_at):
    path = tmp_path / "checkpoint.safetensors"
    data = batches(4)
    whole = network()
    optimizer = adamw(whole)
    torch.manual_seed(7)
    trainer = hr.Trainer(whole, optimizer, forward, lr_scheduler="CosineAnnealingLR", max_grad_norm=1.0)
    count = [0]

    def save_at(loss):
        count[0] += 1
        if count[0] == stop_at:
            trainer.save(path)

    if stop_at == 2:
        trainer.fit(data, 4, on_epoch=lambda result: trainer.save(path) if result["epoch"] == 2 else None)
    else:
        trainer.fit(data, 4, on_step=save_at)

    resumed = network(seed=99)
    their_optimizer = adamw(resumed)
    torch.manual_seed(1234)
    again = hr.Trainer(resumed, their_optimizer, forward, lr_scheduler="CosineAnnealingLR", max_grad_norm=1.0)
    stands = again.load(path)
    assert stands["optimizer_steps"] == {2: 8, 6: 6}[stop_at]
    again.fit(data, 4)
    assert_same_state(resumed.state_dict(), whole.state_dict())
    assert_same_optimizer(their_optimizer, optimizer)


class Noisy(torch.utils.data.Dataset):
    """Draws from every generator that there is."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        noise = torch.rand(32) + random.random() + float(numpy.random.rand())
        return torch.full((32,), index / 64) + noise, index % 10


def noisy_generator():
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=16, shuffle=True)
    yield from loader


def place_of(kind):
    if kind == "function":
        return noisy_generator
    own = torch.Generator().manual_seed(5) if kind == "generator of its own" else None
    return torch.utils.data.DataLoader(Noisy(), batch_size=16, shuffle=True, generator=own,
                                       num_workers=1 if kind == "worker" else 0)


def seed_everything(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


@pytest.mark.parametrize("stop_at", [4, 6], ids=["at an epoch's end", "within an epoch"])
@pytest.mark.parametrize("kind", ["plain", "generator of its own", "worker", "function"])
def test_training_over_a_dataloader_goes_on_with_the_same_order_and_draws(tmp_path, kind, stop_at):
    path = tmp_path / "checkpoint.safetensors"
    whole = network()
    trainer = hr.Trainer(whole, adamw(whole), forward)
    seed_everything(7)

    def save_at(loss):
        if trainer.progress["optimizer_steps"] == stop_at and stop_at % 4:
            trainer.save(path)

    results = trainer.fit(place_of(kind), 3, on_step=save_at,
                          on_epoch=lambda result: trainer.save(path) if result["optimizer_steps"] == stop_at else None)
    drawn = torch.rand(1), random.random(), numpy.random.rand()

    resumed = network(seed=99)
    again = hr.Trainer(resumed, adamw(resumed), forward)
    seed_everything(1234)
    assert again.load(path)["batch"] == stop_at % 4
    loader = place_of(kind)
    next(iter(loader() if kind == "function" else loader))  # Whoever looks at a batch in between.
    rest = again.fit(loader, 3)
    assert_same_state(resumed.state_dict(), whole.state_dict())
    assert [result["loss"] for result in rest] == [result["loss"] for result in results[1:]]
    assert (torch.rand(1), random.random(), numpy.random.rand()) == drawn


def test_a_checkpoint_within_an_epoch_says_what_cannot_go_on_there(tmp_path):
    path = tmp_path / "c.safetensors"
    model = network()
    trainer = hr.Trainer(model, adamw(model), forward)
    trainer.fit(place_of("plain"), 1, on_step=lambda loss: trainer.save(path))
    trainer.load(path)
    with pytest.raises(hr.errors.InvalidArgumentError, match="batch 4 of its epoch; an iterator cannot go on there"):
        trainer.fit(iter(batches(8)), 1)
    trainer.load(path)
    with pytest.raises(hr.errors.InvalidArgumentError, match="loader with 0 generators of its own, this one has 1"):
        trainer.fit(place_of("generator of its own"), 1)
    trainer.load(path)
    with pytest.raises(hr.errors.InvalidArgumentError, match="at batch 4 of its epoch, the loader gave 2"):
        trainer.fit(batches(2), 1)
    trainer = hr.Trainer(model, adamw(model), forward)
    trainer.step(batches(1)[0])
    trainer.save(path)
    trainer.load(path)
    with pytest.raises(hr.errors.InvalidArgumentError, match="only a headrace.Loader and a list can go on where no fit"):
        trainer.fit(place_of("plain"), 1)


def test_checkpoints_open_with_safetensors(tmp_path):
    model = network()
    trainer = hr.Trainer(model, adamw(model), forward)
    trainer.step(batches(1)[0])
    trainer.save(tmp_path / "c.safetensors")
    with safe_open(tmp_path / "c.safetensors", framework="pt") as file:
        for name, tensor in model.state_dict().items():
            assert torch.equal(file.get_tensor(f"model/{name}"), tensor)
        assert file.get_tensor("optimizer/0.weight/step").item() == 1


class Frozen:
    """Model, optimizer and generator as they are, to compare with later."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.weights = copy.deepcopy(model.state_dict())
        self.state = copy.deepcopy(optimizer.state_dict())

    def check(self):
        assert_same_state(self.model.state_dict(), self.weights)
        assert self.optimizer.state_dict().keys() == self.state.keys()
        assert str(self.optimizer.state_dict()) == str(self.state)


class RaisesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        raise KeyError("in backward")


def raising(model, batch):
    raise LookupError("in forward", 42)


def nan_batch():
    images, labels = batches(1)[0]
    return images.fill_(float("nan")), labels


def bad_steps():
    good = batches(1)[0]
    return {
        "loss of many numbers": (lambda m, b: m(b[0]), good, hr.errors.InvalidArgumentError, r"shape \[16, 10\]"),
        "no loss": (lambda m, b: None, good, hr.errors.InvalidArgumentError, "wanted the loss.*found NoneType"),
        "loss without graph": (lambda m, b: torch.ones(()), good, RuntimeError, "does not require grad"),
        "nan": (forward, nan_batch(), hr.errors.NumericsError, r"loss is nan in epoch 0, batch \d"),
        "raises in forward": (raising, good, LookupError, "in forward"),
        "raises in backward": (lambda m, b: RaisesInBackward.apply(forward(m, b)), good, KeyError, "in backward"),
        "wrong shape": (lambda m, b: forward(m, (b[0][:, :5], b[1])), good, RuntimeError, "shapes cannot be multiplied"),
        "not finite gradient": (lambda m, b: (m(b[0]).sum() * 0).sqrt() * 1.0, good, hr.errors.NumericsError, "gradient of 2.bias is nan"),
    }


@pytest.mark.parametrize("kind", list(bad_steps()))
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_bad_step_is_one_exception_and_changes_nothing(kind, steps_before):
    bad_forward, batch, error, words = bad_steps()[kind]
    current = [forward]
    model = plain_network()
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, lambda m, b: current[0](m, b), max_grad_norm=1.0)
    for good in batches(steps_before):
        trainer.step(good)
    frozen = Frozen(model, optimizer)
    current[0] = bad_forward
    with pytest.raises(error, match=words):
        trainer.step(batch)
    frozen.check()
    assert trainer.progress["optimizer_steps"] == steps_before
    current[0] = forward
    trainer.step(batches(1)[0])
    assert trainer.progress["optimizer_steps"] == steps_before + 1


def test_exceptions_of_forward_keep_class_arguments_and_traceback():
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), raising)
    with pytest.raises(LookupError) as caught:
        trainer.step(batches(1)[0])
    assert caught.value.args == ("in forward", 42)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "raising"


def test_exceptions_of_loader_worker_and_callback_come_through():
    model = plain_network()
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, forward)

    def broken():
        yield batches(1)[0]
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        trainer.fit(broken, 1)

    class Bad(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            raise IndexError("sample 3")

    frozen = Frozen(model, optimizer)
    with pytest.raises(IndexError, match="sample 3"):
        trainer.fit(torch.utils.data.DataLoader(Bad(), batch_size=4, num_workers=1), 1)
    with pytest.raises(LookupError):
        hr.Trainer(model, optimizer, raising).evaluate(batches(1))
    frozen.check()
    assert all(module.training for module in model.modules()) and torch.is_grad_enabled()

    def callback(loss):
        raise ZeroDivisionError("callback")

    with pytest.raises(ZeroDivisionError, match="callback"):
        trainer.fit(batches(2), 1, on_step=callback)
    assert trainer.fit(batches(2), 1)[0]["samples"] == 32  # The epoch that failed begins anew.


def test_callbacks_may_look_save_and_evaluate(tmp_path):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    losses = []

    def look(loss):
        trainer.save(tmp_path / "c.safetensors")
        losses.append((trainer.learning_rate, trainer.evaluate(batches(1))["loss"]))

    trainer.fit(batches(3), 1, on_step=look)
    assert len(set(losses)) == 3


def test_loaders_without_batches_are_refused():
    model = plain_network()
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, forward)
    frozen = Frozen(model, optimizer)
    with pytest.raises(hr.errors.InvalidArgumentError, match="gave no batch in epoch 1$"):
        trainer.fit([], 1)
    with pytest.raises(hr.errors.InvalidArgumentError, match="no batch to evaluate"):
        trainer.evaluate([])
    with pytest.raises(TypeError, match="wanted a headrace.Loader, a DataLoader, .* found int"):
        trainer.fit(3, 1)
    frozen.check()
    with pytest.raises(hr.errors.InvalidArgumentError, match="epoch 2; an iterator or generator is used up by one epoch"):
        trainer.fit((batch for batch in batches(2)), 2)


@pytest.mark.parametrize("make, error, words", [
    (lambda m: (nn.ReLU(), adamw(m)), hr.errors.InvalidArgumentError, "ReLU has no parameters"),
    (lambda m: (m, adamw(plain_network())), hr.errors.InvalidArgumentError, "not a parameter of the model"),
    (lambda m: (m, torch.optim.LBFGS(m.parameters())), hr.errors.UnsupportedError, r"the step\(\) of LBFGS wants closure"),
    (lambda m: (m, torch.optim.Adagrad(plain_network().parameters())), hr.errors.InvalidArgumentError, "not a parameter of the model"),
    (lambda m: (m, "adamw"), TypeError, "wanted a torch.optim.Optimizer, found str"),
    (lambda m: (print, adamw(m)), TypeError, "wanted a torch.nn.Module"),
    (lambda m: (m.double(), adamw(m)), hr.errors.InvalidArgumentError, "wanted float32 on the CPU, found Double"),
    (lambda m: (m, torch.optim.SGD([*m.parameters(), m.register_parameter("x", nn.Parameter(torch.empty(2, device="meta")))
                                    or m.x], lr=0.1)), hr.errors.InvalidArgumentError, "parameter x.*meta"),
], ids=["no parameters", "other parameters", "closure", "other parameters of Adagrad", "no optimizer", "no module", "float64",
        "two devices"])
def test_what_cannot_be_trained_is_refused_by_name(make, error, words):
    model = plain_network()
    model, optimizer = make(model)
    with pytest.raises(error, match=words):
        hr.Trainer(model, optimizer, forward)


def test_keywords_are_the_options_of_recipes():
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward, gradient_accumulation_steps=4, max_grad_norm=None, lr_scheduler={"name": "StepLR", "gamma": 0.5})
    assert trainer.options["gradient_accumulation_steps"] == 4 and trainer.options["max_grad_norm"] == 0.0
    assert trainer.options["lr_scheduler"]["name"] == "StepLR" and trainer.options["lr_scheduler"]["gamma"] == 0.5
    for keywords, words in [({"gradient_acumulation_steps": 2}, "unknown key gradient_acumulation_steps, did you mean gradient_accumulation_steps"),
                            ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps"), ({"precision": "fp8"}, "fp32 | bf16"),
                            ({"schedule": "cosine"}, "unknown key schedule, which is now lr_scheduler"),
                            ({"gradient_accumulation_steps": [object()]}, "gradient_accumulation_steps"), ({"lr_scheduler": "linear"}, "lr_scheduler.name"),
                            ({"keep_checkpoints": 2}, "unknown key"), ({"steps": 0}, "steps is 0")]:
        with pytest.raises(hr.errors.InvalidArgumentError, match=words):
            hr.Trainer(model, adamw(model), forward, **keywords)
    with pytest.raises(TypeError, match="forward: wanted a function"):
        hr.Trainer(model, adamw(model), None)


def test_state_and_parameters_are_shared_and_never_copied():
    model = plain_network()
    optimizer = adamw(model)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    trainer = hr.Trainer(model, optimizer, forward)
    trainer.step(batches(1)[0])
    average = optimizer.state[model[0].weight]["exp_avg"]
    before = average.clone()
    trainer.step(batches(2)[1])
    assert optimizer.state[model[0].weight]["exp_avg"] is average and not torch.equal(average, before)
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


def test_a_trainer_is_busy_while_it_steps():
    model = plain_network()
    box = []

    def recursive(m, batch):
        if box:
            box[0].step(batch)
        return forward(m, batch)

    trainer = hr.Trainer(model, adamw(model), recursive)
    box.append(trainer)
    with pytest.raises(hr.errors.InvalidArgumentError, match="at work already"):
        trainer.step(batches(1)[0])
    box.clear()
    trainer.step(batches(1)[0])


def test_ctrl_c_ends_fit_within_a_step(ctrl_c):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward)
    steps = []

    def interrupt(loss):
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(batches(100), 1, on_step=interrupt)
    assert len(steps) <= 4
    assert trainer.fit(batches(2), 1)[0]["samples"] == 32


def test_another_thread_runs_while_the_engine_works():
    """Threads get the lock of Python here only where another lets go of it, and of that between the end of forward and the
    end of the step nobody but the engine is in charge. The share is measured in bench/python_step."""
    counted = [0]
    at_end_of_forward = [0]
    stop = threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)  # Lets go of the lock.

    def forward(module, batch):
        loss = module(batch).square().mean()
        at_end_of_forward[0] = counted[0]
        return loss

    model = nn.Linear(512, 512)
    trainer = hr.Trainer(model, adamw(model), forward)
    batch = torch.randn(2048, 512)
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    sys.setswitchinterval(1000)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while True:  # One such step does, unless the machine leaves the thread no core.
            trainer.step(batch)
            if counted[0] > at_end_of_forward[0]:
                break
            assert time.monotonic() < deadline, "in a minute of steps the thread never ran while the engine worked"
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


def resident_bytes() -> int:
    """Of this process alone, without pages of files: the system drops those and reads them again as it has room."""
    with open("/proc/self/statm") as file:
        _, all_pages, shared, *_ = map(int, file.read().split())
        return (all_pages - shared) * os.sysconf("SC_PAGE_SIZE")


def test_many_steps_do_not_make_the_process_grow(one_thread):
    model = nn.Linear(4, 2)
    trainer = hr.Trainer(model, adamw(model), lambda m, b: m(b).square().mean())
    batch = torch.randn(2, 4)
    for _ in range(2000):
        trainer.step(batch)
    before = resident_bytes()
    for _ in range(20_000):
        trainer.step(batch)
    assert resident_bytes() - before < 2_000_000  # 100 bytes a step would be these 2 MB.


def test_unused_parameters_get_no_state_as_in_torch():
    model = nn.ModuleDict({"used": nn.Linear(32, 10), "unused": nn.Linear(3, 3)})
    other = copy.deepcopy(model)

    def used(m, batch):
        return forward(m["used"], batch)

    optimizer, their_optimizer = adamw(model), adamw(other)
    hr.Trainer(model, optimizer, used).step(batches(1)[0])
    used(other, batches(1)[0]).backward()
    their_optimizer.step()
    assert_same_optimizer(optimizer, their_optimizer)


def test_numpy_is_not_needed_to_have_batches_counted():
    model = nn.Linear(32, 10)
    trainer = hr.Trainer(model, adamw(model), lambda m, b: forward(m, (b["inputs"]["x"], b["y"])))
    data = [{"id": numpy.arange(7), "inputs": {"x": images}, "y": labels} for images, labels in batches(2)]
    assert trainer.fit(data, 1)[0]["samples"] == 32


class Encoding(collections.UserDict):
    """As Hugging Face's BatchEncoding: a mapping that is no dict."""


class Fixed(collections.abc.Mapping):
    def __init__(self, values):
        self.held = values

    def __getitem__(self, key):
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


@pytest.mark.parametrize("kind", [Encoding, Fixed, types.MappingProxyType])
def test_samples_of_any_mapping_are_counted_by_its_first_tensor(kind):
    model = nn.Linear(32, 10)
    trainer = hr.Trainer(model, adamw(model), lambda m, b: forward(m, (b["inputs"]["x"], b["y"])))
    data = [kind({"step": torch.tensor(3), "text": ["a"], "inputs": kind({"x": images}), "y": labels})
            for images, labels in batches(2)]
    assert trainer.fit(data, 1)[0]["samples"] == 32


def test_a_trace_tells_what_a_trainers_objects_hold_each_storage_once():
    classes = ("parameters", "gradients", "optimizer", "batches")
    before = {name: counted_elsewhere(name) for name in classes}
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.Linear(32, 10))
    model[1].weight = model[0].weight  # Tied.
    with torch.no_grad():
        both = torch.empty(64)
        model[2].weight.data, model[2].bias.data = both[:32].fill_(1), both[32:].zero_()  # Views of one storage.
    optimizer = adamw(model)
    inside = []

    def looked_at(module, batch):
        with hr.Trace() as trace:
            pass
        inside.append(trace.memory()["classes"])
        return forward(module, batch)

    trainer = hr.Trainer(model, optimizer, looked_at, gradient_accumulation_steps=3)
    inputs = torch.randn(256, 32)
    batch = (inputs[:128], torch.randint(0, 10, (128,)))  # Of the inputs' storage a half.
    for _ in range(5):  # One update, and a window that is open.
        trainer.step(batch)
    with hr.Trace() as trace:
        pass
    memory = trace.memory()["classes"]
    found = {name: memory[name]["last"] - before[name] for name in classes}
    assert found["parameters"] == storages([*model.parameters(), *model.buffers()])
    assert found["gradients"] == storages(parameter.grad for parameter in model.parameters()) > 0
    assert found["optimizer"] == storages(
        value for state in optimizer.state.values() for value in state.values()) > 0
    assert found["batches"] == 0 and memory["activations"] is None
    assert all(held["batches"]["last"] - before["batches"] == storages(batch) for held in inside)
