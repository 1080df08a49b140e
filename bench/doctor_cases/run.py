#!/usr/bin/env python3
"""Does `headrace doctor` name each of eleven staged faults with its mend, and accuse none of five healthy machines?

One fault for each of TRBL-01 to -11, alone on a machine or in a run that are well otherwise. The command runs as its users run it: the
machine's /proc and /sys are staged in a mount namespace of its own, and a run is a real one of a second, with one thing changed. A fault is
named where its code is the only one, its evidence stands in the sentence and its mend in the advice; a healthy machine is accused by any
finding.

Exit code 3: a fault is not named, or a machine is accused. Needs root, or user namespaces.

usage: make bench NAME=doctor-cases
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
from doctor_cases.stages import FAULTS, HEALTHY, Case, Machine, Run  # noqa: E402

HEADRACE = harness.PROGRAMS / "headrace"

Document = Mapping[str, Any]


def why_not_named(case: Case, document: Document) -> str:
    """Empty: it is named with the mend."""
    findings = document["findings"]
    if {finding["code"] for finding in findings} != {case.code}:
        return "; ".join(f"{finding['code']}: {finding['sentence']}" for finding in findings) or "nothing"
    if not any(case.evidence in finding["sentence"] and case.mend in finding["advice"] for finding in findings):
        return f"other words: {findings[0]['sentence']}. {findings[0]['advice']}"
    lacking = [key for key in case.keys if not isinstance(document.get(key), dict)]
    return f"the document has no {', '.join(lacking)}" if lacking else ""


def staged(case: Case, number: int, whole: Run, scratch: Path) -> Document:
    machine = Machine(scratch / f"machine-{number}")
    if case.of_machine is not None:
        case.of_machine(machine)
        return machine.doctor(HEADRACE, variables=case.variables)
    assert case.of_run is not None
    run = whole.copy(scratch / f"run-{number}")
    case.of_run(run)
    return machine.doctor(HEADRACE, run.folder / case.asked, variables=case.variables)


def judge(missed: Mapping[str, str], accused: Mapping[str, Sequence[str]]) -> tuple[str, bool]:
    """By case why it is not named, empty where it is; by machine the codes found. The line, and whether all is well."""
    named, blamed = sum(not why for why in missed.values()), sum(bool(codes) for codes in accused.values())
    return (f"{named} of {len(missed)} named with the mend, {blamed} of {len(accused)} accused", named == len(missed) and blamed == 0)


def main() -> int:
    arguments = harness.parser(__doc__).parse_args()
    bench = harness.Bench(__file__, arguments, f"{len(FAULTS)} faults, {len(HEALTHY)} healthy machines")
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-cases-") as folder:
        scratch = Path(folder)
        whole = Run.trained(HEADRACE, scratch / "whole")
        if findings := Machine(scratch / "workstation").doctor(HEADRACE, whole.folder)["findings"]:
            raise SystemExit(f"doctor_cases: wanted a run that is well, found {[finding['code'] for finding in findings]}")
        missed = {case.what: why_not_named(case, staged(case, number, whole, scratch)) for number, case in enumerate(FAULTS)}
        accused = {}
        for number, (name, stage) in enumerate(HEALTHY.items()):
            machine = Machine(scratch / f"healthy-{number}")
            stage(machine)
            accused[name] = [finding["code"] for finding in machine.doctor(HEADRACE)["findings"]]
    rows = [[case.what, case.code, missed[case.what] or "named"] for case in FAULTS]
    rows += [[name, "", f"accused: {', '.join(codes)}" if codes else "not accused"] for name, codes in accused.items()]
    line, is_met = judge(missed, accused)
    print(harness.table(["staged", "wanted", "found"], rows, left=(0, 1, 2)))
    print(f"{line}: {'met' if is_met else 'MISSED'}")
    return bench.end({"missed": missed, "accused": accused}, 0 if is_met else 3)


if __name__ == "__main__":
    sys.exit(main())
