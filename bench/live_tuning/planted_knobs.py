"""hr.autotune's knobs, of which one does something else than it says: with an effect that is known, or broken on purpose."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from headrace._autotune import AutoTune
from headrace._autotune_request import requested
from headrace._live_knobs import LiveKnobs


class PlantedKnobs(LiveKnobs):
    """Offers the first change of each of `keys`. `plants`: by key, what is called with True to put a change in force in the place
    of the setting, and with False to take it out again."""

    def __init__(self, models: Sequence[Any], optimizers: Sequence[Any], loader: Any, keys: Sequence[str],
                 plants: Mapping[str, Callable[[bool], None]]) -> None:
        super().__init__(models, optimizers, loader)
        self._keys, self._plants = keys, plants
        self._planted: dict[str, str] = {}

    def offer(self, allow: str, fixed: Sequence[str], only: Sequence[str], steps: int | None) -> Any:
        offered = super().offer(allow, fixed, only, steps)
        first: dict[str, Any] = {}
        for candidate in offered.candidates:
            first.setdefault(candidate.key, candidate)
        return SimpleNamespace(candidates=[first[key] for key in self._keys if key in first], not_tried=offered.not_tried)

    def apply(self, settings: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
        own = {key: value for key, value in settings.items() if key in self._plants}
        applied = super().apply({key: value for key, value in settings.items() if key not in own})
        self._plant(own)
        return [*applied, *((key, value, value, "planted") for key, value in own.items())]

    def in_force(self) -> dict[str, str]:
        return {**super().in_force(), **self._planted}

    def undo(self) -> None:
        self._plant({})
        super().undo()

    def _plant(self, wanted: Mapping[str, str]) -> None:
        for key, plant in self._plants.items():
            if (key in wanted) != (key in self._planted):
                plant(key in wanted)
        self._planted = dict(wanted)


def autotuned(models: Sequence[Any], optimizers: Sequence[Any], loader: Any, knobs: LiveKnobs, allow: str = "reduced_precision",
              fixed: Sequence[str] = (), on_progress: Callable[[str, str], Any] = lambda _kind, _text: None) -> AutoTune:
    """hr.autotune with these knobs; it prints nothing. Its clock is one of the caller's, so that it does not ask what other
    programs do: beside busy ones it would leave planted changes of cores untried."""
    request = requested(allow=allow, fixed=fixed, seed=1, title="bench")
    return AutoTune(list(models), list(optimizers), loader, request, on_progress, knobs=knobs, clock=time.perf_counter)
