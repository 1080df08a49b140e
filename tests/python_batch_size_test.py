"""Memory that runs out within headrace.Trainer's steps, made up by the forward or by a limit, and hr.plan_batch_size."""

import contextlib
import copy
import dataclasses
import gc
import random
import struct
import warnings
import weakref

import headrace as hr
import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("one_thread")]

BY_WORDS = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes."


def network(seed: int = 1) -> nn.Sequential:
    """Whose result depends on the batch, and which draws."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))


def wide_network() -> nn.Sequential:
    """Whose activations are most of what it holds."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 10))


def batches(count: int, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(size, 32, generator=generator), torch.randint(10, (size,), generator=generator)) for _ in range(count)]


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


class RunsOut:
    """A forward for which memory runs out at more than `most` samples from its call `since` on, counted from 0."""

    def __init__(self, most: int, since: int = 0, error: Exception | None = None, forward=cross_entropy) -> None:
        self.most, self.since, self.forward = most, since, forward
        self.error = torch.OutOfMemoryError("made up: wanted 64 bytes") if error is None else error
        self.asked: list[int] = []
        self.done: list[int] = []
        self.tensors_of_failures: list[weakref.ref] = []

    def __call__(self, model, batch):
        assert all(tensor() is None for tensor in self.tensors_of_failures)  # They have to make room.
        samples = len(batch[0])
        self.asked.append(samples)
        if len(self.asked) > self.since and samples > self.most:
            # A whole forward, which draws and moves buffers. BatchNorm would refuse one sample.
            made = self.forward(model, batch) if samples > 1 else torch.rand(1)
            self.tensors_of_failures.append(weakref.ref(made))
            raise type(self.error)(*self.error.args)
        self.done.append(samples)
        return self.forward(model, batch)


def values_of(model, optimizer):
    state = {(place, name): value.clone() for place, entry in optimizer.state_dict()["state"].items() for name, value in entry.items()}
    gradients = {name: None if parameter.grad is None else parameter.grad.clone() for name, parameter in model.named_parameters()}
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, state, gradients


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] is other[name] is None or torch.equal(one[name], other[name]), name


# ---- Memory runs out ----


def test_after_memory_ran_out_a_run_has_the_bits_of_one_with_half_the_micro_batch_and_loses_no_sample(capsys):
    data, ours, theirs = batches(6), network(), network()
    our_optimizer, their_optimizer = adamw(ours), adamw(theirs)
    reference = hr.Trainer(theirs, their_optimizer, cross_entropy, gradient_accumulation_steps=2)
    torch.manual_seed(7)
    for place, (inputs, labels) in enumerate(data):
        if place < 2:
            reference.step((inputs, labels), last_of_window=True)
        else:
            reference.step((inputs[:8], labels[:8]))
            reference.step((inputs[8:], labels[8:]))

    forward = RunsOut(8, since=2)
    trainer = hr.Trainer(ours, our_optimizer, forward, on_out_of_memory="halve")
    torch.manual_seed(7)
    for batch in data:
        trainer.step(batch)
    assert forward.asked == [16, 16, 16] + [8] * 8 and forward.done == [16, 16] + [8] * 8
    assert_same(values_of(ours, our_optimizer)[:2], values_of(theirs, their_optimizer)[:2])
    progress = trainer.progress
    assert (progress["micro_batch"], progress["out_of_memory"], progress["optimizer_steps"], progress["batch"]) == (8, 1, 6, 6)
    told = capsys.readouterr().err
    assert "batch 2" in told and "16 samples" in told and "BatchNorm" in told and "made up: wanted 64 bytes" in told
    assert trainer.explain()["out_of_memory"]["native"] and not reference.explain()["out_of_memory"]["native"]


def test_every_sample_counts_once_in_an_epoch_however_often_it_is_halved():
    """The gradient of a sample's own weight is its share of the batch, in powers of two."""
    model = nn.Embedding(64, 1)
    nn.init.zeros_(model.weight)
    forward = RunsOut(4, since=1, forward=lambda model, batch: model(batch[0]).mean())
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=1.0), forward, on_out_of_memory="halve")
    (result,) = trainer.fit([(part,) for part in torch.randperm(64).split(16)], 1)
    assert model.weight.flatten().tolist() == [-1 / 16] * 64
    assert (result["samples"], result["optimizer_steps"]) == (64, 4)
    assert forward.done == [16] + [4] * 12


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("made up"), MemoryError("made up"), RuntimeError(BY_WORDS),
                                   hr.errors.OutOfMemoryError("made up"), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")],
                         ids=["torch", "Python", "words", "headrace", "words of CUDA"])
def test_whatever_says_that_memory_ran_out_halves_and_nothing_else_does(error):
    model = wide_network()
    forward = RunsOut(4, error=error)
    trainer = hr.Trainer(model, adamw(model), forward, on_out_of_memory="halve")
    trainer.step(batches(1)[0])
    assert forward.asked == [16, 8, 4, 4, 4, 4] and trainer.progress["micro_batch"] == 4

    for error in (RuntimeError("made up, of shapes"), ValueError("not enough memory cells"), KeyError("out of memory")):
        other = RunsOut(4, error=error)
        trainer = hr.Trainer(model, adamw(model), other, on_out_of_memory="halve")
        with pytest.raises(type(error)) as raised:
            trainer.step(batches(1)[0])
        assert type(raised.value) is type(error) and raised.value.args == error.args
        assert other.asked == [16] and trainer.progress["out_of_memory"] == 0


def test_an_exception_without_words_is_told_by_its_class(capsys):
    model = wide_network()
    trainer = hr.Trainer(model, adamw(model), RunsOut(8, error=MemoryError()), on_out_of_memory="halve")
    trainer.step(batches(1)[0])
    assert "MemoryError" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError(BY_WORDS), ValueError("made up, of shapes")], ids=["memory", "another"])
def test_what_a_hook_of_the_backward_raises_is_halved_where_it_says_so_and_else_comes_through(error):
    data, ours, theirs = batches(3), network(), network()
    our_optimizer, their_optimizer = adamw(ours), adamw(theirs)
    asked = []

    def refuse(gradient):
        if len(gradient) > 8 and len(asked) > 1:
            raise type(error)(*error.args)

    def forward(model, batch):
        asked.append(len(batch[0]))
        hidden = model[:3](batch[0])
        hidden.register_hook(refuse)
        return nn.functional.cross_entropy(model[3:](hidden), batch[1])

    trainer = hr.Trainer(ours, our_optimizer, forward, on_out_of_memory="halve")
    torch.manual_seed(7)
    trainer.step(data[0])
    if isinstance(error, ValueError):
        before = values_of(ours, our_optimizer)
        with pytest.raises(ValueError, match="^made up, of shapes$"):
            trainer.step(data[1])
        assert asked == [16, 16] and [parameter.grad for parameter in ours.parameters()] == [None] * 6
        assert_same(values_of(ours, our_optimizer)[1:2], before[1:2])
        return
    for batch in data[1:]:
        trainer.step(batch)
    assert asked == [16, 16, 8, 8, 8, 8] and trainer.progress["micro_batch"] == 8

    reference = hr.Trainer(theirs, their_optimizer, cross_entropy, gradient_accumulation_steps=2)
    torch.manual_seed(7)
    reference.step(data[0], last_of_window=True)
    for inputs, labels in data[1:]:
        reference.step((inputs[:8], labels[:8]))
        reference.step((inputs[8:], labels[8:]))
    assert_same(values_of(ours, our_optimizer)[:2], values_of(theirs, their_optimizer)[:2])


def test_as_written_the_exception_comes_through_with_its_class_and_nothing_is_changed():
    model = wide_network()
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, RunsOut(8, since=1))
    trainer.step((torch.ones(4, 32), torch.zeros(4, dtype=torch.long)))
    before = values_of(model, optimizer)[:2]
    with pytest.raises(torch.OutOfMemoryError, match="^made up: wanted 64 bytes$") as raised:
        trainer.step(batches(1)[0])
    assert any(entry.name == "__call__" for entry in raised.traceback)
    assert_same(values_of(model, optimizer)[:2], before)
    assert trainer.progress["optimizer_steps"] == 1


def test_a_sample_that_is_too_much_alone_is_an_error_and_changes_nothing():
    model, forward = network(), RunsOut(0)
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, forward, on_out_of_memory="halve")
    before, random_before = values_of(model, optimizer), torch.get_rng_state()
    with pytest.raises(hr.errors.OutOfMemoryError, match="1 sample at once: .*made up: wanted 64 bytes"):
        trainer.step(batches(1)[0])
    assert forward.asked == [16, 8, 4, 2, 1]
    assert_same(values_of(model, optimizer), before)
    assert torch.equal(torch.get_rng_state(), random_before)


def test_a_batch_that_cannot_be_cut_says_so_and_that_memory_ran_out(capsys):
    model = wide_network()
    trainer = hr.Trainer(model, adamw(model), RunsOut(8), on_out_of_memory="halve")
    inputs, labels = batches(1)[0]
    with pytest.raises(hr.errors.InvalidArgumentError, match="first dimension in common, found 3 and 16"):
        trainer.step((inputs, labels, torch.zeros(3)))
    told = capsys.readouterr().err
    assert "memory ran out with 16 samples" in told and "made up: wanted 64 bytes" in told


def test_an_evaluation_is_cut_as_steps_are_and_keeps_that_to_itself():
    model, data = wide_network(), batches(3, size=20)
    forward = RunsOut(8)
    trainer = hr.Trainer(model, adamw(model), forward, on_out_of_memory="halve")
    cut = trainer.evaluate(data)
    whole = hr.Trainer(model, adamw(model), cross_entropy).evaluate(data)
    assert cut["samples"] == whole["samples"] == 60 and cut["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    assert max(forward.done) <= 8 and trainer.progress["micro_batch"] == trainer.progress["out_of_memory"] == 0
    with pytest.raises(torch.OutOfMemoryError):
        hr.Trainer(model, adamw(model), RunsOut(8)).evaluate(data)


class Opaque:
    """A batch of which nobody else knows the form."""

    def __init__(self, *fields):
        self.fields = fields

    def __getitem__(self, place):
        return self.fields[place]


def test_a_batch_of_unknown_form_is_not_taken_for_one_sample():
    model = wide_network()
    trainer = hr.Trainer(model, adamw(model), RunsOut(8), on_out_of_memory="halve")
    with pytest.raises(hr.errors.OutOfMemoryError, match="wanted a batch or a forward that can be cut"):
        trainer.step(Opaque(*batches(1)[0]))


@dataclasses.dataclass
class Record:
    inputs: torch.Tensor
    labels: torch.Tensor
    name: str = "a"


def ragged_batch(inputs, labels):
    boxes = hr.RaggedTensor(torch.arange(16.0), torch.arange(17))
    return hr.Batch({"image": inputs, "labels": labels, "boxes": boxes, "words": list("abcdefghijklmnop"), "valid": torch.ones(16)})


@pytest.mark.parametrize("form, fields", [
    (lambda inputs, labels: (inputs, labels), lambda batch: batch), (lambda inputs, labels: [inputs, labels], lambda batch: batch),
    (lambda inputs, labels: {"x": inputs, "y": labels}, lambda batch: (batch["x"], batch["y"])),
    (lambda inputs, labels: (inputs, {"y": labels, "scale": torch.tensor(2.0)}), lambda batch: (batch[0], batch[1]["y"])),
    (Record, lambda batch: (batch.inputs, batch.labels)),
    (ragged_batch, lambda batch: (batch.image, batch["labels"]))], ids=["tuple", "list", "dict", "nested", "record", "of a Loader"])
def test_batches_of_any_form_are_cut_with_the_gradient_of_the_whole(form, fields):
    (inputs, labels), = batches(1)
    models = [wide_network(), wide_network()]
    sizes = []

    def forward(model, batch):
        x, y = fields(batch)
        if model is models[0] and len(x) > 5:
            raise torch.OutOfMemoryError("made up")
        sizes.append(len(x))
        return nn.functional.cross_entropy(model(x), y)

    for model, policy in zip(models, ("halve", "raise")):
        hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=1.0), forward, on_out_of_memory=policy).step(form(inputs, labels))
    assert sizes == [4, 4, 4, 4, 16]
    for ours, theirs in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("valid", [(16, 10), (10, 16), (10, 3)], ids=["padded last", "padded first", "a part of no weight"])
@pytest.mark.parametrize("weighs", [False, True], ids=["by samples", "by its own weight"])
def test_samples_of_a_loaders_batch_that_do_not_count_weigh_nothing_in_parts_nor_in_the_loss(valid, weighs):
    data, models, results = batches(2), [wide_network(), wide_network()], []

    def forward(model, batch):
        if model is models[0] and len(batch["x"]) > 4:
            raise torch.OutOfMemoryError("made up")
        counts = batch["valid"].float()
        losses = nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
        loss = (losses * counts).sum() / counts.sum()
        return (loss, {}, counts.sum()) if weighs else loss

    padded = [hr.Batch({"x": inputs, "y": labels, "valid": (torch.arange(16) < count).to(torch.uint8)})
              for (inputs, labels), count in zip(data, valid)]
    for model, policy in zip(models, ("halve", "raise")):
        trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), forward, on_out_of_memory=policy)
        results += trainer.fit(padded, 1)
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], abs=1e-5)
    assert results[0]["samples"] == results[1]["samples"] == sum(valid)
    for ours, theirs in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["halve", "raise"])
def test_a_run_goes_on_from_a_checkpoint_with_its_smaller_micro_batch_and_the_same_bits(policy, tmp_path):
    data, model = batches(5), network()
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, RunsOut(8, since=1), on_out_of_memory="halve")
    for batch in data[:3]:
        trainer.step(batch)
    trainer.save(tmp_path / "c.safetensors")
    for batch in data[3:]:
        trainer.step(batch)

    again, forward = network(seed=2), RunsOut(16)
    its_optimizer = adamw(again)
    resumed = hr.Trainer(again, its_optimizer, forward, on_out_of_memory=policy)
    told = resumed.load(tmp_path / "c.safetensors")
    assert (told["micro_batch"], told["out_of_memory"]) == (8, 1)
    for batch in data[3:]:
        resumed.step(batch)
    assert forward.done == [8] * 4
    assert_same(values_of(again, its_optimizer)[:2], values_of(model, optimizer)[:2])


# ---- A limit ----


@pytest.fixture
def tensor_memory():
    """The engine, which counts what tensors hold; afterwards without a limit."""
    from headrace import _engine

    gc.collect()  # What others left behind is not freed while a test counts.
    _, _, reason = _engine.watch_tensor_memory()
    if reason:
        pytest.skip(reason)
    yield _engine
    _engine.set_tensor_memory_limit(0)


def held_and_peak(engine, step) -> tuple[int, int]:
    engine.reset_peak_tensor_memory()
    held, _, _ = engine.tensor_memory()
    step()
    return held, engine.tensor_memory()[1]


def test_an_allocation_beyond_the_limit_names_what_was_asked_held_and_allowed(tensor_memory):
    held, _, _ = tensor_memory.tensor_memory()
    limit = held + 2**20
    told = hr.set_tensor_memory_limit(limit / 2**20)
    assert told["reason"] == "" and tensor_memory.tensor_memory()[2] == limit
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(2**21, dtype=torch.uint8)
    assert all(str(number) in str(raised.value) for number in (2**21, limit))
    assert tensor_memory.tensor_memory()[0] == held
    fits = torch.empty(2**19, dtype=torch.uint8)
    assert tensor_memory.tensor_memory()[0] >= held + 2**19
    del fits
    trainer = hr.Trainer(model := nn.Linear(2, 2), adamw(model), cross_entropy)
    told = trainer.explain()["memory_limit"]  # Whoever has set it.
    assert told["native"] and f"{str(limit / 2**20).removesuffix('.0')} MiB" in told["by"]
    hr.set_tensor_memory_limit(0)
    assert trainer.explain()["memory_limit"] == {"native": False, "by": "nobody", "reason": "none is set"}
    torch.empty(2**21, dtype=torch.uint8)
    for wrong in (-1, "100", True, float("nan")):
        with pytest.raises(hr.errors.InvalidArgumentError, match="memory limit: wanted a number of MiB"):
            hr.set_tensor_memory_limit(wrong)


def test_a_smaller_limit_shrinks_the_next_batches_a_larger_one_lets_them_grow_and_the_curve_stays(tensor_memory):
    data, losses = batches(9, size=256), []
    theirs, ours = wide_network(), wide_network()
    plain = hr.Trainer(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1), cross_entropy)
    held, peak = held_and_peak(tensor_memory, lambda: losses.append(plain.step(data[0])))
    needed = peak - held
    losses += [plain.step(batch) for batch in data[1:]]
    assert needed > 3 * 2**20

    sizes = []

    def forward(model, batch):
        loss = cross_entropy(model, batch)
        sizes.append(len(batch[0]))
        return loss

    trainer = hr.Trainer(ours, torch.optim.SGD(ours.parameters(), lr=0.1), forward, on_out_of_memory="halve")
    found = [trainer.step(batch) for batch in data[:3]]
    assert sizes == [256] * 3
    held = tensor_memory.tensor_memory()[0]
    assert trainer.set_memory_limit_mib((held + 0.7 * needed) / 2**20)["reason"] == ""
    assert trainer.explain()["memory_limit"]["native"]
    found += [trainer.step(batch) for batch in data[3:6]]
    smaller = trainer.progress["micro_batch"]
    assert smaller in (128, 64, 32) and trainer.progress["out_of_memory"] >= 1
    assert sizes[-256 // smaller:] == [smaller] * (256 // smaller)
    trainer.set_memory_limit_mib(0)
    found += [trainer.step(batch) for batch in data[6:]]
    assert trainer.progress["micro_batch"] > smaller and sizes[-1] > smaller
    assert trainer.progress["optimizer_steps"] == 9
    torch.testing.assert_close(torch.stack(found), torch.stack(losses), rtol=1e-5, atol=1e-5)


def test_a_limit_below_the_parameters_is_refused():
    model = nn.Linear(1024, 1024)
    with pytest.raises(hr.errors.InvalidArgumentError, match="memory_limit_mib"):
        hr.Trainer(model, adamw(model), cross_entropy, memory_limit_mib=1)
    with pytest.raises(hr.errors.InvalidArgumentError, match="on_out_of_memory"):
        hr.Trainer(model, adamw(model), cross_entropy, on_out_of_memory="wait")


# ---- The planner ----


@contextlib.contextmanager
def unchanged_generators():
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    yield
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert all(numpy.array_equal(one, other) for one, other in zip(numpy.random.get_state(), before[2]))


def drawing(model, batch):
    return cross_entropy(model, batch) * (1 + 1e-3 * random.random() + 1e-3 * float(numpy.random.rand()))


@pytest.mark.parametrize("policy", ["raise", "halve"])
def test_planning_changes_no_bit_of_a_run_in_mid_window_nor_of_its_loader(policy):
    """Parameters, buffers, gradients, optimizer, averages, counts, generators, place in the data."""
    data, results = TensorDataset(*(torch.cat(fields) for fields in zip(*batches(8)))), []
    for plans in (True, False):
        for seed in (torch.manual_seed, random.seed, numpy.random.seed):
            seed(3)
        model = network()
        optimizer = adamw(model)
        loader = DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(4))
        trainer = hr.Trainer(model, optimizer, drawing, gradient_accumulation_steps=2, ema_decay=0.9, on_out_of_memory=policy)
        steps = iter(loader)
        for _ in range(3):
            trainer.step(next(steps))
        if plans:
            before, progress = values_of(model, optimizer), copy.deepcopy(trainer.progress)
            averages = {name: tensor.clone() for name, tensor in trainer.averages.items()}
            mode, order = [module.training for module in model.modules()], loader.generator.get_state()
            with unchanged_generators():
                plan = hr.plan_batch_size(trainer, loader, initial_batch_size=4, max_batch_size=64)
            assert len(plan.probes) >= 2
            assert_same((*values_of(model, optimizer), trainer.averages), (*before, averages))
            assert trainer.progress == progress and [module.training for module in model.modules()] == mode
            assert torch.equal(loader.generator.get_state(), order)
        losses = [trainer.step(next(steps)) for _ in range(5)]
        results.append((values_of(model, optimizer)[:2], losses))
    assert_same(results[0][0], results[1][0])
    assert torch.equal(torch.stack(results[0][1]), torch.stack(results[1][1]))


def test_a_search_tells_of_each_size_it_tries_where_it_is_asked_to(capsys):
    model = network()
    trainer = hr.Trainer(model, adamw(model), cross_entropy)
    hr.plan_batch_size(trainer, batches(1)[0], initial_batch_size=4, max_batch_size=16)
    assert "plan_batch_size" not in capsys.readouterr().err
    plan = hr.plan_batch_size(trainer, batches(1)[0], initial_batch_size=4, max_batch_size=16, progress=True)
    *tried, found = [line for line in capsys.readouterr().err.splitlines() if "plan_batch_size" in line]
    assert tried == [f"headrace: plan_batch_size: trying batches of {probe.batch_size}" for probe in plan.probes]
    assert found == f"headrace: plan_batch_size: batches of {plan.batch_size}; {plan.reason}"


def images_of_a_loader(tmp_path, **options):
    draws = numpy.random.default_rng(1)
    for kind, shape in (("images-idx3", (50, 8, 8)), ("labels-idx1", (50,))):
        values = draws.integers(0, 10, shape).astype("u1")
        (tmp_path / f"train-{kind}-ubyte").write_bytes(struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + values.tobytes())
    return hr.Loader(f"idx:{tmp_path}", batch_size=16, seed=3, **options)


def of_images(model, batch):
    return nn.functional.cross_entropy(model(batch["image"].flatten(1)), batch["labels"])


def test_a_loader_gives_a_batch_between_two_epochs_and_is_refused_within_one(tmp_path):
    torch.manual_seed(1)
    model = nn.Linear(64, 10)
    trainer = hr.Trainer(model, adamw(model), of_images)
    loader, undisturbed = images_of_a_loader(tmp_path), images_of_a_loader(tmp_path)
    sizes = {"initial_batch_size": 4, "max_batch_size": 8}
    for _ in range(2):
        hr.plan_batch_size(trainer, loader, **sizes)
        ours, theirs = iter(loader), iter(undisturbed)
        first = next(ours)
        assert torch.equal(first["image"], next(theirs)["image"])
        with pytest.raises(hr.errors.InvalidArgumentError, match=r"between two epochs.*found one within epoch \d, at position 16"):
            hr.plan_batch_size(trainer, loader, **sizes)
        hr.plan_batch_size(trainer, first, **sizes)
        rest = list(ours)
        assert len(rest) == 3
        assert all(torch.equal(one["image"], other["image"]) for one, other in zip(rest, theirs, strict=True))


def test_workers_that_persist_are_as_they_were_before_their_first_epoch_and_a_plan_is_refused_after_it():
    data, orders = TensorDataset(*(torch.cat(fields) for fields in zip(*batches(2)))), []
    model = wide_network()
    trainer = hr.Trainer(model, adamw(model), cross_entropy)
    sizes = {"initial_batch_size": 4, "max_batch_size": 8}
    for plans in (True, False):
        torch.manual_seed(3)
        loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=1, persistent_workers=True)
        if plans:
            hr.plan_batch_size(trainer, loader, **sizes)
            assert loader._iterator is None
        steps = iter(loader)
        taken = [next(steps)]
        if plans:
            with pytest.raises(hr.errors.InvalidArgumentError, match="persistent_workers it allows one iteration at a time"):
                hr.plan_batch_size(trainer, loader, **sizes)
        orders.append(torch.cat([inputs for inputs, _ in [*taken, *steps]]))
    assert torch.equal(*orders)


def test_a_plan_for_an_optimizer_without_state_leaves_none():
    model = wide_network()
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, cross_entropy)
    hr.plan_batch_size(trainer, batches(1)[0], initial_batch_size=4, max_batch_size=16)
    assert optimizer.state_dict()["state"] == {} and all(parameter.grad is None for parameter in model.parameters())
    trainer.step(batches(1)[0])
    assert len(optimizer.state_dict()["state"]) == 4  # And its next update shows its own, as ever.


def test_the_largest_size_stays_within_the_limit_and_is_near_it(tensor_memory):
    model = wide_network()
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, cross_entropy)
    trainer.step(batches(1, size=8)[0])  # So that the optimizer's state is there.
    held, peak = held_and_peak(tensor_memory, lambda: trainer.step(batches(1, size=256)[0]))
    limit = held + (peak - held) // 2
    plan = hr.plan_batch_size(trainer, batches(1, size=8), initial_batch_size=16, max_batch_size=4096, memory_limit_mib=limit / 2**20)
    sizes, largest = [probe.batch_size for probe in plan.probes], plan.largest_batch_size
    assert sizes[0] == 16 and len(sizes) <= 4 and max(sizes) <= 4096 and not any(probe.ran_out for probe in plan.probes)
    assert plan.bytes_per_sample > 2 * 2048 * 4  # At least an activation and its gradient.
    assert plan.memory_limit == limit and 0 < plan.memory_fraction <= 1 and 1 <= plan.batch_size <= largest
    assert held_and_peak(tensor_memory, lambda: trainer.step(batches(1, size=largest)[0]))[1] <= limit + 2**16
    assert held_and_peak(tensor_memory, lambda: trainer.step(batches(1, size=5 * largest // 4)[0]))[1] > limit
    assert largest / 2 <= plan.largest_for(limit) <= 2 * largest


def test_memory_that_runs_out_while_probing_is_survived_and_told():
    model, forward = wide_network(), RunsOut(24)
    optimizer = adamw(model)
    trainer = hr.Trainer(model, optimizer, forward)
    before = values_of(model, optimizer)
    plan = hr.plan_batch_size(trainer, batches(1)[0], initial_batch_size=8, max_batch_size=256)
    assert 1 <= plan.batch_size <= 24
    assert any(probe.ran_out and probe.peak_bytes is None for probe in plan.probes)
    assert_same(values_of(model, optimizer), before)
    forward.most = 1000
    trainer.step(batches(1)[0])


def test_the_global_batch_is_kept_and_a_target_is_met_by_the_smallest_that_does():
    model = wide_network()
    trainer = hr.Trainer(model, adamw(model), cross_entropy)
    plan = hr.plan_batch_size(trainer, batches(1)[0], initial_batch_size=8, max_batch_size=16, global_batch_size=64)
    size, steps = plan.batch_size, plan.gradient_accumulation_steps
    assert size <= 16 and size * (steps - 1) < 64 <= size * steps
    plan = hr.plan_batch_size(trainer, batches(1)[0], initial_batch_size=8, max_batch_size=64, target_throughput=1e-3)
    assert plan.batch_size <= 8 and plan.samples_per_second > 1e-3


def test_a_plan_that_cuts_a_batch_says_that_batch_norm_depends_on_its_parts():
    said = {}
    for model in (network(), wide_network()):
        trainer = hr.Trainer(model, adamw(model), cross_entropy)
        for whole in (None, 8, 64):
            plan = hr.plan_batch_size(trainer, batches(1)[0], initial_batch_size=8, max_batch_size=16, global_batch_size=whole)
            assert (plan.gradient_accumulation_steps > 1) == (whole == 64)
            said[len(model), whole] = "the result of the model's BatchNorm depends on" in plan.reason
    assert [case for case, is_said in said.items() if is_said] == [(5, 64)]


def test_loaders_of_every_kind_give_the_batch():
    data = batches(2)
    model = wide_network()
    trainer = hr.Trainer(model, adamw(model), cross_entropy)
    seen = []
    trainer_of_dicts = hr.Trainer(model, adamw(model), lambda model, batch: (seen.append(batch), cross_entropy(model, batch["xy"]))[1])
    dataset = TensorDataset(*data[0])
    for loader in (data, lambda: iter(data), DataLoader(dataset, batch_size=4), data[0], list(data[0])):
        assert hr.plan_batch_size(trainer, loader, initial_batch_size=4, max_batch_size=8).probes[0].batch_size == 4
    hr.plan_batch_size(trainer_of_dicts, {"xy": data[0], "name": "a"}, initial_batch_size=4, max_batch_size=8)
    assert len(seen[0]["xy"][0]) == 4 and seen[0]["name"] == "a"


@pytest.mark.parametrize("changes, told", [
    ({"initial_batch_size": 0}, "initial_batch_size: wanted a whole number of at least 1, found 0"),
    ({"max_batch_size": 2.5}, "max_batch_size: wanted a whole number of at least 1, found 2.5"),
    ({"initial_batch_size": 64, "max_batch_size": 32}, "wanted at most max_batch_size, which is 32, found 64"),
    ({"global_batch_size": 0}, "global_batch_size: wanted a whole number"), ({"memory_limit_mib": 0}, "memory_limit_mib: wanted MiB above 0"),
    ({"target_throughput": 0}, "target_throughput: wanted samples per second above 0, found 0"),
    ({"loader": iter([])}, "wanted a loader that can be gone through again, or a batch, found an iterator"),
    ({"loader": []}, "loader: gave no batch"), ({"trainer": None}, "trainer: wanted a headrace.Trainer, found NoneType")])
def test_what_cannot_be_planned_is_refused_by_name(changes, told):
    model = wide_network()
    given = {"trainer": hr.Trainer(model, adamw(model), cross_entropy), "loader": batches(1), **changes}
    with pytest.raises(hr.errors.InvalidArgumentError, match=told):
        hr.plan_batch_size(given.pop("trainer"), given.pop("loader"), **given)


def test_an_exception_of_forward_ends_the_search_with_everything_as_it_was():
    model = network()
    optimizer = adamw(model)

    def forward(model, batch):
        if len(batch[0]) > 8:
            raise KeyError("made up")
        return cross_entropy(model, batch)

    trainer = hr.Trainer(model, optimizer, forward)
    trainer.step(batches(1, size=8)[0])
    before = values_of(model, optimizer)
    with unchanged_generators(), pytest.raises(KeyError, match="made up"):
        hr.plan_batch_size(trainer, batches(1), initial_batch_size=8, max_batch_size=64)
    assert_same(values_of(model, optimizer)[:2], before[:2])
    trainer.step(batches(1, size=8)[0])


def test_a_compiled_model_is_probed_as_written_and_compiles_nothing():
    model = torch.nn.Linear(4, 2)
    made = hr.compiled(model, [lambda graph, inputs: graph.forward])
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, batch: model(batch).square().mean())
    hr.plan_batch_size(trainer, torch.randn(8, 4), initial_batch_size=4, max_batch_size=16)
    assert made.attempts[0].compilations == 0 and not made.compile_enabled


def test_a_model_that_was_compiled_before_its_batch_size_was_planned_is_warned_of():
    model = torch.nn.Linear(4, 2)
    made = hr.compiled(model, [lambda graph, inputs: graph.forward])
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda model, batch: model(batch).square().mean())
    sizes = {"initial_batch_size": 4, "max_batch_size": 4}

    def planned():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert hr.plan_batch_size(trainer, torch.randn(8, 4), **sizes).batch_size <= 4
        return [str(one.message) for one in told if "plan_batch_size() before hr.compiled()" in str(one.message)]

    assert planned() == [], "nothing is compiled yet"
    trainer.step(torch.randn(8, 4))
    assert made.compile_enabled
    (words,) = planned()
    assert words.startswith("headrace: Linear was compiled before its batch size was planned: batches of ")
    for samples in (1, 2, 3, 4):
        trainer.step(torch.randn(samples, 4))
    assert planned() == [], "it was compiled for this size, too"
    made.undo()
    assert planned() == []
