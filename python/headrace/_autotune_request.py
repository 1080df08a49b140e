"""What hr.autotune is asked for."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .errors import InvalidArgumentError


@dataclass(frozen=True)
class Request:
    """What hr.autotune was asked for, checked."""

    allow: str
    steps: int | None
    epochs: int | None
    only: list[str]
    fixed: list[str]
    gain_min: float
    out: pathlib.Path | None
    auto_tune: bool
    seed: int
    title: str
    replay: pathlib.Path | None = None  # The ledger of a run that is to be repeated; None: this one is tuned.

    def shown(self) -> str:
        """Its arguments as a person would write them, but for the objects."""
        return f'allow="{self.allow}", seed={self.seed}' if self.replay is None else f'replay="{self.replay}"'


def requested(*, allow: str = "rounding", steps: int | None = None, epochs: int | None = None, only: Iterable[str] = (),
              fixed: Iterable[str] = (), gain_min: float = 0.02, out: str | pathlib.Path | None = None, auto_tune: bool = True,
              seed: int = 0, title: str = "training loop", replay: str | pathlib.Path | None = None) -> Request:
    """What these keywords of hr.autotune ask for. Makes the folder `out`. InvalidArgumentError for what makes no sense; `allow`,
    `gain_min`, the names in `only` and the ledger are looked at by AutoTune."""
    if replay is not None and not isinstance(replay, (str, os.PathLike)):
        raise InvalidArgumentError(f"autotune: replay: wanted the path of a ledger.json, found {type(replay).__name__}")
    request = Request(allow, None if steps is None else _whole("steps", steps, 1),
                      None if epochs is None else _whole("epochs", epochs, 1), _names("only", only), _names("fixed", fixed),
                      float(gain_min), None if out is None else pathlib.Path(out), bool(auto_tune), _whole("seed", seed, 0),
                      title, None if replay is None else pathlib.Path(replay))
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    return request


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgumentError(f"autotune: {name}: wanted a whole number of at least {least}, found {value!r}")
    return value


def _names(name: str, given: Any) -> list[str]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    names = list(given) if is_list else []
    if not is_list or not all(isinstance(item, str) for item in names):
        raise InvalidArgumentError(f"autotune: {name}: wanted a list of texts, found {given!r}")
    return names
