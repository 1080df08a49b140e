"""How much of a run's time each of headrace's own services may take (REG-05): the ranges of T-10 to T-14, how a measured share is set
against its range, and what has an upper bound alone. Above the upper end is a failure; below the lower one is better than was asked for.

Nothing here imports torch or headrace.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import harness


@dataclass(frozen=True)
class Bound:
    """An upper limit of a median."""

    target: str
    what: str
    high: float

    def is_above(self, values: Sequence[float]) -> bool:
        """Whether the median lies above. Its interval, which is told beside it, says how sure that is."""
        return statistics.median(values) > self.high

    def verdict(self, values: Sequence[float]) -> str:
        return "MISSED" if self.is_above(values) else "met"


@dataclass(frozen=True)
class Budget(Bound):
    """A range of shares of the time, from 0 to 1."""

    low: float

    def wanted(self) -> str:
        return f"{self.low:.0%} to {self.high:.0%}, or less"

    def found(self, shares: Sequence[float]) -> str:
        """"12.3% [11.8%, 12.9%]"."""
        low, high = harness.interval(shares)
        return f"{statistics.median(shares):.1%} [{low:.1%}, {high:.1%}]"

    def line(self, of: str, shares: Sequence[float]) -> str:
        """"T-13  detailed profiling, operators: wanted 10% to 25%, or less, found 12.3% [11.8%, 12.9%]: met"."""
        return f"{self.target}  {self.what}, {of}: wanted {self.wanted()}, found {self.found(shares)}: {self.verdict(shares)}"

    def unavailable(self, reason: str) -> str:
        """"T-10  cache management: wanted 1% to 5%, or less, found unavailable: not built yet"."""
        return f"{self.target}  {self.what}: wanted {self.wanted()}, found {harness.UNAVAILABLE}: {reason}"


@dataclass(frozen=True)
class Limit(Bound):
    """Of a figure in `unit`, told with `digits` decimals."""

    unit: str
    digits: int

    def line(self, values: Sequence[float]) -> str:
        """"PROF-18  a scope that is off: wanted 1,000 ns at most, found 212 ns [205, 220], 201 to 260 in all: met"."""
        return (f"{self.target}  {self.what}: wanted {self.high:,.{self.digits}f} {self.unit} at most, found "
                f"{harness.with_interval(values, self.unit, self.digits)}, {min(values):,.{self.digits}f} to "
                f"{max(values):,.{self.digits}f} in all: {self.verdict(values)}")


CACHE = Budget("T-10", "cache management", low=0.01, high=0.05)
MEMORY_MONITOR = Budget("T-11", "memory monitoring", low=0.02, high=0.08)
POOLS = Budget("T-12", "coordination of parallel tasks", low=0.05, high=0.15)
NOT_BUILT = (CACHE, MEMORY_MONITOR, POOLS)
DETAILED_PROFILING = Budget("T-13", "detailed profiling", low=0.10, high=0.25)
BATCH_SEARCH = Budget("T-14", "search of a batch size", low=0.05, high=0.20)

SCOPE_THAT_IS_OFF = Limit("PROF-18", "a scope of a PerformanceProfiler that is off", 1000, "ns", 0)
# Nobody asked for a figure; it is that of what is always on.
PRODUCTION = Limit("CFG-07", "a step by the preset minimal_overhead over the plain one", 1.01, "x", 3)
