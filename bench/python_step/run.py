#!/usr/bin/env python3
"""A training step of an nn.Module from Python: the plain loop with AdamW(fused=True) against headrace.Trainer.step, on a
tiny MLP (32-64-10, batch 16, 1 thread), where what is not arithmetic shows; plain, with clipping, with clipping and a
loss scale, and with all that a run asks of a step: a schedule with a warm-up, clipping, averages of the weights, and a
look at whether the loss is finite; and Tuned.step after hr.tune of a loop with a plain AdamW, by what it kept of the
changes to a step. Each round times --steps steps of every arm. Last, how fast a counting Python thread runs while a
Trainer steps and while a Loader is waited for, as a share of its free rate.

usage: make bench NAME=python-step
"""

import itertools
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import headrace as hr  # noqa: E402

BARS = {"plain": 0.6, "clip": 0.5, "scale": 0.5, "all": 0.5}  # Of the plain loop's time, at most.
NORM_MAX, EMA_DECAY, WARMUP_STEPS, RUN_STEPS = 1.0, 0.999, 100, 1_000_000


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def forward(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batch_of(size: int = 16):
    return torch.randn(size, 32), torch.randint(10, (size,))


def batches_in_turn(count: int = 64) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same ones for each that asks; more samples than the network can learn by heart, so that gradients stay large."""
    torch.manual_seed(2)
    return itertools.cycle([batch_of() for _ in range(count)])


def plain_step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    forward(model, batch).backward()
    optimizer.step()


def clipped_step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    forward(model, batch).backward()
    nn.utils.clip_grad_norm_(model.parameters(), NORM_MAX)
    optimizer.step()


def scaled_step(model, optimizer, batch, scaler) -> None:
    optimizer.zero_grad()
    scaler.scale(forward(model, batch)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), NORM_MAX)
    scaler.step(optimizer)
    scaler.update()


def share_of_lr(step: int) -> float:
    """Of update `step`, from 0: a linear warm-up, then half a cosine."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (RUN_STEPS - WARMUP_STEPS - 1))) / 2


class LoopWithAll:
    """All that a run asks of a step, by PyTorch's best calls."""

    def __init__(self) -> None:
        self.model = network()
        self.parameters = list(self.model.parameters())
        self.averages = [parameter.detach().clone() for parameter in self.parameters]
        self._optimizer = torch.optim.AdamW(self.parameters, fused=True)
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, share_of_lr)
        self._updates = 0
        self._batches = batches_in_turn()

    def step(self) -> None:
        self._optimizer.zero_grad()
        loss = forward(self.model, next(self._batches))
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"the loss is {loss.item()} at update {self._updates}")
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, NORM_MAX, foreach=True)
        self._optimizer.step()
        self._scheduler.step()
        self._updates += 1
        decay = min(EMA_DECAY, (1 + self._updates) / (10 + self._updates))
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, self.parameters, 1 - decay)


class TrainerWithAll:
    """The same by the engine, whose step guard is there by default."""

    def __init__(self) -> None:
        self.model = network()
        self.parameters = list(self.model.parameters())
        self._trainer = hr.Trainer(
            self.model, torch.optim.AdamW(self.parameters, fused=True), forward, max_grad_norm=NORM_MAX, ema_decay=EMA_DECAY,
            lr_scheduler={"name": "CosineAnnealingLR", "warmup_steps": WARMUP_STEPS}, steps=RUN_STEPS)
        self.averages = list(self._trainer.averages.values())
        self._batches = batches_in_turn()

    def step(self) -> None:
        self._trainer.step(next(self._batches))


def farthest(steps: int) -> float:
    """Largest difference of a weight or of an average between the two after so many steps."""
    theirs, ours = LoopWithAll(), TrainerWithAll()
    for _ in range(steps):
        theirs.step()
        ours.step()
    pairs = [*zip(ours.parameters, theirs.parameters, strict=True), *zip(ours.averages, theirs.averages, strict=True)]
    return max(float((one.detach() - other.detach()).abs().max()) for one, other in pairs)


def python_arm(step):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = batch_of()
    more = [torch.amp.GradScaler("cpu")] if step is scaled_step else []
    return lambda: step(model, optimizer, batch, *more)


def engine_arm(**options):
    model = network()
    trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters(), fused=True), forward, **options)
    batch = batch_of()
    return lambda: trainer.step(batch)


def tuned_arm():
    model = network()
    optimizer, batch = torch.optim.AdamW(model.parameters()), batch_of()
    tuned = hr.tune(model, [batch] * 50, optimizer, forward, whole_step=True, budget_s=10,
                    only=["fused optimizer", "native step", "micro-batches 2", "micro-batches 4"])  # Others are the process'.
    low, high = (tuned.ledger["speedup"][end] for end in ("low", "high"))
    print(f"hr.tune kept {', '.join(tuned.kept) or 'nothing'}: {tuned.speedup:.2f} times [{low:.2f}, {high:.2f}] as fast")
    return lambda: tuned.step(batch)


def arms() -> dict[str, Callable[[], object]]:
    made = {
        "plain: Python loop": python_arm(plain_step),
        "plain: hr.Trainer": engine_arm(),
        "plain: hr.tune": tuned_arm(),
        "clip: Python loop": python_arm(clipped_step),
        "clip: hr.Trainer": engine_arm(max_grad_norm=NORM_MAX),
        "scale: Python loop": python_arm(scaled_step),
        "scale: hr.Trainer": engine_arm(max_grad_norm=NORM_MAX, loss_scale=65536.0),
        "all: Python loop": LoopWithAll().step,
        "all: hr.Trainer": TrainerWithAll().step,
    }
    for step in made.values():
        for _ in range(50):
            step()
    return made


def microseconds_a_step(step: Callable[[], object], steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return 1e6 * (time.perf_counter() - begin) / steps


def judge(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Tells, and returns, the share of the plain loop's time that a Trainer takes, by kind."""
    shares = {}
    for kind, bar in BARS.items():
        ours, theirs = times[f"{kind}: hr.Trainer"], times[f"{kind}: Python loop"]
        shares[kind] = statistics.median(ours) / statistics.median(theirs)
        print(f"{kind}: {shares[kind]:.2f} of the plain loop's time (ratio of medians; round by round "
              f"{harness.with_interval(harness.ratios(ours, theirs), digits=2)}; wanted at most {bar}): "
              f"{'met' if shares[kind] <= bar else 'missed'}")
    return shares


class Counter:
    """A Python thread that counts."""

    def __enter__(self):
        self.count, self.running = 0, True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.begin = time.perf_counter()
        return self

    def run(self):
        while self.running:
            self.count += 1

    def __exit__(self, *args):
        self.rate = self.count / (time.perf_counter() - self.begin)
        self.running = False
        self.thread.join()


def free_rate(seconds: float) -> float:
    with Counter() as counter:
        time.sleep(seconds)
    return counter.rate


def rate_during_steps(seconds: float) -> float:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters(), fused=True), lambda m, b: m(b).square().mean())
    batch = torch.randn(256, 512)
    with Counter() as counter:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            trainer.step(batch)
    return counter.rate


def rate_during_waits(seconds: float) -> float | None:
    photos = harness.ROOT / "photos"
    if not photos.exists():
        return None
    loader = hr.Loader(f"folder:{photos}", batch_size=64, num_workers=1, transform={"size": 128, "crop": "random_resized"})
    with Counter() as counter:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in loader:
                if time.perf_counter() > end:
                    break
    return counter.rate


def main() -> int:
    parser = harness.parser(__doc__, rounds=9)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each rate of the counting thread")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds of {arguments.steps} steps; {harness.interval_remark(arguments.rounds)}")
    times = bench.measure([harness.Arm(name, lambda _, step=step: microseconds_a_step(step, arguments.steps)) for name, step in arms().items()],
                          arguments.rounds)
    print(harness.arms_table(times, "us a step", 1))
    shares = judge(times)
    print(f"all: after 200 updates weights and averages of both differ by at most {farthest(200):.1e}")
    before = free_rate(arguments.seconds)
    steps = rate_during_steps(arguments.seconds)
    waits = rate_during_waits(arguments.seconds)
    free = (before + free_rate(arguments.seconds)) / 2
    print(f"counting thread: {free:.3g} counts/s free; {100 * steps / free:.0f} % of that during steps", end="")
    print("" if waits is None else f", {100 * waits / free:.0f} % during waits for a Loader", flush=True)
    return bench.end({"of the plain loop's time": shares, "counts_per_second": {"free": free, "during steps": steps, "during waits": waits}})


if __name__ == "__main__":
    sys.exit(main())
