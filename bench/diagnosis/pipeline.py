"""A training script as people write it, with faults in it that are named on the command line. Knows nothing of headrace.

    pipeline.py --network cnn --workers 1 --fault spin_in_decode --fault-ms 12     trains, for `headrace profile`
    pipeline.py ... --share 0.15 --measure                                         prints what each fault costs, as JSON
    pipeline.py ... --fault slow_disk spin_in_update --share 0.3 0.15 --measure    the same of two

--share makes a fault, alone, cost that share of a step: its length is found from steps without one.
"""

import argparse
import contextlib
import gc
import json
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH = 4096, 16
BLOCK, BLOCKS, SKIPPED = 12, 10, 4  # Steps of a block that is timed, blocks with and without the fault, first steps of each left out.
SMALL, PAGE = 512, 4096
FEATURES = 256


def spin(seconds: float) -> None:
    """Computes in Python for so long, as this thread's CPU time has it."""
    end, total = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        for i in range(200):
            total += i


class Faults:
    """Seconds a batch by name, 0 while a fault is off; forked workers see them change."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._seconds = multiprocessing.Array("d", max(1, len(self.names)), lock=False)

    def set(self, seconds: Sequence[float], on: Collection[str]) -> None:
        """`seconds` of each; those that are not in `on` are off."""
        for i, name in enumerate(self.names):
            self._seconds[i] = seconds[i] if name in on else 0.0

    def of(self, name: str) -> float:
        return self._seconds[self.names.index(name)] if name in self.names else 0.0


class Images(Dataset):
    def __init__(self, faults: Faults, compute_s: "list[float]") -> None:
        self._faults, self._compute_s = faults, compute_s
        self._file = tempfile.TemporaryFile()
        self._file.write(os.urandom(SAMPLES * FEATURES))
        self._file.flush()
        self.transform = Normalize(self.extra)

    def __len__(self) -> int:
        return SAMPLES

    def extra(self, name: str) -> float:
        """Seconds of a sample. A worker that loads beside compute is waited for only in what exceeds that."""
        seconds = self._faults.of(name)
        hidden = self._compute_s[0] if seconds and torch.utils.data.get_worker_info() is not None else 0.0
        return (seconds + hidden) / BATCH if seconds else 0.0

    def read(self, index: int) -> bytes:
        if seconds := self.extra("slow_disk"):
            time.sleep(seconds)
        end = time.perf_counter() + self.extra("small_reads")
        while time.perf_counter() < end:
            os.pread(self._file.fileno(), SMALL, index % SAMPLES * 16)
            time.sleep(100e-6)  # As a disk that is asked for each piece by itself.
        return os.pread(self._file.fileno(), FEATURES, index * FEATURES)

    def decode(self, content: bytes) -> torch.Tensor:
        spin(self.extra("spin_in_decode"))
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).float()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._faults.of("slow_worker"):
            self._slow_down()
        return self.transform(self.decode(self.read(index))), index % 10

    def _slow_down(self) -> None:
        """Of two workers the first alone: what is left of both, on average, compute would hide."""
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.id == 0:
            time.sleep(2 * (self._compute_s[0] + self._faults.of("slow_worker")) / BATCH)


class Normalize:
    def __init__(self, extra) -> None:
        self._extra = extra

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        spin(self._extra("spin_in_transform"))
        return features / 127.5 - 1


def collate_by(dataset: Images):
    def collate(samples: list) -> tuple[torch.Tensor, torch.Tensor]:
        spin(dataset.extra("spin_in_collate") * BATCH)
        return torch.stack([features for features, _ in samples]), torch.tensor([label for _, label in samples])

    return collate


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 64), nn.Linear(64, 10)
        self.layers = nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.into(features.view(-1, 16, 16))).mean(1))


def make_network(name: str) -> nn.Module:
    if name == "mlp":
        return nn.Sequential(nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    if name == "attention":
        return Attention()
    return nn.Sequential(nn.Unflatten(1, (1, 16, 16)), nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1),
                         nn.ReLU(), nn.Flatten(), nn.Linear(64 * 256, 10))


class FaultyNetwork(nn.Module):
    """The network, and within its forward what a fault does there."""

    def __init__(self, network: nn.Module, faults: Faults) -> None:
        super().__init__()
        self.network, self._faults = network, faults
        self._factor = torch.randn(256, 256)
        self._lock = threading.Lock()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        end = time.thread_time() + self._faults.of("more_products")
        while time.thread_time() < end:
            self._factor @ self._factor
        if seconds := self._faults.of("lock_in_forward"):
            self._wait_for_lock(seconds)
        return self.network(features)

    def _wait_for_lock(self, seconds: float) -> None:
        """Another thread holds it for so long."""
        held = threading.Event()

        def hold() -> None:
            with self._lock:
                held.set()
                time.sleep(seconds)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        with self._lock:
            thread.join()


class FaultyUpdate:
    """The step of an optimizer, which takes longer than it has to."""

    def __init__(self, optimizer: torch.optim.Optimizer, faults: Faults) -> None:
        self._plain, self._optimizer, self._faults = optimizer.step, optimizer, faults

    def __call__(self, closure=None):
        spin(self._faults.of("spin_in_update"))
        end = time.thread_time() + self._faults.of("loop_over_parameters")
        while time.thread_time() < end:
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.norm().item()
        return self._plain(closure)


NEIGHBOURS = "busy_neighbours"
NEIGHBOUR = ("import sys, time\nshare, period = float(sys.argv[1]), 0.02\nwhile True:\n"
             "    end = time.perf_counter() + share * period\n    while time.perf_counter() < end: pass\n"
             "    time.sleep((1 - share) * period)")


@contextlib.contextmanager
def neighbours(share: float) -> Iterator[None]:
    """Programs that compute on every core of this one for a part of the time."""
    programs = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(share)]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def around(names: Sequence[str], shares: Sequence[float], on: Collection[str]) -> contextlib.AbstractContextManager[None]:
    """What of the faults that are on lies outside of the loop."""
    return neighbours(shares[names.index(NEIGHBOURS)]) if NEIGHBOURS in on else contextlib.nullcontext()


class Loop:
    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        torch.set_num_threads(1)
        self.faults = Faults(arguments.fault)
        self.compute_s = multiprocessing.Array("d", 1, lock=False)
        dataset = Images(self.faults, self.compute_s)
        self.loader = DataLoader(dataset, BATCH, num_workers=arguments.workers, collate_fn=collate_by(dataset))
        network = make_network(arguments.network)
        self.network = FaultyNetwork(network, self.faults) if {"more_products", "lock_in_forward"} & {*arguments.fault} else network
        kind = torch.optim.AdamW if arguments.optimizer == "adamw" else torch.optim.SGD
        self.optimizer = kind(self.network.parameters(), lr=1e-3, **({"fused": True} if arguments.optimizer == "adamw" else {}))
        if "collected_garbage" in arguments.fault:
            gc.collect()
            gc.freeze()  # Of what torch holds, one collection would take longer than the fault may cost.
            self.kept = [[i] for i in range(20_000)]
        self.work = arguments.repeats  # Forwards of a batch, so that a step takes as long as one of a job's.
        if {"spin_in_update", "loop_over_parameters"} & {*arguments.fault}:
            self.optimizer.step = FaultyUpdate(self.optimizer, self.faults)

    def steps(self, count: int) -> list[float]:
        """Seconds of each, data wait included, from a new epoch on."""
        seconds, begin = [], time.perf_counter()
        for features, labels in self.loader:
            self.step(features, labels)
            seconds.append((now := time.perf_counter()) - begin)
            begin = now
            if len(seconds) == count:
                return seconds
        return seconds

    def step(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        end = time.thread_time() + self.faults.of("conversions")
        while time.thread_time() < end:
            features = features.to(torch.float64).to(torch.float32)
        self.optimizer.zero_grad()
        many, wanted = features.repeat(self.work, 1), labels.repeat(self.work)
        nn.functional.cross_entropy(self.network(many), wanted).backward()
        self.optimizer.step()
        self.body()

    def body(self) -> None:
        spin(self.faults.of("metrics_in_python"))
        if seconds := self.faults.of("sleep_in_body"):
            time.sleep(seconds)
        self.touch_pages(self.faults.of("fresh_pages"))
        if seconds := self.faults.of("collected_garbage"):
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                gc.collect()

    @staticmethod
    def touch_pages(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            with mmap.mmap(-1, 256 * PAGE) as memory:
                memory.madvise(mmap.MADV_NOHUGEPAGE) if hasattr(mmap, "MADV_NOHUGEPAGE") else None
                memory[::PAGE] = bytes(256)


def compute_seconds(loop: Loop) -> float:
    """Of a step without its data wait."""
    batch = next(iter(loop.loader))
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        loop.step(*batch)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])


def measure(loop: Loop, shares: Sequence[float]) -> dict:
    """Blocks with all faults, and without each of them, in turns. gains: of each, what the loop gains without it."""
    loop.compute_s[0] = compute_seconds(loop)
    base = statistics.median(loop.steps(BLOCK)[SKIPPED:])
    names = loop.faults.names
    fault_s = [share / (1 - share) * base for share in shares]
    arms = [names] + [[name for name in names if name != left_out] for left_out in names]
    found: list[list[float]] = [[] for _ in arms]
    for block in range(BLOCKS if names else 0):
        for arm in range(len(arms))[::-1 if block % 2 == 0 else 1]:
            loop.faults.set(fault_s, arms[arm])
            with around(names, shares, arms[arm]):
                found[arm].append(statistics.fmean(loop.steps(BLOCK)[SKIPPED:]))
    gains = [statistics.median(all_of_them / without - 1 for all_of_them, without in zip(found[0], one)) for one in found[1:]]
    return {"gains": gains, "base_s": base, "fault_ms": [seconds * 1e3 for seconds in fault_s],
            "compute_ms": loop.compute_s[0] * 1e3}


def train(loop: Loop, arguments: argparse.Namespace) -> None:
    loop.compute_s[0] = arguments.compute_ms * 1e-3
    loop.faults.set([ms * 1e-3 for ms in arguments.fault_ms], arguments.fault)
    with around(arguments.fault, arguments.share, arguments.fault):
        loop.steps(arguments.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="cnn", choices=("mlp", "cnn", "attention"))
    parser.add_argument("--optimizer", default="sgd", choices=("sgd", "adamw"))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--fault", nargs="*", default=[], help="one or several; none: the pipeline is healthy")
    parser.add_argument("--fault-ms", type=float, nargs="*", default=[], help="a step, of each fault")
    parser.add_argument("--compute-ms", type=float, default=0.0, help="of a step, as --measure found it")
    parser.add_argument("--share", type=float, nargs="*", default=[], help="of a step that each fault costs, when it is alone")
    parser.add_argument("--repeats", type=int, default=16, help="of each batch's samples")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    if len(arguments.share) != len(arguments.fault) or (not arguments.measure and len(arguments.fault_ms) != len(arguments.fault)):
        parser.error(f"wanted a --share of each --fault, and --fault-ms where it trains, found {len(arguments.share)} and "
                     f"{len(arguments.fault_ms)} of {len(arguments.fault)}")
    loop = Loop(arguments)
    if arguments.measure:
        print(json.dumps(measure(loop, arguments.share)))
    else:
        train(loop, arguments)


if __name__ == "__main__":
    main()
