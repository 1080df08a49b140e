"""How far a run with hr.autotune is behind the untouched one at each tenth of it; hr.tune with trials in front beside it.

usage: make bench NAME=live-tuning ARGS='lost-time --minutes 140'

Three scripts whose steps take about 1, 50 and 300 ms, each for the steps that 5 min hold, with --seeds seeds. Untouched and
hr.autotune are processes of their own, in drawn order for each seed, and so is hr.tune (60 s in front) for the first
--tune-seeds of them. Time counts from the moment before the call of either to the end of a step. Wanted at each tenth, median
of the seeds: at most 10 s and 2 % of the run behind, and no run in which hr.autotune gave up, which loses nothing.
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


def key_of(name: str, arm: str, seed: int, allow: str) -> dict[str, Any]:
    return {"script": name, "what": "run", "arm": arm, "seed": seed, **({"allow": allow} if arm == AUTOTUNED else {})}


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
            yield rows.Item(key_of(name, arm, seed, arguments.allow), 20 + run_s + tune_s * (arm == TUNED),
                            lambda arm=arm, seed=seed: scripts_known.play(name, arm, steps, seed, **more[arm]))


def behind_s(untouched: Sequence[float], other: Sequence[float]) -> list[float]:
    return [late - early for early, late in zip(untouched, other, strict=True)]


def judge(runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """Of pairs of an untouched run and the other: seconds behind at each tenth (medians), what is allowed, what each pair is
    behind at its worst tenth, what hr.autotune gave up for, and whether it holds."""
    behind = [behind_s(plain["tenths_s"], other["tenths_s"]) for plain, other in runs]
    tenths = [statistics.median(at) for at in zip(*behind)]
    allowed = LOST_S + LOST_SHARE * statistics.median(plain["tenths_s"][-1] for plain, _ in runs)
    problems = [other["problem"] for _, other in runs if other.get("problem")]
    return {"behind_s": tenths, "allowed_s": allowed, "worst_s": [max(own) for own in behind], "problems": problems,
            "met": max(tenths) <= allowed and not problems}


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
    whole = (complete and not session.lacks and arguments.seeds >= SEEDS and set(SCRIPTS) <= set(names)
             and not arguments.quick)
    lines, of_seeds, verdicts, bars = [], [], {}, []
    for name, arm in itertools.product(names, ARMS[1:]):
        by_seed = {seed: tuple(found.figures(**key_of(name, each, seed, arguments.allow)) for each in (UNTOUCHED, arm))
                   for seed in range(1, arguments.seeds + 1)}
        by_seed = {seed: pair for seed, pair in by_seed.items() if None not in pair}
        if not by_seed:
            continue
        verdict = verdicts[f"{name}, {arm}"] = judge(list(by_seed.values()))
        lines.append([name, arm, str(len(by_seed)), *(f"{seconds:+.1f}" for seconds in verdict["behind_s"]),
                      f"{verdict['allowed_s']:.1f}"])
        of_seeds += [[name, arm, str(seed), f"{worst:+.1f}", ", ".join(run["kept"]) or "nothing", run.get("problem") or ""]
                     for (seed, (_, run)), worst in zip(by_seed.items(), verdict["worst_s"], strict=True)]
        if arm == AUTOTUNED:
            problems = "".join(f"; {problem}" for problem in dict.fromkeys(verdict["problems"]))
            bars.append(rows.Bar(f"{name}: most that it is behind at a tenth of the run",
                                 f"{verdict['allowed_s']:.1f} s (10 s and 2 % of the run) at most",
                                 f"{max(verdict['behind_s']):+.1f} s{problems}", rows.at_the_end(verdict["met"], whole)))
    if lines:
        print("\nseconds behind the untouched run at each tenth of it, medians of the seeds")
        print(harness.table(["script", "arm", "seeds", *map(str, range(1, 11)), "allowed"], lines, left=(0, 1)))
        print("\n" + harness.table(["script", "arm", "seed", "worst tenth, s", "kept", "problem"], of_seeds, left=(0, 1, 4, 5)))
    return bench.end(verdicts, rows.tell(session, complete, bars))
