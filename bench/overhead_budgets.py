"""How much of a run's time each of headrace's own services may take (REG-05): the ranges of T-10 to T-14, and how a measured share is set
against its range. Above the upper end is a failure; below the lower one is better than was asked for.

Nothing here imports torch or headrace.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import harness


@dataclass(frozen=True)
class Budget:
    """Shares of the time, from 0 to 1."""

    target: str
    what: str
    low: float
    high: float

    def is_above(self, shares: Sequence[float]) -> bool:
        """Whether the median lies above the range. Its interval, which is told beside it, says how sure that is."""
        return statistics.median(shares) > self.high

    def wanted(self) -> str:
        return f"{self.low:.0%} to {self.high:.0%}, or less"

    def found(self, shares: Sequence[float]) -> str:
        """"12.3% [11.8%, 12.9%]"."""
        low, high = harness.interval(shares)
        return f"{statistics.median(shares):.1%} [{low:.1%}, {high:.1%}]"

    def line(self, of: str, shares: Sequence[float]) -> str:
        """"T-13  detailed profiling, operators: wanted 10% to 25%, or less, found 12.3% [11.8%, 12.9%]: met"."""
        verdict = "MISSED" if self.is_above(shares) else "met"
        return f"{self.target}  {self.what}, {of}: wanted {self.wanted()}, found {self.found(shares)}: {verdict}"


# T-10 (cache), T-11 (memory monitor) and T-12 (pools) follow with what they are about.
DETAILED_PROFILING = Budget("T-13", "detailed profiling", 0.10, 0.25)
BATCH_SEARCH = Budget("T-14", "search of a batch size", 0.05, 0.20)
