"""What hr.autotune leaves in force against the best cell of a grid, what Optuna finds in as many steps, and pytorch-autotune.

usage: make bench NAME=live-tuning ARGS='grid --minutes 9'        after ARGS='rerun', whose rows it reads

The grid is over the knobs that alone change the step by 3 % or more in the script's re-run, the largest first, at most 16 cells
of 20 s each, which take turns in one process. Then the best cell, the loop as written, hr.autotune's settings, Optuna's best and
pytorch-autotune's one call run for 20 s each as processes in drawn order, --rounds times: ratios are within a round. Settings
that are those of the best cell have the ratio 1. Wanted: 0.95 of the best cell's speed in 10 of 12 scripts, 0.9 in all.
"""

import argparse
import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
from live_tuning import rows, scripts_known
from live_tuning.rerun import ENDLESS
from live_tuning.turns import Gain

HERE = Path(__file__).resolve().parent
CELLS_MOST = 16
CELL_S, ROUNDS_OF_CELLS = 20.0, 5
WORTH = 0.03
AS_WRITTEN, BEST, OURS, OPTUNA, ONE_CALL = "as written", "best cell", "hr.autotune", "Optuna", "pytorch-autotune"


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


def cells_of(choices: Mapping[str, Sequence[Mapping[str, str]]], most: int = CELLS_MOST) -> list[dict[str, str]]:
    """Every combination of the first keys whose combinations are at most so many."""
    taken: list[Sequence[Mapping[str, str]]] = []
    for values in choices.values():
        if math.prod(map(len, [*taken, values])) <= most:
            taken.append(values)
    return [{key: value for settings in combination for key, value in settings.items()}
            for combination in itertools.product(*taken)]


def best_of(figures: Mapping[str, Any]) -> dict[str, str]:
    measured = [cell for cell in figures["cells"] if cell["step_s"]]
    return min(measured, key=lambda cell: statistics.median(cell["step_s"]))["settings"] if measured else {}


def gains_of(reruns: rows.Rows, name: str) -> dict[str, float]:
    return {key["change"]: Gain.of(pairs["without_s"], pairs["with_s"]).median
            for key, pairs in reruns.found(script=name, what="pairs") if pairs["with_s"]}


def or_unavailable(work: Any) -> dict[str, Any]:
    """A rival that cannot run is named with the reason, and the others go on."""
    try:
        return work()
    except harness.ProgramFailed as failure:
        return {"unavailable": failure.short}


@functools.cache
def rivals_python() -> Path:
    """Of the rivals' environment, which is made by the first call."""
    return Path(harness.run([harness.ROOT / "tools" / "environment.sh", "live-tuning", HERE / "requirements.txt"]).output.strip().splitlines()[-1]) / "bin" / "python"


def final_arms(name: str, found: rows.Rows, reruns: rows.Rows) -> dict[str, dict[str, Any]]:
    """What play.py is asked for, by the arm's name."""
    optuna = found.figures(script=name, what="optuna") or {}
    arms = {AS_WRITTEN: {"arm": "untouched"},
            BEST: {"arm": "settings", "settings": best_of(found.figures(script=name, what="cells"))},
            OURS: {"arm": "settings", "settings": reruns.figures(script=name, what="live")["settings"]}}
    if optuna.get("settings") is not None:
        arms[OPTUNA] = {"arm": "settings", "settings": optuna["settings"]}
    return {**arms, ONE_CALL: {"arm": "pytorch_autotune"}}


def items(name: str, found: rows.Rows, reruns: rows.Rows, arguments: argparse.Namespace) -> Iterator[rows.Item]:
    step, live, offered = (reruns.figures(script=name, what=what) for what in ("step", "live", "offered"))
    cell_s, rounds_of_cells = (0.2, 2) if arguments.quick else (CELL_S, ROUNDS_OF_CELLS)
    queue, step_s = scripts_known.SCRIPTS[name].queue, step["step_s"]
    choices = choices_of(offered["candidates"], gains_of(reruns, name))
    cells = cells_of(choices)
    yield rows.Item({"script": name, "what": "cells"}, 20 + 1.5 * cell_s * len(cells), lambda: scripts_known.play(
        name, arguments, "cells", ENDLESS, limit_s=60 + 4 * cell_s * len(cells), cells=cells, rounds=rounds_of_cells,
        cell_s=cell_s, queue=queue))
    if not found.has({"script": name, "what": "cells"}):
        return
    every = choices_of(offered["candidates"], {candidate["name"]: 1.0 for candidate in offered["candidates"]})
    search_steps = 20 if arguments.quick else live["steps"]
    yield rows.Item({"script": name, "what": "optuna"}, 20 + search_steps * step_s, lambda: or_unavailable(
        lambda: scripts_known.play(name, arguments, "optuna", ENDLESS, python=rivals_python(), choices=every,
                                   search_steps=search_steps, queue=queue)))
    arms = final_arms(name, found, reruns)
    steps = max(20, math.ceil(cell_s / step_s))
    for number, order in zip(range(1, arguments.rounds + 1), harness.orders(len(arms), arguments.order_seed)):
        for arm in (list(arms)[place] for place in order):
            yield rows.Item({"script": name, "what": "final", "arm": arm, "round": number}, 20 + cell_s,
                            lambda arm=arm: or_unavailable(lambda: scripts_known.play(
                                name, arguments, steps=steps, limit_s=10 * cell_s, **arms[arm],
                                python=rivals_python() if arm == ONE_CALL else None)))


def ratios_of(runs: Mapping[str, Mapping[int, Mapping[str, Any]]], arm: str) -> list[float]:
    """Speed of an arm over the best cell's, of the rounds that both have."""
    return [best["median_step_s"] / runs[arm][number]["median_step_s"] for number, best in runs.get(BEST, {}).items()
            if "median_step_s" in best and "median_step_s" in runs.get(arm, {}).get(number, {})]


def judge(by_script: Mapping[str, float]) -> dict[str, Any]:
    """Of each script's median ratio. As many as ten of twelve."""
    enough = sum(ratio >= 0.95 for ratio in by_script.values())
    below = [name for name, ratio in by_script.items() if ratio < 0.9]
    return {"at least 0.95": enough, "scripts": len(by_script), "below 0.9": below,
            "met": 12 * enough >= 10 * len(by_script) and not below}


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__, rounds=3)
    scripts_known.add_options(parser)
    rows.add_options(parser)
    arguments = parser.parse_args(words)
    reruns = rows.Rows(arguments.rows / f"rerun{'-quick' * arguments.quick}.jsonl")
    names = scripts_known.runnable(arguments)
    for name in [name for name in names if reruns.figures(script=name, what="numerics") is None]:
        print(f"{name} is left out: {reruns.path} has not all of its re-run; run rerun first")
        names.remove(name)
    bench = harness.Bench(__file__, arguments, f"grid: {len(names)} scripts, at most {CELLS_MOST} cells of {CELL_S:g} s")
    found = rows.open_rows(arguments, "grid")
    session = rows.Session(found, arguments.minutes)
    complete = all(session.run(items(name, found, reruns, arguments)) for name in names)
    lines, ours = [], {}
    for name in names:
        runs: dict[str, dict[int, Any]] = {}
        for key, figures in found.found(script=name, what="final"):
            runs.setdefault(key["arm"], {})[key["round"]] = figures
        if BEST not in runs:
            continue
        settings = {arm: request.get("settings", {}) for arm, request in final_arms(name, found, reruns).items()}
        cells = found.figures(script=name, what="cells")
        for arm in (AS_WRITTEN, OURS, OPTUNA, ONE_CALL):
            values = ratios_of(runs, arm)
            why = next((run["unavailable"] for run in runs.get(arm, {}).values() if "unavailable" in run), "")
            if arm == OPTUNA:
                why = why or (found.figures(script=name, what="optuna") or {}).get("unavailable", "")
            is_same = arm != ONE_CALL and arm in settings and settings[arm] == settings[BEST]
            if arm == OURS and (values or is_same):
                ours[name] = 1.0 if is_same else statistics.median(values)
            said = ("1 (the same settings)" if is_same else harness.with_interval(values, digits=3) if values
                    else f"{harness.UNAVAILABLE}: {why}")
            lines.append([name, str(len(cells["cells"])), arm, said,
                          " ".join(f"{key}={value}" for key, value in settings.get(arm, {}).items())])
    verdict = judge(ours)
    if lines:
        print("\nspeed over the best cell's; " + harness.interval_remark(arguments.rounds))
        print(harness.table(["script", "cells", "arm", "speed", "settings"], lines, left=(0, 2, 3, 4)))
        print(f"hr.autotune has 0.95 of the best cell in {verdict['at least 0.95']} of {verdict['scripts']} scripts, below 0.9: "
              f"{', '.join(verdict['below 0.9']) or 'none'}: {'met' if verdict['met'] else 'MISSED'}")
    rows.told_left(session, complete)
    return bench.end({**verdict, "speed over the best cell": ours}, 0 if verdict["met"] else 3)
