"""What came of one change that hr.tune, hr.autotune or a recipe's tuner tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Gain = tuple[float, float | None, float | None]  # Median and 95 % interval; without an end, as after a single pair, both are None.


@dataclass(frozen=True)
class Trial:
    """What came of one candidate."""

    name: str
    verdict: str  # "kept", "refused", "inconclusive", "failed".
    # "none", "slower", "no_gain", "numerics", "memory", "budget", "error", "fixed", "not_quiet", "not_allowed", "carries_over".
    reason: str
    sentence: str  # The same with its numbers, for a person.
    gain: Gain | None  # 0.21 is 21 % faster. None: not measured.
    pairs: int  # Paired comparisons that were made.
    settings: dict[str, str]  # What it changes, as TOML values.

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Trial:
        """Of an entry of ledger.json."""
        return cls(entry["name"], entry["verdict"], entry["reason"], entry["sentence"],
                   _gain_of(entry["gain"]), entry["pairs"], dict(entry["changes"]))

    def __repr__(self) -> str:
        told = "not measured"
        if self.gain is not None:
            median, low, high = self.gain
            told = f"{median:+.1%} {interval_text(low, high, '+.1%')}".rstrip()
        return f"<headrace.Trial {self.name}: {self.verdict}, {told}, {self.pairs} pairs>"


def interval_text(low: float | None, high: float | None, form: str) -> str:
    """As "[+14.8%, +27.7%]"; empty where an end is not known."""
    return "" if low is None or high is None else f"[{low:{form}}, {high:{form}}]"


def _gain_of(found: Mapping[str, float | None] | None) -> Gain | None:
    if found is None or (median := found["median"]) is None:
        return None
    low, high = found.get("low"), found.get("high")
    return (median, None, None) if low is None or high is None else (median, low, high)
