"""What services of performance_optimization cost where they are off: a scope, and the loop of the preset minimal_overhead."""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
from overhead_budgets import PRODUCTION, SCOPE_THAT_IS_OFF  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from performance_optimization import PerformanceConfig, PerformanceOptimizer, PerformanceProfiler  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

SCOPES = 10**6
OFF, NO_SCOPE = "a scope that is off", "the loop without it"
PLAIN, SAME_STEPS, AS_IT_IS = "plain", "minimal_overhead, the same steps", "minimal_overhead as it is"
# What a level asks for beside the preset changes what a step computes.
OF_THE_MODEL = ("enable_amp", "enable_compile", "enable_gradient_checkpointing", "enable_memory_format_optimization")


def ns_of_a_scope(profiler: PerformanceProfiler) -> float:
    """With the loop around it."""
    begin = time.perf_counter_ns()
    for _ in itertools.repeat(None, SCOPES):
        with profiler.profile("training_step"):
            pass
    return (time.perf_counter_ns() - begin) / SCOPES


def ns_without_a_scope() -> float:
    begin = time.perf_counter_ns()
    for _ in itertools.repeat(None, SCOPES):
        pass
    return (time.perf_counter_ns() - begin) / SCOPES


def scopes_part(bench: harness.Bench, arguments: argparse.Namespace) -> tuple[Any, bool]:
    profiler = PerformanceProfiler(enable_profiling=False)
    found = bench.measure([harness.Arm(OFF, lambda _: ns_of_a_scope(profiler)), harness.Arm(NO_SCOPE, lambda _: ns_without_a_scope())],
                          arguments.rounds, warm_up=1, title="scopes")
    print(f"\n{SCOPES:,} scopes a round\n{harness.arms_table(found, 'ns', 1)}\n{SCOPE_THAT_IS_OFF.line(found[OFF])}")
    return found, SCOPE_THAT_IS_OFF.is_above(found[OFF])


class Epochs:
    """Of a network of its own over the same batches; each figure is the seconds of a step."""

    def __init__(self, network: Callable[[], nn.Module], steps: int) -> None:
        torch.manual_seed(1)
        self.model = network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = DataLoader(TensorDataset(torch.randn(32 * steps, 3, 32, 32), torch.randint(10, (32 * steps,))), batch_size=32)

    def plain(self) -> float:
        begin = time.perf_counter()
        for images, labels in self.batches:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
        return (time.perf_counter() - begin) / len(self.batches)


class ConfiguredEpochs(Epochs):
    """By PerformanceOptimizer. What a loop takes beside its steps, to set up and to clean up, is in `beside_s`."""

    def __init__(self, network: Callable[[], nn.Module], steps: int, **settings: Any) -> None:
        super().__init__(network, steps)
        self.beside_s: list[float] = []
        self._by = PerformanceOptimizer(PerformanceConfig.preset("minimal_overhead", **settings), trial_s=0)

    def configured(self) -> float:
        begin = time.perf_counter()
        results = self._by.optimize_training_loop(self.model, self.batches, self.optimizer, nn.functional.cross_entropy, num_epochs=1)
        whole = time.perf_counter() - begin
        self.beside_s.append(whole - results["seconds"])
        return results["seconds"] / len(self.batches)


def production_part(bench: harness.Bench, arguments: argparse.Namespace, network: Callable[[], nn.Module]) -> tuple[Any, bool]:
    plain = Epochs(network, arguments.steps)
    same = ConfiguredEpochs(network, arguments.steps, gradient_accumulation_steps=1, **dict.fromkeys(OF_THE_MODEL, False))
    as_it_is = ConfiguredEpochs(network, arguments.steps, enable_compile=False)  # Which takes minutes to set up.
    found = bench.measure([harness.Arm(PLAIN, lambda _: plain.plain()), harness.Arm(SAME_STEPS, lambda _: same.configured()),
                           harness.Arm(AS_IT_IS, lambda _: as_it_is.configured())], arguments.rounds, warm_up=2, title="production")
    in_us = {name: [value * 1e6 for value in values] for name, values in found.items()}
    over = harness.ratios(found[SAME_STEPS], found[PLAIN])
    beside_ms = [1e3 * seconds for seconds in same.beside_s[-arguments.rounds:]]
    print(f"\nepochs of {arguments.steps} steps\n{harness.arms_table(in_us, 'us a step', digits=1, reference=PLAIN)}\n{PRODUCTION.line(over)}\n"
          f"once an epoch, to set up and to collect Python's garbage: {harness.with_interval(beside_ms, 'ms', 1)}\n"
          f"{AS_IT_IS}: without compilation; what its level asks for of the model changes what a step computes")
    return {**found, "beside_ms": beside_ms}, PRODUCTION.is_above(over)
