#!/usr/bin/env python3
"""Does memory grow while a job trains? Runs `headrace train` for some minutes and watches what it holds.

An epoch's peak is exact: the kernel's high-water mark of the resident size (VmHWM), set back every second and at each end
of an epoch; evaluation and checkpoint belong to the epoch before. Later epochs are compared with the first. Exits with 1
when one of them peaks more than --growth above it.

usage: make bench NAME=memory
"""

import dataclasses
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

PROGRAM = harness.PROGRAMS / "headrace"
EPOCH_END = re.compile(r"^epoch (\d+)/\d+ ")
STOPPED = (0, 143)  # Done before its time, or stopped by our SIGTERM after a checkpoint.
SHOWN_A_LINE = 12


@dataclasses.dataclass
class Sample:
    """Bytes of the process: at one moment, and the most since the sample before."""

    epoch: int
    resident: int
    peak: int


class MemoryWatch:
    """Samples of one process, by epoch. Its methods may be called from any thread."""

    def __init__(self, process: int):
        self.samples: list[Sample] = []
        self._folder = Path(f"/proc/{process}")
        self._epoch = 1
        self._lock = threading.Lock()

    def sample(self, epoch_ends: bool = False) -> None:
        """Adds a sample and sets the high-water mark back to what is resident now. Nothing, when the process has ended."""
        with self._lock:
            try:
                fields = dict(line.split(":", 1) for line in (self._folder / "status").read_text().splitlines())
                resident, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
                (self._folder / "clear_refs").write_text("5")
            except (OSError, KeyError):
                return
            self.samples.append(Sample(self._epoch, resident, peak))
            self._epoch += epoch_ends


class LineReader(threading.Thread):
    """Reads the program's lines, so that its pipe never fills, and tells the watch when an epoch ends."""

    def __init__(self, lines: Iterable[str], watch: MemoryWatch):
        super().__init__(daemon=True)
        self.tail: list[str] = []
        self._lines = lines
        self._watch = watch

    def run(self) -> None:
        for line in self._lines:
            self.tail = [*self.tail[-9:], line.rstrip()]
            if EPOCH_END.match(line):
                self._watch.sample(epoch_ends=True)


def sample_training(command: list[str], seconds: float, every_s: float) -> list[Sample]:
    """Starts the command and stops it by SIGTERM after `seconds`."""
    with harness.started(command, output=subprocess.DEVNULL) as process:
        watch = MemoryWatch(process.pid)
        reader = LineReader(process.stderr, watch)
        reader.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(every_s)
            watch.sample()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        status = process.wait()
        reader.join()
    if status not in STOPPED:
        raise harness.ProgramFailed(command, f"ended with status {status}", "\n".join(reader.tail))
    return watch.samples


def peaks(samples: list[Sample]) -> dict[int, int]:
    """Largest resident size in each epoch."""
    found: dict[int, int] = {}
    for sample in samples:
        found[sample.epoch] = max(found.get(sample.epoch, 0), sample.peak)
    return found


def report(samples: list[Sample]) -> float:
    """Prints the peaks. Returns the largest growth over the first epoch, as a share of it."""
    by_epoch = peaks(samples)
    if len(by_epoch) < 3:
        raise SystemExit(f"{len(by_epoch)} epochs were begun, wanted the first and two more: give --minutes more")
    first = by_epoch.pop(1)
    growths = [peak / first - 1 for peak in by_epoch.values()]
    print(f"peak of epoch 1: {first / 1e6:.1f} MB; of each of the {len(growths)} later epochs, against it:")
    for begin in range(0, len(growths), SHOWN_A_LINE):
        print("  " + " ".join(f"{growth:+7.2%}" for growth in growths[begin:begin + SHOWN_A_LINE]))
    middle = statistics.median(by_epoch.values())
    print(f"largest {max(growths):+.2%}, last {growths[-1]:+.2%}")
    print(f"the later epochs among themselves: {min(by_epoch.values()) / middle - 1:+.2%} to "
          f"{max(by_epoch.values()) / middle - 1:+.2%} around their median of {middle / 1e6:.1f} MB")
    return max(growths)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--recipe", type=Path, default=harness.ROOT / "examples" / "photos_small.toml")
    parser.add_argument("--allocator", choices=("arena", "system"), default="arena", help="compute.allocator; arena is Headrace's default")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("--growth", type=float, default=0.02, help="largest growth allowed, as a share (0.02: 2 %%)")
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, f"{arguments.minutes:g} minutes of {arguments.recipe}, tensors in: {arguments.allocator}")
    with tempfile.TemporaryDirectory(prefix="headrace-memory-") as folder:
        command = [str(PROGRAM), "train", str(arguments.recipe.resolve()), "--train.epochs", "100000", "--compute.allocator", arguments.allocator,
                   "--out", f"{folder}/run"]
        samples = sample_training(command, arguments.minutes * 60, arguments.every)
    growth = report(samples)
    flat = growth <= arguments.growth
    print(f"flat within {arguments.growth:.1%} after the first epoch: {'yes' if flat else 'no'}")
    return bench.end({"growth": growth, "samples": [dataclasses.asdict(sample) for sample in samples]}, 0 if flat else 1)


if __name__ == "__main__":
    sys.exit(main())
