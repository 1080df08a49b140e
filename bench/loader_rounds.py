"""What the benches share that compare loaders within one process: arms in turns, samples a second."""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any


def speed(loader: Iterable) -> float:
    """Samples a second over one epoch; a DataLoader starts its workers in it, as it does in a script."""
    begin, samples = time.perf_counter(), 0
    for images, _labels in loader:
        samples += len(images)
    return samples / (time.perf_counter() - begin)


def measure(arms: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, list[Any]]:
    """What each arm returns, called once a round, forwards and backwards in turn. The round before the first, which fills the
    page cache and starts workers that stay, is not counted."""
    speeds: dict[Any, list[Any]] = {name: [] for name in arms}
    for place in range(rounds + 1):
        for name in list(arms) if place % 2 else reversed(list(arms)):
            value = arms[name]()
            if place > 0:
                speeds[name].append(value)
    return speeds


def interval(values: list[float]) -> tuple[float, float]:
    """Ends of a 95 % interval of the median, by ranks, whatever the distribution; of fewer than 6 values the extremes."""
    ordered, count = sorted(values), len(values)
    place, beyond = 0, 2 * 0.5**count  # The chance that the median lies outside of the values at place and its mirror.
    while place + 1 < count - 1 - place:
        beyond += 2 * math.comb(count, place + 1) * 0.5**count
        if beyond > 0.05:
            break
        place += 1
    return ordered[place], ordered[-1 - place]


def show(speeds: dict[str, list[float]]) -> list[float]:
    """Prints a line an arm; returns the medians."""
    for name, values in speeds.items():
        print(f"{name:<22} median {statistics.median(values):9,.0f} samples/s, {min(values):,.0f} to {max(values):,.0f}")
    return [statistics.median(values) for values in speeds.values()]
