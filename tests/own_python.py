"""A Python in a process of its own, which finds the modules that this one finds."""

import os
import subprocess
import sys
from collections.abc import Mapping


def run_python(*words: object, environment: Mapping[str, str] | None = None, **options: object) -> subprocess.CompletedProcess:
    """`python WORDS`, with variables of the environment beside those of this process."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=variables, **options)
