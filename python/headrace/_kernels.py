"""Kernels of a user's own, from shared libraries that are built outside of headrace."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import stat
from pathlib import Path
from typing import Any

import torch

from .errors import CorruptDataError, InvalidArgumentError, IoError, NotFoundError, UnsupportedError

# What HEADRACE_KERNEL_LIBRARY of headrace/kernel.h leaves in a library, for torch 2.11.0: "headrace kernel library, torch 2.11.0".
_MARK = re.compile(rb"headrace kernel library, torch (\d+\.\d+)[0-9A-Za-z.+-]*\0")
_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)", re.ASCII)


def register_kernel(name: str, path: str | os.PathLike[str]) -> Any:
    """Opens a shared library that registers operators by TORCH_LIBRARY, and returns the one of this name, torch.ops.<space>.<name>.

        normalise = headrace.register_kernel("example::normalise", "build/libnormalise.so")
        images = normalise(images, mean, std)

    name: "namespace::operator", as the library registers it. A library may have several: each is asked for by its name, and the file
        is opened once.
    path: the library. Its source says HEADRACE_KERNEL_LIBRARY (headrace/kernel.h), from which the version of torch that it was built
        for is known before anything of it runs. Opening it runs its code: only files that are trusted as much as this program.

    It stays open until the process ends; torch has no way back. Not from several threads at once.

    InvalidArgumentError: a name of another form, or a namespace that has operators of another library, which torch would end the
    process for. NotFoundError: no such file. IoError: it cannot be read. CorruptDataError: it is empty, or no regular
    file, as a folder. UnsupportedError: it is no such library, was built for another minor version of torch, cannot be opened (the
    system says why), or does not register the name.
    """
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise InvalidArgumentError(f"kernel: wanted a name as namespace::operator, found {name!r}")
    namespace, operator = parts.groups()
    library = Path(path).absolute()  # A bare name would be looked for elsewhere.
    _check_built_for(name, library)
    if not _is_open(library) and _operators(namespace):
        raise InvalidArgumentError(f"kernel: {name}: the namespace {namespace} has operators of another library: "
                                   f"{_listed(_operators(namespace))}")
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise UnsupportedError(f"kernel: {name}: cannot be opened: {error.__cause__ or error}") from error
    if f"{namespace}::{operator}" not in _operators(namespace):
        raise UnsupportedError(f"kernel: wanted {name} in {library}, found {_listed(_operators(namespace))}")
    return getattr(getattr(torch.ops, namespace), operator)


def _check_built_for(name: str, library: Path) -> None:
    """Read from the file: with another interface of LibTorch its first steps might end the process."""
    try:
        status = library.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CorruptDataError(f"kernel: {name}: {library}: is no regular file")
        if status.st_size == 0:
            raise CorruptDataError(f"kernel: {name}: {library}: is empty")
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            mark = _MARK.search(content)
            built_for = None if mark is None else mark[1].decode()
    except OSError as error:
        kind = NotFoundError if isinstance(error, FileNotFoundError) else IoError
        raise kind(f"kernel: {name}: {library}: cannot be opened: {error.strerror}") from error
    if built_for is None:
        raise UnsupportedError(f"kernel: {name}: wanted HEADRACE_KERNEL_LIBRARY of headrace/kernel.h in {library}, found none")
    found = re.match(r"\d+\.\d+", torch.__version__)
    if found is not None and built_for != found[0]:
        raise UnsupportedError(f"kernel: {name}: {library} was built for torch {built_for}, found {found[0]}")


def _is_open(library: Path) -> bool:
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _operators(namespace: str) -> list[str]:
    """All of a namespace, without the names of their overloads."""
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    return sorted(name for name in names if name.startswith(f"{namespace}::"))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "none of its namespace"
