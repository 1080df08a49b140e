"""What Python's garbage collector takes in one thread."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable


def watch_garbage(note: Callable[[float], object]) -> Callable[[], None]:
    """From here on `note` has the seconds of each collection in the thread that calls this. Returns what ends that."""
    thread, began_s = threading.get_ident(), 0.0

    def told(phase: str, info: dict[str, int]) -> None:
        nonlocal began_s
        if threading.get_ident() != thread:
            return
        if phase == "start":
            began_s = time.perf_counter()
        elif began_s > 0:
            note(time.perf_counter() - began_s)
            began_s = 0.0

    gc.callbacks.append(told)
    return lambda: gc.callbacks.remove(told)
