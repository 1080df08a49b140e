"""headrace.Loader as scripts meet it that were written for a DataLoader: what it has by name, what help() says, how it shows."""

import inspect
import pydoc
import struct

import headrace as hr
import numpy
import pytest
import torch
from headrace import _core
from tiny_run import write_photos
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

SMALL = {"transform": {"size": 16}, "batch_size": 4}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, train=6, val=2)
    return folder


class Pairs:
    """A data set of one's own."""

    classes = ["even", "odd"]

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return numpy.full((16, 16, 3), index, numpy.uint8), index % 2


class Stream(IterableDataset):
    def __iter__(self):
        return (Pairs()[index] for index in range(6))


# ---- What it has ----

def test_a_folder_has_a_length_classes_and_files_as_an_image_folder(photos):
    from torchvision.datasets import ImageFolder

    loader, theirs = hr.Loader(f"folder:{photos}", **SMALL), ImageFolder(photos / "train")
    assert (len(loader.dataset), loader.classes, loader.class_to_idx) == (len(theirs), theirs.classes, theirs.class_to_idx)
    data = loader.dataset
    assert list(data.samples) == theirs.samples and data.targets == theirs.targets
    assert (data.classes, data.class_to_idx) == (theirs.classes, theirs.class_to_idx)
    assert data.samples[-1] == theirs.samples[-1] and data.samples[2:5] == theirs.samples[2:5] and len(data.samples) == 12
    with pytest.raises(IndexError):
        data.samples[12]
    assert len(hr.Loader(f"folder:{photos}", split="val", **SMALL).dataset) == 4


def test_a_pack_has_the_classes_of_its_folder_and_files_of_numbers_have_none(photos, tmp_path):
    hr.pack(Pairs(), tmp_path / "pairs.pack")
    packed = hr.Loader(f"pack:{tmp_path / 'pairs.pack'}", **SMALL)
    assert (len(packed.dataset), packed.num_classes, packed.dataset.targets) == (10, 2, [index % 2 for index in range(10)])
    for split, count in (("train", 4), ("t10k", 2)):
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, count, 2, 2) + bytes(4 * count))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, count) + bytes(count))
    numbers = hr.Loader(f"idx:{tmp_path}", batch_size=2)
    assert (numbers.classes, numbers.class_to_idx, numbers.dataset.classes) == (None, None, None)


def test_an_object_of_ones_own_is_the_data_set_and_a_part_of_it_is_told_by_its_length():
    pairs = Pairs()
    loader = hr.Loader(pairs, **SMALL)
    assert loader.dataset is pairs and loader.classes == ["even", "odd"] and loader.class_to_idx == {"even": 0, "odd": 1}
    part = hr.Loader(pairs, val_fraction=0.2, split="val", **SMALL)
    assert len(part.dataset) == part.samples == 2 and part.dataset.class_to_idx == {"even": 0, "odd": 1}
    assert [label for _, label in part.dataset.samples] == [-1, -1]
    with pytest.raises(hr.errors.UnsupportedError, match="Pairs, val: labels are known when .* ask your own data set"):
        part.dataset.targets  # noqa: B018
    stream = Stream()
    assert hr.Loader(stream, **SMALL).dataset is stream


def test_a_number_of_classes_is_no_list_of_names():
    class Numbered(Pairs):
        classes = 2

    loader = hr.Loader(Numbered(), **SMALL)
    assert (loader.num_classes, loader.classes, loader.class_to_idx) == (2, None, None)


def test_the_sampler_takes_set_epoch_whoever_gives_the_order():
    loader = hr.Loader(Pairs(), **SMALL)
    assert len(loader.sampler) == 10 and loader.batch_sampler is None
    loader.sampler.set_epoch(3)
    assert next(iter(loader)).epoch == 3
    with pytest.raises(TypeError, match="iterate over the Loader, or give it a sampler of your own"):
        iter(loader.sampler)

    own = [3, 1, 2]
    assert hr.Loader(Pairs(), sampler=own, **SMALL).sampler is own
    within = SequentialSampler(range(10))
    batches = BatchSampler(within, 4, False)
    loader = hr.Loader(Pairs(), batch_sampler=batches, transform={"size": 16})
    assert loader.batch_sampler is batches and loader.sampler is within and loader.takes_own_order
    listed = hr.Loader(Pairs(), batch_sampler=[[1, 2], [3]], transform={"size": 16})
    assert listed.batch_sampler == [[1, 2], [3]] and len(listed.sampler) == 10


def test_transforms_are_there_with_the_package():
    assert hr.transforms.CenterCrop(8) == hr.transforms.CenterCrop(size=8)


# ---- What help() says ----

def test_help_names_every_keyword_with_its_default_and_every_kind_of_source(photos):
    text = pydoc.plain(pydoc.render_doc(hr.Loader))
    options = hr.Loader(f"folder:{photos}", **SMALL).options
    options |= options.pop("transform")
    for key in options.keys() - {"source"}:
        assert f"\n |  {key}=" in text or f"\n |      {key}=" in text, key
    for word in ("dtype=", "layout=", "list:FILE", "pack:PATH", "folder:DIR", "csv:FILE", "split=", "collate_fn=", "prefetch_factor="):
        assert word in text


def test_the_signature_has_every_keyword_with_the_default_in_force(photos):
    shown = inspect.signature(hr.Loader).parameters
    options = hr.Loader(f"folder:{photos}", transform={"size": 16}).options
    told = {name: parameter.default for name, parameter in shown.items() if parameter.kind is parameter.KEYWORD_ONLY}
    of_python = {"split", "collate_fn", "worker_init_fn", "length", "batch_sampler", "drop_last", "prefetch_factor", "pin_memory"}
    assert told.keys() == options.keys() - {"source"} | of_python
    left_out = of_python | {"transform", "training"}  # What they are follows from others.
    assert {key: value for key, value in told.items() if key not in left_out} == {
        key: options[key] for key in told if key not in left_out}


def test_type_checkers_see_the_keywords_that_the_native_half_takes():
    from headrace._loader import LoaderOptions

    native = set(inspect.signature(hr.Loader).parameters) - {"source", "sampler", "length", "batch_sampler", "drop_last",
                                                             "prefetch_factor", "pin_memory", "worker_init_fn"}
    assert set(LoaderOptions.__annotations__) == native


# ---- How it shows ----

def test_a_loader_shows_what_it_reads_and_how(photos):
    assert repr(hr.Loader(f"folder:{photos}", **SMALL)) == (
        f"<headrace.Loader folder:{photos}, train: 12 samples, 2 classes; batches of 4, num_workers 1>")
    assert repr(hr.Loader(Pairs(), split="val", val_fraction=0.2, **SMALL)).endswith(
        "loader_object_test.Pairs, val: 2 samples, 2 classes; batches of 4, num_workers 1>")
    assert "Stream, train: samples" in repr(hr.Loader(Stream(), **SMALL))
    assert "headrace._loader.Loader object" in repr(hr.Loader.__new__(hr.Loader))


def test_what_belongs_to_a_loader_shows_in_one_short_line(photos):
    loader = hr.Loader(f"folder:{photos}", seed=7, **SMALL)
    batch = next(iter(loader))
    transform = hr.Transform([hr.transforms.Resize(20), hr.transforms.CenterCrop(16)])
    shown = {
        "dataset": loader.dataset, "sampler": loader.sampler, "batch": batch, "transform": transform,
        "pipeline": hr.DataPipelineOptimizer(num_workers=2),
        "optimized": hr.DataPipelineOptimizer(num_workers=0).optimize_loader([batch])[0],
    }
    lines = {name: repr(thing) for name, thing in shown.items()}
    assert all("\n" not in line and len(line) < 250 and " object at " not in line for line in lines.values()), lines
    assert "12 samples" in lines["dataset"] and "shuffled, seed 7" in lines["sampler"]
    assert lines["batch"].startswith("<headrace.Batch 0 of epoch 0: image float32 (4, 3, 16, 16), labels int64 (4,)")
    assert lines["transform"] == "<headrace.Transform Resize, CenterCrop -> uint8 (3, 16, 16)>"


def test_a_batch_of_ragged_fields_and_texts_shows_their_forms():
    class Streets:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"boxes": numpy.zeros((index, 4), numpy.float32), "street": f"number {index}"}

    batch = next(iter(hr.Loader(Streets(), batch_size=4, shuffle=False)))
    assert "boxes RaggedTensor(4 samples of torch.float32, (6, 4) in all), street list" in repr(batch)


def test_a_batch_moves_as_one_and_may_be_made_anew_of_other_items(photos):
    """As Lightning moves what it trains from, and Accelerate and Transformers make a tuple of the same class."""
    batch = next(iter(hr.Loader(f"folder:{photos}", **SMALL)))
    moved = batch.to("meta")
    assert type(moved) is hr.Batch and (moved.epoch, moved.index) == (batch.epoch, batch.index)
    assert [tensor.device.type for tensor in (*moved, moved["valid"])] == ["meta"] * 3 and batch[0].device.type == "cpu"
    again = type(batch)(tensor + 1 for tensor in batch)
    assert type(again) is tuple and torch.equal(again[1], batch[1] + 1)
    same = hr.Batch(batch)
    assert type(same) is hr.Batch and same.fields == batch.fields and same.fields is not batch.fields
    assert len(same) == 2 and same[0] is batch[0] and same["valid"] is batch["valid"]

    class Boxes:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"boxes": numpy.zeros((index, 4), numpy.float32), "street": f"number {index}"}

    ragged = next(iter(hr.Loader(Boxes(), batch_size=4, shuffle=False))).to("meta")
    assert {tensor.device.type for tensor in ragged["boxes"].tensors()} == {"meta"} and ragged["street"][1] == "number 1"


def test_a_native_loader_by_itself_tells_class_names_as_they_are_stored(photos):
    assert _core.Loader(f"folder:{photos}", transform={"size": 16})._class_names == ["cat", "dog"]
    assert torch.equal(next(iter(hr.Loader(f"folder:{photos}", shuffle=False, batch_size=12, transform={"size": 16})))[1],
                       torch.tensor([0] * 6 + [1] * 6))
