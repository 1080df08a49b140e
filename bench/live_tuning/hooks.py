"""What the hooks of hr.autotune cost a step while it searches, and what is left of them when it is done.

usage: make bench NAME=live-tuning ARGS='hooks --minutes 10'        after ARGS='recordings', which has the step

A small network with one thread, so that noise in proportion to its own step hides nothing: blocks of steps alone, with a search
at work whose changes do nothing (so that its own cost is all there is to see), behind a search that has kept something and
looks at it again every ten minutes, after stop(), and with an empty forward hook alone, which is torch's own part of what any
hook costs. Told by the clock and in CPU time of the process. Wanted: 0.3 % of a step, that of tabular_mlp as recorded, while it
searches and while it watches; after stop() no hook, the loader's own class, and nothing that the interval tells from 0.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import harness
import rows
from live_tuning import recordings
from live_tuning.planted_knobs import PlantedKnobs, autotuned

KEYS = ("optimizer.fused", "train.precision", "compute.flush_denormal")
ALONE, EMPTY_HOOK, SEARCHING, WATCHING, STOPPED = "alone", "empty hook", "searching", "watching what is kept", "stopped"
ARMS = (ALONE, EMPTY_HOOK, SEARCHING, WATCHING, STOPPED)
SHARE = 0.003
JOB, ASSUMED_MS = "tabular_mlp", 0.86  # Whose step the share is of, and what it took elsewhere.
ROUNDS, ROUNDS_A_ROW = 40, 10
PLANTED_S = 0.001  # That a step takes more until a planted change is kept.


class Loop:
    def __init__(self) -> None:
        torch.manual_seed(1)
        dataset = TensorDataset(torch.randn(4096, 16), torch.randint(4, (4096,)))
        self.model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), 16, drop_last=True), batch_size=None)
        self.batches = self._batches()
        self.pause_s = 0.0  # Of each step.

    def _batches(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def steps(self, count: int) -> None:
        for _, (inputs, labels) in zip(range(count), self.batches):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(inputs), labels).backward()
            if self.pause_s:
                time.sleep(self.pause_s)
            self.optimizer.step()

    def hooks(self) -> int:
        """Of every kind that torch knows, what sees calls without one, and 1 for a loader of another class."""
        found = sum(len(hooks) for held in (self.optimizer, *self.model.modules())
                    for name, hooks in vars(held).items() if name.endswith("_hooks") and hooks)
        seen = sum("_compiled_call_impl" in vars(module) for module in self.model.modules())
        return found + seen + (type(self.loader) is not DataLoader)


def search(loop: Loop) -> Any:
    """A search whose changes do nothing, beyond its gate."""
    knobs = PlantedKnobs([loop.model], [loop.optimizer], loop.loader, KEYS, {key: lambda _on: None for key in KEYS})
    handle = autotuned([loop.model], [loop.optimizer], loop.loader, knobs, fixed=["data"])
    for _ in range(100):
        loop.steps(100)
        if (trials := handle.ledger["ledger"]["trials"]) and all(trial["numerics"]["checked"] for trial in trials):
            return handle
    raise RuntimeError(f"wanted a search that is past its gate within 10,000 steps, found {handle!r}: {handle.problem}")


def kept(loop: Loop) -> Any:
    """A search that is over and has kept a change, which takes the planted pause away."""
    def plant(on: bool) -> None:
        loop.pause_s = 0.0 if on else PLANTED_S

    told: list[str] = []
    plant(False)
    knobs = PlantedKnobs([loop.model], [loop.optimizer], loop.loader, KEYS[:1], {KEYS[0]: plant})
    handle = autotuned([loop.model], [loop.optimizer], loop.loader, knobs, fixed=["data"],
                       on_progress=lambda kind, _text: told.append(kind))
    for _ in range(200):
        loop.steps(100)
        if "ended" in told:
            break
    if not (handle.kept and handle.watching):
        raise RuntimeError(f"wanted a search that is over and watches what it kept, found {handle!r}: {handle.problem}")
    return handle


def nothing(*given: Any) -> None:
    """What the empty hook does."""


def block(loop: Loop, arm: str, steps: int) -> dict[str, float]:
    """Microseconds a step."""
    begun = {SEARCHING: search, STOPPED: search, WATCHING: kept}.get(arm)
    handle = begun(loop) if begun is not None else None
    empty = loop.model.register_forward_pre_hook(nothing, with_kwargs=True) if arm == EMPTY_HOOK else None
    if arm == STOPPED:
        handle.stop()
    loop.steps(100)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    loop.steps(steps)
    found = {"us": 1e6 * (time.perf_counter() - begin) / steps, "cpu_us": 1e6 * (time.process_time() - begin_cpu) / steps,
             "hooks": loop.hooks(), "searched": float(handle is not None and handle.watching)}
    if handle is not None:
        handle.undo()
        loop.pause_s = 0.0  # With the planted change it came back.
    if empty is not None:
        empty.remove()
    return found


def rounds(arguments: argparse.Namespace, first: int, count: int) -> dict[str, list[dict[str, float]]]:
    torch.set_num_threads(1)
    loop = Loop()
    loop.steps(2000)
    return harness.interleave([harness.Arm(arm, lambda _, arm=arm: block(loop, arm, arguments.steps)) for arm in ARMS], count,
                              warm_up=1, seed=arguments.order_seed + first)


def items(arguments: argparse.Namespace) -> Iterator[rows.Item]:
    count = 1 if arguments.quick else ROUNDS_A_ROW
    for first in range(1, arguments.rounds + 1, count):
        own = min(count, arguments.rounds + 1 - first)
        yield rows.Item({"first": first, "rounds": own, "steps": arguments.steps, "arms": len(ARMS)}, 8 * own,
                        lambda first=first, own=own: rounds(arguments, first, own))


def step_of(arguments: argparse.Namespace) -> tuple[float, str]:
    """Milliseconds of the step whose share is told, and where they come from."""
    if arguments.step_ms is not None:
        return arguments.step_ms, "as --step-ms says"
    recorded = recordings.step_times(rows.Rows(rows.path_of(arguments, "recordings"))).get(JOB)
    if recorded is None:
        return ASSUMED_MS, f"assumed, as there is no recording of {JOB}"
    return 1e3 * statistics.median(recorded), f"the median of {JOB} as recorded"


def judge(found: Mapping[str, Sequence[Mapping[str, float]]], step_us: float) -> dict[str, Any]:
    """Differences in CPU time, round by round."""
    added = {arm: [own["cpu_us"] - alone["cpu_us"] for own, alone in zip(figures, found[ALONE], strict=True)]
             for arm, figures in found.items() if arm != ALONE}
    return {"added_us": added, "shares": {arm: statistics.median(added[arm]) / step_us for arm in (SEARCHING, WATCHING)},
            "searched": {arm: all(each["searched"] for each in found[arm]) for arm in (SEARCHING, WATCHING)},
            "hooks_left": max(each["hooks"] for each in found[STOPPED]), "stopped_interval_us": harness.interval(added[STOPPED])}


def bars_of(verdict: Mapping[str, Any], step: str, complete: bool) -> list[rows.Bar]:
    low, high = verdict["stopped_interval_us"]

    def share_of(arm: str, what: str, lacking: str) -> rows.Bar:
        share, searched = verdict["shares"][arm], verdict["searched"][arm]
        return rows.Bar(f"what hooks add to a step of {step} {what}", f"{SHARE:.1%} at most",
                        f"{share:.3%}" + ("" if searched else f", but {lacking}"),
                        rows.at_the_end(share <= SHARE and searched, complete))

    return [
        share_of(SEARCHING, "while it searches", "not every block was searched in"),
        share_of(WATCHING, "while it watches what it kept", "not in every block it did"),
        rows.Bar("hooks left after stop()", "none", f"{verdict['hooks_left']:g}",
                 rows.once_complete(verdict["hooks_left"] == 0, complete)),
        rows.Bar("what is added to a step after stop()", "nothing that the interval tells from 0",
                 f"[{low:+.2f}, {high:+.2f}] us", rows.at_the_end(low <= 0, complete))]


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__, rounds=ROUNDS)
    parser.add_argument("--steps", type=int, default=500, help="of a block")
    parser.add_argument("--step-ms", type=rows.positive, help="of the step whose share is told; else that of "
                        f"{JOB} as recorded, or {ASSUMED_MS:g}")
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.rounds, arguments.steps = min(arguments.rounds, 2), min(arguments.steps, 50)
    bench = harness.Bench(__file__, arguments, f"hooks: {arguments.rounds} rounds of {arguments.steps} steps; "
                          f"{harness.interval_remark(arguments.rounds)}")
    session = rows.Session(rows.open_rows(arguments, "hooks"), arguments.minutes)
    complete = session.run(items(arguments))
    made = [figures for _, figures in session.rows.found(steps=arguments.steps, arms=len(ARMS))]
    found = {arm: [each for figures in made for each in figures[arm]] for arm in ARMS}
    if not found[ALONE]:
        return bench.end(None, rows.tell(session, complete, []))
    for clock, name in (("us", "by the clock"), ("cpu_us", "in CPU time")):
        print(f"{name}:\n" + harness.arms_table({arm: [each[clock] for each in own] for arm, own in found.items()},
                                                "us a step", 2, reference=ALONE))
    step_ms, whence = step_of(arguments)
    verdict = judge(found, 1e3 * step_ms)
    for arm, values in verdict["added_us"].items():
        print(f"{arm}: {harness.with_interval(values, 'us', 2)} more a step in CPU time")
    bars = bars_of(verdict, f"{step_ms:.3g} ms ({whence})", complete and not session.lacks and len(found[ALONE]) >= ROUNDS)
    return bench.end(verdict, rows.tell(session, complete, bars))
