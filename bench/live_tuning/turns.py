"""Settings that take turns in a script's own loop, block by block: how a re-run and a grid measure, without the tuner's judge."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import harness

Settings = Mapping[str, str]  # Recipe keys to TOML text; empty: the loop as written.


@dataclass(frozen=True)
class Shape:
    """Of a block, in steps."""

    wash_out: int  # Not counted behind a switch,
    first_visit: int  # nor these behind a setting's first.
    counted: int


def shape_of(step_s: float, block_s: float = 0.1, queue: int = 0) -> Shape:
    """Blocks of at least two steps, and of block_s, behind one step (5 ms of shorter ones) of wash-out. A loader's `queue` of
    batches is washed out whole, and a block lasts two of it."""
    wash_out, counted = max(1, math.ceil(0.005 / step_s)), max(2, math.ceil(block_s / step_s))
    return Shape(max(wash_out, queue), 2 * wash_out, max(counted, 2 * queue))


class Turns:
    """Told of each step's end, between two updates, it applies what the next step runs with. A round measures every setting
    once, in a drawn order; found[i] are the seconds a step of setting i, one value a round."""

    def __init__(self, apply: Callable[[Settings], object], settings: Sequence[Settings], rounds: int, shape: Shape, seed: int,
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self.found: list[list[float]] = [[] for _ in settings]
        self._apply, self._settings, self._shape, self._clock = apply, settings, shape, clock
        self._places = self._in_turn(rounds, seed)
        self._place, self._steps, self._uncounted, self._begin = 0, 0, 0, 0.0
        self._visited: set[int] = set()
        self.done = not self._switch()

    def _in_turn(self, rounds: int, seed: int) -> Iterator[int]:
        for _, order in zip(range(rounds), harness.orders(len(self._settings), seed)):
            yield from order

    def _switch(self) -> bool:
        place = next(self._places, None)
        if place is None:
            return False
        self._apply(self._settings[place])
        first = place not in self._visited
        self._visited.add(place)
        self._place, self._steps = place, 0
        self._uncounted = self._shape.wash_out + self._shape.first_visit * first
        return True

    def stepped(self) -> None:
        """At each step's end, until `done`."""
        self._steps += 1
        if self._steps == self._uncounted:
            self._begin = self._clock()
        elif self._steps == self._uncounted + self._shape.counted:
            self.found[self._place].append((self._clock() - self._begin) / self._shape.counted)
            self.done = not self._switch()


def gains(without_s: Sequence[float], with_s: Sequence[float]) -> list[float]:
    """Of rounds that both have: 0.21 is 21 % faster."""
    both = min(len(without_s), len(with_s))
    return [ratio - 1 for ratio in harness.ratios(without_s[:both], with_s[:both])]


@dataclass(frozen=True)
class Gain:
    """Median and 95 % interval, by ranks, of the gains of pairs."""

    median: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, without_s: Sequence[float], with_s: Sequence[float]) -> "Gain":
        values = gains(without_s, with_s)
        return cls(statistics.median(values), *harness.interval(values), len(values))

    def __str__(self) -> str:
        return f"{self.median:+.1%} [{self.low:+.1%}, {self.high:+.1%}], {self.pairs} pairs"
