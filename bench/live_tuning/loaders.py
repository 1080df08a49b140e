"""Planted changes of loading and of computing, in loops that wait for data 0, 50 and 90 % of a step, with queues of 2 to 32
batches.

usage: make bench NAME=live-tuning ARGS='loaders --minutes 9'

Loading and computing sleep, so that the truth is known: it is measured by separate processes with and without the change, in
turns, with a queue of 4. Wanted of what hr.autotune finds: the sign right wherever it decides; where the truth is 0, at most 3
points off; else within 30 % of it with a queue of 4.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
from live_tuning import rows

HERE = Path(__file__).resolve().parent
WORKERS = 2
COMPUTE_KEY, LOADER_KEY = "compute.flush_denormal", "data.num_workers"
# By name: the key in whose place it is planted, what it makes of the time to load a batch, and of the time to compute.
CHANGES = {"nothing, compute": (COMPUTE_KEY, 1.0, 1.0), "compute halved": (COMPUTE_KEY, 1.0, 0.5),
           "compute 1.25": (COMPUTE_KEY, 1.0, 1.25), "nothing, loading": (LOADER_KEY, 1.0, 1.0),
           "loading halved": (LOADER_KEY, 0.5, 1.0), "loading doubled": (LOADER_KEY, 2.0, 1.0)}
QUEUES = (2, 4, 8, 16, 32)  # Batches ahead, of both workers.
BATCH_S = 0.03  # From one loaded batch to the next, of both workers together.
COMPUTE_S = {"0 %": 1.25 * BATCH_S, "50 %": 0.5 * BATCH_S, "90 %": 0.1 * BATCH_S}  # By the share of a step that waits for data.
LIVE_S, PLAIN_S, PLAIN_ROUNDS = 120.0, 8.0, 3
OFF_AT_0, OFF_SHARE, GRAINS = 0.03, 0.30, 0.01  # Truths below GRAINS are 0.


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
    live_s, plain_s, rounds = (1.0, 0.5, 1) if arguments.quick else (LIVE_S, PLAIN_S, PLAIN_ROUNDS)
    for wait in COMPUTE_S:
        for change in CHANGES:
            yield rows.Item({"what": "truth", "wait": wait, "change": change}, 2 * rounds * (plain_s + 4),
                            lambda wait=wait, change=change: truth(wait, change, plain_s, rounds, arguments.order_seed))
    for queue in arguments.queues:
        for wait in COMPUTE_S:
            for change in CHANGES:
                yield rows.Item({"what": "live", "wait": wait, "change": change, "queue": queue}, live_s + 5,
                                lambda wait=wait, change=change, queue=queue: run(wait, queue, change, live_s, live=True))


def gain_of(figures: Mapping[str, Sequence[float]]) -> float:
    return statistics.median(harness.ratios(figures["without_s"], figures["with_s"])) - 1


def judge(live: Mapping[str, Any], true_gain: float) -> dict[str, bool | None]:
    """Whether the sign is right (None: undecided) and the size close enough (None: no gain was measured). A truth that is
    measured itself may be OFF_AT_0 beyond 0, or beyond the 2 % below which there is no gain."""
    most = {"slower": OFF_AT_0, "no_gain": 0.02 + OFF_AT_0}
    sign = None
    if live["verdict"] == "kept":
        sign = true_gain > 0
    elif live["verdict"] == "refused" and live["reason"] in most:
        sign = true_gain < most[live["reason"]]
    if live["gain"] is None:
        return {"sign": sign, "size": None}
    off = abs(live["gain"][0] - true_gain)
    return {"sign": sign, "size": off <= (OFF_AT_0 if abs(true_gain) < GRAINS else OFF_SHARE * abs(true_gain))}


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--queues", type=int, nargs="+", choices=QUEUES, default=list(QUEUES), help="batches ahead")
    rows.add_options(parser)
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
        true_gain = gain_of(true)
        if "unavailable" in live:
            lines.append([key["wait"], str(key["queue"]), key["change"], f"{true_gain:+.1%}", live["unavailable"], "", "", ""])
            continue
        verdict = {"queue": key["queue"], **judge(live, true_gain)}
        verdicts.append(verdict)
        said = "" if live["gain"] is None else f"{live['gain'][0]:+.1%} [{live['gain'][1]:+.1%}, {live['gain'][2]:+.1%}]"
        lines.append([key["wait"], str(key["queue"]), key["change"], f"{true_gain:+.1%}", said,
                      f"{live['verdict']} {live['reason']}",
                      {True: "right", False: "WRONG", None: "undecided"}[verdict["sign"]],
                      {True: "close", False: "off", None: ""}[verdict["size"]]])
    if lines:
        print("\n" + harness.table(["waits", "queue", "change", "truth", "hr.autotune, 95 % interval", "verdict", "sign", "size"],
                                   lines, left=(2, 4, 5, 6, 7)))
    good = all(verdict["sign"] is not False and (verdict["queue"] != 4 or verdict["size"] is not False) for verdict in verdicts)
    signs = [verdict["sign"] for verdict in verdicts]
    print(f"{signs.count(True)} right, {signs.count(False)} wrong, {signs.count(None)} undecided; sizes off: "
          f"{sum(verdict['size'] is False for verdict in verdicts)}: {'met' if good else 'MISSED'}")
    rows.told_left(session, complete)
    return bench.end({"verdicts": verdicts, "met": good}, 0 if good else 3)
