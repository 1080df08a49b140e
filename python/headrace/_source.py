"""A user's source on its way to a Loader."""

import io
import multiprocessing.process
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any, Protocol

from . import worker
from ._stream import Stream
from .errors import InvalidArgumentError


class Source(Protocol):
    """Samples of a user's own; headrace.worker.SourceReader says what they may be."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def name_of(source: Any) -> str:
    """For messages and states; the same in a script and in its workers."""
    kind = type(source.source if isinstance(source, Stream) else source)
    if kind.__module__ in ("builtins", "__main__", "__mp_main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def worker_command() -> list[str]:
    if not sys.executable:
        raise InvalidArgumentError("workers: this Python does not know its own program (sys.executable)")
    return [sys.executable, "-P", worker.__file__]


def payload_of(source: Any, worker_init: Any, fields: Any) -> bytes:
    """What a worker process is given: how to find the modules of this one, by pickle the source and worker_init_fn or
    None, and SourceReader's fields."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise InvalidArgumentError("workers: a worker process imports the script that started it, and the script makes a "
                                   "Loader with worker processes at once; put that under if __name__ == \"__main__\":")
    pickled, source_needs_main = _pickled(source, f"the source {name_of(source)}", 'use worker_type="thread"')
    init, init_needs_main = _pickled(worker_init, "worker_init_fn", "leave it out")
    return pickle.dumps((_preparation(source_needs_main or init_needs_main), pickled, init, fields))


def _pickled(item: Any, what: str, otherwise: str) -> tuple[bytes, bool]:
    """The bytes, and whether a worker needs this process' __main__ for them."""
    pickled = io.BytesIO()
    pickler = _MainNoticer(pickled, what)
    try:
        pickler.dump(item)
    except InvalidArgumentError:
        raise
    except Exception as error:
        raise InvalidArgumentError(
            f"workers: {what} cannot go to a worker process: {type(error).__name__}: {error}; define its classes and functions "
            f"at the top of a module or script, or {otherwise}") from error
    return pickled.getvalue(), pickler.needs_main


class _MainNoticer(pickle.Pickler):
    """Notices what a worker could find only by importing this process' __main__."""

    def __init__(self, file: io.BytesIO, what: str) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._what = what
        self.needs_main = False

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, (type, types.FunctionType)) and item.__module__ == "__main__":
            self.needs_main = True
            if not _main_arguments() and "<" not in item.__qualname__:
                raise InvalidArgumentError(
                    f"workers: {self._what} needs {item.__qualname__}, which is defined in an "
                    "interactive session; a worker process can import only what stands in a file. Use worker_type=\"thread\" or "
                    "move it to a module")
        return NotImplemented


def _main_arguments() -> dict[str, str]:
    """Where multiprocessing's prepare() finds the __main__ of this process; empty: nowhere."""
    main = sys.modules["__main__"]
    specification = getattr(main, "__spec__", None)
    if specification is not None:
        return {"init_main_from_name": specification.name}
    path = getattr(main, "__file__", None)
    if path is None:
        return {}
    whole = Path(multiprocessing.process.ORIGINAL_DIR or os.getcwd(), path)
    return {"init_main_from_path": os.path.normpath(whole)} if whole.is_file() else {}


def _preparation(needs_main: bool) -> dict[str, Any]:
    """As multiprocessing.spawn.get_preparation_data, which would also settle the start method of this process."""
    folder = multiprocessing.process.ORIGINAL_DIR or os.getcwd()
    arguments = _main_arguments() if needs_main else {}
    return {"sys_path": [path or folder for path in sys.path], "sys_argv": sys.argv, "orig_dir": folder,
            "dir": os.getcwd(), **arguments}
