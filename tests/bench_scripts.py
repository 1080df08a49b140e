"""The scripts of bench/, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

BENCH = Path(__file__).resolve().parent.parent / "bench"


def script(name: str) -> ModuleType:
    """bench/<name>/run.py; all of them are called run."""
    module_name = f"bench_{name}"
    specification = importlib.util.spec_from_file_location(module_name, BENCH / name / "run.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module  # Dataclasses look their module up.
    specification.loader.exec_module(module)
    return module
