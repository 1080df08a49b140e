"""headrace.Loader as a Python loop meets it."""

import os
import pickle
import struct

import numpy
import pytest
import torch
from torch import nn

import headrace as hr


def write_idx(path, array: numpy.ndarray) -> None:
    path.write_bytes(struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype("u1").tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("idx")
    draws = numpy.random.default_rng(1)
    for split, count in (("train", 50), ("t10k", 20)):
        write_idx(path / f"{split}-images-idx3-ubyte", draws.integers(0, 256, (count, 8, 8)))
        write_idx(path / f"{split}-labels-idx1-ubyte", numpy.arange(count) % 10)
    return path


def make(folder, **options) -> hr.Loader:
    return hr.Loader(f"idx:{folder}", **{"batch_size": 16, "seed": 3, **options})


def epoch_of(loader) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images.clone(), labels.clone()) for images, labels in loader]


def assert_same_batches(ours, theirs):
    assert len(ours) == len(theirs)
    for (images, labels), (other_images, other_labels) in zip(ours, theirs):
        assert torch.equal(images, other_images) and torch.equal(labels, other_labels)


def test_batches_look_like_those_of_a_dataloader(folder):
    loader = make(folder, transform={"mean": [0.5], "deviation": [0.25]})
    assert len(loader) == 4 and loader.samples == 50 and loader.classes == 10 and loader.batch_size == 16
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [16, 16, 16, 2]
    images, labels = batches[0]
    assert images.shape == (16, 1, 8, 8) and images.dtype == torch.float32
    assert labels.shape == (16,) and labels.dtype == torch.int64
    assert batches[1].index == 1 and batches[1].epoch == 0
    assert batches[0]["images"] is batches[0][0] and batches[0]["mask"].all()
    with pytest.raises(KeyError):
        batches[0]["nothing"]


def test_pixels_are_those_of_the_files(folder):
    raw = numpy.frombuffer((folder / "t10k-images-idx3-ubyte").read_bytes()[16:], "u1").reshape(20, 1, 8, 8)
    images = torch.cat([images for images, _ in make(folder, split="test")])
    assert torch.equal(images, torch.from_numpy(raw.copy()).float().div(255))


def test_types_and_layouts_are_those_asked_for(folder):
    normal = {"mean": [0.5], "deviation": [0.25]}
    wanted = next(iter(make(folder, transform=normal)))[0]
    for dtype, layout in [("float32", "nhwc"), ("bfloat16", "nchw"), ("uint8", "nhwc")]:
        transform = {**({} if dtype == "uint8" else normal), "dtype": dtype, "layout": layout}
        images = next(iter(make(folder, transform=transform)))[0]
        assert images.dtype == getattr(torch, dtype) and images.shape == wanted.shape
        assert layout == "nchw" or images.is_contiguous(memory_format=torch.channels_last)
        ours = (images.float() / 255 - 0.5) / 0.25 if dtype == "uint8" else images
        assert torch.equal(ours, wanted.to(images.dtype) if dtype == "bfloat16" else wanted)
    with pytest.raises(hr.errors.InvalidArgumentError, match="mean and deviation need a float"):
        make(folder, transform={**normal, "dtype": "uint8"})


def test_each_iteration_is_the_next_epoch_and_threads_change_nothing(folder):
    first = make(folder, threads=0)
    epochs = [epoch_of(first), epoch_of(first)]
    assert not torch.equal(epochs[0][0][1], epochs[1][0][1])
    other = make(folder, threads=2)
    for epoch in epochs:
        assert_same_batches(epoch_of(other), epoch)
    other.start_at(1)
    assert_same_batches(epoch_of(other), epochs[1])


def test_state_goes_on_within_an_epoch(folder):
    reference = make(folder)
    epochs = [epoch_of(reference), epoch_of(reference)]
    loader = make(folder)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 2)
    resumed = make(folder)
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert_same_batches(epoch_of(resumed), epochs[0][2:])
    assert (resumed.state_dict()["epoch"], resumed.state_dict()["batch"]) == (1, 0)
    assert_same_batches(epoch_of(resumed), epochs[1])


def test_states_of_another_loader_are_refused(folder):
    state = make(folder).state_dict()
    for other, words in ((make(folder, seed=4), "seed 3, this one has 4"), (make(folder, batch_size=8), "batch_size 16"),
                         (make(folder, split="test"), "fingerprint")):
        with pytest.raises(hr.errors.InvalidArgumentError, match=words):
            other.load_state_dict(state)
    with pytest.raises(hr.errors.InvalidArgumentError, match="has no seed"):
        make(folder).load_state_dict({})
    with pytest.raises(hr.errors.InvalidArgumentError, match="at most 4 batches"):
        make(folder).load_state_dict({**state, "batch": 9})


def test_memory_is_shared_with_numpy_and_dlpack(folder):
    batch = next(iter(make(folder)))
    array = batch["images"].numpy()
    other = numpy.from_dlpack(batch["images"])
    third = torch.from_dlpack(batch["images"])
    array[0, 0, 0, 0] = 77.0
    assert batch[0][0, 0, 0, 0] == 77.0 and other[0, 0, 0, 0] == 77.0 and third[0, 0, 0, 0] == 77.0
    assert batch[0].data_ptr() == array.ctypes.data == third.data_ptr()


def test_batches_outlive_their_loader(folder):
    loader = make(folder, shuffle=False)
    kept = list(loader)
    copies = [images.clone() for images, _ in kept]
    del loader
    assert all(torch.equal(images, copy) for (images, _), copy in zip(kept, copies))


def test_samples_have_names_and_labels(folder):
    loader = make(folder)
    assert loader.sample(3)[0].endswith("train-images-idx3-ubyte[3]")
    assert [loader.sample(index)[1] for index in range(50)] == [index % 10 for index in range(50)]
    for index in (-1, 50):
        with pytest.raises(IndexError, match=f"sample {index}: there are 50 samples"):
            loader.sample(index)


def test_a_pass_that_was_left_early_leaves_its_place_and_the_next_epoch_whole(folder):
    loader = make(folder)
    for wanted in range(2):
        batch = next(iter(loader))
        assert (batch.epoch, loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (wanted, wanted, 1)
    assert len(epoch_of(loader)) == 4


def test_one_pass_runs_at_a_time(folder):
    loader = make(folder)
    old = iter(loader)
    next(old)
    new = iter(loader)
    with pytest.raises(hr.errors.InvalidArgumentError, match="a newer pass"):
        next(old)
    assert next(new).epoch == 1


def test_keywords_are_the_keys_of_recipes(folder):
    loader = make(folder, threads=2, transform={"mean": [0.5]})
    assert loader.options["threads"] == 2 and loader.options["transform"]["mean"] == [0.5]
    assert loader.options["last_batch"] == "keep" and loader.options["seed"] == 3 and loader.options["training"]
    for options, words in [({"batchsize": 4}, "unknown key batchsize, did you mean batch_size"),
                           ({"batch_size": 0}, "batch_size"), ({"transform": {"means": [1]}}, "transform.mean"),
                           ({"last_batch": "pad"}, "keep | drop"), ({"split": "valid"}, "wanted train | test"),
                           ({"seed": -1}, "seed is -1"), ({"transform": {"mean": ["x"]}}, "wanted numbers")]:
        with pytest.raises(hr.errors.InvalidArgumentError, match=words):
            make(folder, **options)


def test_sources_that_are_not_there_are_named():
    with pytest.raises(hr.errors.NotFoundError, match="/nowhere") as caught:
        hr.Loader("idx:/nowhere")
    assert isinstance(caught.value, FileNotFoundError) and caught.value.code == "not_found"
    with pytest.raises(hr.errors.InvalidArgumentError, match="idx"):
        hr.Loader("sql:x")


def test_live_settings_change_no_byte(folder):
    reference = epoch_of(make(folder))
    loader = make(folder)
    iterator = iter(loader)
    first = [next(iterator)]
    loader.set_threads(2)
    loader.set_prefetch_batches(4)
    assert_same_batches([(b[0], b[1]) for b in first + list(iterator)], reference)
    assert loader.options["threads"] == 2 and loader.statistics()["batches"] == 4
    with pytest.raises(hr.errors.InvalidArgumentError, match="threads"):
        loader.set_threads(-1)


def test_trainer_resumes_within_an_epoch_of_a_loader(folder, tmp_path):
    def network():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(model, batch):
        return nn.functional.cross_entropy(model(batch["images"]), batch["labels"])

    path = tmp_path / "c.safetensors"
    whole = network()
    trainer = hr.Trainer(whole, torch.optim.AdamW(whole.parameters(), fused=True), forward)
    trainer.fit(make(folder), 3, evaluate=make(folder, split="test"),
                on_step=lambda loss: trainer.save(path) if trainer.progress["optimizer_steps"] == 6 else None)
    resumed = network()
    again = hr.Trainer(resumed, torch.optim.AdamW(resumed.parameters(), fused=True), forward)
    assert again.load(path) == {"epoch": 1, "batch": 2, "optimizer_steps": 6, "skipped_updates": 0, "window": 0}
    results = again.fit(make(folder), 3, evaluate=make(folder, split="test"))
    assert [result["samples"] for result in results] == [18, 50] and results[1]["evaluation"]["samples"] == 20
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values()))


def test_the_same_training_over_each_kind_of_loader_has_the_same_losses(folder):
    native = make(folder, split="test", batch_size=6)
    dataset = torch.utils.data.TensorDataset(*(torch.cat(parts) for parts in zip(*epoch_of(native))))
    kinds = [native, torch.utils.data.DataLoader(dataset, batch_size=6), epoch_of(native), lambda: iter(epoch_of(native))]
    losses = []
    for kind in kinds:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.01),
                             lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1]))
        seen = []
        trainer.fit(kind, 2, on_step=lambda loss: seen.append(loss.item()))
        losses.append(seen)
    assert len(losses[0]) == 8 and len(set(losses[0])) == 8
    assert losses[0] == losses[1] == losses[2] == losses[3]


def test_a_forked_child_is_told_to_make_its_own(folder):
    loader = make(folder, threads=2)
    next(iter(loader))
    child = os.fork()
    if child == 0:
        try:
            iter(loader)
        except hr.errors.UnsupportedError:
            del loader  # Must not wait for threads that the child has not.
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(loader)) == 4


def test_workers_of_a_dataloader_are_forked_beside_a_loader(folder):
    loader = make(folder, threads=2)
    iterator = iter(loader)
    next(iterator)
    dataset = torch.utils.data.TensorDataset(torch.arange(8.0))
    assert len(list(torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2))) == 4
    assert len(list(iterator)) == 3


def test_many_epochs_do_not_make_the_process_grow(folder):
    loader = make(folder, threads=1, batch_size=1)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(20):
        for _batch in loader:
            pass
    before = resident()
    for _ in range(400):  # 20,000 batches.
        for _batch in loader:
            pass
    for _ in range(20_000):
        loader.state_dict(), loader.statistics(), len(loader)
    assert resident() - before < 2_000_000
