"""What torch.compile took on this machine, from one run to the next.

hr.autotune weighs compiling against the rest of a run before it tries it (src/insight/tune/live_payback.h), so that it needs the
seconds beforehand. What a run measured is kept in one file in the user's cache folder, with what it depends on. No name of a
module, parameter or path is in it: a model is a hash and a number of modules.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import os
import pathlib
import platform
import stat
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn

from . import _core

_FORMAT, _VERSION = "headrace-compile-costs", 1
_COUNT_MAX = 64
_BYTES_MAX = 64 << 10
_COUNT_OF_ONE_MODEL = 3  # The newest: their median.
_TEXT_MAX = 100
_MODULES_MAX = 10_000_000
_SECONDS_MAX = 86_400.0
# What is prepared in 1 s is tried in turns with other changes (kPrepareCheap_s of live_changes.cpp), and would be compiled anew
# beside each of them.
_SECONDS_MIN = 2.0
_TIMES_USUAL_MAX = 4  # By other models it is at most so many times what is usual, and at least that part of it.


@dataclass(frozen=True)
class Compilation:
    """One that was measured."""

    torch: str
    device: str  # "cpu", or "cuda" with the name of the GPU.
    cpu: str
    model: str  # A hash of the types of its modules and the shapes of its parameters.
    modules: int
    seconds: float
    date: str


class CompileCosts:
    """Of these models, with this torch on this machine. Nothing of the file raises: where it cannot be read, nothing is known, and
    where it cannot be written, the next run knows no more than this one."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        """Models whose parameters have shapes. Keeps none of them."""
        modules = list({id(module): module for model in models for module in model.modules()}.values())  # Parts beside their whole.
        self._modules, self._model = len(modules), _fingerprint(modules)
        self._machine = (str(torch.__version__), _device(models), _cpu())

    def estimate(self, usual_s: float) -> tuple[float, str]:
        """Seconds, and where they are from, for a person. `usual_s`: where nothing was measured.

        Of a model that was compiled here, with this torch, the median of its newest three: torch keeps compiled graphs on disk
        (inductor's FX graph cache), so that a later compilation takes less than the first one. Else by other models, of each one
        what it took at most, for that same reason: the median of their seconds a module, a quarter to four times of what is
        usual."""
        known = [one for one in _known() if (one.torch, one.device, one.cpu) == self._machine]
        own = [one.seconds for one in known if one.model == self._model][-_COUNT_OF_ONE_MODEL:]
        if own:
            return max(_SECONDS_MIN, statistics.median(own)), f"as {_counted(len(own), 'compilation')} of this model here took"
        of_a_module: dict[str, float] = {}
        for one in known:
            of_a_module[one.model] = max(of_a_module.get(one.model, 0.0), one.seconds / one.modules)
        if not of_a_module:
            return usual_s, "a guess, as no earlier compilation here is known"
        seconds = statistics.median(of_a_module.values()) * self._modules
        return (min(max(seconds, _SECONDS_MIN, usual_s / _TIMES_USUAL_MAX), usual_s * _TIMES_USUAL_MAX),
                f"judged by {_counted(len(of_a_module), 'other model')} compiled here")

    def note(self, seconds: float) -> None:
        """Keeps what compiling took, for later runs. Of several programs that do so at once one may lose what another wrote; the
        file is whole at any moment."""
        torch_version, device, cpu = self._machine
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        newest = Compilation(torch_version, device, cpu, self._model, self._modules, round(seconds, 3), date)
        if not 0 < newest.seconds <= _SECONDS_MAX:
            return
        try:
            path = _path()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _may_replace(path):
                _core.write_file(str(path), _text([*_known(), newest][-_COUNT_MAX:]))
        except (OSError, RuntimeError, ValueError, TypeError):  # Among them all that write_file() raises.
            pass


def _path() -> pathlib.Path:
    """RuntimeError where there is no home folder. A relative XDG_CACHE_HOME counts as none, as its specification says."""
    given = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = given if given.is_absolute() else pathlib.Path.home() / ".cache"
    return folder / "headrace" / "compile_costs.json"


def _text(compilations: Sequence[Compilation]) -> str:
    rows = [asdict(one) for one in compilations]
    return json.dumps({"format": _FORMAT, "version": _VERSION, "compilations": rows}, indent=1) + "\n"


def _known() -> list[Compilation]:
    """The newest last. Nothing of a file that is missing, broken, too large, another user's, or of another format."""
    try:
        document = json.loads(_content(_path()))
    except (OSError, RuntimeError, ValueError):  # RuntimeError: no home folder, or brackets within brackets without end.
        return []
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (_FORMAT, _VERSION):
        return []
    rows = document.get("compilations")
    return [Compilation(**row) for row in rows if _is_compilation(row)][-_COUNT_MAX:] if isinstance(rows, list) else []


def _may_replace(path: pathlib.Path) -> bool:
    """write_file() would replace what a link leads to, which somebody else may have laid there, and wait at a pipe."""
    is_file = not os.path.lexists(path) or stat.S_ISREG(path.lstat().st_mode)
    return is_file and path.parent.stat().st_uid == os.geteuid()


def _content(path: pathlib.Path) -> bytes:
    """OSError for anything but a file of this user's that is no larger than ours get. Follows no link, and waits at no pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size > _BYTES_MAX:
            raise OSError(f"{path} is none of ours")
        return os.read(descriptor, _BYTES_MAX)
    finally:
        os.close(descriptor)


def _is_compilation(row: Any) -> bool:
    names = {field.name for field in fields(Compilation)}
    if not isinstance(row, dict) or row.keys() != names:
        return False
    texts = [row[name] for name in names - {"modules", "seconds"}]
    modules, seconds = row["modules"], row["seconds"]
    return (all(isinstance(text, str) and len(text) <= _TEXT_MAX for text in texts)
            and type(modules) is int and 0 < modules <= _MODULES_MAX
            and type(seconds) in (int, float) and 0 < seconds <= _SECONDS_MAX)


def _fingerprint(modules: Sequence[nn.Module]) -> str:
    lines = (f"{type(module).__qualname__} {[tuple(parameter.shape) for parameter in module.parameters(recurse=False)]}\n"
             for module in modules)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _device(models: Sequence[nn.Module]) -> str:
    parameters = itertools.chain.from_iterable(model.parameters() for model in models)
    device = next((parameter.device for parameter in parameters), torch.device("cpu"))
    return f"cuda {torch.cuda.get_device_name(device)}"[:_TEXT_MAX] if device.type == "cuda" else device.type


def _cpu() -> str:
    """Its model, as Linux names it; else its kind."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in itertools.islice(file, 64):
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()[:_TEXT_MAX]
    except OSError:
        pass
    return platform.machine()[:_TEXT_MAX]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
