"""Programs of Python that import torch, run in forks of one process that has imported it: a start takes no seconds."""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import harness

# A fork is a program as another process would run it: its words, its environment and two files for what it prints.
PARENT = """
import importlib, json, os, runpy, signal, sys

for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        for descriptor, path in enumerate(request["printed"], 1):
            os.dup2(os.open(path, os.O_WRONLY), descriptor)
        os.environ.update(request["environment"])
        signal.alarm(request["limit_s"])
        sys.argv = request["words"]
        sys.path[0] = os.path.dirname(sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ForkedPrograms:
    def __init__(self, parent: subprocess.Popen) -> None:
        self._parent = parent

    def run(self, command: Sequence[object], environment: Mapping[str, str] | None = None,
            limit_s: float = harness.LIMIT_S) -> harness.Finished:
        """As harness.run(). The command is this Python and a script with its words."""
        python, *words = map(str, command)
        assert python == sys.executable, command
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            printed = [Path(folder) / "output", Path(folder) / "errors"]
            for path in printed:
                path.touch()
            request = {"words": words, "environment": environment or {}, "printed": list(map(str, printed)), "limit_s": math.ceil(limit_s)}
            print(json.dumps(request), file=self._parent.stdin, flush=True)
            status = int(self._parent.stdout.readline())
            output, errors = (path.read_text() for path in printed)
        if status != 0:
            raise harness.ProgramFailed(command, f"ended with status {status}", f"{output}\n{errors}")
        return harness.Finished(output, errors, time.perf_counter() - begin)


@contextlib.contextmanager
def forked_programs(*imports: str) -> Iterator[ForkedPrograms]:
    """imports: modules that no fork imports again, and that start no thread. Threads that spin beside other tests take each other's
    core: here they sleep."""
    environment = {**os.environ, **harness.python_path(), "OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen([sys.executable, "-c", PARENT, *imports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          cwd=harness.ROOT, env=environment) as parent:
        try:
            yield ForkedPrograms(parent)
        finally:
            parent.stdin.close()
