#!/usr/bin/env python3
"""A training step of an nn.Module from Python: the plain loop with AdamW(fused=True) against headrace.Trainer.step, on a
tiny MLP (32-64-10, batch 16, 1 thread), where what is not arithmetic shows; plain, with clipping, and with clipping and a
loss scale; and Tuned.step after hr.tune of a loop with a plain AdamW, by what it kept of the changes to a step. Each round times
--steps steps of every arm. Last, how fast a counting Python thread runs while a Trainer steps and while a Loader is waited for, as
a share of its free rate.

usage: make bench NAME=python-step
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import headrace as hr  # noqa: E402


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def forward(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batch_of(size: int = 16):
    return torch.randn(size, 32), torch.randint(10, (size,))


def plain_step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    forward(model, batch).backward()
    optimizer.step()


def clipped_step(model, optimizer, batch) -> None:
    optimizer.zero_grad()
    forward(model, batch).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def scaled_step(model, optimizer, batch, scaler) -> None:
    optimizer.zero_grad()
    scaler.scale(forward(model, batch)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


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
        "clip: hr.Trainer": engine_arm(max_grad_norm=1.0),
        "scale: Python loop": python_arm(scaled_step),
        "scale: hr.Trainer": engine_arm(max_grad_norm=1.0, loss_scale=65536.0),
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
    shares = {}
    for kind, bar in (("plain", 0.6), ("clip", 0.5), ("scale", 0.5)):
        shares[kind] = statistics.median(times[f"{kind}: hr.Trainer"]) / statistics.median(times[f"{kind}: Python loop"])
        print(f"{kind}: {shares[kind]:.2f} of the plain loop's time (ratio of medians; wanted at most {bar})")
    before = free_rate(arguments.seconds)
    steps = rate_during_steps(arguments.seconds)
    waits = rate_during_waits(arguments.seconds)
    free = (before + free_rate(arguments.seconds)) / 2
    print(f"counting thread: {free:.3g} counts/s free; {100 * steps / free:.0f} % of that during steps", end="")
    print("" if waits is None else f", {100 * waits / free:.0f} % during waits for a Loader", flush=True)
    return bench.end({"of the plain loop's time": shares, "counts_per_second": {"free": free, "during steps": steps, "during waits": waits}})


if __name__ == "__main__":
    sys.exit(main())
