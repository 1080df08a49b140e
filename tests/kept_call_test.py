"""A kept call of a training loop: its replay has the loop's own gradients, tells what a change does to them, and leaves no trace."""

import copy
import dataclasses
import math
import os
import pickle
import random

import numpy
import pytest
import torch
from headrace import _kept_call
from headrace._free_memory import free_bytes, used_bytes
from headrace._kept_call import KeptCalls
from headrace._recorded_call import full_float32
from headrace.errors import UnsupportedError
from state_differences import differences, same
from torch import nn
from torch.utils.checkpoint import checkpoint

PLANTED = {"planted": "true"}
CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(11)
    random.seed(11)
    numpy.random.seed(11)


class Switch:
    """Stands for LiveKnobs.apply: notes what it is given, and turns one planted change on and off."""

    def __init__(self, on=lambda: None, off=lambda: None):
        self.on, self.off, self.is_on, self.given = on, off, False, []

    def __call__(self, settings):
        self.given.append(dict(settings))
        wanted = "planted" in settings
        if wanted != self.is_on:
            self.is_on = wanted
            (self.on if wanted else self.off)()


def forward_as(model, forward):
    return Switch(lambda: setattr(model, "forward", forward), lambda: delattr(model, "forward"))


def plain(model, *args, **kwargs):
    return type(model).forward(model, *args, **kwargs)


def kept_update(kept, optimizer, update, before):
    """One update with its call kept. Returns what before() gives, called before the optimizer's step."""
    found = []
    handle = optimizer.register_step_pre_hook(lambda *_: found.append(before()))
    kept.arm()
    try:
        update()
    finally:
        handle.remove()
    return found[-1]


def everything(models, optimizers):
    """All that a replay must leave as it was, as values that compare."""
    def raw(tensor):
        return None if tensor is None else (id(tensor), tensor.data_ptr(), tensor.stride(), tensor.detach().clone())

    state = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": numpy.random.get_state()[1].tolist(),
             "grad mode": torch.is_grad_enabled(), "autocast": torch.is_autocast_enabled("cpu")}
    for place, model in enumerate(models):
        for name, value in model.state_dict(keep_vars=True).items():
            state[f"{place} {name}"] = (raw(value), value.requires_grad, raw(value.grad))
        for name, part in model.named_modules():
            own = {key: value for key, value in vars(part).items() if key not in vars(nn.Module())}
            state[f"{place} attributes {name}"] = {
                key: value.get_state() if isinstance(value, torch.Generator) else list(value) if isinstance(value, list)
                else raw(value) if isinstance(value, torch.Tensor) else value
                for key, value in own.items()}
            state[f"{place} mode {name}"] = part.training
    for place, optimizer in enumerate(optimizers):
        state[f"groups {place}"] = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        state[f"state {place}"] = [{key: raw(value) for key, value in entry.items()} for entry in optimizer.state.values()]
    return state


def replayed_gradients(kept):
    """The reference's, by parameter."""
    return kept._reference.gradients


def has_own_gradients(kept, model):
    """Whether the replay of the reference gave what the loop's backward has left in .grad, bit for bit."""
    found = replayed_gradients(kept)
    return all(parameter not in found if parameter.grad is None else torch.equal(found[parameter], parameter.grad)
               for parameter in model.parameters())


# Models as users write them, each with a batch and a loss of what it returns.


class LastOfLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6, num_layers=2, dropout=0.2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        values, hidden = self.lstm(x)
        return self.head(values[:, -1]), hidden


class OwnRnn(nn.Module):
    """Its second output is what the first is computed from."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(9, 5), nn.Linear(5, 3)

    def forward(self, x):
        hidden = x.new_zeros(x.shape[0], 5)
        for step in x.unbind(1):
            hidden = torch.tanh(self.cell(torch.cat([step, hidden], 1)))
        return self.head(hidden), hidden


class WithLoss(nn.Module):
    """The loss is computed within, from the logits that it returns as well."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x=None, labels=None):
        logits = self.head(self.body(x).relu())
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    features: torch.Tensor
    name: str = "output"


class WithFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        features = self.body(x).tanh()
        return Output(self.head(features), features)


@dataclasses.dataclass(frozen=True)
class Given:
    x: torch.Tensor
    name: str = "given"


class TakesWhatIsGiven(nn.Linear):
    def forward(self, given):
        return super().forward(given.x if isinstance(given, Given) else given)


class Attention(nn.Module):
    """Looks whether query, key and value are one tensor."""

    def __init__(self):
        super().__init__()
        self.attention, self.head, self.unused = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3), nn.Linear(2, 2)

    def forward(self, query, *, key):
        assert query is key
        return self.head(self.attention(query, key, key, need_weights=False)[0].mean(1))


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        context.save_for_backward(value)
        return value**3

    @staticmethod
    def backward(context, gradient):
        (value,) = context.saved_tensors
        return gradient * 3 * value**2


class WithOwnFunction(nn.Linear):
    def forward(self, x):
        return Cubed.apply(super().forward(x))


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.first, self.head, self.use_reentrant = nn.Linear(6, 8), nn.Linear(8, 3), use_reentrant
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))

    def forward(self, x):
        return self.head(checkpoint(self.body, self.first(x), use_reentrant=self.use_reentrant))


class DrawsAndCounts(nn.Module):
    """Draws from every generator there is, and keeps what is no buffer."""

    def __init__(self):
        super().__init__()
        self.fc, self.calls, self.seen, self.last = nn.Linear(6, 3), 0, [], None
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        self.calls += 1
        noise = torch.rand(x.shape, generator=self.generator) + torch.rand_like(x) + random.random() + float(numpy.random.rand())
        result = self.fc(x * noise)
        self.seen.append(result.detach().mean())
        self.last = result
        return result


class Carries(nn.Module):
    """Keeps its hidden state from call to call."""

    def __init__(self):
        super().__init__()
        self.fc, self.head, self.hidden = nn.Linear(6, 5), nn.Linear(5, 3), None

    def forward(self, x):
        self.hidden = torch.tanh(self.fc(x) + (0 if self.hidden is None else self.hidden))
        return self.head(self.hidden)


def small():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def with_dropout():
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))


def with_batch_norm():
    return nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def with_transformer():
    return nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), nn.Flatten(), nn.Linear(40, 3))


def rows():
    return torch.randn(8, 6)


def classes():
    return torch.randint(0, 3, (8,))


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits, labels)


def of_call(model, x, labels):
    return loss_of(model(x), labels)


def of_first(model, x, labels):
    return loss_of(model(x)[0], labels)


def of_features(model, x, labels):
    output = model(x)
    return loss_of(output.logits, labels) + 3 * output.features.pow(2).mean()


def twice(model, x, labels):
    logits = model(x)
    return loss_of(logits, labels) + 0.1 * logits.pow(2).mean()


def in_two_calls(model, x, labels):
    return loss_of(model(x) - model(x.flip(1)), labels)


def under_autocast(model, x, labels):
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    return loss_of(logits.float(), labels)


def with_detached_state(model, x, labels):
    """Truncated backpropagation through time."""
    loss = of_call(model, x, labels)
    model.hidden = model.hidden.detach()
    return loss


CASES = {
    "linear": (lambda: nn.Linear(6, 3), rows, of_call),
    "conv and batch norm": (with_batch_norm, lambda: torch.randn(8, 2, 8, 8), of_call),
    "dropout": (with_dropout, rows, of_call),
    "lstm": (LastOfLstm, lambda: torch.randn(8, 5, 4), of_first),
    "own rnn": (OwnRnn, lambda: torch.randn(8, 5, 4), of_first),
    "transformer block": (with_transformer, lambda: torch.randn(8, 5, 8), of_call),
    "loss within": (WithLoss, rows, lambda model, x, labels: model(x=x, labels=labels)["loss"]),
    "a tensor given twice": (Attention, lambda: torch.randn(8, 5, 8), lambda model, x, labels: loss_of(model(x, key=x), labels)),
    "own function": (lambda: WithOwnFunction(6, 3), rows, of_call),
    "checkpointing": (lambda: Checkpointed(use_reentrant=False), rows, of_call),
    "draws and counts": (DrawsAndCounts, rows, of_call),
    "hidden state": (Carries, rows, with_detached_state),
    "output used twice": (small, rows, twice),
    "two calls in one graph": (small, rows, in_two_calls),
    "autocast of the loop": (small, rows, under_autocast),
}


class Loop:
    """A loop in mid-run."""

    def __init__(self, make=small, batch=rows, loss=of_call, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)):
        self.model = make()
        self.optimizer = optimizer(self.model.parameters())
        self.batch, self.loss = batch, loss
        self.kept = KeptCalls([self.model], [self.optimizer])
        for _ in range(2):
            self.update()

    def update(self):
        self.optimizer.zero_grad()
        self.loss(self.model, self.batch(), classes()).backward()
        self.optimizer.step()

    def kept_update(self, before):
        return kept_update(self.kept, self.optimizer, self.update, before)

    def replayed(self, switch, candidate=PLANTED, reference={}):
        return self.kept_update(lambda: self.kept.replay(switch, reference, candidate, {}))

    def everything(self):
        return everything([self.model], [self.optimizer])


@pytest.mark.parametrize("case", CASES)
def test_a_replay_has_the_bits_of_the_loops_own_gradients_and_leaves_no_trace(case):
    loop = Loop(*CASES[case])
    switch = Switch()

    def before():
        state = loop.everything()
        result = loop.kept.replay(switch, {}, PLANTED, {})
        assert differences(state, loop.everything()) == []
        assert has_own_gradients(loop.kept, loop.model)
        return result

    result = loop.kept_update(before)
    assert switch.given == [{}, PLANTED, {}]
    assert result.pop("seconds") > 0
    assert result.pop("cosine") == pytest.approx(1)
    assert result.pop("worst_name") in dict(loop.model.named_parameters())
    assert result == {"relative_l2": 0, "worst_tensor": 0, "output_difference": 0, "finite": True, "bit_equal": True,
                      "update_difference": None, "other_draws": False}


def test_what_an_output_gives_to_another_one_and_to_the_loss_counts_once():
    loop = Loop(WithFeatures, rows, of_features)

    def before():
        result = loop.kept.replay(Switch(), {}, PLANTED, {})
        for parameter in loop.model.parameters():
            torch.testing.assert_close(replayed_gradients(loop.kept)[parameter], parameter.grad)
        return result

    assert loop.kept_update(before)["bit_equal"]


def test_a_run_with_replays_has_the_bits_of_one_without():
    def run(replays):
        torch.manual_seed(4)
        loop = Loop(lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(4 * 36, 3)),
                    lambda: torch.randn(8, 2, 8, 8))
        switch = forward_as(loop.model, lambda x: 1.5 * plain(loop.model, x))
        for _ in range(4):
            if replays:
                loop.replayed(switch, {**PLANTED, "optimizer.fused": "true"})
            else:
                loop.update()
        return loop.everything()

    with_replays, without = run(True), run(False)
    bits = [{key: value[0][3] for key, value in state.items() if key.startswith("0 ") and isinstance(value, tuple)}
            for state in (with_replays, without)]
    assert len(bits[0]) == 9 and differences(*bits) == []
    assert same(with_replays["torch"], without["torch"])


# What the figures say of changes.


class Steeper(torch.autograd.Function):
    """The same value; the gradient times a factor."""

    @staticmethod
    def forward(context, value, factor):
        context.factor = factor
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


def test_a_scaled_forward_shows_in_outputs_and_gradients():
    loop = Loop()
    result = loop.replayed(forward_as(loop.model, lambda x: 1.05 * plain(loop.model, x)))
    for figure in ("relative_l2", "worst_tensor", "output_difference"):
        assert result[figure] == pytest.approx(0.05, rel=1e-3)
    assert result["cosine"] == pytest.approx(1) and result["finite"] and not result["bit_equal"]


@pytest.mark.parametrize("factor", [1.05, 2.0])
def test_gradients_times_a_factor_show_in_gradients_alone(factor):
    loop = Loop()
    result = loop.replayed(forward_as(loop.model, lambda x: Steeper.apply(plain(loop.model, x), factor)))
    assert result["relative_l2"] == pytest.approx(factor - 1, rel=1e-3)
    assert result["worst_tensor"] == pytest.approx(factor - 1, rel=1e-3)
    assert result["cosine"] == pytest.approx(1)
    assert (result["output_difference"], result["bit_equal"]) == (0, False)


def test_a_factor_within_the_loss_that_a_model_computes_itself_shows():
    loop = Loop(*CASES["loss within"])

    def steeper(x, labels):
        found = plain(loop.model, x, labels)
        return {**found, "loss": Steeper.apply(nn.functional.cross_entropy(found["logits"], labels), 2.0)}

    assert loop.replayed(forward_as(loop.model, steeper))["relative_l2"] == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("way", ["probability", "mode"])
def test_dropout_that_is_off_shows(way):
    loop = Loop(with_dropout)
    layer = loop.model[1]
    if way == "probability":
        switch = Switch(lambda: setattr(layer, "p", 0.0), lambda: setattr(layer, "p", 0.5))
    else:
        switch = Switch(loop.model.eval, loop.model.train)
    result = loop.replayed(switch)
    assert result["relative_l2"] > 0.1 and result["output_difference"] > 0.1 and not result["bit_equal"]


def test_a_stale_batch_shows():
    loop, stale = Loop(lambda: nn.Linear(6, 3)), rows()
    result = loop.replayed(forward_as(loop.model, lambda x: plain(loop.model, stale)))
    assert result["relative_l2"] > 0.5 and result["cosine"] < 0.9


def test_the_largest_layer_s_gradient_as_zeros_shows_by_name():
    loop, hooks, expected = Loop(), [], {}

    def norm(name):
        return loop.model.get_parameter(name).grad.norm().item()

    def before():
        names = [name for name, _ in loop.model.named_parameters()]
        expected["name"] = max(names, key=norm)
        expected["share"] = norm(expected["name"]) / math.hypot(*map(norm, names))
        largest = loop.model.get_parameter(expected["name"])
        switch = Switch(lambda: hooks.append(largest.register_hook(torch.zeros_like)), lambda: hooks.pop().remove())
        return loop.kept.replay(switch, {}, PLANTED, {})

    result = loop.kept_update(before)
    assert (result["worst_tensor"], result["worst_name"]) == (1.0, expected["name"])
    assert result["relative_l2"] == pytest.approx(expected["share"], rel=1e-4)
    assert hooks == []


def test_bfloat16_is_near_and_not_equal():
    loop = Loop()

    def bf16(x):
        with torch.autocast("cpu", torch.bfloat16):
            return plain(loop.model, x).float()

    result = loop.replayed(forward_as(loop.model, bf16))
    assert 0 < result["relative_l2"] < 0.1 and result["cosine"] > 0.99 and result["finite"] and not result["bit_equal"]


def test_numbers_that_are_not_finite_are_told_as_such():
    loop = Loop()
    result = loop.replayed(forward_as(loop.model, lambda x: plain(loop.model, x) * math.inf))
    assert not result["finite"] and result["relative_l2"] == math.inf and math.isnan(result["cosine"])


def test_infinities_that_a_model_returns_by_design_are_no_difference():
    def masked(model, x):
        return nn.Linear.forward(model, x).masked_fill(torch.tensor([False, False, True]), -math.inf)

    class Masks(nn.Linear):
        forward = masked

    loop = Loop(lambda: Masks(6, 3), rows, lambda model, x, labels: loss_of(model(x), labels % 2))
    result = loop.replayed(Switch())
    assert result["finite"] and result["bit_equal"] and result["output_difference"] == 0


# What is kept.


def test_of_an_accumulated_update_the_last_micro_batch_is_kept():
    loop, expected = Loop(), []

    def update():
        loop.optimizer.zero_grad()
        for _ in range(4):
            x, labels = rows(), classes()
            alone = copy.deepcopy(loop.model)
            (of_call(alone, x, labels) / 4).backward()
            expected[:] = [parameter.grad for parameter in alone.parameters()]
            (of_call(loop.model, x, labels) / 4).backward()
        loop.optimizer.step()

    result = kept_update(loop.kept, loop.optimizer, update, lambda: loop.kept.replay(Switch(), {}, PLANTED, {}))
    found = replayed_gradients(loop.kept)
    assert result["bit_equal"]
    assert all(torch.equal(found[parameter], gradient) for parameter, gradient in zip(loop.model.parameters(), expected))


class Gan:
    def __init__(self, freezes=False):
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.optimizer_g = torch.optim.Adam(self.generator.parameters())
        # Without a step of its own, its gradients at the unit's end are those at the parameters as they are then.
        self.optimizer_d = torch.optim.SGD(self.discriminator.parameters(), lr=0.0)
        self.freezes = freezes
        self.models, self.optimizers = [self.generator, self.discriminator], [self.optimizer_g, self.optimizer_d]
        self.kept = KeptCalls(self.models, self.optimizers)

    def loss(self, samples, target):
        judged = self.discriminator(samples)
        return nn.functional.binary_cross_entropy_with_logits(judged, torch.full_like(judged, target))

    def update(self):
        fake = self.generator(torch.randn(8, 3))
        self.optimizer_d.zero_grad()
        (self.loss(torch.randn(8, 6), 1.0) + self.loss(fake.detach(), 0.0)).backward()
        self.optimizer_d.step()
        self.discriminator.requires_grad_(not self.freezes)
        self.optimizer_g.zero_grad()
        (self.loss(fake, 1.0) + 0.1 * fake.abs().mean()).backward()
        self.optimizer_g.step()
        self.discriminator.requires_grad_(True)


@pytest.mark.parametrize("freezes", [False, True], ids=["as it is", "frozen for the generator"])
def test_of_several_models_all_calls_are_kept_in_order_and_each_is_replayed_on_its_own(freezes):
    gan = Gan(freezes)
    gan.update()

    def before():
        state = everything(gan.models, gan.optimizers)
        result = gan.kept.replay(Switch(), {}, PLANTED, {})
        assert differences(state, everything(gan.models, gan.optimizers)) == []
        assert has_own_gradients(gan.kept, gan.generator) and has_own_gradients(gan.kept, gan.discriminator)
        return result

    result = kept_update(gan.kept, gan.optimizer_g, gan.update, before)
    assert result["bit_equal"] and result["worst_name"].split(":")[0] in ("0 Sequential", "1 Sequential")
    # Frozen, the discriminator has no gradients in the generator's step.
    assert [gan.models.index(call.module) for call in gan.kept._calls] == [0, 1, 1] + [1] * (not freezes)


def test_an_lbfgs_that_calls_within_its_update_is_replayed_by_its_last_call():
    loop = Loop(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    optimizer = torch.optim.LBFGS(loop.model.parameters(), max_iter=3)
    kept, x, labels, told = KeptCalls([loop.model], [optimizer]), rows(), classes(), []

    def closure():
        optimizer.zero_grad()
        loss = of_call(loop.model, x, labels)
        loss.backward()
        return loss

    def update():
        optimizer.step(closure)

    def before():
        told.append(kept.why_not)
        return kept.replay(Switch(), {}, {"optimizer.fused": "true"}, {}) if kept.ready() else None

    assert kept_update(kept, optimizer, update, before) is None
    result = kept_update(kept, optimizer, update, before)
    assert told == ["Sequential was not called with gradients enabled", ""]
    assert result["bit_equal"] and result["update_difference"] is None
    assert len(kept._calls) == 1


class NeverCalled(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3))

    def training_loss(self, x, labels):
        return loss_of(self.decoder(self.encoder(x)), labels)


def test_a_model_whose_own_forward_is_never_called_is_kept_by_its_parts():
    loop = Loop(NeverCalled, rows, lambda model, x, labels: model.training_loss(x, labels))
    assert loop.kept_update(lambda: loop.kept.why_not) == "NeverCalled was not called with gradients enabled"
    assert loop.replayed(Switch())["bit_equal"]
    assert [call.module for call in loop.kept._calls] == [loop.model.encoder, loop.model.decoder]
    loop.kept.end()
    loop.kept = KeptCalls([loop.model], [loop.optimizer], lambda model: [model.encoder, model.decoder])
    assert loop.kept_update(lambda: (loop.kept.replay(Switch(), {}, PLANTED, {})["bit_equal"],
                                     has_own_gradients(loop.kept, loop.model))) == (True, True)


def test_a_distributed_wrapper_is_replayed_without_its_reduction():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        loop = Loop(lambda: nn.parallel.DistributedDataParallel(small()))
        assert loop.kept_update(lambda: (loop.kept.replay(Switch(), {}, PLANTED, {})["bit_equal"],
                                         has_own_gradients(loop.kept, loop.model))) == (True, True)
        loop.update()  # A reduction left open would raise here.
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("give", [lambda x: x, Given], ids=["tensor", "dataclass"])
def test_a_batch_that_the_loop_uses_again_is_kept_as_the_model_saw_it(give):
    loop = Loop(lambda: TakesWhatIsGiven(6, 3))
    x = rows()

    def update():
        loop.optimizer.zero_grad()
        of_call(loop.model, give(x), classes()).backward()
        x.zero_()
        loop.optimizer.step()

    def before():
        loop.kept.replay(Switch(), {}, PLANTED, {})
        return has_own_gradients(loop.kept, loop.model)

    assert kept_update(loop.kept, loop.optimizer, update, before)


def test_copies_of_a_model_are_not_watched():
    loop = Loop()
    loop.kept.arm()
    for other in (copy.deepcopy(loop.model), pickle.loads(pickle.dumps(loop.model))):
        of_call(other, rows(), classes()).backward()
    assert loop.kept.why_not == "Sequential was not called with gradients enabled"
    of_call(loop.model, rows(), classes()).backward()
    assert loop.kept.ready() and loop.kept.why_not == ""


@pytest.mark.parametrize("end", ["disarm", "end"])
def test_hooks_are_gone_afterwards(end):
    loop = Loop()
    loop.kept.arm()
    assert len(loop.model._forward_hooks) == len(loop.model._forward_pre_hooks) == 1
    logits = loop.model(rows())
    getattr(loop.kept, end)()
    assert len(loop.model._forward_hooks) == len(loop.model._forward_pre_hooks) == 0
    loss_of(logits, classes()).backward()
    assert not loop.kept.ready()


def test_a_replay_in_a_later_unit_gives_what_it_gave_in_the_first():
    loop = Loop(with_dropout)
    switch = Switch()
    loop.kept.arm()
    found = []
    handle = loop.optimizer.register_step_pre_hook(lambda *_: found.append(loop.kept.replay(switch, {}, PLANTED, {})))
    for _ in range(3):
        values = loop.everything()
        loop.update()
        assert differences(values, loop.everything())  # The parameters move.
    handle.remove()
    assert [result["bit_equal"] for result in found] == [True] * 3
    assert switch.given == [{}, PLANTED, {}] + [PLANTED, {}] * 2


def gradients_and_distance(loop):
    """A list, and what to call before an update: it adds the loop's gradients to the list and gives the distance of two calls."""
    own = []

    def before():
        own.append(torch.cat([parameter.grad.flatten() for parameter in loop.model.parameters()]))
        loop.kept.replay(Switch(), {}, PLANTED, {})
        return loop.kept.distance_between_calls()

    return own, before


def test_the_distance_between_calls_is_that_of_the_loops_own_gradients():
    loop = Loop()
    own, before = gradients_and_distance(loop)
    assert loop.kept_update(before) is None
    expected = loop.kept_update(before)
    larger = max(own[0].norm(), own[1].norm())
    assert expected == pytest.approx(((own[0] - own[1]).norm() / larger).item(), rel=1e-5)
    # Two calls are enough: the second one serves from now on.
    assert loop.kept_update(before) == expected


def test_a_distance_between_calls_of_other_sizes_is_relative_to_the_larger():
    """Relative to the smaller, 10 times as large gradients of the call before would let twice as large ones of a change pass."""
    scale = 10
    loop = Loop(loss=lambda model, batch, labels: scale * of_call(model, batch, labels))
    own, before = gradients_and_distance(loop)
    assert loop.kept_update(before) is None
    scale = 1
    found = loop.kept_update(before)
    assert own[0].norm() > 3 * own[1].norm()
    assert found == pytest.approx(((own[0] - own[1]).norm() / own[0].norm()).item(), rel=1e-5)


def test_the_distance_can_be_had_before_any_candidate_is_replayed():
    loop, switch = Loop(), Switch()

    def before():
        state = loop.everything()
        found = loop.kept.distance_between_calls(switch, {}, PLANTED)
        assert differences(state, loop.everything()) == []
        return found

    assert loop.kept.distance_between_calls() is None
    assert loop.kept_update(before) is None
    assert 0 < loop.kept_update(before) < math.inf
    assert switch.given == [{}, PLANTED] * 2
    assert loop.replayed(switch)["bit_equal"]
    assert switch.given[4:] == [PLANTED, {}]


# What cannot be replayed.


class ReadsOn(nn.Linear):
    def forward(self, items):
        return super().forward(next(items))


class ChangesInput(nn.Linear):
    def forward(self, x):
        return super().forward(x.mul_(2))


class ChangesParameter(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return super().forward(x)


class Remembers(nn.Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.memory = torch.zeros(3)

    def forward(self, x):
        result = super().forward(x)
        self.memory.add_(result.detach().mean(0))
        return result


class CompiledInPlace(nn.Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self._compiled_call_impl = self._call_impl  # As compile() leaves it.


def no_gradient(model, x, labels):
    model(x)
    return loss_of(nn.functional.linear(x, model.weight), labels)


def evaluation(model, x, labels):
    with torch.no_grad():
        model(x)
    return loss_of(nn.functional.linear(x, model.weight), labels)


def caught(model, x, labels):
    with pytest.raises(RuntimeError):
        model(x[:, :2])
    return loss_of(nn.functional.linear(x, model.weight), labels)


REASONS = [
    (nn.Linear, evaluation, "Linear was not called with gradients enabled"),
    (nn.Linear, no_gradient, "no gradient arrived at what Linear returned"),
    (nn.Linear, caught, "no gradient arrived at what Linear returned"),
    (ReadsOn, lambda model, x, labels: loss_of(model(iter([x])), labels),
     "an input of ReadsOn is an iterator, which can be read only once"),
    (ChangesInput, of_call, "ChangesInput changes an input in place"),
    (ChangesParameter, of_call, "ChangesParameter changes its parameter weight in place"),
    (Remembers, of_call, "Remembers changes its attribute Remembers.memory in place"),
    (CompiledInPlace, of_call, "CompiledInPlace was compiled in place by compile(), and hooks would be compiled with it"),
]


@pytest.mark.parametrize("kind, loss, reason", REASONS, ids=[f"{kind.__name__} {loss.__name__}" for kind, loss, _ in REASONS])
def test_what_cannot_be_replayed_says_why_and_the_loop_goes_on(kind, loss, reason):
    loop, switch = Loop(lambda: kind(6, 3), rows, loss), Switch()

    def before():
        assert not loop.kept.ready()
        return loop.kept.replay(switch, {}, PLANTED, {}), loop.kept.why_not

    result, why_not = loop.kept_update(before)
    assert result == {"failure": ("unsupported", reason)} and why_not == reason
    assert switch.given == []
    loop.update()


def twice_through_one_graph(model, x, labels):
    model.hidden = None
    return loss_of(model(x), labels) + loss_of(model(x.flip(0)), labels)


@pytest.mark.parametrize("make, loss, told", [
    (lambda: Checkpointed(use_reentrant=True), of_call, "use_reentrant"),
    (Carries, twice_through_one_graph, "Carries.hidden holds a tensor of an earlier call's graph"),
], ids=["reentrant checkpointing", "hidden state in the graph"])
def test_a_call_that_the_reference_cannot_make_again_is_at_fault_and_no_candidate(make, loss, told):
    loop, switch = Loop(make, rows, loss), Switch()

    def before():
        assert loop.kept.ready()
        state = loop.everything()
        result = loop.kept.replay(switch, {}, PLANTED, {"other": "1"})
        assert differences(state, loop.everything()) == []
        return result

    code, sentence = loop.kept_update(before)["failure"]
    assert code == "unsupported" and told in sentence and sentence.startswith("the kept call cannot be made again")
    assert switch.given == [{}, {"other": "1"}]
    assert not loop.kept.ready() and loop.kept.why_not == sentence
    assert "\n" not in sentence


def test_gradients_of_the_loop_that_are_not_finite_tell_of_no_candidate():
    loop = Loop()
    loop.loss = lambda model, x, labels: of_call(model, x, labels) * math.inf
    code, sentence = loop.replayed(Switch())["failure"]
    assert code == "unsupported" and sentence.endswith("its gradients are not finite")


NO_MEMORY = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."


def raises(error):
    def forward(x):
        torch.rand(1)
        raise error

    return forward


@pytest.mark.parametrize("error, failure", [
    (RuntimeError("boom\nand more"), ("internal", "RuntimeError: boom")),
    (MemoryError(), ("out_of_memory", "MemoryError")),
    (RuntimeError(NO_MEMORY), ("out_of_memory", f"RuntimeError: {NO_MEMORY}")),
    (UnsupportedError("tune: it stays off"), ("invalid_argument", "tune: it stays off")),
], ids=["exception", "memory", "torch's memory", "headrace's own"])
def test_an_exception_under_the_candidate_is_a_failure_of_it_and_all_is_as_before(error, failure):
    loop = Loop(with_dropout)
    switch = forward_as(loop.model, raises(error))

    def before():
        state = loop.everything()
        result = loop.kept.replay(switch, {}, PLANTED, {})
        assert differences(state, loop.everything()) == []
        assert loop.kept.ready()
        assert loop.kept.replay(Switch(), {}, PLANTED, {})["bit_equal"]
        return result

    assert loop.kept_update(before) == {"failure": failure}
    assert switch.given == [{}, PLANTED, {}]


def test_a_keyboard_interrupt_under_the_candidate_passes_once_all_is_as_before():
    loop = Loop(with_batch_norm, lambda: torch.randn(8, 2, 8, 8))
    switch = forward_as(loop.model, raises(KeyboardInterrupt()))
    states = []

    def before():
        states.append(loop.everything())
        loop.kept.replay(switch, {}, PLANTED, {})

    with pytest.raises(KeyboardInterrupt):
        loop.kept_update(before)
    assert differences(states[0], loop.everything()) == []
    assert switch.given == [{}, PLANTED, {}]


def test_settings_that_cannot_be_put_back_are_an_exception():
    loop = Loop()

    def apply(settings):
        if settings == {"in force": "1"}:
            raise UnsupportedError("tune: it stays on")

    def before():
        with pytest.raises(UnsupportedError, match="it stays on"):
            loop.kept.replay(apply, {}, PLANTED, {"in force": "1"})
        return True

    assert loop.kept_update(before)


@pytest.mark.parametrize("free, given", [([0], [{}]), ([2**40, 0], [{}, {}])], ids=["for the reference", "for the candidate"])
def test_a_replay_without_room_is_not_tried(monkeypatch, free, given):
    loop, switch, left = Loop(), Switch(), list(free)
    monkeypatch.setattr(_kept_call, "free_bytes", lambda device: left.pop(0))
    code, sentence = loop.replayed(switch)["failure"]
    assert code == "out_of_memory" and sentence.startswith("a replay needs ") and sentence.endswith(" MiB, 0.0 MiB are free")
    assert switch.given == given and left == []


# The optimizer's update.


def adamw(**options):
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1, **options)


def grouped(optimizer, on):
    """Puts these values into the optimizer's groups."""
    written = [{key: group[key] for key in on} for group in optimizer.param_groups]
    return Switch(lambda: [group.update(on) for group in optimizer.param_groups],
                  lambda: [group.update(values) for group, values in zip(optimizer.param_groups, written)])


@pytest.mark.parametrize("key, groups", [("optimizer.fused", {"fused": True, "foreach": False}),
                                         ("optimizer.foreach", {"fused": False, "foreach": True})], ids=["fused", "foreach"])
def test_another_implementation_s_update_is_near_and_one_without_its_decay_is_not(key, groups):
    found = []
    for change in (groups, {**groups, "weight_decay": 0.0}):
        loop = Loop(optimizer=adamw())
        steps = []
        loop.optimizer.register_step_pre_hook(lambda *_: steps.append(1))

        def before():
            state = loop.everything()
            result = loop.kept.replay(grouped(loop.optimizer, change), {}, {**PLANTED, key: "true"}, {})
            assert differences(state, loop.everything()) == []
            return result

        result = loop.kept_update(before)
        assert result["bit_equal"]  # Of outputs and gradients.
        assert len(steps) == 1  # Copies have no hooks.
        found.append(result["update_difference"])
    assert found[0] < 1e-6 and found[1] > 1e-4


def test_an_optimizer_with_one_implementation_has_no_update_difference():
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter -= 0.1 * parameter.grad

    result = Loop(optimizer=Plain).replayed(Switch(), {"optimizer.fused": "true"})
    assert result["bit_equal"] and result["update_difference"] is None


@pytest.mark.parametrize("converts_state", [True, False])
def test_optimizer_state_left_in_another_layout_under_fused_shows(converts_state):
    loop = Loop(with_batch_norm, lambda: torch.randn(8, 2, 8, 8), optimizer=adamw(fused=True))

    def lay_out(memory_format):
        for parameter in loop.model.parameters():
            if parameter.dim() == 4:
                tensors = [parameter, parameter.grad]
                if converts_state:
                    tensors += [loop.optimizer.state[parameter][key] for key in ("exp_avg", "exp_avg_sq")]
                for tensor in tensors:
                    tensor.data = tensor.detach().contiguous(memory_format=memory_format)

    switch = Switch(lambda: lay_out(torch.channels_last), lambda: lay_out(torch.contiguous_format))
    result = loop.replayed(switch, {**PLANTED, "model.memory_format": '"channels_last"'})
    assert result["relative_l2"] < 1e-4
    assert (result["update_difference"] < 1e-6) if converts_state else (result["update_difference"] > 1e-3)


class WithDropout(nn.Module):
    """Of activations, whose elements another layout puts elsewhere in memory."""

    def __init__(self):
        super().__init__()
        self.body, self.drop, self.head = nn.Conv2d(2, 8, 3), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.drop(self.body(x).relu()).mean((2, 3)))


def channels_last_of(model):
    def lay_out(memory_format):
        model.body.weight.data = model.body.weight.detach().contiguous(memory_format=memory_format)

    return Switch(lambda: lay_out(torch.channels_last), lambda: lay_out(torch.contiguous_format))


def test_dropout_of_another_layout_is_compared_with_equal_draws():
    loop = Loop(WithDropout, lambda: torch.randn(8, 2, 8, 8))
    result = loop.replayed(channels_last_of(loop.model), {**PLANTED, "model.memory_format": '"channels_last"'})
    assert result["other_draws"] and result["relative_l2"] < 1e-5 and result["output_difference"] < 1e-6


def test_dropout_that_is_gone_under_another_layout_shows():
    loop = Loop(WithDropout, lambda: torch.randn(8, 2, 8, 8))
    layout = channels_last_of(loop.model)

    def drop(probability, switch):
        switch()
        loop.model.drop.p = probability

    switch = Switch(lambda: drop(0.0, layout.on), lambda: drop(0.3, layout.off))
    result = loop.replayed(switch, {**PLANTED, "model.memory_format": '"channels_last"'})
    assert result["output_difference"] > 0.01


def test_a_layout_that_moves_no_draws_says_so():
    loop = Loop(with_batch_norm, lambda: torch.randn(8, 2, 8, 8))
    assert not loop.replayed(Switch(), {"model.memory_format": '"channels_last"'})["other_draws"]


# Memory.


def test_what_is_free_is_less_than_the_machine_has():
    assert 0 < free_bytes(CPU) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_memory_that_is_filled_is_used():
    before = used_bytes(CPU)
    held = torch.ones(2**24)
    assert used_bytes(CPU) - before > held.numel() * 2


def test_in_full_precision_every_switch_of_cudnn_says_so_and_is_put_back():
    """They can be read and set without a GPU."""
    cudnn = torch.backends.cudnn
    before = (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.allow_tf32)
    assert before == ("tf32", "tf32", True)  # torch's defaults, or there is nothing to see.
    for allowed in (True, False):
        cudnn.allow_tf32 = allowed
        held = (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.allow_tf32)
        with pytest.raises(KeyError), full_float32(torch.device("cuda")):
            assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.allow_tf32) == ("ieee", "ieee", False)
            with cudnn.flags(enabled=False):  # As a model may.
                pass
            assert cudnn.conv.fp32_precision != "tf32" and not cudnn.allow_tf32
            raise KeyError
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.allow_tf32) == held
        with full_float32(torch.device("cpu")):
            assert cudnn.allow_tf32 == allowed
    cudnn.allow_tf32 = True
    try:
        cudnn.rnn.fp32_precision = "ieee"  # The two differ, so that the older switch cannot be read.
        with full_float32(torch.device("cuda")):
            assert cudnn.conv.fp32_precision == "ieee"
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("tf32", "ieee")
    finally:
        cudnn.rnn.fp32_precision = "tf32"
    assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, cudnn.allow_tf32) == before
