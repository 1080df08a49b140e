"""ledger.json as a notebook shows it."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from ._charts import Interval, intervals_figure, intervals_svg, paragraph, table
from ._trial import Trial, interval_text
from .errors import CorruptDataError

_HEAD = ("change", "verdict", "gain", "95 % interval", "pairs", "why")


class Ledger(dict[str, Any]):
    """What was tried, kept and refused, as ledger.json has it: a dict, which a notebook shows as a table and a chart.
    tuned.ledger of hr.tune, tuning.ledger of hr.autotune; read() takes that of `headrace tune`, too."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ledger:
        """The ledger.json at this path. CorruptDataError: it is none."""
        with open(path, encoding="utf-8") as file:
            try:
                document = json.load(file)
            except ValueError as error:
                raise CorruptDataError(f"{os.fspath(path)}: wanted a ledger.json, found no JSON: {error}") from error
        found = document.get("ledger", document) if isinstance(document, dict) else None
        if not isinstance(found, dict) or not isinstance(found.get("trials"), list) or not isinstance(found.get("speedup"), dict):
            raise CorruptDataError(f"{os.fspath(path)}: wanted a ledger.json, found JSON without trials and their speedup")
        return cls(document)

    @property
    def trials(self) -> list[Trial]:
        """What came of each change, in the order in which they were tried."""
        return [Trial.of(entry) for entry in self._found["trials"]]

    @property
    def verdict(self) -> str:
        """In a sentence."""
        speedup, kept = self._found["speedup"], [trial.name for trial in self.trials if trial.verdict == "kept"]
        if not kept:
            return "Nothing was kept."
        if speedup["median"] is None:
            return f"Kept, and not compared together: {', '.join(kept)}."
        interval = interval_text(speedup["low"], speedup["high"], ".2f")
        told = f"{speedup['median']:.2f} times as fast {interval}".rstrip()
        return f"{told}, {speedup['pairs']} pairs; kept: {', '.join(kept)}."

    def figure(self) -> Any:
        """The gains with their intervals as a matplotlib Figure, which has savefig(). UnsupportedError: there is no matplotlib."""
        return intervals_figure(self._title, self._intervals())

    @property
    def _found(self) -> dict[str, Any]:
        """Of a run that tuned itself the trials lie one level below."""
        return self.get("ledger", self)

    @property
    def _title(self) -> str:
        return str(self.get("title", "ledger"))

    def _intervals(self) -> list[Interval]:
        return [Interval(trial.name, trial.verdict, *trial.gain) for trial in self.trials if trial.gain is not None]

    def __repr__(self) -> str:
        counts = Counter(trial.verdict for trial in self.trials)
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        return f"<headrace.Ledger of {self._title}: {self.verdict.removesuffix('.')}; {told or 'nothing tried'}>"

    def _repr_html_(self) -> str:
        rows = []
        for trial in self.trials:
            gain, interval = ("", "") if trial.gain is None else (
                f"{trial.gain[0]:+.1%}", interval_text(*trial.gain[1:], "+.1%"))
            rows.append((trial.name, trial.verdict, gain, interval, str(trial.pairs), trial.sentence))
        chart = intervals_svg(f"What each change gained: {self._title}", self._intervals())
        return paragraph(f"{self._title}: {self.verdict}") + table(_HEAD, rows) + chart
