"""What a headrace.watch has found, for a person and for a program."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

from . import _core
from ._charts import PARTS, paragraph, split_figure
from ._diagnosis import diagnosis_html
from ._idle_loop import COUNTED_MIN, idle_wait
from ._pickling import refused_pickling
from ._pipeline import OptimizedLoader
from ._step_work import matrix_product
from .errors import Error, InvalidArgumentError


class Watched:
    """The half of hr.watch that is asked after its block. The other half sets these."""

    _title: str
    _loader: Any
    _watch: _core.LoopWatch | None  # None: not begun.
    _undo: list[Callable[[], Any]]  # Empty: before the block, and after it.
    _on_host_alone: bool
    _command: str
    _found: tuple[dict[str, Any], str, str] | None  # Document, text and HTML, once they were asked for.

    @property
    def document(self) -> dict[str, Any]:
        """Everything that was found, as JSON values. headrace.Error when no training step was seen."""
        return self._result()[0]

    @property
    def steps(self) -> int:
        """Training steps that were seen."""
        return self.document["steps"]

    def live(self) -> dict[str, float]:
        """Within the block, from any thread, as for a view: steps that were seen, and of the newest ones samples_per_s and time.<part>_s,
        seconds a step by part. What is not known yet is left out; behind the block that is all but steps. On a device these are the host's
        times."""
        if self._watch is None:
            return {"steps": 0}
        return {"steps": self._watch.steps, **self._watch.live()}

    @property
    def split(self) -> dict[str, float]:
        """Seconds of each part over all steps, and `total`."""
        split = self.document["time_split"]
        return {part: split[f"{part}_s"] for part in PARTS} | {"total": split["total_s"]}

    @property
    def wall_split(self) -> dict[str, Any]:
        """Seconds of the whole block: total_s, of which setup_s before the first part and after_s behind the last; data_wait_s,
        transfer_s, forward_s, backward_s, optimizer_s, validation_s, checkpoint_s, python_s (the loop's own code between these) and
        other_s, whose shares of the loop's time are in `share`; cpu_taken_s: ready to run without a core; None: unavailable.
        Only what `headrace profile script.py` runs has transfers and checkpoints told apart; else they are python_s."""
        return self.document["wall_split"]

    @property
    def waits(self) -> dict[str, Any]:
        """Seconds that threads waited: empty_queue_s, full_queue_s, lock_s, io_s (reads, also those that the page cache answers),
        cpu_taken_s; None: nobody recorded such a wait. A headrace.Loader tells the first four; why_no_lock and why_no_io say why there is
        none, and are None where there is."""
        return self.document["waits"]

    @property
    def step_histogram(self) -> dict[str, Any]:
        """How often a step took how long: count, mean_s, min_s, max_s, p50_s, p95_s, p99_s, and ranges, each from_s, to_s and count, four a
        power of two."""
        return self.document["step_histogram"]

    @property
    def flights(self) -> dict[str, Any]:
        """dumps, each with path, reason, events and dropped; refused (above 16), slow_steps, and problem: why one was not written."""
        return self.document["flights"]

    def dump(self, reason: str = "request") -> str | None:
        """Writes the last minute into the folder `flights` now, within the block; its path. None: 16 are written already."""
        if self._watch is None:
            raise InvalidArgumentError("watch: dump: wanted a watch that has begun")
        return self._watch.dump(reason) or None

    @property
    def host_time(self) -> str | None:
        """What is to be known of every figure where a device computes; None: the CPU does."""
        return self.document["host_time"]

    @property
    def verdict(self) -> dict[str, Any] | None:
        """Which resource runs out first: first ("storage", "decode", "augment", "collate", "transfer", "compute", "optimizer", "python",
        "synchronisation", "memory", "cores", "imbalance"; None: not known), healthy, confidence, confirmed (a differential run showed it),
        sentence, to_confirm (how one does that; None: it is, or nothing is named), peak_share, losses of 7.5 % of a step and more, the
        largest first, each with resource, lost_s, gain, evidence, advice and keys, and unavailable: what could not be judged. shares
        divides a step into data, copy, memory, synchronisation and compute. None where host_time says why."""
        found = self.document["diagnosis"]
        return found and found["resources"]

    def confirm(self, loader: Any = None, *, steps: int = 20) -> dict[str, Any] | None:
        """Takes up to `steps` batches of the loader once more, with a sleep as long as a step's compute in the place of that, and judges
        anew: of a wait that is gone then, the cores were the cause. Returns the verdict. `loader`: left out, the one that was given to
        watch(). What it and its data set count or keep themselves goes on; random generators are put back."""
        seen, loader = self._finished(), loader if loader is not None else self._loader
        if loader is None:
            raise InvalidArgumentError("watch: confirm: wanted the loop's loader, found none")
        if isinstance(loader, OptimizedLoader):
            loader = loader.loader
        if not (hasattr(loader, "__iter__") or callable(loader)):
            raise InvalidArgumentError(f"watch: confirm: loader: wanted an iterable, or a function that makes one, found "
                                       f"{type(loader).__name__}")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < COUNTED_MIN:
            raise InvalidArgumentError(f"watch: confirm: steps: wanted a whole number of at least {COUNTED_MIN}, found {steps!r}")
        split = self.split
        seen.set_idle_wait(idle_wait(loader, (split["total"] - split["data_wait"]) / self.steps, steps))
        self._found = None
        return self.verdict

    @property
    def diagnosis(self) -> str | None:
        """What limits the loop, in a sentence; None where host_time says why there is none."""
        found = self.document["diagnosis"]
        return found and found["sentence"]

    @property
    def findings(self) -> list[dict[str, str]]:
        """What is odd: code, sentence, advice."""
        found = self.document["diagnosis"]
        return found["findings"] if found else []

    @property
    def memory(self) -> dict[str, int | None]:
        """Resident bytes of the process: mean and peak; None: unavailable."""
        return {"mean": self.document["mean_memory_bytes"], "peak": self.document["peak_memory_bytes"]}

    @property
    def memory_by_class(self) -> dict[str, int | None]:
        """Bytes at the moment at which most was resident: parameters with buffers, gradients, optimizer state and the batch at
        hand, each storage once, what headrace's own objects hold, and other; None: nobody counted it, as activations."""
        found = self.document["memory"]
        return {name: known and known["at_peak"] for name, known in found["classes"].items()} if found else {}

    def summary(self) -> str:
        """The report as text."""
        return self._result()[1]

    def write_report(self, path: str | pathlib.Path) -> None:
        """Writes the report as one HTML file."""
        html = self._result()[2]
        _core.write_file(str(path), html)

    def write_trace(self, path: str | pathlib.Path, form: str = "chrome") -> list[pathlib.Path]:
        """Writes every span, and returns the files: in a form of headrace.Trace.write(), a Chrome trace unless another one is named."""
        return self._finished().write_trace(str(path), form)

    def figure(self) -> Any:
        """The parts of a step as a matplotlib Figure, which has savefig(). UnsupportedError: there is no matplotlib."""
        return split_figure(self._title, self.document["time_split"])

    def __repr__(self) -> str:
        if self._watch is None or self._undo:
            return f"<headrace.watch of {self._title}: {'not begun' if self._watch is None else 'watching'}>"
        try:
            return f"<headrace.watch of {self._title}: {self.steps} steps; {self.diagnosis or self.host_time}>"
        except Error as error:  # There was no step.
            return f"<headrace.watch of {self._title}: {error}>"

    def _repr_html_(self) -> str:
        try:
            found = self.document
        except Error:
            return paragraph(repr(self))
        return paragraph(self._title) + diagnosis_html(found["diagnosis"], found["time_split"], found["host_time"])

    __reduce__ = refused_pickling("a headrace.watch cannot be pickled or copied: it holds what this process recorded. Keep its document, "
                                  "or write_report() and write_trace()")

    def _finished(self) -> _core.LoopWatch:
        if self._watch is None or self._undo:
            raise InvalidArgumentError("watch: nothing is known before the end of the block")
        return self._watch

    def _result(self) -> tuple[dict[str, Any], str, str]:
        if self._found is None:
            seen = self._finished()
            if seen.steps > 0 and not self._on_host_alone:
                seen.find_peaks(matrix_product())
            document, text, html = seen.result(self._title, self._command)
            self._found = (json.loads(document), text, html)
        return self._found
