#!/usr/bin/env python3
"""Live tuning (hr.autotune) against its bars: decisions, foreign scripts, lost time, a grid, hooks, the numeric gate, loaders.

usage: make bench NAME=live-tuning ARGS='PART [OPTION...]'        `PART --help` tells the options
       make bench NAME=live-tuning ARGS=environments              makes what a part installs when it first needs it, and no more

Each part appends rows to runs/live_tuning/ and goes on where the call before it ended, also where that was killed: what has a row
is never measured again, so that the first run counts. --minutes N ends a call after about N minutes. An item that fails leaves
the others alone, is tried again by the next call, and is left alone once it has failed twice. A part ends with a line for each
of its bars: "bar: wanted X, found Y: met". Exit status 3: a bar is missed that is no stretch. --quick makes everything tiny.
Chain calls with ';' and not with '&&', since a missed bar ends a call with 3. --rows DIR keeps the rows elsewhere, such as in
docs/measured/live_tuning, which is in the repository.

All of it, on two cores, in calls of at most 145 minutes; with minutes as estimated, not measured:

  ARGS='gate --minutes 15'           5     ARGS='hooks --minutes 10'          6
  ARGS='recordings --minutes 20'    16     five jobs of 3 min; before hooks, which takes a step of one of them
  ARGS='lost-time --minutes 140'   115     3 scripts x 3 seeds x 2 arms x 5.3 min; hr.tune with one seed each, 6.3 min
  ARGS='rerun --minutes 145'       230     live 12 x 5.3; pairs: 9 scripts x 7 changes x 0.5, 3 slow ones x 9 x 1.3; compiling
                                           11 x 1.3; gradients 12 x 0.7; loading more. Again until it says that all is measured
  ARGS='grid --minutes 145'        230     reads the rows of rerun, whose live runs are not made again. Cells 12 x 3 to 6 (16 of
                                           20 s at most), Optuna 12 x 5, the best once more beside ours 12 x 2, compiling in
                                           each of them; again, too
  ARGS='loaders --minutes 145'     100     to 170: 18 truths x 1.2; 90 runs of 0.5 to 3, those of nothing the longest
  ARGS='decisions --minutes 120'    60     reads the recordings; computes, and measures nothing by the clock: the machine need
                                           not be quiet, but it should not run beside a part that does
  ARGS='traps --minutes 60'         50     20 seeds x 5 cases
  ARGS='bits --minutes 60'          35     12 scripts x 4 runs of 30 s and a start

  ARGS='on-cuda --minutes 8'         6     on a machine with a CUDA device: 5 loops x 1 min, hooks

In sessions of 150 minutes: gate, recordings, hooks, lost-time; rerun twice; grid twice; loaders; decisions, traps, bits.
`make check ON=gpu` checks the times of events and what is no matter of time.
"""

import ast
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

HERE = Path(__file__).resolve().parent
PARTS = ("recordings", "decisions", "rerun", "grid", "lost_time", "hooks", "gate", "loaders", "bits", "traps", "on_cuda")
ENVIRONMENTS = "environments"


def listing() -> str:
    width = max(map(len, PARTS))
    about = {part: ast.get_docstring(ast.parse((HERE / f"{part}.py").read_text())).split("\n\n")[0] for part in PARTS}
    return "\n".join(f"{part.replace('_', '-'):<{width}}  {' '.join(text.split())}" for part, text in about.items())


def make_environments() -> int:
    from live_tuning import scripts_known

    reasons = {name: scripts_known.why_missing(name) for name in scripts_known.ENVIRONMENTS}
    for name, reason in reasons.items():
        print(f"{name}: {reason or scripts_known.packages_of(name)}")
    return 1 if any(reasons.values()) else 0


def main() -> int:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(f"{__doc__.strip()}\n\n{listing()}")
        return 0 if words else 2
    if words == [ENVIRONMENTS]:
        return make_environments()
    part = words[0].replace("-", "_")
    if part not in PARTS:
        known = ", ".join(name.replace("_", "-") for name in (*PARTS, ENVIRONMENTS))
        print(f"live-tuning: wanted one of {known}, found {words[0]}", file=sys.stderr)
        return 2
    return importlib.import_module(f"live_tuning.{part}").main(words[1:])


if __name__ == "__main__":
    sys.exit(main())
