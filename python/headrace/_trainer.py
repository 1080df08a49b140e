"""headrace.Trainer where its engine cannot be had."""

from __future__ import annotations

from typing import Any

from . import _engine_door


class Trainer:
    """Training steps by headrace's engine, which cannot be had here: making one raises UnsupportedError with the reason."""

    def __init__(self, *given: Any, **options: Any) -> None:
        del given, options
        _engine_door.engine("headrace.Trainer")


def trainer_class() -> Any:
    """The engine's, if it can be had."""
    return Trainer if _engine_door.why_not() is not None else _engine_door.engine("headrace.Trainer").Trainer
