"""Measured shares of time are set against the ranges of T-10 to T-14. Figures are made by hand; nothing is timed."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import overhead_budgets  # noqa: E402
from overhead_budgets import (  # noqa: E402
    BATCH_SEARCH,
    CACHE,
    DETAILED_PROFILING,
    MEMORY_MONITOR,
    NOT_BUILT,
    POOLS,
    PRODUCTION,
    SCOPE_THAT_IS_OFF,
)


@pytest.mark.parametrize("budget, target, low, high", [
    (CACHE, "T-10", 0.01, 0.05), (MEMORY_MONITOR, "T-11", 0.02, 0.08), (POOLS, "T-12", 0.05, 0.15),
    (DETAILED_PROFILING, "T-13", 0.10, 0.25), (BATCH_SEARCH, "T-14", 0.05, 0.20)])
def test_ranges_are_those_that_were_asked_for(budget, target, low, high):
    assert (budget.target, budget.low, budget.high) == (target, low, high)


@pytest.mark.parametrize("shares, is_above", [
    ([0.02] * 9, False), ([0.25] * 9, False), ([0.2501] * 9, True),
    ([0.30] * 5 + [0.01] * 4, True), ([0.30] * 4 + [0.01] * 5, False)])
def test_above_the_range_is_a_median_that_lies_above_it(shares, is_above):
    assert DETAILED_PROFILING.is_above(shares) is is_above
    assert DETAILED_PROFILING.line("operators", shares).endswith("MISSED" if is_above else "met")


def test_a_line_has_the_interval_beside_the_range():
    shares = [0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18, 0.40]
    assert DETAILED_PROFILING.line("operators", shares) == (
        "T-13  detailed profiling, operators: wanted 10% to 25%, or less, found 15.0% [12.0%, 18.0%]: met")


@pytest.mark.parametrize("limit, met, above", [(SCOPE_THAT_IS_OFF, 1000, 1001), (PRODUCTION, 1.01, 1.011)])
def test_above_a_limit_is_a_median_above_it(limit, met, above):
    assert not limit.is_above([met] * 5 + [2 * above] * 4) and limit.is_above([above] * 5 + [0.5] * 4)


def test_a_limits_line_has_the_interval_and_the_range():
    nanoseconds = [110, 120, 130, 140, 150, 160, 170, 180, 400]
    assert SCOPE_THAT_IS_OFF.line(nanoseconds) == (
        "PROF-18  a scope of a PerformanceProfiler that is off: wanted 1,000 ns at most, found 150 ns [120, 180], 110 to 400 in all: met")
    assert PRODUCTION.line([1.02] * 9).endswith("wanted 1.010 x at most, found 1.020 x [1.020, 1.020], 1.020 to 1.020 in all: MISSED")


def test_what_is_not_built_is_unavailable_and_no_figure():
    assert [budget.unavailable("not built yet") for budget in NOT_BUILT] == [
        "T-10  cache management: wanted 1% to 5%, or less, found unavailable: not built yet",
        "T-11  memory monitoring: wanted 2% to 8%, or less, found unavailable: not built yet",
        "T-12  coordination of parallel tasks: wanted 5% to 15%, or less, found unavailable: not built yet"]


def test_each_budget_is_of_its_own_target():
    budgets = [value for value in vars(overhead_budgets).values() if isinstance(value, overhead_budgets.Budget)]
    assert len({budget.target for budget in budgets}) == len(budgets)
    assert all(0 < budget.low < budget.high < 1 for budget in budgets)
