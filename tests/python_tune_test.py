"""hr.tune on objects as users have them: what it leaves behind, what it refuses, what it tells."""

import collections
import copy
import json
import os
import pickle
import random
import signal
import struct
import textwrap
import traceback
import types

import headrace as hr
import numpy
import pytest
import torch
from headrace import _engine_door
from headrace._batch_parts import parts_of
from headrace._forward import ForwardSwitch
from headrace._state import same_values
from headrace._subject import Subject
from held_memory import counted_elsewhere, storages
from own_python import run_python
from state_differences import differences, same
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


pytestmark = pytest.mark.usefixtures("one_thread")


class Loop:
    """A small training loop in mid-run, with everything that hr.tune must leave alone."""

    def __init__(self, **loader_options):
        torch.manual_seed(3)
        self.model = nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 36, 3))
        data = TensorDataset(torch.randn(96, 2, 8, 8), torch.randint(0, 3, (96,)))
        self.loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(5), **loader_options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        for batch in [next(iter(self.loader)) for _ in range(2)]:
            self.optimizer.zero_grad()
            self.loss(batch).backward()
            self.optimizer.step()

    def loss(self, batch):
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def tune(self, **options):
        given = {"model": self.model, "loader": self.loader, "optimizer": self.optimizer, "forward": lambda model, batch: self.loss(batch),
                 "budget_s": 1.0, **options}
        return hr.tune(given.pop("model"), given.pop("loader"), given.pop("optimizer"), given.pop("forward"), **given)


def everything(loop):
    """All that must be as before, as values that compare."""
    def raw(tensor):
        return (id(tensor), tensor.data_ptr(), tensor.stride(), tensor.detach().clone())

    state = {f"model {name}": raw(value) for name, value in loop.model.state_dict(keep_vars=True).items()}
    for name, parameter in loop.model.named_parameters():
        state[f"gradient {name}"] = None if parameter.grad is None else raw(parameter.grad)
        for key, value in loop.optimizer.state[parameter].items():
            state[f"optimizer {name} {key}"] = raw(value)
    state["groups"] = [{k: v for k, v in group.items() if k != "params"} for group in loop.optimizer.param_groups]
    state["modes"] = [module.training for module in loop.model.modules()]
    state["forward"] = loop.model.__dict__.get("forward")
    state["torch"] = torch.get_rng_state()
    state["python"] = random.getstate()
    state["numpy"] = numpy.random.get_state()[1].tolist()
    state["intra_op_threads"] = torch.get_num_threads()
    if isinstance(loop.loader, DataLoader):
        state["order"] = loop.loader.generator.get_state()
        state["num_workers"] = (loop.loader.num_workers, loop.loader.prefetch_factor, loop.loader.persistent_workers)
    return state


class Slow(Dataset):
    """Samples that keep nobody's core busy while they come."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        torch.utils.data.get_worker_info()
        signal.sigtimedwait([], 0.002)
        return torch.full((2, 8, 8), float(index)), index % 3


class Drawn(Slow):
    def __getitem__(self, index):
        return torch.rand(2, 8, 8), index % 3


def write_digits(folder):
    """48 images of 8 x 8 and 3 classes as MNIST's files, for both splits."""
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, 48, 8, 8) + bytes(range(256)) * 12)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, 48) + bytes([0, 1, 2] * 16))


COMPUTING = ["channels-last", "bf16 autocast", "fused optimizer",
             *([] if "compute.allocator" in _engine_door.refusals() else ["arena for tensors"])]


@pytest.mark.parametrize("only", [pytest.param([], marks=pytest.mark.forks, id="everything"), pytest.param(COMPUTING, id="computing")])
def test_objects_are_bit_equal_to_before_when_nothing_pays(only):
    loop = Loop()
    before = everything(loop)
    told = []
    tuned = loop.tune(gain_min=10.0, budget_s=2.0, only=only, on_progress=lambda kind, text: told.append(kind))
    assert tuned.kept == [] and tuned.speedup == 1.0 and tuned.settings == {}
    assert tuned.ledger["time_split"]["best"] is None and "before the first trial; it was not" in " ".join(tuned.summary().split())
    undecided = [trial for trial in tuned.trials if trial.verdict == "inconclusive"]
    assert ("undecided" in tuned.summary(), "No change paid" in tuned.summary()) == (bool(undecided), not undecided)
    assert {trial.name for trial in tuned.trials} >= set(COMPUTING)
    assert all(trial.sentence for trial in tuned.trials)
    assert differences(before, everything(loop)) == []
    assert {"step", "diagnosis", "decided"} <= set(told)


@pytest.mark.alone
def test_what_pays_is_kept_and_applied_to_the_objects_and_can_be_undone():
    loop = Loop()

    def slow_unless_fused(model, batch):
        if not loop.optimizer.param_groups[0]["fused"]:
            signal.sigtimedwait([], 0.01)
        return loop.loss(batch)

    before = everything(loop)
    tuned = loop.tune(forward=slow_unless_fused, only=["fused optimizer"], budget_s=5.0)
    assert tuned.kept == ["fused optimizer"] and tuned.applied and tuned.speedup > 1
    assert tuned.settings == {"optimizer.fused": "true"}
    assert differences(before, everything(loop)) == ["groups"] and loop.optimizer.param_groups[0]["fused"]
    assert "fused optimizer" in repr(tuned) and "fused optimizer" in tuned.summary()
    assert tuned.trials[0].gain[1] > 0.02 and tuned.ledger["time_split"]["best"]["steps"] >= 5
    for arm in ("baseline", "best"):  # The splits are of the very blocks that the speedup is from.
        split, block_s = tuned.ledger["time_split"][arm], tuned.ledger["speedup"][f"{arm}_s"]
        assert len(block_s) == tuned.ledger["speedup"]["pairs"]
        assert split["total_s"] / split["steps"] == pytest.approx(sum(block_s) / len(block_s))
        assert split["forward_s"] > 0 and split["other_s"] >= 0
    assert f"of the {tuned.ledger['speedup']['pairs']} pairs that the speedup is" in " ".join(tuned.summary().split())
    assert tuned.step(next(iter(tuned.loader))).requires_grad is False
    before = everything(loop)
    tuned.undo()
    assert differences(before, everything(loop)) == ["groups"] and not loop.optimizer.param_groups[0]["fused"]


def test_a_plan_that_is_not_applied_waits_for_apply():
    loop = Loop()
    before = everything(loop)
    tuned = loop.tune(only=["fused optimizer"], gain_min=10.0, apply=False)
    assert not tuned.applied and differences(before, everything(loop)) == []
    assert tuned.apply().applied


@pytest.mark.forks
def test_other_workers_bring_the_same_batches_in_the_same_order_over_epochs():
    def order(loader):
        torch.manual_seed(7)
        return [batch[0][:, 0, 0, 0].tolist() for _ in range(2) for batch in loader]

    loop = Loop()
    loop.loader = DataLoader(Slow(), 32, shuffle=True)
    as_written = order(loop.loader)
    subject = subject_of(loop)
    assert subject.switch({"data.num_workers": "2"}) is loop.loader and loop.loader.num_workers == 2
    assert order(loop.loader) == as_written
    subject.switch({})
    assert (loop.loader.num_workers, loop.loader.prefetch_factor) == (0, None)
    assert order(loop.loader) == as_written


def test_ledger_and_report_lie_in_the_folder_asked_for(tmp_path):
    tuned = Loop().tune(only=["fused optimizer"], out=tmp_path / "run", title="a loop of mine")
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger == tuned.ledger
    assert (ledger["format"], ledger["title"]) == ("headrace-ledger", "a loop of mine")
    assert [trial["name"] for trial in ledger["trials"]] == ["fused optimizer"]
    assert ledger["baseline"]["settings"]["optimizer.fused"] == 'false'
    assert ledger["time_split"]["baseline"]["steps"] >= 5
    assert tuned.report_path == tmp_path / "run" / "report.html"
    assert "a loop of mine" in tuned.report_path.read_text()
    assert (tmp_path / "run" / "trace-baseline.json").exists()


def test_candidates_that_are_fixed_or_not_asked_for_are_not_tried():
    loop = Loop()
    tuned = loop.tune(only=["fused optimizer", "channels-last"], fixed=["model"], gain_min=10.0)
    reasons = {trial.name: trial.reason for trial in tuned.trials}
    assert reasons.keys() == {"fused optimizer", "channels-last"} and reasons["channels-last"] == "fixed"
    with pytest.raises(hr.errors.InvalidArgumentError, match='"faster".*channels-last'):
        loop.tune(only=["faster"])
    with pytest.raises(ValueError, match="tune.budget_s"):
        loop.tune(budget_s=0.0)


def test_what_needs_a_looser_class_than_is_allowed_is_not_tried():
    loop = Loop()
    tuned = loop.tune(only=["fused optimizer", "bf16 autocast"], allow="rounding", gain_min=10.0)
    trials = {trial.name: trial for trial in tuned.trials}
    assert (trials["bf16 autocast"].verdict, trials["bf16 autocast"].reason) == ("refused", "not_allowed")
    assert trials["bf16 autocast"].sentence == 'Not tried: it needs tune.allow = "reduced_precision".'
    assert trials["fused optimizer"].reason != "not_allowed"
    with pytest.raises(ValueError, match="tune.allow"):
        loop.tune(allow="anything")


def test_what_cannot_be_tried_is_listed_with_its_reason():
    loop = Loop()
    loop.model = nn.Sequential(nn.Flatten(), nn.Linear(128, 3))
    loop.optimizer = torch.optim.RMSprop(loop.model.parameters())
    tuned = loop.tune(loader=[(torch.randn(4, 2, 8, 8), torch.tensor([0, 1, 2, 0]))], only=["denormals as 0"])
    reasons = {entry.name: entry.reason for entry in tuned.not_applicable}
    assert reasons["channels-last"] == "the model has no parameter of four dimensions"
    assert reasons["fused optimizer"] == "RMSprop has no fused implementation"
    assert "not a DataLoader" in reasons["num_workers"]


def batches():
    for _ in range(3):
        yield torch.randn(8, 2, 8, 8), torch.randint(0, 3, (8,))


@pytest.mark.parametrize("loader", [list(batches()), batches], ids=["list", "generator function"])
def test_loops_over_lists_and_generator_functions_are_tuned_too(loader):
    loop = Loop()
    loop.loader = loader
    before = everything(loop)
    loop.tune(only=["fused optimizer"], gain_min=10.0)
    assert differences(before, everything(loop)) == []


# What cannot be tuned.

def with_meta_parameter(loop):
    loop.model.append(nn.Linear(3, 3, device="meta"))


def used_up():
    generator = batches()
    list(generator)
    return generator


OBJECTS = {
    "loss of many numbers": (lambda loop: {"forward": lambda model, batch: model(batch[0])}, r"one number.*\(8, 3\)"),
    "loss without gradient": (lambda loop: {"forward": lambda model, batch: loop.loss(batch).detach()}, "no gradient"),
    "loss that is no tensor": (lambda loop: {"forward": lambda model, batch: 0.5}, "wanted a torch.Tensor, found float"),
    "no parameters": (lambda loop: {"model": nn.ReLU()}, "the model has no parameters"),
    "foreign optimizer": (lambda loop: {"optimizer": torch.optim.SGD(nn.Linear(2, 5).parameters(), lr=1)},
                          r"2 of the optimizer's 2 parameters are not the model's, the first of shape \(5, 2\)"),
    "two devices": (lambda loop: with_meta_parameter(loop) or {}, "one device, found them on cpu and meta"),
    "empty list": (lambda loop: {"loader": []}, "the loader gives no batch"),
    "empty generator": (lambda loop: {"loader": lambda: iter(())}, "the loader gives no batch"),
    "used-up generator": (lambda loop: {"loader": used_up()}, "gives its batches only once"),
    "no loader": (lambda loop: {"loader": 3}, "wanted a DataLoader.*found int"),
    "no model": (lambda loop: {"model": loop.loss}, "wanted a torch.nn.Module, found method"),
    "epochs without length": (lambda loop: {"loader": batches, "epochs": 2}, "no length"),
    "a seed below 0": (lambda loop: {"seed": -1}, "tune: seed: wanted a whole number from 0 .* found -1"),
    "a number for a name": (lambda loop: {"only": [3]}, r"tune: only: wanted texts, found \[3\]"),
    "no title": (lambda loop: {"title": None}, "tune: title: wanted a text, found None"),
}


@pytest.mark.parametrize("objects, message", OBJECTS.values(), ids=OBJECTS.keys())
def test_objects_that_do_not_fit_are_one_clear_error_and_stay_as_they_were(objects, message):
    loop = Loop()
    given = objects(loop)
    before = everything(loop)
    with pytest.raises(hr.errors.InvalidArgumentError, match=message):
        loop.tune(**given)
    assert differences(before, everything(loop)) == []


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.phase = nn.Linear(2, 3), nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, values):
        return (self.plain(values.float()) * self.phase).abs()


@pytest.mark.parametrize("model, kind", [
    (nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3)), "0.weight is sparse"),
    (Complex(), "phase is complex")], ids=["sparse", "complex"])
def test_a_gradient_that_is_no_dense_real_numbers_is_refused_by_name(model, kind):
    loop = Loop()
    loop.model, loop.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
    loop.loader = [(torch.arange(16).reshape(8, 2) % 9, torch.arange(8) % 3)] * 2
    before = everything(loop)
    with pytest.raises(hr.errors.UnsupportedError, match=f"tune: the gradient of {kind}; wanted dense real numbers"):
        loop.tune()
    assert differences(before, everything(loop)) == []
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_that_is_not_a_number_is_an_arithmetic_error():
    loop = Loop()
    with torch.no_grad():
        loop.model[5].bias[0] = float("nan")
    before = everything(loop)
    with pytest.raises(ArithmeticError, match="the loss of the first batch is nan"):
        loop.tune()
    changed = differences(before, everything(loop))
    assert changed == ["model 5.bias"]  # NaN differs from itself.


# What the user's code raises.

class Trouble(RuntimeError):
    pass


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        raise Trouble("in backward")


class Broken(Slow):
    def __getitem__(self, index):
        raise Trouble("in the data set")


class After:
    """Goes wrong at the n-th call, so that trials have begun."""

    def __init__(self, calls, trouble):
        self.left, self.trouble = calls, trouble

    def __call__(self, *ignored):
        self.left -= 1
        if self.left == 0:
            self.trouble()


def raise_trouble():
    raise Trouble("deep inside")


def troubled(loop, where):
    late = After(15, raise_trouble)
    if where == "forward":
        return {"forward": lambda model, batch: (late(), loop.loss(batch))[1]}
    if where == "backward":
        return {"forward": lambda model, batch: FailsInBackward.apply(loop.loss(batch))}
    if where == "callback":
        return {"on_progress": After(3, raise_trouble)}
    return {"loader": DataLoader(Broken(), 8, num_workers=1 if where == "worker" else 0)}


@pytest.mark.parametrize("where", ["forward", "backward", "callback", "data set", pytest.param("worker", marks=pytest.mark.forks)])
def test_exceptions_of_the_users_code_keep_class_and_trace_and_undo_everything(where):
    loop = Loop()
    options = troubled(loop, where)
    before = everything(loop)
    with pytest.raises(Trouble) as caught:
        loop.tune(only=["channels-last"], budget_s=30.0, **options)
    assert differences(before, everything(loop)) == []
    if where in ("forward", "callback"):
        assert "raise_trouble" in "".join(traceback.format_tb(caught.tb))


def test_a_function_that_cannot_be_pickled_is_python_s_own_error_where_workers_are_spawned():
    loop = Loop()
    loop.loader = DataLoader(Slow(), 8, num_workers=1, multiprocessing_context="spawn", collate_fn=lambda items: items,
                             generator=torch.Generator())
    before = everything(loop)
    with pytest.raises((AttributeError, pickle.PicklingError), match="[Pp]ickl|local object"):
        loop.tune()
    assert differences(before, everything(loop)) == []


@pytest.mark.parametrize("calls", [2, 15])
def test_ctrl_c_stops_and_undoes_everything(ctrl_c, calls):
    loop = Loop()
    stop = After(calls, lambda: signal.raise_signal(signal.SIGINT))
    before = everything(loop)
    with pytest.raises(KeyboardInterrupt):
        loop.tune(only=["bf16 autocast"], budget_s=30.0, forward=lambda model, batch: (stop(), loop.loss(batch))[1])
    assert differences(before, everything(loop)) == []
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("calls", [2, 15])
def test_what_is_no_exception_ends_the_tuning_as_it_was_raised(calls):
    loop = Loop()
    enough = SystemExit("enough")

    def leave():
        raise enough

    stop = After(calls, leave)
    before = everything(loop)
    with pytest.raises(SystemExit) as caught:
        loop.tune(only=["bf16 autocast"], budget_s=30.0, forward=lambda model, batch: (stop(), loop.loss(batch))[1])
    assert caught.value is enough and caught.traceback[-1].name == "leave"
    assert differences(before, everything(loop)) == []


class Wordless(Exception):
    def __str__(self):
        raise Trouble("no words")


FAULTS = {
    "an error": (Trouble("deep inside"), ("failed", "error"), "Trouble: deep inside"),
    "an error of two lines": (Trouble("deep inside\nand more"), ("failed", "error"), "Trouble: deep inside"),
    "an error without a message": (Trouble(), ("failed", "error"), "Trouble"),
    "an error without words": (Wordless(), ("failed", "error"), "Wordless"),
    "torch's lack of memory": (torch.OutOfMemoryError("no room"), ("refused", "memory"), "no room"),
    "its allocator's": (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ("refused", "memory"), "can't allocate"),
    "Python's": (MemoryError(), ("refused", "memory"), "MemoryError"),
}


@pytest.mark.parametrize("error, outcome, words", FAULTS.values(), ids=FAULTS)
def test_a_candidate_that_fails_is_told_and_undone(error, outcome, words):
    loop = Loop()

    def forward(model, batch):
        if loop.optimizer.param_groups[0]["fused"]:
            raise error
        return loop.loss(batch)

    before = everything(loop)
    tuned = loop.tune(forward=forward, only=["fused optimizer"], budget_s=10.0)
    (trial,) = tuned.trials
    assert (trial.verdict, trial.reason) == outcome and words in trial.sentence
    assert not any(more in trial.sentence for more in ("\n", "and more", "Traceback"))
    assert differences(before, everything(loop)) == []


# Settings, applied to the objects.

def subject_of(loop, **options):
    return Subject(loop.model, loop.loader, loop.optimizer, lambda model, batch: loop.loss(batch), run_steps=None, budget_s=60, **options)


ALL_ON = {"model.memory_format": '"channels_last"', "optimizer.fused": "true", "compute.intra_op_threads": "2"}


def test_switched_settings_go_on_from_the_present_values_and_switch_back():
    loop, plain = Loop(), Loop()
    threads = torch.get_num_threads()
    subject = subject_of(loop)
    fixed = [(torch.randn(8, 2, 8, 8), torch.randint(0, 3, (8,))) for _ in range(4)]
    for i, batch in enumerate(fixed * 2):
        if i == 2:
            subject.switch(ALL_ON)
            assert loop.model[0].weight.is_contiguous(memory_format=torch.channels_last)
            assert torch.get_num_threads() == 2
        if i == 6:
            subject.switch({})
            assert loop.model[0].weight.is_contiguous() and torch.get_num_threads() == threads
        for each in (loop, plain):
            torch.manual_seed(i)
            each.optimizer.zero_grad()
            each.loss(batch).backward()
            each.optimizer.step()
    for ours, theirs in zip(loop.model.state_dict().values(), plain.model.state_dict().values()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


# The whole step.

STEP = ["native step", "micro-batches 2"]
ENGINES = pytest.mark.parametrize("engine", ["python", pytest.param("native", marks=pytest.mark.engine)])


def plain_step(loop, batch):
    loop.optimizer.zero_grad()
    loss = loop.loss(batch)
    loss.backward()
    loop.optimizer.step()
    return loss.detach()


def without_batch_statistics(dropout=0.0, **options):
    """A loop whose samples know nothing of each other."""
    loop = Loop()
    torch.manual_seed(4)
    loop.model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(4 * 36, 3))
    loop.optimizer = torch.optim.AdamW(loop.model.parameters(), lr=1e-3, **options)
    return loop


def slow_step(optimizer):
    """The optimizer's own step takes 10 ms more, which an engine that does not call it saves."""
    plain = optimizer.step

    def step(closure=None):
        signal.sigtimedwait([], 0.01)
        return plain(closure)

    optimizer.step = step


@pytest.mark.alone
@pytest.mark.engine
def test_a_native_step_is_kept_where_it_pays_with_the_bits_of_the_fused_optimizer():
    loop, plain = Loop(), Loop()
    for each in (loop, plain):
        each.optimizer = torch.optim.AdamW(each.model.parameters(), lr=1e-3, fused=True)
    slow_step(loop.optimizer)
    before = everything(loop)
    tuned = loop.tune(only=["native step"], whole_step=True, budget_s=5.0)
    assert tuned.kept == ["native step"] and tuned.settings == {"train.engine": '"native"'}
    numerics = tuned.ledger["trials"][0]["numerics"]
    assert numerics["class"] == "bit_equal" and numerics["passed"]
    assert differences(before, everything(loop)) == []
    for i, batch in enumerate(list(plain.loader)[:6]):
        torch.manual_seed(i)
        loss = plain_step(plain, batch)
        torch.manual_seed(i)
        if i == 4:
            tuned.undo()
        assert torch.equal(tuned.step(batch), loss)
    assert same(loop.model.state_dict(), plain.model.state_dict())
    assert same(loop.optimizer.state_dict(), plain.optimizer.state_dict())


@pytest.mark.alone
def test_micro_batches_are_kept_where_they_pay_with_the_gradient_of_the_whole_batch():
    loop, plain = without_batch_statistics(), without_batch_statistics()

    def slow_when_whole(model, batch):
        if len(batch[0]) > 4:
            signal.sigtimedwait([], 0.02)
        return loop.loss(batch)

    before = everything(loop)
    tuned = loop.tune(forward=slow_when_whole, only=["micro-batches 2", "micro-batches 4"], whole_step=True, budget_s=10.0)
    assert "micro-batches 2" in tuned.kept
    assert all(trial["numerics"]["class"] == "rounding" and trial["numerics"]["passed"] for trial in tuned.ledger["trials"])
    assert differences(before, everything(loop)) == []
    for batch in list(loop.loader)[:3]:
        torch.testing.assert_close(tuned.step(batch), plain_step(plain, batch))
    for ours, theirs in zip(loop.model.parameters(), plain.model.parameters()):
        torch.testing.assert_close(ours, theirs)


@ENGINES
def test_parts_of_unequal_size_count_by_their_samples(engine):
    loop, plain = without_batch_statistics(fused=True), without_batch_statistics(fused=True)
    step = subject_of(loop, whole_step=True).step
    step.set(micro_batches=4, native=engine == "native")
    for samples in (7, 8, 3, 1):
        batch = torch.randn(samples, 2, 8, 8), torch.arange(samples) % 3
        torch.testing.assert_close(step(batch), plain_step(plain, batch), rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(loop.model.parameters(), plain.model.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@ENGINES
def test_after_a_part_that_raises_the_next_step_is_a_whole_one(engine):
    loop, plain = without_batch_statistics(fused=True), without_batch_statistics(fused=True)
    subject = Subject(loop.model, loop.loader, loop.optimizer, lambda model, batch: (late(), loop.loss(batch))[1], run_steps=None,
                      budget_s=60, whole_step=True)
    subject.switch({"train.engine": json.dumps(engine), "train.micro_batches": "4"})
    batch = torch.randn(8, 2, 8, 8), torch.arange(8) % 3
    late = After(3, raise_trouble)
    with pytest.raises(Trouble):
        subject.step(batch)
    torch.testing.assert_close(subject.step(batch), plain_step(plain, batch))
    for ours, theirs in zip(loop.model.parameters(), plain.model.parameters()):
        torch.testing.assert_close(ours, theirs)


def test_micro_batches_are_refused_where_the_loss_is_no_mean():
    loop = without_batch_statistics()
    tuned = loop.tune(forward=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"),
                      only=["micro-batches 2"], whole_step=True, budget_s=30.0)  # Less is used: what is computed is judged first.
    (trial,) = tuned.trials
    assert (trial.verdict, trial.reason) == ("refused", "numerics"), trial.sentence


def test_what_drops_out_makes_micro_batches_a_change_of_draws():
    for dropout, numerics in ((0.0, "rounding"), (0.2, "reduced_precision")):
        found = subject_of(without_batch_statistics(dropout), whole_step=True, only=STEP).offer("memory").candidates
        assert [c.numerics for c in found if c.name.startswith("micro-batches")] == [numerics] * 2
        assert found[0].name == "micro-batches 2"  # First, where memory is what runs out.


def test_dropout_between_convolutions_does_not_hinder_channels_last():
    loop = Loop()
    loop.model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 3))
    loop.optimizer = torch.optim.AdamW(loop.model.parameters())
    subject, batch = subject_of(loop), (torch.randn(8, 2, 8, 8), torch.arange(8) % 3)

    def gradients(settings):
        subject.restore()
        subject.configure(settings)
        subject.gradients(batch)
        return [parameter.grad.clone() for parameter in loop.model.parameters()]

    for theirs, ours in zip(gradients({}), gradients({"model.memory_format": '"channels_last"'})):
        torch.testing.assert_close(ours, theirs)
    subject.restore()
    subject.configure({})
    numerics = numerics_of(loop.tune(only=["channels-last"], budget_s=30.0, gain_min=10.0))["channels-last"]
    assert numerics["checked"] and numerics["passed"], numerics


@pytest.mark.engine
def test_a_step_that_cannot_be_another_is_listed_with_its_reason():
    def reasons(loop, whole_step=True):
        subject = subject_of(loop, whole_step=whole_step, only=STEP)
        tried = {candidate.name for candidate in subject.offer("compute").candidates}
        found = {entry.name: entry.reason for entry in subject.not_applicable}
        assert ("native step" in found) != ("native step" in tried)
        return found

    own = reasons(Loop(), whole_step=False)
    assert "whole_step=True" in own["native step"] and "whole_step=True" in own["micro-batches"]
    assert "1, a BatchNorm2d, normalises by the statistics of the whole batch" == reasons(Loop())["micro-batches"]
    loop = Loop()
    loop.optimizer = torch.optim.LBFGS(loop.model.parameters())
    assert "step() of LBFGS wants closure, as it evaluates the model itself" in reasons(loop)["native step"]
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert "native step" not in reasons(without_batch_statistics())
        assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("option, reason", [({"last_batch": "pad"}, "last_batch is pad"), ({"on_corrupt": "zero"}, "on_corrupt is zero"),
                                            ({"last_batch": "keep"}, None)])
def test_micro_batches_are_not_tried_where_valid_may_leave_samples_out(tmp_path, option, reason):
    write_digits(tmp_path)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    subject = Subject(model, hr.Loader(f"idx:{tmp_path}", batch_size=20, seed=1, **option), torch.optim.AdamW(model.parameters()),
                      lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), run_steps=None, budget_s=60,
                      whole_step=True)
    tried = [candidate.name for candidate in subject.offer("memory").candidates if candidate.name.startswith("micro-batches")]
    found = {entry.name: entry.reason for entry in subject.not_applicable}.get("micro-batches")
    assert (tried == [] and found.startswith(reason)) if reason else (len(tried) == 2 and found is None)


def test_a_traced_step_of_ones_own_shows_its_parts():
    loop = without_batch_statistics()
    step = subject_of(loop, whole_step=True).step
    with hr.Trace() as trace:
        step(next(iter(loop.loader)))
    counts = {entry["name"]: entry["count"] for entry in trace.summary()["operations"]}
    assert counts == {"forward": 1, "backward": 1, "optimizer": 2}


def test_batches_of_any_form_are_cut_along_their_samples():
    rows, scale = torch.arange(10).reshape(5, 2), torch.tensor(2.0)
    parts = parts_of({"rows": rows, "pair": (rows[:, 0], [scale, "name"])}, 2)
    assert [share for _, share in parts] == [0.4, 0.6]
    assert [part["rows"].tolist() for part, _ in parts] == [rows[:2].tolist(), rows[2:].tolist()]
    assert [part["pair"][0].tolist() for part, _ in parts] == [[0, 2], [4, 6, 8]]
    assert all(part["pair"][1] == [scale, "name"] for part, _ in parts)
    ours = hr.Batch({"image": rows, "labels": rows[:, 0], "valid": rows[:, 1]}, 3, 4)
    (first, _), *_ = parts_of(ours, 5)
    assert isinstance(first, hr.Batch) and first["valid"].tolist() == [1] and len(first[0]) == 1
    assert len(parts_of(rows, 8)) == 5
    for batch, found in (((rows, rows[:3]), "3 and 5"), ({"scale": scale}, "no tensor")):
        with pytest.raises(hr.errors.InvalidArgumentError, match=f"first dimension in common, found {found}"):
            parts_of(batch, 2)


def test_texts_ragged_fields_and_what_is_lacking_are_cut_with_the_samples():
    ragged = hr.RaggedTensor(torch.arange(6.0), torch.tensor([0, 1, 1, 4, 6, 6]))
    sided = hr.RaggedTensor(torch.arange(6), torch.tensor([0, 2, 2, 4, 6, 6]), torch.tensor([[1, 2], [0, 0], [2, 1], [1, 2], [0, 0]]))
    fields = {"x": torch.arange(5), "points": ragged, "masks": sided, "words": list("abcde"), "valid": torch.ones(5)}
    whole = hr.Batch(fields, 3, 4, {"points": torch.tensor([1, 0, 1, 1, 0])})
    parts = [part for part, _ in parts_of(whole, 2)]
    assert [share for _, share in parts_of(whole, 2)] == [0.4, 0.6] and [part["words"] for part in parts] == [["a", "b"], ["c", "d", "e"]]
    for name in ("points", "masks"):
        found = [sample for part in parts for sample in part[name]]
        assert all(torch.equal(one, other) for one, other in zip(found, whole[name], strict=True)), name
        assert all(len(part[name]) == len(part["x"]) and int(part[name].offsets[0]) == 0 for part in parts)
    assert [part.present("points").tolist() for part in parts] == [[1, 0], [1, 1, 0]]
    assert [(part.epoch, part.index) for part in parts] == [(3, 4)] * 2
    in_a_tuple = parts_of((ragged, torch.arange(5)), 2)
    assert [len(points) for (points, _), _ in in_a_tuple] == [2, 3]


def test_batches_that_lack_other_fields_are_not_the_same():
    def batch(present):
        return hr.Batch({"x": torch.zeros(2), "valid": torch.ones(2)}, 0, 0, {"x": torch.tensor(present)})

    assert same_values(batch([1, 0]), batch([1, 0])) and not same_values(batch([1, 0]), batch([0, 1]))


def test_a_setting_that_cannot_be_applied_leaves_the_others_as_they_were():
    loop = Loop()
    before = everything(loop)
    subject = subject_of(loop)
    with pytest.raises(ValueError):
        subject.configure({**ALL_ON, "compute.intra_op_threads": "many"})
    assert differences(before, everything(loop)) == []


@pytest.mark.forks
def test_a_data_set_that_draws_at_random_makes_workers_a_change_of_its_draws():
    loop = Loop()
    numerics = {}
    for data in (Slow(), Drawn()):
        loop.loader = DataLoader(data, 8, generator=torch.Generator().manual_seed(1))
        found = subject_of(loop).offer("data").candidates
        numerics[type(data)] = {(c.numerics, "Other draws:" in c.sentence) for c in found if c.name.startswith("num_workers")}
        assert found[0].resource == "data"
    assert numerics == {Slow: {("bit_equal", False)}, Drawn: {("rounding", True)}}


def test_a_tuned_forward_is_bfloat16_inside_and_float32_outside_and_copies_with_its_module():
    seen = []

    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 2)

        def forward(self, value, fail=False):
            if fail:
                raise Trouble("inside")
            result = self.linear(value)
            seen.append(result.dtype)
            return {"logits": result, "pair": (result, value)}

    model = Probe()
    switch = ForwardSwitch(model)
    switch.set(channels_last=False, bf16=True, compile=False)
    result = model(torch.ones(1, 4))
    assert seen == [torch.bfloat16] and result["logits"].dtype == result["pair"][0].dtype == torch.float32
    with pytest.raises(Trouble):
        model(torch.ones(1, 4), fail=True)
    assert not torch.is_autocast_enabled("cpu")
    zeroed = copy.deepcopy(model)
    with torch.no_grad():
        zeroed.linear.weight.zero_()
        zeroed.linear.bias.fill_(3)
    assert zeroed(torch.ones(1, 4))["logits"].tolist() == [[3, 3]] != model(torch.ones(1, 4))["logits"].tolist()
    switch.remove()
    assert "forward" not in model.__dict__ and model(torch.ones(1, 4))["logits"].dtype == torch.float32
    assert seen[-1] == torch.float32


def test_a_module_with_a_tuned_forward_can_be_pickled():
    model = nn.Sequential(nn.Conv2d(1, 2, 3))
    ForwardSwitch(model).set(channels_last=True, bf16=True, compile=False)
    image = torch.randn(1, 1, 5, 5)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(image), model(image))


def test_a_native_loader_s_threads_are_tried_and_its_place_is_put_back(tmp_path):
    write_digits(tmp_path)
    loop = Loop()
    loop.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)
    loop.loader = hr.Loader(f"idx:{tmp_path}", batch_size=8)
    next(iter(loop.loader))
    assert not subject_of(loop).counts_batches and subject_of(Loop()).counts_batches  # A Loader has an account of its own.
    place = loop.loader.state_dict()
    before = everything(loop)
    tuned = loop.tune(only=["num_workers 2", "num_workers 0"], gain_min=10.0)
    assert [trial["numerics"]["class"] for trial in tuned.ledger["trials"]] == ["bit_equal"] * 2
    assert all(trial.reason != "numerics" for trial in tuned.trials)
    assert loop.loader.state_dict() == place and differences(before, everything(loop)) == []


def fashion(tmp_path, *steps):
    from torchvision import datasets, transforms
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    pixels = numpy.random.default_rng(1).integers(0, 256, 40 * 784, dtype=numpy.uint8).tobytes()
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, 40, 28, 28) + pixels)
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, 40) + bytes(range(10)) * 4)
    return datasets.FashionMNIST(tmp_path, transform=transforms.Compose([transforms.ToTensor(), *steps]))


@pytest.mark.forks
def test_whole_batches_of_fashion_mnist_have_the_bits_of_single_samples_in_the_same_order(tmp_path):
    from torchvision import transforms

    def all_batches(loader):
        torch.manual_seed(3)
        return [batch for _ in range(2) for batch in loader]

    for steps in ([], [transforms.Normalize((0.2860,), (0.3530,))]):
        loop = Loop()
        data = fashion(tmp_path, *steps)
        loop.loader = DataLoader(data, 16, shuffle=True)
        as_written = all_batches(loop.loader)
        subject = subject_of(loop)
        assert "whole batches" in [candidate.name for candidate in subject.offer("data").candidates]
        for workers in ("0", "1"):
            subject.switch({"data.batched": "true", "data.num_workers": workers})
            ours = all_batches(loop.loader)
            assert [type(batch) for batch in ours] == [list] * 6 and same(ours, as_written)
            assert [image.dtype for image, _ in ours] == [torch.float32] * 6
        assert loop.loader.dataset.classes == data.classes
        subject.switch({})
        assert loop.loader.dataset is data and same(all_batches(loop.loader), as_written)


def test_images_with_other_transforms_are_not_batched(tmp_path):
    from torchvision import transforms
    loop = Loop()
    loop.loader = DataLoader(fashion(tmp_path, transforms.RandomErasing()), 16)
    subject = subject_of(loop, only=["whole batches"])
    assert "whole batches" not in [candidate.name for candidate in subject.offer("data").candidates]
    assert {entry.name: entry.reason for entry in subject.not_applicable}["whole batches"].startswith("its transforms")


def compile_reason(loop, **options):
    subject = Subject(loop.model, loop.loader, loop.optimizer, lambda model, batch: loop.loss(batch), only=["torch.compile"], **options)
    names = [candidate.name for candidate in subject.offer("compute").candidates]
    (entry,) = [entry for entry in subject.not_applicable if entry.name == "torch.compile"] or [None]
    assert (entry is None) == ("torch.compile" in names)
    return entry and entry.reason


def test_compiling_is_tried_only_where_run_and_budget_can_pay_for_it():
    loop = Loop()
    assert "length of the run" in compile_reason(loop, run_steps=None, budget_s=600)
    assert "third of the budget of 60 s" in compile_reason(loop, run_steps=1000, budget_s=60)
    assert compile_reason(loop, run_steps=1000, budget_s=120) is None
    loop.loader = DataLoader(loop.loader.dataset, 36)
    assert "last batch" in compile_reason(loop, run_steps=1000, budget_s=120)


def test_what_compiling_takes_is_measured_once_and_spread_over_the_run(monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr("headrace._subject.time", types.SimpleNamespace(perf_counter=lambda: now_s[0]))

    def slow_compile(forward):
        calls = []

        def compiled(*args, **kwargs):
            if not calls:
                now_s[0] += 0.3
            now_s[0] += 0.01
            calls.append(1)
            return forward(*args, **kwargs)

        return compiled

    monkeypatch.setattr(torch, "compile", slow_compile)
    loop = Loop()
    before = everything(loop)
    subject = Subject(loop.model, loop.loader, loop.optimizer, lambda model, batch: loop.loss(batch), run_steps=100, budget_s=200)
    assert subject.once_s_per_step() == 0
    subject.configure({"model.compile": "true"})
    spread = subject.once_s_per_step()
    assert spread == pytest.approx(0.3 / 100)
    subject.configure({})
    assert subject.once_s_per_step() == 0
    subject.configure({"model.compile": "true"})
    assert subject.once_s_per_step() == spread
    subject.give_back()
    assert differences(before, everything(loop)) == []


def test_torch_compile_really_compiles_is_paid_for_and_computes_the_same(monkeypatch, tmp_path):
    import torch._inductor.config

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # Nothing is compiled yet.
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Or torch would first compile, and load in a process of its own, a program for each instruction set of this machine.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        tuned = hr.tune(model, [torch.randn(4, 8) for _ in range(4)], optimizer, lambda model, batch: model(batch).square().mean(),
                        steps=50, budget_s=120, gain_min=10.0, only=["torch.compile"])
    (trial,) = tuned.trials
    assert trial.name == "torch.compile" and trial.verdict == "refused", trial.sentence
    assert list(tmp_path.rglob("*.cpp")) and list(tmp_path.rglob("*.so"))
    numerics = tuned.ledger["trials"][0]["numerics"]
    assert numerics["passed"] and numerics["class"] == "rounding"
    assert trial.reason == "slower"  # Seconds of compiling, spread over 50 steps of microseconds.
    assert "forward" not in model.__dict__


FAULTS_OF_A_STEP = """
import ctypes, json, resource
import torch
from headrace._subject import Subject
from held_memory import counted_elsewhere, storages
from torch import nn

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a fault is one of 4 KiB on any machine.
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 4096), nn.ReLU(), nn.Linear(4096, 1))  # Activations of 48 MiB: glibc maps each.
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(3072, 16)
subject = Subject(model, [batch], optimizer, lambda model, batch: model(batch).mean(), run_steps=None, budget_s=60)
kept = []

def faults():
    subject.step(batch)
    kept.append(bytearray(100_000))  # Lives on, as what a script keeps does.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    subject.step(batch)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = []
for settings in ({}, {"compute.allocator": '"arena"'}) * 3:
    subject.configure(settings)
    faults()
    found.append(faults())
print(json.dumps(found))
"""


@pytest.mark.engine
def test_the_systems_allocator_is_itself_again_after_each_time_in_the_arena():
    done = run_python("-c", FAULTS_OF_A_STEP)
    if "LD_PRELOAD" in os.environ:  # A sanitizer's malloc (make check PARTS=asan-python).
        assert "AddressSanitizer checks each block" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    system, arena = found[::2], found[1::2]
    assert min(system) > 0.7 * system[0] > 10_000 and max(arena) < 1000


KEPT_TWICE = """
import torch
from headrace._settings import process_settings
from headrace._subject import Subject
from torch import nn

model = nn.Linear(4, 4)
def made():
    return Subject(model, [torch.ones(2, 4)], torch.optim.SGD(model.parameters(), 0.1), lambda model, batch: model(batch).mean(),
                   run_steps=None, budget_s=60)
ALLOCATOR = "compute.allocator"
first = made()
before = first.baseline()[ALLOCATOR]
first.switch({ALLOCATOR: '"arena"'})
second = made()
names = [candidate.name for candidate in second.offer("compute").candidates]
second.configure({})
second.give_back()
print(before, second.baseline()[ALLOCATOR], process_settings()[ALLOCATOR], "arena for tensors" in names,
      [entry.reason for entry in second.not_applicable if entry.key == ALLOCATOR])
first.give_back()
print(process_settings()[ALLOCATOR])
"""


@pytest.mark.engine
def test_an_arena_that_an_earlier_tuning_kept_is_the_next_ones_baseline_and_stays():
    done = run_python("-c", KEPT_TWICE)
    if "LD_PRELOAD" in os.environ:
        assert "AddressSanitizer checks each block" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ['"system" "arena" "arena" False [\'tensors live in the arena already\']', '"system"']


@pytest.mark.forks
def test_tuning_works_twice_in_a_process_without_a_main_file():
    script = textwrap.dedent("""
        import headrace as hr, torch
        from torch import nn
        model = nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters())
        loader = torch.utils.data.DataLoader(torch.randn(32, 4), 8, num_workers=1)
        for _ in range(2):
            tuned = hr.tune(model, loader, optimizer, lambda model, batch: model(batch).square().mean(), budget_s=1,
                            only=["fused optimizer", "num_workers 0"], gain_min=10)
            for batch in tuned.loader:
                loss = tuned.step(batch)
            print(len(tuned.trials), loss.requires_grad)
    """)
    done = run_python("-", input=script, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "False", "2", "False"]


def on_meta(loop):
    loop.model.to("meta")
    return {}


def buffer_on_meta(loop):
    loop.model[1].running_mean = loop.model[1].running_mean.to("meta")
    return {}


def batch_on_meta(loop):
    return {"loader": [(images.to("meta"), labels) for images, labels in loop.loader]}


@pytest.mark.parametrize("options", [{}, {"whole_step": True}], ids=["loop", "whole step"])
@pytest.mark.parametrize("put, found", [
    (on_meta, "parameter 0.weight is on meta; wanted the CPU or a CUDA device: of others the host's clock tells"),
    (buffer_on_meta, "buffer 1.running_mean is on meta; wanted the CPU or a CUDA device: of others the host's clock tells"),
    (batch_on_meta, "a tensor of the batch is on meta; wanted the CPU: a step is timed by the host's clock")],
    ids=["parameters", "buffer", "batch"])
def test_what_lies_on_a_device_is_refused_by_name_because_the_host_would_time_launches(put, found, options):
    loop = Loop()
    given = put(loop)
    before = everything(loop)
    with pytest.raises(hr.errors.UnsupportedError, match=f"tune: {found}"):
        loop.tune(**given, **options)
    assert differences(before, everything(loop)) == []


def test_ledger_and_report_tell_memory_by_class(tmp_path):
    loop = Loop()
    other_batches = counted_elsewhere("batches")
    tuned = loop.tune(only=["fused optimizer"], out=tmp_path)
    classes = json.loads((tmp_path / "ledger.json").read_text())["memory"]["classes"]

    held = list(loop.model.parameters())
    assert classes["parameters"]["last"] == storages([*held, *loop.model.buffers()])
    assert classes["gradients"]["last"] == sum(parameter.nbytes for parameter in held)
    assert classes["optimizer"]["last"] == storages(
        value for state in loop.optimizer.state.values() for value in state.values())
    assert classes["batches"]["last"] - other_batches == 8 * 2 * 8 * 8 * 4 + 8 * 8
    assert classes["activations"] is None
    assert "activations" in tuned.summary() and "activations" in (tmp_path / "report.html").read_text()


class Encoding(collections.UserDict):
    """As Hugging Face's BatchEncoding: a mapping that is no dict."""


def test_a_mapping_that_is_no_dict_counts_by_its_samples_and_is_cut_along_them():
    loop = Loop()
    batches = [Encoding(image=images, labels=labels) for images, labels in loop.loader]
    for _ in range(10):
        tuned = loop.tune(loader=batches, only=["fused optimizer"],
                          forward=lambda model, batch: loop.loss((batch["image"], batch["labels"])))
        split = tuned.ledger["time_split"]["baseline"]
        # The split may be of other blocks than the diagnosis, and other programs run beside them, for one of the two longer now
        # and then; a batch that counted for one sample would be a factor of 8 off each time.
        ratio = tuned.ledger["diagnosis"]["samples_per_second"] / (8 * split["steps"] / split["total_s"])
        if 1 / 3 < ratio < 3:
            break
    assert 1 / 3 < ratio < 3
    parts = parts_of(batches[0], 2)
    assert all(isinstance(part, Encoding) and part["image"].shape[0] == part["labels"].shape[0] == 4 for part, _ in parts)
    assert batches[0]["image"].shape[0] == 8


def numerics_of(tuned):
    return {trial["name"]: trial["numerics"] for trial in tuned.ledger["trials"]}


def test_rounding_is_judged_against_a_copy_of_the_model_in_float64():
    loop = Loop()
    before = everything(loop)
    tuned = loop.tune(forward=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
                      only=["channels-last"], budget_s=60.0, gain_min=10.0)  # Of which float64 may take a tenth.
    numerics = numerics_of(tuned)["channels-last"]
    assert numerics["passed"] and numerics["why_not_float64"] == ""
    assert numerics["baseline_error"] is not None or "update" in numerics["measure"]
    assert differences(before, everything(loop)) == []


def test_a_loop_that_does_not_run_in_float64_is_judged_by_the_fixed_figures_and_says_why():
    loop = Loop()  # Its forward takes the model from around it, which stays float32.
    numerics = numerics_of(loop.tune(only=["channels-last"], budget_s=30.0, gain_min=10.0))["channels-last"]
    assert numerics["passed"] and numerics["baseline_error"] is None
    assert "RuntimeError" in numerics["why_not_float64"]


def test_the_ledger_says_whether_the_machine_was_quiet():
    quietness = Loop().tune(only=["fused optimizer"], budget_s=2.0, gain_min=10.0).ledger["quietness"]
    assert quietness["sentence"] and quietness["quiet"] in (True, False, None)
    assert quietness["others"] is None or 0 <= quietness["others"] <= 1
