"""The labelled suite: which fault lies in which pipeline, and what the first verdict must be. Knows no torch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NETWORKS = ("mlp", "cnn", "attention")
OPTIMIZERS = ("sgd", "adamw")

# Each fault of pipeline.py with its label, and how many worker processes load: those that slow workers down need some.
FAULTS: dict[str, tuple[str, int]] = {
    "slow_disk": ("storage", 0),
    "small_reads": ("storage", 1),
    "spin_in_decode": ("decode", 1),
    "spin_in_transform": ("augment", 1),
    "spin_in_collate": ("collate", 1),
    "conversions": ("transfer", 0),
    "more_products": ("compute", 0),
    "spin_in_update": ("optimizer", 0),
    "loop_over_parameters": ("optimizer", 0),
    "metrics_in_python": ("python", 0),
    "sleep_in_body": ("synchronisation", 0),
    "lock_in_forward": ("synchronisation", 0),
    "fresh_pages": ("memory", 0),
    "collected_garbage": ("memory", 0),
    "busy_neighbours": ("cores", 0),
    "slow_worker": ("imbalance", 2),
}
LABELS = tuple(dict.fromkeys(label for label, _ in FAULTS.values()))
EACH = 5  # Faulty pipelines a label: 12 labels make 60.
HEALTHY = 10
PAIRS = 10
# Not in a pair: more compute is no loss beside another fault, only a longer step; and what a worker loads is hidden by what else is slow.
ALONE = ("more_products", "slow_worker")
EITHER = 0.8  # Of a pair, the fault that costs less may be named, too, where it costs this part of the other or more.


@dataclass(frozen=True)
class Pipeline:
    network: str
    optimizer: str
    workers: int
    faults: tuple[str, ...]  # Empty: it is healthy.
    shares: tuple[float, ...]  # Of the step that is left with it alone, which each costs.
    seed: int

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(FAULTS[fault][0] for fault in self.faults)

    @property
    def label(self) -> str:
        return " and ".join(self.labels) or "healthy"

    @property
    def name(self) -> str:
        what = " and ".join(f"{fault} {share:.0%}" for fault, share in zip(self.faults, self.shares)) or "healthy"
        return f"{what}, {self.network}, {self.optimizer}, {self.workers} workers"

    def options(self) -> list[str]:
        return ["--network", self.network, "--optimizer", self.optimizer, "--workers", str(self.workers), "--seed", str(self.seed),
                "--fault", *self.faults, "--share", *map(str, self.shares)]


def suite(shares: Sequence[float], seed: int) -> list[Pipeline]:
    """60 faulty ones, five of each label with its faults, the shares and the networks in turn, and 10 healthy ones. `seed` draws what goes
    with what."""
    drawn = random.Random(seed)
    pipelines = [pipeline for label in LABELS for pipeline in _of_label(label, shares, drawn)]
    kinds = list(itertools.product(NETWORKS, OPTIMIZERS, (0, 1)))
    drawn.shuffle(kinds)
    pipelines += [Pipeline(*kind, (), (), drawn.randrange(1 << 30)) for kind in kinds[:HEALTHY]]
    return pipelines


def pairs(shares: Sequence[float], seed: int, count: int = PAIRS) -> list[Pipeline]:
    """Pipelines with two faults of different labels that the training thread itself meets, one after the other. `seed` draws which, how
    strong and in which network; no two are of the same labels while there are others."""
    drawn = random.Random(seed)
    of_label: dict[str, list[str]] = {}
    for fault, (label, _) in FAULTS.items():
        if fault not in ALONE:
            of_label.setdefault(label, []).append(fault)
    labels = list(itertools.combinations(of_label, 2))
    drawn.shuffle(labels)
    found = []
    for i in range(count):
        faults = tuple(drawn.choice(of_label[label]) for label in labels[i % len(labels)])
        found.append(Pipeline(NETWORKS[i % len(NETWORKS)], OPTIMIZERS[i % 2], 0, faults, (drawn.choice(shares), drawn.choice(shares)),
                              drawn.randrange(1 << 30)))
    return found


def _of_label(label: str, shares: Sequence[float], drawn: random.Random) -> Iterator[Pipeline]:
    faults = [fault for fault, (of, _) in FAULTS.items() if of == label]
    first = drawn.randrange(len(shares)), drawn.randrange(len(NETWORKS))
    for i in range(EACH):
        fault = faults[i % len(faults)]
        yield Pipeline(NETWORKS[(first[1] + i) % len(NETWORKS)], OPTIMIZERS[i % 2], FAULTS[fault][1], (fault,),
                       (shares[(first[0] + i) % len(shares)],), drawn.randrange(1 << 30))


@dataclass(frozen=True)
class Judged:
    """What came of one pipeline."""

    pipeline: Pipeline
    first: str | None
    healthy: bool
    predicted: float | None  # Gain without the first loss.
    measured: tuple[float, ...]  # Gain of the same pipeline without each of its faults.

    @property
    def accepted(self) -> set[str]:
        """What may be named first: the fault that costs most, and of a pair the other one where it costs nearly as much."""
        return {label for label, gain in zip(self.pipeline.labels, self.measured) if gain >= EITHER * max(self.measured)}

    @property
    def right(self) -> bool:
        if not self.pipeline.faults:
            return self.healthy
        return self.first in self.accepted and (self.first == "compute" or not self.healthy)

    @property
    def costs(self) -> float:
        """Share of the step that the fault, or the one that costs most, was measured to cost."""
        gain = max(self.measured, default=0.0)
        return gain / (1 + gain)

    @property
    def error(self) -> float | None:
        """Of the prediction, over what was measured; None: one of them is not there, or the verdict is of something else."""
        if not self.pipeline.faults or not self.right or self.predicted is None:
            return None
        measured = self.measured[self.pipeline.labels.index(self.first)]
        return abs(self.predicted - measured) / measured if measured else None
