"""The limit of what tensors on the CPU may hold, which headrace's engine keeps in torch's allocator."""

from __future__ import annotations

from . import _engine_door
from .errors import InvalidArgumentError

MIB = 2**20


def set_tensor_memory_limit(mib: float) -> dict[str, str]:
    """From here on tensors on the CPU may hold at most this many MiB in the whole process; 0 sets no limit. An allocation beyond it is
    torch.OutOfMemoryError, which names what was asked for, what is held and the limit; it has not happened then, and all that was
    there goes on. Tensors from before the first call are not counted.

    For a loop of one's own; a headrace.Trainer has memory_limit_mib and set_memory_limit_mib(), after which its micro-batches grow
    again, too.

    Returns requested, applied and reason, in bytes of tensors: where it is not applied, reason says why. UnsupportedError: headrace's
    engine cannot be had.
    """
    return _told(_engine_door.engine("headrace.set_tensor_memory_limit").set_tensor_memory_limit(checked_bytes(mib)))


def checked_bytes(mib: float) -> int:
    """InvalidArgumentError: it is no number of MiB."""
    if isinstance(mib, bool) or not isinstance(mib, (int, float)) or not 0 <= mib < 2**40:
        raise InvalidArgumentError(f"memory limit: wanted a number of MiB, 0 for none, found {mib!r}")
    return int(mib * MIB)


def _told(applied: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("requested", "applied", "reason"), applied))
