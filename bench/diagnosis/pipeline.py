"""A training script as people write it, with a fault in it that is named on the command line. Knows nothing of headrace.

    pipeline.py --network cnn --workers 1 --fault spin_in_decode --fault-ms 12     trains, for `headrace profile`
    pipeline.py ... --share 0.15 --measure                                         prints what the fault costs, as JSON

--share makes the fault cost that share of a step: its length is found from steps without it.
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
from collections.abc import Iterator

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


class Fault:
    """`seconds` a batch where its name is `name` and it is on; forked workers see both change."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._seconds = multiprocessing.Value("d", 0.0, lock=False)
        self._on = multiprocessing.Value("b", 0, lock=False)

    def set(self, on: bool, seconds: float | None = None) -> None:
        self._on.value = on
        if seconds is not None:
            self._seconds.value = seconds

    def of(self, *names: str) -> float:
        return self._seconds.value if self._on.value and self.name in names else 0.0


class Images(Dataset):
    def __init__(self, fault: Fault, compute_s: "list[float]") -> None:
        self._fault, self._compute_s = fault, compute_s
        self._file = tempfile.TemporaryFile()
        self._file.write(os.urandom(SAMPLES * FEATURES))
        self._file.flush()
        self.transform = Normalize(self.extra)

    def __len__(self) -> int:
        return SAMPLES

    def extra(self, *names: str) -> float:
        """Seconds of a sample. A worker that loads beside compute is waited for only in what exceeds that."""
        seconds = self._fault.of(*names)
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
        if self._fault.of("slow_worker"):
            self._slow_down()
        return self.transform(self.decode(self.read(index))), index % 10

    def _slow_down(self) -> None:
        """Of two workers the first alone: what is left of both, on average, compute would hide."""
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.id == 0:
            time.sleep(2 * (self._compute_s[0] + self._fault.of("slow_worker")) / BATCH)


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

    def __init__(self, network: nn.Module, fault: Fault) -> None:
        super().__init__()
        self.network, self._fault = network, fault
        self._factor = torch.randn(256, 256)
        self._lock = threading.Lock()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        end = time.thread_time() + self._fault.of("more_products")
        while time.thread_time() < end:
            self._factor @ self._factor
        if seconds := self._fault.of("lock_in_forward"):
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

    def __init__(self, optimizer: torch.optim.Optimizer, fault: Fault) -> None:
        self._plain, self._optimizer, self._fault = optimizer.step, optimizer, fault

    def __call__(self, closure=None):
        spin(self._fault.of("spin_in_update"))
        end = time.thread_time() + self._fault.of("loop_over_parameters")
        while time.thread_time() < end:
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.norm().item()
        return self._plain(closure)


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


def around(fault: Fault, share: float) -> contextlib.AbstractContextManager[None]:
    """What of a fault lies outside of the loop."""
    return neighbours(share) if fault.name == "busy_neighbours" else contextlib.nullcontext()


class Loop:
    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        torch.set_num_threads(1)
        self.fault = Fault(arguments.fault)
        self.compute_s = multiprocessing.Array("d", 1, lock=False)
        dataset = Images(self.fault, self.compute_s)
        self.loader = DataLoader(dataset, BATCH, num_workers=arguments.workers, collate_fn=collate_by(dataset))
        network = make_network(arguments.network)
        self.network = FaultyNetwork(network, self.fault) if arguments.fault in ("more_products", "lock_in_forward") else network
        kind = torch.optim.AdamW if arguments.optimizer == "adamw" else torch.optim.SGD
        self.optimizer = kind(self.network.parameters(), lr=1e-3, **({"fused": True} if arguments.optimizer == "adamw" else {}))
        if arguments.fault == "collected_garbage":
            gc.collect()
            gc.freeze()  # Of what torch holds, one collection would take longer than the fault may cost.
            self.kept = [[i] for i in range(20_000)]
        self.work = arguments.repeats  # Forwards of a batch, so that a step takes as long as one of a job's.
        if arguments.fault in ("spin_in_update", "loop_over_parameters"):
            self.optimizer.step = FaultyUpdate(self.optimizer, self.fault)

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
        end = time.thread_time() + self.fault.of("conversions")
        while time.thread_time() < end:
            features = features.to(torch.float64).to(torch.float32)
        self.optimizer.zero_grad()
        many, wanted = features.repeat(self.work, 1), labels.repeat(self.work)
        nn.functional.cross_entropy(self.network(many), wanted).backward()
        self.optimizer.step()
        self.body()

    def body(self) -> None:
        spin(self.fault.of("metrics_in_python"))
        if seconds := self.fault.of("sleep_in_body"):
            time.sleep(seconds)
        self.touch_pages(self.fault.of("fresh_pages"))
        if seconds := self.fault.of("collected_garbage"):
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


def measure(loop: Loop, share: float) -> dict:
    """Blocks without and with the fault in turns."""
    loop.compute_s[0] = compute_seconds(loop)
    base = statistics.median(loop.steps(BLOCK)[SKIPPED:])
    fault_s = share / (1 - share) * base
    found: dict[bool, list[float]] = {False: [], True: []}
    for block in range(2 * BLOCKS):
        on = block % 4 in (1, 2)
        loop.fault.set(on, fault_s)
        with around(loop.fault, share) if on else contextlib.nullcontext():
            found[on].append(statistics.fmean(loop.steps(BLOCK)[SKIPPED:]))
    gains = [with_it / without - 1 for with_it, without in zip(found[True], found[False])]
    return {"gain": statistics.median(gains), "base_s": base, "fault_ms": fault_s * 1e3, "compute_ms": loop.compute_s[0] * 1e3}


def train(loop: Loop, arguments: argparse.Namespace) -> None:
    loop.compute_s[0] = arguments.compute_ms * 1e-3
    loop.fault.set(bool(arguments.fault), arguments.fault_ms * 1e-3)
    with around(loop.fault, arguments.share):
        loop.steps(arguments.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="cnn", choices=("mlp", "cnn", "attention"))
    parser.add_argument("--optimizer", default="sgd", choices=("sgd", "adamw"))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--fault", default="")
    parser.add_argument("--fault-ms", type=float, default=0.0, help="a step")
    parser.add_argument("--compute-ms", type=float, default=0.0, help="of a step, as --measure found it")
    parser.add_argument("--share", type=float, default=0.15)
    parser.add_argument("--repeats", type=int, default=16, help="of each batch's samples")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    loop = Loop(arguments)
    if arguments.measure:
        print(json.dumps(measure(loop, arguments.share)))
    else:
        train(loop, arguments)


if __name__ == "__main__":
    main()
