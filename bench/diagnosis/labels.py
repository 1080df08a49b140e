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


@dataclass(frozen=True)
class Pipeline:
    network: str
    optimizer: str
    workers: int
    fault: str  # Empty: none.
    share: float  # Of the step that is left with it, which it costs.
    seed: int

    @property
    def label(self) -> str:
        return FAULTS[self.fault][0] if self.fault else "healthy"

    @property
    def name(self) -> str:
        what = f"{self.fault} {self.share:.0%}" if self.fault else "healthy"
        return f"{what}, {self.network}, {self.optimizer}, {self.workers} workers"

    def options(self) -> list[str]:
        return ["--network", self.network, "--optimizer", self.optimizer, "--workers", str(self.workers), "--fault", self.fault,
                "--seed", str(self.seed)]


def suite(shares: Sequence[float], seed: int) -> list[Pipeline]:
    """60 faulty ones, five of each label with its faults, the shares and the networks in turn, and 10 healthy ones. `seed` draws what goes
    with what."""
    drawn = random.Random(seed)
    pipelines = [pipeline for label in LABELS for pipeline in _of_label(label, shares, drawn)]
    kinds = list(itertools.product(NETWORKS, OPTIMIZERS, (0, 1)))
    drawn.shuffle(kinds)
    pipelines += [Pipeline(*kind, fault="", share=0.0, seed=drawn.randrange(1 << 30)) for kind in kinds[:HEALTHY]]
    return pipelines


def _of_label(label: str, shares: Sequence[float], drawn: random.Random) -> Iterator[Pipeline]:
    faults = [fault for fault, (of, _) in FAULTS.items() if of == label]
    first = drawn.randrange(len(shares)), drawn.randrange(len(NETWORKS))
    for i in range(EACH):
        fault = faults[i % len(faults)]
        yield Pipeline(NETWORKS[(first[1] + i) % len(NETWORKS)], OPTIMIZERS[i % 2], FAULTS[fault][1], fault,
                       shares[(first[0] + i) % len(shares)], drawn.randrange(1 << 30))


@dataclass(frozen=True)
class Judged:
    """What came of one pipeline."""

    pipeline: Pipeline
    first: str | None
    healthy: bool
    predicted: float | None  # Gain without the first loss.
    measured: float | None  # Gain of the same pipeline without its fault.

    @property
    def right(self) -> bool:
        if not self.pipeline.fault:
            return self.healthy
        return self.first == self.pipeline.label and (self.pipeline.label == "compute" or not self.healthy)

    @property
    def costs(self) -> float:
        """Share of the step that the fault was measured to cost."""
        return 0.0 if self.measured is None else self.measured / (1 + self.measured)

    @property
    def error(self) -> float | None:
        """Of the prediction, over what was measured; None: one of them is not there, or the verdict is of something else."""
        if not self.pipeline.fault or not self.right or self.predicted is None or not self.measured:
            return None
        return abs(self.predicted - self.measured) / self.measured
