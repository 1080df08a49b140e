"""Loaders of runs that go on: whatever loads the batches, they are the same in the same order, and the loader is given back."""

import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import threading

import headrace as hr
import numpy
import pytest
import torch
from headrace import _core, _worker_look
from headrace._boundary import Boundary
from headrace._live_loader import LiveLoader
from headrace.errors import InvalidArgumentError, UnsupportedError
from planted_loop import FASTER, FUSED, Loop
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, get_worker_info

WORKERS, PREFETCH, CACHE = "data.num_workers", "data.prefetch_batches", "data.cache"
ARMS = [{WORKERS: "1"}, {WORKERS: "0"}, {}, {WORKERS: "3"}, {WORKERS: "2", PREFETCH: "3"}, {WORKERS: "0"}, {WORKERS: "2"}]


class Rows(Dataset):
    """A sample tells its index."""

    def __init__(self, count=96):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([index, index * index % 7])


class Processes(Rows):
    """And the process that loaded it."""

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()])


class Prepared(Rows):
    """And whether its worker was prepared."""

    is_prepared = False

    def __getitem__(self, index):
        return torch.tensor([index, int(self.is_prepared)])


def prepare(worker):
    get_worker_info().dataset.is_prepared = True


class Shuffled:
    """A batch sampler that draws at once when it is begun, from the global generator, and counts that."""

    def __init__(self, count, size=3):
        self.count, self.size = count, size
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        order = torch.randperm(self.count).tolist()
        return iter([order[i:i + self.size] for i in range(0, self.count, self.size)])

    def __len__(self):
        return -(-self.count // self.size)


class AsItGoes:
    """A sampler that draws each index when it is asked for it, from the global generator."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for _ in range(self.count):
            yield int(torch.randint(self.count, ()))

    def __len__(self):
        return self.count


def seeded(seed=7):
    return torch.Generator().manual_seed(seed)


# Made anew for each loader, because generators and samplers go on.
COMBINATIONS = {
    "in order": lambda: {"batch_size": 3},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True},
    "by a generator": lambda: {"batch_size": 3, "shuffle": True, "generator": seeded()},
    "drop_last": lambda: {"batch_size": 5, "shuffle": True, "drop_last": True},
    "with replacement": lambda: {"batch_size": 3, "sampler": RandomSampler(Rows(), True, 96, seeded(3)), "generator": seeded()},
    "batch sampler": lambda: {"batch_sampler": Shuffled(96)},
    "sample by sample": lambda: {"batch_size": None, "shuffle": True},
    "pin_memory": lambda: {"batch_size": 3, "pin_memory": True},
}
OF_WORKERS = {
    "persistent": lambda: {"batch_size": 3, "shuffle": True, "persistent_workers": True},
    "persistent, by a generator": lambda: {"batch_size": 3, "shuffle": True, "persistent_workers": True, "generator": seeded()},
    "persistent, batch sampler": lambda: {"batch_sampler": Shuffled(96), "persistent_workers": True},
    "timeout": lambda: {"batch_size": 3, "shuffle": True, "timeout": 60},
    "prefetch of one": lambda: {"batch_size": 3, "shuffle": True, "prefetch_factor": 1},
}
CASES = [pytest.param(make, workers, id=f"{name}, {workers} workers")
         for workers in (0, 2) for name, make in COMBINATIONS.items()] + [
    pytest.param(make, 2, id=name) for name, make in OF_WORKERS.items()]


@pytest.fixture(autouse=True)
def children():
    """Worker processes that are there because of the test; none may be left, but those of a loader that it still holds."""
    before = set(multiprocessing.active_children())
    return lambda: set(multiprocessing.active_children()) - before


def record(loader, epochs=2, after=lambda: None):
    """Every batch, and where each epoch ends the states of the generators."""
    torch.manual_seed(5)
    found = []
    for _ in range(epochs):
        for batch in loader:
            found.append(batch.clone())
            torch.rand(2)  # As dropout.
            after()
        found.append(torch.get_rng_state())
        if loader.generator is not None:
            found.append(loader.generator.get_state())
    return found


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    different = [i for i, (mine, other) in enumerate(zip(ours, theirs)) if not torch.equal(mine, other)]
    assert different == []


def switching(live, arms, every):
    """To be called after each batch: the next arm after each `every` of them. Counts the switches."""
    turns, switches = itertools.cycle(arms), []

    def after():
        after.batches += 1
        if after.batches % every == 0:
            live.set(next(turns))
            switches.append(after.batches)

    after.batches, after.switches = 0, switches
    return after


def followed(loader):
    live = LiveLoader(loader)
    live.follow()
    return live


# Order, bytes and generators.

@pytest.mark.forks
@pytest.mark.parametrize("make, workers", CASES)
def test_batches_order_and_generators_are_those_of_the_plain_loader_whatever_loads_them(make, workers, children):
    plain = record(DataLoader(Rows(), num_workers=workers, **make()))
    loader = DataLoader(Rows(), num_workers=workers, **make())
    live = followed(loader)
    after = switching(live, ARMS, max(1, len(loader) * 2 // 30))
    assert_same(record(loader, after=after), plain)
    assert len(after.switches) >= 30
    live.undo()
    loader._iterator = None
    assert children() == set()


@pytest.mark.forks
@pytest.mark.parametrize("arm", [{WORKERS: "0"}, {WORKERS: "1"}, {WORKERS: "3", PREFETCH: "5"}], ids=["none", "one", "three"])
@pytest.mark.parametrize("make, workers", CASES)
def test_epochs_that_begin_under_other_settings_draw_what_the_plain_loader_draws(make, workers, arm):
    plain = record(DataLoader(Rows(), num_workers=workers, **make()))
    loader = DataLoader(Rows(), num_workers=workers, **make())
    LiveLoader(loader).set(arm)
    assert_same(record(loader), plain)


@pytest.mark.forks
def test_each_sample_comes_once_in_an_epoch():
    torch.manual_seed(5)
    loader = DataLoader(Rows(), 3, shuffle=True, num_workers=2)
    live = followed(loader)
    after = switching(live, ARMS, 2)
    orders = []
    for _ in range(2):
        orders.append([])
        for batch in loader:
            orders[-1] += batch[:, 0].tolist()
            after()
    assert [sorted(order) for order in orders] == [list(range(96))] * 2
    assert orders[0] != orders[1] != list(range(96))


@pytest.mark.forks
def test_a_sampler_that_draws_as_it_goes_is_asked_when_the_plain_loader_would_ask_it():
    def states(loader, after=lambda: None):
        torch.manual_seed(5)
        found = []
        for batch in loader:
            found += [batch.clone(), torch.get_rng_state()]
            torch.rand(2)
            after()
        return [*found, torch.get_rng_state()]

    def made():
        return DataLoader(Rows(), 3, sampler=AsItGoes(96), num_workers=2)

    plain, loader = states(made()), made()
    live = followed(loader)
    arms = [{WORKERS: "1"}, {}, {WORKERS: "0"}, {WORKERS: "1"}, {WORKERS: "0"}, {}]
    assert_same(states(loader, switching(live, arms, 2)), plain)


@pytest.mark.forks
def test_new_workers_are_prepared_as_the_first_ones():
    def made():
        return DataLoader(Prepared(), 3, shuffle=True, num_workers=2, worker_init_fn=prepare)

    plain, loader = record(made()), made()
    assert all(bool(batch[:, 1].all()) for batch in plain if batch.dim() == 2)
    live = followed(loader)
    assert_same(record(loader, after=switching(live, [{WORKERS: "3"}, {WORKERS: "1"}, {}], 2)), plain)


@pytest.mark.forks
@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_is_other_while_nothing_is_set(workers):
    class Draws(Rows):
        def __getitem__(self, index):
            return torch.rand(2) + random.random()

    def made():
        return DataLoader(Draws(), 3, shuffle=True, num_workers=workers)

    random.seed(1)
    plain, loader = record(made()), made()
    followed(loader)
    random.seed(1)
    assert_same(record(loader), plain)


# What loads, and how far ahead.

def pids(batches, count):
    return {pid for _ in range(count) for pid in next(batches)[:, 1].tolist()}


@pytest.mark.forks
def test_what_was_loaded_before_a_switch_is_given_out_first_and_is_no_more_than_the_queue():
    loader = DataLoader(Processes(400), 2, num_workers=2)
    live = followed(loader)
    assert live.queue() == 4  # As it will be.
    batches = iter(loader)
    both = pids(batches, 8)
    assert len(both) == 2 and os.getpid() not in both and live.queue() == 4
    live.set({WORKERS: "1"})
    assert live.queue() == 4 and pids(batches, 4) == both
    one = pids(batches, 8)
    assert len(one) == 1 and one < both and live.queue() == 2
    live.set({WORKERS: "0"})
    assert live.queue() == 2 and pids(batches, 2) == one and live.queue() == 0
    assert pids(batches, 8) == {os.getpid()}
    live.set({WORKERS: "3"})
    assert live.queue() == 6
    three = pids(batches, 9)
    assert len(three) == 3 and not three & (both | {os.getpid()})
    live.set({WORKERS: "3", PREFETCH: "4"})
    assert live.queue() == 12 and pids(batches, 12) == three
    live.set({})
    assert live.queue() == 12 and pids(batches, 12) == three
    assert pids(batches, 8) == both and live.queue() == 4


@pytest.mark.forks
def test_workers_of_a_loader_without_any_come_and_go():
    loader = DataLoader(Processes(80), 2)
    live = followed(loader)
    assert live.queue() == 0
    batches = iter(loader)
    assert pids(batches, 3) == {os.getpid()}
    live.set({WORKERS: "2"})
    assert live.queue() == 4
    workers = pids(batches, 8)
    assert len(workers) == 2 and os.getpid() not in workers
    live.set({})
    assert pids(batches, 4) == workers and pids(batches, 4) == {os.getpid()}


@pytest.mark.forks
def test_settings_hold_for_the_epochs_to_come():
    loader = DataLoader(Processes(40), 2, num_workers=2)
    live = LiveLoader(loader)
    live.set({WORKERS: "0"})
    assert pids(iter(loader), 20) == {os.getpid()}
    live.set({WORKERS: "1"})
    assert len(pids(iter(loader), 20)) == 1
    live.set({WORKERS: "3"})
    assert len(pids(iter(loader), 20)) == 3
    live.set({})
    assert len(pids(iter(loader), 20)) == 2


@pytest.mark.forks
def test_what_is_kept_goes_on_alone(children):
    loader = DataLoader(Processes(40), 2, shuffle=True, num_workers=2)
    live = followed(loader)
    batches = iter(loader)
    next(batches)
    live.set({WORKERS: "3"})
    assert len(children()) == 5
    live.keep_only()
    rest = list(batches)
    assert len(rest) == 19 and children() == set()
    begun = iter(loader)
    assert len(pids(begun, 10)) == 3 and len(children()) == 3
    live.set({WORKERS: "1"})
    live.keep_only()
    del begun
    assert len(pids(iter(loader), 10)) == 1
    live.undo()
    assert type(loader) is DataLoader and len(pids(iter(loader), 10)) == 2


@pytest.mark.forks
def test_pools_that_are_not_kept_end_when_they_have_given_what_they_owe(children):
    loader = DataLoader(Processes(60), 2, num_workers=2)
    live = followed(loader)
    batches = iter(loader)
    first = pids(batches, 4)
    live.set({WORKERS: "3"})
    live.keep_only()
    assert pids(batches, 4) == first
    assert len(pids(batches, 6)) == 3 and len(children()) == 3


@pytest.mark.forks
@pytest.mark.parametrize("persists", [False, True])
def test_a_loop_that_breaks_leaves_no_workers(persists, children):
    loader = DataLoader(Rows(), 3, num_workers=2, persistent_workers=persists)
    live = followed(loader)
    for _ in range(2):
        for i, _ in enumerate(loader):
            live.set({WORKERS: "3"} if i % 2 else {})
            if i == 4:
                break
        assert len(children()) == (5 if persists else 0)
    live.undo()
    loader._iterator = None
    del loader, live
    assert children() == set()


# Undo.

@pytest.mark.forks
@pytest.mark.parametrize("workers, arm", [(0, "2"), (2, "0"), (2, "1"), (2, "3")])
@pytest.mark.parametrize("persists", [False, True])
def test_undo_in_mid_epoch_gives_the_loader_back_and_the_epoch_its_end(workers, arm, persists, children):
    def made():
        return DataLoader(Rows(), 3, shuffle=True, num_workers=workers, persistent_workers=persists and workers > 0)

    def after():
        after.batches += 1
        if after.batches == 5:
            live.set({WORKERS: arm})
        elif after.batches == 10:
            live.undo()
            assert type(loader) is DataLoader
            now.append({key: value for key, value in vars(loader).items() if key != "_iterator"})

    after.batches, now = 0, []
    plain, loader = record(made(), 3), made()
    before = {key: value for key, value in vars(loader).items() if key != "_iterator"}
    live = followed(loader)
    assert_same(record(loader, 3, after), plain)
    assert now == [before]
    if loader.persistent_workers:
        assert type(loader._iterator).__name__ == "_MultiProcessingDataLoaderIter" and len(children()) == 2
        loader._iterator = None
    assert loader._iterator is None and children() == set()


@pytest.mark.forks
@pytest.mark.parametrize("arm", ["0", "3"])
def test_undo_of_what_was_kept_begins_the_workers_as_written_without_another_draw(arm, children):
    def made():
        return DataLoader(Rows(), 3, shuffle=True, num_workers=2, persistent_workers=True)

    plain, loader = record(made(), 3), made()
    live = followed(loader)
    live.set({WORKERS: arm})
    live.keep_only()  # No pool as written was ever there.
    counts = []

    def after():
        counts.append(len(children()))
        if len(counts) == 40:
            live.undo()

    assert_same(record(loader, 3, after), plain)
    assert set(counts[:32]) == {int(arm)} and counts[-1] == 2
    loader._iterator = None


@pytest.mark.forks
def test_workers_that_ran_before_go_on(children):
    def made():
        return DataLoader(Rows(), 3, shuffle=True, num_workers=2, persistent_workers=True)

    plain, loader = record(made(), 4), made()
    ours = record(loader, 1)
    workers = loader._iterator
    live = followed(loader)
    after = switching(live, ARMS, 2)
    for _ in range(2):
        for batch in loader:
            ours.append(batch.clone())
            torch.rand(2)
            after()
        ours.append(torch.get_rng_state())
    live.undo()
    assert loader._iterator is workers and len(children()) == 2
    for batch in loader:
        ours.append(batch.clone())
        torch.rand(2)
    ours.append(torch.get_rng_state())
    assert_same(ours, plain)
    loader._iterator = None


@pytest.mark.forks
def test_a_search_after_another_finds_the_loader_as_the_first_one_did():
    def made():
        return DataLoader(Rows(), 3, shuffle=True, num_workers=2, persistent_workers=True)

    def after():
        after.batches += 1
        if after.batches == 4:
            lives[0].set({WORKERS: "0"})
        elif after.batches == 8:
            lives[0].undo()
            lives.append(followed(loader))
        elif after.batches > 8 and after.batches % 3 == 0:
            lives[1].set(ARMS[after.batches // 3 % len(ARMS)])

    after.batches = 0
    plain, loader = record(made(), 3), made()
    lives = [followed(loader)]
    assert_same(record(loader, 3, after), plain)
    lives[1].undo()
    loader._iterator = None


# Beside others.

@pytest.mark.forks
def test_a_boundary_sees_the_same_epochs_whatever_loads_them():
    loader = DataLoader(Rows(40), 4, num_workers=2)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    live, arms, units = followed(loader), itertools.cycle(ARMS), []
    boundary = Boundary([model], [optimizer], loader, on_unit=units.append, before_update=lambda: None)
    boundary.install()
    for _ in range(2):
        for rows in loader:
            model(rows.float()).sum().backward()
            optimizer.step()
            live.set(next(arms))
    assert (boundary.batches_seen, boundary.epochs, boundary.batches_an_epoch) == (20, 2, 10)
    assert sum(unit.countable for unit in units) >= 17 and all(unit.wait_s > 0 for unit in units)
    live.undo()  # In whatever order,
    boundary.remove()
    live.undo()  # where it is told once more.
    assert type(loader) is DataLoader and len(list(loader)) == 10


EVERY_CORE = f"num_workers {len(os.sched_getaffinity(0))}"  # That there is for a loader without workers.


@pytest.mark.forks
@pytest.mark.usefixtures("one_thread")
def test_an_epoch_that_was_under_way_when_the_tuning_began_judges_no_change_of_loading():
    loop = Loop()
    loop.loader = DataLoader(TensorDataset(torch.randn(16000, 4), torch.randint(0, 2, (16000,))), 8)
    batches = iter(loop.loader)
    loop.step(next(batches))
    handle = loop.autotune(FASTER, only=[FUSED, EVERY_CORE])
    for batch in batches:
        loop.step(batch)
        if handle.kept:
            break
    loading, fused = sorted(handle.trials, key=lambda trial: trial.name == FUSED)
    assert (fused.verdict, loading.name, loading.verdict, loading.pairs) == ("kept", EVERY_CORE, "failed", 0)
    assert loading.sentence == ("Failed: no epoch of the loader has begun since the tuning did: the loop's batches come from one "
                                "that was under way, or from elsewhere.")
    assert handle.problem is None
    handle.undo()


@pytest.mark.forks
@pytest.mark.usefixtures("one_thread")
def test_a_loop_that_warms_up_on_batches_of_its_own_has_its_loading_tried():
    loop = Loop()
    handle = loop.autotune(only=[EVERY_CORE])
    for _ in range(5):
        loop.step((torch.ones(8, 4), torch.zeros(8, dtype=torch.long)))
    assert loop.run(3000, until=lambda: sum(WORKERS in settings for settings in loop.knobs.applied) > 1)
    assert handle.trials[0].verdict != "failed"
    handle.undo()


@pytest.mark.forks
def test_copies_of_the_loader_are_plain():
    loader = DataLoader(TensorDataset(torch.arange(30)), 3, num_workers=1)
    live = followed(loader)
    live.set({WORKERS: "0"})
    assert isinstance(loader, DataLoader) and loader.__class__ is DataLoader and type(loader).__name__ == "DataLoader"
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert type(other) is DataLoader and type(iter(other)).__name__ == "_MultiProcessingDataLoaderIter"
        assert len(list(other)) == len(loader) == len(iter(loader)) == 10
    live.undo()


@pytest.mark.forks
def test_a_loader_within_another_is_the_one_that_is_changed():
    class Ahead(DataLoader):
        """As Accelerate's."""

        def __init__(self, inner):
            super().__init__(inner.dataset, inner.batch_size)
            self.base_dataloader = inner

        def __iter__(self):
            batches = iter(self.base_dataloader)
            held = next(batches)
            for batch in batches:
                yield held
                held = batch
            yield held

    loader = Ahead(DataLoader(Processes(80), 2, num_workers=2))
    live = followed(loader)
    batches = iter(loader)
    workers = pids(batches, 4)
    assert live.queue() == 5 and live.written() == {WORKERS: 2, PREFETCH: 2}
    live.set({WORKERS: "0"})
    assert pids(batches, 5) == workers and pids(batches, 6) == {os.getpid()}
    live.undo()
    assert type(loader.base_dataloader) is DataLoader


@pytest.mark.forks
def test_a_pass_that_another_thread_takes_is_left_alone():
    loader = DataLoader(Rows(30), 3, num_workers=1)
    live = followed(loader)
    batches, found = iter(loader), []
    thread = threading.Thread(target=next, args=(batches,))
    thread.start()
    thread.join()
    with pytest.raises(UnsupportedError, match="data.num_workers: another thread than the loop's takes the loader's batches"):
        live.set({WORKERS: "0"})
    live.set({})
    thread = threading.Thread(target=lambda: found.extend(batch[0, 0].item() for batch in batches))
    thread.start()
    thread.join()
    assert found == list(range(3, 30, 3))


@pytest.mark.forks
def test_undo_in_a_pass_that_another_thread_takes_goes_back_with_its_next_batch():
    loader = DataLoader(Processes(60), 2, num_workers=1)
    live = followed(loader)
    live.set({WORKERS: "0"})
    batches, found = iter(loader), []
    for act in (live.queue, live.undo):
        act()
        thread = threading.Thread(target=lambda: found.append(pids(batches, 1)))
        thread.start()
        thread.join()
    assert found[0] == {os.getpid()} and len(found[1]) == 1 and found[1] != found[0]
    assert type(loader) is DataLoader


# Exceptions.

class Bad(Rows):
    def __getitem__(self, index):
        if index == 40:
            raise ValueError("sample 40 is torn")
        return super().__getitem__(index)


class Deadly(Rows):
    """No tensors: torch fetches their memory from a socket of the worker's, and may raise ConnectionResetError where it is gone."""

    def __getitem__(self, index):
        if index == 40:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def outcomes(loader, after=lambda: None):
    """Of every call of next(): the first index, or the class of what was raised."""
    batches, found = iter(loader), []
    while True:
        try:
            found.append(next(batches)[0, 0].item())
        except StopIteration:
            return found
        except ValueError as error:
            assert "sample 40 is torn" in str(error)
            found.append(type(error))
        after()


@pytest.mark.forks
@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_the_data_set_comes_where_it_would_and_the_pass_goes_on_behind_it(workers):
    loader = DataLoader(Bad(), 3, num_workers=workers)
    plain = outcomes(loader)
    assert plain.count(ValueError) == 1 and len(plain) == 32
    live = followed(loader)
    for first in range(len(ARMS)):
        assert outcomes(loader, switching(live, ARMS[first:] + ARMS[:first], 2)) == plain


@pytest.mark.forks
def test_what_a_worker_raises_is_torchs_own():
    loader = DataLoader(Bad(), 3, num_workers=2)
    live = followed(loader)
    live.set({WORKERS: "1"})
    with pytest.raises(ValueError, match="^Caught ValueError in DataLoader worker process 0.\nOriginal Traceback"):
        list(loader)


@pytest.mark.forks
@pytest.mark.parametrize("workers, arm", [(0, "1"), (2, "1"), (2, "3")])
def test_a_killed_worker_is_torchs_own_error(workers, arm, children):
    loader = DataLoader(Deadly(), 3, num_workers=workers, collate_fn=list)
    live = followed(loader)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        for i, _ in enumerate(loader):
            if i == 4:
                live.set({WORKERS: arm})
    live.undo()
    gc.collect()  # What was raised holds the epoch.
    assert type(loader) is DataLoader and children() == set()


class ShowsAnother(DataLoader):
    """As Accelerate's loaders do."""

    @property
    def __class__(self):
        return DataLoader


def test_a_loader_that_shows_another_class_goes_on_showing_it():
    loader = ShowsAnother(Rows(), 3)
    live = followed(loader)
    assert type(loader) is not ShowsAnother and loader.__class__ is DataLoader
    live.undo()
    assert type(loader) is ShowsAnother and loader.__class__ is DataLoader


@pytest.mark.forks
def test_workers_that_cannot_be_started_change_nothing(monkeypatch):
    loader = DataLoader(Rows(60), 3, num_workers=2)
    live = followed(loader)
    batches = iter(loader)
    found = [next(batches)[0, 0].item() for _ in range(4)]
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse_to_start)
    with pytest.raises(UnsupportedError, match="data.num_workers: worker processes cannot be started: .*no more processes"):
        live.set({WORKERS: "3"})
    live.set({})
    live.set({WORKERS: "1"})
    found += [batch[0, 0].item() for batch in batches]
    assert found == list(range(0, 60, 3))


def refuse_to_start(process):
    raise OSError(11, "no more processes")


# What is found out beforehand.

class DrawsFromTorch(Rows):
    def __getitem__(self, index):
        return torch.rand(()).round() * 0 + index  # The same whatever it draws.


class DrawsFromPython(Rows):
    def __getitem__(self, index):
        return index + random.random()


class DrawsFromNumpy(Rows):
    def __getitem__(self, index):
        return index + numpy.random.rand()


class DrawsFromItsOwn(Rows):
    def __init__(self):
        super().__init__()
        self.generator = numpy.random.default_rng(3)

    def __getitem__(self, index):
        return index + self.generator.random()


@pytest.mark.forks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data, draws", [
    (Rows(), False), (DrawsFromTorch(), True), (DrawsFromPython(), True), (DrawsFromNumpy(), True), (DrawsFromItsOwn(), True)])
def test_data_that_is_drawn_where_it_is_loaded_is_found(data, draws, workers):
    live = LiveLoader(DataLoader(data, 4, num_workers=workers))
    assert live.context()["workers_change_batches"] is draws and live.refusals() == {}


@pytest.mark.forks
@pytest.mark.parametrize("workers", [0, 1])
def test_looking_at_the_data_disturbs_nothing(workers, children):
    class Counted(Rows):
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            numpy.random.rand()
            random.random()
            return torch.rand(())

    data, sampler, generator = Counted(), Shuffled(96), seeded()
    loader = DataLoader(data, batch_sampler=sampler, num_workers=workers, generator=generator)
    before = dict(vars(loader))
    states = [torch.get_rng_state(), generator.get_state()]
    others = (random.getstate(), numpy.random.get_state()[1].tolist())
    assert LiveLoader(loader).context()["workers_change_batches"] is True
    assert_same([torch.get_rng_state(), generator.get_state()], states)
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == others
    assert data.asked == sampler.begun == 0 and vars(loader) == before and children() == set()


@pytest.mark.forks
def test_where_samples_take_long_the_first_batch_tells(monkeypatch, children):
    plain, answers = _worker_look._ask, []

    def asked(*given, **named):
        answers.append(plain(*given, **named))
        return answers[-1]

    monkeypatch.setattr(_worker_look, "_ask", asked)
    monkeypatch.setattr(_worker_look, "_ASKED_S", -1)
    for data, draws in ((Rows(), False), (DrawsFromNumpy(), True)):
        live = LiveLoader(DataLoader(data, 4))
        assert live.context()["workers_change_batches"] is draws and live.refusals() == {}
    assert [len(found) for found in answers] == [1] * 4 and children() == set()


def test_nothing_is_looked_at_where_no_number_of_workers_is_tried(children, monkeypatch):
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse_to_start)
    for given in ({"fixed": ["data"]}, {"fixed": ["data.num_workers"]}, {"only": ["fused optimizer"]}):
        assert LiveLoader(DataLoader(DrawsFromTorch(), 4)).context(**given)["workers_change_batches"] is False
    assert LiveLoader([1, 2]).context() == {
        "loader": None, "dataloader": None, "loader_type": "list", "has_replacement": False, "replacement_draws": False,
        "workers_change_batches": False}


# What is refused.

class Opened(Rows):
    def __init__(self):
        super().__init__()
        self.file = open(__file__)


class OpensLater(Rows):
    file = None

    def __getitem__(self, index):
        self.file = self.file or open(__file__)
        return super().__getitem__(index)


class OnlyHere(Rows):
    def __getitem__(self, index):
        if get_worker_info() is not None:
            raise ValueError("not in a worker")
        return super().__getitem__(index)


class OnlyThere(Rows):
    def __getitem__(self, index):
        return super().__getitem__(index) + get_worker_info().id


def unsendable(rows):
    return {"rows": rows, "then": lambda: None}


SHARED = "the data set holds a TextIOWrapper .attribute file., which processes cannot share"
MOVES = {
    "an open file": (lambda: DataLoader(Opened(), 4), "2", SHARED),
    "a file that is opened when it is asked": (lambda: DataLoader(OpensLater(), 4), "2", SHARED),
    "a file that workers open": (lambda: DataLoader(OpensLater(), 4, num_workers=2), "0", SHARED),
    "not in workers": (lambda: DataLoader(OnlyHere(), 4), "1",
                       "in a worker process its data set gives no batch: ValueError: not in a worker"),
    "in workers alone": (lambda: DataLoader(OnlyThere(), 4, num_workers=2), "0",
                         "outside of a worker process its data set gives no batch: AttributeError"),
    "what cannot be sent": (lambda: DataLoader(Rows(), 4, collate_fn=unsendable), "1",
                            "in a worker process its data set gives no batch: .*unsendable"),
    "prepared workers": (lambda: DataLoader(Prepared(), 4, num_workers=2, worker_init_fn=prepare), "0",
                         "its worker_init_fn prepares each worker process, and there would be none"),
}


@pytest.mark.forks
@pytest.mark.parametrize("move", MOVES)
def test_loading_stays_where_the_data_set_is_bound_to(move, children):
    make, workers, reason = MOVES[move]
    loader = make()
    live = followed(loader)
    batches = iter(loader)
    found = [next(batches) for _ in range(2)]
    with pytest.raises(UnsupportedError, match=f"autotune: data.num_workers: {reason}"):
        live.set({WORKERS: workers})
    assert bool(live.refusals()) == (loader.num_workers == 0)
    live.set({})
    assert len(found) + len(list(batches)) == 24
    assert children() == set()


class Counting(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class Own(DataLoader):
    def __iter__(self):
        return super().__iter__()


@pytest.mark.parametrize("make, reason", [
    (lambda: DataLoader(Counting(), 2, num_workers=1), "another number of workers would repeat or reorder the samples"),
    (lambda: DataLoader(Rows(), 2, num_workers=2, in_order=False), "with in_order=False the order of the batches depends on the"),
    (lambda: Own(Rows(), 2), "an? Own goes over its batches in a way of its own"),
    (lambda: DataLoader(Rows(), 2, num_workers=1, multiprocessing_context="spawn"), "worker processes start by spawn"),
    (lambda: [1, 2], "a list has no such setting"),
])
def test_what_cannot_change_is_refused_and_left_as_it_is(make, reason):
    loader = make()
    kind = type(loader)
    live = LiveLoader(loader)
    live.follow()
    live.set({})
    with pytest.raises(UnsupportedError, match=f"autotune: data.num_workers: {reason}"):
        live.set({WORKERS: "2" if getattr(loader, "num_workers", 0) != 2 else "1"})
    live.undo()
    assert type(loader) is kind


@pytest.mark.parametrize("key, value", [
    (WORKERS, "-1"), (WORKERS, '"many"'), (WORKERS, "true"), (WORKERS, "x"), (PREFETCH, "0"), (PREFETCH, "1.5")])
def test_values_that_make_no_sense_are_refused(key, value):
    with pytest.raises(InvalidArgumentError, match=f"autotune: {key}: wanted .*, found {value}"):
        LiveLoader(None).check(key, value)


def test_values_that_make_sense_are_not():
    for key, value in [(WORKERS, "0"), (WORKERS, "3"), (PREFETCH, "1"), ("optimizer.fused", "x")]:
        LiveLoader(None).check(key, value)


# headrace.Loader.

@pytest.fixture
def images(tmp_path):
    from PIL import Image

    for number in range(24):
        path = tmp_path / "train" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 40), 60 + number).convert("RGB").save(path)
    transform = {"size": 16, "crop": "random_resized"}
    return lambda: hr.Loader(f"folder:{tmp_path}", batch_size=2, num_workers=1, seed=1, transform=transform)


def epochs(loader, count, after=lambda: None):
    found = []
    for _ in range(count):
        for batch in loader:
            found.append(batch[0].clone())
            after()
    return found


def test_a_headrace_loader_gives_the_same_bytes_under_every_setting_and_is_given_back(images):
    plain, loader = epochs(images(), 3), images()
    options, live = loader.options, followed(loader)
    assert live.written() == {WORKERS: 1, PREFETCH: 2} and live.refusals() == {}
    arms = [{WORKERS: "0"}, {WORKERS: "2", PREFETCH: "5"}, {WORKERS: "1"}, {}, {WORKERS: "2"}, {PREFETCH: "1"}]
    after = switching(live, arms, 1)
    assert_same(epochs(loader, 3, after), plain)
    assert len(after.switches) == 36 and loader.options["prefetch_batches"] == 1
    live.undo()
    assert loader.options == options and type(loader) is hr.Loader


def test_the_queue_of_a_headrace_loader_is_what_it_prepares_under_the_settings_before_and_now(images):
    loader = images()
    live = LiveLoader(loader)
    assert live.queue() == 2
    live.set({PREFETCH: "6"})
    assert live.queue() == 6 and loader.statistics()["prefetch_batches"] == 6
    live.set({WORKERS: "0"})
    assert live.queue() == 6  # As much was prepared.
    live.set({WORKERS: "0", PREFETCH: "3"})
    assert live.queue() == 0
    live.undo()
    assert loader.statistics()["prefetch_batches"] == 2


def test_the_cache_of_a_headrace_loader_is_left_as_it_was_written(images):
    loader = images()
    loader.set_cache("decoded")
    live = LiveLoader(loader)
    live.set({CACHE: '"none"', WORKERS: "2"})
    assert loader.options["cache"] == "decoded" and loader.options["num_workers"] == 2
    epochs(loader, 2)
    assert loader.statistics()["cache_hits"] == 24  # What the first epoch has filled.
    live.keep_only()
    live.undo()
    assert loader.options["cache"] == "decoded" and loader.options["num_workers"] == 1


def test_what_a_headrace_loader_refuses_is_an_error_and_what_was_before_can_be_put_back(images):
    loader = images()
    live = LiveLoader(loader)
    with pytest.raises(hr.errors.Error, match="num_workers"):
        live.set({PREFETCH: "5", WORKERS: "257"})
    live.set({})
    assert loader.options == images().options
    assert_same(epochs(loader, 1), epochs(images(), 1))


def test_the_knob_table_understands_what_is_told_of_a_loader(images):
    for loader in (images(), DataLoader(Rows(), 4), [1]):
        live = LiveLoader(loader)
        found = _core.offer({
            "live": True, "process": {}, "cores": 2, "refused": live.refusals(), "refused_values": live.refused_values(2),
            "run_steps": 100, "budget_s": 0.0, "fixed": [], "intra_op_threads": 1, "fused": False, "drops_out": False,
            **live.context(fixed=["data"])}, "")
        assert {one.key for one in (*found.candidates, *found.not_tried)} >= {WORKERS, PREFETCH, CACHE}
