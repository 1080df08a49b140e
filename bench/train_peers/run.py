#!/usr/bin/env python3
"""hr.Trainer beside the training loops of Lightning, Fabric, Accelerate and Composer, and under optimizers of torchao, timm and
torch. The rivals have environments of their own with the project's torch, made when they are first needed; one that cannot be
installed, imported or run is told as unavailable, with the reason.

step        us a step of the MLP of bench/python_step from a DataLoader. Each round runs every loop once, in its own process, in a
            drawn order. Wanted: with all features at most 0.2 times Lightning's Trainer and 0.1 times Composer's, as they come.
optimizers  torchao's AdamW8bit, timm's Lamb and torch's Muon, which step themselves, under hr.Trainer and in the plain loop with
            them: ms a step, bits, and bytes of state, beside the engine's AdamW. Wanted: not slower, and the same bits.

A part ends with a line for each of its bars, "what: wanted X, found Y: met". Exit status 3: one is missed.

usage: make bench NAME=train-peers                                       both parts
       make bench NAME=train-peers ARGS='step --rounds 5'                or ARGS=optimizers
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


def run_step(bench: harness.Bench, arguments: argparse.Namespace) -> list[rows.Bar]:
    options = {"steps": arguments.steps}
    trials = {loop: rivals.figures_of(loop, "steps.py", {"steps": TRIAL_STEPS}) for loop in rivals.LOOPS}
    arms = [harness.Arm(loop.name, lambda _, loop=loop: rivals.figures_of(loop, "steps.py", options))
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
    found = {rival.name: rivals.figures_of(rival, "optimizers.py", options) for rival in rivals.OPTIMIZERS}
    bench.keep({name: [figures] for name, figures in found.items()}, "optimizers")
    print(f"\noptimizers: {arguments.rounds} rounds of {arguments.optimizer_steps} steps, MLP 256-256-256-16 without biases, "
          f"batch 64, 1 thread; {harness.interval_remark(arguments.rounds)}")
    print(optimizers_table(found), flush=True)
    return optimizer_bars(found)


PARTS = {"step": run_step, "optimizers": run_optimizers}


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
                        help=f"{', '.join(PARTS)} or {ENVIRONMENTS}; none: {' and '.join(PARTS)}")
    parser.add_argument("--steps", type=int, default=1000, help="of a loop in a round (%(default)s)")
    parser.add_argument("--optimizer-steps", type=int, default=100, help="of a loop with an optimizer in a round (%(default)s)")
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
