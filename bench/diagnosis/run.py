#!/usr/bin/env python3
"""Is the first verdict of `headrace profile script.py` the fault that lies in the script?

60 pipelines, five for each of twelve resources, each with a fault of a known kind that costs a share of the step, and 10 without. Each is
run twice, in processes of its own: once by itself, blocks with and without the fault in turns, which measures what it costs; and once by
`headrace profile`, whose verdict is judged. Shares, and the seed that draws networks, optimizers and shares, are options. Beside them, and
told apart, are pipelines with two faults: right is the one that was measured to cost more, and either where they cost nearly the same.

Exit code 3: fewer than 57 of 60 first verdicts are right (of 60 whose fault was measured to cost 15 % of the step or more, else the same
part of those), a healthy pipeline is accused, or the median error of predicted gains is above 10 %. Pairs have no bar.

usage: make bench NAME=diagnosis [ARGS='--shares 0.1 0.6 --pairs 20 --seed 2']
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from labels import LABELS, PAIRS, Judged, Pipeline, pairs, suite  # noqa: E402

SCRIPT = Path(__file__).resolve().parent / "pipeline.py"
RIGHT_OF_60, ERROR_MAX, COSTS_MIN = 57, 0.10, 0.145  # 15 % of a step, as blocks of steps tell it.


def judge(pipeline: Pipeline, steps: int) -> Judged:
    with tempfile.TemporaryDirectory(prefix="headrace-diagnosis-") as name:
        measured = harness.run_json([sys.executable, SCRIPT, *pipeline.options(), "--measure"])
        options = [*pipeline.options(), "--fault-ms", *map(str, measured["fault_ms"]), "--compute-ms", str(measured["compute_ms"]),
                   "--steps", str(steps)]
        out = Path(name) / "run"
        harness.run([sys.executable, "-m", "headrace", "profile", "--quiet", "--out", out, SCRIPT, *options],
                    environment=harness.python_path(), folder=Path(name))
        verdict = json.loads((out / "profile.json").read_text())["diagnosis"]["resources"]
    predicted = verdict["losses"][0]["gain"]["middle"] if verdict["losses"] else None
    return Judged(pipeline, verdict["first"], verdict["healthy"], predicted, tuple(measured["gains"]))


def show(found: list[Judged]) -> None:
    rows = []
    for label in (*LABELS, "healthy"):
        of_label = [one for one in found if one.pipeline.label == label]
        if not of_label:
            continue
        wrong = ", ".join(f"{one.first or 'not known'} ({one.pipeline.name})" for one in of_label if not one.right)
        errors = [one.error for one in of_label if one.error is not None]
        rows.append([label, f"{sum(one.right for one in of_label)} of {len(of_label)}",
                     f"{statistics.median(errors):.0%}" if errors else harness.UNAVAILABLE, wrong])
    print("\n" + harness.table(["", "right", "error of the gain", "wrong"], rows, left=(0, 3)))


def verdict_of(found: list[Judged]) -> tuple[dict, bool]:
    """The figures of the bars, and whether all are met."""
    faulty = [one for one in found if one.pipeline.faults and one.costs >= COSTS_MIN]
    healthy = [one for one in found if not one.pipeline.faults]
    errors = [one.error for one in faulty if one.error is not None]
    figures = {"faulty": len(faulty), "right": sum(one.right for one in faulty), "too_weak": len(found) - len(healthy) - len(faulty),
               "healthy": len(healthy), "accused": sum(not one.right for one in healthy),
               "error": statistics.median(errors) if errors else None}
    met = (len(faulty) > 0 and figures["right"] * 60 >= RIGHT_OF_60 * len(faulty) and figures["accused"] == 0
           and figures["error"] is not None and figures["error"] <= ERROR_MAX)
    return figures, met


def show_pairs(found: list[Judged]) -> dict:
    """Their figures, which no bar judges."""
    told = [one for one in found if one.costs >= COSTS_MIN]
    errors = [one.error for one in told if one.error is not None]
    figures = {"pairs": len(told), "right": sum(one.right for one in told), "too_weak": len(found) - len(told),
               "error": statistics.median(errors) if errors else None}
    error = harness.UNAVAILABLE if figures["error"] is None else f"{figures['error']:.1%}"
    print(f"of two faults: right {figures['right']} of {figures['pairs']} of which one costs 15 % of the step, {figures['too_weak']} cost "
          f"less; error of gains {error} (no bar)")
    return figures


def judge_all(pipelines: list[Pipeline], steps: int) -> list[Judged]:
    found = []
    for pipeline in pipelines:
        found.append(one := judge(pipeline, steps))
        predicted = harness.UNAVAILABLE if one.predicted is None else f"{one.predicted:+.1%}"
        measured = "".join(f", without {fault} measured {gain:+.1%}" for fault, gain in zip(pipeline.faults, one.measured))
        print(f"{'right' if one.right else 'WRONG'}: {one.first or 'not known'}, gain predicted {predicted}{measured}: {pipeline.name}",
              flush=True)
    return found


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.16, 0.2, 0.3, 0.45],
                        help="of a step that a fault costs (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="draws what goes with what (%(default)s)")
    parser.add_argument("--steps", type=int, default=80, help="that are profiled (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=(*LABELS, "healthy"), help="of these labels alone, and no pairs of others")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pipelines with two faults (%(default)s)")
    arguments = parser.parse_args()
    wanted = set(arguments.only or (*LABELS, "healthy"))
    single = [one for one in suite(arguments.shares, arguments.seed) if one.label in wanted]
    double = [one for one in pairs(arguments.shares, arguments.seed, arguments.pairs) if wanted.issuperset(one.labels)]
    bench = harness.Bench(__file__, arguments, f"{len(single)} pipelines, and {len(double)} with two faults, {arguments.steps} steps each")
    found, found_of_pairs = judge_all(single, arguments.steps), judge_all(double, arguments.steps)
    show(found)
    figures_of_pairs = show_pairs(found_of_pairs)
    figures, met = verdict_of(found)
    error = harness.UNAVAILABLE if figures["error"] is None else f"{figures['error']:.1%}"
    print(f"right {figures['right']} of {figures['faulty']} whose fault costs 15 % of the step (wanted {RIGHT_OF_60} of 60), "
          f"{figures['too_weak']} cost less; accused {figures['accused']} of {figures['healthy']} (wanted 0); error of gains {error} "
          f"(wanted {ERROR_MAX:.0%}): {'met' if met else 'MISSED'}")
    return bench.end({**figures, "pairs": figures_of_pairs}, 0 if met else 3)


if __name__ == "__main__":
    sys.exit(main())
