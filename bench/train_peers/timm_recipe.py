#!/usr/bin/env python3
"""Trains vit_tiny_patch16_224 at 96 px by timm's recipe, batch 64: mixup, soft targets, fused AdamW with layer decay, warm-up and cosine by
update, averages. Once by the loop of timm's train.py, in timm's own calls, and once by hr.Trainer with timm's groups and rates. Prints
one JSON object.

usage: timm_recipe.py WHAT [OPTION...]      in an environment that has timm, with the package of the build in PYTHONPATH

bits              both make --updates updates on the same batches with the same draws: bits of the weights, and how far the averages
                  are apart. Where bits differ, timm's loop runs again, to show whether it repeats its own.
step              blocks of --steps steps of each, mixup included, take turns in this process: --rounds of them.
timm-photographs  samples/s from JPEG files, loading, mixup and steps: timm's create_loader with 2 workers and its loop,
hr-photographs    or hr.Loader with 2 workers and hr.Trainer. Both draw crops and flips by the same rules.

The rate of the first update is 0: timm's averages begin with the weights after it, and ours with those before, which are then the same.
"""

import argparse
import importlib.metadata
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

import headrace as hr  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from train_peers.optimizers import have_same_bits, microseconds_a_step  # noqa: E402

MODEL, SIDE, BATCH, CLASSES = "vit_tiny_patch16_224", 96, 64, 1000
RATE, LOWEST_RATE, WARM_UP, LENGTH = 1e-3, 1e-5, 5, 50  # LENGTH: updates until the rate is the lowest.
WEIGHT_DECAY, LAYER_DECAY, AVERAGE_DECAY = 0.05, 0.75, 0.9998
MIXUP = {"mixup_alpha": 0.8, "label_smoothing": 0.1, "num_classes": CLASSES}
WORKERS = 2
TIMM, OURS = "timm", "ours"  # The arms.

Batch = tuple[torch.Tensor, torch.Tensor]  # Images, float32 [BATCH, 3, SIDE, SIDE], and labels, int64 [BATCH], or targets, float32 [BATCH, CLASSES].
Mix = Callable[[torch.Tensor, torch.Tensor], Batch]  # Changes the images in place; draws from numpy.random.


class Recipe:
    """A network, the same one each time, with timm's optimizer, loss and schedule of it."""

    def __init__(self) -> None:
        from timm import create_model
        from timm.loss import SoftTargetCrossEntropy
        from timm.optim import create_optimizer_v2
        from timm.scheduler import CosineLRScheduler

        torch.manual_seed(1)
        self.model = create_model(MODEL, img_size=SIDE, num_classes=CLASSES).train()
        self.optimizer = create_optimizer_v2(self.model, "adamw", lr=RATE, weight_decay=WEIGHT_DECAY, layer_decay=LAYER_DECAY, fused=True)
        self.schedule = CosineLRScheduler(self.optimizer, t_initial=LENGTH, lr_min=LOWEST_RATE, warmup_t=WARM_UP, warmup_lr_init=0.0,
                                          t_in_epochs=False)
        self.criterion = SoftTargetCrossEntropy()

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]


class TimmLoop(Recipe):
    """What timm's train.py does a batch, without what it prints."""

    def __init__(self) -> None:
        from timm.utils import ModelEmaV3

        super().__init__()
        self._averages = ModelEmaV3(self.model, decay=AVERAGE_DECAY)
        self._updates = 0

    def update(self, batch: Batch) -> None:
        images, targets = batch
        self.criterion(self.model(images), targets).backward()
        self.optimizer.step()
        self._updates += 1
        self.optimizer.zero_grad()
        self._averages.update(self.model, step=self._updates)
        self.schedule.step_update(num_updates=self._updates)

    def averages(self) -> Mapping[str, torch.Tensor]:
        return self._averages.module.state_dict()


class Engine(Recipe):
    def __init__(self) -> None:
        super().__init__()
        self.trainer = hr.Trainer(self.model, self.optimizer, self._loss, ema_decay=AVERAGE_DECAY, ema_warmup=False,
                                  lr_scheduler={"scheduler": SteppedByUpdate(self.schedule), "interval": "step"})

    def _loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return self.criterion(model(batch[0]), batch[1])

    def update(self, batch: Batch) -> None:
        self.trainer.step(batch)

    def averages(self) -> Mapping[str, torch.Tensor]:
        return self.trainer.averages


class SteppedByUpdate:
    """A schedule of timm, whose step_update() wants the number of updates, as an object whose step() takes nothing, as torch's are."""

    def __init__(self, schedule: Any) -> None:
        self.optimizer = schedule.optimizer
        self._schedule, self._updates = schedule, 0

    def step(self) -> None:
        self._updates += 1
        self._schedule.step_update(num_updates=self._updates)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates, "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._updates = state["updates"]
        self._schedule.load_state_dict(state["schedule"])


def mixup() -> Mix:
    from timm.data import Mixup

    return Mixup(**MIXUP)


def drawn_batches() -> Iterator[Batch]:
    """The same ones each time."""
    drawn = torch.Generator().manual_seed(2)
    while True:
        yield torch.randn(BATCH, 3, SIDE, SIDE, generator=drawn), torch.randint(CLASSES, (BATCH,), generator=drawn)


def farthest(some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> float:
    """The largest difference of a number in `some` from that of the same name and place in `others`; NaN where one is NaN."""
    return float(torch.stack([(tensor.double() - others[name].double()).abs().max() for name, tensor in some.items()]).max())


# What is measured.


def trained(loop: TimmLoop | Engine, updates: int) -> TimmLoop | Engine:
    np.random.seed(3)  # From which mixup draws.
    mix = mixup()
    for images, labels in itertools.islice(drawn_batches(), updates):
        loop.update(mix(images, labels))
    return loop


def bits(arguments: argparse.Namespace) -> dict[str, Any]:
    """loop_repeats: whether timm's loop has the bits of a run of its own before; None: not asked."""
    begun = Recipe().weights()
    theirs, ours = trained(TimmLoop(), arguments.updates), trained(Engine(), arguments.updates)
    if have_same_bits(begun, theirs.weights()):
        raise SystemExit(f"wanted weights that {arguments.updates} updates move, found those of the beginning")
    same_bits = have_same_bits(theirs.weights(), ours.weights())
    repeats = None if same_bits else have_same_bits(theirs.weights(), trained(TimmLoop(), arguments.updates).weights())
    return {"updates": arguments.updates, "same_bits": same_bits, "loop_repeats": repeats,
            "weights_apart": farthest(theirs.model.state_dict(), ours.model.state_dict()),
            "averages_apart": farthest(theirs.averages(), ours.averages())}


def step_of(loop: TimmLoop | Engine) -> Callable[[], None]:
    images, labels = next(drawn_batches())
    mix = mixup()
    return lambda: loop.update(mix(images.clone(), labels))


def step(arguments: argparse.Namespace) -> dict[str, Any]:
    engine = Engine()
    steps = {TIMM: step_of(TimmLoop()), OURS: step_of(engine)}
    arms = [harness.Arm(name, lambda _, one=one: microseconds_a_step(one, arguments.steps) / 1e3) for name, one in steps.items()]
    times = harness.interleave(arms, arguments.rounds, warm_up=1, seed=arguments.order_seed)
    return {"ms": times, "by": engine.trainer.explain()["optimizer"]["by"]}


def pixel_statistics(model: nn.Module) -> dict[str, Any]:
    """Mean and deviation that timm normalises this network's images by, of a channel each, on the 0 to 1 scale."""
    from timm.data import resolve_model_data_config

    found = resolve_model_data_config(model)
    return {name: found[name] for name in ("mean", "std")}


def timm_photographs(arguments: argparse.Namespace) -> dict[str, float]:
    """As train.py has it: the workers mix while they collate, and the images are normalised in the loop's process."""
    from timm.data import FastCollateMixup, ImageDataset, create_loader

    loop = TimmLoop()
    loader = create_loader(ImageDataset(str(arguments.photos / "train")), input_size=(3, SIDE, SIDE), batch_size=BATCH, is_training=True,
                           color_jitter=None, interpolation="bilinear", num_workers=WORKERS, collate_fn=FastCollateMixup(**MIXUP),
                           device=torch.device("cpu"), **pixel_statistics(loop.model))
    return {"samples_per_s": samples_per_s(loop, without_end(loader), arguments)}


def our_photographs(arguments: argparse.Namespace) -> dict[str, float]:
    engine, mix = Engine(), mixup()
    statistics = {name: list(values) for name, values in pixel_statistics(engine.model).items()}
    loader = hr.Loader(f"folder:{arguments.photos}", batch_size=BATCH, num_workers=WORKERS, last_batch="drop",
                       transform={"size": SIDE, "crop": "random_resized", "flip_probability": 0.5, **statistics})
    batches = (mix(images, labels) for images, labels in without_end(loader))
    return {"samples_per_s": samples_per_s(engine, batches, arguments)}


def without_end(loader: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        yield from loader


def samples_per_s(loop: TimmLoop | Engine, batches: Iterator[Batch], arguments: argparse.Namespace) -> float:
    """Of --steps steps after --warm-up, in which the workers start."""
    def one() -> None:
        loop.update(next(batches))

    for _ in range(arguments.warm_up):
        one()
    return 1e6 * BATCH / microseconds_a_step(one, arguments.steps)


MEASURED: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "bits": bits, "step": step, "timm-photographs": timm_photographs, "hr-photographs": our_photographs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(MEASURED))
    parser.add_argument("--updates", type=int, default=LENGTH, help="before bits are compared (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="of step that are counted (%(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="of a block, or from photographs (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=4, help="steps from photographs that are not counted (%(default)s)")
    parser.add_argument("--order-seed", type=int, default=1, help="of the drawn order in which arms take turns (%(default)s)")
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos", help="folder with train/CLASS/*.jpg (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    version = importlib.metadata.version
    print("\n" + json.dumps({**MEASURED[arguments.what](arguments), "threads": torch.get_num_threads(), "version": version("timm"),
                             "torch": version("torch")}))


if __name__ == "__main__":
    main()
