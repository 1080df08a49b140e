"""headrace.DataPipelineOptimizer on the loaders and data sets of a script."""

import asyncio
import itertools
import multiprocessing
import os
import sys
import threading
import time

import numpy
import pytest
import torch
from cancelled_await import batch_of_a_second_await
from tiny_run import write_photos
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler
from torchvision import datasets, transforms
from user_sources import Noted

import headrace as hr


class Squares:
    """A map-style data set that knows nothing of torch's classes."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([index, index**2]), index


class Processes(Squares):
    """The label is the process that made the sample."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0], os.getpid()


class NotedSquares(Noted, Squares):
    pass


def tensors(count: int = 23) -> TensorDataset:
    return TensorDataset(torch.arange(count * 3).view(count, 3).float(), torch.arange(count))


def assert_same(ours, theirs) -> None:
    compared = 0
    for mine, other in zip(ours, theirs, strict=True):
        pairs = [(mine, other)] if isinstance(mine, torch.Tensor) else zip(mine, other, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        compared += 1
    assert compared > 0


def by_option(report) -> dict:
    assert len({entry.option for entry in report}) == len(report)
    return {entry.option: entry for entry in report}


@pytest.mark.forks
@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_a_poor_loader_comes_back_with_the_settings_asked_for_the_same_samples_and_a_report(generator):
    poor = DataLoader(tensors(), batch_size=4, shuffle=True, generator=generator)
    optimizer = hr.DataPipelineOptimizer(num_workers=2, prefetch_factor=3)
    loader, report = optimizer.optimize_loader(poor)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers, loader.batch_size) == (2, 3, True, 4)
    assert (poor.num_workers, poor.prefetch_factor, poor.persistent_workers) == (0, None, False), "the script's own stays"
    seed = torch.manual_seed if generator is None else generator.manual_seed
    seed(3)
    ours = [list(loader) for _ in range(3)]
    seed(3)
    for epoch in ours:
        assert_same(epoch, poor)
    found = {entry.option: (entry.old, entry.new, entry.applied) for entry in report}
    assert found == {"num_workers": (0, 2, True), "prefetch_factor": (0, 3, True), "persistent_workers": (False, True, True),
                     "enable_async_data_loading": (False, True, True), "pin_memory": (False, True, False)}
    assert {entry.option for entry in report.changed} == found.keys() - {"pin_memory"}
    lines = str(report).splitlines()
    assert "prefetch_factor: 0 -> 3, applied" in lines and "pin_memory: False -> True, not applied: no CUDA" in lines
    status = {key: row for key, *row in loader.applied}
    assert status["num_workers"][:2] == ["2", "2"] and status["pin_memory"] == ["true", "false", "no CUDA"]


@pytest.mark.forks
def test_the_settings_that_nobody_gives_are_those_of_the_seeds():
    class Config:  # As a larger configuration, which has other fields, too.
        num_workers, pin_memory, persistent_workers, prefetch_factor, enable_async_data_loading = 1, False, False, 4, False
        enable_amp = True

    assert hr.DataPipelineOptimizer().config == {
        "num_workers": 4, "batch_size": None, "pin_memory": True, "persistent_workers": True, "prefetch_factor": 2,
        "enable_async_data_loading": True}
    loader, report = hr.DataPipelineOptimizer(Config(), prefetch_factor=5).optimize_loader(tensors())
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers, loader.pin_memory) == (1, 5, False, False)
    assert loader.batch_size == 32 and by_option(report)["batch_size"].old is None and not report.not_applied
    assert_same(loader, DataLoader(tensors(), batch_size=32))
    backwards = DataLoader(tensors(), batch_sampler=BatchSampler(range(22, -1, -1), 4, False))
    loader, _ = hr.DataPipelineOptimizer(num_workers=0, batch_size=8).optimize_loader(backwards)
    assert_same(loader, DataLoader(tensors(), 8, sampler=range(22, -1, -1)))


@pytest.mark.parametrize("config, words", [
    ({"num_worker": 3}, "unknown option num_worker, did you mean num_workers"),
    ({"num_workers": -1}, "num_workers is -1; wanted 0 to 256"), ({"batch_size": 0}, "batch_size is 0"),
    ({"prefetch_factor": 0}, "prefetch_factor is 0"), ({"pin_memory": "yes"}, "pin_memory is 'yes'; wanted True or False"),
])
def test_settings_that_make_no_sense_are_refused(config, words):
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        hr.DataPipelineOptimizer(config)
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        hr.DataPipelineOptimizer(**config)


@pytest.mark.forks
def test_each_option_of_a_dataloader_shows_by_itself(tmp_path):
    plain = {"num_workers": 1, "persistent_workers": False, "prefetch_factor": 2, "enable_async_data_loading": False}

    def loader(data=Processes(), **options):
        return hr.DataPipelineOptimizer({**plain, **options}).optimize_loader(DataLoader(data, batch_size=2))[0]

    def processes(batches) -> set[int]:
        return {process for _, numbers in batches for process in numbers.tolist()}

    assert processes(loader(num_workers=0)) == {os.getpid()}
    assert len(processes(loader(num_workers=2))) == 2 and os.getpid() not in processes(loader(num_workers=2))
    assert [len(numbers) for _, numbers in loader(batch_size=7)] == [7, 7, 7, 3]
    one = loader(num_workers=2, persistent_workers=True)
    assert processes(one) == processes(one)
    other = loader(num_workers=2)
    assert not processes(other) & processes(other)
    # Batches in flight are workers x prefetch_factor.
    batches = iter(loader(NotedSquares(tmp_path), num_workers=2, prefetch_factor=3, batch_size=1))
    for delivered in (1, 2, 3):
        next(batches)
        wait_until(lambda: len(list(tmp_path.iterdir())) == delivered + 6)


def wait_until(is_so) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Gated(Squares):
    """Whose first sample waits until it is let through."""

    def __init__(self):
        self.begun, self.open = threading.Event(), threading.Event()

    def __getitem__(self, index):
        self.begun.set()
        assert self.open.wait(60)
        return super().__getitem__(index)


def test_an_asynchronous_request_returns_before_its_batch_is_there():
    data = Gated()
    loader, _ = hr.DataPipelineOptimizer(num_workers=0).optimize_loader(DataLoader(data, batch_size=8))
    batches = iter(loader)
    request = batches.request()
    assert data.begun.wait(60) and not request.done()
    with pytest.raises(hr.errors.InvalidArgumentError, match="has not been taken"):
        next(batches)
    data.open.set()
    assert request.result()[0][:, 0].tolist() == list(range(8)) and request.done()
    with pytest.raises(hr.errors.InvalidArgumentError, match="taken already"):
        request.result()
    assert len(list(batches)) == 2 and batches.request().result() is None


def test_without_asynchronous_loading_the_same_request_waits():
    data = Gated()
    loader, _ = hr.DataPipelineOptimizer(num_workers=0, enable_async_data_loading=False).optimize_loader(
        DataLoader(data, batch_size=8))
    found = []
    asks = threading.Thread(target=lambda: found.append(iter(loader).request()))
    asks.start()
    assert data.begun.wait(60) and not found
    data.open.set()
    asks.join()
    assert found[0].done() and found[0].result()[0][:, 0].tolist() == list(range(8))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_requests_and_asyncio_give_the_batches_of_the_iteration(asynchronous):
    class Breaks(Squares):
        def __getitem__(self, index):
            if index == 20:
                raise KeyError("boxes")
            return super().__getitem__(index)

    loader, _ = hr.DataPipelineOptimizer(num_workers=0, enable_async_data_loading=asynchronous).optimize_loader(
        DataLoader(tensors(), batch_size=8))

    async def iterate():
        return [batch async for batch in loader]

    assert_same(asyncio.run(iterate()), loader)
    broken, _ = hr.DataPipelineOptimizer(num_workers=0, enable_async_data_loading=asynchronous).optimize_loader(
        DataLoader(Breaks(), batch_size=8))
    batches = iter(broken)
    next(batches), next(batches)
    request = batches.request()
    with pytest.raises(KeyError, match="boxes"):
        request.result()


def test_an_await_that_is_cancelled_leaves_the_request_open():
    data = Gated()
    loader, _ = hr.DataPipelineOptimizer(num_workers=0).optimize_loader(DataLoader(data, batch_size=8))
    batches = iter(loader)

    def let_through(request):
        with pytest.raises(hr.errors.InvalidArgumentError, match="has not been taken"):
            batches.request()
        data.open.set()

    assert batch_of_a_second_await(batches, let_through)[0][:, 0].tolist() == list(range(8))
    assert len(list(batches)) == 2


class Held(Squares):
    """Whose samples wait, in whatever process, until they are let through."""

    def __init__(self):
        self.open = multiprocessing.Event()

    def __getitem__(self, index):
        assert self.open.wait(60)
        return super().__getitem__(index)


def let_through_once_a_pass_waits(data: Held) -> threading.Thread:
    """An epoch that this thread begins."""
    begins = threading.get_ident()

    def waits() -> bool:
        names, frame = set(), sys._current_frames()[begins]
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return "__iter__" in names and not names.isdisjoint({"wait", "_get_data"})

    thread = threading.Thread(target=lambda: (wait_until(waits), data.open.set()))
    thread.start()
    return thread


@pytest.mark.forks
def test_a_new_epoch_of_workers_that_persist_waits_for_an_open_request_and_ends_the_epoch_before():
    data = Held()
    loader, _ = hr.DataPipelineOptimizer(num_workers=2, prefetch_factor=1).optimize_loader(DataLoader(data, batch_size=8))
    expected = [list(range(8)), list(range(8, 16)), list(range(16, 24))]

    def numbers_of_a_pass() -> list[list[int]]:
        opens = let_through_once_a_pass_waits(data)
        found = [numbers.tolist() for _, numbers in loader]
        opens.join()
        return found

    before = iter(loader)
    request = before.request()
    assert numbers_of_a_pass() == expected
    for ask in (before.request, before.__next__):
        with pytest.raises(hr.errors.InvalidArgumentError, match="a newer epoch of this loader has begun"):
            ask()
    assert request.result()[1].tolist() == expected[0], "what was asked for before comes"
    data.open.clear()
    iter(loader).request()  # That nobody holds.
    assert numbers_of_a_pass() == expected


def test_epochs_without_workers_that_persist_go_on_beside_each_other():
    loader, _ = hr.DataPipelineOptimizer(num_workers=0).optimize_loader(DataLoader(tensors(), batch_size=8))
    for one, other in zip(loader, loader, strict=True):
        assert torch.equal(one[1], other[1])


@pytest.mark.forks
@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("begun", [False, True], ids=["new", "with an epoch behind it"])
@pytest.mark.parametrize("workers, persist", [(1, True), (1, False), (0, False)])
def test_the_order_is_that_of_a_loader_whose_workers_persist(workers, persist, begun, own_generator):
    generator = torch.Generator() if own_generator else None
    given = DataLoader(tensors(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True, generator=generator)
    if begun:
        list(given)
    loader, _ = hr.DataPipelineOptimizer(num_workers=workers, persistent_workers=persist).optimize_loader(given)
    seed = generator.manual_seed if own_generator else torch.manual_seed
    seed(3)
    ours = [list(loader) for _ in range(3)]
    seed(3)
    for epoch in ours:
        assert_same(epoch, given)


class Drawing(Squares):
    """Draws from torch's own generator for each sample."""

    def __getitem__(self, index):
        return super().__getitem__(index)[0], torch.rand(())


@pytest.mark.forks
def test_workers_whose_base_seeds_the_script_does_not_draw_have_new_ones_in_each_epoch():
    given = DataLoader(Drawing(), batch_size=24, num_workers=1, persistent_workers=True)
    torch.manual_seed(3)
    loader, _ = hr.DataPipelineOptimizer(num_workers=1, persistent_workers=False).optimize_loader(given)
    draws = [next(iter(loader))[1] for _ in range(3)]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(draws, 2))


@pytest.mark.forks
@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_a_data_set_that_draws_where_the_order_is_drawn_is_told(generator):
    words = "a data set that draws from torch's may have another order from the second epoch on"
    given = DataLoader(Drawing(), batch_size=8, shuffle=True, generator=generator)
    loader, report = hr.DataPipelineOptimizer(num_workers=1).optimize_loader(given)
    assert (words in by_option(report)["num_workers"].reason) == (generator is None)
    orders = []
    for each in (loader, given):
        torch.manual_seed(3)
        if generator is not None:
            generator.manual_seed(3)
        orders.append([torch.cat([pairs[:, 0] for pairs, _ in each]) for _ in range(2)])
    (ours, ours_later), (theirs, theirs_later) = orders
    assert torch.equal(ours, theirs) and torch.equal(ours_later, theirs_later) == (generator is not None)


class Counting(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(10))


@pytest.mark.forks
@pytest.mark.parametrize("data, batches", [
    (Squares(), 1), (tensors(), 1), (Counting(), 1), (DataLoader(tensors(), batch_size=4), 6),
    ([torch.zeros(2), torch.ones(2)], 2), (lambda: (torch.full((2,), i) for i in range(3)), 3),
])
def test_whatever_gives_samples_or_batches_keeps_its_own(data, batches):
    loader, report = hr.DataPipelineOptimizer(num_workers=1).optimize_loader(data)
    if isinstance(data, (list, DataLoader)):
        plain = data
    elif callable(data):
        plain = data()
    else:
        plain = DataLoader(data, batch_size=32)
    assert_same(loader, plain)
    assert len(list(loader)) == batches, "a second epoch is there, too"
    assert len(report) >= 5 and str(report)
    if not callable(data) and not isinstance(data, Counting):
        assert len(loader) == batches
    else:
        with pytest.raises(TypeError):
            len(loader)


@pytest.mark.forks
def test_what_cannot_be_changed_says_why():
    def reasons(data, **options) -> dict[str, str]:
        loader, report = hr.DataPipelineOptimizer(**options).optimize_loader(data)
        list(loader)
        return {entry.option: entry.reason for entry in report.not_applied}

    assert "repeat or reorder" in reasons(DataLoader(Counting(), batch_size=2))["num_workers"]
    assert reasons([torch.zeros(2)])["num_workers"] == "the batches of a list come whole, one after the other"
    assert reasons(tensors(), num_workers=0).keys() == {"persistent_workers", "prefetch_factor", "pin_memory"}
    own = BatchSampler(RandomSampler(tensors()), 3, False)
    assert reasons(DataLoader(tensors(), batch_sampler=type("Own", (BatchSampler,), {})(own.sampler, 3, False)),
                   batch_size=4, num_workers=0)["batch_size"] == "the loader has no batches of a plain size"
    for other in (7, "folder:photos", {"image": 1}):
        with pytest.raises(hr.errors.InvalidArgumentError, match=f"loader is a {type(other).__name__}; wanted"):
            hr.DataPipelineOptimizer().optimize_loader(other)


@pytest.mark.forks
def test_a_batch_size_keeps_the_order_and_a_sampler_its_draws():
    weights = torch.linspace(0.1, 1, 23)
    poor = DataLoader(tensors(), batch_size=4, sampler=WeightedRandomSampler(weights, 23, generator=torch.Generator()))
    loader, report = hr.DataPipelineOptimizer(num_workers=1, batch_size=5).optimize_loader(poor)
    orders = []
    for each in (loader, poor):
        poor.sampler.generator.manual_seed(3)
        orders.append(torch.cat([numbers for _, numbers in each]))
    assert torch.equal(*orders) and len(loader) == 5 and len(poor) == 6
    entry = by_option(report)["batch_size"]
    assert (entry.old, entry.new, entry.applied) == (4, 5, True)


def test_more_workers_than_cores_are_told():
    cores = len(os.sched_getaffinity(0))
    _, report = hr.DataPipelineOptimizer(num_workers=cores + 1).optimize_loader(tensors())
    assert f"more than the {cores} cores that this process may use" in by_option(report)["num_workers"].reason


class Images:
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return numpy.full((2, 2, 1), index, numpy.uint8), index % 4


def test_a_headrace_loader_is_changed_in_place_and_says_what_it_keeps():
    native = hr.Loader(Images(), batch_size=4, num_workers=0, prefetch_batches=1, seed=3)
    reference = [(images.clone(), labels.clone()) for images, labels in native]
    native.start_at(0)
    loader, report = hr.DataPipelineOptimizer(num_workers=2, prefetch_factor=3, batch_size=8).optimize_loader(native)
    assert loader is native and (loader.statistics()["num_workers"], loader.statistics()["prefetch_batches"]) == (2, 6)
    found = {entry.option: (entry.old, entry.new, entry.applied) for entry in report}
    assert found["num_workers"] == (0, 2, True) and found["prefetch_factor"] == (0, 3, True)
    assert found["persistent_workers"] == (False, True, True) and found["enable_async_data_loading"] == (False, True, True)
    assert by_option(report)["batch_size"].reason == "a headrace.Loader has it from when it was made"
    assert by_option(report)["pin_memory"].reason == "no CUDA"
    assert_same([tuple(batch) for batch in loader], reference)


class LargeImages(Images):
    def __getitem__(self, index):
        return numpy.full((256, 256, 1), index, numpy.uint8), index % 4


def test_a_headrace_loader_that_prepares_fewer_batches_says_what_bounds_them():
    bounded = hr.Loader(LargeImages(), batch_size=4, num_workers=1, prefetch_batches=1, prefetch_mib=3)
    _, report = hr.DataPipelineOptimizer(num_workers=2, prefetch_factor=3).optimize_loader(bounded)
    assert bounded.statistics()["prefetch_batches"] < 6
    assert by_option(report)["prefetch_factor"].reason.startswith("data.prefetch_mib = 3 holds no more batches of")
    deep = hr.Loader(Images(), batch_size=4, num_workers=1, prefetch_batches=1)
    _, report = hr.DataPipelineOptimizer(num_workers=2, prefetch_factor=64).optimize_loader(deep)
    assert deep.statistics()["prefetch_batches"] == 64
    entry = by_option(report)["prefetch_factor"]
    assert not entry.applied and entry.reason == "a headrace.Loader prepares at most 64 batches ahead"


def test_the_tuner_tunes_what_an_optimized_loader_goes_over():
    loader, _ = hr.DataPipelineOptimizer(num_workers=0).optimize_loader(DataLoader(tensors(), batch_size=4))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    tuned = hr.tune(model, loader, optimizer, lambda model, batch: model(batch[0]).square().mean(), budget_s=1.0,
                    only=["denormals as 0"])
    assert tuned.loader is loader.loader and "num_workers" not in {entry.name for entry in tuned.not_applicable}


@pytest.mark.forks
def test_torchvisions_data_sets_are_optimized_as_they_are_or_natively(tmp_path):
    write_photos(tmp_path, train=6, val=3)
    steps = [transforms.Resize(24), transforms.CenterCrop(16), transforms.ToTensor()]
    data = datasets.ImageFolder(tmp_path / "val", transforms.Compose(steps))
    plain = list(DataLoader(data, 4))
    loader, _ = hr.DataPipelineOptimizer(num_workers=1, batch_size=4).optimize_loader(data)
    assert_same(loader, plain)
    native, report = hr.DataPipelineOptimizer(num_workers=1, native=True).optimize_loader(DataLoader(data, 4))
    assert type(native) is hr.Loader and native.statistics()["num_workers"] == 1
    for (images, labels), (theirs, their_labels) in zip(native, plain, strict=True):
        assert (images - theirs).abs().max() <= 1.01 / 255 and torch.equal(labels, their_labels)
    entry = by_option(report)["loader"]
    assert (entry.old, entry.new, entry.applied) == ("DataLoader", "headrace.Loader", True)
    assert entry.reason == "pixels are the same to within rounding"
    _, report = hr.DataPipelineOptimizer(native=True).optimize_loader(DataLoader(data, shuffle=True))
    assert by_option(report)["loader"].reason == "the order and random transforms are drawn by other generators"
    for order in ({"batch_size": 2, "sampler": [2, 0, 0, 1, 2]}, {"batch_sampler": [[2], [0, 1, 1]]},
                  {"batch_sampler": BatchSampler([2, 0, 1], 2, True)}):
        theirs = DataLoader(data, **order)
        native, report = hr.DataPipelineOptimizer(num_workers=1, native=True).optimize_loader(theirs)
        assert by_option(report)["loader"].reason == "pixels are the same to within rounding" and len(native) == len(theirs)
        for (images, labels), (wanted, wanted_labels) in zip(native, theirs, strict=True):
            assert (images - wanted).abs().max() <= 1.01 / 255 and torch.equal(labels, wanted_labels)
    kept, report = hr.DataPipelineOptimizer(num_workers=1, native=True).optimize_loader(DataLoader(tensors()))
    assert not by_option(report)["loader"].applied and "TensorDataset" in by_option(report)["loader"].reason
    assert_same(kept, DataLoader(tensors()))
