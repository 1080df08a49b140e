"""How fast and how rightly the live tuner decides, on recorded steps: false keeps, pairs and steps to a verdict, regret.

usage: make bench NAME=live-tuning ARGS='decisions --minutes 9'        after ARGS='recordings'

The whole native LiveTuner runs against a loop that does not compute: its steps take what recorded ones took, in segments of at
least 40 neighbouring steps from drawn places, divided by 1 + gain of every change in force; the clock is the loop's. Verdicts:
one change of a known gain, --runs runs of at most 300 s of each. Regret: six changes (-20, 0, 0, +5, +15, +60 %, which is which
is drawn) in runs of 5 min and of 1 h, --regret-runs of each: how much less time the same steps take with all that pay, as a share
of the run.

The ranks that judged before can no longer be called; what they did on recorded steps stands in
docs/decisions/0024-bets-judge-every-trial.md.
"""

import argparse
import functools
import itertools
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import harness
from live_tuning import recordings, rows

GAIN_MIN = 0.02
GAINS = (-0.20, 0.0, GAIN_MIN, 0.05, 0.15, 0.60)
RACE = (-0.20, 0.0, 0.0, 0.05, 0.15, 0.60)
KEYS = ("optimizer.fused", "model.memory_format", "train.precision", "compute.allocator", "compute.flush_denormal",
        "compute.intra_op_threads")  # Of six changes that any machine with two cores has.
VERDICT_S = 300.0
HORIZONS = {"5 min": 300.0, "1 h": 3600.0}
REPLAY_STEPS = 1.0  # That a forward and backward of a kept call takes.
BARS = {-0.20: (8, 25), 0.60: (10, 35), 0.15: (35, 90)}  # Medians: pairs, and steps where a block is one step.
ONE_STEP_S = 0.02


def resampled(step_s: Sequence[float], draw: random.Random, least: int = recordings.LEAST) -> Iterator[float]:
    """Recorded steps without end, in segments of `least` to twice as many neighbours."""
    while True:
        length = min(len(step_s), draw.randint(least, 2 * least))
        start = draw.randint(0, len(step_s) - length)
        yield from step_s[start:start + length]


class SimulatedLoop:
    """What LiveTuner sees of a run. `gains`: of each change, by its settings' key and value."""

    def __init__(self, step_s: Iterable[float], typical_s: float, gains: Mapping[tuple[str, str], float],
                 horizon_s: float) -> None:
        self._times, self._typical_s, self._gains, self._horizon_s = iter(step_s), typical_s, gains, horizon_s
        self._best = 1.0
        for gain in gains.values():
            self._best *= 1 + max(0.0, gain)
        self._speed, self._replayed_s, self._keeps = 1.0, 0.0, False
        self.now = self.best_s = 0.0  # What the run took, and what its steps take with all that pay.
        self.updates = 0
        self.first_tried: int | None = None  # The first update under other settings.

    # For the tuner.

    def apply(self, settings: Mapping[str, str]) -> None:
        self._speed = 1.0
        for change, gain in self._gains.items():
            self._speed *= 1 + gain if settings.get(change[0]) == change[1] else 1
        if settings and self.first_tried is None:
            self.first_tried = self.updates + 1

    def replay(self, reference: Mapping[str, str], candidate: Mapping[str, str]) -> dict[str, Any]:
        took_s = REPLAY_STEPS * self._typical_s
        self.now += took_s
        self._replayed_s += took_s
        return {"relative_l2": 0.0, "cosine": 1.0, "worst_tensor": 0.0, "worst_name": "", "output_difference": 0.0,
                "finite": True, "bit_equal": True, "seconds": took_s, "update_difference": 0.0}

    def distance_between_calls(self) -> float:
        return 1.0

    def updates_left(self) -> int:
        return max(0, int((self._horizon_s - self.now) / self._typical_s))

    def queued_units(self) -> int:
        return 0

    def agree(self, yes: bool) -> bool:
        return yes

    # For the bench.

    def step(self, tuner: Any) -> None:
        if self._keeps:
            tuner.before_update()
        plain_s = next(self._times)
        took_s = plain_s / self._speed
        self.now += took_s
        self.best_s += plain_s / self._best
        self.updates += 1
        if tuner.watching():  # As hr.autotune, which then has no hooks left.
            tuner.after_update(self.updates, took_s + self._replayed_s, 1.0, 0.0, True, "")
            self._keeps = tuner.keeps_call()
        self._replayed_s = 0.0


@functools.cache
def candidates() -> list[Any]:
    """Of the one knob table, as hr.autotune offers them for a small convolutional network: one of each of KEYS."""
    import torch
    from headrace._live_knobs import LiveKnobs
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    offered = LiveKnobs([model], [optimizer], None).offer("reduced_precision", (), (), None)
    first: dict[str, Any] = {}
    for candidate in offered.candidates:
        first.setdefault(candidate.key, candidate)
    if missing := [key for key in KEYS if key not in first]:
        raise SystemExit(f"decisions: wanted changes of {', '.join(KEYS)}, found none of {', '.join(missing)}")
    return [first[key] for key in KEYS]


def tuner_of(loop: SimulatedLoop, tried: Sequence[Any], seed: int, decided: Any) -> Any:
    from headrace import _native

    options = {"allow": "reduced_precision", "gain_min": GAIN_MIN, "only": [], "fixed": [], "frozen": False, "spent_s": 0.0}
    return _native.LiveTuner(loop, list(tried), options, seed, {"decided": decided}, lambda: loop.now)


def gain_of(candidate: Any, gain: float) -> dict[tuple[str, str], float]:
    return {(candidate.key, candidate.changes[candidate.key]): gain}


def verdict(step_s: Sequence[float], gain: float, number: int, horizon_s: float) -> dict[str, Any]:
    """One change alone, until it is decided or the time is over."""
    draw = random.Random(f"verdict {gain} {number}")
    candidate = candidates()[0]
    loop = SimulatedLoop(resampled(step_s, draw), statistics.median(step_s), gain_of(candidate, gain), horizon_s)
    decided: list[int] = []
    tuner = tuner_of(loop, [candidate], number, lambda _text: decided.append(loop.updates))
    while loop.now < horizon_s and not decided and tuner.watching():
        loop.step(tuner)
    (trial,) = tuner.trials() or [{"verdict": "inconclusive", "reason": "budget", "pairs": 0}]
    steps = decided[0] - loop.first_tried + 1 if decided and loop.first_tried else None
    return {"verdict": trial["verdict"], "reason": trial["reason"], "pairs": trial["pairs"], "steps": steps, "seconds": loop.now}


def regret(step_s: Sequence[float], number: int, horizon_s: float) -> dict[str, Any]:
    """Six changes at once: the share of the run that all that pay, in force from the first step on, would have saved."""
    draw = random.Random(f"regret {number}")
    tried, gains = candidates(), draw.sample(RACE, len(RACE))
    by_change = {change: gain for one, own in zip(tried, gains) for change, gain in gain_of(one, own).items()}
    loop = SimulatedLoop(resampled(step_s, draw), statistics.median(step_s), by_change, horizon_s)
    tuner = tuner_of(loop, tried, number, lambda _text: None)
    while loop.now < horizon_s:
        loop.step(tuner)
    name_of = {one.name: gain for one, gain in zip(tried, gains)}
    kept = sorted(name_of[trial["name"]] for trial in tuner.trials() if trial["verdict"] == "kept")
    return {"regret": 1 - loop.best_s / loop.now, "kept_gains": kept, "updates": loop.updates}


# What is to be run.


def chunks(count: int, size: int) -> list[range]:
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def items(jobs: Mapping[str, Sequence[float]], arguments: argparse.Namespace) -> Iterator[rows.Item]:
    """Chunks of all jobs in turns, so that a call that ends early has some of each."""
    verdict_s, horizons = (20.0, {"5 min": 20.0}) if arguments.quick else (VERDICT_S, HORIZONS)
    for numbers in chunks(arguments.runs, 25):
        for job, gain in itertools.product(jobs, GAINS):
            yield rows.Item({"what": "verdict", "job": job, "gain": gain, "first": numbers[0], "runs": len(numbers)}, 20,
                            lambda job=job, gain=gain, numbers=numbers: [
                                verdict(jobs[job], gain, number, verdict_s) for number in numbers])
    for numbers in chunks(arguments.regret_runs, 5):
        for job, horizon in itertools.product(jobs, horizons):
            yield rows.Item({"what": "regret", "job": job, "horizon": horizon, "first": numbers[0], "runs": len(numbers)}, 60,
                            lambda job=job, horizon=horizon, numbers=numbers: [
                                regret(jobs[job], number, horizons[horizon]) for number in numbers])


# What came of it.


def share(runs: Sequence[Mapping[str, Any]], wanted: str) -> float:
    return sum(run["verdict"] == wanted for run in runs) / len(runs)


def median_of(runs: Sequence[Mapping[str, Any]], what: str) -> float:
    """Undecided runs count as longer than any."""
    values = [run[what] if run["verdict"] != "inconclusive" and run[what] is not None else float("inf") for run in runs]
    return statistics.median(values)


def judge(job_s: float, runs: Mapping[float, Sequence[Mapping[str, Any]]]) -> dict[str, bool]:
    """The bars of one job whose step takes job_s, by gain; those of gains without runs are left out."""
    met = {}
    if runs.get(0.0):
        met["worthless kept in 0.5 % at most"] = share(runs[0.0], "kept") <= 0.005
    if runs.get(GAIN_MIN):
        met["worth gain_min kept in 2 % at most"] = share(runs[GAIN_MIN], "kept") <= 0.02
    for gain, (pairs, steps) in BARS.items():
        if not runs.get(gain):
            continue
        right = share(runs[gain], "kept" if gain > 0 else "refused") >= 0.5
        met[f"{gain:+.0%} after {pairs} pairs"] = right and median_of(runs[gain], "pairs") <= pairs
        if job_s >= ONE_STEP_S:
            met[f"{gain:+.0%} after {steps} steps"] = right and median_of(runs[gain], "steps") <= steps
    if runs.get(0.05):
        met["+5 % kept within 300 s"] = share(runs[0.05], "kept") >= 0.5
    return met


def show_verdicts(found: rows.Rows, jobs: Mapping[str, Sequence[float]]) -> dict[str, dict[str, bool]]:
    lines, met = [], {}
    for job, step_s in jobs.items():
        by_gain = {gain: [run for _, runs in found.found(what="verdict", job=job, gain=gain) for run in runs] for gain in GAINS}
        for gain, runs in by_gain.items():
            if runs:
                medians = [f"{median_of(runs, what):.4g}" for what in ("pairs", "steps", "seconds")]
                lines.append([job, f"{gain:+.0%}", str(len(runs)), f"{share(runs, 'kept'):.1%}", f"{share(runs, 'refused'):.1%}",
                              *medians])
        met[job] = judge(statistics.median(step_s), by_gain)
    print("\n" + harness.table(["job", "worth", "runs", "kept", "dropped", "pairs", "steps", "s"], lines))
    print("pairs, steps and s are medians; inf: most runs were not decided")
    for job, bars in met.items():
        print(f"{job:<12} " + "; ".join(f"{bar}: {'met' if good else 'MISSED'}" for bar, good in bars.items()))
    return met


def show_regret(found: rows.Rows, jobs: Iterable[str]) -> dict[str, dict[str, float]]:
    """Means of the runs, in percent, with the quartiles."""
    lines, means = [], {}
    for job in jobs:
        for horizon in HORIZONS:
            values = [100 * run["regret"] for _, runs in found.found(what="regret", job=job, horizon=horizon) for run in runs]
            if not values:
                continue
            low, high = harness.quartiles(values)
            means.setdefault(job, {})[horizon] = statistics.mean(values)
            bar = {"5 min": 8.0, "1 h": 1.0}[horizon]
            lines.append([job, horizon, str(len(values)), f"{statistics.mean(values):.2f} %", f"{low:.2f} - {high:.2f}",
                          "met" if statistics.mean(values) <= bar else "MISSED"])
    if lines:
        print("\n" + harness.table(["job", "run", "runs", "behind the best arm", "quartiles", "wanted 8 and 1 %"], lines,
                                   left=(0, 1)))
    return means


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="of each job and gain")
    parser.add_argument("--regret-runs", type=int, default=150, help="of each job and length")
    rows.add_options(parser)
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.runs, arguments.regret_runs = min(arguments.runs, 2), min(arguments.regret_runs, 1)
    bench = harness.Bench(__file__, arguments, f"decisions: {arguments.runs} runs of each job and gain on recorded steps")
    jobs = recordings.step_times(recordings.path_of(arguments))
    if not jobs:
        raise SystemExit(f"decisions: {recordings.path_of(arguments)}: wanted recorded steps, found none: run recordings first")
    found = rows.open_rows(arguments, "decisions")
    session = rows.Session(found, arguments.minutes)
    complete = session.run(items(jobs, arguments))
    met, means = show_verdicts(found, jobs), show_regret(found, jobs)
    five = sum(bars.get("+5 % kept within 300 s", False) for bars in met.values())
    print(f"+5 % kept within 300 s in {five} of {len(jobs)} jobs, wanted 3 of 5")
    rows.told_left(session, complete)
    must = [good for bars in met.values() for bar, good in bars.items() if not bar.startswith("+5 %")]
    good = all(must) and 5 * five >= 3 * len(jobs) and all(
        mean <= {"5 min": 8.0, "1 h": 1.0}[horizon] for by_horizon in means.values() for horizon, mean in by_horizon.items())
    return bench.end({"met": met, "regret_percent": means}, 0 if good or not complete else 3)

