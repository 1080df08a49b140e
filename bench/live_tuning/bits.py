"""Whether runs have the bits that they should: with allow="bit_equal" those of the untouched run, repeated from a ledger those of
the run that wrote it.

usage: make bench NAME=live-tuning ARGS='bits --minutes 60'

Each script makes the steps of --seconds as written, once untouched, once with hr.autotune(allow="bit_equal"), once with
--allow and a ledger, and once more with replay= and that ledger, each in a process of its own with the same seed. Compared is a
hash of every parameter, buffer and state of the optimizers. A script whose untouched run has other bits the second time tells
nothing, and is named; so is one whose ledger has no turns, as there is nothing to repeat. Where hr.autotune gave up, bits are
equal for no merit of its own, and count as others.
"""

import argparse
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import harness
import rows
from live_tuning import scripts_known

UNTOUCHED, AGAIN, BIT_EQUAL, FIRST, REPEATED = "untouched", "untouched again", "bit_equal", "tuned", "repeated"
PAIRS = ((BIT_EQUAL, UNTOUCHED), (REPEATED, FIRST))  # A run and that whose bits it should have.


def ledger_of(name: str, arguments: argparse.Namespace) -> Path:
    """The folder that the first run of a script writes its ledger to: one for each row, as another run would overwrite it. It
    goes once the run is repeated."""
    options = f"{arguments.allow}-{arguments.seconds:g}s"
    return (arguments.rows / f"bits{'-quick' * arguments.quick}" / options / name).resolve()


def key_of(name: str, run: str, arguments: argparse.Namespace) -> dict[str, Any]:
    allow = {"allow": arguments.allow} if run in (FIRST, REPEATED) else {}
    return {"script": name, "what": "run", "run": run, "seconds": arguments.seconds, **allow}


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
            wanted = {key: figures[key] for key in ("steps", "seconds", "digest", "kept", "problem") if key in figures}
            return {**wanted, "turns": len(figures["ledger"]["turns"])} if "ledger" in figures else wanted

        return rows.Item(key_of(name, run, arguments), 15 + steps * step["step_s"], work)

    yield item(UNTOUCHED, "untouched")
    yield item(BIT_EQUAL, "autotuned", allow="bit_equal")
    yield item(FIRST, "autotuned", allow=arguments.allow, out=str(out))
    if found.has(key_of(name, FIRST, arguments)):
        yield item(REPEATED, "replayed", ledger=str(out / "ledger.json"))
    if found.has(key_of(name, REPEATED, arguments)):
        shutil.rmtree(out, ignore_errors=True)
    runs = runs_of(found, name, arguments)
    if differs(runs, BIT_EQUAL, UNTOUCHED) or differs(runs, REPEATED, FIRST):
        yield item(AGAIN, "untouched")


def runs_of(found: rows.Rows, name: str, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    keys = {run: key_of(name, run, arguments) for run in (UNTOUCHED, AGAIN, BIT_EQUAL, FIRST, REPEATED)}
    return {run: found.figures(**key) for run, key in keys.items() if found.has(key)}


def differs(runs: Mapping[str, Mapping[str, Any]], run: str, other: str) -> bool:
    return run in runs and other in runs and runs[run]["digest"] != runs[other]["digest"]


def turns_of(runs: Mapping[str, Mapping[str, Any]], run: str) -> int:
    """Of the run's own ledger, or of that which it repeats."""
    return runs[FIRST if run == REPEATED else run]["turns"]


def judge(runs: Mapping[str, Mapping[str, Any]], run: str, other: str) -> bool | None:
    """Whether the run has the bits of the other; None: it repeats nothing, and shows nothing."""
    if differs(runs, run, other) or runs[run]["problem"]:
        return False
    return None if run == REPEATED and not turns_of(runs, run) else True


def bar_of(what: str, verdicts: Mapping[str, bool | None], steady: int, whole: bool) -> rows.Bar:
    """verdicts: by script, of judge(). steady: scripts whose own bits repeat."""
    nothing = [name for name, verdict in verdicts.items() if verdict is None]
    shown = [verdict for verdict in verdicts.values() if verdict is not None]
    without = f"; a ledger without turns, which shows nothing: {', '.join(nothing)}" if nothing else ""
    return rows.Bar(what, f"in every script whose own bits repeat ({steady})", f"in {sum(shown)} of {len(shown)}{without}",
                    rows.once_complete(all(shown), whole and bool(shown) and not nothing))


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
        runs = runs_of(found, name, arguments)
        if differs(runs, AGAIN, UNTOUCHED):
            unsteady.append(name)
            continue
        for run, other in PAIRS:
            if run not in runs or other not in runs:
                continue
            verdict = equal[run][name] = judge(runs, run, other)
            bits = "OTHER BITS" if differs(runs, run, other) else "equal" if verdict else "equal, which shows nothing"
            lines.append([name, f"{run} to {other}", bits, str(runs[run]["steps"]), str(turns_of(runs, run)),
                          ", ".join(runs[run]["kept"]) or "nothing", runs[run]["problem"] or ""])
    if lines:
        headings = ["script", "runs", "bits", "steps", "turns", "kept", "problem"]
        print("\n" + harness.table(headings, lines, left=(0, 1, 2, 5, 6)))
    if unsteady:
        print(f"the untouched run has other bits the second time, and tells nothing: {', '.join(unsteady)}")
    whole = complete and not session.lacks and set(names) == set(scripts_known.SCRIPTS) and not arguments.quick
    bars = [bar_of(what, equal[run], len(names) - len(unsteady), whole)
            for what, run in (('bits of the untouched run with allow="bit_equal"', BIT_EQUAL),
                              ("bits of the first run where it is repeated", REPEATED))]
    return bench.end({"equal": equal, "unsteady": unsteady}, rows.tell(session, complete, bars))
