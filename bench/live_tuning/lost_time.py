"""How far a run with hr.autotune is behind the untouched one at each tenth of it; hr.tune with trials in front beside it.

usage: make bench NAME=live-tuning ARGS='lost-time --minutes 140'

Three scripts whose steps take about 1, 50 and 300 ms, each for the steps that 5 min hold, with --seeds seeds. Untouched and
hr.autotune are processes of their own, in drawn order for each seed, and so is hr.tune (60 s in front) for the first
--tune-seeds of them. Time counts from the moment before the call of either to the end of a step. Wanted at each tenth, median
of the seeds: at most 10 s and 2 % of the run behind.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import harness
import rows
from live_tuning import scripts_known

SCRIPTS = ("tabular_mlp", "char_lstm", "vit")
UNTOUCHED, AUTOTUNED, TUNED = ARMS = ("untouched", "autotuned", "tuned")
SEEDS = 3
RUN_S = 300.0
TUNE_S = 60.0
LOST_S, LOST_SHARE = 10.0, 0.02


def items(name: str, found: rows.Rows, arguments: argparse.Namespace) -> Iterator[rows.Item]:
    run_s, tune_s = (2.0, 2.0) if arguments.quick else (RUN_S, TUNE_S)
    yield rows.Item({"script": name, "what": "step"}, 20, lambda: scripts_known.step_seconds(name, arguments.quick))
    step = found.figures(script=name, what="step")
    if step is None:
        return
    steps = max(20, math.ceil(run_s / step["step_s"]))
    more = {UNTOUCHED: {}, AUTOTUNED: {"allow": arguments.allow}, TUNED: {"budget_s": tune_s}}
    for seed, order in zip(range(1, arguments.seeds + 1), harness.orders(len(ARMS), arguments.order_seed)):
        for arm in (ARMS[place] for place in order):
            if arm == TUNED and seed > arguments.tune_seeds:
                continue
            yield rows.Item({"script": name, "what": "run", "arm": arm, "seed": seed}, 20 + run_s + tune_s * (arm == TUNED),
                            lambda arm=arm, seed=seed: scripts_known.play(name, arm, steps, seed, **more[arm]))


def behind_s(untouched: Sequence[float], other: Sequence[float]) -> list[float]:
    return [late - early for early, late in zip(untouched, other, strict=True)]


def judge(runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """Of pairs of an untouched run and the other: seconds behind at each tenth (medians), what is allowed, whether it holds."""
    tenths = [statistics.median(at) for at in zip(*(behind_s(plain["tenths_s"], other["tenths_s"]) for plain, other in runs))]
    allowed = LOST_S + LOST_SHARE * statistics.median(plain["tenths_s"][-1] for plain, _ in runs)
    return {"behind_s": tenths, "allowed_s": allowed, "met": max(tenths) <= allowed}


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--tune-seeds", type=int, default=1, help="of these also with hr.tune")
    parser.add_argument("--allow", choices=("bit_equal", "rounding", "reduced_precision"), default="reduced_precision")
    scripts_known.add_options(parser, SCRIPTS)
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    names = scripts_known.runnable(arguments)
    bench = harness.Bench(__file__, arguments, f"lost time: {', '.join(names)}, {arguments.seeds} seeds")
    found = rows.open_rows(arguments, "lost_time")
    session = rows.Session(found, arguments.minutes)
    complete = all(session.run(items(name, found, arguments)) for name in names)
    whole = complete and not session.lacks and arguments.seeds >= SEEDS and set(SCRIPTS) <= set(names)
    lines, verdicts, bars = [], {}, []
    for name, arm in itertools.product(names, ARMS[1:]):
        by_seed = [{key["arm"]: figures for key, figures in found.found(script=name, what="run", seed=seed)}
                   for seed in range(1, arguments.seeds + 1)]
        pairs = [(runs[UNTOUCHED], runs[arm]) for runs in by_seed if UNTOUCHED in runs and arm in runs]
        if not pairs:
            continue
        verdict = verdicts[f"{name}, {arm}"] = judge(pairs)
        lines.append([name, arm, str(len(pairs)), *(f"{seconds:+.1f}" for seconds in verdict["behind_s"]),
                      f"{verdict['allowed_s']:.1f}"])
        if arm == AUTOTUNED:
            bars.append(rows.Bar(f"{name}: most that it is behind at a tenth of the run",
                                 f"{verdict['allowed_s']:.1f} s (10 s and 2 % of the run) at most",
                                 f"{max(verdict['behind_s']):+.1f} s", rows.at_the_end(verdict["met"], whole)))
    if lines:
        print("\nseconds behind the untouched run at each tenth of it, medians of the seeds")
        print(harness.table(["script", "arm", "seeds", *map(str, range(1, 11)), "allowed"], lines, left=(0, 1)))
    return bench.end(verdicts, rows.tell(session, complete, bars))
