"""How fast and how rightly the live tuner decides, on recorded steps: false keeps, pairs and steps to a verdict, regret.

usage: make bench NAME=live-tuning ARGS='decisions --minutes 60'        after ARGS='recordings'

The whole native LiveTuner runs against a loop that does not compute: its steps take what recorded ones took, in segments of at
least 40 neighbouring steps from drawn places, divided by 1 + gain of every change in force; the clock is the loop's, so that a
busy machine makes this slower and changes no figure. Verdicts: one change of a known gain, --runs runs of at most 300 s of each.
Regret: six changes (-20, 0, 0, +5, +15, +60 %, which is which is drawn) in runs of 5 min and of 1 h, --regret-runs of each: how
much less time the same steps take with all that pay, as a share of the run.

The ranks that judged before can no longer be called; what they did on recorded steps stands in
docs/decisions/0024-bets-judge-every-trial.md.
"""

import argparse
import functools
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import harness
import rows
from live_tuning import recordings

GAIN_MIN = 0.02
GAINS = (-0.20, 0.0, GAIN_MIN, 0.05, 0.15, 0.60)
RACE = (-0.20, 0.0, 0.0, 0.05, 0.15, 0.60)
KEYS = ("optimizer.fused", "model.memory_format", "train.precision", "compute.allocator", "compute.flush_denormal",
        "compute.intra_op_threads")  # Of six changes that any machine with two cores has.
VERDICT_S = 300.0
HORIZONS = {"5 min": 300.0, "1 h": 3600.0}
REPLAY_STEPS = 1.0  # That a forward and backward of a kept call takes.
JOBS, RUNS, REGRET_RUNS = 5, 1000, 150  # That the bars want, runs of each job and gain, and of each job and length.
WORTHLESS_KEPT, GAIN_MIN_KEPT = 0.005, 0.02
BARS = {-0.20: (8, 25), 0.60: (10, 35), 0.15: (35, 90)}  # Medians: pairs, and steps where a block is one step.
ONE_STEP_S = 0.02
REGRETS = {"5 min": 0.08, "1 h": 0.01}
REGRET_STRETCH = 0.02  # Of 5 min.
SIMULATED_STEP_S = 5e-6  # That a step of the simulation takes, about.


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
        self._speed, self._replayed_s, self._has_tried = 1.0, 0.0, False
        self.now = self.best_s = 0.0  # What the run took, and what its steps take with all that pay.
        self.updates = 0
        self.checked = 0  # The update whose call was the last to be replayed before anything was in force: pairs follow it.

    # For the tuner.

    def apply(self, settings: Mapping[str, str]) -> None:
        self._speed = 1.0
        for change, gain in self._gains.items():
            self._speed *= 1 + gain if settings.get(change[0]) == change[1] else 1
        self._has_tried = self._has_tried or bool(settings)

    def replay(self, reference: Mapping[str, str], candidate: Mapping[str, str], full_precision: bool = True) -> dict[str, Any]:
        took_s = REPLAY_STEPS * self._typical_s
        spent_s = took_s if self._replayed_s > 0 else 2 * took_s  # The first of an update replays the loop as written, too.
        self.now += spent_s
        self._replayed_s += spent_s
        if not self._has_tried:
            self.checked = self.updates + 1
        return {"relative_l2": 0.0, "cosine": 1.0, "worst_tensor": 0.0, "worst_name": "", "output_difference": 0.0,
                "finite": True, "bit_equal": True, "seconds": took_s, "update_difference": 0.0,
                "other_draws": False}

    def distance_between_calls(self) -> float:
        return 1.0

    def updates_left(self) -> int:
        return max(0, int((self._horizon_s - self.now) / self._typical_s))

    def queued_units(self) -> int:
        return 0

    # For the bench.

    def run(self, tuner: Any, is_over: Callable[[], bool] = lambda: False) -> None:
        """To the horizon. It is written for speed: an hour of a small network has millions of steps."""
        watching, keeps_call, before_update, after_update = (
            tuner.watching, tuner.keeps_call, tuner.before_update, tuner.after_update)
        is_watched, keeps, best, horizon_s = watching(), False, self._best, self._horizon_s
        for plain_s in self._times:
            if keeps:
                before_update()
            took_s = plain_s / self._speed
            self.now += took_s
            self.best_s += plain_s / best
            self.updates += 1
            if is_watched:  # As hr.autotune, which then has no hooks left.
                after_update(self.updates, took_s + self._replayed_s, 1.0, 0.0, True, "")
                self._replayed_s = 0.0
                keeps, is_watched = keeps_call(), watching()
            if self.now >= horizon_s or is_over():
                return


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
    from headrace import _core

    options = {"allow": "reduced_precision", "gain_min": GAIN_MIN, "only": [], "fixed": [], "frozen": False, "spent_s": 0.0}
    return _core.LiveTuner(loop, list(tried), options, seed, {"decided": decided}, lambda: loop.now)


def gain_of(candidate: Any, gain: float) -> dict[tuple[str, str], float]:
    return {(candidate.key, candidate.changes[candidate.key]): gain}


def verdict(step_s: Sequence[float], gain: float, number: int, horizon_s: float) -> dict[str, Any]:
    """One change alone, until it is decided or the time is over. Steps are counted from the first pair on."""
    draw = random.Random(f"verdict {gain} {number}")
    candidate = candidates()[0]
    loop = SimulatedLoop(resampled(step_s, draw), statistics.median(step_s), gain_of(candidate, gain), horizon_s)
    decided: list[int] = []
    tuner = tuner_of(loop, [candidate], number, lambda _text: decided.append(loop.updates))
    loop.run(tuner, lambda: bool(decided) or not tuner.watching())
    (trial,) = tuner.trials()
    return {"verdict": trial["verdict"], "reason": trial["reason"], "pairs": trial["pairs"],
            "steps": decided[0] - loop.checked if decided else None, "seconds": loop.now}


def regret(step_s: Sequence[float], number: int, horizon_s: float) -> dict[str, Any]:
    """Six changes at once: the share of the run that all that pay, in force from the first step on, would have saved."""
    draw = random.Random(f"regret {number}")
    tried, gains = candidates(), draw.sample(RACE, len(RACE))
    by_change = {change: gain for one, own in zip(tried, gains) for change, gain in gain_of(one, own).items()}
    loop = SimulatedLoop(resampled(step_s, draw), statistics.median(step_s), by_change, horizon_s)
    tuner = tuner_of(loop, tried, number, lambda _text: None)
    loop.run(tuner)
    name_of = {one.name: gain for one, gain in zip(tried, gains)}
    kept = sorted(name_of[trial["name"]] for trial in tuner.trials() if trial["verdict"] == "kept")
    return {"regret": 1 - loop.best_s / loop.now, "kept_gains": kept, "updates": loop.updates}


# What is to be run.


def chunks(count: int, size: int) -> list[range]:
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def items(jobs: Mapping[str, Sequence[float]], arguments: argparse.Namespace) -> Iterator[rows.Item]:
    """Chunks of all jobs in turns, so that a call that ends early has some of each."""
    verdict_s, horizons = (20.0, {"5 min": 20.0}) if arguments.quick else (VERDICT_S, HORIZONS)
    typical_s = {job: statistics.median(step_s) for job, step_s in jobs.items()}
    for numbers in chunks(arguments.runs, 25):
        for job, gain in itertools.product(jobs, GAINS):
            yield rows.Item({"what": "verdict", "job": job, "gain": gain, "first": numbers[0], "runs": len(numbers)}, 10,
                            lambda job=job, gain=gain, numbers=numbers: [
                                verdict(jobs[job], gain, number, verdict_s) for number in numbers])
    for numbers in chunks(arguments.regret_runs, 5):
        for job, horizon in itertools.product(jobs, horizons):
            steps = horizons[horizon] / typical_s[job]
            yield rows.Item({"what": "regret", "job": job, "horizon": horizon, "first": numbers[0], "runs": len(numbers)},
                            1 + len(numbers) * steps * SIMULATED_STEP_S,
                            lambda job=job, horizon=horizon, numbers=numbers: [
                                regret(jobs[job], number, horizons[horizon]) for number in numbers])


# What came of it.


def share(runs: Sequence[Mapping[str, Any]], wanted: str) -> float:
    return sum(run["verdict"] == wanted for run in runs) / len(runs)


def median_of(runs: Sequence[Mapping[str, Any]], what: str, wanted: str) -> float:
    """Of those that came to this verdict; the others count as longer than any."""
    return statistics.median(run[what] if run["verdict"] == wanted and run[what] is not None else float("inf") for run in runs)


def kept_in_time(by_gain: Mapping[float, Sequence[Mapping[str, Any]]]) -> bool:
    """Whether +5 % is kept within the seconds of a run, in most runs."""
    return bool(by_gain.get(0.05)) and share(by_gain[0.05], "kept") >= 0.5


def verdict_bars(jobs: Mapping[str, float], runs: Mapping[str, Mapping[float, Sequence[Mapping[str, Any]]]],
                 complete: bool) -> list[rows.Bar]:
    """jobs: seconds of a step; runs: by job and gain."""
    def bar(what: str, wanted: str, most: float, found: Mapping[str, float], form: str) -> rows.Bar:
        told = ", ".join(f"{job} {value:{form}}" for job, value in found.items()) or "nothing yet"
        whole = complete and len(found) > 0
        return rows.Bar(what, wanted, told, rows.at_the_end(all(value <= most for value in found.values()), whole))

    def of_each(gain: float, figure: Callable[[Sequence[Mapping[str, Any]]], float], least_s: float = 0.0) -> dict[str, float]:
        return {job: figure(runs[job][gain]) for job, step_s in jobs.items() if runs[job].get(gain) and step_s >= least_s}

    found = [bar("a worthless change is kept", f"in {WORTHLESS_KEPT:.1%} of the runs of a job at most", WORTHLESS_KEPT,
                 of_each(0.0, lambda own: share(own, "kept")), ".2%"),
             bar(f"one worth exactly {GAIN_MIN:.0%} is kept", f"in {GAIN_MIN_KEPT:.0%} at most", GAIN_MIN_KEPT,
                 of_each(GAIN_MIN, lambda own: share(own, "kept")), ".2%")]
    for gain, (pairs, steps) in BARS.items():
        verdict_of, wanted = ("kept" if gain > 0 else "dropped"), "kept" if gain > 0 else "refused"
        for what, most, least_s in (("pairs", pairs, 0.0), ("steps", steps, ONE_STEP_S)):
            where = ", where a block is one step" if what == "steps" else ""
            found.append(bar(f"{gain:+.0%} {verdict_of}, median {what}{where}", f"{most} at most", most, of_each(
                gain, lambda own, what=what: median_of(own, what, wanted), least_s), ".3g"))
    in_time = [job for job in jobs if kept_in_time(runs[job])]
    for least, is_stretch in ((math.ceil(0.6 * len(jobs)), False), (len(jobs), True)):
        found.append(rows.Bar("+5 % kept within 300 s in most runs", f"in {least} of {len(jobs)} jobs",
                              ", ".join(in_time) or "none", rows.at_the_end(len(in_time) >= least, complete), is_stretch))
    return found


def regret_bars(means: Mapping[str, Mapping[str, float]], complete: bool) -> list[rows.Bar]:
    """means: by job and length of the run, as shares. complete: of REGRET_RUNS each, too."""
    def bar(horizon: str, most: float, is_stretch: bool) -> rows.Bar:
        found = {job: by_horizon[horizon] for job, by_horizon in means.items() if horizon in by_horizon}
        told = ", ".join(f"{job} {mean:.2%}" for job, mean in found.items()) or "nothing yet"
        whole = complete and len(found) > 0
        return rows.Bar(f"behind the best arm in a run of {horizon}, mean of the runs of a job", f"{most:.0%} at most", told,
                        rows.at_the_end(all(mean <= most for mean in found.values()), whole), is_stretch)

    return [bar("1 h", REGRETS["1 h"], False), bar("5 min", REGRETS["5 min"], False), bar("5 min", REGRET_STRETCH, True)]


def show_verdicts(found: rows.Rows, jobs: Iterable[str]) -> dict[str, dict[float, list[dict[str, Any]]]]:
    """By job and gain, the runs."""
    lines, by_job = [], {}
    for job in jobs:
        by_job[job] = {gain: [run for _, runs in found.found(what="verdict", job=job, gain=gain) for run in runs]
                       for gain in GAINS}
        for gain, runs in by_job[job].items():
            if not runs:
                continue
            decided = "refused" if gain < GAIN_MIN else "kept"
            medians = [f"{median_of(runs, what, decided):.4g}" for what in ("pairs", "steps", "seconds")]
            lines.append([job, f"{gain:+.0%}", str(len(runs)), f"{share(runs, 'kept'):.1%}", f"{share(runs, 'refused'):.1%}",
                          *medians])
    print("\n" + harness.table(["job", "worth", "runs", "kept", "dropped", "pairs", "steps", "s"], lines))
    print("pairs, steps and s are medians to the verdict that is right; inf: most runs did not come to it")
    return by_job


def kept_text(runs: Sequence[Mapping[str, Any]], gain: float) -> str:
    """How many of the race's changes that are worth so much were kept."""
    return f"{sum(run['kept_gains'].count(gain) for run in runs)} of {RACE.count(gain) * len(runs)}"


def show_regret(found: rows.Rows, jobs: Iterable[str]) -> dict[str, dict[str, float]]:
    """Means of the runs, as shares, with the quartiles, and what was kept wrongly."""
    lines, means = [], {}
    for job in jobs:
        for horizon in HORIZONS:
            runs = [run for _, own in found.found(what="regret", job=job, horizon=horizon) for run in own]
            if not runs:
                continue
            values = [run["regret"] for run in runs]
            low, high = harness.quartiles(values)
            means.setdefault(job, {})[horizon] = statistics.mean(values)
            lines.append([job, horizon, str(len(values)), f"{statistics.mean(values):.2%}", f"{low:.2%} - {high:.2%}",
                          kept_text(runs, 0.0), kept_text(runs, -0.20)])
    if lines:
        headings = ["job", "run", "runs", "behind the best arm", "quartiles", "kept at 0 %", "kept at -20 %"]
        print("\n" + harness.table(headings, lines, left=(0, 1)))
    return means


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each job and gain")
    parser.add_argument("--regret-runs", type=int, default=REGRET_RUNS, help="of each job and length")
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.runs, arguments.regret_runs = min(arguments.runs, 2), min(arguments.regret_runs, 1)
    bench = harness.Bench(__file__, arguments, f"decisions: {arguments.runs} runs of each job and gain on recorded steps")
    recorded = rows.Rows(rows.path_of(arguments, "recordings"))
    jobs = recordings.step_times(recorded)
    if not jobs:
        raise SystemExit(f"decisions: {recorded.path}: wanted recorded steps, found none: run recordings first")
    found = rows.open_rows(arguments, "decisions")
    session = rows.Session(found, arguments.minutes)
    complete = session.run(items(jobs, arguments))
    runs, means = show_verdicts(found, jobs), show_regret(found, jobs)
    whole = complete and not session.lacks and len(jobs) >= JOBS
    step_s = {job: statistics.median(own) for job, own in jobs.items()}
    bars = [*verdict_bars(step_s, runs, whole and arguments.runs >= RUNS),
            *regret_bars(means, whole and arguments.regret_runs >= REGRET_RUNS)]
    return bench.end({"bars": [str(bar) for bar in bars], "regret": means}, rows.tell(session, complete, bars))
