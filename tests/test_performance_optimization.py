#!/usr/bin/env python3
"""Runs headrace's tests of the nine areas that the published performance optimizer's test script had, and counts them by area. It has that
script's name. The whole suite is `make test`.

usage: python tests/test_performance_optimization.py [AREA...]     (none: all; exit code 1: a test failed, or an area has none that ran)
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# By area, tests below tests/: a file, or one of its tests. None: what it is about is not built yet.
AREAS: dict[str, tuple[str, ...] | None] = {
    "caching": None,
    "memory": None,
    "pools": None,
    "batch optimization": ("facade_batch_size_test.py", "batch_plan_test.py"),
    "profiling": ("facade_profiler_test.py", "operator_profile_test.py"),
    "decorators": ("python_insight_test.py::test_calls_of_a_profiled_operation_are_counted_and_timed_and_give_what_they_gave",
                   "python_insight_test.py::test_profiled_coroutines_overlap_and_each_keeps_its_own_time",
                   "python_insight_test.py::test_what_cannot_be_profiled_is_refused_by_name",
                   "facade_performance_optimizer_test.py::test_the_example_of_a_decorated_function_is_recorded_under_its_name"),
    "training loops": ("facade_training_loop_test.py", "facade_trainer_test.py"),
    "integration": ("facade_performance_optimizer_test.py", "facade_monitor_test.py"),
    "configuration": ("facade_config_test.py",),
}
NOT_BUILT = "unavailable: not built yet"


def area_of(node: str) -> str:
    """Of a test, "facade_config_test.py::test_x[case]": the one that names it most closely."""
    places = [(len(place), area) for area, tests in AREAS.items() for place in tests or ()
              if node == place or node.startswith((place + "::", place + "["))]
    return max(places)[1]


class Counts:
    """A plugin of pytest's: passed, failed and skipped tests by area."""

    def __init__(self) -> None:
        self.by_area: dict[str, Counter[str]] = {area: Counter() for area in AREAS}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":  # A fixture that fails is a test that fails.
            self.by_area[area_of(report.nodeid.removeprefix("tests/"))][report.outcome] += 1


def lines_of(counts: dict[str, Counter[str]], areas: list[str]) -> list[str]:
    width = max(map(len, areas))
    return [f"{area:<{width}}  {NOT_BUILT if AREAS[area] is None else text_of(counts[area])}" for area in areas]


def text_of(counted: Counter[str]) -> str:
    return ", ".join(f"{counted[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))


def exit_code(counts: dict[str, Counter[str]], areas: list[str], of_pytest: int) -> int:
    empty = [area for area in areas if AREAS[area] is not None and not counts[area]["passed"]]
    return 1 if of_pytest or empty else 0


def main(words: list[str]) -> int:
    if unknown := [word for word in words if word not in AREAS]:
        print(f"wanted areas of {', '.join(AREAS)}; found {', '.join(unknown)}", file=sys.stderr)
        return 2
    areas = words or list(AREAS)
    tests = [str(ROOT / "tests" / test) for area in areas for test in AREAS[area] or ()]
    counts = Counts()
    # Without a test pytest would take all there are.
    of_pytest = int(pytest.main(["--rootdir", str(ROOT), "-c", str(ROOT / "pytest.ini"), "-q", *tests], plugins=[counts])) if tests else 0
    print(*lines_of(counts.by_area, areas), sep="\n")
    return exit_code(counts.by_area, areas, of_pytest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
