#!/usr/bin/env python3
"""How fast does a Python thread count while headrace loads and steps beside it? The rate over that beside a thread that sleeps, block by
block in turns: what native work takes of it, or a lock that is held. Ends with 1 where a median is under --bar.

Loader and Trainer have one thread each, so that the counter has a core of its own where there are two.

usage: make bench NAME=counting-thread
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import headrace as hr  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402

SIDE = 640
IMAGES = 64


class Counter:
    """Counts from its making to end()."""

    def __init__(self) -> None:
        self.count, self._ended = 0, False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            self.count += 1

    def end(self) -> None:
        self._ended = True
        self._thread.join()


def write_photos(folder: Path) -> None:
    for place in range(IMAGES):
        path = folder / "train" / str(place % 2)
        path.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").rotate(5 * place).resize((800, SIDE)).convert("RGB").save(path / f"{place}.jpg")


def loads(folder: Path) -> Callable[[], object]:
    loader = hr.Loader(f"folder:{folder}", batch_size=8, num_workers=1, transform={
        "size": 224, "crop": "random_resized", "flip_probability": 0.5, "mean": [0.5], "std": [0.2]})

    def batches() -> Iterator[object]:
        while True:
            yield from loader

    running = batches()
    return lambda: next(running)


def steps() -> Callable[[], object]:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
                          nn.Linear(32 * 64 * 64, 10))
    images, labels = torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))
    trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters(), fused=True),
                         lambda made, batch: nn.functional.cross_entropy(made(batch[0]), batch[1]))
    return lambda: trainer.step((images, labels))


def rate_beside(work: Callable[[], object], seconds: float) -> float:
    """Counts a second while `work` is called again and again."""
    counter = Counter()
    try:
        begin, before = time.perf_counter(), counter.count
        while time.perf_counter() < begin + seconds:
            work()
        return (counter.count - before) / (time.perf_counter() - begin)
    finally:
        counter.end()


def main() -> int:
    parser = harness.parser(__doc__, rounds=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block (%(default)s)")
    parser.add_argument("--bar", type=float, default=0.6, help="the least share of the rate beside sleep (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds of blocks of {arguments.seconds:g} s")
    with tempfile.TemporaryDirectory() as name:
        write_photos(Path(name))
        works = {"sleep": lambda: time.sleep(0.01), "loads": loads(Path(name)), "steps": steps()}
        arms = [harness.Arm(name, lambda _, work=work: rate_beside(work, arguments.seconds)) for name, work in works.items()]
        found = bench.measure(arms, arguments.rounds, warm_up=1)
    print(harness.arms_table(found, "counts/s", reference="sleep"), flush=True)
    shares = {name: statistics.median(harness.ratios(found[name], found["sleep"])) for name in ("loads", "steps")}
    missed = [name for name, share in shares.items() if share < arguments.bar]
    print("; ".join(f"{name}: {share:.2f} of the rate, at least {arguments.bar:g}, {'missed' if name in missed else 'met'}"
                    for name, share in shares.items()), flush=True)
    return bench.end(shares, int(bool(missed)))


if __name__ == "__main__":
    sys.exit(main())
