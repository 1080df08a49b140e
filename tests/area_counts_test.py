"""tests/test_performance_optimization.py: a script that counts tests by the nine areas of the published one."""

import ast
from collections import Counter
from pathlib import Path

import pytest
import test_performance_optimization as script
from own_python import run_python

TESTS = Path(script.__file__).parent


def test_there_are_nine_areas_whose_tests_are_there():
    assert len(script.AREAS) == 9
    named = [test for tests in script.AREAS.values() for test in tests or ()]
    assert len(set(named)) == len(named)
    for file, _, name in (test.partition("::") for test in named):
        functions = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert name in functions if name else any(function.startswith("test_") for function in functions)


@pytest.mark.parametrize("node, area", [
    ("facade_config_test.py::test_x[a]", "configuration"), ("facade_performance_optimizer_test.py::test_x", "integration"),
    ("facade_performance_optimizer_test.py::test_the_example_of_a_decorated_function_is_recorded_under_its_name", "decorators")])
def test_a_test_counts_for_the_area_that_names_it_most_closely(node, area):
    assert script.area_of(node) == area


def test_a_failure_and_an_area_in_which_nothing_ran_are_failures_and_what_is_not_built_is_not():
    counts = {area: Counter(passed=2) for area in script.AREAS}
    assert script.exit_code(counts, list(script.AREAS), 0) == 0
    assert script.exit_code(counts, list(script.AREAS), 1) == 1
    counts["profiling"] = Counter(skipped=2)
    assert script.exit_code(counts, list(script.AREAS), 0) == 1
    assert script.exit_code({"caching": Counter()}, ["caching"], 0) == 0


def test_the_script_runs_an_area_and_counts_it():
    done = run_python(script.__file__, "decorators", "caching")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2:] == ["decorators  4 passed, 0 failed, 0 skipped", "caching     unavailable: not built yet"]


def test_an_unknown_area_is_refused_with_those_there_are():
    done = run_python(script.__file__, "cachng")
    assert (done.returncode, done.stdout) == (2, "")
    assert "found cachng" in done.stderr and "configuration" in done.stderr
