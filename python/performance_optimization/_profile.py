"""A profile of a block, written into a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import Trace

_TRACE, _STATISTICS = "trace.json", "pipeline_statistics.json"


class Profile:
    """`with Profile("logdir"):` records what headrace does in all threads, and writes into logdir, also where the block raises:

    trace.json: a Chrome JSON trace, which Perfetto opens.
    pipeline_statistics.json: time_split, the seconds of the block's training steps by part, among them the wait for data, or None with
        the reason; spans, by name how many and how long; memory over time; dropped_events, which full buffers lost; and events, the name
        of the event file, None without steps.
    events.out.tfevents...: of each training step the seconds of the whole and of its parts, as time_split/NAME_s, for TensorBoard.

    logdir: made if need be; the two JSON files of an earlier profile there are replaced, event files stay, and TensorBoard joins them: a
    folder for each profile keeps them apart. One recording at a time in a process: headrace.errors.InvalidArgumentError, a ValueError, if
    another one runs. OSError: the folder cannot be made.
    """

    def __init__(self, logdir: str | os.PathLike[str]) -> None:
        self.logdir = Path(logdir)
        self._trace: Trace | None = None

    def __enter__(self) -> Profile:
        import headrace

        self.logdir.mkdir(parents=True, exist_ok=True)
        trace = headrace.Trace()
        trace.__enter__()
        self._trace = trace
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        from headrace import _core

        trace, self._trace = self._trace, None
        if trace is None:
            raise ValueError("Profile: wanted an open block, found none")
        trace.__exit__(kind, error, traceback)
        trace.write(self.logdir / _TRACE)
        statistics = _statistics(trace)
        events = None if statistics["time_split"] is None else _core.write_step_events(self.logdir, trace)
        statistics["events"] = events and events.name
        _core.write_file(str(self.logdir / _STATISTICS), json.dumps(statistics, indent=2))


def _statistics(trace: Trace) -> dict[str, Any]:
    import headrace

    split: dict[str, Any] | None = None
    reason = ""
    try:
        split = trace.time_split()
    except headrace.Error as error:  # As where the block has no training step.
        reason = str(error)
    return {"time_split": split, "reason": reason, "spans": trace.summary(), "memory": trace.memory(), "dropped_events": trace.dropped}
