"""What a monitor finds out by itself, a few times a second, of the loader, the watch and the trainer that it was given."""

from __future__ import annotations

from typing import Any, Protocol

from . import _core
from .errors import InvalidArgumentError


class Figures(Protocol):
    """Of one object, which is held."""

    name: str  # Of the argument.

    def take(self) -> tuple[int | None, dict[str, float]]:
        """The newest step, where it is known, and metrics of what was done since the last look; none where nothing was."""


class LoaderFigures:
    """loader.queue_depth: the mean of whole batches that waited when one was asked for. Since the loader was built: cache.hit_rate and
    cache.lookups, where a cache was asked at all."""

    name = "loader"

    def __init__(self, loader: _core.Loader) -> None:
        if not isinstance(loader, _core.Loader):
            raise InvalidArgumentError(f"monitor: loader: wanted a headrace.Loader, found {type(loader).__name__}")
        self._loader, self._batches, self._ready = loader, 0, 0
        self.take()  # What was before is not this run's.

    def take(self) -> tuple[int | None, dict[str, float]]:
        now = self._loader.statistics()
        batches = now["batches"]
        waited = next(stage["queue"] for stage in now["stages"] if stage["name"] == "consume")
        ready = round(waited * batches)
        done, queued = batches - self._batches, ready - self._ready
        self._batches, self._ready = batches, ready
        if done <= 0:  # Below 0: its counts have begun anew.
            return None, {}
        figures = {"loader.queue_depth": queued / done}
        lookups = now["cache_hits"] + now["cache_misses"]
        if lookups > 0:
            figures |= {"cache.hit_rate": now["cache_hits"] / lookups, "cache.lookups": lookups}
        return None, figures


class LoopFigures:
    """The step, samples_per_s and time.<part>_s of a headrace.watch, as its live() has them."""

    name = "watch"

    def __init__(self, watch: Any) -> None:
        if not callable(getattr(watch, "live", None)):
            raise InvalidArgumentError(f"monitor: watch: wanted a headrace.watch, found {type(watch).__name__}")
        self._watch = watch
        self._steps: float = watch.live()["steps"]

    def take(self) -> tuple[int | None, dict[str, float]]:
        figures = dict(self._watch.live())
        steps = figures.pop("steps")
        if steps == self._steps:
            return None, {}
        self._steps = steps
        return int(steps), figures


class TrainerFigures:
    """The step, samples_per_s, train.loss and train.epoch of a headrace.Trainer, as its live() has them."""

    name = "trainer"

    def __init__(self, trainer: Any) -> None:
        if not callable(getattr(trainer, "live", None)):
            raise InvalidArgumentError(f"monitor: trainer: wanted a headrace.Trainer, found {type(trainer).__name__}")
        self._trainer = trainer
        self._steps: int = trainer.live()["steps"]

    def take(self) -> tuple[int | None, dict[str, float]]:
        now = self._trainer.live()
        if now["steps"] == self._steps:
            return None, {}
        self._steps = now["steps"]
        figures = {"samples_per_s": now["samples_per_second"], "train.loss": now["loss"], "train.epoch": now["epoch"] + 1}
        return self._steps, {name: value for name, value in figures.items() if value is not None}
