"""What tests of memory compare with."""

import gc
import sys
from collections.abc import Callable

import headrace as hr


def storages(tensors) -> int:
    """Bytes of the storages that these lie in, each once."""
    known = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(known.values())


def counted_elsewhere(name: str) -> int:
    """Bytes of this class that objects of other tests still hold."""
    gc.collect()
    with hr.Trace() as trace:
        pass
    known = trace.memory()["classes"][name]
    return known["last"] if known else 0


def blocks_left(call: Callable[[], object], count: int = 100_000, warm_up: int = 2000) -> int:
    """Python's memory blocks that so many calls leave behind, after `warm_up` calls twice. One reference lost a call is `count`."""
    def blocks(times: int) -> int:
        for _ in range(times):
            call()
        gc.collect()
        return sys.getallocatedblocks()

    blocks(warm_up)
    before = blocks(warm_up)
    return blocks(count) - before
