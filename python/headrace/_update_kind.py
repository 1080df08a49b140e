"""Which updates of a loop may be compared by their times."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

_REMEMBERED = 32  # Updates.


class UpdateKind(NamedTuple):
    """How often something happened in an update. Updates of one kind differ in time by chance and by settings alone."""

    epochs_begun: int
    epochs_ended: int
    evaluations: int  # Calls of the models without gradients, or in eval mode.
    checkpoints: int
    failures: int
    micro_batches: int  # Batches of the loader, or calls with gradients where it gave none; those within one step() are one.
    steps: int  # Of all optimizers.


_EVENTS = ("an epoch began", "an epoch ended", "evaluation", "a checkpoint was written", "an exception")


class UsualKind:
    """The kind that most of the last 32 updates are of. What happens in each of them, as the state_dict() of an EMA, is usual."""

    def __init__(self) -> None:
        self.kind: UpdateKind | None = None  # None: no update was seen.
        self._last: deque[UpdateKind] = deque()
        self._counts: Counter[UpdateKind] = Counter()

    def unlike(self, kind: UpdateKind) -> str:
        """Takes note of an update's kind. Why it cannot be compared with the others; empty: it can."""
        self._last.append(kind)
        self._counts[kind] += 1
        if len(self._last) > _REMEMBERED:
            self._forget(self._last.popleft())
        if self.kind is None or self._counts[kind] > self._counts[self.kind]:
            self.kind = kind
        if kind != self.kind:
            return _difference(kind, self.kind)
        return "" if self._counts[kind] > 1 else "the first of its kind"

    def _forget(self, kind: UpdateKind) -> None:
        self._counts[kind] -= 1
        if self._counts[kind] == 0:
            del self._counts[kind]


def _difference(kind: UpdateKind, usual: UpdateKind) -> str:
    for count, others, event in zip(kind, usual, _EVENTS):
        if count > others:
            return event
    for count, others, one, many in ((kind.micro_batches, usual.micro_batches, "micro-batch", "micro-batches"),
                                     (kind.steps, usual.steps, "optimizer step", "optimizer steps")):
        if count != others:
            return f"{count} {one if count == 1 else many}, not {others}"
    return next(f"usual is: {event}" for count, others, event in zip(kind, usual, _EVENTS) if count < others)
