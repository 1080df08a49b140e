"""What tests of memory compare with."""

import gc
import os
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
    """Python's memory blocks that so many calls leave behind, after `warm_up` calls twice. One reference lost a call is `count`. Where
    the environment has CALLS_AT_MOST, no more calls are made: under a sanitizer, which looks at each."""
    most = int(os.environ.get("CALLS_AT_MOST", count))
    count, warm_up = min(count, most), min(warm_up, most)

    def blocks(times: int) -> int:
        for _ in range(times):
            call()
        gc.collect()
        return sys.getallocatedblocks()

    blocks(warm_up)
    before = blocks(warm_up)
    return blocks(count) - before


def calls(*names: str) -> Callable[[Callable], Callable]:
    """Of a function that makes what blocks_left() calls 100,000 times: the names that this calls, as the stubs of the native modules have
    them. tests/bound_calls_test.py looks which are missing."""
    return lambda make: make
