"""Calls export_probe, which writes what our exporters make. For trace_exports_test.py and for readers/export_readers_test.py, whose environment
has no headrace: the standard library alone."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROBE = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin")) / "export_probe"
HISTOGRAM = {"upper_bounds": [0.5, 1.5], "counts": [3, 0, 2], "sum": 7.5, "sum_of_squares": 20.25, "min": 0.25, "max": 2.5}


def probe(*words) -> None:
    done = subprocess.run([PROBE, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def write_metrics(folder: Path, steps: list[list[dict]]) -> None:
    """The metrics of each step in every form, into the folder."""
    (folder / "in.json").write_text(json.dumps(steps))
    probe("metrics", folder / "in.json", folder)


def events_of_a_killed_writer(folder: Path) -> bytes:
    """The event file of a writer that was killed in its midst: value and step are 0, 1, 2, ..."""
    writer = subprocess.Popen([PROBE, "endless", folder])
    try:
        deadline = time.monotonic() + 30
        while not (paths := list(folder.glob("events.*"))) or paths[0].stat().st_size < 10_000:
            assert time.monotonic() < deadline and writer.poll() is None
            time.sleep(0.002)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    return paths[0].read_bytes()
