"""Settings that take turns in a script's own loop, block by block: how a re-run and a grid measure, without the tuner's judge."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import harness

Settings = Mapping[str, str]  # Recipe keys to TOML text; empty: the loop as written.
VARIES = 0.02  # Of the middle of the blocks' work: less is none.
BLOCKS_OF_A_LINE = 10


@dataclass(frozen=True)
class Shape:
    """Of a block, in steps."""

    wash_out: int  # Not counted behind a switch,
    first_visit: int  # nor these behind a setting's first.
    counted: int


def shape_of(step_s: float, block_s: float = 0.1, queue: int = 0) -> Shape:
    """Blocks of block_s, at least one step, behind one step (5 ms of shorter ones) of wash-out. A loader's `queue` of batches is
    washed out whole, and a block lasts two of it."""
    wash_out, counted = max(1, math.ceil(0.005 / step_s)), max(1, math.ceil(block_s / step_s))
    return Shape(max(wash_out, queue), 2 * wash_out, max(counted, 2 * queue))


class Turns:
    """Told of each step's end, between two updates, it applies what the next step runs with. A round measures every setting
    once, in a drawn order; found[i] are the seconds a step of setting i, one value a round, and work[i] its work a step."""

    def __init__(self, apply: Callable[[Settings], str | None], settings: Sequence[Settings], rounds: int, shape: Shape,
                 seed: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """apply: makes settings hold, or tells why they cannot, and leaves all as it was."""
        self.found: list[list[float]] = [[] for _ in settings]
        self.work: list[list[float]] = [[] for _ in settings]
        self.refused: dict[int, str] = {}  # By place, why; what was measured of it before counts for nothing.
        self.first_s: dict[int, float] = {}  # By place: of its first switch and the uncounted steps behind it.
        self._apply, self._settings, self._shape, self._clock = apply, settings, shape, clock
        self._places = self._in_turn(rounds, seed)
        self._place, self._steps, self._uncounted, self._begin, self._switched, self._work = 0, 0, 0, 0.0, 0.0, 0.0
        self.done = not self._switch()

    def _in_turn(self, rounds: int, seed: int) -> Iterator[int]:
        for _, order in zip(range(rounds), harness.orders(len(self._settings), seed)):
            yield from order

    def _switch(self) -> bool:
        for place in self._places:
            if place in self.refused:
                continue
            self._switched = self._clock()
            if (reason := self._apply(self._settings[place])) is not None:
                self.refused[place] = reason
                self.found[place], self.work[place] = [], []
                continue
            self._place, self._steps, self._work = place, 0, 0.0
            self._uncounted = self._shape.wash_out + self._shape.first_visit * (place not in self.first_s)
            return True
        return False

    @property
    def uncounted_at_first(self) -> int:
        """Steps of first_s."""
        return self._shape.wash_out + self._shape.first_visit

    def stepped(self, work: float = 1.0) -> None:
        """At each step's end, until `done`. work: of that step."""
        self._steps += 1
        if self._steps > self._uncounted:
            self._work += work
        if self._steps == self._uncounted:
            self._begin = self._clock()
            self.first_s.setdefault(self._place, self._begin - self._switched)
        elif self._steps == self._uncounted + self._shape.counted:
            self.found[self._place].append((self._clock() - self._begin) / self._shape.counted)
            self.work[self._place].append(self._work / self._shape.counted)
            self.done = not self._switch()


def even(seconds: Sequence[float], work: Sequence[float], plain_s: Sequence[float], plain_work: Sequence[float]) -> list[float]:
    """What blocks would have taken with work of the middle, by a line through those of the loop as written (Theil 1950, Sen
    1968). As they are, where work does not vary or there are few of them."""
    middle = statistics.median(plain_work) if plain_work else 0.0
    if len(plain_s) < BLOCKS_OF_A_LINE or max(plain_work) - min(plain_work) <= VARIES * middle:
        return list(seconds)
    points = list(zip(plain_work, plain_s))
    slope = max(0.0, statistics.median((y - b) / (x - a) for i, (a, b) in enumerate(points) for x, y in points[:i] if x != a))
    level = statistics.median(y - slope * x for x, y in points)
    least = 0.1 * min(plain_s)  # A line through noise may reach 0.
    expected = [max(least, level + slope * each) for each in work]
    return [each * max(least, level + slope * middle) / wanted for each, wanted in zip(seconds, expected, strict=True)]


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
