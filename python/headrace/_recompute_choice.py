"""Which blocks to recompute so that what is saved for the backward fits into a budget.

That memory can be traded for a second forward is Chen et al., "Training deep nets with sublinear memory cost" (arXiv 1604.06174, 2016).
The choice here is greedy, by forward time for each byte that recomputing a block frees, as both were measured; then what turned out
to be needless is taken out again, the dearest first. Nothing here needs torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Hashable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class BlockCall:
    """One call of a block, in the order of the forward. Bytes by storage: what its operators save, and its arguments. Seconds of its
    forward."""

    block: str
    seconds: float
    saved: Mapping[Hashable, int]
    inputs: Mapping[Hashable, int]


@dataclasses.dataclass(frozen=True)
class Choice:
    """peak_bytes: of what is saved, predicted for it. fits: that is within the budget."""

    recomputed: frozenset[str]
    peak_bytes: int
    fits: bool


def peak_bytes(calls: Sequence[BlockCall], outside: Mapping[Hashable, int], recomputed: Collection[str], keeps_inputs: bool = True) -> int:
    """The most bytes that are saved at once, where calls go backward in the reverse of their order: at the end of the forward, or
    while a block has been computed again and those before it wait. `outside`: saved beside the blocks, all the time. keeps_inputs:
    False where the arguments of recomputed blocks lie elsewhere."""
    held = dict(outside)
    total = most = sum(held.values())
    for call in calls:
        if call.block not in recomputed:
            total += _add(held, call.saved)
            continue
        if keeps_inputs:
            total += _add(held, call.inputs)
        most = max(most, total + sum(size for storage, size in call.saved.items() if storage not in held))
    return max(most, total)


def choose(calls: Sequence[BlockCall], outside: Mapping[Hashable, int], budget_bytes: float, keeps_inputs: bool = True) -> Choice:
    """The blocks that should be recomputed for at most that many bytes, or, where none do, for the fewest. Costs a pass over all
    storages for each block."""

    def choice(recomputed: Collection[str]) -> Choice:
        peak = peak_bytes(calls, outside, recomputed, keeps_inputs)
        return Choice(frozenset(recomputed), peak, peak <= budget_bytes)

    chosen: list[str] = []
    best = choice(chosen)
    prices = _prices(calls, outside, keeps_inputs)
    for block in sorted(prices, key=lambda block: prices[block]):
        if best.fits:
            break
        chosen.append(block)
        tried = choice(chosen)
        if tried.peak_bytes < best.peak_bytes or tried.fits:
            best = tried
    seconds = _seconds(calls)
    for block in sorted(best.recomputed, key=lambda block: -seconds[block]):
        tried = choice(best.recomputed - {block})
        if tried.fits or (not best.fits and tried.peak_bytes <= best.peak_bytes):
            best = tried
    return best


def _add(held: dict[Hashable, int], more: Mapping[Hashable, int]) -> int:
    """Bytes of those that were not held."""
    new = {storage: size for storage, size in more.items() if storage not in held}
    held.update(new)
    return sum(new.values())


def _seconds(calls: Sequence[BlockCall]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for call in calls:
        seconds[call.block] = seconds.get(call.block, 0.0) + call.seconds
    return seconds


def _prices(calls: Sequence[BlockCall], outside: Mapping[Hashable, int], keeps_inputs: bool) -> dict[str, float]:
    """Seconds for a byte that goes when this block alone is recomputed; blocks that free nothing are left out."""
    users: dict[Hashable, set[str]] = {}
    for call in calls:
        for storage in call.saved:
            users.setdefault(storage, set()).add(call.block)
    freed = dict.fromkeys((call.block for call in calls), 0)
    for call in calls:
        inputs = call.inputs if keeps_inputs else {}
        own = {storage: size for storage, size in call.saved.items() if users[storage] == {call.block} and storage not in outside}
        freed[call.block] += sum(size for storage, size in own.items() if storage not in inputs)
        freed[call.block] -= sum(size for storage, size in inputs.items() if storage not in users and storage not in outside)
    seconds = _seconds(calls)
    return {block: seconds[block] / size for block, size in freed.items() if size > 0}
