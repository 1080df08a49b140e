"""Whether runs have the bits that they should: with allow="bit_equal" those of the untouched run, repeated from a ledger those of
the run that wrote it.

usage: make bench NAME=live-tuning ARGS='bits --minutes 60'

Each script makes the steps of --seconds as written, once untouched, once with hr.autotune(allow="bit_equal"), once with
--allow and a ledger, and once more with replay= and that ledger, each in a process of its own with the same seed. Compared is a
hash of every parameter, buffer and state of the optimizers. A script whose untouched run has other bits the second time tells
nothing, and is named.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import rows
from live_tuning import scripts_known

UNTOUCHED, AGAIN, BIT_EQUAL, FIRST, REPEATED = "untouched", "untouched again", "bit_equal", "tuned", "repeated"


def ledger_of(name: str, arguments: argparse.Namespace) -> Path:
    """The folder that the first run of a script writes its ledger to."""
    return (arguments.rows / f"bits{'-quick' * arguments.quick}" / name).resolve()


def items(name: str, found: rows.Rows, arguments: argparse.Namespace) -> Iterator[rows.Item]:
    yield rows.Item({"script": name, "what": "step"}, 20, lambda: scripts_known.step_seconds(name, arguments.quick))
    step = found.figures(script=name, what="step")
    if step is None:
        return
    steps = max(30, math.ceil(arguments.seconds / step["step_s"]))
    out = ledger_of(name, arguments)

    def item(run: str, arm: str, **more: Any) -> rows.Item:
        def work() -> dict[str, Any]:
            figures = scripts_known.play(name, arm, steps, digest=True, **more)
            return {key: figures[key] for key in ("steps", "seconds", "digest", "kept", "problem") if key in figures}

        return rows.Item({"script": name, "what": "run", "run": run}, 15 + steps * step["step_s"], work)

    yield item(UNTOUCHED, "untouched")
    yield item(BIT_EQUAL, "autotuned", allow="bit_equal")
    yield item(FIRST, "autotuned", allow=arguments.allow, out=str(out))
    if found.has({"script": name, "what": "run", "run": FIRST}):
        yield item(REPEATED, "replayed", ledger=str(out / "ledger.json"))
    runs = runs_of(found, name)
    if differs(runs, BIT_EQUAL, UNTOUCHED) or differs(runs, REPEATED, FIRST):
        yield item(AGAIN, "untouched")


def runs_of(found: rows.Rows, name: str) -> dict[str, dict[str, Any]]:
    return {key["run"]: figures for key, figures in found.found(script=name, what="run")}


def differs(runs: dict[str, dict[str, Any]], run: str, other: str) -> bool:
    return run in runs and other in runs and runs[run]["digest"] != runs[other]["digest"]


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="that the untouched run takes (%(default)s)")
    parser.add_argument("--allow", choices=("rounding", "reduced_precision"), default="reduced_precision",
                        help="of the run that is repeated")
    scripts_known.add_options(parser)
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    arguments.seconds = min(arguments.seconds, 1.0) if arguments.quick else arguments.seconds
    names = scripts_known.runnable(arguments)
    bench = harness.Bench(__file__, arguments, f"bits: {len(names)} scripts, {arguments.seconds:g} s a run")
    found = rows.open_rows(arguments, "bits")
    session = rows.Session(found, arguments.minutes)
    complete = all(session.run(items(name, found, arguments)) for name in names)
    lines, equal, unsteady = [], {BIT_EQUAL: {}, REPEATED: {}}, []
    for name in names:
        runs = runs_of(found, name)
        if differs(runs, AGAIN, UNTOUCHED):
            unsteady.append(name)
            continue
        for run, other in ((BIT_EQUAL, UNTOUCHED), (REPEATED, FIRST)):
            if run not in runs or other not in runs:
                continue
            equal[run][name] = not differs(runs, run, other)
            lines.append([name, f"{run} to {other}", "equal" if equal[run][name] else "OTHER BITS", str(runs[run]["steps"]),
                          ", ".join(runs[run]["kept"]) or "nothing", runs[run]["problem"] or ""])
    if lines:
        print("\n" + harness.table(["script", "runs", "bits", "steps", "kept", "problem"], lines, left=(0, 1, 2, 4, 5)))
    if unsteady:
        print(f"the untouched run has other bits the second time, and tells nothing: {', '.join(unsteady)}")
    whole = complete and not session.lacks and set(names) == set(scripts_known.SCRIPTS)
    bars = [rows.Bar(what, f"in every script whose own bits repeat ({len(names) - len(unsteady)})",
                     f"in {sum(equal[run].values())} of {len(equal[run])}", rows.once_complete(all(equal[run].values()), whole))
            for what, run in (('bits of the untouched run with allow="bit_equal"', BIT_EQUAL),
                              ("bits of the first run where it is repeated", REPEATED))]
    return bench.end({"equal": equal, "unsteady": unsteady}, rows.tell(session, complete, bars))
