"""What hr.autotune leaves in force against the best cell of a grid, what Optuna finds in as many steps, and pytorch-autotune.

usage: make bench NAME=live-tuning ARGS='grid --minutes 140'        after ARGS='rerun', whose rows it reads

The grid is over the knobs that alone change the step by 3 % or more in the script's re-run, the largest first, at most 16 cells
of 20 s each, which take turns in one process. Changes whose gradients are too far off there are in no cell. Then the best cell,
the loop as written, hr.autotune's settings (of the live run of `rerun`) and Optuna's best take turns in one process, 30 rounds of
a second each, so that the best is measured anew: ratios are within a round. Settings that are those of the best cell have the
ratio 1. pytorch-autotune's one call makes its own objects: where it switches anything on here, it and the best cell run as
processes in drawn order, --rounds times. Wanted: 0.95 of the best cell's speed in 10 of 12 scripts, 0.9 in all.

A run of 5 min does not earn back what torch.compile takes to prepare, and a cell has its speed without that: beside the bar
stands what it would be against the best cell without torch.compile.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import harness
import rows
from live_tuning import rerun, scripts_known
from live_tuning.turns import even

CELLS_MOST = 16
CELL_S, ROUNDS_OF_CELLS = 20.0, 20
DUEL_S, ROUNDS_OF_DUEL = 30.0, 30
WORTH = 0.03
WANTED, LEAST = 0.95, 0.9
AS_WRITTEN, BEST, UNCOMPILED, OURS, OPTUNA, ONE_CALL = (
    "as written", "best cell", "best cell without torch.compile", "hr.autotune", "Optuna", "pytorch-autotune")

Cell = Mapping[str, str]


def choices_of(candidates: Sequence[Mapping[str, Any]], gains: Mapping[str, float]) -> dict[str, list[dict[str, str]]]:
    """By key: the settings as written (none) and those of its changes that alone matter. The key that matters most is first."""
    size: dict[str, float] = {}
    choices: dict[str, list[dict[str, str]]] = {}
    for candidate in candidates:
        gain = abs(gains.get(candidate["name"], 0.0))
        if gain >= WORTH:
            choices.setdefault(candidate["key"], [{}]).append(dict(candidate["changes"]))
            size[candidate["key"]] = max(gain, size.get(candidate["key"], 0.0))
    return {key: choices[key] for key in sorted(choices, key=lambda key: -size[key])}


def cells_of(choices: Mapping[str, Sequence[Cell]], most: int = CELLS_MOST) -> list[dict[str, str]]:
    """Every combination of the first keys whose combinations are at most so many."""
    taken: list[Sequence[Cell]] = []
    for values in choices.values():
        if math.prod(map(len, [*taken, values])) <= most:
            taken.append(values)
    return [{key: value for settings in combination for key, value in settings.items()}
            for combination in itertools.product(*taken)]


def seconds_of(figures: Mapping[str, Any]) -> list[tuple[Cell, list[float]]]:
    """Of each cell that was measured, a step in each round, as if all had the same work."""
    plain = next((cell for cell in figures["cells"] if not cell["settings"]), None)
    with_work = ([], []) if plain is None else (plain["step_s"], plain["work"])
    return [(cell["settings"], even(cell["step_s"], cell["work"], *with_work)) for cell in figures["cells"] if cell["step_s"]]


def best_of(figures: Mapping[str, Any], without: str = "") -> Cell:
    """Of the cells that leave the key `without` as it is."""
    measured = [(settings, seconds) for settings, seconds in seconds_of(figures) if without not in settings]
    return min(measured, key=lambda cell: statistics.median(cell[1]))[0] if measured else {}


def gains_of(reruns: rows.Rows, name: str) -> dict[str, float]:
    found = {key["change"]: rerun.gain_of(pairs) for key, pairs in reruns.found(script=name, what="pairs")}
    return {change: gain.median for change, gain in found.items() if gain is not None}


def honest_of(reruns: rows.Rows, name: str) -> list[dict[str, Any]]:
    """What there is to try whose gradients are not too far off, by the re-run."""
    offered, distances = (reruns.figures(script=name, what=what) for what in ("offered", "numerics"))
    return [one for one in offered["candidates"]
            if rerun.numerics_hold(one["numerics"], distances["distances"].get(one["name"], [])) is not False]


def or_unavailable(work: Any) -> dict[str, Any]:
    """A rival that cannot run is named with the reason, and the others go on."""
    try:
        return work()
    except harness.ProgramFailed as failure:
        return {"unavailable": failure.short}


def duellists(name: str, found: rows.Rows, reruns: rows.Rows) -> dict[str, Cell]:
    """Settings that are compared with the best cell, by what they are of."""
    cells, optuna = (found.figures(script=name, what=what) for what in ("cells", "optuna"))
    best = best_of(cells)
    arms = {AS_WRITTEN: {}, BEST: best, OURS: reruns.figures(script=name, what="live")["settings"]}
    if rerun.COMPILE in best:
        arms[UNCOMPILED] = best_of(cells, rerun.COMPILE)
    if optuna and optuna.get("settings") is not None:
        arms[OPTUNA] = optuna["settings"]
    return arms


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for place, cell in enumerate(cells) if cell not in cells[:place]]


def items(name: str, found: rows.Rows, reruns: rows.Rows, arguments: argparse.Namespace) -> Iterator[rows.Item]:
    step, live = (reruns.figures(script=name, what=what) for what in ("step", "live"))
    cell_s, rounds, duel_s, duel_rounds = (
        (0.2, 2, 0.2, 2) if arguments.quick else (CELL_S, ROUNDS_OF_CELLS, DUEL_S, ROUNDS_OF_DUEL))
    queue, step_s = scripts_known.SCRIPTS[name].queue, step["step_s"]
    candidates = honest_of(reruns, name)
    choices = choices_of(candidates, gains_of(reruns, name))
    cells = cells_of(choices)
    once_s = rerun.COMPILE_S / 4 * sum(rerun.COMPILE in cell for cell in cells)  # Each combination is compiled.

    def turns(cells: Sequence[Cell], rounds: int, cell_s: float) -> dict[str, Any]:
        return scripts_known.play(name, "cells", rerun.ENDLESS, limit_s=60 + 4 * once_s + 4 * cell_s * len(cells), cells=cells,
                                  rounds=rounds, cell_s=cell_s, queue=queue)

    yield rows.Item({"script": name, "what": "cells"}, 20 + once_s + 1.3 * cell_s * len(cells),
                    lambda: turns(cells, rounds, cell_s))
    if not found.has({"script": name, "what": "cells"}):
        return
    if not arguments.without_rivals:
        every = choices_of(candidates, {candidate["name"]: 1.0 for candidate in candidates})
        search_steps = 20 if arguments.quick else live["steps"]
        yield rows.Item({"script": name, "what": "optuna"}, 20 + search_steps * step_s, lambda: or_unavailable(
            lambda: scripts_known.play(name, "optuna", rerun.ENDLESS, limit_s=60 + 4 * search_steps * step_s, choices=every,
                                       search_steps=search_steps, queue=queue, environments=[scripts_known.RIVALS])))
        yield rows.Item({"script": name, "what": "one call"}, 15, lambda: or_unavailable(
            lambda: scripts_known.play(name, "pytorch_autotune", 2, environments=[scripts_known.RIVALS])))
    against = distinct(list(duellists(name, found, reruns).values()))
    yield rows.Item({"script": name, "what": "duel"}, 20 + once_s / 4 + 1.3 * duel_s * len(against),
                    lambda: turns(against, duel_rounds, duel_s))
    if not (found.figures(script=name, what="one call") or {}).get("applied"):
        return  # There is nothing that it would change.
    arms = {BEST: {"arm": "settings", "settings": best_of(found.figures(script=name, what="cells"))},
            ONE_CALL: {"arm": "pytorch_autotune", "environments": [scripts_known.RIVALS]}}
    steps = max(20, math.ceil(cell_s / step_s))
    for number, order in zip(range(1, arguments.rounds + 1), harness.orders(len(arms), arguments.order_seed)):
        for arm in (list(arms)[place] for place in order):
            yield rows.Item({"script": name, "what": "process", "arm": arm, "round": number}, 20 + cell_s,
                            lambda arm=arm: or_unavailable(lambda: scripts_known.play(
                                name, steps=steps, limit_s=60 + 10 * cell_s, **arms[arm])))


def ratios_of(found: rows.Rows, reruns: rows.Rows, name: str) -> dict[str, list[float] | str]:
    """Speed over the best cell's, a value a round, by what it is of; or why there is none. 1 alone: the same settings."""
    arms, duel = duellists(name, found, reruns), found.figures(script=name, what="duel")
    seconds, why = seconds_of(duel), {tuple(sorted(one["settings"].items())): one["reason"] for one in duel["refused"]}
    by_cell = {tuple(sorted(cell.items())): values for cell, values in seconds}

    def of(cell: Cell) -> list[float] | str:
        if cell == arms[BEST]:
            return [1.0]
        key, best = tuple(sorted(cell.items())), by_cell.get(tuple(sorted(arms[BEST].items())))
        if key not in by_cell or best is None:
            return why.get(key, "the best cell could not be measured again")
        both = min(len(best), len(by_cell[key]))
        return harness.ratios(best[:both], by_cell[key][:both])

    result = {arm: of(cell) for arm, cell in arms.items() if arm != BEST}
    optuna, one_call = (found.figures(script=name, what=what) for what in ("optuna", "one call"))
    if optuna and "unavailable" in optuna:
        result[OPTUNA] = optuna["unavailable"]
    if one_call is not None:
        result[ONE_CALL] = one_call.get("unavailable") or (
            process_ratios(found, name) if one_call["applied"] else "it switches nothing on here: as written")
    return result


def process_ratios(found: rows.Rows, name: str) -> list[float] | str:
    runs: dict[str, dict[int, Any]] = {}
    for key, figures in found.found(script=name, what="process"):
        runs.setdefault(key["arm"], {})[key["round"]] = figures
    ratios = [best["median_step_s"] / runs[ONE_CALL][number]["median_step_s"] for number, best in runs.get(BEST, {}).items()
              if "median_step_s" in best and "median_step_s" in runs.get(ONE_CALL, {}).get(number, {})]
    reasons = [run["unavailable"] for arm in runs.values() for run in arm.values() if "unavailable" in run]
    return ratios or (reasons[0] if reasons else "not measured yet")


def bar_of(ours: Mapping[str, float], complete: bool) -> rows.Bar:
    """ours: of each script, the median speed over the best cell's. As many as ten of twelve."""
    enough = sum(ratio >= WANTED for ratio in ours.values())
    below = [f"{name} {ratio:.3f}" for name, ratio in ours.items() if ratio < LEAST]
    good = 12 * enough >= 10 * len(ours)
    return rows.Bar("what then runs, of the speed of the best cell", f"{WANTED} in 10 of 12 scripts, below {LEAST} in none",
                    f"{WANTED} in {enough} of {len(ours)}, below {LEAST}: {', '.join(below) or 'none'}",
                    rows.at_the_end(good, complete) if not below else False)


def told(values: list[float] | str) -> str:
    if isinstance(values, str):
        return f"{harness.UNAVAILABLE}: {values}"
    return "1 (the same settings)" if values == [1.0] else harness.with_interval(values, digits=3)


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument("--without-rivals", action="store_true", help="leave out Optuna and pytorch-autotune")
    scripts_known.add_options(parser)
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    reruns = rows.Rows(rows.path_of(arguments, "rerun"))
    names = scripts_known.runnable(arguments)
    for name in [name for name in names if rerun.checked(name, reruns) is None]:
        print(f"{name} is left out: {reruns.path} has not all of its re-run; run rerun first")
        names.remove(name)
    if not arguments.without_rivals and names and (reason := scripts_known.why_missing(scripts_known.RIVALS)):
        print(f"Optuna and pytorch-autotune are left out: their environment cannot be made: {reason}")
        arguments.without_rivals = True
    bench = harness.Bench(__file__, arguments, f"grid: {len(names)} scripts, at most {CELLS_MOST} cells of {CELL_S:g} s")
    found = rows.open_rows(arguments, "grid")
    session = rows.Session(found, arguments.minutes)
    complete = all(session.run(items(name, found, reruns, arguments)) for name in names)
    lines, ours, uncompiled = [], {}, {}
    for name in [name for name in names if found.has({"script": name, "what": "duel"})]:
        ratios, settings = ratios_of(found, reruns, name), duellists(name, found, reruns)
        cells = len(found.figures(script=name, what="cells")["cells"])
        for arm, values in ratios.items():
            lines.append([name, str(cells), arm, told(values),
                          " ".join(f"{key}={value}" for key, value in settings.get(arm, {}).items())])
        if not isinstance(ratios[OURS], str):
            ours[name] = statistics.median(ratios[OURS])
            other = ratios.get(UNCOMPILED, [1.0])
            uncompiled[name] = ours[name] if isinstance(other, str) else ours[name] / statistics.median(other)
    if lines:
        print(f"\nspeed over the best cell's; {harness.interval_remark(ROUNDS_OF_DUEL)}")
        print(harness.table(["script", "cells", "arm", "speed", "settings"], lines, left=(0, 2, 3, 4)))
    whole = complete and not session.lacks and len(ours) == len(scripts_known.SCRIPTS)
    beside = bar_of(uncompiled, whole)
    print(f"\nbeside the bar, against the best cell without torch.compile: {beside.found}")
    bar = bar_of(ours, whole)
    return bench.end({"bars": [str(bar)], "speed over the best cell": ours, "without torch.compile": uncompiled},
                     rows.tell(session, complete, [bar]))
