"""What a field of a PerformanceConfig costs while it is off: nothing that can be counted. A run of the level custom is watched: threads,
processes and files that are open in a step, hooks, recordings, collections of garbage, forwards, updates, layout, kernel, and steps of a
search. With one field off it has as many of each as with nothing said, and with the field on of something more, or of another kind."""

import gc
import multiprocessing
import os
from collections import Counter
from dataclasses import fields

import headrace as hr
import pytest
from facade_performance_optimizer_test import criterion, hooks_like, images, loader, no_compiler, sgd  # noqa: F401
from performance_optimization import PerformanceConfig, PerformanceOptimizer
from running_threads import running_threads
from torch import nn

pytestmark = pytest.mark.engine

OFF = {field.name: False for field in fields(PerformanceConfig)} | {
    "optimization_level": "custom", "memory_format": "preserve", "num_workers": 0, "prefetch_factor": 1, "gradient_accumulation_steps": 1,
    "cache_size": 0, "max_workers": 0, "memory_threshold": 0.0}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class Run:
    """Two epochs of a network under a configuration, and what there is beside them."""

    def __init__(self, monkeypatch, settings):
        self.optimizer = PerformanceOptimizer(PerformanceConfig(**{"optimization_level": "custom", **settings}), trial_s=0)
        self.model, self.dataloader = images(), loader(64, (3, 8, 8))
        self.sgd = sgd(self.model)
        self.calls = Counter()
        self.threads, self.files = running_threads(), open_files()
        self.in_steps = set()
        for owner, name in ((hr, "Trace"), (hr, "tune"), (hr, "autotune"), (gc, "collect")):
            self.count(monkeypatch, owner, name)
        if not settings.get("enable_compile"):  # What is compiled is called by torch's own rules.
            self.count(monkeypatch, nn.Conv2d, "forward")

    def count(self, monkeypatch, owner, name):
        plain = getattr(owner, name)

        def counted(*args, **kwargs):
            self.calls[name] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    def look(self, outputs, targets):
        began = sorted(name for thread, name in running_threads().items() if thread not in self.threads)
        of_owners, replaced, of_all_modules = hooks_like(self.model, self.sgd, self.dataloader)[:3]
        hooks = of_owners, [sorted(names) for names in replaced], of_all_modules
        self.in_steps.add(repr((began, len(multiprocessing.active_children()), open_files() - self.files, hooks)))
        return criterion(outputs, targets)

    def costs(self):
        trained = self.optimizer.optimize_training_loop(self.model, self.dataloader, self.sgd, self.look, 2)
        attention = hr.MultiheadAttention(16, 4, batch_first=True)
        self.optimizer.model_optimizer.optimize_model(attention)
        return {"in steps": self.in_steps, "calls": dict(self.calls), "updates": trained["epochs"][-1]["optimizer_steps"],
                "layout": self.model[0][0].weight.is_contiguous(), "kernel": attention.attention.kernel,
                "compiled": self.optimizer.model_optimizer.compiled is not None, "probes": self.probes(),
                "left": running_threads().keys() - self.threads.keys()}

    def probes(self):
        self.optimizer.batch_optimizer.initial_batch_size, self.optimizer.batch_optimizer.max_batch_size = 16, 32
        self.optimizer.batch_optimizer.optimize_batch_size(self.model, self.dataloader)
        return len(self.optimizer.get_performance_summary()["batch_optimization"]["probes"])


def costs_of(**settings):
    with pytest.MonkeyPatch.context() as monkeypatch:
        return Run(monkeypatch, settings).costs()


@pytest.fixture(scope="module")
def with_nothing_said():
    costs_of()  # What torch starts once stays.
    return costs_of()


def test_the_fields_that_are_switched_off_are_all_that_there_are():
    assert OFF.keys() == {field.name for field in fields(PerformanceConfig)}


@pytest.mark.parametrize("name", OFF)
def test_a_field_that_is_off_costs_nothing_that_can_be_counted(name, with_nothing_said):
    assert costs_of(**{name: OFF[name]}) == with_nothing_said


ON = {"enable_profiling": "calls", "enable_memory_profiling": "calls", "enable_memory_optimization": "calls",
      "enable_gradient_checkpointing": "calls", "enable_memory_format_optimization": "layout", "enable_flash_attention": "kernel",
      "enable_compile": "compiled", "batch_size_optimization": "probes", "gradient_accumulation": "updates"}


@pytest.mark.parametrize("name", ON)
def test_a_field_that_is_on_is_seen_in_what_is_counted(name, with_nothing_said):
    differs = {cost for cost, value in costs_of(**{name: True}).items() if value != with_nothing_said[cost]}
    assert ON[name] in differs


@pytest.mark.forks
def test_workers_are_seen_in_what_is_counted(with_nothing_said):
    assert costs_of(num_workers=1)["in steps"] != with_nothing_said["in steps"]
