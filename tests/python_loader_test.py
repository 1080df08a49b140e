"""headrace.Loader as a Python loop meets it."""

import asyncio
import gc
import hashlib
import json
import os
import pickle
import signal
import struct
import threading
import time

import numpy
import pytest
import torch
from cancelled_await import batch_of_a_second_await
from own_python import run_python
from running_threads import running_threads
from tiny_run import write_photos
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
    loader = make(folder, transform={"mean": [0.5], "std": [0.25]})
    assert len(loader) == 4 and loader.samples == 50 and loader.num_classes == 10 and loader.batch_size == 16
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [16, 16, 16, 2]
    images, labels = batches[0]
    assert images.shape == (16, 1, 8, 8) and images.dtype == torch.float32
    assert labels.shape == (16,) and labels.dtype == torch.int64
    assert batches[1].index == 1 and batches[1].epoch == 0
    assert batches[0]["image"] is batches[0][0] and batches[0]["valid"].all()
    with pytest.raises(KeyError):
        batches[0]["nothing"]


def test_pixels_are_those_of_the_files(folder):
    raw = numpy.frombuffer((folder / "t10k-images-idx3-ubyte").read_bytes()[16:], "u1").reshape(20, 1, 8, 8)
    images = torch.cat([images for images, _ in make(folder, split="test")])
    assert torch.equal(images, torch.from_numpy(raw.copy()).float().div(255))


def test_types_and_layouts_are_those_asked_for(folder):
    normal = {"mean": [0.5], "std": [0.25]}
    wanted = next(iter(make(folder, transform=normal)))[0]
    for dtype, layout in [("float32", "nhwc"), ("bfloat16", "nchw"), ("uint8", "nhwc")]:
        transform = {**({} if dtype == "uint8" else normal), "dtype": dtype, "layout": layout}
        images = next(iter(make(folder, transform=transform)))[0]
        assert images.dtype == getattr(torch, dtype) and images.shape == wanted.shape
        assert layout == "nchw" or images.is_contiguous(memory_format=torch.channels_last)
        ours = (images.float() / 255 - 0.5) / 0.25 if dtype == "uint8" else images
        assert torch.equal(ours, wanted.to(images.dtype) if dtype == "bfloat16" else wanted)
    with pytest.raises(hr.errors.InvalidArgumentError, match="mean and std need a float"):
        make(folder, transform={**normal, "dtype": "uint8"})


def test_each_iteration_is_the_next_epoch_and_threads_change_nothing(folder):
    first = make(folder, num_workers=0)
    epochs = [epoch_of(first), epoch_of(first)]
    assert not torch.equal(epochs[0][0][1], epochs[1][0][1])
    other = make(folder, num_workers=2)
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
    assert (state["epoch"], state["position"]) == (0, 32)
    resumed = make(folder)
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert_same_batches(epoch_of(resumed), epochs[0][2:])
    assert (resumed.state_dict()["epoch"], resumed.state_dict()["position"]) == (1, 0)
    assert_same_batches(epoch_of(resumed), epochs[1])


def test_states_of_another_loader_are_refused(folder):
    state = make(folder).state_dict()
    for other, words in ((make(folder, seed=4), "seed 3, this one has 4"), (make(folder, batch_size=8), "batch_size 16"),
                         (make(folder, split="test"), "training true, this one has false"),
                         (make(folder, split="test", training=True), "fingerprint"),
                         (make(folder, shuffle=False), "data.shuffle true, this one has false"),
                         (make(folder, last_batch="pad"), "data.last_batch")):
        with pytest.raises(hr.errors.InvalidArgumentError, match=words):
            other.load_state_dict(state)
    with pytest.raises(hr.errors.InvalidArgumentError, match="has no epoch"):
        make(folder).load_state_dict({})
    with pytest.raises(hr.errors.InvalidArgumentError, match="sample 51 of epoch 0; an epoch has 50"):
        make(folder).load_state_dict({**state, "position": 51})
    with pytest.raises(hr.errors.InvalidArgumentError, match="has seed 'three'"):
        make(folder).load_state_dict({**state, "seed": "three"})


def test_memory_is_shared_with_numpy_and_dlpack(folder):
    batch = next(iter(make(folder)))
    array = batch["image"].numpy()
    other = numpy.from_dlpack(batch["image"])
    third = torch.from_dlpack(batch["image"])
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


def test_an_epoch_that_was_left_early_leaves_its_place_and_the_next_epoch_whole(folder):
    loader = make(folder)
    for wanted in range(2):
        batch = next(iter(loader))
        assert (batch.epoch, loader.state_dict()["epoch"], loader.state_dict()["position"]) == (wanted, wanted, 16)
    assert len(epoch_of(loader)) == 4


def test_one_epoch_runs_at_a_time(folder):
    loader = make(folder)
    old = iter(loader)
    next(old)
    new = iter(loader)
    with pytest.raises(hr.errors.InvalidArgumentError, match="a newer epoch"):
        next(old)
    assert next(new).epoch == 1


def test_keywords_are_the_keys_of_recipes(folder):
    loader = make(folder, num_workers=2, transform={"mean": [0.5]})
    assert loader.options["num_workers"] == 2 and loader.options["transform"]["mean"] == [0.5]
    assert loader.options["last_batch"] == "keep" and loader.options["seed"] == 3 and loader.options["training"]
    for options, words in [({"batchsize": 4}, "unknown key batchsize, did you mean batch_size"),
                           ({"batch_size": 0}, "batch_size"), ({"transform": {"means": [1]}}, "transform.mean"),
                           ({"last_batch": "fill"}, "keep | drop | pad"), ({"split": "valid"}, "wanted train | val | test"), ({"val_fraction": 0.6}, "val_fraction"),
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
    loader.set_num_workers(2)
    loader.set_prefetch_batches(4)
    assert_same_batches([(b[0], b[1]) for b in first + list(iterator)], reference)
    assert loader.options["num_workers"] == 2 and loader.statistics()["batches"] == 4
    with pytest.raises(hr.errors.InvalidArgumentError, match="num_workers"):
        loader.set_num_workers(-2)


REFUSED = """
import resource, sys
import headrace as hr
loader = hr.Loader(sys.argv[1], batch_size=16, num_workers=1)
kilobytes = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, ((kilobytes << 10) + (128 << 20),) * 2)
try:
    loader.set_num_workers(256)
except hr.Error as refused:
    print("cannot start loader thread" in str(refused))
print(loader.options["num_workers"], loader.statistics()["num_workers"], len(list(loader)))
"""


def test_a_number_of_threads_that_is_refused_changes_nothing(folder):
    done = run_python("-c", REFUSED, f"idx:{folder}", timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n1 1 4\n"), done.stderr
    loader = make(folder, num_workers=1)
    for refused in (-2, 257, "many"):
        with pytest.raises(hr.errors.InvalidArgumentError):
            loader.set_num_workers(refused)
        with pytest.raises(hr.errors.InvalidArgumentError):
            loader.set_prefetch_batches(refused)
    assert loader.options["num_workers"] == 1 and loader.options["prefetch_batches"] == 2


class SlowSquares:
    """Images that take a millisecond to read and no computing."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.001)
        return numpy.full((4, 4, 1), index % 256, dtype=numpy.uint8), index % 10


def test_autotune_finds_its_threads_and_says_why():
    plain = epoch_of(hr.Loader(SlowSquares(), batch_size=2, seed=3, num_workers=0))
    loader = hr.Loader(SlowSquares(), batch_size=2, seed=3, num_workers=hr.AUTOTUNE, prefetch_batches=-1, num_workers_max=4)
    assert loader.options["num_workers"] == hr.AUTOTUNE and loader.options["prefetch_batches"] == hr.AUTOTUNE
    assert_same_batches(epoch_of(loader), plain)
    deadline = time.monotonic() + 60
    while not (of_threads := [decision for decision in loader.decisions() if decision["what"] == "data.num_workers"]):
        assert time.monotonic() < deadline
        list(loader)  # The first epoch decides, unless other programs held the loop up, so that it was not short of batches.
    assert of_threads[0]["from"] == 1 and of_threads[0]["to"] > 1
    assert of_threads[0]["before"] > 0 and "a batch takes the threads" in of_threads[0]["why"]
    applied = {key: (requested, now) for key, requested, now, _ in loader.applied}
    statistics = loader.statistics()
    assert applied["data.num_workers"] == ("auto", str(statistics["num_workers"]))
    assert applied["data.prefetch_batches"] == ("auto", str(statistics["prefetch_batches"]))
    loader.set_num_workers(2)
    assert loader.statistics()["num_workers"] == 2 and loader.options["num_workers"] == 2
    loader.set_num_workers(hr.AUTOTUNE)
    assert loader.options["num_workers"] == "auto"


def test_with_auto_tune_off_nothing_is_decided():
    loader = hr.Loader(SlowSquares(), batch_size=2, seed=3, num_workers=hr.AUTOTUNE, prefetch_batches=hr.AUTOTUNE,
                       cache=hr.AUTOTUNE, auto_tune=False)
    for _ in range(3):  # Each of 128 batches, which are enough for a decision.
        list(loader)
    assert loader.decisions() == []
    reason = "as it began; data.auto_tune is false"
    assert loader.applied[:2] == [("data.num_workers", "auto", "1", reason), ("data.prefetch_batches", "auto", "2", reason)]
    assert loader.settings == {"num_workers": 1, "prefetch_batches": 2, "cache": "none", "auto_tune": False}


def test_what_autotune_has_found_holds_in_another_loader_that_decides_nothing():
    finding = hr.Loader(SlowSquares(), batch_size=2, seed=3, num_workers=hr.AUTOTUNE, prefetch_batches=hr.AUTOTUNE,
                        num_workers_max=4)
    deadline = time.monotonic() + 60
    while finding.settings["num_workers"] == 1:
        assert time.monotonic() < deadline
        list(finding)
    found = finding.settings
    assert found["num_workers"] == finding.statistics()["num_workers"] > 1
    assert found["prefetch_batches"] == finding.statistics()["prefetch_batches"]
    fixed = hr.Loader(SlowSquares(), batch_size=2, seed=3, **json.loads(json.dumps(found)))  # As a file keeps it.
    assert_same_batches(epoch_of(fixed), epoch_of(hr.Loader(SlowSquares(), batch_size=2, seed=3, num_workers=0)))
    assert fixed.settings == found and fixed.decisions() == []
    in_force = {key: (requested, now) for key, requested, now, _ in fixed.applied}
    assert in_force["data.num_workers"] == (str(found["num_workers"]),) * 2
    assert in_force["data.prefetch_batches"] == (str(found["prefetch_batches"]),) * 2


def test_autotune_is_refused_where_it_says_nothing(folder):
    with pytest.raises(hr.errors.InvalidArgumentError, match="prefetch_factor is 2 batches a worker"):
        make(folder, num_workers=hr.AUTOTUNE, prefetch_factor=2)
    assert make(folder, num_workers=hr.AUTOTUNE, prefetch_factor=hr.AUTOTUNE).options["prefetch_batches"] == "auto"
    with pytest.raises(hr.errors.InvalidArgumentError, match='num_workers must be 0 to 256, or "auto", found "many"'):
        make(folder, num_workers="many")


def test_statistics_tell_what_passed_each_stage(folder):
    loader = make(folder)
    list(loader)
    stages = {stage["name"]: stage for stage in loader.statistics()["stages"]}
    assert list(stages) == ["read", "decode", "transform", "consume"]
    assert [stage["records"] for stage in stages.values()] == [50, 0, 50, 50]
    assert stages["read"]["bytes"] == 50 * 64 and stages["consume"]["bytes"] == 50 * 64 * 4
    assert sum(stage["limits"] for stage in stages.values()) == 1
    assert loader.statistics()["latency_p99_s"] >= loader.statistics()["latency_p50_s"] > 0


def test_the_plan_is_told_before_and_after_loading(folder):
    loader = make(folder, transform={"pad": 1, "flip_probability": 0.5, "mean": [0.5]})
    fused = "pad, crop, flip, to float, normalise, into the batch"
    plan = loader.explain()
    assert [one["name"] for one in plan["passes"]] == ["read", fused]
    assert plan["transforms"] == [
        {"operations": ["RandomCrop", "RandomHorizontalFlip", "ToDtype", "Normalize"], "fused": True, "why": ""}]
    assert plan["passes"][1]["bytes_in"] is None and plan["bytes_a_sample"] is None and plan["stage_by_stage"] == []
    list(loader)
    plan = loader.explain()
    assert [(one["name"], one["samples"]) for one in plan["passes"]] == [("read", 50), (fused, 50)]
    assert (plan["passes"][0]["bytes_in"], plan["passes"][0]["bytes_out"]) == (64, 0)  # It lies in memory.
    assert (plan["passes"][1]["bytes_in"], plan["passes"][1]["bytes_out"]) == (64, 256)
    stages = {one["name"]: one for one in plan["stage_by_stage"]}
    assert list(stages) == ["read", "pad", "crop", "flip", "to float", "normalise", "into the batch"]
    assert stages["pad"]["bytes_out"] == 100 and stages["normalise"]["bytes_in"] == 256
    assert plan["bytes_a_sample"]["copied"] == 256 < plan["bytes_a_sample_stage_by_stage"]["copied"]
    assert plan["bytes_a_sample"]["touched"] < plan["bytes_a_sample_stage_by_stage"]["touched"]


@pytest.mark.parametrize("threads", [0, 2])
def test_advice_names_the_dearest_transform_and_what_no_gpu_can_do(folder, threads):
    loader = make(folder, num_workers=threads, transform={"pad": 1, "flip_probability": 0.5})
    list(loader)
    before = loader.statistics()
    advice = loader.advice()
    seconds = advice["seconds_a_sample"]
    assert list(seconds) == ["read", "decode", "augment", "collate", "copy"]
    assert seconds["decode"] == 0 < seconds["augment"] and seconds["copy"] is None
    *optional, gpu = advice["proposals"]
    assert {one["setting"] for one in optional} <= {"data.transform.pad = 0", "data.transform.flip_probability = 0"}
    assert all(one["predicted_samples_per_second"] > 0 for one in optional)
    assert (gpu["name"], gpu["requested"], gpu["applied"]) == ("augment on the GPU", "gpu", "cpu")
    assert not gpu["applicable"] and gpu["reason"]
    # A thread adds the time that it waited for room when it is woken, which may be after the epoch's end.
    assert threads > 0 or loader.statistics() == before
    costs = before["costs"]
    assert list(costs) == ["read_s", "decode_s", "augment_s", "collate_s", "copy_s"] and costs["collate_s"] > 0


def test_the_time_of_collate_fn_is_told(folder):
    loader = make(folder, collate_fn=lambda samples: time.sleep(0.01) or samples)
    list(loader)
    assert loader.statistics()["costs"]["collate_s"] >= 4 * 0.01  # A sleep is never shorter.


@pytest.mark.engine
def test_trainer_resumes_within_an_epoch_of_a_loader(folder, tmp_path):
    def network():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(model, batch):
        return nn.functional.cross_entropy(model(batch["image"]), batch["labels"])

    path = tmp_path / "c.safetensors"
    whole = network()
    trainer = hr.Trainer(whole, torch.optim.AdamW(whole.parameters(), fused=True), forward)
    trainer.fit(make(folder), 3, evaluate=make(folder, split="test"),
                on_step=lambda loss: trainer.save(path) if trainer.progress["optimizer_steps"] == 6 else None)
    resumed = network()
    again = hr.Trainer(resumed, torch.optim.AdamW(resumed.parameters(), fused=True), forward)
    stands_at = {"epoch": 1, "batch": 2, "optimizer_steps": 6, "skipped_updates": 0, "window": 0}
    assert again.load(path).items() >= stands_at.items()
    results = again.fit(make(folder), 3, evaluate=make(folder, split="test"))
    assert [result["samples"] for result in results] == [18, 50] and results[1]["evaluation"]["samples"] == 20
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values()))


@pytest.mark.engine
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
    loader = make(folder, num_workers=2)
    running = iter(loader)
    next(running)
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: iter(loader), lambda: next(running), loader.state_dict, loader.statistics,
                    lambda: loader.set_num_workers(1)):
            try:
                use()
            except hr.errors.UnsupportedError as error:
                refused += "does not go through fork" in str(error)
        del running, loader  # Must not wait for threads that the child has not.
        os._exit(0 if refused == 5 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(running)) == 3 and len(list(loader)) == 4


def test_workers_of_a_dataloader_are_forked_beside_a_loader(folder):
    loader = make(folder, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    dataset = torch.utils.data.TensorDataset(torch.arange(8.0))
    assert len(list(torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=2))) == 4
    assert len(list(iterator)) == 3


def resident() -> int:
    """Bytes of this process alone, without pages of files: the system drops those and reads them again as it has room."""
    with open("/proc/self/statm") as file:
        _, all_pages, shared, *_ = map(int, file.read().split())
        return (all_pages - shared) * os.sysconf("SC_PAGE_SIZE")


def test_many_epochs_do_not_make_the_process_grow(folder):
    loader = make(folder, num_workers=1, batch_size=1)
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


def test_many_batches_of_photographs_do_not_make_the_process_grow(tmp_path):
    write_photos(tmp_path, train=100)
    loader = hr.Loader(f"folder:{tmp_path}", batch_size=2, num_workers=2, seed=3,
                       transform={"size": 32, "crop": "random_resized", "flip_probability": 0.5})
    for _ in range(10):
        assert len(list(loader)) == 100
    before = resident()
    for _ in range(200):  # 20,000 batches.
        for _batch in loader:
            pass
    assert resident() - before < 2_000_000


def numbered(path, count: int) -> str:
    """A data set whose images are one pixel each, which tells their index; classes of unequal size."""
    path.mkdir(exist_ok=True)
    for split in ("train", "t10k"):
        write_idx(path / f"{split}-images-idx3-ubyte", numpy.arange(count).reshape(count, 1, 1))
        write_idx(path / f"{split}-labels-idx1-ubyte", numpy.minimum(numpy.arange(count) // 10, 3))
    return f"idx:{path}"


def indices_of(batch) -> list[int]:
    return (batch["image"].flatten() * 255).round().long().tolist()


def test_ranks_share_an_epoch_as_a_distributed_sampler_does(tmp_path):
    for size in range(100, 108):
        source = numbered(tmp_path / str(size), size)
        for ranks in range(1, 9):
            for last_batch, drop_last in (("keep", False), ("drop", True)):
                ours, theirs, counted = [], [], []
                for rank in range(ranks):
                    loader = hr.Loader(source, batch_size=1, num_workers=0, shuffle=False, world_size=ranks, rank=rank,
                                       last_batch=last_batch)
                    sampler = torch.utils.data.DistributedSampler(range(size), ranks, rank, shuffle=False,
                                                                  drop_last=drop_last)
                    batches = [(indices_of(batch)[0], bool(batch["valid"][0])) for batch in loader]
                    assert len(batches) == len(loader) == len(sampler)
                    ours += [index for index, _ in batches]
                    counted += [index for index, counts in batches if counts]
                    theirs += list(sampler)
                assert sorted(ours) == sorted(theirs)
                assert sorted(counted) == list(range(size - size % ranks if drop_last else size))


def test_batches_out_of_order_are_the_same_ones():
    held, built = threading.Event(), threading.Event()

    class Numbers:
        classes = 1

        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index == 0 and built.is_set():  # The Loader reads one when it is made, for its size.
                assert held.wait(60)
            return numpy.full((1, 1), index, numpy.uint8), 0

    loader = hr.Loader(Numbers(), batch_size=4, num_workers=2, prefetch_batches=3, shuffle=False, in_order=False)
    built.set()
    found = []
    for batch in loader:
        found.append(indices_of(batch))
        if len(found) < len(loader):
            with pytest.raises(ValueError, match="data.in_order"):
                loader.state_dict()
        if len(found) == len(loader) - 1:
            held.set()
    assert found[-1] == [0, 1, 2, 3]
    assert sorted(found) == [list(range(first, first + 4)) for first in range(0, 40, 4)]
    loader.load_state_dict(loader.state_dict())


def test_each_epoch_of_ranks_has_a_new_order_and_is_that_of_one_rank(tmp_path):
    source = numbered(tmp_path / "d", 103)
    alone = hr.Loader(source, batch_size=8, seed=5)
    parts = [hr.Loader(source, batch_size=4, seed=5, world_size=2, rank=rank) for rank in range(2)]
    orders = set()
    for epoch in (0, 1, 7):
        alone.set_epoch(epoch)
        whole = [indices_of(batch) for batch in alone]
        orders.add(tuple(sum(whole, [])))
        for part in parts:
            part.set_epoch(epoch)
        both = [indices_of(first) + indices_of(second) for first, second in zip(*parts)]
        assert both[:-1] == whole[:-1]
        assert both[-1][:7] == whole[-1]
    assert len(orders) == 3


ORDERS = {  # Of 100 samples in epochs 0 and 1, as sha256 of their numbers; whoever changes one of them says so in CHANGELOG.md.
    "each": "789591176f6b4550",
    "window": "99afd00f2f01bf89",
    "weighted": "801e6a32033ab1fb",
}


@pytest.mark.parametrize("sampler", ORDERS)
def test_the_order_of_a_seed_is_the_same_in_every_version(tmp_path, sampler):
    options = {"window": {"shuffle_window": 30}, "weighted": {"sampler": "weighted", "weights": [1, 2, 3, 4]}}.get(sampler, {})
    for threads in (0, 2):
        loader = hr.Loader(numbered(tmp_path, 100), batch_size=7, seed=3, num_workers=threads, **options)
        indices = [index for _ in range(2) for batch in loader for index in indices_of(batch)]
        assert len(indices) == 200 and indices[:100] != indices[100:]
        assert hashlib.sha256(bytes(indices)).hexdigest()[:16] == ORDERS[sampler]


def chi_squared(counts: list[int], chances: torch.Tensor) -> float:
    expected = chances / chances.sum() * sum(counts)
    return float(((torch.tensor(counts) - expected) ** 2 / expected).sum())


def test_weights_draw_as_a_weighted_random_sampler_does(tmp_path):
    source = numbered(tmp_path / "d", 200)
    weights = torch.linspace(0.1, 3.0, 200, dtype=torch.float64)
    loader = hr.Loader(source, batch_size=200, seed=1, sampler="weighted", weights=weights)
    ours = [0] * 200
    for _ in range(500):
        for batch in loader:
            for index in indices_of(batch):
                ours[index] += 1
    theirs = [0] * 200
    generator = torch.Generator().manual_seed(1)
    for index in torch.utils.data.WeightedRandomSampler(weights, 100_000, generator=generator):
        theirs[index] += 1
    for counts in (ours, theirs):
        assert sum(counts) == 100_000
        assert chi_squared(counts, weights) < 199 + 5 * (2 * 199) ** 0.5
    balanced = hr.Loader(source, batch_size=200, seed=1, sampler="class_balanced")
    labels = torch.cat([labels for _ in range(50) for _, labels in balanced])
    assert chi_squared(torch.bincount(labels).tolist(), torch.ones(4)) < 3 + 5 * 6 ** 0.5
    for options, words in (({"weights": [1.0, 2.0]}, "2 values; wanted"), ({"weights": None}, "weights is missing")):
        with pytest.raises(hr.errors.InvalidArgumentError, match=words):
            hr.Loader(source, sampler="weighted", **options)


def test_a_padded_batch_tells_by_valid_what_counts(folder):
    batches = list(make(folder, last_batch="pad"))
    assert [len(labels) for _, labels in batches] == [16, 16, 16, 16]
    assert batches[3]["valid"].tolist() == [1] * 2 + [0] * 14
    assert torch.equal(batches[3][0][2:], batches[0][0][:14])


PROCESS = """
import hashlib, pickle, sys
import headrace as hr
loader = hr.Loader(sys.argv[1], batch_size=1, num_workers=int(sys.argv[2]), seed=3, sampler=sys.argv[3],
                   transform={"pad": 2, "flip_probability": 0.5})
loader.load_state_dict(pickle.loads(bytes.fromhex(sys.argv[4])))
for images, labels in loader:
    print(hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest())
"""


@pytest.mark.parametrize("sampler", ["each", "class_balanced"])
def test_a_new_process_goes_on_within_an_epoch_with_the_same_bytes(folder, sampler):
    loader = hr.Loader(f"idx:{folder}", batch_size=1, num_workers=1, seed=3, sampler=sampler,
                       transform={"pad": 2, "flip_probability": 0.5})
    running = iter(loader)
    for _ in range(37):
        next(running)
    state = pickle.dumps(loader.state_dict()).hex()
    rest = [hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()
            for images, labels in running]
    assert len(rest) == 13
    for threads in ("0", "7"):
        done = run_python("-c", PROCESS, f"idx:{folder}", threads, sampler, state, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == rest


def test_set_epoch_keeps_a_place_within_that_epoch(folder):
    loader = make(folder)
    running = iter(loader)
    next(running), next(running)
    state = loader.state_dict()
    expected = epoch_of(running)
    resumed = make(folder)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert_same_batches(epoch_of(resumed), expected)
    resumed.set_epoch(0)
    assert len(epoch_of(resumed)) == 4


def test_requests_give_the_batches_of_the_iteration(folder):
    expected = epoch_of(make(folder))
    for threads in (0, 1):
        loader = make(folder, num_workers=threads)
        running = iter(loader)
        found = []
        while True:
            before = loader.state_dict()
            request = running.request()
            assert loader.state_dict() == before  # Until it is taken.
            if threads == 0:
                assert request.done()
            with pytest.raises(hr.errors.InvalidArgumentError, match="has not been taken"):
                running.request()
            if (batch := request.result()) is None:
                break
            found.append((batch[0].clone(), batch[1].clone()))
            with pytest.raises(hr.errors.InvalidArgumentError, match="taken already"):
                request.result()
        assert_same_batches(found, expected)
        assert loader.state_dict()["epoch"] == 1


def test_batches_can_be_awaited(folder):
    expected = epoch_of(make(folder))

    async def iterate(loader):
        return [(images.clone(), labels.clone()) async for images, labels in loader]

    async def both():
        return await asyncio.gather(iterate(make(folder, num_workers=1)), iterate(make(folder, num_workers=2)))

    for found in asyncio.run(both()):
        assert_same_batches(found, expected)


def test_collate_fn_makes_the_batches(folder):
    def collate(samples):
        return [image for image, _ in samples], {"labels": [label for _, label in samples]}

    plain = epoch_of(make(folder))
    for found, (images, labels) in zip(make(folder, collate_fn=collate), plain, strict=True):
        assert torch.equal(torch.stack(found[0]), images) and found[1]["labels"] == labels.tolist()
    default = list(make(folder, collate_fn=torch.utils.data.default_collate))
    assert_same_batches([tuple(batch) for batch in default], plain)
    with pytest.raises(hr.errors.InvalidArgumentError, match="wanted something to call"):
        make(folder, collate_fn=3)
    with pytest.raises(hr.errors.InvalidArgumentError, match="valid"):
        make(folder, collate_fn=collate, last_batch="pad")

    def broken(samples):
        raise KeyError("boxes")

    with pytest.raises(KeyError, match="boxes"):
        next(iter(make(folder, collate_fn=broken)))


@pytest.mark.parametrize("make_batch", [
    lambda images, numbers: (torch.stack(images), [torch.full((number, 4), float(number)) for number in numbers]),
    lambda images, numbers: {"image": images, "boxes": [[[0, 0, 1, 1]] * number for number in numbers], "ids": numbers},
    lambda images, numbers: [image[:, : 1 + number % 3] for image, number in zip(images, numbers)],
    lambda images, numbers: None], ids=["boxes of unequal lengths", "dict of lists", "unequal sizes", "None"])
def test_what_collate_fn_returns_is_the_batch_whatever_it_is(make_batch):
    class Numbered:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return numpy.full((4, 5, 3), index, numpy.uint8), index

    def collate(samples):
        return make_batch(*map(list, zip(*samples)))

    def make_loader(**options):
        return hr.Loader(Numbered(), batch_size=4, collate_fn=collate, **options)

    plain = [collate([(image, label) for image, label in zip(images, labels.tolist())])
             for images, labels in hr.Loader(Numbered(), batch_size=4)]
    loader = make_loader()
    passing = iter(loader)
    found = [next(passing)]
    state = loader.state_dict()
    resumed = make_loader(num_workers=2)
    resumed.load_state_dict(state)
    found += list(resumed)
    assert len(found) == 3
    for ours, theirs in zip(found, plain, strict=True):
        assert type(ours) is type(theirs) and torch.utils._pytree.tree_structure(ours) == torch.utils._pytree.tree_structure(theirs)
        assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
                   for a, b in zip(torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs)))


def test_a_requested_batch_that_collate_fn_makes_none_of_is_told_from_the_end(folder):
    request = iter(make(folder, collate_fn=lambda samples: None)).request()
    with pytest.raises(hr.errors.InvalidArgumentError, match="collate_fn gave None .* where None is the epoch's end"):
        request.result()


def test_keywords_of_a_dataloader_are_taken_or_refused_by_name(folder):
    loader = make(folder, num_workers=2, prefetch_factor=3, drop_last=True, pin_memory=True, persistent_workers=False)
    assert loader.options["num_workers"] == 2 and loader.options["prefetch_batches"] == 6
    assert loader.options["last_batch"] == "drop" and len(loader) == 3 and len(list(loader)) == 3
    assert loader.not_applied == {"pin_memory": "no CUDA"} and make(folder).not_applied == {}
    with pytest.raises(hr.errors.InvalidArgumentError, match="worker_init_fn: native threads read idx:.* nothing of Python"):
        make(folder, worker_init_fn=print)
    with pytest.raises(hr.errors.InvalidArgumentError, match="prefetch_factor and prefetch_batches are the same"):
        make(folder, prefetch_factor=1, prefetch_batches=2)


@pytest.mark.parametrize("options, row", [
    ({"num_workers": 3}, ("num_workers", "3", "3", "")),
    ({"batch_size": 7}, ("batch_size", "7", "7", "")),
    ({"pin_memory": True}, ("pin_memory", "true", "false", "no CUDA")),
    ({"pin_memory": False}, ("pin_memory", "false", "false", "")),
    ({"persistent_workers": False}, ("persistent_workers", "false", "false", "")),
    ({}, ("persistent_workers", "true", "true", "")),
    ({"num_workers": 2, "prefetch_factor": 4}, ("prefetch_factor", "4", "4", "")),
    ({"enable_async_data_loading": False}, ("enable_async_data_loading", "false", "false", "")),
    ({}, ("enable_async_data_loading", "true", "true", "")),
    ({"num_workers": 0}, ("enable_async_data_loading", "true", "false", "no workers: the one that iterates loads")),
    ({"num_workers": 0}, ("persistent_workers", "true", "false", "no workers: the one that iterates loads")),
])
def test_each_option_is_told_as_asked_for_and_as_in_force(folder, options, row):
    loader = make(folder, **options)
    assert row in loader.applied and len(list(loader)) == len(loader)
    assert len({key for key, *_ in loader.applied}) == len(loader.applied)
    images, _ = next(iter(loader))
    assert len(images) == options.get("batch_size", 16) and not images.is_pinned()


class Gated(SlowSquares):
    """Waits at each sample but the first, by which it is opened, until it is let through."""

    def __init__(self):
        self.begun, self.open, self.is_opened = threading.Event(), threading.Event(), False

    def __getitem__(self, index):
        if self.is_opened:
            self.begun.set()
            assert self.open.wait(60)
        self.is_opened = True
        return super().__getitem__(index)


def test_a_request_returns_before_its_batch_is_there():
    source = Gated()
    request = iter(hr.Loader(source, batch_size=8, num_workers=2)).request()
    assert source.begun.wait(60) and not request.done()
    source.open.set()
    assert len(request.result()[1]) == 8


def test_without_asynchronous_loading_the_same_request_waits():
    source, found = Gated(), []
    loader = hr.Loader(source, batch_size=8, num_workers=2, enable_async_data_loading=False, shuffle=False)
    batches = iter(loader)
    asks = threading.Thread(target=lambda: found.append(batches.request()))
    asks.start()
    assert source.begun.wait(60) and not found
    source.open.set()
    asks.join()
    assert found[0].done() and loader.state_dict()["position"] == 0
    assert found[0].result()[1].tolist() == list(range(8)) and loader.state_dict()["position"] == 8


def test_requests_that_wait_give_the_batches_of_the_iteration(folder):
    loader = make(folder, enable_async_data_loading=False)
    running, found = iter(loader), []
    while (batch := running.request().result()) is not None:
        found.append((batch[0].clone(), batch[1].clone()))
    assert_same_batches(found, epoch_of(make(folder)))


def test_a_ctrl_c_ends_a_request_that_waits_and_loses_no_batch(ctrl_c):
    source = Gated()
    loader = hr.Loader(source, batch_size=8, num_workers=1, enable_async_data_loading=False, shuffle=False)
    batches = iter(loader)
    asks = threading.Event()  # A Ctrl-C that comes sooner would be nobody's.
    interrupt = threading.Thread(target=lambda: (source.begun.wait(60), asks.wait(60), os.kill(os.getpid(), signal.SIGINT)))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        asks.set()
        batches.request()
    interrupt.join()
    source.open.set()
    assert batches.request().result()[1].tolist() == list(range(8))


def test_an_await_that_is_cancelled_leaves_the_request_open():
    source = Gated()
    loader = hr.Loader(source, batch_size=8, num_workers=2, shuffle=False)

    def let_through(request):
        source.open.set()
        request.wait()
        assert request.done() and loader.state_dict()["position"] == 0

    batch = batch_of_a_second_await(iter(loader), let_through)
    assert batch[1].tolist() == list(range(8)) and loader.state_dict()["position"] == 8


def test_a_request_is_taken_by_one_of_the_threads_that_wait_for_it():
    source, found = Gated(), []
    request = iter(hr.Loader(source, batch_size=8, num_workers=2, shuffle=False)).request()

    def take():
        try:
            found.append(request.result()[1].tolist())
        except hr.errors.InvalidArgumentError as error:
            found.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert source.begun.wait(60)
    source.open.set()
    for thread in threads:
        thread.join()
    assert found.count(list(range(8))) == 1 and sum("taken already" in entry for entry in found) == 3


def test_workers_are_threads_that_survive_epochs_and_end_with_their_loader(folder):
    def children():
        return {name for task in running_threads() for name in open(f"/proc/self/task/{task}/children").read().split()}

    gc.collect()  # Loaders of other tests, which would end in the middle of this one.
    before, processes = running_threads().keys(), children()
    loader = make(folder, num_workers=3)
    list(loader)
    workers = running_threads().keys() - before
    for _ in range(4):
        list(loader)
        next(iter(loader))  # And one that is left early.
    assert len(workers) == 3 and running_threads().keys() - before == workers
    assert children() <= processes and not torch.cuda.is_initialized()  # Nothing is forked, CUDA is not touched.
    del loader
    assert not workers & running_threads().keys()


def test_loops_left_early_do_not_make_the_process_grow(folder):
    """A batch has 196 KB: one that is lost a loop would be 78 MB."""
    before = running_threads().keys()

    def leave(loaders: int) -> None:
        for _ in range(loaders):
            loader = make(folder, num_workers=3, batch_size=4, transform={"size": 112})
            for _ in range(2):
                for place, batch in enumerate(loader):
                    assert batch[0].nbytes == 4 * 112 * 112 * 4
                    if place == 2:
                        break

    leave(30)
    memory = resident()
    leave(200)
    assert running_threads().keys() <= before
    assert resident() - memory < 2_000_000


def test_an_exception_of_a_worker_names_the_sample(tmp_path):
    from PIL import Image

    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (32, 24), (number * 40, 90, 200)).save(tmp_path / split / name / f"{number}.jpg")
    broken = tmp_path / "train" / "b" / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    for threads in (0, 2):
        loader = hr.Loader(f"folder:{tmp_path}", batch_size=2, num_workers=threads, shuffle=False, transform={"size": 16})
        running = iter(loader)
        next(running), next(running)
        with pytest.raises(hr.errors.CorruptDataError, match=str(broken)):
            next(running)
        assert next(iter(loader)).index == 0  # A new epoch may begin at once.


def test_val_is_a_split_of_its_own_and_one_that_is_not_there_is_named(tmp_path):
    from PIL import Image

    for split, shade in (("train", 10), ("val", 200)):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 24), (shade, shade, shade)).save(tmp_path / split / name / "0.png")
    options = {"batch_size": 2, "transform": {"size": 16, "crop": "center"}}
    val = hr.Loader(f"folder:{tmp_path}", split="val", **options)
    assert val.sample(0)[0].endswith("val/a/0.png") and not val.options["training"]
    images, _ = next(iter(val))
    assert torch.allclose(images, torch.full_like(images, 200 / 255), atol=1e-6)
    with pytest.raises(hr.errors.NotFoundError, match="has no split test; there is train, val"):
        hr.Loader(f"folder:{tmp_path}", split="test", **options)
    with pytest.raises(ValueError, match="has a split val of its own"):
        hr.Loader(f"folder:{tmp_path}", val_fraction=0.5, **options)


@pytest.mark.parametrize("threads", [0, 7])
def test_val_fraction_parts_the_training_samples_of_any_source(folder, threads):
    class Mine(torch.utils.data.Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, index):
            return numpy.full((1, 1, 1), index, numpy.uint8), index % 10

    def labels_and_pixels(source, split, **more):
        loader = hr.Loader(source, split=split, seed=3, batch_size=8, num_workers=threads, training=False, **more)
        return [(images.flatten(1).tolist(), labels.tolist()) for images, labels in loader]

    for source in (f"idx:{folder}", Mine()):
        whole = labels_and_pixels(source, "train")
        train, val = (labels_and_pixels(source, split, val_fraction=0.2) for split in ("train", "val"))
        samples = [sum(len(labels) for _, labels in part) for part in (whole, train, val)]
        assert samples == [50, 40, 10]
        flat = [[str(row) for rows, _ in part for row in rows] for part in (whole, train, val)]
        assert sorted(flat[1] + flat[2]) == sorted(flat[0])
        assert labels_and_pixels(source, "val", val_fraction=0.2) == val
