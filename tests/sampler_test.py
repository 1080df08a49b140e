"""A Loader in the order of a sampler or batch sampler of the user's own, as a DataLoader takes it."""

import copy
import pickle
import re

import field_sources as sources
import numpy
import pytest
import torch
from torch.utils.data import (BatchSampler, DataLoader, DistributedSampler, RandomSampler, Sampler, SequentialSampler,
                              SubsetRandomSampler, WeightedRandomSampler)

import headrace as hr
from headrace import errors

KINDS = ["thread", "process"]
DATA = sources.Of(sources.vector)  # Sample i has y = i.


def generator(seed=5):
    return torch.Generator().manual_seed(seed)


class Backwards(Sampler):
    """Another order each epoch, of its number alone."""

    def __init__(self, size=sources.SIZE):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (index for index in range(self.size - 1, -1, -1) if index % 5 != self.epoch % 5)

    def __len__(self):
        return self.size - self.size // 5


class Remembering(Sampler):
    """Draws from a generator of its own, which it can save."""

    def __init__(self, seed=5):
        self.random = numpy.random.default_rng(seed)

    def __iter__(self):
        return iter(self.random.permutation(sources.SIZE))

    def __len__(self):
        return sources.SIZE

    def state_dict(self):
        return {"random": self.random.bit_generator.state}

    def load_state_dict(self, state):
        self.random.bit_generator.state = state["random"]


class Standing(Sampler):
    """As torchdata's: its state says how many it has given."""

    def __init__(self):
        self.given, self.begin = 0, 0

    def __iter__(self):
        self.given, self.begin = self.begin, 0
        for index in range(self.given, sources.SIZE):
            self.given = index + 1
            yield (7 * index) % sources.SIZE

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.begin = state["given"]


class Growing(Sampler):
    """Batches of 1, 2, 3, 4, 1, 2 and so on, each epoch from another sample on."""

    def __init__(self):
        self.epochs = 0

    def __iter__(self):
        self.epochs += 1
        begin, size = self.epochs, 0
        while begin < sources.SIZE:
            size = size % 4 + 1
            yield list(range(begin, min(begin + size, sources.SIZE)))
            begin += size


SAMPLERS = {
    "sequential": lambda: SequentialSampler(DATA), "random": lambda: RandomSampler(DATA, generator=generator()),
    "with replacement": lambda: RandomSampler(DATA, replacement=True, num_samples=90, generator=generator()),
    "subset": lambda: SubsetRandomSampler([3, 1, 4, 15, 9, 26, 5, 35, 8], generator=generator()),
    "weighted": lambda: WeightedRandomSampler([index % 3 for index in range(60)], 50, generator=generator()),
    "distributed": lambda: DistributedSampler(DATA, num_replicas=2, rank=1, seed=7), "by epoch": Backwards, "its own": Remembering,
    "list": lambda: [5, 3, 3, 59, 0, 1], "range": lambda: range(50, 10, -3), "tensor": lambda: torch.tensor([9, 8, 1, 0]),
    "array": lambda: numpy.array([9, 8, 1, 0]),
}
BATCH_SAMPLERS = {
    "plain": lambda: BatchSampler(RandomSampler(DATA, generator=generator()), 7, False),
    "dropped": lambda: BatchSampler(DistributedSampler(DATA, num_replicas=2, rank=0), 7, True),
    "lists": lambda: [[5, 3], [3], [59, 0, 1, 2]],
}


def indices(loader) -> list[list[int]]:
    return [batch["y"].tolist() for batch in loader]


def theirs(loader) -> list[list[int]]:
    return [batch["y"].tolist() for batch in loader]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_is_taken_as_it_is(name):
    reference, ours = DataLoader(DATA, 7, sampler=SAMPLERS[name]()), SAMPLERS[name]()
    loader = hr.Loader(DATA, batch_size=7, sampler=ours, num_workers=2)
    assert len(loader) == len(reference) and loader.sampler is ours and loader.options["sampler"] is ours
    for epoch in range(3):
        if hasattr(reference.sampler, "set_epoch"):
            reference.sampler.set_epoch(epoch)
        assert indices(loader) == theirs(reference), epoch
    evaluation = hr.Loader(DATA, batch_size=7, sampler=SAMPLERS[name](), num_workers=0, split="test")
    again = hr.Loader(DATA, batch_size=7, sampler=SAMPLERS[name](), num_workers=7)
    assert indices(evaluation) == indices(again)


@pytest.mark.parametrize("name", BATCH_SAMPLERS)
def test_a_batch_sampler_is_taken_as_it_is(name):
    reference, ours = DataLoader(DATA, batch_sampler=BATCH_SAMPLERS[name]()), BATCH_SAMPLERS[name]()
    loader = hr.Loader(DATA, batch_sampler=ours, num_workers=2)
    assert len(loader) == len(reference) and loader.batch_sampler is ours and loader.options["batch_sampler"] is ours
    for epoch in range(3):
        if isinstance(reference.batch_sampler, BatchSampler) and hasattr(reference.batch_sampler.sampler, "set_epoch"):
            reference.batch_sampler.sampler.set_epoch(epoch)
        assert indices(loader) == theirs(reference), epoch


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_unequal_size_hold_every_field(kind):
    data = sources.Of(sources.boxes)
    loader = hr.Loader(data, batch_sampler=Growing(), batch_size=4, num_workers=2, worker_type=kind)
    with pytest.raises(TypeError):
        len(loader)
    for number, batch in enumerate(loader):
        assert len(batch["valid"]) == number % 4 + 1 or number == 23
        for place, name in enumerate(batch["name"]):
            assert len(batch["boxes"][place]) == int(name) % 4
    assert [name for batch in loader for name in batch["name"]] == [str(index) for index in range(2, 60)]


def test_drop_last_and_padding_are_the_loaders():
    sampler = list(range(30))
    for options, sizes in (({}, [8, 8, 8, 6]), ({"drop_last": True}, [8, 8, 8]), ({"last_batch": "pad"}, [8, 8, 8, 8])):
        loader = hr.Loader(DATA, batch_size=8, sampler=sampler, **options)
        assert [len(batch) for batch in indices(loader)] == sizes and len(loader) == len(sizes)


def test_a_sample_that_comes_again_is_cropped_anew_and_others_as_in_any_order():
    data = sources.Of(sources.pil)
    options = {"batch_size": 60, "seed": 3, "transform": {"pad": 2, "flip_probability": 0.5}}
    in_order, _ = next(iter(hr.Loader(data, sampler=range(60), **options)))
    backwards, _ = next(iter(hr.Loader(data, sampler=range(59, -1, -1), **options)))
    assert torch.equal(backwards, in_order.flip(0))
    same_one, _ = next(iter(hr.Loader(data, sampler=[7] * 20, **options)))
    assert torch.equal(same_one[0], in_order[7]) and len({image.numpy().tobytes() for image in same_one}) > 10


def same_state(ours, other) -> bool:
    return ours.keys() == other.keys() and all(
        torch.equal(ours[key], other[key]) if isinstance(ours[key], torch.Tensor) else ours[key] == other[key] for key in ours)


def resumed(make, make_loader, batches):
    """Epochs 1 and 2 of a run that is stopped after as many batches of epoch 1, and goes on in another process."""
    loader = make_loader(make())
    list(loader)
    iterator = iter(loader)
    first = [next(iterator)["y"].tolist() for _ in range(batches)]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    other = make_loader(make())
    other.load_state_dict(state)
    assert same_state(other.state_dict(), state)
    return first + indices(other), indices(other), state


@pytest.mark.parametrize("name", [*SAMPLERS, *BATCH_SAMPLERS])
def test_a_state_goes_on_in_the_middle_of_an_epoch(name):
    make, keyword = (SAMPLERS[name], "sampler") if name in SAMPLERS else (BATCH_SAMPLERS[name], "batch_sampler")

    def make_loader(sampler):
        return hr.Loader(DATA, **({"batch_size": 2} if keyword == "sampler" else {}), **{keyword: sampler})

    whole = make_loader(make())
    _, middle, last = indices(whole), indices(whole), indices(whole)
    assert resumed(make, make_loader, 0)[0] == middle
    found, after, state = resumed(make, make_loader, 1)
    assert found == middle and state["order"] != 0
    drawn_again = name in ("sequential", "distributed", "by epoch", "list", "range", "dropped", "lists")
    assert ("indices" in state) == (not drawn_again) and ("sampler" in state) == (name == "its own")
    if drawn_again or name == "its own":
        assert after == last


def test_a_sampler_with_a_state_goes_on_in_it():
    def make_loader(sampler):
        return hr.Loader(DATA, batch_size=8, sampler=sampler)

    for make in (Remembering, Standing):
        whole = make_loader(make())
        reference = [indices(whole) for _ in range(4)]
        for batches in (0, 1, 5, 8):  # After 8 the epoch has ended.
            found, after, state = resumed(make, make_loader, batches)
            wanted = reference[1] if batches < 8 else reference[1] + reference[2]
            assert found == wanted and after == reference[2 if batches < 8 else 3], (make, batches)
            assert state["epoch"] == (1 if batches < 8 else 2) and "sampler" in state
    sampler = Remembering()
    batches = BatchSampler(sampler, 8, False)  # The state is that of the sampler within.
    assert "random" in hr.Loader(DATA, batch_sampler=batches).state_dict()["sampler"]


def test_bytes_do_not_depend_on_workers_or_on_where_a_run_was_stopped():
    def loader(**options):
        return hr.Loader(sources.Detection(), batch_size=4, seed=3, sampler=Backwards(), transform={"flip_probability": 0.5},
                         **options)

    def plain(batches):
        return [[field.values.tolist() if isinstance(field, hr.RaggedTensor) else field if isinstance(field, list)
                 else field.tolist() for field in batch.values()] for batch in batches]

    reference = plain(loader(num_workers=0))
    for options in ({"num_workers": 1}, {"num_workers": 7}, {"num_workers": 2, "worker_type": "process"}):
        assert plain(loader(**options)) == reference
    first = loader(num_workers=2)
    for stop in (1, 5, 10):
        first.start_at(0)
        iterator = iter(first)
        for _ in range(stop):
            next(iterator)
        second = loader(num_workers=7)
        second.load_state_dict(first.state_dict())
        assert plain(second) == reference[stop:]


def test_ranks_have_samplers_of_their_own():
    for ranks in (2, 3):
        seen = []
        for rank in range(ranks):
            sampler = DistributedSampler(DATA, num_replicas=ranks, rank=rank, seed=7)
            loader = hr.Loader(DATA, batch_size=5, sampler=sampler)
            indices(loader)
            reference = DistributedSampler(DATA, num_replicas=ranks, rank=rank, seed=7)
            reference.set_epoch(1)
            mine = [index for batch in indices(loader) for index in batch]
            assert mine == list(reference)
            seen += mine
        assert sorted(seen) == list(range(60))


@pytest.mark.engine
def test_a_run_with_a_sampler_goes_on_from_a_checkpoint_bit_for_bit(tmp_path):
    def trainer():
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        return hr.Trainer(model, torch.optim.SGD(model.parameters(), 1e-5),
                          lambda network, batch: (network(batch["x"])[:, 0] - batch["y"]).square().mean()), model

    def loader():
        return hr.Loader(DATA, batch_size=8, sampler=RandomSampler(DATA, generator=generator()))

    class Stop(Exception):
        pass

    whole, wanted = trainer()
    whole.fit(loader(), epochs=2)
    first, _ = trainer()
    steps = []

    def stop(loss):
        steps.append(float(loss))
        if len(steps) == 11:  # In the second epoch.
            first.save(tmp_path / "checkpoint")
            raise Stop

    with pytest.raises(Stop):
        first.fit(loader(), epochs=2, on_step=stop)
    second, model = trainer()
    second.load(tmp_path / "checkpoint")
    second.fit(loader(), epochs=2)
    assert torch.equal(model.weight, wanted.weight) and torch.equal(model.bias, wanted.bias)


class Endless(Sampler):
    def __iter__(self):
        while True:
            yield 0


@pytest.mark.parametrize("options, words", [
    ({"sampler": 5}, "sampler is 5; wanted an iterable of indices"),
    ({"batch_sampler": "each"}, "batch_sampler is 'each'; wanted an iterable of lists of indices"),
    ({"batch_sampler": 5}, "batch_sampler is 5; wanted an iterable of lists of indices"),
    ({"sampler": "ech"}, "ech"),
    ({"sampler": [1], "batch_sampler": [[1]]}, "sampler and batch_sampler are both given"),
    ({"sampler": [1], "shuffle": True}, "shuffle is True beside sampler list; wanted False"),
    ({"sampler": [1], "world_size": 2}, "world_size is 2 beside sampler list, which gives this rank's part, as torch's "
                                        "DistributedSampler does; wanted 1"),
    ({"sampler": [1], "buckets": 2}, "buckets is 2 beside sampler list; wanted 0"),
    ({"sampler": [1], "val_fraction": 0.2}, "val_fraction is 0.2 beside sampler list; wanted 0"),
    ({"sampler": [1], "weights": [1.0]}, "data.weights has no effect without data.sampler"),
    ({"sampler": [1], "on_corrupt": "replace"}, "data.on_corrupt is \"replace\", and the order of each epoch is given"),
    ({"batch_sampler": [[1]], "drop_last": True}, "last_batch is 'drop' beside batch_sampler list, whose batches are taken as they are"),
    ({"batch_sampler": Growing()}, "batch_sampler Growing does not tell its largest batch (batch_size), for which memory is allocated; "
                                   "say it: batch_size="),
])
def test_what_contradicts_a_sampler_is_refused_by_name(options, words):
    with pytest.raises(errors.InvalidArgumentError, match=re.escape(words)):
        hr.Loader(DATA, **options)
    with pytest.raises(errors.InvalidArgumentError, match="sampler list is given for CountingWithLength, an iterable data set"):
        hr.Loader(sources.Counting(), sampler=[1])


@pytest.mark.parametrize("options, words", [
    ({"sampler": [0, 60]}, "sampler list: index 60 at position 1 of epoch 0; wanted 0 to 59"),
    ({"sampler": [0, 5, -1]}, "sampler list: index -1 at position 2 of epoch 0; wanted 0 to 59"),
    ({"sampler": ["a"]}, "sampler list: the index at position 0 of epoch 0 is 'a'; wanted an integer"),
    ({"sampler": [1.5]}, "the index at position 0 of epoch 0 is 1.5; wanted an integer"),
    ({"sampler": [1, 2**64]}, "the index at position 1 of epoch 0 is 18446744073709551616; wanted an integer"),
    ({"sampler": [[1, 2]]}, "the index at position 0 of epoch 0 is [1, 2]; wanted an integer; lists of them are a batch_sampler's"),
    ({"sampler": []}, "sampler list: no index for epoch 0; wanted at least one"),
    ({"sampler": [1, 2], "drop_last": True}, "sampler list: no batch is left: 2 samples for epoch 0, batch_size 8"),
    ({"batch_sampler": [[1], [], [2]]}, "batch_sampler list: batch 1 of epoch 0 is empty"),
    ({"batch_sampler": [[1], 2]}, "batch_sampler list: batch 1 of epoch 0 is 2; wanted a list of indices"),
    ({"batch_sampler": [[1], "23"]}, "batch_sampler list: batch 1 of epoch 0 is '23'; wanted a list of indices"),
    ({"batch_sampler": [[1], [0, "a"]]}, "the index at position 2 of epoch 0 is 'a'; wanted an integer"),
    ({"batch_sampler": [[1, 2, 3]], "batch_size": 2}, "batch_sampler list: batch 0 of epoch 0 has 3 samples; wanted at most 2"),
    ({"batch_sampler": [[1, 70]]}, "batch_sampler list: index 70 at position 1 of epoch 0"),
])
def test_what_a_sampler_must_not_give_is_named_and_a_new_epoch_may_start(options, words):
    keyword = "sampler" if "sampler" in options else "batch_sampler"
    sampler = list(options[keyword])
    loader = hr.Loader(DATA, num_workers=2, **{"batch_size": 8, **options, keyword: sampler})
    for _ in range(2):
        with pytest.raises(errors.InvalidArgumentError, match=re.escape(words)):
            iter(loader)
    sampler[:] = range(8) if keyword == "sampler" else [[4, 5]]
    assert indices(loader) == ([list(range(8))] if keyword == "sampler" else [[4, 5]])


def test_a_sampler_that_does_not_end_is_told_so(monkeypatch):
    monkeypatch.setattr("headrace._sampler._DRAWN_MAX", 1000)
    with pytest.raises(errors.InvalidArgumentError, match="sampler Endless: gave more than 1000 indices for epoch 0"):
        iter(hr.Loader(DATA, sampler=Endless()))


def test_an_order_that_cannot_be_drawn_again_is_kept_within_a_bound(monkeypatch):
    loader = hr.Loader(DATA, batch_size=8, sampler=RandomSampler(DATA, generator=generator()))
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["indices"].tolist() == [index for index in RandomSampler(DATA, generator=generator())]
    monkeypatch.setattr("headrace._sampler._KEPT_MAX", 59)
    with pytest.raises(errors.InvalidArgumentError, match="its 60 indices of epoch 0 cannot be drawn again, and a state holds at most 59"):
        loader.state_dict()
    remembering = hr.Loader(DATA, batch_size=8, sampler=Remembering())
    batches = iter(remembering)
    first = next(batches)["y"].tolist()
    state = copy.deepcopy(remembering.state_dict())
    assert "indices" not in state
    rest = [batch["y"].tolist() for batch in batches]
    other = hr.Loader(DATA, batch_size=8, sampler=Remembering(9))
    other.load_state_dict(state)
    assert indices(other) == rest and len(first) == 8


def test_a_sampler_that_gives_another_order_than_the_states_is_refused():
    class Changing(Backwards):
        def __iter__(self):
            return reversed(list(super().__iter__()))

    loader = hr.Loader(DATA, batch_size=8, sampler=Backwards())
    iterator = iter(loader)
    next(iterator)
    other = hr.Loader(DATA, batch_size=8, sampler=Changing())
    other.load_state_dict(loader.state_dict())
    with pytest.raises(errors.InvalidArgumentError, match="sampler Changing: gave another order for epoch 0 than the one within "
                                                          "which the state stands, at position 8"):
        iter(other)
    with pytest.raises(errors.InvalidArgumentError, match="order given, this one has drawn"):
        hr.Loader(DATA, batch_size=8, shuffle=False).load_state_dict(loader.state_dict())


def test_what_a_sampler_raises_goes_on():
    class Broken(Sampler):
        def __iter__(self):
            yield 0
            raise OSError("no list of samples")

    loader = hr.Loader(DATA, sampler=Broken(), num_workers=2)
    for _ in range(2):
        with pytest.raises(OSError, match="no list of samples"):
            iter(loader)
