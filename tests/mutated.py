"""A plugin of pytest's that plants a fault: one module is imported with a piece of its text replaced, in this process alone.

usage: python -m pytest -p mutated --mutate MODULE --before TEXT --after TEXT TEST...
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

import pytest


class ReplacedText(SourceFileLoader):
    def __init__(self, name: str, path: str, before: str, after: str) -> None:
        super().__init__(name, path)
        self.before, self.after = before, after

    def get_code(self, fullname: str) -> CodeType:  # Without the compiled file of the module as it is.
        text = self.get_source(fullname)
        assert text is not None
        return compile(text.replace(self.before, self.after), self.path, "exec")


class Mutation(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, before: str, after: str) -> None:
        self.module, self.before, self.after = module, before, after

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.origin is not None:
            found.loader = ReplacedText(fullname, found.origin, self.before, self.after)
        return found


def pytest_addoption(parser: pytest.Parser) -> None:
    for option in ("--mutate", "--before", "--after"):
        parser.addoption(option, required=True)


def pytest_configure(config: pytest.Config) -> None:
    module, before, after = (config.getoption(name) for name in ("mutate", "before", "after"))
    if module in sys.modules:
        raise pytest.UsageError(f"--mutate {module}: it is imported already")
    sys.meta_path.insert(0, Mutation(module, before, after))
