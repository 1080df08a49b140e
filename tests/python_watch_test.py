"""hr.watch around loops that know nothing of it: which spans, how many, in which order, and nothing left behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import headrace as hr
import pytest
import torch
from headrace import _core, _device
from held_memory import counted_elsewhere, storages
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

PACKAGE = str(Path(hr.__file__).parent.parent)
PARTS = ["data_wait", "forward", "backward", "optimizer"]


class Loop:
    def __init__(self, workers=0):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
        self.loader = DataLoader(data, 8, num_workers=workers)

    def loss(self, batch):
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def epoch(self, loader=None, accumulate=1, fail_at=-1):
        for i, batch in enumerate(loader or self.loader):
            if i % accumulate == 0:
                self.optimizer.zero_grad()
            self.loss(batch).backward()
            if i == fail_at:
                raise RuntimeError("stop here")
            if (i + 1) % accumulate == 0:
                self.optimizer.step()

    def evaluate(self):
        with torch.no_grad():
            for batch in self.loader:
                self.loss(batch)


def hooks_of(loop):
    """Everything that a watch may hang itself on."""
    modules = nn.modules.module
    return (len(loop.model._forward_hooks), len(loop.model._forward_pre_hooks), len(modules._global_forward_hooks),
            len(modules._global_forward_pre_hooks), len(loop.optimizer._optimizer_step_pre_hooks),
            len(loop.optimizer._optimizer_step_post_hooks), len(_global_optimizer_pre_hooks),
            len(_global_optimizer_post_hooks), loop.optimizer.__dict__.get("step"), torch.autograd.backward, DataLoader.__iter__,
            _BaseDataLoaderIter.__next__, hr.Loader.__iter__)


def spans_of(seen, tmp_path):
    """Names and ends of the spans of the main thread, in order of their beginnings."""
    seen.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    return sorted(spans, key=lambda span: (span["ts"], -span["dur"]))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.forks)])
@pytest.mark.parametrize("given", [True, False], ids=["objects given", "objects found"])
def test_each_step_holds_its_parts_in_order_and_evaluation_is_no_step(tmp_path, given, workers):
    loop = Loop(workers)
    before = hooks_of(loop)
    with hr.watch(*((loop.model, loop.optimizer, loop.loader) if given else ())) as seen:
        for _ in range(2):
            loop.epoch()
            loop.evaluate()
    assert hooks_of(loop) == before
    assert seen.steps == 10
    spans = spans_of(seen, tmp_path)
    steps = [span for span in spans if span["name"] == "step"]
    assert len(steps) == 10
    for step in steps:
        end = step["ts"] + step["dur"]
        inside = [s for s in spans if s["name"] in PARTS and step["ts"] <= s["ts"] and s["ts"] + s["dur"] <= end + 0.001]
        assert [span["name"] for span in inside] == PARTS
    assert sum(span["name"] == "evaluation" for span in spans) == 10
    split = seen.split
    assert all(split[part] > 0 for part in PARTS)
    assert split["transfer"] == 0
    assert sum(value for part, value in split.items() if part != "total") == pytest.approx(split["total"])
    assert seen.document["diagnosis"]["samples_per_second"] > 0


def test_steps_of_a_list_of_batches_begin_with_their_forward():
    loop = Loop()
    batches = list(loop.loader)
    with hr.watch(loop.model, loop.optimizer) as seen:
        loop.epoch(batches)
        loop.evaluate()
        loop.epoch(batches)
    assert seen.steps == 10 and seen.split["data_wait"] == 0


def test_each_micro_batch_is_a_step_and_only_some_hold_an_update(tmp_path):
    loop = Loop()
    with hr.watch() as seen:
        loop.epoch(accumulate=2)
    assert seen.steps == 5
    assert sum(span["name"] == "optimizer" for span in spans_of(seen, tmp_path)) == 2


def test_forward_and_backward_of_an_optimizers_closure_lie_beside_its_update(tmp_path):
    loop = Loop()

    def closure_of(batch):
        def closure():
            loop.optimizer.zero_grad()
            loss = loop.loss(batch)
            loss.backward()
            return loss

        return closure

    with hr.watch() as seen:
        for batch in loop.loader:
            loop.optimizer.step(closure_of(batch))
    spans = [span for span in spans_of(seen, tmp_path) if span["name"] in PARTS]
    assert [span["name"] for span in spans] == ["data_wait", "optimizer", "forward", "backward", "optimizer"] * 5
    ends = [round((span["ts"] + span["dur"]) * 1000) for span in spans]
    assert all(round(span["ts"] * 1000) >= end for span, end in zip(spans[1:], ends))
    assert seen.steps == 5 and seen.split["other"] >= 0


@pytest.mark.parametrize("given", [True, False], ids=["optimizer given", "optimizer found"])
@pytest.mark.parametrize("built", ["before", "inside"])
def test_an_optimizer_under_a_scheduler_is_watched_and_left_working(tmp_path, built, given):
    loop = Loop()
    steps = []
    loop.optimizer.register_step_post_hook(lambda *_: steps.append(1))

    def scheduler():
        return torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, gamma=0.5)

    rates = scheduler() if built == "before" else None
    before = loop.optimizer.__dict__.get("step")
    with hr.watch(optimizer=loop.optimizer if given else None) as seen:
        if built == "inside":
            rates = scheduler()
        for _ in range(2):
            loop.epoch()
            rates.step()
    assert len(steps) == 10
    assert sum(span["name"] == "optimizer" for span in spans_of(seen, tmp_path)) == 10
    if built == "before":
        assert loop.optimizer.__dict__.get("step") is before
    loop.epoch()
    assert len(steps) == 15
    assert rates.get_last_lr() == pytest.approx([0.025])


def test_other_loaders_than_the_one_given_are_not_data_wait(tmp_path):
    loop = Loop()
    other = DataLoader(TensorDataset(torch.randn(6, 4)), 2)
    with hr.watch(loader=loop.loader) as seen:
        for _ in other:
            pass
        loop.epoch()
    assert sum(span["name"] == "data_wait" for span in spans_of(seen, tmp_path)) == 5


@pytest.mark.parametrize("given", [True, False], ids=["loader given", "loader found"])
def test_a_loader_of_headrace_is_waited_for_as_a_data_loader_is(tmp_path, given):
    loop = Loop()
    loader = hr.Loader(loop.loader.dataset, batch_size=8, num_workers=1)
    other = hr.Loader(loop.loader.dataset, batch_size=5)
    with hr.watch(loader=loader if given else None) as seen:
        loop.epoch(loader)
        unfinished = iter(loader)
        next(unfinished)
        if given:
            list(other)
    assert seen.steps == 5
    assert sum(span["name"] == "data_wait" for span in spans_of(seen, tmp_path)) == 6  # One is in no step.
    assert "__iter__" not in vars(hr.Loader) and len(list(unfinished)) == 4


def test_an_optimized_loader_is_watched_as_the_one_that_it_goes_over(tmp_path):
    loop = Loop()
    loader, _ = hr.DataPipelineOptimizer(num_workers=0).optimize_loader(loop.loader)
    with hr.watch(loop.model, loop.optimizer, loader) as seen:
        loop.epoch(loader)
        loop.evaluate()  # By the script's own, which is another.
    assert seen.steps == 5
    assert sum(span["name"] == "data_wait" for span in spans_of(seen, tmp_path)) == 5


def test_hooks_are_removed_and_the_steps_kept_when_the_loop_raises():
    loop = Loop()
    before = hooks_of(loop)
    with pytest.raises(RuntimeError, match="stop here"), hr.watch(loop.model) as seen:
        loop.epoch(fail_at=2)
    assert hooks_of(loop) == before
    assert seen.steps == 3
    with hr.watch(loop.model) as again:
        loop.epoch()
    assert again.steps == 5


def test_a_parameter_that_is_not_made_yet_is_no_memory_and_no_error():
    model = nn.Linear(4, 1)
    model.unused = nn.LazyLinear(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with hr.watch(model, optimizer) as seen:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        model(torch.ones(2, 4)).sum().backward()
    assert seen.document["memory"]["classes"]["parameters"]["last"] == storages([model.weight, model.bias])


def test_a_recording_ends_once_whatever_its_last_count_raises():
    class Broken:
        def parameters(self):
            raise RuntimeError("broken")

    watch = _core.LoopWatch()
    watch.add_model(Broken())
    watch.data_begins()
    watch.data_ends([1])
    watch.backward_begins()
    watch.backward_ends()
    with pytest.raises(RuntimeError, match="broken"):
        watch.stop()
    watch.stop()
    watch.data_begins()
    watch.data_ends([1])
    with hr.Trace():  # Nothing else records.
        pass


def test_the_loop_computes_the_same_bits_under_a_watch():
    plain, watched = Loop(), Loop()
    plain.epoch()
    with hr.watch():
        watched.epoch()
    for ours, theirs in zip(watched.model.parameters(), plain.model.parameters()):
        assert torch.equal(ours, theirs)


def test_report_and_summary_tell_the_split_and_memory(tmp_path):
    loop = Loop()
    with hr.watch(title="my loop <1>") as seen:
        loop.epoch()
    seen.write_report(tmp_path / "report.html")
    assert "my loop &lt;1&gt;" in (tmp_path / "report.html").read_text()
    assert "data wait" in seen.summary() and "backward" in seen.summary()
    assert seen.diagnosis in " ".join(seen.summary().split())  # However long the lines are.
    assert seen.memory["peak"] is None or seen.memory["peak"] > 10_000_000
    assert all({"code", "sentence", "advice"} <= finding.keys() for finding in seen.findings)


def test_a_loop_that_goes_on_feeds_a_monitor(tmp_path):
    loop = Loop()
    with hr.watch(loop.model, loop.optimizer, loop.loader) as seen, hr.monitor(watch=seen, json_lines=tmp_path / "m.jsonl", system_s=0) as monitor:
        assert seen.live() == {"steps": 0}
        loop.epoch()
        live = seen.live()
        assert monitor.flush()
        latest = monitor.latest()
    parts = {f"time.{part}_s" for part in [*PARTS, "transfer", "other"]}
    assert live.keys() == parts | {"steps", "samples_per_s"} and live["steps"] == 5
    assert latest.keys() == parts | {"samples_per_s"}
    assert live["samples_per_s"] == pytest.approx(8 / sum(live[part] for part in parts)) and all(live[f"time.{part}_s"] > 0 for part in PARTS)
    assert seen.live() == {"steps": 5}
    assert max(json.loads(line)["step"] for line in (tmp_path / "m.jsonl").read_text().splitlines()) == 5


def test_a_watch_that_has_nothing_to_tell_says_so():
    loop = Loop()
    with hr.watch() as seen:
        with pytest.raises(hr.errors.InvalidArgumentError, match="before the end of the block"):
            print(seen.split)
        loop.evaluate()
    with pytest.raises(hr.errors.InvalidArgumentError, match="no training step was seen"):
        print(seen.steps)
    with pytest.raises(hr.errors.InvalidArgumentError, match="a new watch"), seen:
        pass


def test_a_second_watch_at_the_same_time_is_refused_and_the_first_goes_on():
    loop = Loop()
    with hr.watch() as seen:
        before = hooks_of(loop)
        with pytest.raises(hr.Error, match="[Tt]race"), hr.watch():
            pass
        assert hooks_of(loop) == before
        loop.epoch()
    assert seen.steps == 5


@pytest.mark.parametrize("given", [{"model": 3}, {"optimizer": "adam"}])
def test_objects_of_another_kind_are_refused(given):
    with pytest.raises(hr.errors.InvalidArgumentError, match="watch: (model|optimizer): wanted a torch"):
        hr.watch(**given)


@pytest.mark.parametrize("given", [True, False], ids=["objects given", "objects found"])
def test_memory_is_counted_by_class_and_each_storage_once(given, tmp_path):
    loop = Loop()
    loop.model = nn.Sequential(nn.Linear(4, 64, bias=False), nn.Linear(64, 4), nn.Linear(4, 64, bias=False), nn.BatchNorm1d(64),
                               nn.Linear(64, 2))
    loop.model[2].weight = loop.model[0].weight  # Tied.
    with torch.no_grad():
        both = torch.empty(128)
        loop.model[3].weight.data, loop.model[3].bias.data = both[:64].fill_(1), both[64:].zero_()  # Views of one storage.
    loop.optimizer = torch.optim.AdamW(loop.model.parameters())
    other_batches = counted_elsewhere("batches")
    wide = torch.randn(8, 16)  # Four times what its view has.
    loop.loader = DataLoader([0], collate_fn=lambda _: (wide[:, :4], torch.zeros(8, dtype=torch.long)))
    with hr.watch(*((loop.model, loop.optimizer, loop.loader) if given else ())) as seen:
        loop.epoch()
    classes = {name: known and known["last"] for name, known in seen.document["memory"]["classes"].items()}
    held = list(loop.model.parameters())
    assert classes["parameters"] == storages([*held, *loop.model.buffers()])
    assert classes["gradients"] == storages(parameter.grad for parameter in held) > 0
    assert classes["optimizer"] == storages(
        value for state in loop.optimizer.state.values() for value in state.values()) > 0
    assert classes["batches"] - other_batches == storages([wide]) + 8 * 8
    assert classes["activations"] is None
    assert seen.memory_by_class.keys() == classes.keys() and seen.memory_by_class["activations"] is None
    assert re.search(r"activations +unavailable", seen.summary()) and not re.search(r"optimizer +unavailable", seen.summary())
    seen.write_report(tmp_path / "report.html")
    assert re.search(r"activations</th><td[^>]*>(<[^>]*>)?[Uu]navailable", (tmp_path / "report.html").read_text())


ALONE = """
import headrace as hr, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with hr.watch() as seen:
    for inputs in torch.randn(3, 8, 4):
        model(inputs).sum().backward()
        optimizer.step()
print({name: known and known["last"] for name, known in seen.document["memory"]["classes"].items() if name != "other"})
"""


def test_what_nobody_has_shown_is_unavailable_and_what_is_not_there_is_0():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PACKAGE})
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == {"parameters": 40, "gradients": 40, "optimizer": 0, "activations": None, "batches": None,
                                 "cache": None}


@pytest.mark.parametrize("where", ["model", "buffer", "optimizer", "batch"])
def test_a_device_that_is_not_waited_for_is_told_above_every_figure_and_judged_by_nobody(where, tmp_path, monkeypatch):
    """What lies on a device is told by one function: no device is needed to see what follows from it."""
    loop = Loop()
    loop.model.register_buffer("scale", torch.ones(1))
    features = loop.loader.dataset.tensors[0].shape[1:]
    away = {"model": lambda tensor: tensor is loop.model[0].weight, "buffer": lambda tensor: tensor is loop.model.scale,
            "optimizer": lambda tensor: tensor is loop.optimizer.param_groups[0]["params"][1],
            "batch": lambda tensor: tensor.shape == (8, *features)}[where]
    monkeypatch.setattr(_device, "device_of", lambda tensor: torch.device("cuda", 0) if away(tensor) else tensor.device)
    with hr.watch() as seen:
        loop.epoch()
    line = "host time: the device is not waited for"
    assert seen.host_time == seen.document["host_time"] == line
    assert seen.document["diagnosis"] is None and seen.diagnosis is None and seen.findings == []
    text = seen.summary()
    seen.write_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    page = page[page.index("<body>"):]
    assert line in text and not re.search(r"\d", text[:text.index(line)])
    assert line in page and not re.search(r"\d", re.sub("<[^>]*>", "", page[:page.index(line)]))
    assert "bound" not in text and "bound" not in page and "No verdict" in text
    assert seen.steps == 5 and seen.split["total"] > 0


def test_a_watch_on_the_cpu_says_nothing_of_devices():
    loop = Loop()
    with hr.watch() as seen:
        loop.epoch()
    assert seen.host_time is None and "host time" not in seen.summary() and seen.diagnosis
