"""Measured shares of time are set against the ranges of T-10 to T-14. Figures are made by hand; nothing is timed."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import overhead_budgets  # noqa: E402
from overhead_budgets import BATCH_SEARCH, DETAILED_PROFILING  # noqa: E402


@pytest.mark.parametrize("budget, target, low, high", [(DETAILED_PROFILING, "T-13", 0.10, 0.25), (BATCH_SEARCH, "T-14", 0.05, 0.20)])
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


def test_each_budget_is_of_its_own_target():
    budgets = [value for value in vars(overhead_budgets).values() if isinstance(value, overhead_budgets.Budget)]
    assert len({budget.target for budget in budgets}) == len(budgets)
    assert all(0 < budget.low < budget.high < 1 for budget in budgets)
