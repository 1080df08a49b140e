#!/usr/bin/env python3
"""Checks the ledger docs/requirements.md: every ID once, a known state, proofs that exist, and what a part lacks.

A row is | ID | title | none, part or done | proofs |. A proof is a name in backticks: a case of a test program
(data.Loader.EpochsDiffer) or a CTest, a pytest case (tests/command_test.py::test_typo_names_the_nearest_key) or a command
(make demo, make bench NAME=train-fashion, make check PARTS=fuzz). A row that is part or done names at least one; one that is
part goes on with ". Missing: ", and no other row does. The numeric targets, T-01 and so on, have two more columns, which say so
in their place: what is wanted, and "not measured" or the last figures with their date and command, as in: 1.7 times
(2026-11-22, `make bench NAME=train-fashion`).

usage: requirements_check.py BUILD_TREE
"""

import ast
import re
import sys
from pathlib import Path

import run_tests
import test_programs

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "docs" / "requirements.md"
# How many IDs each area has; they count from 1 without a gap.
COUNTS = {
    "DATA": 30, "AUG": 19, "CACHE": 24, "MEM": 22, "PAR": 12, "BATCH": 14, "PREC": 17, "MODEL": 18, "TRAIN": 25,
    "DIST": 13, "PROF": 21, "MON": 16, "ORCH": 20, "SERV": 14, "QUANT": 8, "HW": 18, "ERR": 10, "CFG": 15, "API": 16,
    "REG": 10, "TRBL": 11, "FUT": 11, "DOC": 7,
    "T": 32, "X": 32, "D": 38, "EX-000": 3, "EX-001": 27, "EX-002": 19, "EX-003": 9, "EX-004": 13, "PLAT": 30,
}
ROW = re.compile(r"^\| (?P<id>[A-Z]+(?:-\d+)+) \|(?P<rest>.*)\|$")
MEASURED = re.compile(r"\(\d{4}-\d\d-\d\d, `[^`]+`\)")


def expected_ids() -> list[str]:
    rules = [f"H-{number}" for number in range(1, 10)]
    return rules + [f"{area}-{number:02}" for area, count in COUNTS.items() for number in range(1, count + 1)]


def cells_of(line: str) -> list[str] | None:
    """The ID, the title, the state, the proofs, and of a target what is wanted and what was measured."""
    row = ROW.match(line)
    if not row:
        return None
    cells = [row["id"], *(cell.strip() for cell in row["rest"].split("|"))]
    return cells if len(cells) == (6 if cells[0].startswith("T-") else 4) else None


def check_row(cells: list[str], known_tests: set[str]) -> list[str]:
    identifier, title, state, proofs, *figures = cells
    proofs, separator, missing = proofs.partition(". Missing: ")
    names = re.findall(r"`([^`]+)`", proofs)
    findings = [f"names {name}, which does not exist" for name in names if name not in known_tests]
    if not title:
        findings.append("has no title")
    if state not in ("none", "part", "done"):
        findings.append(f"has state '{state}', wanted none, part or done")
    elif (state != "none") != bool(names):
        findings.append(f"is '{state}' and names {'a' if names else 'no'} test")
    if figures:
        wanted, measured = figures
        if not wanted:
            findings.append("does not say what is wanted")
        if measured != "not measured" and not MEASURED.search(measured):
            findings.append(f"has '{measured}' as the last figures; wanted 'not measured', or figures (DATE, `COMMAND`)")
    elif (state == "part") != bool(separator and missing.strip()):
        findings.append(f"is '{state}' and {'says' if separator else 'does not say'} what is missing")
    return [f"{identifier} {finding}" for finding in findings]


def check_table(text: str, known_tests: set[str]) -> list[str]:
    findings = []
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        cells = cells_of(line)
        if cells is None:
            if re.match(r"^\| [A-Z]+-\d", line):
                findings.append(f"line {number}: not | ID | title | state | proofs |, of a target with what is wanted and measured: {line}")
            continue
        if cells[0] in seen:
            findings.append(f"line {number}: {cells[0]} is there twice")
        seen.add(cells[0])
        findings += [f"line {number}: {finding}" for finding in check_row(cells, known_tests)]
    findings += [f"{identifier} is missing" for identifier in expected_ids() if identifier not in seen]
    findings += [f"{identifier} is not an ID of the list" for identifier in sorted(seen - set(expected_ids()))]
    return findings


def pytest_names() -> set[str]:
    names = set()
    for path in ROOT.glob("tests/**/*_test.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.add(f"{path.relative_to(ROOT).as_posix()}::{node.name}")
    return names


def make_commands() -> set[str]:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    benches = [path.parent.name.replace("_", "-") for path in ROOT.glob("bench/*/run.py")]
    benches += [path.stem for path in ROOT.glob("src/**/*_bench.cpp")]
    return ({f"make {target}" for target in targets} | {f"make bench NAME={name}" for name in benches}
            | {f"make {target} PARTS={part}" for target in ("test", "check") for part in run_tests.PARTS})


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: requirements_check.py BUILD_TREE", file=sys.stderr)
        return 2
    text = LEDGER.read_text()
    findings = check_table(text, test_programs.case_names(Path(sys.argv[1])) | pytest_names() | make_commands())
    for finding in findings:
        print(f"docs/requirements.md: {finding}")
    states = [cells[2] for cells in map(cells_of, text.splitlines()) if cells]
    print(", ".join(f"{states.count(state)} {state}" for state in ("done", "part", "none")) + f", {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
