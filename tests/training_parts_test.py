"""Parts of a training step, each alone and all together: autocast, a loss scale, accumulation, batches that shrink where memory runs out,
and channels-last. The losses are those of the plain loop over the same samples. And the rate of each group at each update."""

import math
from types import SimpleNamespace

import headrace as hr
import pytest
import torch
from performance_optimization import create_optimized_optimizer
from python_batch_size_test import RunsOut
from torch import nn

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_thread")]

UPDATES, SAMPLES, PARTS = 12, 16, 4
SETTINGS = {"autocast": {"precision": "bf16"}, "scale": {"loss_scale": 1024.0},
            "accumulation": {"gradient_accumulation_steps": PARTS}, "dynamic": {"on_out_of_memory": "halve"}, "layout": {}}


def network() -> nn.Sequential:
    """Without BatchNorm and draws, which depend on how a batch is divided."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of 10 patterns and a little noise, so that losses fall."""
    generator = torch.Generator().manual_seed(2)
    patterns = torch.randn(10, 3, 10, 10, generator=generator)
    labels = [torch.randint(10, (SAMPLES,), generator=generator) for _ in range(UPDATES)]
    return [(patterns[chosen] + 0.1 * torch.randn(SAMPLES, 3, 10, 10, generator=generator), chosen) for chosen in labels]


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def plain_losses() -> list[float]:
    model = network()
    optimizer, losses = sgd(model), []
    for batch in batches():
        optimizer.zero_grad()
        loss = cross_entropy(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("parts", [*((name,) for name in SETTINGS), tuple(SETTINGS)], ids="+".join)
def test_each_part_alone_and_all_together_have_the_losses_of_the_plain_loop(parts):
    model = network()
    if "layout" in parts:
        assert hr.set_memory_format(model, "channels_last")["applied"] == "channels_last"
    size = SAMPLES // PARTS if "accumulation" in parts else SAMPLES
    forward = RunsOut(size // 2, since=3, forward=cross_entropy) if "dynamic" in parts else cross_entropy
    options = {key: value for part in parts for key, value in SETTINGS[part].items()}
    trainer = hr.Trainer(model, sgd(model), forward, **options)
    losses = [float(trainer.step(micro)) for inputs, labels in batches() for micro in zip(inputs.split(size), labels.split(size))]
    of_updates = torch.tensor(losses).reshape(UPDATES, -1).mean(dim=1).tolist()

    wanted = plain_losses()
    assert wanted[-1] < wanted[0] - 0.1
    assert of_updates == pytest.approx(wanted, abs=0.1 if "autocast" in parts else 1e-4)
    progress = trainer.progress
    assert (progress["optimizer_steps"], progress["skipped_updates"]) == (UPDATES, 0)
    if "dynamic" in parts:
        assert progress["micro_batch"] == size // 2 and set(forward.done[3:]) == {size // 2}
    assert model[0].weight.is_contiguous() != ("layout" in parts)


# ---- The learning rate of each group, logged at each update ----

LR, EPOCHS, WARM_UP = 0.02, 3, 4


def warmed_cosine(update: int) -> float:
    if update < WARM_UP:
        return (update + 1) / WARM_UP
    return (1 + math.cos(math.pi * (update - WARM_UP) / (EPOCHS * UPDATES - 1 - WARM_UP))) / 2


@pytest.mark.parametrize("schedule, factor", [
    (None, lambda update: 1.0),
    ({"name": "CosineAnnealingLR", "warmup_steps": WARM_UP}, warmed_cosine),
    ({"name": "StepLR", "step_size": 1, "gamma": 0.5}, lambda update: 0.5 ** (update // UPDATES)),
    ({"name": "ExponentialLR", "gamma": 0.9, "interval": "step"}, lambda update: 0.9**update),
], ids=["constant", "warm-up and cosine", "step", "exponential"])
def test_a_log_of_every_update_has_the_rates_of_both_groups_in_their_ratio(schedule, factor):
    model = nn.ModuleDict({"backbone": network(), "head": nn.Linear(10, 10)})
    optimizer = create_optimized_optimizer(model, SimpleNamespace(model_config={"learning_rate": LR, "optimizer": "sgd"}))
    options = {} if schedule is None else {"lr_scheduler": schedule}
    trainer = hr.Trainer(model, optimizer, lambda model, batch: nn.functional.cross_entropy(
        model["head"](model["backbone"](batch[0])), batch[1]), **options)
    log = []
    trainer.fit(batches(), EPOCHS, on_step=lambda loss: log.append(trainer.learning_rates))  # Of the update that follows.
    wanted = [[0.1 * LR * factor(update), LR * factor(update)] for update in range(1, EPOCHS * UPDATES)]
    assert torch.allclose(torch.tensor(log[:-1]), torch.tensor(wanted), rtol=1e-6, atol=1e-12)
    assert {group["lr"] for group in optimizer.param_groups} == {0.1 * LR, LR}  # Torch's own stay as they are.
