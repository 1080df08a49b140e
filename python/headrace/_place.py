"""Where a run from Python stands, as text that a checkpoint carries: the states of every generator that data may be drawn with,
as they were when the epoch began and as they are now, and what fit() knows of the run."""

from __future__ import annotations

import array
import base64
import json
import random
import sys
from typing import Any

import torch

from ._state import generators_of
from .errors import InvalidArgumentError

_KEY = "python"  # Beside what else a checkpoint's history may hold.
_TEXT_BYTES = 256
_PYTHON_WORDS = 625  # Of the Mersenne Twister, and its place in them.


def generator_states(loader: Any) -> dict[str, Any]:
    """Of torch, CUDA where it is in use, Python, NumPy where it is loaded, and the loader, as JSON values."""
    states: dict[str, Any] = {"torch": _text(torch.get_rng_state()), **_states_beside_torchs()}
    if torch.cuda.is_initialized():
        states["cuda"] = [_text(state) for state in torch.cuda.get_rng_state_all()]
    states["loader"] = [_text(generator.get_state()) for generator in generators_of(loader)]
    return states


def set_generator_states(states: dict[str, Any], loader: Any) -> None:
    """Puts back what generator_states() gave. InvalidArgumentError, with nothing changed, for a loader with other
    generators."""
    generators = generators_of(loader)
    if len(generators) != len(states["loader"]):
        raise InvalidArgumentError(f"python: the checkpoint is of a loader with {len(states['loader'])} generators of its "
                                   f"own, this one has {len(generators)}")
    set_global_states(states)
    for generator, text in zip(generators, states["loader"]):
        generator.set_state(_tensor(text))


def set_global_states(states: dict[str, Any]) -> None:
    """Those of torch, Python and NumPy alone; of CUDA those of the devices that there are."""
    torch.set_rng_state(_tensor(states["torch"]))
    if torch.cuda.is_available():
        for place, text in enumerate(states.get("cuda", [])[:torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_tensor(text), place)
    _set_states_beside_torchs(states)


def other_generators() -> torch.Tensor:
    """The states of Python's and NumPy's generators as bytes, as many each time: a text, and behind it their words of 32 bits. For
    include/headrace/trainer.h, which asks before each step that may be made again."""
    version, words, gauss = random.getstate()
    text: dict[str, Any] = {"python": [version, gauss]}
    raw = array.array("I", words).tobytes()
    if numpy := sys.modules.get("numpy"):
        kind, keys, *rest = numpy.random.get_state()
        text["numpy"] = [kind, *rest]
        raw += keys.tobytes()
    return torch.frombuffer(bytearray(json.dumps(text).encode().ljust(_TEXT_BYTES) + raw), dtype=torch.uint8)


def set_other_generators(states: torch.Tensor) -> None:
    """Puts back what other_generators() gave."""
    given = bytes(states.tolist())
    text, words = json.loads(given[:_TEXT_BYTES]), array.array("I", given[_TEXT_BYTES:])
    version, gauss = text["python"]
    keys = {"python": words[:_PYTHON_WORDS].tolist(), "numpy": words[_PYTHON_WORDS:].tolist()}
    found: dict[str, Any] = {"python": (version, keys["python"], gauss)}
    if "numpy" in text:
        kind, *rest = text["numpy"]
        found["numpy"] = (kind, keys["numpy"], *rest)
    _set_states_beside_torchs(found)


def _states_beside_torchs() -> dict[str, Any]:
    states: dict[str, Any] = {"python": random.getstate()}
    if numpy := sys.modules.get("numpy"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = [kind, keys.tolist(), *rest]
    return states


def _set_states_beside_torchs(states: dict[str, Any]) -> None:
    version, keys, gauss = states["python"]
    random.setstate((version, tuple(keys), gauss))
    if "numpy" in states and (numpy := sys.modules.get("numpy")):  # What is not loaded draws nothing.
        kind, keys, *rest = states["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))


def to_text(loader: Any, epoch_began: dict[str, Any] | None, fit: dict[str, Any], state: dict[str, Any]) -> str:
    """The history of a checkpoint. `epoch_began`: generator_states() before the epoch that is open; None: none is. `fit`: the
    FitRecord of src/python/fit_record.h. `state`: what _run_state.save() gives beside its tensors."""
    return json.dumps({_KEY: {"now": generator_states(loader), "pass_began": epoch_began, "fit": fit, "state": state}})


def from_text(text: str) -> dict[str, Any] | None:
    """{"now": ..., "pass_began": ..., "fit": ..., "state": ...}, the last two not of earlier versions; None: the checkpoint was not
    written from Python."""
    return json.loads(text).get(_KEY)


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode("ascii")


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
