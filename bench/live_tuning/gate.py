"""The numeric gate of hr.autotune: 20 honest changes pass, broken ones are refused, and its forwards and backwards are counted.

usage: make bench NAME=live-tuning ARGS=gate

Each honest line is a network with the changes of the one knob table that it has. In each broken line one of these changes is
replaced by something else of the same class: gradients times 1.05, dropout off, decay dropped, state left in its old strides;
and, which reduced precision must refuse too, a stale batch, the layer with the largest gradient zeroed, gradients times 2.
Wanted: all right, at most one forward and backward for each change and two for the loop as written.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import harness
from live_tuning import play
from live_tuning.planted_knobs import PlantedKnobs, autotuned

PRECISION, LAYOUT, FUSED, THREADS = "train.precision", "model.memory_format", "optimizer.fused", "compute.intra_op_threads"
HONEST = 20
STEPS_MOST = 600
Plant = Callable[[bool], None]


@dataclass
class Job:
    """A network with data that repeat: batch i is drawn by seed i."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    keys: tuple[str, ...]

    def step(self, number: int) -> None:
        inputs, wanted = self.inputs(torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        self.loss(self.model(inputs), wanted).backward()
        self.optimizer.step()

    @property
    def first(self) -> nn.Module:
        """The first layer with parameters of its own, which every forward calls once."""
        return next(module for module in self.model.modules() if any(True for _ in module.parameters(recurse=False)))


def images(batch: int, channels: int, side: int, classes: int) -> Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]:
    """Noise that is brighter the higher its class, so that there is something to learn."""
    def draw(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(classes, (batch,), generator=generator)
        noise = torch.randn(batch, channels, side, side, generator=generator)
        return noise + labels.view(-1, 1, 1, 1) / classes, labels

    return draw


def small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(32 * 64, 10))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def cnn_job(keys: tuple[str, ...] = (PRECISION, LAYOUT, FUSED)) -> Job:
    model = small_cnn()
    return Job("small CNN with dropout", model, adamw(model), images(16, 3, 16, 10), F.cross_entropy, keys)


def honest_jobs() -> list[Job]:
    """With the networks of scripts/."""
    torch.manual_seed(1)
    resnet, unet, vit = play.load("cnn").small_resnet18(), play.load("unet_photos").UNet(), play.load("vit").ViT(depth=2)
    lstm, table = play.load("char_lstm").CharLstm(40), play.load("tabular_mlp")

    def noisy(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        clean = F.interpolate(torch.rand(2, 3, 8, 8, generator=generator), scale_factor=8)
        return clean + 0.1 * torch.randn(clean.shape, generator=generator), clean

    def codes(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.randint(40, (8, 1), generator=generator)
        counted = (first + 3 * torch.arange(33)) % 40
        return counted[:, :-1], counted[:, 1:]

    def columns(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.randn(64, table.COLUMNS + 8, generator=generator)
        return numbers, numbers[:, :1] * numbers[:, 1:2]

    layers = table.TabularNet().layers
    everything = (PRECISION, LAYOUT, FUSED, THREADS)
    return [
        Job("ResNet-18, batch 8", resnet, torch.optim.SGD(resnet.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4),
            images(8, 1, 32, 10), F.cross_entropy, everything),
        Job("U-Net", unet, adamw(unet), noisy, F.l1_loss, everything),
        Job("character LSTM", lstm, adamw(lstm), codes,
            lambda found, wanted: F.cross_entropy(found.flatten(0, 1), wanted.flatten()), (PRECISION, FUSED, THREADS)),
        Job("ViT", vit, adamw(vit), images(8, 1, 28, 10), F.cross_entropy, (PRECISION, FUSED, THREADS)),
        Job("MLP", layers, torch.optim.Adam(layers.parameters()), columns, F.mse_loss, (PRECISION, FUSED, THREADS)),
        cnn_job(),
    ]


# What is broken. Each is called with True and False as PlantedKnobs does.


def gradients_times(factor: float) -> Callable[[Job], Plant]:
    def of(job: Job) -> Plant:
        hooks: list[Any] = []

        def plant(on: bool) -> None:
            if on:
                hooks.extend(parameter.register_hook(lambda gradient: gradient * factor) for parameter in job.model.parameters())
            while not on and hooks:
                hooks.pop().remove()

        return plant

    return of


def largest_layer_zeroed(job: Job) -> Plant:
    hooks: list[Any] = []

    def size(module: nn.Module) -> float:
        gradients = [parameter.grad for parameter in module.parameters(recurse=False) if parameter.grad is not None]
        return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))

    def plant(on: bool) -> None:
        if on:
            largest = max(job.model.modules(), key=size)
            hooks.extend(parameter.register_hook(torch.zeros_like) for parameter in largest.parameters(recurse=False))
        while not on and hooks:
            hooks.pop().remove()

    return plant


def no_dropout(job: Job) -> Plant:
    layers = [(module, module.p) for module in job.model.modules() if isinstance(module, nn.Dropout)]

    def plant(on: bool) -> None:
        for module, written in layers:
            module.p = 0.0 if on else written

    return plant


def no_decay(job: Job) -> Plant:
    written = [group["weight_decay"] for group in job.optimizer.param_groups]

    def plant(on: bool) -> None:
        for group, decay in zip(job.optimizer.param_groups, written):
            group["weight_decay"] = 0.0 if on else decay

    return plant


def old_strides(job: Job) -> Plant:
    """Fused, with weights and gradients in channels-last and the state as it was."""
    def plant(on: bool) -> None:
        layout = torch.channels_last if on else torch.contiguous_format
        for parameter in job.model.parameters():
            if parameter.dim() == 4:
                gradient = parameter.grad
                parameter.grad = None
                parameter.data = parameter.data.contiguous(memory_format=layout)
                if gradient is not None:
                    parameter.grad = gradient.contiguous(memory_format=layout)
        for group in job.optimizer.param_groups:
            group["fused"] = True if on else None

    return plant


def stale_batch(job: Job) -> Plant:
    """The first layer sees what it saw the time before."""
    seen: list[torch.Tensor] = []
    state = {"on": False}

    def before(module: nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if state["on"]:
            return (seen[0],)
        if not seen or not torch.equal(seen[-1], given[0]):  # A replay of the loop as written brings the same again.
            seen.append(given[0].clone())
            del seen[:-2]
        return None

    job.first.register_forward_pre_hook(before)

    def plant(on: bool) -> None:
        state["on"] = on

    return plant


BROKEN: list[tuple[str, str, Callable[[Job], Plant]]] = [
    ("gradients x 1.05", LAYOUT, gradients_times(1.05)), ("dropout off", LAYOUT, no_dropout), ("decay dropped", FUSED, no_decay),
    ("state in old strides", FUSED, old_strides), ("stale batch", LAYOUT, stale_batch),
    ("largest layer zeroed", LAYOUT, largest_layer_zeroed), ("gradients x 2", LAYOUT, gradients_times(2.0)),
    ("stale batch", PRECISION, stale_batch), ("largest layer zeroed", PRECISION, largest_layer_zeroed),
    ("gradients x 2", PRECISION, gradients_times(2.0))]
CLASSES = {LAYOUT: "rounding", FUSED: "rounding", PRECISION: "reduced_precision"}


# What comes of it.


@dataclass(frozen=True)
class Checked:
    job: str
    change: str
    numerics: dict[str, Any] | None  # Of the ledger; None: the gate did not get to it.
    sentence: str

    @property
    def passed(self) -> bool | None:
        return self.numerics["passed"] if self.numerics is not None and self.numerics["checked"] else None


def run(job: Job, plants: dict[str, Plant], steps_most: int = STEPS_MOST) -> tuple[list[Checked], int, int]:
    """What the gate says of the job's changes, the forwards beyond those of its steps, and how many of them are allowed."""
    forwards = 0

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    counting = job.first.register_forward_pre_hook(count)
    knobs = PlantedKnobs([job.model], [job.optimizer], None, job.keys, plants)
    handle = autotuned([job.model], [job.optimizer], None, knobs)
    steps, trials = 0, []
    while steps < steps_most and handle.watching:
        job.step(steps)
        steps += 1
        if steps % 10 == 0:
            trials = handle.ledger["ledger"]["trials"]
            if trials and all(is_seen_to(trial) for trial in trials):
                break
    trials = handle.ledger["ledger"]["trials"]
    handle.undo()
    counting.remove()
    checked = [Checked(job.name, trial["name"], trial["numerics"] if is_seen_to(trial) else None, trial["sentence"])
               for trial in trials]
    return checked, forwards - steps, len(trials) + 2


def is_seen_to(trial: dict[str, Any]) -> bool:
    """By the gate: checked, or out for another reason."""
    return trial["numerics"]["checked"] or trial["verdict"] in ("failed", "refused")


def line(checked: Checked, wanted: bool) -> list[str]:
    numbers, figure = checked.numerics, harness.UNAVAILABLE
    if numbers and numbers["value"] is not None:
        figure = f"{numbers['value']:.3g} of {numbers['tolerance']:.3g}"
    return [checked.job, checked.change, {True: "passed", False: "refused", None: "not checked"}[checked.passed],
            "right" if checked.passed == wanted else "WRONG", figure, numbers["measure"] if numbers else checked.sentence]


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    arguments = parser.parse_args(words)
    bench = harness.Bench(__file__, arguments, f"gate: {HONEST} honest changes, {len(BROKEN)} broken ones")
    lines, right, most, allowed = [], {"honest": 0, "broken": 0}, 0, True
    for job in honest_jobs():
        checked, replays, limit = run(job, {})
        lines += [line(one, True) for one in checked]
        right["honest"] += sum(one.passed is True for one in checked)
        print(f"{job.name}: {replays} forwards beside its steps, {limit} allowed", flush=True)
        most, allowed = max(most, replays), allowed and replays <= limit
    for name, key, broken in BROKEN:
        torch.manual_seed(1)
        job = cnn_job((key,))
        job.name = f"{name}, as {CLASSES[key]}"
        checked, _, _ = run(job, {key: broken(job)})
        lines += [line(one, False) for one in checked]
        right["broken"] += sum(one.passed is False for one in checked)
    print("\n" + harness.table(["network or fault", "change", "gate", "", "figure", "of what"], lines, left=(0, 1, 2, 3, 5)))
    good = right == {"honest": HONEST, "broken": len(BROKEN)} and allowed
    print(f"{right['honest']} of {HONEST} honest changes pass, {right['broken']} of {len(BROKEN)} broken ones are refused; "
          f"forwards {'as few as' if allowed else 'more than'} allowed: {'met' if good else 'MISSED'}")
    return bench.end({**right, "most_forwards": most, "met": good}, 0 if good else 3)
