"""hr.Trainer with optimizers and schedulers of torch that step themselves, and with SWA, against the loop that people write."""

import collections
import copy
import math
import warnings

import headrace as hr
import pytest
import torch
from headrace import _plain_state
from headrace._weight_averages import WeightAverages
from headrace.batch import Batch
from torch import nn
from torch.optim import lr_scheduler

pytestmark = pytest.mark.engine


def network(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batches(count: int, seed: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(12, 8, generator=generator), torch.randint(4, (12,), generator=generator)) for _ in range(count)]


def forward(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class SignDescent(torch.optim.Optimizer):
    """Of somebody else: state of every kind that a checkpoint takes."""

    def __init__(self, parameters, lr=1e-2, betas=(0.9, 0.99)):
        super().__init__(parameters, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(parameter), history=[], kind=(1, {"of": None}), dtype=torch.float32)
                state["step"] += 1
                state["history"] = [*state["history"][-1:], float(parameter.grad.norm())]
                state["mean"].lerp_(parameter.grad, 1 - group["betas"][0])
                parameter.add_(state["mean"].sign(), alpha=-float(group["lr"]))


def muon(model):
    return torch.optim.Muon([parameter for parameter in model.parameters() if parameter.dim() == 2], lr=1e-2)


OPTIMIZERS = {
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=1e-2),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters(), lr=1e-2),
    "Muon": muon,
    "a class of the user's": lambda model: SignDescent([{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[3].parameters()}]),
    "Adam with decoupled decay": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1, decoupled_weight_decay=True),
}
any_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def plain_loop(model, optimizer, data, scheduler=None, max_grad_norm=None):
    for batch in data:
        optimizer.zero_grad()
        forward(model, batch).backward()
        if max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        if scheduler:
            scheduler.step()


def assert_same(ours, theirs, tolerance=0.0):
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    elif isinstance(theirs, (dict, list, tuple)):
        keys = theirs.keys() if isinstance(theirs, dict) else range(len(theirs))
        assert len(ours) == len(theirs)
        for key in keys:
            assert_same(ours[key], theirs[key], tolerance)
    else:
        assert ours == theirs


class SideBySide:
    """The same training by the plain loop and by a Trainer, whose optimizers are the first and the second of `optimizers`."""

    def __init__(self, make):
        self.theirs, self.ours = network(), network()
        self.optimizers = (make(self.theirs), make(self.ours))
        self._trainer = hr.Trainer(self.ours, self.optimizers[1], forward)

    def step_on(self, part):
        """Steps both, and asserts that weights and optimizer state are the same."""
        plain_loop(self.theirs, self.optimizers[0], part)
        for batch in part:
            self._trainer.step(batch)
        assert_same(self.ours.state_dict(), self.theirs.state_dict(), tolerance=1e-6)
        ours, theirs = (optimizer.state_dict()["state"] for optimizer in reversed(self.optimizers))
        assert_same(ours, theirs, tolerance=1e-6)


# ---- Optimizers ----


@any_optimizer
def test_twenty_steps_of_any_optimizer_are_those_of_the_plain_loop_bit_for_bit(make):
    theirs, ours = network(), network()
    their_optimizer, our_optimizer = make(theirs), make(ours)
    plain_loop(theirs, their_optimizer, batches(20))
    trainer = hr.Trainer(ours, our_optimizer, forward)
    for batch in batches(20):
        trainer.step(batch)
    assert_same(ours.state_dict(), theirs.state_dict())
    assert_same(our_optimizer.state_dict()["state"], their_optimizer.state_dict()["state"])
    told = trainer.explain()["optimizer"]
    kind = type(our_optimizer)
    assert told["native"] is False and told["by"] == f"{kind.__module__}.{kind.__qualname__}.step()" and told["reason"]
    assert all(parameter.grad is None for group in our_optimizer.param_groups for parameter in group["params"])


def test_gradients_are_clipped_before_such_a_step_and_averages_move_after_it():
    theirs, ours = network(), network()
    their_optimizer = SignDescent(theirs.parameters())
    averages = {name: parameter.detach().clone() for name, parameter in theirs.named_parameters()}
    for batch in batches(5):
        plain_loop(theirs, their_optimizer, [batch], max_grad_norm=0.1)
        for name, parameter in theirs.named_parameters():
            averages[name].lerp_(parameter.detach(), 0.5)
    trainer = hr.Trainer(ours, SignDescent(ours.parameters()), forward, max_grad_norm=0.1, ema_decay=0.5, ema_warmup=False)
    for batch in batches(5):
        trainer.step(batch)
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)
    assert_same({name: trainer.averages[name] for name in averages}, averages, tolerance=1e-6)


@pytest.mark.parametrize("make", [lambda m: torch.optim.AdamW(m.parameters()), lambda m: torch.optim.Adam(m.parameters()),
                                  lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
                                  lambda m: torch.optim.RMSprop(m.parameters())], ids=["AdamW", "Adam", "SGD", "RMSprop"])
def test_what_the_engine_has_it_does_until_a_hook_is_there_whose_calls_it_would_miss(make):
    theirs, ours = network(), network()
    their_optimizer, our_optimizer = make(theirs), make(ours)
    trainer = hr.Trainer(ours, our_optimizer, forward)
    assert trainer.explain()["optimizer"] == {"native": True, "by": "the engine", "reason": ""}
    calls = []
    for batch in batches(2):
        trainer.step(batch)
    hook = our_optimizer.register_step_post_hook(lambda *given: calls.append("hook"))
    trainer.step(batches(3)[2])
    assert calls == ["hook"] and trainer.explain()["optimizer"]["reason"] == "it has step hooks, which its own step() calls"
    hook.remove()
    trainer.step(batches(4)[3])
    assert calls == ["hook"] and trainer.explain()["optimizer"]["native"]
    plain_loop(theirs, their_optimizer, batches(4))
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)


# Each option at another value than its default, in one of them at least.
NATIVE = {
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, amsgrad=True,
                                         maximize=True),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-3, betas=(0.7, 0.9), eps=1e-6, weight_decay=0.1, fused=True),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.8, dampening=0.5, weight_decay=0.1, maximize=True),
    "SGD Nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1, foreach=True),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, alpha=0.8, eps=1e-4, weight_decay=0.1, momentum=0.5,
                                             centered=True, foreach=True),
}


def network_with_a_parameter_without_gradient(seed: int = 1) -> nn.Sequential:
    model = network(seed)
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    return model


@pytest.mark.parametrize("make", NATIVE.values(), ids=NATIVE)
def test_every_option_of_what_the_engine_has_counts_as_in_the_plain_loop(make, tmp_path):
    theirs, ours, loaded = (network_with_a_parameter_without_gradient() for _ in range(3))
    their_optimizer, our_optimizer, loaded_optimizer = make(theirs), make(ours), make(loaded)
    plain_loop(theirs, their_optimizer, batches(10))
    trainer = hr.Trainer(ours, our_optimizer, forward)
    for batch in batches(10):
        trainer.step(batch)
    assert trainer.explain()["optimizer"]["native"]
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)
    wanted, found = their_optimizer.state_dict(), our_optimizer.state_dict()
    assert found["param_groups"] == wanted["param_groups"]
    assert 0 not in found["state"]
    assert_same(found["state"], wanted["state"], tolerance=1e-6)
    trainer.save(tmp_path / "c.safetensors")
    hr.Trainer(loaded, loaded_optimizer, forward).load(tmp_path / "c.safetensors")
    assert_same(loaded_optimizer.state_dict()["state"], found["state"])


def test_an_update_that_is_left_out_makes_no_state():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    data = [(images, labels, factor) for (images, labels), factor in zip(batches(2), (1e36, 1.0))]
    trainer = hr.Trainer(model, optimizer, lambda m, batch: forward(m, batch) * batch[2], loss_scale=65536.0)
    trainer.step(data[0])
    assert trainer.progress["skipped_updates"] == 1 and optimizer.state_dict()["state"] == {}
    trainer.step(data[1])
    assert [state["step"].item() for state in optimizer.state.values()] == [1.0] * 6


def two_groups(model):
    parts = [{"params": list(model[0].parameters()), "lr": 0.1}, {"params": list(model[3].parameters()), "lr": 0.001}]
    return torch.optim.SGD(parts, momentum=0.9)


def move_one_parameter(groups):
    groups[0]["params"].append(groups[1]["params"].pop())


def join_both(groups):
    groups[0]["params"] += groups.pop()["params"]


def exchange_both(groups):
    groups[0]["params"], groups[1]["params"] = groups[1]["params"], groups[0]["params"]


@pytest.mark.parametrize("edit", [move_one_parameter, join_both, exchange_both])
def test_groups_that_are_edited_in_place_are_followed(edit):
    data, both = batches(4), SideBySide(two_groups)
    both.step_on(data[:2])
    for optimizer in both.optimizers:
        edit(optimizer.param_groups)
    both.step_on(data[2:])


@pytest.mark.parametrize("make", [two_groups, lambda m: SignDescent(m.parameters())], ids=["native", "not native"])
def test_a_parameter_of_no_model_is_refused_at_every_step(make):
    model = network()
    optimizer = make(model)
    trainer = hr.Trainer(model, optimizer, forward)
    trainer.step(batches(1)[0])
    kept = optimizer.param_groups[0]["params"][0]
    optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(16, 8))
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        with pytest.raises(hr.errors.InvalidArgumentError, match="is not a parameter of the model"):
            trainer.step(batches(1)[0])
    assert_same(model.state_dict(), before)
    optimizer.param_groups[0]["params"][0] = kept
    trainer.step(batches(1)[0])
    assert trainer.progress["optimizer_steps"] == 2


def test_state_that_does_not_fit_is_refused_at_every_step_until_other_state_is_loaded():
    model, data = network(), batches(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = hr.Trainer(model, optimizer, forward)
    trainer.step(data[0])
    good = copy.deepcopy(optimizer.state_dict())
    bad = copy.deepcopy(good)
    bad["state"][3]["momentum_buffer"] = torch.zeros(5)
    optimizer.load_state_dict(bad)
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        with pytest.raises(hr.errors.InvalidArgumentError, match=r"wanted momentum_buffer, float32 \[16\] on the CPU, found Float \[5\]"):
            trainer.step(data[1])
    assert_same(model.state_dict(), before)
    assert optimizer.state_dict()["state"][3]["momentum_buffer"].shape == (5,)
    optimizer.load_state_dict(good)
    trainer.step(data[1])
    theirs = network()
    plain_loop(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9), data)
    assert_same(model.state_dict(), theirs.state_dict(), tolerance=1e-6)


def test_state_that_is_switched_on_later_is_there_for_torch_too():
    data, both = batches(6), SideBySide(lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    both.step_on(data[:2])
    for optimizer in both.optimizers:
        optimizer.param_groups[0]["momentum"] = 0.9
    both.step_on(data[2:4])
    both.optimizers[1].register_step_post_hook(lambda *given: None)  # From here on it steps itself.
    both.step_on(data[4:])


def test_torchs_schedulers_know_of_an_update_where_the_state_was_loaded():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    plain_loop(model, optimizer, batches(1))
    again = torch.optim.AdamW(model.parameters())
    again.load_state_dict(optimizer.state_dict())
    scheduler = lr_scheduler.StepLR(again, 1)
    hr.Trainer(model, again, forward).step(batches(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


def test_step_counts_of_another_default_type_are_taken():
    theirs, ours, data = network(), network(), batches(3)
    their_optimizer, our_optimizer = torch.optim.Adam(theirs.parameters()), torch.optim.Adam(ours.parameters())
    torch.set_default_dtype(torch.float64)
    try:
        plain_loop(ours, our_optimizer, data[:2])
    finally:
        torch.set_default_dtype(torch.float32)
    assert our_optimizer.state[ours[0].weight]["step"].dtype == torch.float64
    hr.Trainer(ours, our_optimizer, forward).step(data[2])
    plain_loop(theirs, their_optimizer, data)
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)
    assert our_optimizer.state[ours[0].weight]["step"].item() == 3.0


def test_an_option_that_is_neither_true_nor_false_is_an_error_of_its_own():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, optimizer, forward)
    optimizer.param_groups[0]["maximize"] = torch.ones(2)
    with pytest.raises(RuntimeError, match="ambiguous"):
        trainer.step(batches(1)[0])


def test_a_rate_that_is_one_tensor_of_several_groups_is_scheduled_once():
    model, seen, rate = network(), [], torch.tensor(0.1)
    optimizer = SignDescent([{"params": model[0].parameters()}, {"params": model[3].parameters()}], lr=rate)
    assert all(group["lr"] is rate for group in optimizer.param_groups)
    optimizer.register_step_pre_hook(lambda *given: seen.extend(float(group["lr"]) for group in optimizer.param_groups))
    hr.Trainer(model, optimizer, forward, lr_scheduler={"name": "CosineAnnealingLR"}).fit(batches(4), 1)
    assert seen == pytest.approx([0.05 * (1 + math.cos(math.pi * (place // 2) / 3)) for place in range(8)])
    assert all(group["lr"] is rate for group in optimizer.param_groups) and torch.equal(rate, torch.tensor(0.1))


def test_a_schedule_of_the_engine_leaves_the_groups_rates_as_they_are():
    model, seen = network(), []
    optimizer = SignDescent(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *given: seen.append(optimizer.param_groups[0]["lr"]))
    hr.Trainer(model, optimizer, forward, lr_scheduler={"name": "CosineAnnealingLR"}).fit(batches(4), 1)
    assert seen == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 3)) for step in range(4)])
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_an_error_of_such_a_step_goes_on_and_the_next_step_opens_a_new_window():
    model = network()
    optimizer = SignDescent(model.parameters())
    failing = optimizer.register_step_pre_hook(lambda *given: 1 / 0)
    trainer = hr.Trainer(model, optimizer, forward)
    with pytest.raises(ZeroDivisionError):
        trainer.step(batches(1)[0])
    failing.remove()
    assert trainer.progress["optimizer_steps"] == trainer.progress["window"] == 0
    trainer.step(batches(1)[0])
    assert trainer.progress["optimizer_steps"] == 1


@any_optimizer
def test_such_a_run_goes_on_from_a_checkpoint_to_the_same_bits(make, tmp_path):
    whole = network()
    optimizer = make(whole)
    trainer = hr.Trainer(whole, optimizer, forward)
    trainer.fit(batches(4), 2, checkpoints=tmp_path)
    trainer.fit(batches(4), 4)
    resumed = network(seed=9)
    again = make(resumed)
    trainer = hr.Trainer(resumed, again, forward)
    assert trainer.load(tmp_path)["optimizer_steps"] == 8
    trainer.fit(batches(4), 4)
    assert_same(resumed.state_dict(), whole.state_dict())
    ours, theirs = again.state_dict(), optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    assert_same(ours["state"], theirs["state"])


def test_a_rollback_puts_back_such_a_state_and_leaves_a_schedulers_rates():
    model = network()
    optimizer = SignDescent(model.parameters(), lr=0.1)
    scheduler = {"scheduler": lr_scheduler.StepLR(optimizer, 1, 0.5), "interval": "step"}
    trainer = hr.Trainer(model, optimizer, forward, lr_scheduler=scheduler, step_guard={"policy": "rollback"})
    data = batches(5)
    data[3] = (data[3][0] * math.nan, data[3][1])
    for batch in data:
        trainer.step(batch)
    assert trainer.progress["step_guard"]["rolled_back"] == 1 and trainer.progress["optimizer_steps"] == 4
    assert optimizer.state[model[0].weight]["step"] == 1  # From what it was before the first step.
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)


def test_a_schedule_of_the_engine_that_moves_momentum_wants_an_optimizer_of_the_engine():
    model = network()
    for name in ("OneCycleLR", "CyclicLR"):
        with pytest.raises(hr.errors.InvalidArgumentError, match=f"{name} moves momentum, .* wanted cycle_momentum=False, or"):
            hr.Trainer(model, SignDescent(model.parameters()), forward, lr_scheduler=name, steps=10)
        hr.Trainer(model, SignDescent(model.parameters()), forward, lr_scheduler={"name": name, "cycle_momentum": False})
    native = torch.optim.AdamW(model.parameters())
    trainer = hr.Trainer(model, native, forward, lr_scheduler="OneCycleLR", steps=10)
    trainer.step(batches(1)[0])
    hook = native.register_step_post_hook(lambda *given: None)
    with pytest.raises(hr.errors.InvalidArgumentError, match="OneCycleLR moves momentum"):
        trainer.step(batches(1)[0])
    hook.remove()
    trainer.step(batches(1)[0])
    assert trainer.progress["optimizer_steps"] == 2


@pytest.mark.parametrize("make", [torch.optim.RMSprop, torch.optim.SGD])
def test_momentum_that_a_schedule_moves_survives_an_optimizer_that_is_put_in_place_anew(make, tmp_path):
    def trained():
        model = network()
        optimizer = make(model.parameters(), lr=1e-2)  # Of momentum 0.
        return model, optimizer, hr.Trainer(model, optimizer, forward, lr_scheduler="OneCycleLR", steps=10)

    (undisturbed, _, whole), (ours, optimizer, trainer) = trained(), trained()
    for batch in batches(10):
        whole.step(batch)
    for batch in batches(10)[:5]:
        trainer.step(batch)
    trainer.save(tmp_path / "five.safetensors")
    optimizer.load_state_dict(optimizer.state_dict())
    for batch in batches(10)[5:]:
        trainer.step(batch)
    assert_same(ours.state_dict(), undisturbed.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    trainer.load(tmp_path / "five.safetensors")
    for batch in batches(10)[5:]:
        trainer.step(batch)
    assert_same(ours.state_dict(), undisturbed.state_dict())


def test_state_that_is_no_plain_value_is_refused_by_name(tmp_path):
    model = network()
    optimizer = SignDescent(model.parameters())
    trainer = hr.Trainer(model, optimizer, forward)
    trainer.step(batches(1)[0])
    optimizer.state[model[0].weight]["other"] = object()
    with pytest.raises(hr.errors.UnsupportedError, match="optimizer/state/0/other: wanted tensors, numbers, .*, found object"):
        trainer.save(tmp_path / "c.safetensors")


def test_a_checkpoint_of_another_optimizer_or_of_other_groups_is_refused_and_changes_nothing(tmp_path):
    model = network()
    trainer = hr.Trainer(model, SignDescent(model.parameters()), forward)
    trainer.step(batches(1)[0])
    trainer.save(tmp_path / "c.safetensors")
    for make, words in ((lambda m: torch.optim.Adagrad(m.parameters()), "SignDescent"),
                        (lambda m: torch.optim.SGD(m.parameters()), "SignDescent"),
                        (OPTIMIZERS["a class of the user's"], "parameter groups")):
        other = network(seed=3)
        before = copy.deepcopy(other.state_dict())
        again = hr.Trainer(other, make(other), forward)
        with pytest.raises(hr.errors.InvalidArgumentError, match=words):
            again.load(tmp_path / "c.safetensors")
        assert_same(other.state_dict(), before)
        assert again.progress["optimizer_steps"] == 0


def test_a_plain_state_comes_back_as_it_was():
    state = {"state": {0: {"step": torch.tensor(3.0), "none": None, "of": (1, [2.5, "x"], True)}},
             "milestones": collections.Counter({3: 1}), "dtype": torch.bfloat16, "infinite": math.inf}
    tensors = {}
    text = _plain_state.encode(state, "optimizer", tensors)
    assert list(tensors) == ["optimizer/state/0/step"]
    back = _plain_state.decode(text, tensors)
    assert back == state and type(back["milestones"]) is collections.Counter and type(back["state"][0]["of"]) is tuple
    with pytest.raises(hr.errors.CorruptDataError, match="found tensor optimizer/state/0/step"):
        _plain_state.decode(text, {})


def test_tensors_whose_keys_make_one_name_stay_apart():
    state = {0: torch.tensor(1.0), "0": torch.tensor(2.0), "a/b": torch.tensor(3.0), "a": {"b": torch.tensor(4.0)}}
    state["size"], tensors = torch.Size([2, 3]), {}
    text = _plain_state.encode(state, "optimizer", tensors)
    assert len(tensors) == 4 and _plain_state.decode(text, tensors) == state


# ---- Schedulers ----


@pytest.mark.parametrize("make", [lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2), lambda m: SignDescent(m.parameters())],
                         ids=["native", "not native"])
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_scheduler_of_torch_is_stepped_by_update_or_epoch_as_told(make, interval):
    theirs, ours = network(), network()
    their_optimizer, our_optimizer = make(theirs), make(ours)
    scheduler = lr_scheduler.StepLR(their_optimizer, 2, 0.5)
    for _ in range(3):
        plain_loop(theirs, their_optimizer, batches(3), scheduler if interval == "step" else None)
        if interval == "epoch":
            scheduler.step()
    given = {"scheduler": lr_scheduler.StepLR(our_optimizer, 2, 0.5), "interval": interval}
    trainer = hr.Trainer(ours, our_optimizer, forward, lr_scheduler=given)
    trainer.fit(batches(3), 3)
    assert_same(ours.state_dict(), theirs.state_dict())
    assert trainer.learning_rate == scheduler.get_last_lr()[0]
    assert trainer.explain()["lr_scheduler"]["by"] == "StepLR.step()"


def test_an_update_that_the_loss_scale_leaves_out_steps_no_scheduler():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    data = [(images, labels, factor) for (images, labels), factor in zip(batches(4), (1.0, 1e36, 1.0, 1.0))]
    trainer = hr.Trainer(model, optimizer, lambda m, batch: forward(m, batch) * batch[2], loss_scale=65536.0, lr_scheduler=scheduler)
    trainer.fit(data, 1)
    assert trainer.progress["skipped_updates"] == 1 and scheduler.last_epoch == 3


def test_reduce_on_plateau_goes_by_the_figure_that_the_run_goes_by():
    model, figures = network(), [0.5, 0.4, 0.3, 0.6]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def planted(model, batch):
        place = trainer.progress["epoch"] - 1
        return forward(model, batch), {} if model.training else {"figure": torch.tensor(figures[place])}

    trainer = hr.Trainer(model, optimizer, planted, lr_scheduler=lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, patience=1))
    trainer.fit(batches(2), 4, evaluate=batches(1), monitor="figure")
    assert optimizer.param_groups[0]["lr"] == 0.05 and trainer.options["lr_scheduler"]["interval"] == "epoch"
    assert trainer.options["lr_scheduler"]["scheduler"].best == pytest.approx(0.6)  # Not of the loss, which falls.


@pytest.mark.parametrize("monitor, reductions", [("figure", 1), ("-figure", 0)])
def test_the_engines_reduce_on_plateau_takes_a_figure_as_monitor_has_it(monitor, reductions):
    model, figures = network(), [0.5, 0.4, 0.3, 0.2]  # Worse each time where more is better.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def planted(model, batch):
        place = trainer.progress["epoch"] - 1
        return forward(model, batch), {} if model.training else {"figure": torch.tensor(figures[place])}

    trainer = hr.Trainer(model, optimizer, planted, lr_scheduler={"name": "ReduceLROnPlateau", "factor": 0.5, "patience": 1})
    trainer.fit(batches(2), 4, evaluate=batches(1), monitor=monitor)
    assert trainer.learning_rate == pytest.approx(0.1 * 0.5**reductions)


def test_the_engines_reduce_on_plateau_counts_an_epochs_loss_once_also_after_a_resume(tmp_path):
    def job(seed=1):
        model = network(seed)
        schedule = {"name": "ReduceLROnPlateau", "factor": 0.5, "patience": 0, "threshold": 0.9}  # All but the first are bad.
        return model, hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, lr_scheduler=schedule)

    def stop(result):
        if result["epoch"] == 2:
            raise KeyboardInterrupt

    whole, trainer = job()
    trainer.fit(batches(2), 4)
    assert trainer.learning_rate == pytest.approx(0.1 * 0.5**3)
    with pytest.raises(KeyboardInterrupt):
        job()[1].fit(batches(2), 4, on_epoch=stop, checkpoints=tmp_path)
    resumed, again = job(seed=9)
    again.load(tmp_path)
    again.fit(batches(2), 4)
    assert again.learning_rate == trainer.learning_rate
    assert_same(resumed.state_dict(), whole.state_dict())


def test_a_plateau_is_as_before_where_the_evaluation_of_its_epoch_fails():
    model, fails = network(), [True]

    def failing(model, batch):
        if not model.training and fails[0]:
            raise ZeroDivisionError
        return forward(model, batch)

    schedule = {"name": "ReduceLROnPlateau", "factor": 0.5, "patience": 0, "threshold": 0.9}
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), failing, lr_scheduler=schedule)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(batches(2), 1, evaluate=batches(1))
    assert trainer.learning_rate == 0.1
    fails[0] = False
    trainer.fit(batches(2), 3, evaluate=batches(1))
    assert trainer.learning_rate == pytest.approx(0.1 * 0.5**1)  # Epochs 2 and 3: the first figure, and one no better.


@pytest.mark.parametrize("make", [lambda optimizer: {"name": "ReduceLROnPlateau", "patience": 0},
                                  lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)], ids=["by name", "torch's"])
def test_an_epoch_without_a_loss_that_counted_is_a_bad_one_for_a_plateau(make):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, optimizer, lambda m, batch: (forward(m, batch), {}, 0.0), lr_scheduler=make(optimizer))
    assert [result["loss"] for result in trainer.fit(batches(2), 2)] == [None, None]
    assert trainer.learning_rate == pytest.approx(0.1 * 0.1**2) and trainer.progress["optimizer_steps"] == 0


@pytest.mark.parametrize("schedule, rate", [({"name": "ExponentialLR", "gamma": 0.5, "interval": "step"}, 0.1 * 0.5**3),
                                            ({"name": "StepLR", "step_size": 2, "gamma": 0.5, "interval": "step"}, 0.05),
                                            ("ReduceLROnPlateau", 0.1)])
def test_a_schedule_that_needs_no_length_takes_a_loader_without_one(schedule, rate):
    model = network()
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, lr_scheduler=schedule)
    trainer.fit(iter(batches(3)), 1)
    assert trainer.progress["optimizer_steps"] == 3 and trainer.learning_rate == pytest.approx(rate)


@pytest.mark.parametrize("options, words", [
    ({"lr_scheduler": "ReduceLROnPlateau", "steps": 10}, "ReduceLROnPlateau goes by the figure of an epoch, .* wanted fit"),
    ({"lr_scheduler": {"name": "StepLR", "step_size": 1}, "steps": 10}, "StepLR is stepped by epoch: wanted fit.*, epochs= beside steps="),
    ({"lr_scheduler": "CosineAnnealingLR"}, "wanted steps=")])
def test_a_loop_of_steps_is_refused_what_its_schedule_would_not_get(options, words):
    model = network()
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, **options)
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        trainer.step(batches(1)[0])
    assert trainer.progress["optimizer_steps"] == 0


def test_a_loop_of_steps_counts_epochs_where_it_is_told_how_many_they_are():
    model = network()
    schedule = {"name": "StepLR", "step_size": 1, "gamma": 0.5}
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, lr_scheduler=schedule, steps=4, epochs=2)
    rates = []
    for batch in batches(4):
        rates.append(trainer.learning_rate)
        trainer.step(batch)
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05])


@pytest.mark.parametrize("schedule, words", [({"name": "StepLR", "power": 2.0}, "power"), ({"name": "ExponentialLR"}, "gamma"),
                                             ({"name": "MultiStepLR", "milestones": [30, 10]}, "milestones"),
                                             ({"name": "ReduceLROnPlateau", "interval": "step"}, "interval")])
def test_a_schedule_that_contradicts_itself_is_refused_when_the_trainer_is_made(schedule, words):
    model = network()
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, lr_scheduler=schedule)


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_scheduler_goes_on_from_a_checkpoint(interval, tmp_path):
    def job():
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2), lr_scheduler.MultiStepLR(optimizer, [2, 3])]
        scheduler = lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])
        return model, scheduler, hr.Trainer(model, optimizer, forward, lr_scheduler={"scheduler": scheduler, "interval": interval})

    whole, scheduler, trainer = job()
    trainer.fit(batches(2), 2, checkpoints=tmp_path)
    trainer.fit(batches(2), 6)
    model, again, resumed = job()
    resumed.load(tmp_path)
    resumed.fit(batches(2), 6)
    assert_same(model.state_dict(), whole.state_dict())
    assert again.get_last_lr() == scheduler.get_last_lr()
    with pytest.raises(hr.errors.InvalidArgumentError, match="with the state of a torch lr_scheduler, wanted one without it"):
        hr.Trainer(model, torch.optim.AdamW(model.parameters()), forward).load(tmp_path)


@pytest.mark.parametrize("kinds", [[lr_scheduler.LinearLR] * 3, [lr_scheduler.LinearLR] * 2], ids=["three parts", "other parts"])
def test_a_checkpoint_of_a_scheduler_of_other_parts_is_refused_and_changes_nothing(kinds, tmp_path):
    def trainer_of(model, kinds):
        optimizer = SignDescent(model.parameters(), lr=0.1)
        parts = [kind(optimizer) for kind in kinds]
        scheduler = lr_scheduler.SequentialLR(optimizer, parts, milestones=list(range(1, len(parts))))
        return optimizer, scheduler, hr.Trainer(model, optimizer, forward, lr_scheduler={"scheduler": scheduler, "interval": "step"})

    trainer_of(network(), kinds)[2].save(tmp_path / "c.safetensors")
    model = network(seed=9)
    optimizer, scheduler, trainer = trainer_of(model, [lr_scheduler.LinearLR, lr_scheduler.ConstantLR])
    trainer.step(batches(1)[0])
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
    with pytest.raises(hr.errors.InvalidArgumentError, match=r"SequentialLR\(LinearLR, .*, wanted SequentialLR\(LinearLR, ConstantLR\)"):
        trainer.load(tmp_path / "c.safetensors")
    assert_same((model.state_dict(), optimizer.state_dict()["state"][0]["mean"]), (before[0], before[1]["state"][0]["mean"]))
    assert optimizer.param_groups[0]["lr"] == before[1]["param_groups"][0]["lr"]
    assert scheduler.last_epoch == before[2]["last_epoch"] == 1


class Stubborn(lr_scheduler.StepLR):
    """Refuses what it is to load, after it has changed."""

    def load_state_dict(self, state_dict):
        self.last_epoch = 99
        if state_dict["last_epoch"] != self.of_now:
            raise KeyError("last_epoch")
        super().load_state_dict(state_dict)


def test_a_scheduler_that_refuses_its_state_leaves_itself_and_the_optimizer_as_they_were(tmp_path):
    def trainer_of(model, steps):
        optimizer = SignDescent(model.parameters(), lr=0.1)
        scheduler = Stubborn(optimizer, 1)
        trainer = hr.Trainer(model, optimizer, forward, lr_scheduler={"scheduler": scheduler, "interval": "step"})
        for batch in batches(steps):
            trainer.step(batch)
        scheduler.of_now = steps
        return optimizer, scheduler, trainer

    trainer_of(network(), 3)[2].save(tmp_path / "c.safetensors")
    optimizer, scheduler, trainer = trainer_of(network(seed=9), 1)
    lr, state = optimizer.param_groups[0]["lr"], copy.deepcopy(optimizer.state_dict()["state"][0]["mean"])
    with pytest.raises(hr.errors.InvalidArgumentError, match="load: lr_scheduler: 'last_epoch'"):
        trainer.load(tmp_path / "c.safetensors")
    assert scheduler.last_epoch == 1 and optimizer.param_groups[0]["lr"] == lr and trainer.progress["optimizer_steps"] == 1
    assert_same(optimizer.state_dict()["state"][0]["mean"], state)


def test_schedulers_that_cannot_be_stepped_are_refused():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(network().parameters(), lr=0.1)
    for given, words in ((lr_scheduler.StepLR(other, 1), "wanted a scheduler of the Trainer's optimizer, found one of another SGD"),
                         ({"scheduler": lr_scheduler.StepLR(optimizer, 1), "interval": "hour"}, "wanted step | epoch, found 'hour'"),
                         ({"scheduler": lr_scheduler.StepLR(optimizer, 1), "each": 1}, "wanted scheduler and interval, found 'each'")):
        with pytest.raises(hr.errors.InvalidArgumentError, match=words.replace("|", r"\|")):
            hr.Trainer(model, optimizer, forward, lr_scheduler=given)
    with pytest.raises(hr.errors.InvalidArgumentError, match="StepLR is stepped by epoch, whose end fit"):
        hr.Trainer(model, optimizer, forward, lr_scheduler=lr_scheduler.StepLR(optimizer, 1)).step(batches(1)[0])


def test_a_window_weighs_its_batches_by_what_forward_returns():
    whole, parts = nn.Linear(8, 4), nn.Linear(8, 4)
    parts.load_state_dict(whole.state_dict())
    images, labels = batches(1)[0]
    hr.Trainer(whole, torch.optim.SGD(whole.parameters(), lr=0.1), forward).step((images, labels))
    trainer = hr.Trainer(parts, torch.optim.SGD(parts.parameters(), lr=0.1),
                         lambda m, batch: (forward(m, batch), {}, torch.tensor(len(batch[1]))), gradient_accumulation_steps=2)
    trainer.step((images[:9], labels[:9]))
    trainer.step((images[9:], labels[9:]))
    assert_same(parts.state_dict(), whole.state_dict(), tolerance=1e-6)


def masked(model, batch):
    losses = nn.functional.cross_entropy(model(batch.image), batch.label, reduction="none")
    return losses[batch["valid"].bool()].mean()


def test_a_batch_of_a_loader_weighs_by_its_samples_that_count():
    images, labels = batches(1)[0]
    whole, parts = nn.Linear(8, 4), nn.Linear(8, 4)
    parts.load_state_dict(whole.state_dict())

    def padded(begin, end):
        valid = torch.zeros(8, dtype=torch.uint8)
        valid[:end - begin] = 1
        image, label = torch.zeros(8, 8), torch.zeros(8, dtype=torch.int64)
        image[:end - begin], label[:end - begin] = images[begin:end], labels[begin:end]
        return Batch({"image": image, "label": label, "valid": valid})

    hr.Trainer(whole, torch.optim.SGD(whole.parameters(), lr=0.1), forward).step((images[:10], labels[:10]))
    trainer = hr.Trainer(parts, torch.optim.SGD(parts.parameters(), lr=0.1), masked, gradient_accumulation_steps=2)
    (result,) = trainer.fit([padded(0, 8), padded(8, 10)], 1)
    assert_same(parts.state_dict(), whole.state_dict(), tolerance=1e-6)
    evaluation = trainer.evaluate([padded(0, 8), padded(8, 10), padded(10, 10)])
    assert result["samples"] == evaluation["samples"] == 10
    assert evaluation["loss"] == pytest.approx(forward(whole, (images[:10], labels[:10])).item(), rel=1e-5)


def test_an_evaluation_weighs_by_what_forward_returns_and_leaves_out_what_weighs_nothing():
    model = nn.Linear(8, 4)
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1),
                         lambda m, batch: (torch.tensor(batch[1]) + 0 * m.weight.sum(), {"figure": torch.tensor(batch[1])}, batch[2]))
    images = torch.zeros(2, 8)
    data = [(images, 1.0, 3.0), (images, 5.0, 1.0), (images, math.nan, 0.0)]
    assert trainer.evaluate(data) == {"samples": 6, "loss": 2.0, "figure": 2.0}
    alone = trainer.evaluate(data[2:])
    assert alone["samples"] == 2 and math.isnan(alone["loss"]) and math.isnan(alone["figure"])


@pytest.mark.parametrize("policy, done", [("raise", None), ("skip", "skipped"), ("replace", "replaced"), ("lower_lr", "lowered_lr"),
                                          ("rollback", "rolled_back")])
def test_a_gradient_that_is_no_number_meets_the_step_guard(policy, done):
    model = network()
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, step_guard={"policy": policy})
    trainer.step(batches(1)[0])
    hook = model[3].weight.register_hook(lambda gradient: gradient * math.nan)
    before = copy.deepcopy(dict(model.named_parameters()))
    if policy == "raise":
        with pytest.raises(hr.errors.NumericsError, match="3.weight"):
            trainer.step(batches(1)[0])
    else:
        trainer.step(batches(1)[0])
    hook.remove()
    counts = trainer.progress["step_guard"]
    assert counts["gradients"] == counts["in_a_row"] == 1 and counts["lr_factor"] == (0.5 if policy == "lower_lr" else 1.0)
    assert {name for name in ("skipped", "replaced", "lowered_lr", "rolled_back") if counts[name]} >= ({done} if done else set())
    assert trainer.progress["optimizer_steps"] == (2 if policy == "replace" else 1)
    assert trainer.learning_rate == (0.05 if policy == "lower_lr" else 0.1)
    if policy in ("raise", "skip", "lower_lr"):
        assert_same(dict(model.named_parameters()), before)
    assert math.isfinite(trainer.step(batches(1)[0])) and trainer.progress["step_guard"]["in_a_row"] == 0


def test_what_clipping_found_can_be_read():
    model = network()
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, max_grad_norm=1e-3)
    assert trainer.clip_report == {"norm_before": 0.0, "norm_after": 0.0, "clipped": 0}
    trainer.step(batches(1)[0])
    report = trainer.clip_report
    assert report["norm_before"] > 1e-3 and report["norm_after"] == pytest.approx(1e-3, rel=1e-4) and report["clipped"] == 1
    assert trainer.progress["clipped_updates"] == 1


# ---- SWA ----


def test_a_later_run_has_a_mean_of_its_own_epochs():
    model = network()
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward)
    assert trainer.fit(batches(2), 3, swa_start=2)[-1]["swa"]["epochs"] == 2
    weights = []
    result = trainer.fit(batches(2), 6, swa_start=5, on_epoch=lambda result: weights.append(model[0].weight.detach().clone()))[-1]
    assert result["swa"]["epochs"] == 2
    assert_same(trainer.swa_averages["0.weight"], (weights[-1] + weights[-2]) / 2, tolerance=1e-6)
    assert trainer.fit(batches(2), 7, swa_start=5)[-1]["swa"]["epochs"] == 3  # The same mean goes on.


def test_a_pass_for_batch_norm_that_fails_leaves_the_generators_as_they_were(tmp_path):
    model, states = network(), []

    def saving(model, batch):
        if model.training and not torch.is_grad_enabled():  # Of that pass.
            torch.rand(3)
            trainer.save(tmp_path / "c.safetensors")
        return forward(model, batch)

    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), saving)
    with pytest.raises(hr.errors.InvalidArgumentError, match="this Trainer is at work already"):
        trainer.fit(batches(2), 1, swa_start=1, on_step=lambda loss: states.append(torch.get_rng_state()))
    assert torch.equal(torch.get_rng_state(), states[-1]) and not (tmp_path / "c.safetensors").exists()


def test_the_mean_of_the_weights_and_its_batch_norm_are_those_of_torch(tmp_path):
    theirs, ours, data = network(), network(), batches(5)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    averaged = torch.optim.swa_utils.AveragedModel(theirs)
    for epoch in range(1, 6):
        plain_loop(theirs, optimizer, data)
        if epoch >= 3:
            averaged.update_parameters(theirs)
    torch.optim.swa_utils.update_bn(data, averaged)
    trainer = hr.Trainer(ours, torch.optim.SGD(ours.parameters(), lr=0.1), forward, ema_decay=0.9)
    results = trainer.fit(data, 5, swa_start=3, evaluate=data, checkpoints=tmp_path)
    assert_same(ours.state_dict(), theirs.state_dict())
    assert_same(trainer.swa_averages, dict(averaged.module.state_dict()), tolerance=1e-6)
    assert results[-1]["swa"]["epochs"] == 3 and "swa" not in results[-2]
    with trainer.with_averages("swa"):
        assert_same(ours.state_dict(), trainer.swa_averages)
        assert trainer.evaluate(data) == pytest.approx(results[-1]["swa"]["evaluation"])
    assert_same(ours.state_dict(), theirs.state_dict())
    again = network(seed=9)
    loaded = hr.Trainer(again, torch.optim.SGD(again.parameters(), lr=0.1), forward, ema_decay=0.9)
    loaded.load(tmp_path)
    assert_same(loaded.swa_averages, trainer.swa_averages)


def test_a_run_with_such_a_mean_goes_on_to_the_same_bits(tmp_path):
    def trainer_of(seed):
        model = network(seed)
        return hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward)

    whole = trainer_of(1)
    whole.fit(batches(3), 5, swa_start=2)
    first = trainer_of(1)

    def stop(result):
        if result["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.fit(batches(3), 5, swa_start=2, on_epoch=stop, checkpoints=tmp_path)
    again = trainer_of(9)
    again.load(tmp_path)
    assert again.fit(batches(3), 5, swa_start=2)[-1]["swa"]["epochs"] == 4
    assert_same(again.swa_averages, whole.swa_averages)


def test_a_mean_from_a_file_follows_the_model_to_its_device():
    averages, model = WeightAverages(1), network()
    averages.add(model)
    loaded = WeightAverages.from_json(averages.to_json(tensors := {}), {name: tensor.clone() for name, tensor in tensors.items()})
    loaded.add(model.to("meta"))  # Which stands for any other device.
    assert {tensor.device.type for tensor in loaded.parameters.values()} == {"meta"} and loaded.epochs == 2


def test_a_batch_norm_that_is_frozen_keeps_its_statistics():
    model = network()
    model[1].eval()
    before = copy.deepcopy(dict(model[1].named_buffers()))
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward)
    trainer.fit(batches(2), 2, swa_start=1)
    assert_same({name: trainer.swa_averages[f"1.{name}"] for name in before}, before)


@pytest.mark.parametrize("start, loader, words", [(4, batches(2), "wanted an epoch from 1 to 3, or 0 for none, found 4"),
                                                  (-1, batches(2), "found -1"), (1, iter(batches(2)), "found an iterator")])
def test_a_mean_that_there_cannot_be_is_refused_before_the_first_step(start, loader, words):
    model = network()
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward)
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        trainer.fit(loader, 3, swa_start=start)
    assert trainer.progress["optimizer_steps"] == 0 and trainer.swa_averages == {}


def swa_run(seed, scheduler="none"):
    model = network(seed)
    return model, hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, lr_scheduler=scheduler)


EXPONENTIAL = {"name": "ExponentialLR", "gamma": 0.5}


@pytest.mark.parametrize("strategy, epochs", [("cos", 2), ("linear", 2), ("linear", 0)])
def test_the_rate_behind_the_first_epoch_of_the_mean_is_that_of_torchs_swalr(strategy, epochs):
    theirs, data, rates = network(), batches(3), []
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    swa = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.3, anneal_epochs=max(epochs, 1), anneal_strategy=strategy)
    for epoch in range(1, 6):
        plain_loop(theirs, optimizer, data)
        rates.append(optimizer.param_groups[0]["lr"])
        swa.step() if epoch >= 2 else scheduler.step()
    ours, trainer = swa_run(1, EXPONENTIAL)
    found = []
    trainer.fit(data, 5, swa_start=2, swa_lr=0.3, swa_anneal_epochs=epochs, swa_anneal_strategy=strategy,
                on_epoch=lambda result: found.append(trainer.learning_rate))
    assert found == pytest.approx([*rates[1:], 0.3])  # After an epoch it is the next one's.
    assert rates[:2] == pytest.approx([0.1, 0.05]) and rates[-1] == pytest.approx(0.3)
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-5)
    trainer.fit(data, 6)
    assert trainer.learning_rate == pytest.approx(0.1 * 0.5**6)  # It is of the fit() that asked for it.


def test_a_run_with_a_rate_of_the_mean_goes_on_to_the_same_bits():
    settings = {"swa_start": 2, "swa_lr": 0.3, "swa_anneal_epochs": 3}
    whole, trainer = swa_run(1, EXPONENTIAL)
    trainer.fit(batches(3), 6, **settings)
    _, first = swa_run(1, EXPONENTIAL)
    states = []
    first.fit(batches(3), 6, on_epoch=lambda result: states.append(copy.deepcopy(first.state_dict())), **settings)
    resumed, again = swa_run(9, EXPONENTIAL)
    again.load_state_dict(states[2])
    again.fit(batches(3), 6, **settings)
    assert_same(resumed.state_dict(), whole.state_dict())
    assert_same(again.swa_averages, trainer.swa_averages)


@pytest.mark.parametrize("settings, loader, words", [
    ({"swa_lr": 0.1}, batches(2), "swa_lr=0.1: wanted swa_start=, the epoch behind which it begins, beside it, found none"),
    ({"swa_start": 1, "swa_anneal_epochs": 3}, batches(2), "swa_anneal_epochs=3: wanted swa_lr= beside it"),
    ({"swa_start": 1, "swa_anneal_strategy": "linear"}, batches(2), 'swa_anneal_strategy="linear": wanted swa_lr= beside it'),
    ({"swa_start": 1, "swa_lr": -1.0}, batches(2), "swa_lr"),
    ({"swa_start": 1, "swa_lr": 0.1}, lambda: iter(batches(2)), "wanted a loader with a length, or steps=")])
def test_a_rate_of_the_mean_that_there_cannot_be_is_refused_before_the_first_step(settings, loader, words):
    _, trainer = swa_run(1)
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        trainer.fit(loader, 3, **settings)
    assert trainer.progress["optimizer_steps"] == 0


def test_a_rate_of_the_mean_is_refused_beside_a_scheduler_of_torch_which_may_be_a_swalr_itself():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.3, anneal_epochs=2)
    trainer = hr.Trainer(model, optimizer, forward, lr_scheduler=scheduler)
    with pytest.raises(hr.errors.InvalidArgumentError, match="swa_lr=0.1: wanted no lr_scheduler object beside it, found SWALR"):
        trainer.fit(batches(2), 3, swa_start=1, swa_lr=0.1)
    trainer.fit(batches(2), 3, swa_start=1)
    assert trainer.learning_rate == pytest.approx(0.3)
