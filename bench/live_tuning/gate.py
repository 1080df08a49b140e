"""The numeric gate of hr.autotune: 20 honest changes pass, broken ones are refused, and its forwards and backwards are counted.

usage: make bench NAME=live-tuning ARGS='gate --minutes 15'

Each honest line is a network with the changes of the one knob table that it has. In each broken line one of these changes is
replaced by something else of the same class: gradients times 1.05, dropout off, decay dropped, state left in its old strides;
and, which reduced precision must refuse too, a stale batch, the layer with the largest gradient zeroed, gradients times 2.
Wanted: all right, at most one forward and backward for each change and two for the loop as written, up to the moment in which
each change has been checked once: those of a winner beside what is kept come later, and are not counted.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import harness
import rows
from live_tuning import play
from live_tuning.planted_knobs import PlantedKnobs, autotuned

PRECISION, LAYOUT, FUSED, THREADS = "train.precision", "model.memory_format", "optimizer.fused", "compute.intra_op_threads"
HONEST = 20  # Changes of all jobs together.
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


EVERYTHING = (PRECISION, LAYOUT, FUSED, THREADS)


def resnet_job() -> Job:
    model = play.load("cnn").small_resnet18()
    return Job("ResNet-18, batch 8", model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4),
               images(8, 1, 32, 10), F.cross_entropy, EVERYTHING)


def unet_job() -> Job:
    def noisy(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        clean = F.interpolate(torch.rand(2, 3, 8, 8, generator=generator), scale_factor=8)
        return clean + 0.1 * torch.randn(clean.shape, generator=generator), clean

    model = play.load("unet_photos").UNet()
    return Job("U-Net", model, adamw(model), noisy, F.l1_loss, EVERYTHING)


def lstm_job() -> Job:
    def codes(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.randint(40, (8, 1), generator=generator)
        counted = (first + 3 * torch.arange(33)) % 40
        return counted[:, :-1], counted[:, 1:]

    model = play.load("char_lstm").CharLstm(40)
    return Job("character LSTM", model, adamw(model), codes,
               lambda found, wanted: F.cross_entropy(found.flatten(0, 1), wanted.flatten()), (PRECISION, FUSED, THREADS))


def vit_job() -> Job:
    model = play.load("vit").ViT(depth=2)
    return Job("ViT", model, adamw(model), images(8, 1, 28, 10), F.cross_entropy, (PRECISION, FUSED, THREADS))


def mlp_job() -> Job:
    table = play.load("tabular_mlp")

    def columns(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.randn(64, table.COLUMNS + 8, generator=generator)
        return numbers, numbers[:, :1] * numbers[:, 1:2]

    model = table.TabularNet().layers
    return Job("MLP", model, torch.optim.Adam(model.parameters()), columns, F.mse_loss, (PRECISION, FUSED, THREADS))


# With the networks of scripts/.
HONEST_JOBS: tuple[Callable[[], Job], ...] = (resnet_job, unet_job, lstm_job, vit_job, mlp_job, cnn_job)


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


def run(job: Job, plants: dict[str, Plant], steps_most: int = STEPS_MOST) -> dict[str, Any]:
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
    return {"checked": [asdict(one) for one in checked], "forwards": forwards - steps, "allowed": len(trials) + 2,
            "problem": handle.problem}


def run_broken(name: str, key: str, broken: Callable[[Job], Plant]) -> dict[str, Any]:
    torch.manual_seed(1)
    job = cnn_job((key,))
    job.name = f"{name}, as {CLASSES[key]}"
    return run(job, {key: broken(job)})


def run_honest(make: Callable[[], Job]) -> dict[str, Any]:
    torch.manual_seed(1)
    return run(make(), {})


def is_seen_to(trial: dict[str, Any]) -> bool:
    """By the gate: checked, or out for another reason."""
    return trial["numerics"]["checked"] or trial["verdict"] in ("failed", "refused")


def items(arguments: argparse.Namespace) -> Iterator[rows.Item]:
    for make in HONEST_JOBS[-1:] if arguments.quick else HONEST_JOBS:
        yield rows.Item({"what": "honest", "job": make.__name__}, 30, lambda make=make: run_honest(make))
    for name, key, broken in BROKEN[:1] if arguments.quick else BROKEN:
        yield rows.Item({"what": "broken", "fault": name, "as": CLASSES[key]}, 10,
                        lambda name=name, key=key, broken=broken: run_broken(name, key, broken))


def line(checked: Checked, wanted: bool) -> list[str]:
    numbers, figure = checked.numerics, harness.UNAVAILABLE
    if numbers and numbers["value"] is not None:
        figure = f"{numbers['value']:.3g} of {numbers['tolerance']:.3g}"
    return [checked.job, checked.change, {True: "passed", False: "refused", None: "not checked"}[checked.passed],
            "right" if checked.passed == wanted else "WRONG", figure, numbers["measure"] if numbers else checked.sentence]


def bars_of(found: rows.Rows, complete: bool) -> list[rows.Bar]:
    def all_of(what: str) -> list[Checked]:
        return [Checked(**one) for _, figures in found.found(what=what) for one in figures["checked"]]

    honest, broken, runs = all_of("honest"), all_of("broken"), [figures for _, figures in found.found(what="honest")]
    passed, refused = sum(one.passed is True for one in honest), sum(one.passed is False for one in broken)
    too_many = [figures for figures in runs if figures["forwards"] > figures["allowed"]]
    most = ", ".join(f"{figures['forwards']} of {figures['allowed']}" for figures in runs)
    return [
        rows.Bar("honest changes that pass", f"{HONEST} of {HONEST}", f"{passed} of {len(honest)}",
                 rows.once_complete(passed == (HONEST if complete else len(honest)), complete)),
        rows.Bar("broken changes that are refused", f"{len(BROKEN)} of {len(BROKEN)}", f"{refused} of {len(broken)}",
                 rows.once_complete(refused == (len(BROKEN) if complete else len(broken)), complete)),
        rows.Bar("forwards and backwards beside the steps", "one a change and two for the loop as written at most",
                 f"of each network {most or 'nothing yet'}", rows.once_complete(not too_many, complete))]


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    bench = harness.Bench(__file__, arguments, f"gate: {HONEST} honest changes, {len(BROKEN)} broken ones")
    found = rows.open_rows(arguments, "gate")
    session = rows.Session(found, arguments.minutes)
    complete = session.run(items(arguments))
    lines = [line(Checked(**one), key["what"] == "honest") for key, figures in found.found() for one in figures["checked"]]
    if lines:
        print("\n" + harness.table(["network or fault", "change", "gate", "", "figure", "of what"], lines, left=(0, 1, 2, 3, 5)))
    for key, figures in found.found():
        if figures["problem"]:
            print(f"{', '.join(key.values())}: {figures['problem']}")
    bars = bars_of(found, complete and not session.lacks and not arguments.quick)
    return bench.end({"bars": [str(bar) for bar in bars]}, rows.tell(session, complete, bars))
