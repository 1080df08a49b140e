#!/usr/bin/env python3
"""hr.Trainer beside the training loops of Lightning, Fabric, Accelerate and Composer, and under optimizers of torchao, timm and
torch. The rivals have environments of their own with the project's torch, made when they are first needed; one that cannot be
installed, imported or run is told as unavailable, with the reason.

step        us a step of the MLP of bench/python_step from a DataLoader. Each round runs every loop once, in its own process, in a
            drawn order. Wanted: with all features at most 0.2 times Lightning's Trainer and 0.1 times Composer's, as they come.
optimizers  torchao's AdamW8bit, timm's Lamb and torch's Muon, which step themselves, under hr.Trainer and in the plain loop with
            them: ms a step, bits, and bytes of state, beside the engine's AdamW. Wanted: not slower, and the same bits.
timm        vit_tiny_patch16_224 at 96 px by timm's recipe (mixup, averages, cosine, layer decay, AdamW), in the loop of timm's train.py
            and by hr.Trainer. Wanted: after 50 updates the same bits of weights and averages within 1e-6; a step not slower; from JPEG
            files 1.05 times the samples/s of timm's loader and loop with hr.Loader, 2 workers each.

Each figure is printed when it is measured, a part ends with its table, and the run with a line for each bar, "what: wanted X, found Y:
met". Exit status 3: one is missed.

usage: make bench NAME=train-peers                                       all parts
       make bench NAME=train-peers ARGS='step --rounds 5'                or ARGS=optimizers, ARGS=timm
       make bench NAME=train-peers ARGS=environments                     only makes the environments, which needs the network
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
import rows  # noqa: E402
from train_peers import rivals  # noqa: E402
from train_peers.rivals import WHY, Rival  # noqa: E402

ENVIRONMENTS = "environments"
LIGHTNING_SHARE, COMPOSER_SHARE = 0.2, 0.1  # Of their time a step, at most.
TRIAL_STEPS = 20  # Of a process that only shows whether a loop can be had.
AVERAGES_APART, FROM_JPEG = 1e-6, 1.05
TIMM_LOOP, OUR_LOOP = "timm's loop", "hr.Trainer"

Figures = Mapping[str, Any]


# step


def us_of(runs: Sequence[Figures]) -> list[float | None]:
    """Round by round; None: it did not run."""
    return [run.get("us") for run in runs]


def shares(over: Sequence[float | None], under: Sequence[float | None]) -> list[float]:
    """Of the rounds in which both ran."""
    return [one / other for one, other in zip(over, under) if one is not None and other is not None]


def why_not(runs: Sequence[Figures]) -> str:
    """The reason of the last run that there is none; empty: it ran each time."""
    return next((run[WHY] for run in reversed(runs) if WHY in run), "")


def step_table(found: Mapping[str, Sequence[Figures]]) -> str:
    """By name of the loop. One that never ran has its reason in the last column."""
    lines = []
    for name, runs in found.items():
        times = [us for us in us_of(runs) if us is not None]
        if not times:
            lines.append([name, "", "", "", "", f"{WHY}: {why_not(runs)}"])
            continue
        low, high = harness.quartiles(times)
        of_plain = shares(us_of(runs), us_of(found.get(rivals.PLAIN.name, [])))
        version = next(run["version"] for run in runs if "version" in run)
        failed = f"; {len(runs) - len(times)} of {len(runs)} runs {WHY}: {why_not(runs)}" if len(times) < len(runs) else ""
        lines.append([name, f"{statistics.median(times):,.1f}", f"{low:,.1f} - {high:,.1f}",
                      f"{min(times):,.1f} - {max(times):,.1f}", harness.with_interval(of_plain, digits=3) if of_plain else "",
                      version + failed])
    return harness.table(["", "us a step", "quartiles", "range", f"over {rivals.PLAIN.name}", "version"], lines, left=(0, 5))


def share_bar(found: Mapping[str, Sequence[Figures]], rival: Rival, most: float) -> rows.Bar:
    ours, theirs = found.get(rivals.WITH_ALL.name, []), found.get(rival.name, [])
    what, wanted = f"{rivals.WITH_ALL.name}, over {rival.name}", f"at most {most:g}"
    if values := shares(us_of(ours), us_of(theirs)):
        return rows.Bar(what, wanted, harness.with_interval(values, digits=3), statistics.median(values) <= most)
    return rows.Bar(what, wanted, f"{WHY}: {why_not(theirs) or why_not(ours) or 'not run'}", None)


def step_bars(found: Mapping[str, Sequence[Figures]]) -> list[rows.Bar]:
    return [share_bar(found, rivals.LIGHTNING, LIGHTNING_SHARE), share_bar(found, rivals.MOSAIC, COMPOSER_SHARE)]


def told_step(loop: Rival, number: int, options: Mapping[str, Any]) -> Figures:
    """Of one process, printed at once."""
    figures = rivals.figures_of(loop, "steps.py", options)
    told = f"{WHY}: {figures[WHY]}" if WHY in figures else f"{figures['us']:,.1f} us a step"
    print(f"round {number}, {loop.name}: {told}", flush=True)
    return figures


def run_step(bench: harness.Bench, arguments: argparse.Namespace) -> list[rows.Bar]:
    options = {"steps": arguments.steps}
    trials: dict[Rival, Figures] = {}
    for loop in rivals.LOOPS:
        trials[loop] = rivals.figures_of(loop, "steps.py", {"steps": TRIAL_STEPS})
        if WHY in trials[loop]:
            print(f"{loop.name}: {WHY}: {trials[loop][WHY]}", flush=True)
    arms = [harness.Arm(loop.name, lambda number, loop=loop: told_step(loop, number, options))
            for loop, trial in trials.items() if WHY not in trial]
    measured = bench.measure(arms, arguments.rounds, title="step")
    found = {loop.name: measured.get(loop.name, [trial]) for loop, trial in trials.items()}  # In the order of LOOPS.
    print(f"\nstep: {arguments.rounds} rounds of {arguments.steps} steps, 1 thread; {harness.interval_remark(arguments.rounds)}")
    print(step_table(found), flush=True)
    return step_bars(found)


# optimizers


def of_arm(figures: Figures, arm: str) -> str:
    """ms a step."""
    values = [us / 1e3 for us in figures["us"][arm]]
    low, high = harness.quartiles(values)
    return f"{statistics.median(values):.3f} [{low:.3f}, {high:.3f}]"


def optimizers_table(found: Mapping[str, Figures]) -> str:
    lines = []
    for name, figures in found.items():
        if WHY in figures:
            lines.append([name, *[""] * 7, f"{WHY}: {figures[WHY]}"])
            continue
        ratios = harness.ratios(figures["us"]["ours"], figures["us"]["plain"])
        lines.append([name, of_arm(figures, "plain"), of_arm(figures, "ours"), harness.with_interval(ratios, digits=3),
                      "the same" if figures["same_bits"] else "OTHERS", f"{figures['bytes']:,}", of_arm(figures, "adamw"),
                      f"{figures['adamw_bytes']:,}", f"{figures['version']}, {figures['by']}"])
    return harness.table(["", "plain loop, ms [quartiles]", "hr.Trainer, ms", "ratio", "bits", "bytes of state",
                          "AdamW by hr.Trainer, ms", "its bytes", "version, and who updates"], lines, left=(0, 4, 8))


def optimizer_bars(found: Mapping[str, Figures]) -> list[rows.Bar]:
    bars = []
    for name, figures in found.items():
        slower, bits = f"{name} under hr.Trainer, over the plain loop with it", f"{name} under hr.Trainer: bits"
        if WHY in figures:
            reason = f"{WHY}: {figures[WHY]}"
            bars += [rows.Bar(slower, "at most 1", reason, None), rows.Bar(bits, "those of the plain loop", reason, None)]
            continue
        ratios = harness.ratios(figures["us"]["ours"], figures["us"]["plain"])
        told = f"{'these' if figures['same_bits'] else 'others'} after {figures['compared']} steps"
        bars += [rows.Bar(slower, "at most 1", harness.with_interval(ratios, digits=3), statistics.median(ratios) <= 1),
                 rows.Bar(bits, "those of the plain loop", told, figures["same_bits"])]
    return bars


def run_optimizers(bench: harness.Bench, arguments: argparse.Namespace) -> list[rows.Bar]:
    options = {"rounds": arguments.rounds, "steps": arguments.optimizer_steps, "order-seed": arguments.order_seed}
    found: dict[str, Figures] = {}
    for rival in rivals.OPTIMIZERS:
        found[rival.name] = rivals.figures_of(rival, "optimizers.py", options)
        print(optimizers_table({rival.name: found[rival.name]}), flush=True)
    bench.keep({name: [figures] for name, figures in found.items()}, "optimizers")
    print(f"\noptimizers: {arguments.rounds} rounds of {arguments.optimizer_steps} steps, MLP 256-256-256-16 without biases, "
          f"batch 64, 1 thread; {harness.interval_remark(arguments.rounds)}")
    print(optimizers_table(found), flush=True)
    return optimizer_bars(found)


# timm


def bits_told(figures: Figures) -> str:
    """What came of the updates on the same batches, for one line."""
    if WHY in figures:
        return f"{WHY}: {figures[WHY]}"
    if figures["same_bits"]:
        weights = "weights have the same bits"
    else:
        repeats = "has the same bits" if figures["loop_repeats"] else "has others, too"
        weights = f"weights are {figures['weights_apart']:.2g} apart; timm's loop, run twice, {repeats}"
    return f"{figures['updates']} updates: {weights}; averages are {figures['averages_apart']:.2g} apart"


def bits_bars(figures: Figures) -> list[rows.Bar]:
    is_there = WHY not in figures
    return [rows.Bar("timm's recipe: bits of the weights", f"those of {TIMM_LOOP}", bits_told(figures),
                     figures["same_bits"] if is_there else None),
            rows.Bar("timm's recipe: averages", f"at most {AVERAGES_APART:g} apart",
                     f"{figures['averages_apart']:.2g}" if is_there else bits_told(figures),
                     figures["averages_apart"] <= AVERAGES_APART if is_there else None)]


def recipe_step_bar(figures: Figures) -> rows.Bar:
    what, wanted = f"timm's recipe: a step of {OUR_LOOP}, over {TIMM_LOOP}", "at most 1"
    if WHY in figures:
        return rows.Bar(what, wanted, f"{WHY}: {figures[WHY]}", None)
    ratios = harness.ratios(figures["ms"]["ours"], figures["ms"]["timm"])
    return rows.Bar(what, wanted, harness.with_interval(ratios, digits=3), statistics.median(ratios) <= 1)


def rates_where_both_ran(found: Mapping[str, Sequence[Figures]]) -> dict[str, list[float]]:
    """samples/s of the whole rounds, by arm."""
    whole = [runs for runs in zip(*found.values(), strict=True) if all(WHY not in run for run in runs)]
    return {name: [runs[place]["samples_per_s"] for runs in whole] for place, name in enumerate(found)}


def photographs_bar(found: Mapping[str, Sequence[Figures]]) -> rows.Bar:
    what, wanted = f"timm's recipe from JPEG: samples/s over {rivals.TIMM_PHOTOGRAPHS.name}", f"at least {FROM_JPEG:g}"
    rates = rates_where_both_ran(found)
    if not any(rates.values()):
        reasons = [why for runs in found.values() if (why := why_not(runs))]
        return rows.Bar(what, wanted, f"{WHY}: {reasons[0] if reasons else 'not run'}", None)
    ratios = harness.ratios(rates[rivals.HR_PHOTOGRAPHS.name], rates[rivals.TIMM_PHOTOGRAPHS.name])
    return rows.Bar(what, wanted, harness.with_interval(ratios, digits=3), statistics.median(ratios) >= FROM_JPEG)


def told_photographs(rival: Rival, number: int, options: Mapping[str, Any]) -> Figures:
    """Of one process, printed at once."""
    figures = rivals.figures_of(rival, "timm_recipe.py", options)
    told = f"{WHY}: {figures[WHY]}" if WHY in figures else f"{figures['samples_per_s']:,.1f} samples/s"
    print(f"round {number}, from JPEG, {rival.name}: {told}", flush=True)
    return figures


def measured_photographs(bench: harness.Bench, arguments: argparse.Namespace) -> dict[str, list[Figures]]:
    arms = (rivals.TIMM_PHOTOGRAPHS, rivals.HR_PHOTOGRAPHS)
    if not (arguments.photos / "train").is_dir():
        return {arm.name: [{WHY: f"no photographs in {arguments.photos}/train: make setup JOB=photos"}] for arm in arms}
    options = {"steps": arguments.photograph_steps, "photos": arguments.photos.resolve()}
    return bench.measure([harness.Arm(arm.name, lambda number, arm=arm: told_photographs(arm, number, options)) for arm in arms],
                         arguments.photograph_rounds, title="timm, from JPEG")


def run_timm(bench: harness.Bench, arguments: argparse.Namespace) -> list[rows.Bar]:
    bits = rivals.figures_of(rivals.RECIPE_BITS, "timm_recipe.py", {"updates": arguments.timm_updates})
    print(f"timm, {bits_told(bits)}", flush=True)
    step = rivals.figures_of(rivals.RECIPE_STEP, "timm_recipe.py", {
        "rounds": arguments.rounds, "steps": arguments.timm_steps, "order-seed": arguments.order_seed})
    bench.keep({"bits": [bits], "step": [step]}, "timm")
    if WHY in step:
        print(f"timm, step: {WHY}: {step[WHY]}", flush=True)
    else:
        print(f"\ntimm: {arguments.rounds} rounds of {arguments.timm_steps} steps, batch 64, {step['threads']} threads, timm "
              f"{step['version']}; {OUR_LOOP} updates by {step['by']}; {harness.interval_remark(arguments.rounds)}")
        print(harness.arms_table({TIMM_LOOP: step["ms"]["timm"], OUR_LOOP: step["ms"]["ours"]}, "ms a step", 1, TIMM_LOOP), flush=True)
    photographs = measured_photographs(bench, arguments)
    rates = rates_where_both_ran(photographs)
    if any(rates.values()):
        print(f"\ntimm, from JPEG: {arguments.photograph_steps} steps of a process")
        print(harness.arms_table(rates, "samples/s", 1, rivals.TIMM_PHOTOGRAPHS.name), flush=True)
    return [*bits_bars(bits), recipe_step_bar(step), photographs_bar(photographs)]


PARTS = {"step": run_step, "optimizers": run_optimizers, "timm": run_timm}


def make_environments() -> int:
    reasons = {name: rivals.python_of(name) for name in rivals.REQUIREMENTS}
    for name, (python, reason) in reasons.items():
        print(f"{name}: {python if python is not None else f'{WHY}: {reason}'}")
    return 1 if any(reason for _, reason in reasons.values()) else 0


def part(word: str) -> str:
    if word not in (*PARTS, ENVIRONMENTS):
        raise argparse.ArgumentTypeError(f"wanted one of {', '.join(PARTS)}, {ENVIRONMENTS}, found {word}")
    return word


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = harness.parser(__doc__, rounds=9)
    parser.add_argument("parts", nargs="*", type=part, metavar="PART",
                        help=f"{', '.join(PARTS)} or {ENVIRONMENTS}; none: {', '.join(PARTS)}")
    parser.add_argument("--steps", type=int, default=1000, help="of a loop in a round (%(default)s)")
    parser.add_argument("--optimizer-steps", type=int, default=100, help="of a loop with an optimizer in a round (%(default)s)")
    parser.add_argument("--timm-updates", type=int, default=50, help="of timm's recipe before bits are compared (%(default)s)")
    parser.add_argument("--timm-steps", type=int, default=3, help="of timm's recipe in a round (%(default)s)")
    parser.add_argument("--photograph-rounds", type=int, default=5, help="of timm's recipe from JPEG files (%(default)s)")
    parser.add_argument("--photograph-steps", type=int, default=12, help="of timm's recipe from JPEG files in a round (%(default)s)")
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos", help="of tools/make_photos.py (%(default)s)")
    return parser.parse_args(words)


def main() -> int:
    arguments = parsed()
    if ENVIRONMENTS in arguments.parts:
        return make_environments()
    parts = arguments.parts or list(PARTS)
    bench = harness.Bench(__file__, arguments, ", ".join(parts))
    bars = [bar for part in parts for bar in PARTS[part](bench, arguments)]
    print("\n" + "\n".join(map(str, bars)), flush=True)
    return bench.end({"bars": [str(bar) for bar in bars]}, 3 if any(bar.met is False for bar in bars) else 0)


if __name__ == "__main__":
    sys.exit(main())
