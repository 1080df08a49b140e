"""Files of settings by name: JSON, or YAML by the file's name, which needs the package PyYAML."""

from __future__ import annotations

import json
import os
from typing import Any


def to_text(path: str | os.PathLike[str], settings: dict[str, Any]) -> str:
    """The content of such a file. ModuleNotFoundError: YAML without PyYAML."""
    return _yaml(path).safe_dump(settings, sort_keys=False) if _is_yaml(path) else json.dumps(settings, indent=2) + "\n"


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """OSError: the file cannot be read. ValueError: it is not JSON or YAML, or not settings by name. ModuleNotFoundError: YAML without
    PyYAML."""
    reader = _yaml(path) if _is_yaml(path) else None
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode()
        found = json.loads(text) if reader is None else reader.safe_load(text)
    except (ValueError, *(() if reader is None else (reader.YAMLError,))) as error:
        kind = "JSON" if reader is None else "YAML"
        raise ValueError(f"{os.fspath(path)}: wanted {kind}: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{os.fspath(path)}: wanted settings by name, found {type(found).__name__}")
    return found


def _is_yaml(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith((".yaml", ".yml"))


def _yaml(path: str | os.PathLike[str]) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{os.fspath(path)}: wanted PyYAML for a YAML file, found none; a name in .json needs nothing",
                                  name="yaml") from None
    return yaml
