#!/usr/bin/env python3
"""Does memory grow while a job trains? Runs `headrace train` for some minutes and samples what it holds every second.

An epoch's peak is the largest resident size (VmRSS) sampled in it, its evaluation and its checkpoint included. Later epochs
are compared with the first; so is the kernel's own high-water mark (VmHWM), which no sample can miss. Exits with 1 when one
of them is more than --growth above the first epoch's.
"""

import argparse
import dataclasses
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "headrace"
EPOCH_END = re.compile(r"^epoch (\d+)/\d+ ")
STOPPED = (0, 143)  # Done before its time, or stopped by our SIGTERM after a checkpoint.
SHOWN_A_LINE = 12


@dataclasses.dataclass
class Sample:
    """Bytes of the process at one moment."""

    epoch: int
    resident: int
    high_water: int


def read_memory(process: int) -> tuple[int, int] | None:
    """VmRSS and VmHWM in bytes; None when the process has ended."""
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) * 1024, int(fields["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        return None


class EpochCounter(threading.Thread):
    """Reads the program's lines, so that its pipe never fills; `epoch` is the one it is in, from 1."""

    def __init__(self, lines: Iterable[str]):
        super().__init__(daemon=True)
        self.epoch = 1
        self.tail: list[str] = []
        self._lines = lines

    def run(self) -> None:
        for line in self._lines:
            self.tail = [*self.tail[-9:], line.rstrip()]
            if match := EPOCH_END.match(line):
                self.epoch = int(match.group(1)) + 1


def sample_training(command: list[str], seconds: float, every_s: float) -> list[Sample]:
    """Starts the command and stops it by SIGTERM after `seconds`."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    counter = EpochCounter(process.stderr)
    counter.start()
    samples = []
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(every_s)
            epoch = counter.epoch  # Before the memory: what is held after an epoch's end must not count for the next.
            if (memory := read_memory(process.pid)) is not None:
                samples.append(Sample(epoch, *memory))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        status = process.wait()
        counter.join()
    if status not in STOPPED:
        raise SystemExit(f"{' '.join(command)}\nended with status {status}:\n" + "\n".join(counter.tail))
    return samples


def peaks(samples: list[Sample]) -> dict[int, int]:
    """Largest resident size of each epoch that was sampled."""
    found: dict[int, int] = {}
    for sample in samples:
        found[sample.epoch] = max(found.get(sample.epoch, 0), sample.resident)
    return found


def high_water_growth(samples: list[Sample]) -> float:
    """Of the high-water mark after the first epoch, as a share of the one in it."""
    first = max(sample.high_water for sample in samples if sample.epoch == 1)
    return max(sample.high_water for sample in samples) / first - 1


def report(samples: list[Sample]) -> float:
    """Prints the peaks. Returns the largest growth over the first epoch, as a share of it."""
    by_epoch = peaks(samples)
    if 1 not in by_epoch or len(by_epoch) < 3:
        raise SystemExit(f"only epochs {sorted(by_epoch)} were sampled, wanted the first and two more: give --minutes more")
    first = by_epoch.pop(1)
    growths = [peak / first - 1 for peak in by_epoch.values()]
    print(f"peak of epoch 1: {first / 1e6:.1f} MB; of the {len(growths)} later epochs sampled, to {max(by_epoch)}, in % above it:")
    for begin in range(0, len(growths), SHOWN_A_LINE):
        print("  " + " ".join(f"{growth:+6.2%}" for growth in growths[begin:begin + SHOWN_A_LINE]))
    high_water = high_water_growth(samples)
    print(f"largest {max(growths):+.2%}, last {growths[-1]:+.2%}; high-water mark {high_water:+.2%}")
    return max(*growths, high_water)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, default=ROOT / "examples" / "photos_small.toml")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("--growth", type=float, default=0.02, help="largest growth allowed, as a share (0.02: 2 %%)")
    parser.add_argument("--json", type=Path, help="also write all samples to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-memory-") as folder:
        command = [str(PROGRAM), "train", str(arguments.recipe.resolve()), "--train.epochs", "100000", "--out", f"{folder}/run"]
        print(f"{arguments.minutes:g} minutes of {arguments.recipe}", flush=True)
        samples = sample_training(command, arguments.minutes * 60, arguments.every)
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(sample) for sample in samples]) + "\n")
    growth = report(samples)
    flat = growth <= arguments.growth
    print(f"flat within {arguments.growth:.1%} after the first epoch: {'yes' if flat else 'no'}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
