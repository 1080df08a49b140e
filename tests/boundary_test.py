"""Boundaries between the updates of loops as users write them: how many units, how long, which of them count and why others do
not, and that nothing is left behind. Time is told by a clock that only the loop moves."""

import copy
import inspect
import json
import pickle
import queue
import threading
import types

import headrace as hr
import pytest
import torch
import user_sources
from headrace import _boundary, _core
from headrace._boundary import Boundary
from headrace._call_state import CallState
from headrace._seen_calls import COMPILED_CALL, is_compiled_in_place, why_hooked
from headrace.errors import InvalidArgumentError
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

FIRST = "the first of its kind"
BEGAN = "an epoch began"
TWO_PASSES = [FIRST, "", "", "", BEGAN, "", "", "", ""]  # Over five batches.


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Ticks(Clock):
    """Moves by itself, so that whatever is timed takes some."""

    def __call__(self):
        self.now += 1
        return self.now


class Net(nn.Module):
    """A call takes a second."""

    def __init__(self, clock):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.clock = clock
        self.calls = 0

    def forward(self, inputs):
        self.clock.now += 1
        self.calls += 1
        return self.linear(inputs)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, inputs):
        return self.module(inputs)


class Loop:
    """One model, one optimizer, batches of four rows that take a quarter of a second to load."""

    def __init__(self, samples=20):
        torch.manual_seed(1)
        self.clock = Clock()
        self.model = Net(self.clock)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(TensorDataset(torch.randn(samples, 4)), 4, collate_fn=self.collate)
        self.batch = torch.randn(4, 4)
        self.breaks = False  # The next batch cannot be loaded.
        self.units, self.asked = [], []

    def collate(self, rows):
        self.clock.now += 0.25
        if self.breaks:
            self.breaks = False
            raise OSError("cannot be read")
        return torch.stack([row for (row,) in rows])

    def watch(self, loader=None, models=None, optimizers=None, on_unit=None, before_update=None, clock=None, **options):
        self.boundary = Boundary(
            models or [self.model], optimizers or [self.optimizer], loader, on_unit=on_unit or self.units.append,
            before_update=before_update or (lambda: self.asked.append(self.clock.now)), clock=clock or self.clock, **options)
        self.boundary.install()
        return self

    def step(self, batch=None):
        self.optimizer.zero_grad()
        self.model(self.batch if batch is None else batch).sum().backward()
        self.optimizer.step()

    def steps(self, count):
        for _ in range(count):
            self.step()

    def epoch(self, loader=None):
        for batch in self.loader if loader is None else loader:
            self.step(batch)

    @property
    def why_not(self):
        assert all(unit.countable == (unit.why_not == "") for unit in self.units)
        return [unit.why_not for unit in self.units]

    def seen(self, what):
        return [getattr(unit, what) for unit in self.units]


def state_of(loop):
    """Every attribute of the user's objects, and what is in it where it is a dictionary."""
    return [
        (type(one), {key: (id(value), [(id(name), id(item)) for name, item in value.items()] if isinstance(value, dict) else None)
                     for key, value in vars(one).items()})
        for one in (*loop.model.modules(), loop.optimizer, loop.loader)
    ]


def hooks_of(loop):
    return [(key, list(value.values())) for one in (*loop.model.modules(), loop.optimizer)
            for key, value in vars(one).items() if "hooks" in key], type(loop.loader)


# What a unit is.

def test_a_unit_lasts_from_one_update_to_the_next_and_counts_where_it_is_as_most_are():
    loop = Loop()
    loop.watch(loop.loader)
    loop.epoch()
    loop.epoch()
    assert loop.why_not == TWO_PASSES
    assert loop.seen("seconds") == [1.25] * 9 and loop.seen("wait_s") == [0.25] * 9 and loop.seen("work") == [16.0] * 9
    boundary = loop.boundary
    assert (boundary.updates, boundary.batches_seen, boundary.epochs, boundary.batches_an_epoch, boundary.micro_batches) == (
        10, 10, 2, 5, 1)
    assert boundary.thread == threading.get_ident() and boundary.problem is None and boundary.loader_refusal == ""


def test_the_first_update_begins_the_first_unit_and_is_counted_when_its_unit_is_told():
    loop = Loop()
    told = []
    loop.watch(on_unit=lambda unit: told.append(loop.boundary.updates))
    loop.steps(3)
    assert told == [2, 3]


def test_updates_that_the_loop_has_made_before_are_counted_in():
    loop, began = Loop(), []
    loop.watch(loop.loader, updates=100, on_begin=lambda: began.append(loop.boundary.updates))
    loop.boundary.call_back()
    loop.epoch()
    loop.epoch()
    assert began == [101] and loop.boundary.updates == 110 and loop.why_not == TWO_PASSES
    assert loop.boundary.updates_left(115, None) == 5 and loop.boundary.updates_left(None, 23) == 5


@pytest.mark.parametrize("updates", [0, 1])
def test_a_model_whose_first_call_was_made_before_is_seen_by_its_own_calls_and_not_by_its_parts(updates):
    loop = Loop()
    loss = loop.model(loop.batch).sum()
    loop.watch(updates=updates)
    loss.backward()
    loop.optimizer.step()
    loop.steps(3)
    assert COMPILED_CALL in vars(loop.model) and COMPILED_CALL not in vars(loop.model.linear)
    assert loop.seen("work") == [16.0] * 3


def test_before_an_update_its_gradients_are_there_and_its_weights_are_not():
    loop = Loop()
    seen = []
    layer = loop.model.linear
    loop.watch(before_update=lambda: seen.append((layer.weight.detach().clone(), layer.bias.grad.clone())))
    before = []
    for _ in range(3):
        before.append(layer.weight.detach().clone())
        loop.step()
    assert len(seen) == 3
    for (weight, gradient), as_before in zip(seen, before):
        assert torch.equal(weight, as_before) and torch.equal(gradient, torch.full((2,), 4.0))


def test_what_the_callbacks_take_is_the_users_time_and_what_they_call_is_not_the_loops():
    loop = Loop()

    def before_update():
        with torch.no_grad():
            loop.model(loop.batch)
        loop.model.state_dict()
        loop.model(loop.batch).sum().backward()

    loop.watch(before_update=before_update)
    loop.steps(4)
    assert loop.why_not == [FIRST, "", ""]
    assert loop.seen("seconds") == [3.0] * 3 and loop.seen("work") == [16.0] * 3


def test_hooks_that_are_registered_later_belong_to_the_update_that_they_are_called_in():
    loop = Loop()
    loop.watch()
    loop.step()
    order = []

    def take_five(*_given):
        loop.clock.now += 5
        order.append("post")

    loop.optimizer.register_step_pre_hook(lambda *_given: order.append("pre"))
    loop.optimizer.register_step_post_hook(take_five)
    loop.steps(3)
    assert loop.seen("seconds") == [6.0] * 3 and order == ["pre", "post"] * 3
    assert list(loop.optimizer._optimizer_step_post_hooks.values())[0] is take_five  # Ours is behind it.


def test_work_is_what_the_outermost_calls_with_gradients_are_given_by_whatever_way():
    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, rows, options, *, mask):
            return self.inner(rows["rows"]) * mask

    loop = Loop()
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop.watch(models=[model, model.inner], optimizers=[optimizer])
    for rows in (2, 3, 5):
        model({"rows": torch.randn(rows, 4)}, [torch.ones(3, dtype=torch.long), "text"], mask=torch.ones(2)).sum().backward()
        with torch.no_grad():
            model({"rows": torch.randn(7, 4)}, [], mask=torch.ones(2))
        optimizer.step()
    assert loop.seen("work") == [3 * 4 + 3 + 2.0, 5 * 4 + 3 + 2.0]
    assert loop.why_not == [FIRST, ""]


# Micro-batches.

@pytest.mark.parametrize("given", [True, False], ids=["loader", "no loader"])
def test_a_group_of_another_number_of_micro_batches_does_not_count(given):
    loop = Loop(samples=40)
    loop.watch(loop.loader if given else None)
    for _ in range(3):
        for index, batch in enumerate(loop.loader):
            loop.model(batch).sum().backward()
            if (index + 1) % 4 == 0 or index + 1 == len(loop.loader):
                loop.optimizer.step()
                loop.optimizer.zero_grad()
    began = BEGAN if given else ""
    assert loop.why_not == [FIRST, "2 micro-batches, not 4", began, "", "2 micro-batches, not 4", began, "",
                            "2 micro-batches, not 4"]
    assert loop.boundary.micro_batches == 4
    assert loop.boundary.updates_left(None, 4) == (3 if given else None)


def test_another_number_of_micro_batches_becomes_the_usual_one():
    loop = Loop()
    loop.watch()
    loop.steps(20)
    for _ in range(40):
        loop.model(loop.batch).sum().backward()
        loop.step()
    assert loop.why_not == [FIRST, *[""] * 18, *["2 micro-batches, not 1"] * 16, *[""] * 24]
    assert loop.boundary.micro_batches == 2


@pytest.mark.parametrize("given", [True, False], ids=["loader", "no loader"])
def test_a_step_that_a_grad_scaler_leaves_out_shows_as_twice_the_micro_batches(given):
    loop = Loop(samples=32)
    loop.watch(loop.loader if given else None)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for number, batch in enumerate(loop.loader):
        loop.optimizer.zero_grad()
        loss = loop.model(batch).sum()
        scaler.scale(loss * float("inf") if number == 4 else loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
    assert loop.why_not == [FIRST, "", "", "2 micro-batches, not 1", "", ""]
    assert loop.boundary.updates == 7
    assert loop.seen("work") == [16.0, 16.0, 16.0, 32.0, 16.0, 16.0]


def test_lbfgs_makes_one_update_a_step_however_often_it_evaluates():
    loop = Loop()
    optimizer = torch.optim.LBFGS(loop.model.parameters(), lr=0.1, max_iter=4, tolerance_grad=0.0, tolerance_change=0.0)
    asked = []
    weight = loop.model.linear.weight
    loop.watch(optimizers=[optimizer], before_update=lambda: asked.append((loop.model.calls, weight.grad.any().item())))

    def closure():
        optimizer.zero_grad()
        loss = loop.model(loop.batch).square().mean()
        loss.backward()
        return loss

    for evaluations in (4, 4, 2, 4):
        optimizer.param_groups[0]["max_iter"] = evaluations
        optimizer.step(closure)
    assert loop.model.calls == 14
    assert loop.why_not == [FIRST, "", ""] and loop.seen("work") == [64.0, 32.0, 64.0]
    assert asked == [(1, True), (5, True), (9, True), (11, True)]  # Behind the first evaluation of each step.
    assert loop.boundary.micro_batches == 1


@pytest.mark.parametrize("keyword", [True, False])
def test_before_update_comes_behind_the_closure_that_a_step_is_given(keyword):
    loop = Loop()
    asked = []
    loop.watch(before_update=lambda: asked.append(loop.model.calls))

    def closure():
        loop.optimizer.zero_grad()
        loss = loop.model(loop.batch).sum()
        loss.backward()
        return loss

    for _ in range(3):
        loss = loop.optimizer.step(closure=closure) if keyword else loop.optimizer.step(closure)
        assert loss.requires_grad  # The closure's own.
    assert asked == [1, 2, 3] and loop.why_not == [FIRST, ""]


# Several optimizers.

@pytest.mark.parametrize("given", [True, False], ids=["loader", "no loader"])
@pytest.mark.parametrize("order", ["DDG", "DGG", "DG", "DDDDDG"])
def test_an_iteration_of_several_optimizers_is_one_update_and_ends_behind_its_last_step(order, given):
    loop = Loop(samples=400)
    nets = {name: Net(loop.clock) for name in "DG"}
    optimizers = {name: torch.optim.SGD(nets[name].parameters(), lr=0.01) for name in "DG"}
    loop.watch(loop.loader if given else None, models=list(nets.values()), optimizers=list(optimizers.values()))
    iterations, ends = 16, []
    for _, batch in zip(range(iterations), loop.loader):
        for name in order:
            nets[name](batch).sum().backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
        ends.append(loop.clock.now)
    learned = 12 // len(order)  # Iterations in which the order is found.
    assert loop.boundary.updates == iterations
    assert loop.why_not == [FIRST, *[""] * (iterations - learned - 1)]
    assert set(loop.seen("seconds")) == {len(order) + 0.25} and set(loop.seen("work")) == {16.0 * len(order)}
    assert loop.asked == ends[learned:]
    assert loop.boundary.problem is None


def test_batches_that_another_thread_takes_do_not_say_where_an_iteration_begins():
    loop = Loop(samples=400)
    nets = {name: Net(loop.clock) for name in "DG"}
    optimizers = {name: torch.optim.SGD(nets[name].parameters(), lr=0.01) for name in "DG"}
    loop.watch(loop.loader, models=list(nets.values()), optimizers=list(optimizers.values()))
    batches, ends = iter(loop.loader), []

    def take():
        thread = threading.Thread(target=next, args=(batches,))
        thread.start()
        thread.join()

    take()
    for _ in range(16):
        nets["D"](loop.batch).sum().backward()
        optimizers["D"].step()
        take()  # Whenever it comes to it: a run that is repeated counts the same updates.
        nets["G"](loop.batch).sum().backward()
        optimizers["G"].step()
        ends.append(loop.clock.now)
    assert loop.asked == ends[6:] and loop.boundary.updates == 16


def test_a_step_too_many_in_an_iteration_does_not_count_and_the_next_ones_do():
    loop = Loop()
    nets = {name: Net(loop.clock) for name in "DG"}
    optimizers = {name: torch.optim.SGD(nets[name].parameters(), lr=0.01) for name in "DG"}
    loop.watch(models=list(nets.values()), optimizers=list(optimizers.values()))
    for name in "DG" * 6 + "DG" * 3 + "DDG" + "DG" * 2:
        optimizers[name].step()
    assert loop.why_not == [FIRST, "", "", "3 optimizer steps, not 2", "", ""]


def test_a_step_of_ones_own_that_calls_torchs_is_one_update():
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    loop = Loop()  # Its SGD has given torch's step() the hooks of its own.
    loop.optimizer = Own(loop.model.parameters(), lr=0.01)
    loop.watch()
    loop.steps(5)
    assert loop.boundary.updates == 5 and loop.why_not == [FIRST, "", "", ""] and len(loop.asked) == 5


# Evaluation, checkpoints, exceptions.

@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "eval"])
def test_an_evaluation_between_two_updates_does_not_count(mode):
    loop = Loop()
    loop.watch()
    loop.steps(4)
    if mode == "eval":
        loop.model.eval()
        loop.model(loop.batch)
        loop.model.train()
    else:
        with getattr(torch, mode)():
            loop.model(loop.batch)
    loop.steps(2)
    assert loop.why_not == [FIRST, "", "", "evaluation", ""]


def test_an_evaluation_on_the_same_loader_is_no_pass_of_the_training():
    loop = Loop()
    loop.watch(loop.loader)
    for _ in range(2):
        loop.epoch()
        with torch.no_grad():
            for batch in loop.loader:
                loop.model(batch)
    loop.epoch()
    assert loop.why_not == [FIRST, "", "", "", BEGAN, "", "", "", "", BEGAN, "", "", "", ""]
    assert loop.boundary.epochs == 5 and loop.boundary.problem is None
    assert loop.boundary.updates_left(None, 4) == 5


def test_calls_without_gradients_in_each_update_are_usual():
    loop = Loop()
    loop.watch()
    for number in range(6):
        with torch.no_grad():
            for _ in range(1 + (number == 3)):
                loop.model(loop.batch)
        loop.step()
    assert loop.why_not == [FIRST, "", "evaluation", "", ""]


@pytest.mark.parametrize("what", ["model", "optimizer", "what a wrapper holds"])
def test_an_update_in_which_a_checkpoint_is_written_does_not_count(what):
    loop = Loop()
    wrapper = Wrapper(loop.model)
    loop.watch(models=[wrapper])
    for number in range(6):
        loop.optimizer.zero_grad()
        wrapper(loop.batch).sum().backward()
        if number == 3:
            {"model": wrapper, "optimizer": loop.optimizer, "what a wrapper holds": loop.model}[what].state_dict()
        loop.optimizer.step()
    assert loop.why_not == [FIRST, "", "a checkpoint was written", "", ""]


def test_an_average_that_asks_for_the_state_in_each_update_is_usual():
    loop = Loop()
    loop.watch()
    for number in range(6):
        loop.step()
        loop.model.state_dict()
        if number == 3:
            loop.optimizer.state_dict()
    assert loop.why_not == [FIRST, "", "", "a checkpoint was written", ""]


def test_what_is_usual_and_missing_is_told():
    loop = Loop()
    loop.watch()
    for number in range(6):
        loop.step()
        if number != 3:
            loop.model.state_dict()
    assert loop.why_not == [FIRST, "", "", "usual is: a checkpoint was written", ""]


def test_an_exception_between_two_updates_shows():
    def fail():
        raise RuntimeError("no")

    loop = Loop()
    loop.watch()
    loop.steps(3)
    with pytest.raises(RuntimeError):
        loop.model(loop.batch)
        fail()
    loop.steps(3)
    with pytest.raises(RuntimeError):
        loop.optimizer.step(fail)
    loop.steps(3)
    assert loop.why_not == [FIRST, "", "2 micro-batches, not 1", "", "", "an exception", "", ""]


def test_a_batch_that_cannot_be_loaded_shows():
    loop = Loop(samples=40)
    loop.watch(loop.loader)
    batches = iter(loop.loader)
    for number in range(7):
        loop.breaks = number == 3
        if loop.breaks:
            with pytest.raises(OSError):
                next(batches)
        loop.step(next(batches))
    assert loop.why_not == [FIRST, "", "an exception", "", "", ""]
    assert loop.seen("seconds") == [1.25, 1.25, 1.5, 1.25, 1.25, 1.25]


def test_a_loop_that_ctrl_c_ended_goes_on_with_a_new_epoch():
    loop = Loop()
    loop.watch(loop.loader)
    with pytest.raises(KeyboardInterrupt):
        for index, batch in enumerate(loop.loader):
            if index == 3:
                raise KeyboardInterrupt
            loop.step(batch)
    loop.clock.now += 1000
    loop.epoch()
    assert loop.why_not == [FIRST, "", BEGAN, "", "", "", ""]


def test_an_exception_of_a_callback_comes_out_of_step_and_the_next_unit_is_told():
    loop = Loop()

    def on_unit(unit):
        loop.units.append(unit)
        if len(loop.units) == 2:
            raise LookupError("mine")

    loop.watch(on_unit=on_unit)
    loop.steps(2)
    with pytest.raises(LookupError, match="mine"):
        loop.step()
    loop.steps(2)
    assert loop.boundary.updates == 5 and loop.why_not == [FIRST, "", "", ""]


# Loaders.

def by_iter_and_next(loader):
    batches = iter(loader)
    while True:
        try:
            yield next(batches)
        except StopIteration:
            return


def as_a_progress_bar(loader):
    count = len(loader)
    for batch in loader:
        yield batch
        count -= 1
    assert count == 0


FORMS = [by_iter_and_next, as_a_progress_bar, lambda loader: (batch for batch, _ in zip(loader, range(99))),
         lambda loader: (batch for _, batch in enumerate(loader))]


@pytest.mark.parametrize("over", FORMS, ids=["iter and next", "progress bar", "zip", "enumerate"])
def test_a_pass_is_seen_in_whatever_way_the_loader_is_gone_over(over):
    loop = Loop()
    loop.watch(loop.loader)
    loop.epoch(over(loop.loader))
    loop.epoch(over(loop.loader))
    assert loop.why_not == TWO_PASSES
    assert loop.seen("wait_s") == [0.25] * 9
    assert (loop.boundary.epochs, loop.boundary.batches_seen) == (2, 10)


def test_epochs_that_are_left_early_are_as_long_as_the_loop_makes_them():
    loop = Loop()
    loop.watch(loop.loader)
    left = []
    for _ in range(3):
        for index, batch in enumerate(loop.loader):
            loop.step(batch)
            left.append(loop.boundary.updates_left(None, 4))
            if index == 2:
                break
    assert loop.why_not == [FIRST, "", BEGAN, "", "", BEGAN, "", ""]
    assert left == [19, 18, 17, 8, 7, 6, 5, 4, 3]  # As long as the loader says, until an epoch was seen.
    assert loop.boundary.batches_an_epoch == 5 and loop.boundary.epochs == 3


@pytest.mark.parametrize("samples, over", [(20, lambda loop: loop.step(next(iter(loop.loader)))), (4, Loop.epoch)],
                         ids=["next(iter(loader))", "one batch an epoch"])
def test_a_pass_that_begins_in_each_update_is_usual(samples, over):
    loop = Loop(samples)
    loop.watch(loop.loader)
    for _ in range(6):
        over(loop)
    assert loop.why_not == [FIRST, "", "", "", ""] and loop.seen("wait_s") == [0.25] * 5


def test_a_loop_without_a_loader_has_units_that_wait_for_nothing():
    loop = Loop()
    loop.watch()
    loop.steps(4)
    assert loop.why_not == [FIRST, "", ""] and loop.seen("seconds") == [1.0] * 3 and loop.seen("wait_s") == [0.0] * 3
    boundary = loop.boundary
    assert boundary.loader_refusal == "no loader was given" and boundary.batches_an_epoch is None
    assert boundary.updates_left(7, None) == 3 and boundary.updates_left(3, None) == 0
    assert boundary.updates_left(None, 7) is None and boundary.updates_left(None, None) is None


def test_of_another_iterable_only_the_length_is_known():
    loop = Loop()
    batches = list(loop.loader)
    loop.watch(batches)
    loop.epoch(batches)
    loop.epoch(batches)
    assert loop.why_not == [FIRST, *[""] * 8]
    boundary = loop.boundary
    assert boundary.loader_refusal == "a list does not tell of its epochs"
    assert (boundary.epochs, boundary.batches_an_epoch, boundary.updates_left(None, 3)) == (0, 5, 5)


def test_the_queue_is_what_all_workers_of_a_dataloader_prepare():
    loop = Loop()
    data = loop.loader.dataset
    optimized, _ = hr.DataPipelineOptimizer(num_workers=1, prefetch_factor=5).optimize_loader(DataLoader(data, 4))
    loaders = [DataLoader(data, 4, num_workers=2, prefetch_factor=3), DataLoader(data, 4, num_workers=2), loop.loader, optimized,
               list(loop.loader), None]
    assert [Boundary([loop.model], [loop.optimizer], loader, on_unit=print, before_update=print).queue for loader in loaders] == [
        6, 4, 0, 5, 0, 0]


def test_a_data_set_without_an_order_is_not_asked_for_its_length():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(row,) for row in torch.randn(20, 4)])

        def __len__(self):
            raise AssertionError

    loop = Loop()
    loop.loader = DataLoader(Stream(), 4, collate_fn=loop.collate)
    loop.watch(loop.loader)
    assert loop.boundary.batches_an_epoch is None and loop.boundary.updates_left(None, 2) is None
    loop.epoch()
    assert loop.boundary.batches_an_epoch == 5 and loop.boundary.updates_left(None, 2) == 5


def test_a_watched_dataloader_looks_as_before():
    loop = Loop()
    settings, shown = dict(vars(loop.loader)), repr(loop.loader)
    loop.watch(loop.loader)
    assert isinstance(loop.loader, DataLoader) and loop.loader.__class__ is DataLoader
    assert type(loop.loader).__name__ == "DataLoader" and repr(loop.loader) == shown
    assert len(loop.loader) == 5 and len(iter(loop.loader)) == 5
    assert dict(vars(loop.loader)) == settings
    with pytest.raises(ValueError, match="DataLoader is initialized"):
        loop.loader.batch_size = 2


def test_a_headrace_loader_is_seen_and_stays_one():
    loop = Loop()
    loop.loader = hr.Loader(user_sources.Images(), batch_size=4, num_workers=0, shuffle=False)
    loop.watch(loop.loader, clock=Ticks())
    assert isinstance(loop.loader, hr.Loader) and type(loop.loader).__name__ == "Loader" and len(loop.loader) == 6
    for _ in range(2):
        for images, labels in loop.loader:
            assert len(images) == len(labels) == 4
            loop.step()
    assert loop.why_not == [FIRST, *[""] * 4, BEGAN, *[""] * 5]
    assert all(0 < unit.wait_s < unit.seconds for unit in loop.units)
    assert (loop.boundary.epochs, loop.boundary.batches_seen, loop.boundary.batches_an_epoch) == (2, 12, 6)
    assert loop.loader.statistics()["num_workers"] == 0
    assert len(iter(loop.loader).request().result()[0]) == 4
    loop.boundary.remove()
    assert type(loop.loader) is hr.Loader


def test_what_a_data_pipeline_optimizer_makes_is_seen():
    loop = Loop()
    loader, _ = hr.DataPipelineOptimizer(num_workers=0).optimize_loader(loop.loader)
    kind = type(loader)
    loop.watch(loader)
    loop.epoch(loader)
    loop.epoch(loader)
    assert loop.why_not == TWO_PASSES and loop.seen("wait_s") == [0.25] * 9
    loop.boundary.remove()
    assert type(loader) is kind


@pytest.mark.parametrize("options", [
    pytest.param({}, marks=pytest.mark.forks, id="fork"),
    pytest.param({"persistent_workers": True}, marks=pytest.mark.forks, id="fork, persistent"),
    pytest.param({"multiprocessing_context": "spawn"}, id="spawn"),
])
def test_workers_start_and_end_as_without_a_boundary(options):
    loop = Loop()
    loop.loader = DataLoader(TensorDataset(torch.randn(20, 4)), 4, num_workers=1, **options)
    loop.watch(loop.loader)
    for _ in range(2):
        for (rows,) in loop.loader:
            loop.step(rows)
    assert loop.why_not == TWO_PASSES
    loop.boundary.remove()
    assert type(loop.loader) is DataLoader and len(list(loop.loader)) == 5


def test_batches_that_another_thread_takes_belong_to_no_unit():
    loop = Loop()
    loop.watch(loop.loader)
    loop.steps(2)
    ready = queue.Queue()
    thread = threading.Thread(target=lambda: [ready.put(batch) for batch in loop.loader])
    thread.start()
    thread.join()
    for _ in range(5):
        loop.step(ready.get())
    assert loop.why_not == [FIRST, *[""] * 5]
    assert loop.seen("wait_s") == [0.0] * 6
    assert (loop.boundary.epochs, loop.boundary.batches_seen, loop.boundary.problem) == (1, 5, None)


def test_two_loaders_that_take_turns_are_a_problem():
    loop = Loop(samples=160)
    loop.watch(loop.loader)
    for batch in loop.loader:
        loop.step(batch)
        loop.step()  # Of another loader's.
    assert loop.boundary.problem == ("two loaders take turns, or a batch serves several updates: 24 of 48 updates took no batch "
                                     "from the loader that was given")
    assert loop.why_not[-1] == loop.boundary.problem


@pytest.mark.parametrize("updates", ["three of a batch", "of one loader, then of another"])
def test_updates_without_a_batch_are_no_problem_where_most_are_alike(updates):
    loop = Loop(samples=80)
    loop.watch(loop.loader)
    for _ in range(2):
        for batch in loop.loader:
            loop.step(batch)
            if updates == "three of a batch":
                loop.steps(2)
        if updates != "three of a batch":
            loop.steps(20)
    assert loop.boundary.updates >= 80 and loop.boundary.problem is None


def test_a_loop_that_never_updates_is_a_problem_until_it_does():
    loop = Loop()
    loop.watch(loop.loader)
    found = []
    for _ in range(3):
        found.append(loop.boundary.problem)
        for batch in loop.loader:
            loop.model(batch)
    assert found == [None] * 3 and loop.boundary.problem == "no update in 3 epochs"
    assert loop.units == [] and loop.boundary.updates == 0
    loop.steps(3)
    assert loop.boundary.problem is None and loop.why_not == [FIRST, ""]


def test_steps_in_another_thread_are_a_problem():
    loop = Loop()
    loop.watch()
    loop.steps(3)
    thread = threading.Thread(target=loop.step)
    thread.start()
    thread.join()
    assert len(loop.units) == 2 and loop.boundary.updates == 3
    loop.step()
    assert loop.boundary.problem == "the optimizer steps in two threads"
    assert loop.why_not == [FIRST, "", "the optimizer steps in two threads"]


# Models of other kinds.

def test_a_model_that_is_not_called_as_a_whole_is_seen_by_its_parts():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 2)

        def loss(self, rows):
            return self.body(rows).sum()

    loop = Loop(samples=32)
    loop.model = Parts()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)
    nothing = hooks_of(loop)
    loop.watch(loop.loader)
    for number, batch in enumerate(loop.loader):
        loop.optimizer.zero_grad()
        loop.model.loss(batch).backward()
        loop.optimizer.step()
        if number == 5:
            with torch.no_grad():
                loop.model.loss(batch)
    assert loop.seen("work") == [1.0, *[16.0] * 6]
    assert loop.why_not == [FIRST, "", "", "", "", "evaluation", ""]
    loop.boundary.remove()
    assert hooks_of(loop) == nothing


def test_a_compiled_model_is_seen_as_others_are():
    loop = Loop()
    model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    loop.model = torch.compile(model, backend="eager")
    loop.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loop.watch()
    loop.steps(4)
    with torch.no_grad():
        loop.model(loop.batch)
    loop.steps(2)
    model.state_dict()
    loop.steps(2)
    assert loop.why_not == [FIRST, "", "", "evaluation", "", "a checkpoint was written", ""]
    assert loop.seen("work") == [16.0] * 7
    assert loop.boundary.hooked == {"OptimizedModule": "it has a __call__ of its own"}


def test_compiled_code_that_calls_the_model_is_left_whole():
    loop = Loop()
    loop.model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)
    loop.watch()
    loss_of = torch.compile(lambda rows: loop.model(rows).sum(), backend="eager", fullgraph=True)
    compiled = counters["stats"]["unique_graphs"]
    for _ in range(9):
        loop.optimizer.zero_grad()
        loss_of(loop.batch).backward()
        loop.optimizer.step()
    assert loop.why_not == [FIRST, *[""] * 7] and loop.seen("work") == [1.0] * 8
    assert counters["stats"]["unique_graphs"] == compiled + 1


# How calls are seen.

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, inputs, scale=1.0):
        return scale * self.linear(inputs)


class Calling(Two):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


class Keeping(Two):
    def __getstate__(self):
        return dict(vars(self))


class Copying(Two):
    def __deepcopy__(self, memo):
        made = type(self)()
        vars(made).update(vars(self))
        return made


def compiled_in_place():
    model = Two()
    model.compile(backend="eager")
    return model


def loop_of(model):
    loop = Loop()
    loop.model = model
    loop.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return loop


def forward_hooks(module):
    return [key for key, hooks in vars(module).items() if key.startswith(("_forward", "_backward")) and hooks]


def test_while_its_calls_are_seen_a_module_has_no_hook_of_a_call_and_its_own_forward():
    loop = loop_of(Two())
    before, signature = state_of(loop)[:2], inspect.signature(loop.model.forward)
    loop.watch()
    loop.steps(3)
    with torch.no_grad():
        loop.model(loop.batch, scale=2.0)
    loop.steps(2)
    assert loop.why_not == [FIRST, "", "evaluation", ""] and loop.seen("work") == [16.0] * 4
    assert not any(map(forward_hooks, loop.model.modules())) and loop.boundary.hooked == {}
    assert not {"forward", "__getstate__"} & vars(loop.model).keys() and inspect.signature(loop.model.forward) == signature
    loop.boundary.remove()
    assert state_of(loop)[:2] == before


@pytest.mark.parametrize("make, reason", [
    (Calling, "it has a __call__ of its own"), (Keeping, "it copies itself by __getstate__ of its own"),
    (Copying, "it copies itself by __deepcopy__ of its own"), (lambda: torch.fx.symbolic_trace(Two()), "it has a __call__ of its own"),
], ids=["call", "state", "deep copy", "fx"])
def test_where_its_call_or_its_copies_are_its_own_a_hook_sees_the_calls_and_the_reason_is_told(make, reason):
    loop = loop_of(make())
    loop.watch()
    assert loop.boundary.hooked == {type(loop.model).__name__: reason} and COMPILED_CALL not in vars(loop.model)
    loop.steps(4)
    copied = copy.deepcopy(loop.model)
    assert torch.equal(copied(loop.batch), loop.model(loop.batch))
    assert loop.seen("work") == [16.0] * 3
    loop.boundary.remove()
    assert not forward_hooks(loop.model)


def test_a_model_that_is_compiled_in_place_keeps_its_compiled_call():
    loop = loop_of(compiled_in_place())
    own = vars(loop.model)[COMPILED_CALL]
    loop.watch()
    loop.steps(4)
    assert loop.boundary.hooked == {"Two": "it is compiled in place"} and vars(loop.model)[COMPILED_CALL] is own
    assert loop.why_not == [FIRST, "", ""]
    loop.boundary.remove()
    assert vars(loop.model)[COMPILED_CALL] is own and not forward_hooks(loop.model)


@pytest.mark.usefixtures("nothing_compiled")
def test_a_compile_in_place_that_comes_later_stays_and_its_code_is_left_alone():
    loop = loop_of(Two())
    loop.watch()
    assert not is_compiled_in_place(loop.model)
    loop.model.compile(backend="eager")
    own, compiled = vars(loop.model)[COMPILED_CALL], counters["stats"]["unique_graphs"]
    loop.steps(6)
    assert loop.why_not == [FIRST, *[""] * 4] and loop.seen("work") == [1.0] * 5
    assert not forward_hooks(loop.model.linear) and COMPILED_CALL not in vars(loop.model.linear)
    loop.boundary.remove()
    loop.steps(2)
    assert vars(loop.model)[COMPILED_CALL] is own and is_compiled_in_place(loop.model)
    assert counters["stats"]["unique_graphs"] == compiled + 1


@pytest.mark.usefixtures("nothing_compiled")
def test_calls_of_a_model_that_is_compiled_under_another_name_are_seen_and_nothing_is_compiled_anew():
    loop = loop_of(Two())
    model, compiled = loop.model, counters["stats"]["unique_graphs"]
    loop.model = torch.compile(model, backend="eager")
    loop.step()
    loop.watch(models=[model])
    loop.steps(4)
    assert loop.why_not == [FIRST, "", ""] and loop.seen("work") == [16.0] * 3
    loop.boundary.remove()
    loop.steps(2)
    assert counters["stats"]["unique_graphs"] == compiled + 1


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("kind", [Two, Keeping], ids=["without a hook", "by a hook"])
def test_calls_of_several_inputs_are_seen_where_a_model_is_compiled_whole_under_another_name(kind):
    class Adding(kind):
        def forward(self, inputs, others):
            return self.linear(inputs + others)

    loop = loop_of(Adding())
    model, compiled = loop.model, counters["stats"]["unique_graphs"]
    whole = torch.compile(model, backend="eager", fullgraph=True)
    loop.model = lambda inputs: whole(inputs, others=inputs + 1)
    loop.watch(models=[model])
    loop.steps(4)
    assert loop.why_not == [FIRST, "", ""] and loop.seen("work") == [32.0] * 3
    loop.boundary.remove()
    loop.steps(2)
    assert counters["stats"]["unique_graphs"] == compiled + 1


def test_a_forward_of_the_instances_own_is_called_and_stays_also_one_that_is_put_there_later():
    loop, calls = loop_of(Two()), []

    def forward(self, inputs):
        calls.append("own")
        return Two.forward(self, inputs)

    own = loop.model.forward = types.MethodType(forward, loop.model)
    loop.watch()
    loop.steps(3)
    assert vars(loop.model)["forward"] is own
    later = loop.model.forward = lambda inputs: own(inputs)
    loop.steps(2)
    assert calls == ["own"] * 5 and loop.why_not == [FIRST, "", "", ""] and loop.seen("work") == [16.0] * 4
    loop.boundary.remove()
    assert vars(loop.model)["forward"] is later and COMPILED_CALL not in vars(loop.model)


def test_hooks_of_the_users_own_run_once_a_call_in_their_order_and_may_change_what_is_called():
    loop, order = loop_of(Two()), []
    first = loop.model.register_forward_pre_hook(lambda module, args: order.append("first"))
    loop.watch()
    loop.model.register_forward_pre_hook(lambda module, args, kwargs: (order.append("second"), ((2 * args[0],), kwargs))[1],
                                         with_kwargs=True)
    loop.model.register_forward_hook(lambda module, args, result: order.append("behind"))
    loop.steps(3)
    everywhere = nn.modules.module.register_module_forward_pre_hook(
        lambda module, args: order.append("global") if module is loop.model else None)
    loop.step()
    everywhere.remove()
    assert order == [*["first", "second", "behind"] * 3, "global", "first", "second", "behind"]
    assert loop.why_not == [FIRST, "", ""] and loop.seen("work") == [16.0] * 3  # Of what the loop gives.
    with torch.no_grad():
        assert torch.equal(loop.model(loop.batch), loop.model.forward(2 * loop.batch))
    first.remove()
    loop.boundary.remove()
    assert len(loop.model._forward_pre_hooks) == len(loop.model._forward_hooks) == 1


def test_an_exception_of_the_forward_passes_as_it_is_and_its_call_is_counted():
    loop = loop_of(Two())
    loop.watch()
    loop.steps(3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        loop.model(torch.randn(4, 5))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'inputs'"):
        loop.model()
    loop.steps(2)
    assert loop.why_not == [FIRST, "", "3 micro-batches, not 1", ""]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickled(one)], ids=["copy", "deep copy", "pickle"])
def test_a_copy_of_what_sees_the_calls_is_none(copied):
    loop = loop_of(Two())
    loop.watch()
    assert copied(vars(loop.model)[COMPILED_CALL]) is None


def test_a_state_that_was_kept_while_calls_were_seen_brings_nothing_back():
    loop = loop_of(Two())
    loop.watch()
    state = CallState(loop.model)
    loop.boundary.remove()
    state.restore()
    assert COMPILED_CALL not in vars(loop.model)


def test_a_data_parallel_is_seen_and_where_it_would_copy_the_model_by_a_hook(monkeypatch):
    class Elsewhere(Two):
        def parameters(self, recurse=True):
            return iter([types.SimpleNamespace(is_cuda=True)])

    loop = loop_of(nn.DataParallel(Two()))
    loop.watch()
    loop.steps(4)
    assert loop.why_not == [FIRST, "", ""] and loop.seen("work") == [16.0] * 3
    loop.boundary.remove()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert why_hooked(Two()) is None
    assert why_hooked(Elsewhere()) == "there are several GPUs, for each of which a DataParallel would copy what stands on it"


def test_calls_of_a_script_module_are_not_seen_and_its_updates_are():
    loop = loop_of(torch.jit.script(nn.Sequential(nn.Linear(4, 2))))
    loop.watch(loop.loader)
    loop.epoch()
    assert loop.why_not == [FIRST, "", "", ""] and loop.seen("work") == [1.0] * 4 and loop.boundary.hooked == {}
    loop.boundary.remove()
    loop.epoch()
    assert len(loop.units) == 4


def test_of_two_boundaries_on_one_model_the_second_sees_its_calls_by_a_hook():
    loop = loop_of(Two())
    loop.watch()
    first, units = loop.boundary, []
    optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)
    loop.watch(optimizers=[optimizer], on_unit=units.append)
    assert loop.boundary.hooked == {"Two": "another autotune sees its calls"}
    loop.steps(3)
    first.remove()
    for _ in range(3):
        loop.model(loop.batch).sum().backward()
        optimizer.step()
    assert loop.seen("work") == [16.0] * 2 and [unit.work for unit in units] == [16.0] * 2
    loop.boundary.remove()
    assert not forward_hooks(loop.model) and COMPILED_CALL not in vars(loop.model)


class Follower:
    """Candidates that are never on, so that a native tuner can follow a loop."""

    def __init__(self, loop, told=None):
        self.tuner = _core.LiveTuner(self, [], {"allow": "rounding", "gain_min": 0.02, "only": [], "fixed": [], "frozen": False,
                                                "spent_s": 0.0}, 0, {} if told is None else {"began": told}, loop.clock)

    def apply(self, settings):
        raise AssertionError("nothing is to be switched")

    def updates_left(self):
        return None

    def seen(self):
        return self.tuner.result({"title": "", "command": "", "note": "", "baseline": {}, "not_tried": [], "settings": []})[0]


def updates_of(follower):
    return json.loads(follower.seen())["updates"]


def test_a_tuner_that_follows_is_told_of_each_unit_and_python_of_none():
    loop, followed = Loop(), []
    follower = Follower(loop)
    loop.watch(on_followed=followed.append)
    loop.boundary.ask_before_updates(False)
    loop.steps(4)
    told = len(loop.units)
    loop.boundary.follow(follower.tuner)
    loop.steps(3)
    assert len(loop.units) == told and followed == [] and updates_of(follower) == 3 and len(loop.asked) == 0
    loop.boundary.follow(None)
    loop.steps(2)
    assert len(loop.units) == told + 2 and updates_of(follower) == 3


def test_python_is_called_back_where_it_asked_and_where_a_setting_ended():
    loop, followed, ended = Loop(), [], {}
    follower = Follower(loop)
    loop.watch(on_followed=followed.append)
    loop.steps(4)
    loop.boundary.follow(follower.tuner, ended)
    loop.units.clear()
    loop.boundary.call_back()
    loop.steps(2)
    assert len(loop.units) == 1 and updates_of(follower) == 1  # The second.
    ended["model.compile"] = "it recompiles"
    loop.steps(2)
    assert len(loop.units) == 3 and updates_of(follower) == 1 and followed == []


def test_a_tuner_that_raises_is_told_and_the_step_ends():
    loop, followed = Loop(), []

    def raising(text):
        raise LookupError("no such log")

    follower = Follower(loop, raising)
    loop.watch(on_followed=followed.append)
    loop.steps(3)
    loop.boundary.follow(follower.tuner)
    loop.steps(40)
    assert [error.args for error in followed if error is not None] == [("no such log",)]
    assert loop.boundary.updates == 43 and not loop.boundary.is_telling


def test_a_distributed_wrapper_is_seen_and_what_it_holds_too():
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        loop = Loop()
        inner = loop.model
        loop.model = nn.parallel.DistributedDataParallel(inner)
        loop.watch()
        loop.steps(4)
        inner.state_dict()
        loop.steps(2)
        assert loop.why_not == [FIRST, "", "", "a checkpoint was written", ""] and loop.seen("work") == [16.0] * 5
        loop.boundary.remove()
    finally:
        distributed.destroy_process_group()


# Nothing left behind.

class Whole(torch.optim.SGD):
    """Its copies have all that it has."""

    def __getstate__(self):
        return dict(vars(self))


def pickled(thing):
    text = pickle.dumps(thing)
    assert b"headrace" not in text
    return pickle.loads(text)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled], ids=["copy", "deep copy", "pickle"])
def test_copies_of_the_users_objects_tell_nobody(copied):
    loop = Loop()
    loop.model = nn.Sequential(nn.Linear(4, 2))
    loop.loader = DataLoader(TensorDataset(torch.randn(20, 4)), 4)
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.01)
    loop.watch(loop.loader)
    loop.steps(4)
    loader = copied(loop.loader)
    assert type(loader) is DataLoader and len(list(loader)) == 5
    optimizer = copied(loop.optimizer)
    optimizer.step()
    optimizer.state_dict()
    model = copied(loop.model)
    with torch.no_grad():
        model(loop.batch)
    assert COMPILED_CALL in vars(loop.model) and COMPILED_CALL not in vars(model)
    if copied is not copy.copy:  # A module's copy shares its hooks, ours and others.
        model.state_dict()
    loop.steps(2)
    assert loop.why_not == [FIRST, "", "", "", ""] and loop.boundary.epochs == 0


def test_the_copy_of_an_optimizer_that_copies_its_hooks_tells_nobody():
    loop = Loop()
    loop.optimizer = Whole(loop.model.parameters(), lr=0.01)
    others = []
    loop.watch()
    loop.optimizer.register_step_post_hook(lambda *_: others.append(1))
    loop.steps(3)
    second = copy.deepcopy(loop.optimizer)
    second.step()
    second.state_dict()
    loop.steps(2)
    assert len(others) == 6 and loop.boundary.updates == 5 and loop.why_not == [FIRST, "", "", ""]


def test_remove_leaves_no_trace_and_may_be_called_again():
    loop = Loop()
    before = state_of(loop)
    loop.watch(loop.loader)
    assert state_of(loop) != before
    loop.boundary.install()
    loop.boundary.remove()
    assert state_of(loop) == before
    loop.boundary.remove()
    assert state_of(loop) == before


def test_a_pass_under_way_goes_on_unseen_after_remove():
    loop = Loop()
    loop.watch(loop.loader)
    count = 0
    for batch in loop.loader:
        loop.step(batch)
        count += 1
        if count == 3:
            loop.boundary.remove()
    assert count == 5 and loop.boundary.batches_seen == loop.boundary.updates == 3 and len(loop.units) == 2


def test_after_remove_a_boundary_can_be_installed_again_and_begins_with_an_update():
    loop = Loop()
    loop.watch()
    loop.steps(3)
    loop.boundary.remove()
    loop.steps(5)
    loop.boundary.install()
    loop.steps(3)
    assert loop.boundary.updates == 6 and loop.why_not == [FIRST, "", "", ""] and loop.seen("seconds") == [1.0] * 4


@pytest.mark.parametrize("where", ["on_unit", "before_update"])
def test_remove_from_within_a_hook_leaves_no_trace_and_others_hooks_at_work(where):
    loop = Loop()
    calls = []
    nothing = hooks_of(loop)

    def leave(*unit):
        calls.append(where)
        if len(calls) == 3:
            loop.boundary.remove()

    others = []
    loop.watch(loop.loader, **{where: leave})
    installed = hooks_of(loop)
    loop.step()
    kept = [loop.optimizer.register_step_pre_hook(lambda *_: others.append("pre")),
            loop.optimizer.register_step_post_hook(lambda *_: others.append("post"))]
    loop.epoch()
    loop.epoch()
    assert others == ["pre", "post"] * 10 and len(calls) == 3
    for hook in kept:
        hook.remove()
    assert hooks_of(loop) == nothing != installed


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "behind another's"])
@pytest.mark.parametrize("hook", [1, 2], ids=["before the step", "behind the step"])
def test_remove_in_another_thread_as_a_step_hook_begins_leaves_the_step_alone(hook, others, monkeypatch):
    loop = Loop()
    for register in (loop.optimizer.register_step_pre_hook, loop.optimizer.register_step_post_hook):
        for _ in range(others):
            register(lambda *_: None)
    nothing = hooks_of(loop)
    loop.watch()
    loop.steps(3)
    begun = []

    def begin():  # The first that either hook calls: its native call is still to come.
        begun.append(None)
        if len(begun) == hook:
            thread = threading.Thread(target=loop.boundary.remove)
            thread.start()
            thread.join()
        return False

    monkeypatch.setattr(_boundary, "is_dynamo_compiling", begin)
    before = loop.model.linear.weight.detach().clone()
    loop.step()
    assert len(begun) == hook and hooks_of(loop) == nothing
    assert not torch.equal(loop.model.linear.weight, before)
    assert loop.boundary.updates == 3 and loop.why_not == [FIRST, ""] and loop.boundary.problem is None


@pytest.mark.parametrize("shared", ["optimizer", "loader"])
def test_a_second_boundary_on_the_same_object_is_refused_and_the_first_goes_on(shared):
    loop = Loop()
    loop.watch(loop.loader)
    before = hooks_of(loop)
    model = nn.Linear(4, 2)
    optimizer = loop.optimizer if shared == "optimizer" else torch.optim.SGD(model.parameters(), lr=0.1)
    second = Boundary([model], [optimizer], loop.loader if shared == "loader" else None, on_unit=print, before_update=print)
    with pytest.raises(InvalidArgumentError, match=f"autotune: {shared}: wanted one that is not tuned yet, found .* another"):
        second.install()
    assert hooks_of(loop) == before and not model._forward_pre_hooks
    loop.epoch()
    loop.epoch()
    assert loop.why_not == TWO_PASSES
