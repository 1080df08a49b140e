"""What hr.autotune leaves in force against the best cell of a grid, what Optuna finds in as many steps, and pytorch-autotune.

usage: make bench NAME=live-tuning ARGS='grid --minutes 140'        after ARGS='rerun', whose rows it reads (of its defaults)

The grid is over the knobs that alone change the step by 3 % or more in the script's re-run, the largest first, at most 16
cells of 20 s each, which take turns in one process. Changes whose gradients are too far off there are in no cell. Then the
best cell, the loop as written, hr.autotune's settings (of the live run of `rerun`) and Optuna's best take turns in one
process, 30 rounds of a second each, so that the best is measured anew: ratios are within a round. Settings that are those of
the best cell have the ratio 1. pytorch-autotune's one call makes its own objects: where it switches anything on here, it and
the best cell run as processes in drawn order, --rounds times. A rival that cannot run is named with the reason; one that took
too long is tried again by the next call. Wanted: 0.95 of the best cell's speed in 10 of 12 scripts, 0.9 in all.

A run of 5 min does not earn back what torch.compile takes to prepare, and a cell has its speed without that: beside the bar
stands what it would be against the best cell without torch.compile.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import harness
import rows
from live_tuning import rerun, scripts_known
from live_tuning.play import LOADING
from live_tuning.turns import even

CELLS_MOST = 16
CELL_S, ROUNDS_OF_CELLS = 20.0, 20
DUEL_S, ROUNDS_OF_DUEL = 30.0, 30
WORTH = 0.03
WANTED, LEAST = 0.95, 0.9
AS_WRITTEN, BEST, UNCOMPILED, OURS, OPTUNA, ONE_CALL = (
    "as written", "best cell", "best cell without torch.compile", "hr.autotune", "Optuna", "pytorch-autotune")
TOO_LONG = "not done after"  # What harness says first of a program that it ended.

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


def pairs_of(arguments: argparse.Namespace) -> int:
    """Of the re-runs that are read."""
    return rerun.QUICK_PAIRS if arguments.quick else rerun.PAIRS


def gains_of(reruns: rows.Rows, name: str, pairs: int) -> dict[str, float]:
    found = {key["change"]: rerun.gain_of(own) for key, own in reruns.found(script=name, what="pairs", pairs=pairs)}
    return {change: gain.median for change, gain in found.items() if gain is not None}


def honest_of(reruns: rows.Rows, name: str) -> list[dict[str, Any]]:
    """What there is to try whose gradients are not too far off, by the re-run, which is whole."""
    candidates = reruns.figures(script=name, what="offered")["candidates"]
    distances = rerun.distances_of(name, reruns, candidates)
    return [one for one in candidates if rerun.numerics_hold(one["numerics"], distances.get(one["name"], [])) is not False]


def or_unavailable(work: Any) -> dict[str, Any]:
    """A rival that cannot run is named with the reason, and the others go on. One that took too long may do better another
    time, and is no figure."""
    try:
        return work()
    except harness.ProgramFailed as failure:
        if failure.short.startswith(TOO_LONG):
            raise
        return {"unavailable": failure.short}


def duellists(name: str, found: rows.Rows, reruns: rows.Rows) -> dict[str, Cell]:
    """Settings that are compared with the best cell, by what they are of."""
    cells, optuna = (found.figures(script=name, what=what) for what in ("cells", "optuna"))
    best = best_of(cells)
    arms = {AS_WRITTEN: {}, BEST: best, OURS: reruns.figures(**rerun.live_key(name, rerun.ALLOW))["settings"]}
    if rerun.COMPILE in best:
        arms[UNCOMPILED] = best_of(cells, rerun.COMPILE)
    if optuna and optuna.get("settings") is not None:
        arms[OPTUNA] = optuna["settings"]
    return arms


def words_of(cell: Cell) -> str:
    return " ".join(f"{key}={value}" for key, value in cell.items())


def duel_key(name: str, arms: Mapping[str, Cell]) -> dict[str, Any]:
    """With the arms, as one that came later was not in it."""
    return {"script": name, "what": "duel", "arms": ", ".join(f"{arm} {words_of(cell)}".strip() for arm, cell in arms.items())}


def duel_of(name: str, found: rows.Rows, arms: Mapping[str, Cell]) -> dict[str, Any] | None:
    """The comparison of these arms; until that is made, the last one of fewer."""
    figures = found.figures(**duel_key(name, arms))
    earlier = [own for _, own in found.found(script=name, what="duel")]
    return figures if figures is not None or not earlier else earlier[-1]


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for place, cell in enumerate(cells) if cell not in cells[:place]]


class Plays:
    """Runs of one script, each in a process of its own. Where a setting loads, they begin when loading can switch."""

    def __init__(self, name: str, step_s: float) -> None:
        self.name, self.step_s, self.script = name, step_s, scripts_known.SCRIPTS[name]

    def begin_at(self, cells: Iterable[Cell]) -> int:
        return self.script.begun if any(key.startswith(LOADING) for cell in cells for key in cell) else 0

    def begin_s(self, cells: Iterable[Cell]) -> float:
        return self.begin_at(cells) * self.step_s

    def turns(self, cells: Sequence[Cell], rounds: int, cell_s: float) -> dict[str, Any]:
        limit_s = 60 + self.begin_s(cells) + 4 * preparing_s(cells) + 4 * cell_s * len(cells)
        return scripts_known.play(self.name, "cells", rerun.ENDLESS, limit_s=limit_s, cells=cells, rounds=rounds, cell_s=cell_s,
                                  queue=self.script.queue, begin_at=self.begin_at(cells))

    def optuna(self, choices: Mapping[str, Sequence[Cell]], steps: int) -> dict[str, Any]:
        cells = [cell for values in choices.values() for cell in values]
        return scripts_known.play(
            self.name, "optuna", rerun.ENDLESS, choices=choices, search_steps=steps, queue=self.script.queue,
            begin_at=self.begin_at(cells), environments=[scripts_known.RIVALS],
            limit_s=60 + self.begin_s(cells) + 2 * steps * self.step_s + rerun.COMPILE_S)

    def process(self, best: Cell, cell_s: float, **arm: Any) -> dict[str, Any]:
        """Steps before loading can switch are left out of every arm's figures."""
        begin_at = self.begin_at([best])
        return scripts_known.play(self.name, steps=begin_at + max(20, math.ceil(cell_s / self.step_s)), begin_at=begin_at,
                                  limit_s=60 + self.begin_s([best]) + 10 * cell_s, **arm)


def preparing_s(cells: Sequence[Cell]) -> float:
    """Each combination is compiled."""
    return rerun.COMPILE_S / 4 * sum(rerun.COMPILE in cell for cell in cells)


def items(name: str, found: rows.Rows, reruns: rows.Rows, arguments: argparse.Namespace) -> Iterator[rows.Item]:
    step, live = reruns.figures(script=name, what="step"), reruns.figures(**rerun.live_key(name, rerun.ALLOW))
    cell_s, rounds, duel_s, duel_rounds = (
        (0.2, 2, 0.2, 2) if arguments.quick else (CELL_S, ROUNDS_OF_CELLS, DUEL_S, ROUNDS_OF_DUEL))
    plays, candidates = Plays(name, step["step_s"]), honest_of(reruns, name)
    cells = cells_of(choices_of(candidates, gains_of(reruns, name, pairs_of(arguments))))

    def item(what: str, seconds: float, work: Any, **more: Any) -> rows.Item:
        return rows.Item({"script": name, "what": what, **more}, seconds, work)

    def turns_s(cells: Sequence[Cell], cell_s: float) -> float:
        return 20 + plays.begin_s(cells) + preparing_s(cells) + 1.3 * cell_s * len(cells)

    yield item("cells", turns_s(cells, cell_s), lambda: plays.turns(cells, rounds, cell_s))
    if not found.has({"script": name, "what": "cells"}):
        return
    if not arguments.without_rivals:
        every = choices_of(candidates, {candidate["name"]: 1.0 for candidate in candidates})
        steps = 20 if arguments.quick else live["steps"]
        yield item("optuna", 20 + steps * plays.step_s, lambda: or_unavailable(lambda: plays.optuna(every, steps)))
        yield item("one call", 15, lambda: or_unavailable(
            lambda: scripts_known.play(name, "pytorch_autotune", 2, environments=[scripts_known.RIVALS])))
    arms = duellists(name, found, reruns)
    against = distinct(list(arms.values()))
    yield rows.Item(duel_key(name, arms), turns_s(against, duel_s), lambda: plays.turns(against, duel_rounds, duel_s))
    if not (found.figures(script=name, what="one call") or {}).get("applied"):
        return  # There is nothing that it would change.
    best = arms[BEST]
    works = {BEST: lambda: plays.process(best, cell_s, arm="settings", settings=best), ONE_CALL: lambda: or_unavailable(
        lambda: plays.process(best, cell_s, arm="pytorch_autotune", environments=[scripts_known.RIVALS]))}
    for number, order in zip(range(1, arguments.rounds + 1), harness.orders(len(works), arguments.order_seed)):
        for arm in (list(works)[place] for place in order):
            yield item("process", 20 + plays.begin_s([best]) + cell_s, works[arm], arm=arm, round=number)


def ratios_of(found: rows.Rows, reruns: rows.Rows, name: str) -> dict[str, list[float] | str]:
    """Speed over the best cell's, a value a round, by what it is of; or why there is none. 1 alone: the same settings."""
    arms = duellists(name, found, reruns)
    duel = duel_of(name, found, arms)
    why = {tuple(sorted(one["settings"].items())): "no round of it was measured" for one in duel["cells"]}
    why |= {tuple(sorted(one["settings"].items())): one["reason"] for one in duel["refused"]}
    seconds = seconds_of(duel)
    by_cell = {tuple(sorted(cell.items())): values for cell, values in seconds}

    def of(cell: Cell) -> list[float] | str:
        if cell == arms[BEST]:
            return [1.0]
        key, best = tuple(sorted(cell.items())), by_cell.get(tuple(sorted(arms[BEST].items())))
        if key not in by_cell:
            return why.get(key, "was not in the comparison")
        if best is None:
            return "the best cell could not be measured again"
        both = min(len(best), len(by_cell[key]))
        return harness.ratios(best[:both], by_cell[key][:both])

    result = {arm: of(cell) for arm, cell in arms.items() if arm != BEST}
    optuna, one_call = (found.figures(script=name, what=what) for what in ("optuna", "one call"))
    if optuna is not None and OPTUNA not in arms:
        result[OPTUNA] = optuna.get("unavailable") or "it did not finish one trial"
    if one_call is not None:
        result[ONE_CALL] = one_call.get("unavailable") or (
            process_ratios(found, name) if one_call["applied"] else "it switches nothing on here: as written")
    for arm, what in ((OPTUNA, "optuna"), (ONE_CALL, "one call")):
        failures = found.failures({"script": name, "what": what})
        if arm not in result and failures:
            result[arm] = failures[-1]
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


def rounds_of(figures: Mapping[str, Any]) -> str:
    """That the cells were measured in."""
    counts = [len(cell["step_s"]) for cell in figures["cells"]] or [0]
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def show(ratios_by_script: Mapping[str, Mapping[str, list[float] | str]], found: rows.Rows, reruns: rows.Rows) -> None:
    lines, searches = [], []
    for name, ratios in ratios_by_script.items():
        settings, cells = duellists(name, found, reruns), found.figures(script=name, what="cells")
        for arm, values in ratios.items():
            count = "" if isinstance(values, str) or values == [1.0] else str(len(values))
            lines.append([name, str(len(cells["cells"])), rounds_of(cells), arm, told(values), count,
                          words_of(settings.get(arm, {}))])
        optuna = found.figures(script=name, what="optuna") or {}
        if "searched" in optuna:
            searches.append(f"{name}: Optuna made {optuna['searched']:,} of {optuna['allowed']:,} steps, in "
                            f"{optuna['trials']:,} trials")
    if lines:
        print(f"\nspeed over the best cell's; {harness.interval_remark(ROUNDS_OF_DUEL)}")
        headings = ["script", "cells", "rounds of each", "arm", "speed", "rounds", "settings"]
        print(harness.table(headings, lines, left=(0, 3, 4, 6)))
    for search in searches:
        print(search)


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument("--without-rivals", action="store_true", help="leave out Optuna and pytorch-autotune")
    scripts_known.add_options(parser)
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    reruns = rows.Rows(rows.path_of(arguments, "rerun"))
    names = scripts_known.runnable(arguments)
    for name in [name for name in names if rerun.checked(name, reruns, pairs=pairs_of(arguments)) is None]:
        print(f"{name} is left out: {reruns.path} has not all of its re-run; run rerun first")
        names.remove(name)
    if not arguments.without_rivals and names and (reason := scripts_known.why_missing(scripts_known.RIVALS)):
        print(f"Optuna and pytorch-autotune are left out: their environment cannot be made: {reason}")
        arguments.without_rivals = True
    bench = harness.Bench(__file__, arguments, f"grid: {len(names)} scripts, at most {CELLS_MOST} cells of {CELL_S:g} s")
    found = rows.open_rows(arguments, "grid")
    session = rows.Session(found, arguments.minutes)
    complete = all(session.run(items(name, found, reruns, arguments)) for name in names)
    measured = [name for name in names if found.has({"script": name, "what": "cells"})
                and duel_of(name, found, duellists(name, found, reruns)) is not None]
    by_script = {name: ratios_of(found, reruns, name) for name in measured}
    show(by_script, found, reruns)
    ours, uncompiled = {}, {}
    for name, ratios in by_script.items():
        if not isinstance(ratios[OURS], str):
            ours[name] = statistics.median(ratios[OURS])
            other = ratios.get(UNCOMPILED, [1.0])
            uncompiled[name] = ours[name] if isinstance(other, str) else ours[name] / statistics.median(other)
    # Without session.lacks, as a rival that fails takes nothing from the bar; a script without its comparison does.
    whole = complete and len(ours) == len(scripts_known.SCRIPTS) and not arguments.quick
    beside = bar_of(uncompiled, whole)
    print(f"\nbeside the bar, against the best cell without torch.compile: {beside.found}")
    bar = bar_of(ours, whole)
    return bench.end({"bars": [str(bar)], "speed over the best cell": ours, "without torch.compile": uncompiled},
                     rows.tell(session, complete, [bar]))
