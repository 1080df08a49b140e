#!/usr/bin/env python3
"""Does the process grow when a bound function is called 100,000 times? Of each function that users call in loops: resident
memory after 5,000 calls and after --calls more. Ends with 1 when one grew by more than --allowed bytes a call.

usage: make bench NAME=python-calls
"""

import gc
import os
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import headrace as hr  # noqa: E402

WARM_UP = 5_000


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mean_square(model, batch):
    return model(batch).square().mean()


def trainer(**options) -> hr.Trainer:
    model = nn.Linear(4, 2)
    return hr.Trainer(model, torch.optim.AdamW(model.parameters(), fused=True), mean_square, **options)


def steps(**options) -> Callable[[], object]:
    ours, batch = trainer(**options), torch.randn(2, 4)
    return lambda: ours.step(batch)


def raising_steps() -> Callable[[], object]:
    model = nn.Linear(4, 2)

    def raising(model, batch):
        raise LookupError

    ours = hr.Trainer(model, torch.optim.SGD(model.parameters()), raising)

    def call():
        try:
            ours.step(None)
        except LookupError:
            pass

    return call


def windows() -> Callable[[], object]:
    ours, batch = trainer(gradient_accumulation_steps=4), torch.randn(2, 4)

    def call():
        ours.step(batch)
        ours.finish_window()

    return call


def properties() -> Callable[[], object]:
    ours = trainer()
    return lambda: (ours.progress, ours.learning_rate, ours.loss_scale, ours.options)


def evaluations() -> Callable[[], object]:
    ours, batches = trainer(), [torch.randn(2, 4)]
    return lambda: ours.evaluate(batches)


def write_images(folder: Path) -> None:
    for split, count in (("train", 64), ("t10k", 8)):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 8, 8) + bytes(64 * count))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + bytes(count))


def loader_batches(folder: Path, threads: int) -> Callable[[], object]:
    loader = hr.Loader(f"idx:{folder}", batch_size=4, num_workers=threads)

    def endless():
        while True:
            yield from loader

    batches = endless()
    return lambda: next(batches)


def loader_passes(folder: Path) -> Callable[[], object]:
    loader = hr.Loader(f"idx:{folder}", batch_size=64, num_workers=0)
    return lambda: next(iter(loader))


def loader_states(folder: Path) -> Callable[[], object]:
    loader = hr.Loader(f"idx:{folder}")

    def call():
        loader.load_state_dict(loader.state_dict())
        return loader.statistics(), loader.options, loader.sample(3), len(loader)

    return call


def spans() -> Callable[[], object]:
    def call():
        with hr.span("work"):
            pass

    return call


def profiled() -> Callable[[], object]:
    return hr.profile_operation("work")(lambda: None)


def traces() -> Callable[[], object]:
    def call():
        with hr.Trace(events_per_thread=64) as trace:
            with hr.span("work"):
                pass
        return trace.summary()

    return call


def growth(call: Callable[[], object], calls: int) -> tuple[int, float]:
    for _ in range(WARM_UP):
        call()
    gc.collect()
    before, begin = resident_bytes(), time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - begin
    gc.collect()
    return resident_bytes() - before, 1e6 * seconds / calls


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--allowed", type=float, default=10.0, help="bytes of growth a call")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = harness.Bench(__file__, arguments, f"{arguments.calls} calls of each function, allowed {arguments.allowed:g} B a call")
    grew, growths = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder)
        cases = {
            "Trainer.step": steps(),
            "Trainer.step, clip and scale": steps(max_grad_norm=1.0, loss_scale=1024.0),
            "Trainer.step, forward raises": raising_steps(),
            "Trainer.step, finish_window": windows(),
            "Trainer's properties": properties(),
            "Trainer.evaluate": evaluations(),
            "Loader, next, 0 threads": loader_batches(folder, 0),
            "Loader, next, 1 thread": loader_batches(folder, 1),
            "Loader, a pass begun": loader_passes(folder),
            "Loader, states": loader_states(folder),
            "span": spans(),
            "profile_operation": profiled(),
            "Trace, span, summary": traces(),
        }
        for name, call in cases.items():
            grown, us = growth(call, arguments.calls)
            growths[name] = {"grown_bytes": grown, "call_us": us}
            print(f"{name:<30} {arguments.calls} calls, {us:7.1f} us each, grew {grown / 1024:6.0f} KiB", flush=True)
            if grown > arguments.allowed * arguments.calls:
                grew.append(name)
    print(f"grew: {', '.join(grew)}" if grew else "none grew", flush=True)
    return bench.end({"grew": grew, "functions": growths}, 1 if grew else 0)


if __name__ == "__main__":
    sys.exit(main())
