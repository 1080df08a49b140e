"""The order in which the optimizers of a loop step, found from the steps themselves."""

from __future__ import annotations

_STEPS = 12  # Looked at before an order is believed; looked at again after each so many.
_STEPS_MAX = 600  # An order that is not found by then is none.
_STEPS_LATE = 240  # An optimizer that made none of the last so many needs no place in the order.


class UpdateCycle:
    """Where the user's iteration ends if several optimizers step in it: behind the G of a GAN's D D G. Of one optimizer alone
    each step is an iteration from the first on.

    The order is the shortest that the last 12 steps repeat, or the last two iterations where these are longer. An iteration
    begins with the step before which the loop took a batch; where that tells nothing, with the first step of all, if
    everything since then repeats the order; else behind the optimizer that steps least often. A step that is left out (a
    GradScaler met infinities) or made twice moves the place in the order and nothing else. An optimizer that was not in the
    order lets it be found anew, from its own step on. Optimizers are named by their numbers from 0 on.
    """

    def __init__(self, optimizers: int) -> None:
        self._order = [0] if optimizers == 1 else []
        self._next = 0  # Place in the order of the step to come.
        self._steps: list[int] = []  # Made while the order is not known.
        self._saw_first = True  # The first of them was the first of all.
        self._takes_batch: list[bool] = []  # Of each of them, whether a batch was taken before it.
        self._batches = 0
        self.problem: str | None = None  # Why there is no order; None: there is one, or it is too early to tell.

    @property
    def has_ended(self) -> bool:
        """Whether the last step was the last of an iteration."""
        return bool(self._order) and self._next == 0

    def ends_with(self, optimizer: int) -> bool:
        """Whether this optimizer's step would end the iteration, if it were made now. False while the order is unknown."""
        place = self._place_of(optimizer)
        return place is not None and place == len(self._order) - 1

    def step(self, optimizer: int, batches: int) -> int:
        """A step has been made, `batches` having been taken from the loader so far. Returns how many iterations are known to
        have ended since the last call: 0 or 1, and more when the order has just been found."""
        place = self._place_of(optimizer)
        if place is None:
            return self._learn(optimizer, batches)
        self._next = (place + 1) % len(self._order)
        return int(self._next == 0)

    def _place_of(self, optimizer: int) -> int | None:
        count = len(self._order)
        for ahead in range(count):
            place = (self._next + ahead) % count
            if self._order[place] == optimizer:
                return place
        return None

    def _learn(self, optimizer: int, batches: int) -> int:
        self._order = []
        if self.problem is not None:
            return 0
        self._steps.append(optimizer)
        self._takes_batch.append(batches > self._batches)
        self._batches = batches
        if len(self._steps) % _STEPS:
            return 0
        length = self._shortest()
        if length is None:
            if len(self._steps) >= _STEPS_MAX:
                self.problem = "the optimizers step in no order that repeats"
            return 0
        ended = self._begin(length)
        self._steps, self._takes_batch, self._saw_first = [], [], False
        return ended

    def _shortest(self) -> int | None:
        """Length of the shortest order that was repeated of late and holds every optimizer that stepped of late."""
        steps = self._steps
        optimizers = set(steps[-_STEPS_LATE:])
        for length in range(1, len(steps) // 2 + 1):
            last = steps[-max(_STEPS, 2 * length):]
            if _repeats(last, length) and optimizers.issubset(last):
                return length
        return None

    def _begin(self, length: int) -> int:
        """Takes the last `length` steps as the order. Returns how many iterations they have ended so far."""
        steps, last, takes_batch = self._steps, self._steps[-length:], self._takes_batch[-length:]
        is_regular = self._saw_first and _repeats(steps, length)

        def likelihood(end: int) -> tuple[bool, bool, int]:
            from_first_step = is_regular and (len(steps) + end + 1) % length == 0
            return takes_batch[(end + 1) % length], from_first_step, -last.count(last[end])

        end = max(range(length), key=likelihood)
        self._order = last[end + 1:] + last[:end + 1]
        self._next = length - 1 - end
        return (len(steps) - length + end) // length + 1


def _repeats(steps: list[int], length: int) -> bool:
    return all(step == later for step, later in zip(steps, steps[length:]))
