"""What tests of memory by class compare with."""

import gc

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
