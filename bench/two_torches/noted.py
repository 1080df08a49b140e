"""Runs a script as it is, and prints as the last line, as JSON, what each of its calls of hr.tune and hr.autotune tried and found.

usage: noted.py SCRIPT [ARGUMENT...]
"""

import json
import runpy
import sys
from collections.abc import Callable
from typing import Any

import headrace as hr
import torch

found: list[Any] = []


def noted(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **options: Any) -> Any:
        found.append(function(*given, **options))
        return found[-1]

    return call


def told(handle: Any) -> dict[str, Any]:
    return {"trials": {trial.name: {"verdict": trial.verdict, "gain": trial.gain, "pairs": trial.pairs, "sentence": trial.sentence}
                       for trial in handle.trials},
            "not_applicable": {each.name: each.reason for each in handle.not_applicable}, "problem": getattr(handle, "problem", None)}


def main() -> None:
    hr.tune, hr.autotune = noted(hr.tune), noted(hr.autotune)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    print(json.dumps({"torch": torch.__version__, "calls": [told(handle) for handle in found]}))


if __name__ == "__main__":
    main()
