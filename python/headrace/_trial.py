"""What came of one change that hr.tune, hr.autotune or a recipe's tuner tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Trial:
    """What came of one candidate."""

    name: str
    verdict: str  # "kept", "refused", "inconclusive", "failed".
    # "none", "slower", "no_gain", "numerics", "memory", "budget", "error", "fixed", "not_quiet", "not_allowed", "carries_over".
    reason: str
    sentence: str  # The same with its numbers, for a person.
    gain: tuple[float, float, float] | None  # Median and 95 % interval: 0.21 is 21 % faster. None: not measured.
    pairs: int  # Paired comparisons that were made.
    settings: dict[str, str]  # What it changes, as TOML values.

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Trial:
        """Of an entry of ledger.json."""
        gain = entry["gain"]
        return cls(entry["name"], entry["verdict"], entry["reason"], entry["sentence"],
                   None if gain is None else (gain["median"], gain["low"], gain["high"]), entry["pairs"], dict(entry["changes"]))

    def __repr__(self) -> str:
        gain = "not measured" if self.gain is None else "{:+.1%} [{:+.1%}, {:+.1%}]".format(*self.gain)
        return f"<headrace.Trial {self.name}: {self.verdict}, {gain}, {self.pairs} pairs>"
