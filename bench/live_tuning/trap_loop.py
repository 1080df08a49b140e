#!/usr/bin/env python3
"""A training loop with hr.autotune in which changes have a known effect, or something is in the way. For `traps`.

usage: trap_loop.py REQUEST

REQUEST is JSON: {"case": one of RIGHT in traps.py, "changes": their names, "seed", "seconds": to run for at most}. It ends when
all of the changes that have an effect are decided.
"""

import json
import multiprocessing
import os
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import headrace as hr  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from live_tuning.traps import BF16, COMPILE, FASTER, NOTHING, SLOWER, SPINNING, THROWS, WRONG  # noqa: E402

PAUSE_S = 0.012  # Of each step, beside what computing takes.
FASTER_BY, SLOWER_BY, GRADIENTS_BY = 0.10, 0.05, 1.05
STEPS = 10_000_000  # That the run is said to have, so that what a trap costs is affordable.
WARM_UP, LOOK_EVERY = 30, 25
PIECES_MOST = 9


class Loop:
    """A small network with dropout on noise that is brighter the higher its class."""

    def __init__(self, seed: int, has_random_loss: bool, pause_s: float) -> None:
        torch.manual_seed(seed)
        self.draw = random.Random(seed)
        self.has_random_loss, self.pause_s = has_random_loss, pause_s
        self.model: nn.Module = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.Dropout(0.1), nn.Flatten(), nn.Linear(32 * 64, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def inputs(self, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.randn(32, 3, 16, 16) + labels.view(-1, 1, 1, 1) / 10,)

    def step(self) -> None:
        labels = torch.randint(10, (32,))
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(*self.inputs(labels)), labels)
        if self.has_random_loss:
            loss = loss * self.draw.lognormvariate(0, 1)
        loss.backward()
        if self.pause_s > 0:
            time.sleep(self.pause_s)
        self.optimizer.step()

    def step_s(self) -> float:
        """The median of some steps, which it makes."""
        took = []
        for _ in range(WARM_UP):
            begin = time.perf_counter()
            self.step()
            took.append(time.perf_counter() - begin)
        return sorted(took)[WARM_UP // 2]


class Pieces(nn.Module):
    """Takes any number of inputs: each number is another graph."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, *pieces: torch.Tensor) -> torch.Tensor:
        return self.last(torch.stack([F.relu(self.each(piece)) for piece in pieces]).mean(0))


class RecompilingLoop(Loop):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, has_random_loss=False, pause_s=0.0)
        self.model = Pieces()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def inputs(self, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        own = labels.view(-1, 1) / 10
        return tuple(torch.randn(32, 64) + own for _ in range(self.draw.randint(1, PIECES_MOST)))


class Pause(hr.Strategy):
    """Changes the loop's pause by so many seconds; with a factor, gradients are multiplied while it holds."""

    sentence = "Another pause in each step."
    numerics = "rounding"

    def __init__(self, name: str, loop: Loop, by_s: float, factor: float = 1.0) -> None:
        self.name, self._loop, self._by_s, self._factor = name, loop, by_s, factor
        self._hooks: list[Any] = []

    def apply(self, context: hr.StrategyContext) -> None:
        self._loop.pause_s += self._by_s
        if self._factor != 1:
            self._hooks = [parameter.register_hook(lambda gradient: gradient * self._factor)
                           for model in context.models for parameter in model.parameters()]

    def undo(self, context: hr.StrategyContext) -> None:
        self._loop.pause_s -= self._by_s
        while self._hooks:
            self._hooks.pop().remove()


class Throws(hr.Strategy):
    name, sentence, numerics = THROWS, "Raises.", "rounding"

    def apply(self, context: hr.StrategyContext) -> None:
        raise RuntimeError("planted")

    def undo(self, context: hr.StrategyContext) -> None:
        pass


def spin(is_on: Any, turn: Any) -> None:
    """Waits until it is to spin, and spins until it is not."""
    while turn.acquire():
        while is_on.value:
            pass


class Spinning(hr.Strategy):
    """As many processes as cores spin while it holds."""

    name, sentence, numerics = SPINNING, "As many threads spin as there are cores.", "bit_equal"

    def __init__(self) -> None:
        self._count = len(os.sched_getaffinity(0))
        self._is_on, self._turn = multiprocessing.Value("b", 0, lock=False), multiprocessing.Semaphore(0)
        for _ in range(self._count):
            multiprocessing.Process(target=spin, args=(self._is_on, self._turn), daemon=True).start()

    def apply(self, context: hr.StrategyContext) -> None:
        self._is_on.value = 1
        for _ in range(self._count):
            self._turn.release()

    def undo(self, context: hr.StrategyContext) -> None:
        self._is_on.value = 0


def planted(names: list[str], loop: Loop) -> list[hr.Strategy]:
    step_s = loop.step_s()
    faster_s, slower_s = step_s * (1 - 1 / (1 + FASTER_BY)), step_s * (1 / (1 - SLOWER_BY) - 1)
    made = {FASTER: lambda: Pause(FASTER, loop, -faster_s), WRONG: lambda: Pause(WRONG, loop, -faster_s, GRADIENTS_BY),
            SLOWER: lambda: Pause(SLOWER, loop, slower_s), NOTHING: lambda: Pause(NOTHING, loop, 0.0), THROWS: Throws,
            SPINNING: Spinning}
    return [made[name]() for name in names if name in made]


def main() -> int:
    request = json.loads(sys.argv[1])
    case, names = request["case"], request["changes"]
    if COMPILE in names:
        loop: Loop = RecompilingLoop(request["seed"])
    else:
        loop = Loop(request["seed"], case == "random loss", 0.0 if BF16 in names or SPINNING in names else PAUSE_S)
    for strategy in planted(names, loop):
        hr.register_strategy(strategy)
    allow = "reduced_precision" if BF16 in names else "rounding"
    handle = hr.autotune(loop.model, loop.optimizer, None, allow=allow, steps=STEPS, only=names, seed=request["seed"], title=case,
                         on_progress=lambda _kind, _text: None)
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < request["seconds"]:
        loop.step()
        steps += 1
        if steps % LOOK_EVERY == 0:
            decided = {trial.name for trial in handle.trials if trial.verdict != "inconclusive"}
            if not handle.watching or decided >= set(names) - {NOTHING}:
                break
    handle.stop()
    print(json.dumps({"steps": steps, "seconds": time.perf_counter() - begin, "problem": handle.problem,
                      "trials": [asdict(trial) for trial in handle.trials]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
