"""The 12 foreign scripts with hr.autotune, each verdict against a re-run of that change alone in 60 pairs of separate blocks.

usage: make bench NAME=live-tuning ARGS='rerun --minutes 140'

Of each script: a live run of 5 min or 300 steps, the longer, by what it takes while it is tuned, whose verdicts go to a row
unread (it is told three times as many steps as these are as written, as it makes more of them the better it tunes); then, each
in a fresh process, every change that there is to try, in --pairs pairs against the loop as written, and the gradients of four
kept calls under all of them. Only when the last of these rows is written are the verdicts looked at; a re-run that failed twice is waited for no
more. A kept change that could not be measured again leaves the bar of wrong ones open. Where batches differ in length, a block
counts as if it had had work of the middle, by a line through the blocks of the loop as written.

What torch.compile is worth is what it makes of a run of as many steps as were told, with the seconds that preparing it took:
where these are not earned back, it is right to leave it, and the sum in its sentence decides that.
"""

import argparse
import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import harness
import rows
from live_tuning import scripts_known
from live_tuning.play import LOADING
from live_tuning.turns import Gain, even, shape_of

ENDLESS = 1_000_000  # Steps of a run that its arm ends.
TOLD = 3  # Times the steps that a live run makes as written.
ALLOW, PAIRS, QUICK_PAIRS = "reduced_precision", 60, 3  # That the bars want, and that `grid` reads.
COMPILE = "model.compile"
COMPILE_S = 180.0  # That the first step of a compiled model may take.
DECIDED = ("kept", "refused", "failed")
FAR, NEAR = 0.15, 0.10  # Worth from which on a change has to be decided, and nine in ten.
GRADIENTS, TENSOR, OUTPUTS, UPDATE = 1e-2, 0.1, 1e-5, 1e-6  # Relative L2 that class rounding allows.
BETWEEN_CALLS, COSINE = 0.5, 0.9  # What reduced_precision allows, of the distance between two calls.
QUICK_CHANGES = 2


@dataclass(frozen=True)
class Sizes:
    live_s: float
    live_steps: int
    pairs: int
    calls: int


def sizes_of(arguments: argparse.Namespace) -> Sizes:
    return Sizes(2, 30, QUICK_PAIRS, 2) if arguments.quick else Sizes(300, 300, arguments.pairs, 4)


def live_key(name: str, allow: str) -> dict[str, Any]:
    return {"script": name, "what": "live", "allow": allow, "told": TOLD}


def pairs_key(name: str, change: str, pairs: int) -> dict[str, Any]:
    return {"script": name, "what": "pairs", "change": change, "pairs": pairs}


def items(name: str, found: rows.Rows, arguments: argparse.Namespace) -> Iterator[rows.Item]:
    """Those behind an item are made from its row. Where that is missing, as it failed, nothing more can be asked for."""
    sizes, script = sizes_of(arguments), scripts_known.SCRIPTS[name]

    def item(what: str, seconds: float, work: Any) -> rows.Item:
        return rows.Item({"script": name, "what": what}, seconds, work)

    yield item("step", 20, lambda: scripts_known.step_seconds(name, arguments.quick))
    step = found.figures(script=name, what="step")
    if step is None:
        return
    step_s = step["step_s"]
    live_s = max(sizes.live_s, sizes.live_steps * step_s)
    told_steps = TOLD * max(sizes.live_steps, math.ceil(sizes.live_s / step_s))
    yield rows.Item(live_key(name, arguments.allow), 20 + live_s, lambda: scripts_known.play(
        name, "autotuned", told_steps, limit_s=live_s, least_steps=sizes.live_steps, allow=arguments.allow))
    yield item("offered", 15, lambda: scripts_known.play(name, "offered", ENDLESS,
                                                         run_steps=None if arguments.quick else told_steps))
    offered = found.figures(script=name, what="offered")
    if offered is None:
        return
    candidates = offered["candidates"][:QUICK_CHANGES] if arguments.quick else offered["candidates"]
    for change in candidates:
        loads = any(key.startswith(LOADING) for key in change["changes"])
        shape = shape_of(step_s, queue=max(script.queue, 8 * loads))
        pairs_s = 2 * sizes.pairs * (shape.wash_out + shape.counted) * step_s
        begin_at = script.begun if loads else 0
        once_s = begin_at * step_s + (COMPILE_S if change["key"] == COMPILE else 0)
        limit_s = 60 + once_s + 3 * pairs_s
        work = functools.partial(scripts_known.play, name, "pairs", ENDLESS, limit_s=limit_s, changes=change["changes"],
                                 pairs=sizes.pairs, queue=script.queue, begin_at=begin_at)
        yield rows.Item(pairs_key(name, change["name"], sizes.pairs), 15 + once_s / 2 + pairs_s, work)
    yield item("numerics", 60, lambda: scripts_known.play(
        name, "numerics", ENDLESS, limit_s=180, candidates=candidates, calls=sizes.calls))


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
    """By most of the calls that can tell; None: none can, or as many say yes as no."""
    answers = [answer for answer in (call_passes(numerics, distance) for distance in distances) if answer is not None]
    return None if 2 * sum(answers) == len(answers) else 2 * sum(answers) > len(answers)


def gain_of(pairs: Mapping[str, Any]) -> Gain | None:
    """Of a row of pairs; None: not one, or the setting ended by itself."""
    if pairs["refused"] is not None or not pairs["with_s"] or not pairs["without_s"]:
        return None
    plain = pairs["without_s"], pairs["without_work"]
    return Gain.of(even(*plain, *plain), even(pairs["with_s"], pairs["with_work"], *plain))


def steps_a_pair(turns: Sequence[Mapping[str, Any]]) -> int | None:
    """Of a live run, both blocks with what is not measured, as its report tells: twice the middle of the turns' lengths. None:
    no turn has ended."""
    lengths = [after["update"] - before["update"] for before, after in zip(turns, turns[1:])]
    lengths = [length for length in lengths if length > 0]
    return 2 * statistics.median_high(lengths) if lengths else None


def with_preparing(gain: float, prepare_s: float, run_s: float) -> float:
    """What a run of so many seconds gains by a change that takes some to prepare."""
    return run_s / (prepare_s + run_s / (1 + gain)) - 1


@dataclass(frozen=True)
class Checked:
    """A change with its live verdict and its re-run."""

    script: str
    change: str
    key: str
    verdict: str  # "not tried" where the live run has no trial of it.
    reason: str
    sentence: str
    pairs_needed: int | None  # Further ones that would decide it, as the ledger says; None: decided, or it cannot tell.
    steps_needed: int | None  # For these.
    rerun: Gain | None  # None: not one pair.
    why_not: str | None  # There is no re-run, where that is known.
    worth: float | None  # To the live run: of a change that takes long to prepare less than the re-run shows.
    numerics_hold: bool | None

    @property
    def is_decided(self) -> bool:
        """What does not pay for its own preparing is left by the sum in its sentence."""
        is_left = self.key == COMPILE and self.reason == "budget" and self.sentence.startswith("Not tried")
        return self.verdict in DECIDED or (is_left and self.worth is not None and self.worth < 0)

    @property
    def is_wrong(self) -> bool:
        """Kept, and worse than the loop as written."""
        return self.verdict == "kept" and (self.numerics_hold is False or (self.rerun is not None and self.rerun.high < 0))

    @property
    def is_unverified(self) -> bool:
        """Kept, and nobody can say whether rightly. What loads has nothing to show on a kept call."""
        lacks_numerics = self.numerics_hold is None and not self.key.startswith(LOADING)
        return self.verdict == "kept" and not self.is_wrong and (self.rerun is None or lacks_numerics)

    @property
    def is_missed(self) -> bool:
        """Refused, and far better than the loop as written."""
        return self.verdict == "refused" and self.worth is not None and self.worth > FAR

    def is_beyond(self, share: float) -> bool:
        return self.worth is not None and abs(self.worth) > share


def rerun_of(name: str, change: str, found: rows.Rows, pairs: int) -> tuple[Mapping[str, Any] | None, str | None]:
    """The row of pairs, or why there will be none; both None: it is still to be measured."""
    key = pairs_key(name, change, pairs)
    figures, failures = found.figures(**key), found.failures(key)
    if figures is None and len(failures) >= rows.TRIES:
        return None, failures[-1]
    return figures, None if figures is None else figures["refused"]


def distances_of(name: str, found: rows.Rows, candidates: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """By change, how far its gradients lie on each kept call; none where that failed for good. None: still to be measured."""
    key = {"script": name, "what": "numerics"}
    if (figures := found.figures(**key)) is not None:
        return figures["distances"]
    return {change["name"]: [] for change in candidates} if len(found.failures(key)) >= rows.TRIES else None


def checked(name: str, found: rows.Rows, allow: str = ALLOW, pairs: int = PAIRS) -> list[Checked] | None:
    """None while something of the script is still to be measured."""
    step, offered = (found.figures(script=name, what=what) for what in ("step", "offered"))
    live = found.figures(**live_key(name, allow))
    if step is None or live is None or offered is None:
        return None
    distances = distances_of(name, found, offered["candidates"])
    if distances is None:
        return None
    trials = {trial["name"]: trial for trial in live["trials"]}
    needed = {trial["name"]: estimate["pairs_needed"]
              for trial, estimate in zip(live["trials"], live["ledger"]["estimates"], strict=True)}
    steps = steps_a_pair(live["ledger"]["turns"])
    result = []
    for change in offered["candidates"]:
        if change["name"] not in distances:
            continue  # Of a quick call, which looks at a few.
        measured, why_not = rerun_of(name, change["name"], found, pairs)
        if measured is None and why_not is None:
            return None
        gain = None if measured is None else gain_of(measured)
        worth = None if gain is None else gain.median
        if worth is not None and change["key"] == COMPILE:
            worth = with_preparing(worth, measured["prepare_s"], live["told_steps"] * step["step_s"])
        trial = trials.get(change["name"], {"verdict": "not tried", "reason": "none",
                                            "sentence": live["problem"] or "no trial of it"})
        holds = numerics_hold(change["numerics"], distances[change["name"]])
        pairs_needed = needed.get(change["name"])
        steps_needed = None if pairs_needed is None or steps is None else pairs_needed * steps
        result.append(Checked(name, change["name"], change["key"], trial["verdict"], trial["reason"], trial["sentence"],
                              pairs_needed, steps_needed, gain, why_not, worth, holds))
    known = {change["name"] for change in offered["candidates"]}
    result += [Checked(name, trial["name"], next(iter(trial["settings"])), "kept", trial["reason"], trial["sentence"], None, None,
                       None, "a fresh process does not offer it", None, None)
               for trial in live["trials"] if trial["verdict"] == "kept" and trial["name"] not in known]
    return result


def bars_of(all_checked: Sequence[Checked], complete: bool) -> list[rows.Bar]:
    def named(some: Sequence[Checked]) -> str:
        return ", ".join(f"{one.script}: {one.change}" for one in some)

    def decided(some: Sequence[Checked]) -> str:
        open_ones = [one for one in some if not one.is_decided]
        return f"{len(some) - len(open_ones)} of {len(some)} decided" + (f", open: {named(open_ones)}" if open_ones else "")

    far = [one for one in all_checked if one.is_beyond(FAR)]
    computing = [one for one in far if not one.key.startswith(LOADING)]
    loading = [one for one in far if one.key.startswith(LOADING)]
    near = [one for one in all_checked if one.is_beyond(NEAR)]
    wrong, unverified = [one for one in all_checked if one.is_wrong], [one for one in all_checked if one.is_unverified]
    not_shown = f"; kept, but without a re-run or gradients that tell: {named(unverified)}" if unverified else ""
    near_share = sum(one.is_decided for one in near) / len(near) if near else 1.0
    return [
        rows.Bar("changes that the re-run puts beyond 15 %, but for those of loading", "all decided", decided(computing),
                 rows.once_complete(all(one.is_decided for one in computing), complete)),
        rows.Bar("changes of loading beyond 15 %", "all decided", decided(loading),
                 rows.once_complete(all(one.is_decided for one in loading), complete), stretch=True),
        rows.Bar("changes beyond 10 %", "9 in 10 decided", decided(near), rows.at_the_end(near_share >= 0.9, complete),
                 stretch=True),
        rows.Bar("kept changes whose re-run has its interval below 0, or whose gradients are too far off", "none",
                 (named(wrong) or "none") + not_shown, rows.once_complete(not wrong, complete and not unverified))]


def show(all_checked: Sequence[Checked]) -> None:
    def needed(one: Checked, count: int | None) -> str:
        return "" if one.is_decided else harness.UNAVAILABLE if count is None else f"{count:,}"

    def alone(one: Checked) -> str:
        return str(one.rerun) if one.rerun is not None else harness.UNAVAILABLE + (f": {one.why_not}" if one.why_not else "")

    headings = ["script", "change", "live", "pairs needed", "steps", "alone, 95 % interval", "worth", "gradients",
                "live, in words"]
    print("\n" + harness.table(headings, [
        [one.script, one.change, one.verdict + " WRONGLY" * one.is_wrong, needed(one, one.pairs_needed),
         needed(one, one.steps_needed), alone(one), harness.UNAVAILABLE if one.worth is None else f"{one.worth:+.1%}",
         {True: "hold", False: "too far off", None: harness.UNAVAILABLE}[one.numerics_hold], one.sentence]
        for one in all_checked], left=(0, 1, 2, 5, 7, 8)))
    for one in all_checked:
        if one.is_missed:
            print(f"refused live ({one.reason}), and worth {one.worth:+.1%} by its re-run: {one.script}: {one.change}")


def show_runs(names: Iterable[str], found: rows.Rows, allow: str) -> None:
    lines = []
    for name in names:
        step, live = found.figures(script=name, what="step"), found.figures(**live_key(name, allow))
        lost = [live["ledger"][key] for key in ("lost_most_s", "lost_allowed_s")]
        quiet = live["ledger"]["ledger"]["quietness"]["quiet"]
        lines.append([name, f"{1e3 * step['step_s']:.2f}", str(live["steps"]),
                      *(harness.UNAVAILABLE if seconds is None else f"{seconds:.1f}" for seconds in lost),
                      {True: "quiet", False: "not quiet", None: harness.UNAVAILABLE}[quiet],
                      ", ".join(live["kept"]) or "nothing"])
    headings = ["script", "step ms", "steps", "lost at most, s", "allowed", "machine", "kept"]
    print("\n" + harness.table(headings, lines, left=(0, 5, 6)))


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each change's re-run")
    parser.add_argument("--allow", choices=("bit_equal", "rounding", "reduced_precision"), default=ALLOW)
    scripts_known.add_options(parser)
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    names = scripts_known.runnable(arguments)
    pairs = sizes_of(arguments).pairs
    bench = harness.Bench(__file__, arguments, f"rerun: {len(names)} scripts, {pairs} pairs of each change alone")
    found = rows.open_rows(arguments, "rerun")
    session = rows.Session(found, arguments.minutes)
    complete = all(session.run(items(name, found, arguments)) for name in names)
    by_script = {name: made for name in names if (made := checked(name, found, arguments.allow, pairs)) is not None}
    all_checked = [one for made in by_script.values() for one in made]
    if all_checked:
        show(all_checked)
        show_runs(by_script, found, arguments.allow)
    whole = complete and not session.lacks and len(by_script) == len(scripts_known.SCRIPTS) and pairs >= PAIRS
    print(f"\njudged are {len(by_script)} of {len(scripts_known.SCRIPTS)} scripts: {', '.join(by_script) or 'none yet'}")
    bars = bars_of(all_checked, whole)
    return bench.end({"scripts": list(by_script), "bars": [str(bar) for bar in bars]}, rows.tell(session, complete, bars))
