"""Planted changes of loading and of computing, in loops that wait for data 0, 50 and 90 % of a step, with queues of 2 to 32
batches.

usage: make bench NAME=live-tuning ARGS='loaders --minutes 140'

Loading and computing sleep, so that the truth is known: a step takes the longer of the two, which tells whether a change makes
any difference; how much it makes is measured by separate processes with and without it, in turns, with a queue of 4. Wanted of
what hr.autotune finds: the sign right wherever it decides; where the truth is 0, at most 3 points off; else within 30 % of it
with a queue of 4. A run ends when its change is decided, and after a minute and 4 s for each batch of the queue at most; what
is open then is measured by the pairs that there are.
"""

import argparse
import functools
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import rows

HERE = Path(__file__).resolve().parent
WORKERS = 2
COMPUTE_KEY, LOADER_KEY = "compute.flush_denormal", "data.num_workers"
# By name: the key in whose place it is planted, what it makes of the time to load a batch, and of the time to compute.
CHANGES = {"nothing, compute": (COMPUTE_KEY, 1.0, 1.0), "compute halved": (COMPUTE_KEY, 1.0, 0.5),
           "compute 1.25": (COMPUTE_KEY, 1.0, 1.25), "nothing, loading": (LOADER_KEY, 1.0, 1.0),
           "loading halved": (LOADER_KEY, 0.5, 1.0), "loading doubled": (LOADER_KEY, 2.0, 1.0)}
QUEUES = (2, 4, 8, 16, 32)  # Batches ahead, of both workers.
JUDGED = 4  # The queue with which the size has to be right.
BATCH_S = 0.03  # From one loaded batch to the next, of both workers together.
COMPUTE_S = {"0 %": 1.25 * BATCH_S, "50 %": 0.5 * BATCH_S, "90 %": 0.1 * BATCH_S}  # By the share of a step that waits for data.
LIVE_S, LIVE_BATCH_S, PLAIN_S, PLAIN_ROUNDS = 60.0, 4.0, 8.0, 3
OFF_AT_0, OFF_SHARE, OFF_SHARE_STRETCH = 0.03, 0.30, 0.10
QUICK = ("50 %", ("compute halved", "loading halved"), (4,))


def run(wait: str, queue: int, change: str, seconds: float, **more: Any) -> dict[str, Any]:
    request = {"load_s": WORKERS * BATCH_S, "compute_s": COMPUTE_S[wait], "queue": queue, "change": change, "seconds": seconds,
               **more}
    return harness.run_json([sys.executable, HERE / "sleeping_loop.py", json.dumps(request)], environment=harness.python_path(),
                            limit_s=3 * seconds + 120)


def truth(wait: str, change: str, seconds: float, rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds a step without and with the change, one of each a round."""
    found = harness.interleave([harness.Arm(on, lambda _, on=on: run(wait, 4, change, seconds, on=on)["step_s"])
                                for on in (False, True)], rounds, seed=seed)
    return {"without_s": found[False], "with_s": found[True]}


def items(arguments: argparse.Namespace) -> Iterator[rows.Item]:
    plain_s, rounds = (0.5, 1) if arguments.quick else (PLAIN_S, PLAIN_ROUNDS)
    waits, changes, queues = ((QUICK[0],), *QUICK[1:]) if arguments.quick else (COMPUTE_S, CHANGES, arguments.queues)
    for wait in waits:
        for change in changes:
            yield rows.Item({"what": "truth", "wait": wait, "change": change}, 2 * rounds * (plain_s + 4),
                            lambda wait=wait, change=change: truth(wait, change, plain_s, rounds, arguments.order_seed))
    for queue in queues:
        live_s = 1.0 if arguments.quick else LIVE_S + LIVE_BATCH_S * queue
        for wait in waits:
            for change in changes:
                yield rows.Item({"what": "live", "wait": wait, "change": change, "queue": queue}, live_s + 8,
                                functools.partial(run, wait, queue, change, live_s, live=True))


def gain_of(figures: Mapping[str, Sequence[float]]) -> float:
    return statistics.median(harness.ratios(figures["without_s"], figures["with_s"])) - 1


def is_nothing(wait: str, change: str) -> bool:
    """Whether the loop is as fast with the change as without it: each step takes the longer of loading and computing."""
    _, load, compute = CHANGES[change]
    return math.isclose(max(BATCH_S * load, COMPUTE_S[wait] * compute), max(BATCH_S, COMPUTE_S[wait]))


def judge(live: Mapping[str, Any], true_gain: float, is_0: bool) -> dict[str, Any]:
    """Whether the sign is right (None: undecided), how far the size is off (None: no gain was measured), and whether the truth
    is 0, of which that is the gain itself and else a share. What does nothing may be dropped for either reason."""
    sign = None
    if live["verdict"] == "kept":
        sign = true_gain > 0 and not is_0
    elif live["verdict"] == "refused" and live["reason"] in ("slower", "no_gain"):
        sign = true_gain < 0 or is_0
    gain = None if live["gain"] is None else live["gain"][0]
    off = None if gain is None else abs(gain) if is_0 else abs(gain - true_gain) / abs(true_gain)
    return {"sign": sign, "is_0": is_0, "off": off}


def gain_text(gain: Sequence[float | None] | None) -> str:
    if gain is None:
        return ""
    middle, *ends = (harness.UNAVAILABLE if value is None else f"{value:+.1%}" for value in gain)
    return f"{middle} [{', '.join(ends)}]"


def bars_of(verdicts: Sequence[Mapping[str, Any]], wanted: int, complete: bool) -> list[rows.Bar]:
    """wanted: runs that there should be a verdict on. Those that could not be had leave the bars open."""
    wrong, decided = [one for one in verdicts if one["sign"] is False], [one for one in verdicts if one["sign"] is not None]
    of_0, others = ([one for one in verdicts if one["is_0"] == is_0] for is_0 in (True, False))
    complete = complete and len(verdicts) >= wanted
    missing = f"; {wanted - len(verdicts)} of {wanted} runs are missing" if len(verdicts) < wanted else ""

    def names(some: Sequence[Mapping[str, Any]]) -> str:
        return "".join(f"; {one['change']}, waits {one['wait']}, queue {one['queue']}" for one in some)

    def size(what: str, some: Sequence[Mapping[str, Any]], most: float, within: str, stretch: bool) -> rows.Bar:
        sized = [one for one in some if one["off"] is not None]
        off = [one for one in sized if one["off"] > most]
        without = f"; {len(some) - len(sized)} without a size" if len(sized) < len(some) else ""
        met = rows.once_complete(not off, complete) if sized else rows.at_the_end(False, complete)
        return rows.Bar(what, within, f"{len(sized) - len(off)} of {len(sized)}{names(off)}{without}{missing}", met, stretch)

    judged = [one for one in others if one["queue"] == JUDGED]
    return [
        rows.Bar("sign wherever it is decided", "right", f"{len(decided) - len(wrong)} of {len(decided)} right, "
                 f"{len(verdicts) - len(decided)} open{names(wrong)}{missing}",
                 rows.once_complete(not wrong, complete) if decided else rows.at_the_end(False, complete)),
        size("a true 0", of_0, OFF_AT_0, "within 3 points", False),
        size(f"size with a queue of {JUDGED}", judged, OFF_SHARE, "within 30 % of separate processes", False),
        size("size with every queue", others, OFF_SHARE, "within 30 %", True),
        size("size with every queue", others, OFF_SHARE_STRETCH, "within 10 %", True)]


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--queues", type=int, nargs="+", choices=QUEUES, default=list(QUEUES), help="batches ahead")
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    bench = harness.Bench(__file__, arguments, f"loaders: {len(CHANGES)} changes, {len(COMPUTE_S)} loops, queues of "
                          f"{', '.join(map(str, arguments.queues))}")
    found = rows.open_rows(arguments, "loaders")
    session = rows.Session(found, arguments.minutes)
    complete = session.run(items(arguments))
    lines, verdicts = [], []
    for key, live in found.found(what="live"):
        true = found.figures(what="truth", wait=key["wait"], change=key["change"])
        if true is None or key["queue"] not in arguments.queues:
            continue
        true_gain, start = gain_of(true), [key["wait"], str(key["queue"]), key["change"]]
        if "unavailable" in live:
            lines.append([*start, f"{true_gain:+.1%}", live["unavailable"], "", "", ""])
            continue
        verdict = {**key, **judge(live, true_gain, is_nothing(key["wait"], key["change"]))}
        verdicts.append(verdict)
        off = "" if verdict["off"] is None else f"{verdict['off']:.1%}" + " of it" * (not verdict["is_0"])
        lines.append([*start, f"{true_gain:+.1%}", gain_text(live["gain"]), f"{live['verdict']} {live['reason']}",
                      {True: "right", False: "WRONG", None: "undecided"}[verdict["sign"]], off])
    if lines:
        headings = ["waits", "queue", "change", "truth", "hr.autotune, 95 % interval", "verdict", "sign", "off by"]
        print("\n" + harness.table(headings, lines, left=(2, 4, 5, 6, 7)))
    whole = complete and not session.lacks and set(QUEUES) <= set(arguments.queues) and not arguments.quick
    bars = bars_of(verdicts, len(arguments.queues) * len(COMPUTE_S) * len(CHANGES), whole)
    return bench.end({"verdicts": verdicts, "bars": [str(bar) for bar in bars]}, rows.tell(session, complete, bars))
