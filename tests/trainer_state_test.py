"""headrace.Trainer's state_dict(): what a checkpoint's file holds, in memory, for a file of the script's own; and state of optimizers that
is a tensor of a class of its own, in either."""

import copy
import io

import headrace as hr
import pytest
import torch
from headrace import _plain_state
from python_fine_tuning_trainer_test import Job, Stopped, copies, drawn, figures
from python_torch_optimizers_test import SignDescent, assert_same
from python_torch_optimizers_test import batches as small_batches
from python_torch_optimizers_test import network as small_network
from python_trainer_test import (adamw, assert_same_optimizer, assert_same_state, batches, forward, network, plain_network, seed_everything,
                                 sgd)
from torch.optim import lr_scheduler

pytestmark = pytest.mark.engine


def through_a_file(state):
    """As a script keeps it beside what is its own."""
    file = io.BytesIO()
    torch.save({"trainer": state, "mine": 3}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["trainer"]


def trained(steps=2, **options):
    model = plain_network()
    trainer = hr.Trainer(model, adamw(model), forward, **options)
    for batch in batches(steps):
        trainer.step(batch)
    return model, trainer


# ---- A run that goes on ----


@pytest.mark.parametrize("kind", ["plain", "generator of its own"])
@pytest.mark.parametrize("stop_at", [3, 6], ids=["in the first epoch", "in a later one"])
def test_a_run_goes_on_from_a_file_of_the_scripts_own_to_the_bits_of_one_from_save(tmp_path, kind, stop_at):
    whole = Job(kind)
    seed_everything(7)
    results = whole.fit()
    expected = drawn()

    first = Job(kind, stop_in="step", stop_at=stop_at)
    seed_everything(7)
    with pytest.raises(Stopped):
        first.fit()
    state = through_a_file(first.trainer.state_dict())
    first.trainer.save(tmp_path / "c.safetensors")
    weights = copies(first.model.state_dict())

    for seed, load in ((99, lambda trainer: trainer.load_state_dict(state)),
                       (98, lambda trainer: trainer.load(tmp_path / "c.safetensors"))):
        again = Job(kind, seed=seed)
        seed_everything(1234)
        assert load(again.trainer) == first.trainer.progress
        rest = again.fit()
        assert drawn() == expected
        assert figures(rest) == figures(results)[-len(rest):]
        assert_same_state(again.model.state_dict(), whole.model.state_dict())
        assert_same_state(again.trainer.averages, whole.trainer.averages)
        assert_same_optimizer(again.optimizer, whole.optimizer)
    other = Job(kind, seed=97)  # What was loaded was copied: the run that went on from it has not changed it.
    other.trainer.load_state_dict(state)
    assert_same_state(other.model.state_dict(), weights)


def test_an_optimizer_and_a_scheduler_of_torch_and_the_mean_of_the_weights_are_in_it():
    def made(seed):
        model = small_network(seed)
        optimizer = SignDescent(model.parameters())
        scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return model, optimizer, hr.Trainer(model, optimizer, forward, lr_scheduler=scheduler)

    whole, whole_optimizer, trainer = made(1)
    trainer.fit(small_batches(3), 3, swa_start=2)
    state = through_a_file(trainer.state_dict())
    trainer.fit(small_batches(3), 5, swa_start=2)
    resumed, optimizer, again = made(9)
    again.load_state_dict(state)
    assert again.fit(small_batches(3), 5, swa_start=2)[-1]["swa"]["epochs"] == 4
    assert_same(resumed.state_dict(), whole.state_dict())
    assert_same(again.swa_averages, trainer.swa_averages)
    assert_same(optimizer.state_dict(), whole_optimizer.state_dict())


def test_what_a_rollback_returns_to_is_in_it_and_is_copied():
    guard = {"policy": "rollback", "keep_every": 1}
    _, trainer = trained(step_guard=guard)
    state = trainer.state_dict()
    assert any(name.startswith("last_good/model/") for name in state["tensors"])
    kept = copy.deepcopy(state)
    model = plain_network()
    again = hr.Trainer(model, adamw(model), forward, step_guard=guard)
    again.load_state_dict(kept)
    for batch in batches(2, seed=8):
        again.step(batch)  # Keeps a good state anew, in the memory of the last one.
    assert_same_state(kept["tensors"], state["tensors"])


def test_it_is_plain_texts_and_tensors_that_share_the_memory_of_the_model():
    model, trainer = trained(ema_decay=0.9)
    state = trainer.state_dict()
    assert state.keys() == {"metadata", "tensors"} and state["metadata"]["format"] == "headrace-checkpoint"
    assert all(type(text) is str for text in state["metadata"].values())
    assert all(type(tensor) is torch.Tensor and not tensor.requires_grad for tensor in state["tensors"].values())
    assert {name.split("/")[0] for name in state["tensors"]} == {"model", "ema", "optimizer", "generator"}
    assert state["tensors"]["model/0.weight"].data_ptr() == model[0].weight.data_ptr()


# ---- What is refused ----


def test_what_is_no_state_of_this_trainer_is_refused_and_changes_nothing():
    model, trainer = trained()
    state = copy.deepcopy(trainer.state_dict())
    weights, progress = copies(model.state_dict()), trainer.progress

    def changed(**metadata):
        return {**state, "metadata": {**state["metadata"], **metadata}}

    def with_tensors(**tensors):
        return {**state, "tensors": {**state["tensors"], **tensors}}

    invalid, corrupt, unsupported = hr.errors.InvalidArgumentError, hr.errors.CorruptDataError, hr.errors.UnsupportedError
    cases = [
        ([], invalid, "what state_dict.. returned, a dict of metadata and tensors, found list"),
        (model.state_dict(), invalid, "found one without the dict metadata"),
        ({"metadata": state["metadata"]}, invalid, "found one without the dict tensors"),
        (changed(epoch=3), invalid, r'metadata\["epoch"\] of type int'),
        (changed(epoch="three"), corrupt, '"epoch" in the header is no whole number'),
        (changed(format="another"), corrupt, "state_dict: no checkpoint: wanted format headrace-checkpoint"),
        (changed(version="99"), unsupported, "state_dict: checkpoint version 99"),
        (changed(model="Linear"), invalid, "a checkpoint of model Linear, wanted Sequential"),
        (changed(optimizer="sgd"), invalid, "a checkpoint of optimizer sgd, wanted adamw"),
        (with_tensors(**{"model/0.weight": [1.0]}), invalid, "load_state_dict: model/0.weight"),
        (with_tensors(**{"model/0.weight": torch.ones(3)}), invalid, "model/0.weight is Float .3., the model wants"),
        (with_tensors(**{"model/other": torch.ones(3)}), invalid, "holds model/other, which the model does not have"),
        ({**state, "tensors": {}}, invalid, "state_dict: has no model/"),
    ]
    for given, error, words in cases:
        with pytest.raises(error, match=words):
            trainer.load_state_dict(given)
        assert_same_state(model.state_dict(), weights)
        assert trainer.progress == progress
    assert trainer.load_state_dict(state) == progress


def test_within_a_window_or_a_block_of_averages_there_is_none():
    _, trainer = trained(steps=1, gradient_accumulation_steps=2)
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted no open window, found 1 micro-batches in one"):
        trainer.state_dict()
    _, averaging = trained(ema_decay=0.9)
    state = copy.deepcopy(averaging.state_dict())
    with averaging.with_averages():
        for call, name in ((averaging.state_dict, "state_dict"), (lambda: averaging.load_state_dict(state), "load_state_dict")):
            with pytest.raises(hr.errors.InvalidArgumentError, match=rf"python: {name}\(\): wanted it outside the block"):
                call()


def test_a_state_names_no_folder_of_checkpoints(tmp_path):
    model = network()
    trainer = hr.Trainer(model, sgd(model), forward)
    trainer.fit(batches(2), 1, checkpoints=tmp_path / "run")
    trainer.load_state_dict(copy.deepcopy(trainer.state_dict()))
    with pytest.raises(hr.errors.InvalidArgumentError, match="holds checkpoint-000000002.safetensors of an earlier run"):
        trainer.fit(batches(2), 2, checkpoints=tmp_path / "run")
    assert len(trainer.fit(batches(2), 2, checkpoints=tmp_path / "other")) == 1


# ---- Tensors of classes of their own ----


class Coded(torch.Tensor):
    """Bytes times a factor, as optimizers of 8 bits keep their state."""

    @staticmethod
    def __new__(cls, codes, factor):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, factor):
        self.codes, self.factor = codes, factor

    @classmethod
    def of(cls, values):
        factor = max(float(values.abs().max()), 1e-12) / 127
        return cls((values / factor).round().to(torch.int8), factor)

    def dense(self):
        return self.codes.float() * self.factor

    def __tensor_flatten__(self):
        return ["codes"], {"factor": self.factor}

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Coded(parts["codes"], context["factor"])

    @classmethod
    def __torch_dispatch__(cls, function, types, given=(), options=None):
        raise NotImplementedError(f"{function} of a {cls.__name__}")


class CodedMomentum(torch.optim.Optimizer):
    def __init__(self, parameters, lr=1e-2):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state["mean"].dense() if state else torch.zeros_like(parameter)
                state["mean"] = Coded.of(mean.lerp_(parameter.grad, 0.5))
                parameter.add_(state["mean"].dense(), alpha=-group["lr"])


class Bare(torch.Tensor):
    """Of which nobody says what it is made of."""


def coded_state(optimizer):
    return [(entry["mean"].codes, entry["mean"].factor) for entry in optimizer.state_dict()["state"].values()]


@pytest.mark.parametrize("by_file", [True, False], ids=["save and load", "state_dict"])
def test_a_run_whose_optimizers_state_is_a_tensor_of_its_own_class_goes_on_to_the_same_bits(tmp_path, by_file):
    def made(seed):
        model = small_network(seed)
        optimizer = CodedMomentum(model.parameters())
        return model, optimizer, hr.Trainer(model, optimizer, forward)

    whole, whole_optimizer, trainer = made(1)
    for batch in small_batches(3):
        trainer.step(batch)
    trainer.save(tmp_path / "c.safetensors")
    state = through_a_file(trainer.state_dict())
    resumed, optimizer, again = made(9)
    again.load(tmp_path / "c.safetensors") if by_file else again.load_state_dict(state)
    assert all(type(entry["mean"]) is Coded for entry in optimizer.state.values())
    for batch in small_batches(3, seed=8):
        trainer.step(batch)
        again.step(batch)
    assert_same(resumed.state_dict(), whole.state_dict())
    assert_same(coded_state(optimizer), coded_state(whole_optimizer))


def test_a_tensor_of_its_own_class_is_kept_by_its_parts_and_one_without_parts_is_refused():
    tensors = {}
    text = _plain_state.encode({"mean": Coded.of(torch.tensor([2.0, -2.0, 0.0]))}, "optimizer", tensors)
    assert list(tensors) == ["optimizer/mean/codes"] and tensors["optimizer/mean/codes"].dtype == torch.int8
    back = _plain_state.decode(text, tensors)["mean"]
    assert type(back) is Coded and back.codes.tolist() == [127, -127, 0] and back.factor == 2.0 / 127
    with pytest.raises(hr.errors.UnsupportedError, match="mean: wanted a plain tensor, or one with __tensor_flatten__, found Bare"):
        _plain_state.encode({"mean": torch.ones(2).as_subclass(Bare)}, "optimizer", {})
    kept = text["dict"][0][1]
    for name in ("nowhere:Coded", f"{Bare.__module__}:Bare", "builtins:dict"):
        module, _, kind = name.partition(":")
        with pytest.raises(hr.errors.UnsupportedError, match=f"wanted the module {module} of the optimizer's {kind} imported"):
            _plain_state.decode({**kept, "class": name}, tensors)
