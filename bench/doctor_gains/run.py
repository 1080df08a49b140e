#!/usr/bin/env python3
"""Is the gain that `headrace doctor RUN` promises for its first proposal the gain that there is? (TRBL-10: within a factor of two, in each
of three jobs.)

Each job trains examples/photos_small.toml on one compute thread with one thing wrong about its loading. In each round the job runs as it
is written, doctor reads that run, the setting of its first proposal is added, and the job runs again. The promised gain is the predicted
rate over the rate that the loader had, less one; the measured one is the rate of the last epoch over that of the run as written, less one.

Exit code 3: the median over the rounds of measured / promised lies outside of 0.5 to 2 for a job, or a job has no proposal.

usage: make bench NAME=doctor-gains
"""

import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

HEADRACE = harness.PROGRAMS / "headrace"
RECIPE = harness.ROOT / "examples" / "photos_small.toml"
LOW, HIGH = 0.5, 2.0  # Of measured / promised.
# What is wrong with each, as flags. One epoch has no use for a cache, so that threads are the proposal of the first two.
JOBS = {"batches loaded by the training thread": {"data.num_workers": "0", "train.epochs": "1"},
        "one thread decodes": {"data.num_workers": "1", "train.epochs": "1"},
        "each epoch decodes anew": {"data.num_workers": "2", "train.epochs": "4"}}

Flags = dict[str, str]


def trained(source: str, flags: Flags, folder: Path) -> dict[str, Any]:
    """result.json of a run in `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    everywhere = {"data.source": source, "compute.intra_op_threads": "1"}
    words = [word for key, value in {**everywhere, **flags}.items() for word in (f"--{key}", value)]
    harness.run([HEADRACE, "train", RECIPE, "--out", folder, "--quiet", *words])
    return json.loads((folder / "result.json").read_text())


def rate_of(result: dict[str, Any]) -> float:
    return result["training"]["epochs"][-1]["samples_per_second"]


def loaders_rate(result: dict[str, Any]) -> float:
    """Samples a second of the whole run, as the loader counted them."""
    loading = result["loading"]
    stages = {stage["name"]: stage for stage in loading["stages"]}
    taken = stages["consume"]
    waited = taken["wait_for_input_s"]
    if loading["num_workers"] == 0:  # It waits for nobody, and loads in between.
        waited = sum(stages[name]["busy_s"] for name in ("read", "decode", "transform"))
    return taken["records"] / (taken["busy_s"] + waited)


def first_proposal(folder: Path) -> dict[str, Any]:
    done = harness.run([HEADRACE, "doctor", folder, "--json", "-"], accepted=(0, 3))
    proposals = json.loads(done.output)["proposals"]
    if not proposals:
        raise SystemExit(f"doctor proposes nothing for {folder}")
    return proposals[0]


def changed(flags: Flags, setting: str) -> Flags:
    """With a setting as doctor has it: 'data.cache = "decoded"'."""
    key, value = setting.split(" = ")
    return {**flags, key: value.strip('"')}


def gains(source: str, flags: Flags, folder: Path) -> dict[str, Any]:
    before = trained(source, flags, folder)
    proposal = first_proposal(folder)
    after = trained(source, changed(flags, proposal["setting"]), folder)
    return {"setting": proposal["setting"], "promised": proposal["predicted_samples_per_second"] / loaders_rate(before) - 1,
            "measured": rate_of(after) / rate_of(before) - 1}


def told(job: str, found: list[dict[str, Any]]) -> tuple[str, bool]:
    shares = [one["measured"] / one["promised"] for one in found]
    is_met = LOW <= statistics.median(shares) <= HIGH
    settings = ", ".join(sorted({one["setting"] for one in found}))
    promised, measured = (statistics.median(one[name] for one in found) for name in ("promised", "measured"))
    return (f"{job}: {settings}: promised {promised:+.0%}, measured {measured:+.0%}; measured / promised "
            f"{harness.with_interval(shares, digits=2)}, wanted {LOW:g} to {HIGH:g}: {'met' if is_met else 'MISSED'}"), is_met


def main() -> int:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos", help="ImageFolder; see make setup JOB=photos")
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds; {harness.interval_remark(arguments.rounds)}")
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-gains-") as scratch:
        arms = [harness.Arm(job, lambda _, flags=flags, number=number: gains(f"folder:{arguments.photos}", flags, Path(scratch, str(number))))
                for number, (job, flags) in enumerate(JOBS.items())]
        found = bench.measure(arms, arguments.rounds)
    lines = [told(job, figures) for job, figures in found.items()]
    print(*(line for line, _ in lines), sep="\n")
    return bench.end({job: line for job, (line, _) in zip(found, lines)}, 0 if all(is_met for _, is_met in lines) else 3)


if __name__ == "__main__":
    sys.exit(main())
