"""hr.diagnose: what limits the steps that a Trace recorded, as a notebook shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import _core
from ._charts import paragraph, split_figure, split_html, table


class Diagnosis(dict[str, Any]):
    """What limits a loop: bound ("compute", "data" or "unknown"), sentence, samples_per_second, predicted_free_data_gain,
    measured_free_data_gain, findings, each with code, sentence and advice, and resources, as hr.watch.verdict describes them. A notebook
    shows it with the time split that it is of, which is `time_split`."""

    def __init__(self, found: Mapping[str, Any], time_split: Mapping[str, Any]) -> None:
        super().__init__(found)
        self.time_split = dict(time_split)  # As Trace.time_split() has it.

    def figure(self) -> Any:
        """The parts of a step as a matplotlib Figure, which has savefig(). UnsupportedError: there is no matplotlib."""
        return split_figure(f"{self['bound']}-bound", self.time_split)

    def __repr__(self) -> str:
        return f"<headrace.Diagnosis: {_line(self)}>"

    def _repr_html_(self) -> str:
        return diagnosis_html(self, self.time_split)


def _line(found: Mapping[str, Any]) -> str:
    """The verdict over resources where it names one, or where nothing else is known either."""
    verdict = found.get("resources")
    if verdict is not None and (verdict["first"] is not None or found["bound"] == "unknown"):
        return verdict["sentence"]
    return found["sentence"]


def _to_confirm(found: Mapping[str, Any]) -> str:
    """How one confirms that verdict; empty: it is confirmed, or there is none."""
    return (found.get("resources") or {}).get("to_confirm") or ""


def diagnosis_html(found: Mapping[str, Any] | None, time_split: Mapping[str, Any], note: str | None = None) -> str:
    """found: None: there is no verdict, and `note` says why."""
    findings = [] if found is None else [(one["sentence"], one["advice"]) for one in found["findings"]]
    told = [note or ""] if found is None else [_line(found), _to_confirm(found)]
    return ("".join(paragraph(text) for text in told if text) + split_html(time_split)
            + (table(("what was seen", "what to try"), findings) if findings else ""))


def diagnose(trace: _core.Trace | str | os.PathLike[str], samples_per_step: int, *, skip: int = 0, loader_busy_s: float | None = None,
             num_workers: int = 1) -> Diagnosis:
    """What limits the steps that `trace` recorded, without the first `skip`, and which resource they run out of first, as far as a trace
    tells: what it does not hold (the machine's peaks, what a thread did in a part of a step) is named in resources["unavailable"].

    trace: a headrace.Trace whose block is over, that of hr.profile() included, or the path of a Chrome trace that its write() made.
    Stages of loading are told apart by the names of spans: read, decode, augment and collate.
    loader_busy_s: seconds that a loader's threads were at work in these steps, where that is known, and num_workers how many there are.
    CorruptDataError: there are no such steps, or the file is none of headrace's.
    """
    diagnosed = _core.diagnose if isinstance(trace, _core.Trace) else _core.diagnose_file
    subject: Any = trace if isinstance(trace, _core.Trace) else os.fspath(trace)
    found = diagnosed(subject, samples_per_step, skip=skip, loader_busy_s=loader_busy_s, num_workers=num_workers)
    return Diagnosis(found["diagnosis"], found["time_split"])
