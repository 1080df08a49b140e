"""hr.Trainer with optimizers and schedulers of torch that step themselves, and with SWA, against the loop that people write."""

import collections
import copy
import math

import headrace as hr
import pytest
import torch
from headrace import _plain_state
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
                    state.update(step=0, mean=torch.zeros_like(parameter), history=[], kind=("sign", {"of": None}), dtype=torch.float32)
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
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


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
    plain_loop(theirs, SignDescent(theirs.parameters()), batches(5), max_grad_norm=0.1)
    trainer = hr.Trainer(ours, SignDescent(ours.parameters()), forward, max_grad_norm=0.1, ema_decay=0.5, ema_warmup=False)
    for batch in batches(5):
        trainer.step(batch)
    assert_same(ours.state_dict(), theirs.state_dict(), tolerance=1e-6)
    assert not torch.equal(trainer.averages["0.weight"], ours[0].weight)


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


def test_a_schedule_of_the_engine_leaves_the_groups_rates_as_they_are():
    model, seen = network(), []
    optimizer = SignDescent(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *given: seen.append(optimizer.param_groups[0]["lr"]))
    hr.Trainer(model, optimizer, forward, lr_scheduler={"name": "CosineAnnealingLR"}).fit(batches(4), 1)
    assert seen == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 4)) for step in range(4)])
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
    assert optimizer.param_groups[0]["lr"] == 0.05


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


# ---- SWA ----


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
