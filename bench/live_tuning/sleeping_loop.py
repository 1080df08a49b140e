#!/usr/bin/env python3
"""A loop of known truth: worker processes that sleep to load a batch, and a step that sleeps to compute. For `loaders`.

usage: sleeping_loop.py REQUEST

REQUEST is JSON: {"load_s", "compute_s", "queue": batches ahead, of two workers, "change": one of CHANGES, "seconds": to run for},
and "live": true, to have hr.autotune find out what the change is worth, or "on": whether it is in force, to have the loop timed.
The change is planted in the place of a setting that offers itself.
"""

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from live_tuning.loaders import CHANGES, COMPUTE_KEY, WORKERS  # noqa: E402


class Sleeping(Dataset):
    """Each sample is a batch that takes `load_s` to load, which may change while workers load ahead."""

    def __init__(self, load_s: Any) -> None:
        self.load_s = load_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.load_s.value)
        return torch.full((4, 8), index / 1e6)


class SleepingLoop:
    def __init__(self, request: dict[str, Any]) -> None:
        torch.manual_seed(1)
        self.key, self.load_factor, self.compute_factor = CHANGES[request["change"]]
        self.written_load_s, self.written_compute_s = request["load_s"], request["compute_s"]
        self.load_s, self.compute_s = multiprocessing.Value("d", self.written_load_s, lock=False), self.written_compute_s
        self.loader = DataLoader(Sleeping(self.load_s), batch_size=None, num_workers=WORKERS,
                                 prefetch_factor=request["queue"] // WORKERS)
        self.model = nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def plant(self, on: bool) -> None:
        self.load_s.value = self.written_load_s * (self.load_factor if on else 1.0)
        self.compute_s = self.written_compute_s * (self.compute_factor if on else 1.0)

    def run(self, seconds: float, is_over: Any = lambda: False) -> float:
        """Seconds a step, the first 2 * (queue + workers) of them left out."""
        left_out = 2 * WORKERS * (1 + self.loader.prefetch_factor)
        begin = counted = time.perf_counter()
        for step, batch in enumerate(self.loader, 1):
            self.optimizer.zero_grad()
            self.model(batch).square().mean().backward()
            time.sleep(self.compute_s)
            self.optimizer.step()
            now = time.perf_counter()
            if step == left_out:
                counted = now
            if step > left_out and (now - begin >= seconds or is_over()):
                break
        return (now - counted) / (step - left_out)


def tried(loop: SleepingLoop, seconds: float) -> dict[str, Any]:
    """What hr.autotune finds out; a change of loading is planted in a loader's setting where that is offered."""
    from live_tuning.planted_knobs import PlantedKnobs, autotuned

    decided: list[str] = []

    def note(kind: str, text: str) -> None:
        if kind in ("decided", "problem"):
            decided.append(text)

    def handle_of(key: str) -> Any:
        knobs = PlantedKnobs([loop.model], [loop.optimizer], loop.loader, (key,), {key: loop.plant})
        if not knobs.offer("rounding", (), (), None).candidates:
            return None
        return autotuned([loop.model], [loop.optimizer], loop.loader, knobs, "rounding", on_progress=note)

    handle = handle_of(loop.key) or handle_of(COMPUTE_KEY)
    if handle is None:
        return {"unavailable": f"neither {loop.key} nor {COMPUTE_KEY} is offered"}
    step_s = loop.run(seconds, lambda: bool(decided))
    handle.undo()  # Then a change that is still open has the gain of the pairs that there are.
    if not handle.trials:
        return {"unavailable": handle.problem or "nothing was tried"}
    (trial,) = handle.trials
    return {"verdict": trial.verdict, "reason": trial.reason, "sentence": trial.sentence, "gain": trial.gain,
            "pairs": trial.pairs, "step_s": step_s, "planted_as": trial.name, "lost_most_s": handle.ledger["lost_most_s"]}


def main() -> int:
    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    loop = SleepingLoop(request)
    if request.get("live"):
        found = tried(loop, request["seconds"])
    else:
        loop.plant(request["on"])
        found = {"step_s": loop.run(request["seconds"])}
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
