"""What loading takes, by stage: calls are divided by what they are, with a clock that only they move; workers tell theirs."""

import sys
import time
from types import SimpleNamespace

import pytest
import torch
from headrace import _loading_stages
from headrace._loading_stages import LoadingStages, Stages, _in_order, _of_native, read_seconds
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import fetch

UNKNOWN, READ, DECODE, AUGMENT = range(4)


class Clock:
    """Moved by those whose time is measured, and by nothing else."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


def divided(work, transforms=()):
    clock = Clock()
    stages = Stages(frozenset(transforms), clock)
    stages.begin()
    try:
        work(clock)
    finally:
        stages.end()
    return stages.seconds


def test_a_function_belongs_to_the_stage_that_its_name_tells_with_what_it_calls():
    def read_file(clock):
        clock.spend(3)

    def decode(clock):
        clock.spend(5)
        read_file(clock)

    def random_crop(clock):
        clock.spend(7)
        read_file(clock)

    def sample(clock):
        clock.spend(1)
        decode(clock)
        random_crop(clock)

    assert divided(sample) == [1, 3, 5, 7 + 3]  # Of a transform all is transforming.


def test_what_a_data_set_holds_as_its_transform_is_transforming_whatever_its_name():
    def prepare(clock):
        clock.spend(2)

    assert divided(prepare) == [2, 0, 0, 0]
    assert divided(prepare, [prepare.__code__]) == [0, 0, 0, 2]


@pytest.mark.parametrize("module, stage", [
    ("PIL.Image", DECODE), ("PILOTS", UNKNOWN), ("torchvision.io.image", DECODE), ("torchvision.transforms.v2", AUGMENT),
    ("h5py._hl", READ), ("torch.utils.data._utils.fetch", UNKNOWN), ("mine", UNKNOWN)])
def test_a_library_is_known_by_its_name(module, stage):
    code = (lambda: None).__code__
    assert Stages(frozenset()).of_function(code, module, UNKNOWN) == stage


def test_an_image_that_is_decoded_when_a_transform_first_looks_at_it_is_decoding():
    code = (lambda: None).__code__
    stages = Stages(frozenset())
    assert stages.of_function(code, "PIL.ImageFile", AUGMENT) == DECODE
    assert stages.of_function(code, "PIL.Image", AUGMENT) == AUGMENT


def test_built_ins_of_files_read_and_waiting_for_no_one_knows_what_is_reading(tmp_path):
    stages = Stages(frozenset())
    with open(tmp_path / "file", "wb") as file:
        assert stages.of_builtin(file.write, UNKNOWN) == READ
    assert stages.of_builtin(time.sleep, UNKNOWN) == READ
    assert stages.of_builtin(time.sleep, DECODE) == DECODE
    assert stages.of_builtin(time.sleep, AUGMENT) == AUGMENT
    assert stages.of_builtin(len, UNKNOWN) == UNKNOWN


class Slow(Dataset):
    """Sleeps in each of its stages, which only a lower bound is asked of."""

    def __init__(self, seconds):
        self._seconds = seconds
        self.transform = self.change

    def __len__(self):
        return 8

    def read(self):
        time.sleep(self._seconds)

    def decode(self):
        time.sleep(2 * self._seconds)

    def change(self):
        time.sleep(3 * self._seconds)

    def __getitem__(self, index):
        self.read()
        self.decode()
        self.transform()
        return torch.tensor(index)


def slowly(samples):
    time.sleep(0.004)
    return torch.stack(samples)


def loaded(loader):
    stages = LoadingStages()
    undo = stages.hook()
    try:
        with stages.begins(loader):
            batches = iter(loader)
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    finally:
        undo()
    return stages.found()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.forks)])
def test_each_stage_of_a_data_loader_is_timed_in_its_workers_too(workers):
    before = (fetch._MapDatasetFetcher.fetch, fetch._IterableDatasetFetcher.fetch, fetch._BaseDatasetFetcher.__init__)
    found = loaded(DataLoader(Slow(0.002), 2, num_workers=workers, collate_fn=slowly))
    assert (fetch._MapDatasetFetcher.fetch, fetch._IterableDatasetFetcher.fetch, fetch._BaseDatasetFetcher.__init__) == before
    assert (found.batches, found.num_workers) == (4, workers)
    assert found.collate_s >= 4 * 0.004
    assert found.read_s + found.decode_s + found.augment_s >= 8 * 6 * 0.002
    assert min(found.read_s, found.decode_s, found.augment_s) > 0
    assert len(found.batch_s) == 4 and min(found.batch_s) >= 2 * 6 * 0.002 + 0.004


def test_a_loader_whose_epoch_began_unseen_tells_nothing():
    loader = DataLoader(Slow(0), 2)
    begun = iter(loader)
    stages = LoadingStages()
    undo = stages.hook()
    next(begun)
    undo()
    assert stages.found() is None


def test_an_exception_of_the_data_set_passes_and_leaves_no_hook_behind():
    class Broken(Slow):
        def decode(self):
            raise KeyError("no such image")

    with pytest.raises(KeyError, match="no such image"):
        loaded(DataLoader(Broken(0), 2))
    assert sys.getprofile() is None


def test_a_data_sets_properties_are_not_run():
    class Guarded(Slow):
        @property
        def dataset(self):
            raise RuntimeError("not now")

    assert loaded(DataLoader(Guarded(0), 2)).batches == 4


def test_whoever_has_pythons_profiling_hook_keeps_it_and_stages_are_decoding_then():
    seen = []

    def theirs(frame, event, what):
        seen.append(event)

    sys.setprofile(theirs)
    try:
        found = loaded(DataLoader(Slow(0.001), 2, collate_fn=slowly))
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)
    assert seen and found.read_s == 0 and found.augment_s == 0 and found.decode_s >= 8 * 6 * 0.001


def test_reading_is_timed_of_given_samples_and_a_sample_that_cannot_be_made_is_nobodys_figure():
    class Holed(Slow):
        def __getitem__(self, index):
            if index == 7:
                raise OSError("gone")
            return super().__getitem__(index)

    assert read_seconds(Holed(0.002), [0, 1, 2]) >= 3 * 0.002
    assert read_seconds(Holed(0.002), [7]) is None
    assert sys.getprofile() is None


def test_single_batches_come_in_the_order_in_which_workers_take_turns():
    workers = []
    for worker in range(2):
        numbers = [0.0] * _loading_stages._NUMBERS
        numbers[_loading_stages._COUNT] = 3 - worker  # The second one has not made its last yet.
        for i in range(3):
            numbers[_loading_stages._BATCH_S + i] = 10 * worker + i
        workers.append(numbers)
    assert list(_in_order(workers)) == [0, 10, 1, 11]


def test_a_native_loaders_figures_are_of_what_it_loaded_meanwhile():
    def statistics(batches, seconds):
        return {"batches": batches, "num_workers": 2, "prefetch_batches": 3,
                "costs": {key: seconds for key in ("read_s", "decode_s", "augment_s", "collate_s", "copy_s")}}

    loader = SimpleNamespace(statistics=lambda: statistics(7, 4.0))
    found = _of_native(loader, statistics(5, 1.0))
    assert (found.read_s, found.decode_s, found.batches, found.num_workers, found.prefetch_batches) == (3, 3, 2, 2, 3)
    assert _of_native(loader, statistics(7, 4.0)) is None
