"""hr.diagnose: what limits the steps that a Trace recorded, as a notebook shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _core
from ._charts import paragraph, split_figure, split_html, table


class Diagnosis(dict[str, Any]):
    """What limits a loop: bound ("compute", "data" or "unknown"), sentence, samples_per_second, predicted_free_data_gain,
    measured_free_data_gain, and findings, each with code, sentence and advice; of hr.diagnose_loop, resources, as hr.watch.verdict
    describes them. A notebook shows it with the time split that it is of, which is `time_split`."""

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
    """The verdict over resources, where there is one."""
    return (found.get("resources") or found)["sentence"]


def diagnosis_html(found: Mapping[str, Any] | None, time_split: Mapping[str, Any], note: str | None = None) -> str:
    """found: None: there is no verdict, and `note` says why."""
    findings = [] if found is None else [(one["sentence"], one["advice"]) for one in found["findings"]]
    return (paragraph(_line(found) if found is not None else note or "") + split_html(time_split)
            + (table(("what was seen", "what to try"), findings) if findings else ""))


def diagnose(trace: _core.Trace, samples_per_step: int, *, skip: int = 0, loader_busy_s: float | None = None,
             num_workers: int = 1) -> Diagnosis:
    """What limits the steps that `trace` recorded, without the first `skip`. loader_busy_s: seconds that a loader's threads were at
    work in them, where that is known, and num_workers how many there are."""
    found = _core.diagnose(trace, samples_per_step, skip=skip, loader_busy_s=loader_busy_s, num_workers=num_workers)
    return Diagnosis(found, trace.time_split(skip))
