"""The only way to headrace._engine, the half that needs LibTorch: it is built for one minor version of torch and one Python. Where
it cannot be had, all else goes on, and what needs it says why."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ._core import torch_built_for
from .errors import UnsupportedError

BUILT_FOR = torch_built_for()  # "": no torch. Versions that differ in the last number have the same interface in C++.
_NEED_IT = ("compute.allocator", "train.engine")  # Settings.
_NOT_BUILT = "not built: in a checkout, run make build, or pip install . there"


class _Found(NamedTuple):
    engine: ModuleType | None
    reason: str = ""  # Why there is none.
    cause: Exception | None = None


def why_not() -> str | None:
    """None: the engine can be had, and is loaded from now on. Imports torch where it is installed."""
    found = _found()
    return found.reason if found.engine is None else None


def engine(asker: str) -> ModuleType:
    """headrace._engine. UnsupportedError, which begins with what asks for it, where it cannot be had."""
    found = _found()
    if found.engine is None:
        raise UnsupportedError(f"{asker}: not applicable: {found.reason}") from found.cause
    return found.engine


def refusals() -> dict[str, str]:
    """By key, why not, of the settings that need the engine; none where it is there."""
    reason = why_not()
    return {} if reason is None else dict.fromkeys(_NEED_IT, reason)


@functools.cache
def _found() -> _Found:
    if not BUILT_FOR:
        return _Found(None, _NOT_BUILT)
    try:
        import torch  # First: its libraries must be in the process before ours.
    except ModuleNotFoundError as error:
        if error.name != "torch":
            return _Found(None, f"torch cannot be imported: {error}", error)
        return _Found(None, f"built for torch {_minor(BUILT_FOR)}, found none", error)
    except Exception as error:  # noqa: BLE001 - whatever a torch that does not fit this machine raises.
        return _Found(None, f"torch cannot be imported: {error}", error)
    # Asked before it is loaded: with another interface it might end the process.
    found = _minor(str(getattr(torch, "__version__", "one without a version")))  # A folder of that name is imported, too.
    if found != _minor(BUILT_FOR):
        return _Found(None, f"built for torch {_minor(BUILT_FOR)}, found {found}")
    if importlib.util.find_spec("._engine", __package__) is None:
        return _Found(None, _not_there())
    try:
        return _Found(importlib.import_module("._engine", __package__))
    except Exception as error:  # noqa: BLE001 - of the loader, or of what the module does at its beginning.
        return _Found(None, f"cannot be loaded: {error}", error)


def _minor(version: str) -> str:
    """As "2.11" of "2.11.0+cpu"; a text of another form as it is."""
    numbers = re.match(r"\d+\.\d+", version)
    return numbers[0] if numbers else version


def _not_there() -> str:
    for file in Path(__file__).parent.glob("_engine.cpython-*.so"):
        version = re.match(r"_engine\.cpython-(\d)(\d+)-", file.name)
        if version is not None:
            return f"built for Python {version[1]}.{version[2]}, found {sys.version_info.major}.{sys.version_info.minor}"
    return _NOT_BUILT
