#!/usr/bin/env python3
"""What `import headrace` takes, alone and beside torch, and what the command takes to print its help. Each in a new Python, interleaved;
imports by a clock around them, the command from its start to its end. Ends with 1 where a median is over its bar.

usage: make bench NAME=import-time
"""

import importlib.util
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

BARS_MS = {"import headrace": 150, "beside torch": 80, "--help": 150}
TIMED = "import time; begin = time.perf_counter(); import headrace; print(time.perf_counter() - begin)"


def arms(environment: dict[str, str]) -> list[harness.Arm]:
    def python(*words: str) -> harness.Finished:
        return harness.run([sys.executable, *words], environment, folder=Path("/"))

    made = [harness.Arm("import headrace", lambda _: 1e3 * float(python("-c", TIMED).output)),
            harness.Arm("--help", lambda _: 1e3 * python("-m", "headrace", "--help").seconds)]
    if importlib.util.find_spec("torch") is not None:
        made.append(harness.Arm("beside torch", lambda _: 1e3 * float(python("-c", f"import torch; {TIMED}").output)))
    return made


def main() -> int:
    parser = harness.parser(__doc__, rounds=15)
    parser.add_argument("--installed", action="store_true", help="of the package that this Python has installed, not of the build tree")
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds, {sys.executable}")
    found = bench.measure(arms({} if arguments.installed else harness.python_path()), arguments.rounds, warm_up=1)
    print(harness.arms_table(found, "ms", digits=1), flush=True)
    medians = {name: statistics.median(values) for name, values in found.items()}
    missed = [name for name, ms in medians.items() if ms > BARS_MS[name]]
    print("; ".join(f"{name}: at most {BARS_MS[name]} ms, {'missed' if name in missed else 'met'}" for name in medians), flush=True)
    return bench.end(medians, int(bool(missed)))


if __name__ == "__main__":
    sys.exit(main())
