"""`headrace profile script.py ARGS`: runs a training script as it is, and tells where its time went.

Steps are found as hr.watch finds them. The script has its own argv, __name__ "__main__" and folder on sys.path, and torch is imported
when it does that: until then nothing of it is touched. Its exit code is the command's, but for 1 where a script that ended well cannot
be reported on."""

from __future__ import annotations

import argparse
import builtins
import datetime
import importlib.util
import io
import json
import os
import pathlib
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from . import _core
from ._progress import tell_line
from ._trace_choice import checked_choice
from .errors import Error

if TYPE_CHECKING:
    from ._script_watch import ScriptWatch

_WITH_VALUE = ("--out", "--json", "--flights", "--trace-form", "--names", "--every-steps", "--from-s", "--length-s")
_USAGE, _INTERRUPTED = 2, 130  # Exit codes, as shells have them.
_PARTS = ("data_wait", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint", "python", "other")


def is_script(words: Sequence[str]) -> bool:
    """Whether these words of a command line, behind `headrace`, are `profile` of a Python script, and not of a recipe."""
    return bool(words) and words[0] == "profile" and (at := _script_at(words)) < len(words) and words[at].endswith(".py")


def _script_at(words: Sequence[str]) -> int:
    """Of the first word that is neither an option nor the value of one; as many as there are: none is."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _WITH_VALUE else 1
    return min(at, len(words))


def profile_script(words: Sequence[str]) -> int:
    """Of words of which is_script() holds. Returns the exit code; SystemExit 2 where an option is unknown."""
    at = _script_at(words)
    request, script = _parser().parse_args(words[1:at]), words[at]
    if not os.path.isfile(script):
        tell_line(f"error: profile: {script}: wanted a Python script, found {'a folder' if os.path.isdir(script) else 'no such file'}")
        return _USAGE
    try:
        choice = checked_choice("profile", request.names, request.every_steps, request.from_s, request.length_s)
    except Error as error:
        tell_line(f"error: {error}")
        return _USAGE
    folder = pathlib.Path(request.out) if request.out else pathlib.Path("runs", pathlib.Path(script).stem, _utc_stamp())
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        tell_line(f"error: profile: --out: cannot make {folder}: {error.strerror}")
        return 1
    folder = folder.absolute()  # The script may go elsewhere.
    flights = None if request.flights is None else pathlib.Path(request.flights).absolute()
    where_json = request.json if request.json in (None, "-") else pathlib.Path(request.json).absolute()

    seen: list[ScriptWatch] = []
    refused: list[str] = []

    def begin() -> None:
        from ._script_watch import ScriptWatch

        try:
            seen.append(ScriptWatch(title=os.path.basename(script), flights=flights, **choice).__enter__())
        except (Error, ImportError) as error:  # It must not come out of the script's own `import torch`.
            tell_line(f"error: {error}; the script goes on without a profile")
            refused.append(str(error))

    code = _run(script, words[at + 1:], begin, seen)
    try:
        if not seen:
            why = refused[0] if refused else "it never imported torch"
            raise Error(f"profile: {script}: there is nothing to tell: {why}")
        seen[0]._command = shlex.join(["headrace", *words])
        document = _document(seen[0], folder, script, words, code)
        seen[0].write_trace(folder / "trace.json")
        if request.trace_form != "chrome":
            seen[0].write_trace(folder / f"trace{_core.trace_suffix(request.trace_form)}", request.trace_form)
        seen[0].write_report(folder / "report.html")
        text = json.dumps(document, indent=2) + "\n"
        _core.write_file(str(folder / "profile.json"), text)
        if where_json is not None and where_json != "-":
            _core.write_file(str(where_json), text)
    except Error as error:
        tell_line(f"error: {error}")
        return code or 1
    if where_json == "-":
        print(text, end="")
    elif not request.quiet:
        print(seen[0].summary().rstrip("\n"))
        print(wall_text(document["wall_split"]))
    tell_line(f"report: {folder / 'report.html'}")
    return code


def wall_text(split: Mapping[str, Any]) -> str:
    """A wall split, as hr.watch has it, in lines for a terminal."""
    taken = split["cpu_taken_s"]
    lines = [f"Wall time {split['total_s']:.2f} s: {split['setup_s']:.2f} s before the first part, {split['loop_s']:.2f} s of loop, "
             f"{split['after_s']:.2f} s behind the last"]
    for part in _PARTS:
        share = split["share"][part]
        lines.append(f"  {part.replace('_', ' '):<12} {split[f'{part}_s']:>10.2f} s  {'unavailable' if share is None else f'{share:>6.1%}'}")
    lines.append(f"  CPU taken by others: {'unavailable' if taken is None else f'{taken:.2f} s'}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace profile", usage="headrace profile [OPTIONS] SCRIPT.py [ARGS]", allow_abbrev=False,
        description="Run a training script as it is, and tell where its time went. Options of its own stand behind it.")
    parser.add_argument("--out", metavar="DIR", help="The run folder (default runs/<script>/<UTC time>).")
    parser.add_argument("--json", metavar="FILE", help="Also write the result as JSON; -: to stdout.")
    parser.add_argument("--flights", metavar="DIR", help="Write the last minute's spans there at a slow step, an exception, SIGUSR2.")
    parser.add_argument("--trace-form", metavar="NAME", default="chrome", choices=("chrome", "perfetto", "folded", "csv", "jsonl"),
                        help="Write the trace as perfetto | folded | csv | jsonl, too (default chrome: trace.json alone).")
    parser.add_argument("--names", metavar="PATTERN", action="append", default=[],
                        help="Of what is no part of a step record only names that match (* and ?); may be given again.")
    parser.add_argument("--every-steps", metavar="N", type=int, default=1, help="The same only in every N-th step.")
    parser.add_argument("--from-s", metavar="S", type=float, default=0.0, help="The same only from this second on.")
    parser.add_argument("--length-s", metavar="S", type=float, default=0.0, help="And only for so many seconds; 0: to the end.")
    parser.add_argument("--quiet", action="store_true", help="No table.")
    return parser


def _utc_stamp() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def _run(script: str, arguments: Sequence[str], begin: Callable[[], None], seen: list[ScriptWatch]) -> int:
    """Runs it as Python does, `begin` once torch is there, and ends what is seen with it. Returns its exit code."""
    sys.argv = [script, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
    finder = None
    if "torch" in sys.modules:
        begin()
    else:
        sys.meta_path.insert(0, finder := _AfterTorch(begin))
    raised: BaseException | None = None
    code = 0
    try:
        _execute(script)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException as error:  # noqa: BLE001 - told as Python tells it; the report follows.
        raised, code = error, _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        traceback.print_exception(type(error), error, _own_frames(error.__traceback__, script))
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        for one in seen:
            one.__exit__(type(raised) if raised is not None else None, raised, None)
    return code


def _execute(script: str) -> None:
    """As the module __main__, which stays: what it leaves to the interpreter's end finds its names."""
    path = os.path.abspath(script)
    module = ModuleType("__main__")
    vars(module).update(__file__=path, __builtins__=builtins)
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(module))


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def _own_frames(trace: TracebackType | None, script: str) -> TracebackType | None:
    """From the script's own first frame on; all where there is none, as of a syntax error."""
    path, own = os.path.abspath(script), trace
    while own is not None and own.tb_frame.f_code.co_filename != path:
        own = own.tb_next
    return own or trace


class _AfterTorch(MetaPathFinder):
    """Calls `then` at the end of the first `import torch`, whoever does it. So what a script sets before, as OMP_NUM_THREADS, holds.
    Whoever only asks whether there is a torch (importlib.util.find_spec) changes nothing."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._asks = False  # The finders behind this one.

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch" or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks = False
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            plain(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _document(seen: ScriptWatch, folder: pathlib.Path, script: str, words: Sequence[str], code: int) -> dict[str, Any]:
    found = seen.document
    diagnosis = found["diagnosis"]
    return {**found, "format": "headrace-profile", "version": 1, "script": script, "command": ["headrace", *words], "exit_code": code,
            "samples_per_second": None if diagnosis is None else diagnosis["samples_per_second"], "folder": str(folder)}
