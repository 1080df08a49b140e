"""hr.doctor: what the native half finds on this machine or in a run's folder, and what is wrong with how Python finds headrace."""

from __future__ import annotations

import os
import sys
from typing import Any

from . import _core


def doctor(run: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """What makes measuring or training worse on this machine, or what is wrong with the files of a run's folder: a list of dicts of
    code, sentence and advice; empty when nothing is."""
    return _core.doctor(run) if run is not None else [*_core.doctor(), *_other_copies()]


def _other_copies() -> list[dict[str, Any]]:
    """Packages of this name behind the one that was imported: who installs into their place sees no change."""
    own = os.path.realpath(sys.modules["headrace"].__path__[0])
    places = {os.path.realpath(os.path.join(folder, "headrace")) for folder in sys.path} - {own}
    return [{"code": "two_copies", "sentence": f"headrace is on sys.path twice: the one in {own} is in use, and not that in {other}",
             "advice": "Uninstall one of them, or take its folder off sys.path (PYTHONPATH)."}
            for other in sorted(places) if os.path.isfile(os.path.join(other, "__init__.py"))]
