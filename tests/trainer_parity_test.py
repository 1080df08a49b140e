"""headrace.Trainer against PyTorch's own GradScaler, clips, optimizers and schedules on the same 200 gradients, some of which are
not finite under the loss scale: the same updates are left out, and parameters agree within 1e-6."""

import tomllib

import pytest
import torch
from torch import nn

import headrace as hr
from torch_parity_test import CLASSES, LR, OTHERS, SCHEDULES, STEPS

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_thread")]

SCALE = 65536.0
UPDATES = 200
BAD = {0: "inf", 1: "nan", 30: "inf", 77: "nan", 78: "inf", 79: "nan", 150: "inf"}
TOO_LARGE = 5  # Finite, and beyond float32 with the scale that the first two have left.


def network():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))


def gradients():
    """Of each update, one for each of the network's parameters."""
    torch.manual_seed(12)
    shapes = [parameter.shape for parameter in network().parameters()]
    found = [[torch.randn(shape) * 10 ** (step % 3 - 1) for shape in shapes] for step in range(UPDATES)]
    for step, value in BAD.items():
        found[step][step % 4].view(-1)[0] = float(value)
    found[TOO_LARGE][0] *= 1e35
    return found


class Given(torch.autograd.Function):
    """A loss of 0 whose gradient is what it is given."""

    @staticmethod
    def forward(ctx, parameter, gradient):
        ctx.save_for_backward(gradient)
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx, of_loss):
        return ctx.saved_tensors[0] * of_loss, None


def given(model, batch):
    return sum(Given.apply(parameter, gradient) for parameter, gradient in zip(model.parameters(), batch, strict=True))


def torchs(model, optimizer, clip=None, scheduler=None):
    """Parameters after all gradients, and how many updates were left out."""
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    left_out = 0
    for batch in gradients():
        optimizer.zero_grad()
        scaler.scale(given(model, batch)).backward()
        scaler.unscale_(optimizer)
        if clip:
            clip(model)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < before:
            left_out += 1
        elif scheduler:
            scheduler.step()
    return [parameter.detach() for parameter in model.parameters()], left_out


def ours(model, optimizer, **options):
    trainer = hr.Trainer(model, optimizer, given, loss_scale=SCALE, **options)
    for batch in gradients():
        trainer.step(tuple(batch))
    assert trainer.explain()["optimizer"]["native"], "or it compares torch's own step"
    return [parameter.detach() for parameter in model.parameters()], trainer.progress["skipped_updates"]


def assert_same(found, wanted):
    for ours, theirs, begin in zip(found[0], wanted[0], network().parameters(), strict=True):
        assert (ours - theirs).abs().max().item() <= 1e-6 * max(1.0, theirs.abs().max().item())
        assert not torch.equal(ours, begin), "it did move"
    assert found[1] == wanted[1] == len(BAD) + 1


def layers(model):
    return [list(layer.parameters()) for layer in model]


def clip_ratio(model, most=0.01):
    """Brock and others 2021: of each row of a matrix and of each whole bias."""
    for parameter in model.parameters():
        def norms(tensor):
            return tensor.norm(dim=1, keepdim=True) if tensor.dim() > 1 else tensor.norm()

        limit, norm = norms(parameter.detach()).clamp(min=1e-3) * most, norms(parameter.grad)
        parameter.grad.copy_(torch.where(norm > limit, parameter.grad * (limit / norm.clamp(min=1e-6)), parameter.grad))


CLIPS = {
    "none": ({}, None),
    "norm": ({"max_grad_norm": 0.5}, lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5)),
    "norm, inf": ({"max_grad_norm": 0.5, "grad_norm_type": "inf"},
                  lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=float("inf"))),
    "norm per layer": ({"max_grad_norm": 0.5, "grad_norm_per": "layer"},
                       lambda model: [nn.utils.clip_grad_norm_(layer, 0.5) for layer in layers(model)]),
    "norm per group": ({"max_grad_norm": 0.5, "grad_norm_per": "group"},
                       lambda model: [nn.utils.clip_grad_norm_(group, 0.5) for group in layers(model)]),
    "value": ({"clip_grad_value": 0.3}, lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.3)),
    "ratio": ({"clip_grad_ratio": 0.01}, clip_ratio),
}


@pytest.mark.parametrize("case", CLIPS)
def test_every_clip_agrees_on_200_gradients_some_of_which_are_not_finite(case):
    options, clip = CLIPS[case]

    def sgd(model):  # Whose updates tell the size of a gradient.
        return torch.optim.SGD([{"params": group} for group in layers(model)], lr=1e-2, momentum=0.9)

    mine, theirs = network(), network()
    assert_same(ours(mine, sgd(mine), **options), torchs(theirs, sgd(theirs), clip))


# A rival without fused kernels: that of SGD leaves its buffers unset where the first update is left out.
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("kind, settings", [("adamw", {"weight_decay": 1e-2}), ("sgd", {"momentum": 0.9, "nesterov": True}), *OTHERS],
                         ids=lambda value: value if isinstance(value, str) else ",".join(value))
def test_every_optimizer_agrees_on_200_gradients_some_of_which_are_not_finite(kind, settings, fused):
    def make(model, **kernel):
        return CLASSES[kind](model.parameters(), lr=1e-3, foreach=False, **kernel, **settings)

    mine, theirs = network(), network()
    optimizer = make(mine) if kind == "rmsprop" else make(mine, fused=fused)  # torch has no fused one.
    wanted = torchs(theirs, make(theirs), lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0))
    assert_same(ours(mine, optimizer, clip_grad_value=1.0), wanted)


@pytest.mark.parametrize("case", SCHEDULES)
def test_every_schedule_agrees_where_updates_are_left_out(case):
    keys, make = SCHEDULES[case]
    schedule = tomllib.loads(f"name = '{case.split(',')[0]}'\ninterval = 'step'\n{keys}")

    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5, foreach=False)

    mine, theirs = network(), network()
    optimizer = sgd(theirs)
    wanted = torchs(theirs, optimizer, lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0), make(optimizer))
    assert_same(ours(mine, sgd(mine), clip_grad_value=1.0, lr_scheduler=schedule, steps=STEPS, epochs=1), wanted)
