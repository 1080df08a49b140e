"""bench/doctor_cases: the command names every staged fault with its mend and accuses no healthy machine, and the bench tells bad from good."""

import subprocess
import sys

import pytest
from bench_scripts import BENCH, script


@pytest.fixture(scope="module")
def bench():
    return script("doctor_cases")


@pytest.fixture
def case(bench):
    return bench.Case("a fault", "damaged", "checksum", "remove", keys=("cache_stats",))


def document(*findings, **others):
    return {"findings": [dict(zip(("code", "sentence", "advice"), one)) for one in findings], "cache_stats": {}, **others}


def test_a_fault_is_named_by_its_code_alone_its_evidence_its_mend_and_its_keys(bench, case):
    good = ("damaged", "another checksum", "remove it")
    assert bench.why_not_named(case, document(good)) == ""
    assert bench.why_not_named(case, document()) == "nothing"
    assert bench.why_not_named(case, document(good, ("missing", "a file is missing", ""))).endswith("missing: a file is missing")
    for wrong in (("damaged", "another size", "remove it"), ("damaged", "another checksum", "keep it")):
        assert bench.why_not_named(case, document(wrong)) == f"other words: {wrong[1]}. {wrong[2]}"
    assert bench.why_not_named(case, document(good, cache_stats="unavailable")) == "the document has no cache_stats"


@pytest.mark.parametrize("missed, accused, line, is_met", [
    ({"a": "", "b": ""}, {"c": []}, "2 of 2 named with the mend, 0 of 1 accused", True),
    ({"a": "", "b": "nothing"}, {"c": []}, "1 of 2 named with the mend, 0 of 1 accused", False),
    ({"a": "", "b": ""}, {"c": ["busy"]}, "2 of 2 named with the mend, 1 of 1 accused", False)])
def test_all_faults_are_named_and_no_machine_is_accused_or_the_bar_is_missed(bench, missed, accused, line, is_met):
    assert bench.judge(missed, accused) == (line, is_met)


def test_each_case_of_the_issue_is_staged_once(bench):
    assert [one.what.split()[0] for one in bench.FAULTS] == [f"TRBL-{number:02}" for number in range(1, 12)] and len(bench.HEALTHY) == 5
    assert all((one.of_machine is None) != (one.of_run is None) and one.evidence and one.mend for one in bench.FAULTS)


def test_the_command_names_eleven_faults_and_accuses_none_of_five_machines():
    done = subprocess.run([sys.executable, BENCH / "doctor_cases" / "run.py"], capture_output=True, text=True, timeout=180)
    assert "\n11 of 11 named with the mend, 0 of 5 accused: met\n" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
