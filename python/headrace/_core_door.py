"""Loads headrace._core, the native half that needs no torch, for the whole package: where it cannot be had, one sentence says why.
Any Python from 3.8 on can read this file and what imports it, so that it is told that and no fault of syntax."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

OLDEST = (3, 11)  # As pyproject.toml and cmake/python.cmake have it.
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}  # Of <elf.h>.


def load_core() -> None:
    """Imports headrace._core. ImportError where it cannot be had; of the command one line, and exit code 1."""
    try:
        _import_core()
    except ImportError as error:
        if _is_command():
            sys.exit(f"headrace: error: {error}")
        raise


def _is_command() -> bool:
    """Whether it is loaded for `python -m headrace` (until it is loaded, the word is -m) or the script headrace of an environment."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    return program == "-m" or os.path.basename(program) == "headrace"


def _import_core() -> None:
    reason = _python_refusal()
    if reason is not None:
        raise ImportError(f"headrace cannot be loaded: {reason}", name=f"{__package__}._core")
    if importlib.util.find_spec("._core", __package__) is None:
        raise ImportError(
            f"headrace's Python module is not built: no _core for {sys.implementation.cache_tag} in "
            f"{', '.join(sys.modules[__package__].__path__)}. In a checkout, run make build and put build/release/python on "
            "PYTHONPATH; or run pip install . there",
            name=f"{__package__}._core")
    try:
        importlib.import_module("._core", __package__)
    except ImportError as error:
        reason = _file_refusal(error)
        if reason is None:
            raise
        raise ImportError(f"headrace cannot be loaded: {reason}", name=error.name, path=error.path) from error


def _python_refusal() -> str | None:
    """What is wrong with this Python, whatever was built; None: nothing."""
    found = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    if sys.implementation.name != "cpython":
        return f"wanted CPython, found {sys.implementation.name}"
    if sys.version_info[:2] < OLDEST:
        return f"wanted Python {OLDEST[0]}.{OLDEST[1]} or newer, found {found}"
    if "t" in getattr(sys, "abiflags", ""):
        return f"wanted a Python with its interpreter lock, found the free-threaded build of {found}"
    if sys.maxsize < 2**32:
        return f"wanted a Python of 64 bits, found {found} of 32"
    return None


def _file_refusal(error: ImportError) -> str | None:
    """Why the system's loader refuses the module, where its own words do not tell a person; None: they do."""
    built, here = _machine_of(error.path), _machine_of("/proc/self/exe")
    if built is not None and here is not None and built != here:
        return f"{error.path} is built for {built}, found a Python for {here}"
    if "subinterpreters" in str(error):  # Python's own message, from 3.12 on; before, core_module.cpp has this one.
        return "wanted the first interpreter of a process, found another one; start a process for it"
    library, refused, _ = str(error).partition(": cannot open shared object file")
    if refused and "/" not in library:
        return (f"the library {library} is missing. The wheel has its libraries in headrace and headrace.libs, two folders beside "
                "each other: install it with pip, which puts both in place")
    return None


def _machine_of(path: str | None) -> str | None:
    """What a file of machine code is for, as "x86_64, 64 bits"; None: it is none, or cannot be read."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return f"{_MACHINES.get(number, f'machine {number}')}, {64 if head[4] == 2 else 32} bits"
