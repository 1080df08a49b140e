"""How hr.tune and hr.autotune tell of their progress where nobody gave them on_progress: lines on stderr, which leave a bar of tqdm's
whole, and of hr.tune a bar where tqdm is installed and somebody looks. A stderr that is closed or takes nothing ends no run."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_STEPS = ("step", "diagnosis")  # Kinds that say what is at work now; the others are worth a line of their own.
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
    bar = _bar(what, budget_s) if _is_looked_at() else None
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
        with suppress(*_CANNOT_BE_TOLD), bar.get_lock():  # A refresh() that fails would keep its own lock.
            bar.refresh(nolock=True)

    try:
        yield show
    finally:
        with suppress(*_CANNOT_BE_TOLD):
            bar.close()


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


def _bar(what: str, budget_s: float) -> Any:
    """Of tqdm's class for where this runs; None: it is not installed, or cannot be used."""
    try:
        return importlib.import_module("tqdm.auto").tqdm(total=max(1, round(budget_s)), desc=what, unit="s", leave=False,
                                                         bar_format="{l_bar}{bar}| {n:.0f} of {total:.0f} s")
    except Exception:  # noqa: BLE001 - whatever an installation that is not whole raises: lines will do.
        return None
