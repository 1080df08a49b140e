"""How hr.tune and hr.autotune tell of their progress where nobody gave them on_progress, and Trainer.fit() where it is asked to: lines
on stderr, which leave a bar of tqdm's whole, and of hr.tune and fit() a bar where tqdm is installed and somebody looks. A stderr that
is closed or takes nothing ends no run."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_STEPS = ("step", "diagnosis")  # Kinds that say what is at work now; the others are worth a line of their own.
_SHOWN_EVERY_S = 0.2  # As headrace train; losses are read only then.
_BUDGET_FORMAT = "{l_bar}{bar}| {n:.0f} of {total:.0f} s"
_CANNOT_BE_TOLD = (OSError, ValueError)  # Of a stderr behind which nobody reads or no room is left, and of a closed one.


def tell_line(text: str) -> None:
    """A line on stderr, if that takes one. Where the script has bars of tqdm's, it stands above them."""
    if sys.stderr is None:  # print() would take stdout in its place.
        return
    line = f"headrace: {text}"
    tqdm = sys.modules.get("tqdm")  # Not loaded, it has drawn nothing.
    with suppress(*_CANNOT_BE_TOLD):
        if tqdm is not None and hasattr(tqdm, "tqdm"):
            tqdm.tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr)


@contextmanager
def shown_progress(what: str, budget_s: float) -> Iterator[Callable[[str, str], None]]:
    """An on_progress(kind, text): a bar over the seconds of the budget, with a line for each decision, or lines alone."""
    bar = _bar(total=max(1, round(budget_s)), desc=what, unit="s", bar_format=_BUDGET_FORMAT) if _is_looked_at() else None
    if bar is None:
        yield lambda kind, text: tell_line(text)
        return
    began = time.monotonic()

    def show(kind: str, text: str) -> None:
        bar.n = min(time.monotonic() - began, bar.total)
        if kind in _STEPS:
            bar.set_description_str(f"{what}: {text.split(':')[0] if kind == 'diagnosis' else text}", refresh=False)
        else:
            tell_line(text)
        _draw(bar)

    try:
        yield show
    finally:
        with suppress(*_CANNOT_BE_TOLD):
            bar.close()


class TrainingProgress:
    """Of a fit(): a bar for each epoch, which is gone when that ends, where tqdm is installed and somebody looks; and a line for each
    epoch that is done."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._is_looked_at = _is_looked_at()
        self._bar: Any = None
        self._shown_s = -math.inf

    def begin_epoch(self, epoch: int, batches: int | None, done: int) -> None:
        """epoch: from 1. batches: None, nobody knows how many. done: of them, before the run went on."""
        if self._is_looked_at:
            self._bar = _bar(total=batches, initial=done, desc=f"Training, epoch {epoch} of {self._epochs}", unit="batch")

    def is_due(self) -> bool:
        """Whether a step is to be shown: not more often than somebody can read."""
        if self._bar is None or (now_s := time.monotonic()) - self._shown_s < _SHOWN_EVERY_S:
            return False
        self._shown_s = now_s
        return True

    def show(self, batches: int, loss: Any, mean: float | None) -> None:
        """After so many batches of the epoch. mean: of its losses."""
        self._bar.n = batches
        self._bar.set_postfix_str(f"Loss: {_number(float(loss))}, Avg Loss: {_number(mean)}", refresh=False)
        _draw(self._bar)

    def end_epoch(self, result: dict[str, Any]) -> None:
        """result: as on_epoch gets it."""
        self.close()
        text = (f"epoch {result['epoch']} of {self._epochs}: loss {_number(result['loss'])}, "
                f"{result['samples_per_second']:.1f} samples/s")
        figures = {name: value for name, value in result.get("evaluation", {}).items() if name != "samples"}
        if figures:
            text += "; evaluation: " + ", ".join(f"{name} {_number(value)}" for name, value in figures.items())
        tell_line(text)

    def close(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            with suppress(*_CANNOT_BE_TOLD):
                bar.close()


def _number(value: float | None) -> str:
    return "unavailable" if value is None else f"{value:.4f}"


def _draw(bar: Any) -> None:
    with suppress(*_CANNOT_BE_TOLD), bar.get_lock():  # A refresh() that fails would keep its own lock.
        bar.refresh(nolock=True)


def is_terminal(stream: Any) -> bool:
    try:
        return bool(getattr(stream, "isatty", lambda: False)())
    except ValueError:  # It is closed.
        return False


def _is_looked_at() -> bool:
    """Whether stderr is a terminal, or a notebook's cell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    is_notebook = shell is not None and hasattr(shell, "kernel")
    return is_notebook or is_terminal(sys.stderr)


def _bar(**settings: Any) -> Any:
    """Of tqdm's class for where this runs; None: it is not installed, or cannot be used."""
    try:
        return importlib.import_module("tqdm.auto").tqdm(leave=False, **settings)
    except Exception:  # noqa: BLE001 - whatever an installation that is not whole raises: lines will do.
        return None
