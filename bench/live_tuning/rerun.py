"""The 12 foreign scripts with hr.autotune, each verdict against a re-run of that change alone in 60 pairs of separate blocks.

usage: make bench NAME=live-tuning ARGS='rerun --minutes 9'

Of each script: a live run of 5 min or 300 steps, the longer, whose verdicts go to a row unread; then, each in a fresh process,
every change that there is to try, in --pairs pairs against the loop as written, and the gradients of three kept calls under all
of them. Only when the last of these rows is written are the verdicts looked at. Wanted: every change that its re-run puts beyond
15 % either way is decided (loading knobs apart), beyond 10 % nine in ten; no kept change whose re-run has its 95 % interval
wholly below 0, or whose gradients are too far off.
"""

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import harness
from live_tuning import rows, scripts_known
from live_tuning.turns import Gain, shape_of

ENDLESS = 1_000_000  # Steps of a run that its arm ends.
COMPILE_S = 180.0  # That the first step of a compiled model may take.
DECIDED = ("kept", "refused", "failed")
GRADIENTS, TENSOR, OUTPUTS, UPDATE = 1e-2, 0.1, 1e-5, 1e-6  # Relative L2 that class rounding allows.
BETWEEN_CALLS, COSINE = 0.5, 0.9  # What reduced_precision allows, of the distance between two calls.


@dataclass(frozen=True)
class Sizes:
    live_s: float
    live_steps: int
    pairs: int
    calls: int


def sizes_of(arguments: argparse.Namespace) -> Sizes:
    return Sizes(2, 30, 3, 2) if arguments.quick else Sizes(300, 300, arguments.pairs, 3)


def items(name: str, found: rows.Rows, arguments: argparse.Namespace) -> Iterator[rows.Item]:
    """Those behind an item are made from its row. Where that is missing, as it failed, nothing more can be asked for."""
    sizes, queue = sizes_of(arguments), scripts_known.SCRIPTS[name].queue

    def item(what: str, seconds: float, work: Any, **more: Any) -> rows.Item:
        return rows.Item({"script": name, "what": what, **more}, seconds, work)

    yield item("step", 30, lambda: scripts_known.step_seconds(name, arguments))
    step = found.figures(script=name, what="step")
    if step is None:
        return
    step_s = step["step_s"]
    live_steps = max(sizes.live_steps, math.ceil(sizes.live_s / step_s))
    yield item("live", 20 + live_steps * step_s, lambda: scripts_known.play(
        name, arguments, "autotuned", live_steps, allow=arguments.allow))
    yield item("offered", 15, lambda: scripts_known.play(name, arguments, "offered", ENDLESS, run_steps=live_steps))
    offered = found.figures(script=name, what="offered")
    if offered is None:
        return
    shape = shape_of(step_s, queue=queue)
    pairs_s = 2 * sizes.pairs * (shape.wash_out + shape.counted) * step_s
    for change in offered["candidates"]:
        once_s = COMPILE_S if change["key"] == "model.compile" else 0
        yield item("pairs", 20 + once_s + pairs_s, lambda change=change, once_s=once_s: scripts_known.play(
            name, arguments, "pairs", ENDLESS, limit_s=60 + once_s + 3 * pairs_s, changes=change["changes"], pairs=sizes.pairs,
            queue=queue), change=change["name"])
    yield item("numerics", 60, lambda: scripts_known.play(
        name, arguments, "numerics", ENDLESS, limit_s=300, candidates=offered["candidates"], calls=sizes.calls))


# What came of it.


def call_passes(numerics: str, distance: Mapping[str, Any]) -> bool | None:
    """Whether a change of this class may move a call's gradients so far; None: the call cannot tell."""
    if "failure" in distance:
        return None if distance["failure"][0] in ("out_of_memory", "unsupported") else False
    if numerics == "bit_equal":
        return distance["bit_equal"] and not distance["update_difference"]
    if numerics == "rounding":
        return (distance["finite"] and distance["relative_l2"] <= GRADIENTS and distance["worst_tensor"] <= TENSOR
                and distance["output_difference"] <= OUTPUTS and (distance["update_difference"] or 0) <= UPDATE)
    if distance["between_calls"] is None:
        return None
    return (distance["finite"] and distance["cosine"] >= COSINE
            and distance["relative_l2"] <= BETWEEN_CALLS * distance["between_calls"])


def numerics_hold(numerics: str, distances: Sequence[Mapping[str, Any]]) -> bool | None:
    """By most of the calls that can tell."""
    answers = [answer for answer in (call_passes(numerics, distance) for distance in distances) if answer is not None]
    return sum(answers) * 2 > len(answers) if answers else None


@dataclass(frozen=True)
class Checked:
    """A change with its live verdict and its re-run."""

    script: str
    change: str
    key: str
    verdict: str  # "not tried" where the live run has no trial of it.
    sentence: str
    pairs_needed: int | None  # Further ones that would decide it, as the ledger says; None: decided, or it cannot tell.
    rerun: Gain | None  # None: not one pair.
    numerics_hold: bool | None

    @property
    def is_decided(self) -> bool:
        return self.verdict in DECIDED

    @property
    def is_wrong(self) -> bool:
        """Kept, and worse than the loop as written."""
        return self.verdict == "kept" and (self.numerics_hold is False or (self.rerun is not None and self.rerun.high < 0))

    def is_beyond(self, share: float) -> bool:
        return self.rerun is not None and abs(self.rerun.median) > share


def checked(name: str, found: rows.Rows) -> list[Checked] | None:
    """None while something of the script is still to be measured."""
    live, offered, numerics = (found.figures(script=name, what=what) for what in ("live", "offered", "numerics"))
    if live is None or offered is None or numerics is None:
        return None
    trials = {trial["name"]: trial for trial in live["trials"]}
    needed = {trial["name"]: estimate["pairs_needed"]
              for trial, estimate in zip(live["trials"], live["ledger"]["estimates"], strict=True)}
    result = []
    for change in offered["candidates"]:
        pairs = found.figures(script=name, what="pairs", change=change["name"])
        if pairs is None:
            return None
        gain = Gain.of(pairs["without_s"], pairs["with_s"]) if pairs["with_s"] else None
        trial = trials.get(change["name"], {"verdict": "not tried", "sentence": live["problem"] or "no trial of it"})
        holds = numerics_hold(change["numerics"], numerics["distances"].get(change["name"], []))
        result.append(Checked(name, change["name"], change["key"], trial["verdict"], trial["sentence"],
                              needed.get(change["name"]), gain, holds))
    return result


def judge(all_checked: Sequence[Checked]) -> dict[str, Any]:
    computing = [one for one in all_checked if not one.key.startswith("data.")]
    open_15 = [one for one in computing if one.is_beyond(0.15) and not one.is_decided]
    beyond_10 = [one for one in all_checked if one.is_beyond(0.10)]
    decided_10 = sum(one.is_decided for one in beyond_10)
    wrong = [one for one in all_checked if one.is_wrong]
    return {"beyond 15 %": sum(one.is_beyond(0.15) for one in computing),
            "beyond 15 %, open": [f"{one.script}: {one.change}" for one in open_15],
            "beyond 10 %": len(beyond_10), "beyond 10 %, decided": decided_10,
            "kept wrongly": [f"{one.script}: {one.change}" for one in wrong], "met": not open_15 and not wrong}


def show(all_checked: Sequence[Checked]) -> None:
    def needed(one: Checked) -> str:
        return "" if one.is_decided else harness.UNAVAILABLE if one.pairs_needed is None else f"{one.pairs_needed:,}"

    headings = ["script", "change", "live", "pairs needed", "alone, 95 % interval", "gradients", "live, in words"]
    print("\n" + harness.table(headings, [
        [one.script, one.change, one.verdict + " WRONGLY" * one.is_wrong, needed(one), str(one.rerun or harness.UNAVAILABLE),
         {True: "hold", False: "too far off", None: harness.UNAVAILABLE}[one.numerics_hold], one.sentence]
        for one in all_checked], left=(0, 1, 2, 4, 5, 6)))


def show_runs(names: Iterable[str], found: rows.Rows) -> None:
    lines = []
    for name in names:
        step, live = found.figures(script=name, what="step"), found.figures(script=name, what="live")
        lost = [live["ledger"][key] for key in ("lost_most_s", "lost_allowed_s")]
        lines.append([name, f"{1e3 * step['step_s']:.2f}", str(live["steps"]),
                      *(harness.UNAVAILABLE if seconds is None else f"{seconds:.1f}" for seconds in lost),
                      ", ".join(live["kept"]) or "nothing"])
    print("\n" + harness.table(["script", "step ms", "steps", "lost at most, s", "allowed", "kept"], lines, left=(0, 5)))


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="of each change's re-run")
    parser.add_argument("--allow", choices=("bit_equal", "rounding", "reduced_precision"), default="reduced_precision")
    scripts_known.add_options(parser)
    rows.add_options(parser)
    arguments = parser.parse_args(words)
    names = scripts_known.runnable(arguments)
    bench = harness.Bench(__file__, arguments,
                          f"rerun: {len(names)} scripts, {sizes_of(arguments).pairs} pairs of each change alone")
    found = rows.open_rows(arguments, "rerun")
    session = rows.Session(found, arguments.minutes)
    complete = all(session.run(items(name, found, arguments)) for name in names)
    by_script = {name: made for name in names if (made := checked(name, found)) is not None}
    all_checked = [one for made in by_script.values() for one in made]
    verdict = judge(all_checked)
    if all_checked:
        show(all_checked)
        show_runs(by_script, found)
        print(f"\n{len(by_script)} scripts; beyond 15 %: {verdict['beyond 15 %']}, of them open: "
              f"{', '.join(verdict['beyond 15 %, open']) or 'none'}; beyond 10 %: {verdict['beyond 10 %, decided']} of "
              f"{verdict['beyond 10 %']} decided; kept wrongly: {', '.join(verdict['kept wrongly']) or 'none'}: "
              f"{'met' if verdict['met'] else 'MISSED'}")
    rows.told_left(session, complete)
    return bench.end(verdict, 3 if all_checked and not verdict["met"] else 0)
