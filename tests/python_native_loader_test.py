"""hr.tune's headrace.Loader in the place of a DataLoader: that it gives the same, and what is not replaced."""

import re
import struct

import headrace as hr
import numpy
import pytest
import torch
from headrace._subject import LOADER, Subject
from headrace._native_loader import draws, native_loader_for
from PIL import Image
from tiny_run import write_photos
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset, default_collate
from torchvision import datasets, transforms
from torchvision.transforms import v2

MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
PLAIN = [transforms.Resize(24), transforms.CenterCrop(16)]
AUGMENTED = [transforms.RandomResizedCrop(16, scale=(0.3, 1.0), ratio=(0.8, 1.25)), transforms.RandomHorizontalFlip(0.25)]


def folder(path, *steps, split="train"):
    if not (path / "train").exists():
        write_photos(path, train=6, val=3)
    return datasets.ImageFolder(path / split, transforms.Compose([*steps, transforms.ToTensor()]))


def fashion(path, *steps, kind=datasets.FashionMNIST):
    raw = path / kind.__name__ / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    pixels = numpy.random.default_rng(1).integers(0, 256, 40 * 784, dtype=numpy.uint8).tobytes()
    for split in ("train", "t10k"):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, 40, 28, 28) + pixels)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, 40) + bytes(range(10)) * 4)
    return kind(path, transform=transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(0.25, 0.5)]))


@pytest.mark.parametrize("split", ["train", "val"])
def test_photographs_in_order_have_the_pixels_of_the_dataloader(tmp_path, split):
    data = folder(tmp_path, *PLAIN, split=split)
    data.transform.transforms.append(transforms.Normalize(MEAN.tolist(), DEVIATION.tolist()))
    loader = DataLoader(data, 5)
    native_loader = native_loader_for(loader)
    assert isinstance(native_loader, hr.Loader) and len(native_loader) == len(loader) and native_loader.dataset is data and not draws(native_loader)
    for (theirs, their_labels), (ours, our_labels) in zip(loader, native_loader, strict=True):
        assert torch.equal(their_labels, our_labels) and theirs.shape == ours.shape
        assert ((theirs - ours) * DEVIATION.view(1, 3, 1, 1)).abs().max() <= 1.01 / 255


def test_stored_images_in_order_have_the_bits_of_the_dataloader(tmp_path):
    loader = DataLoader(fashion(tmp_path), 16, drop_last=True)
    batches, natives = list(loader), list(native_loader_for(loader))
    assert len(batches) == len(natives) == 2
    for theirs, ours in zip(batches, natives):
        assert torch.equal(theirs[0], ours[0]) and torch.equal(theirs[1], ours[1])


def test_a_shuffled_epoch_holds_each_sample_once_in_an_order_of_the_seed(tmp_path):
    data = fashion(tmp_path, transforms.RandomCrop(28, padding=0))
    torch.manual_seed(5)
    native_loader = native_loader_for(DataLoader(data, 16, shuffle=True))
    first, second = (torch.cat([images for images, _ in native_loader]).sum((1, 2, 3)) for _ in range(2))
    wanted = torch.cat([images for images, _ in DataLoader(data, 16)]).sum((1, 2, 3))
    assert draws(native_loader) and not torch.equal(first, second)
    for sums in (first, second):
        assert torch.equal(sums.sort().values, wanted.sort().values)
    torch.manual_seed(5)
    again = native_loader_for(DataLoader(data, 16, shuffle=True))
    assert torch.equal(torch.cat([images for images, _ in again]).sum((1, 2, 3)), first)


def test_random_transforms_become_the_same_options(tmp_path):
    loader = DataLoader(folder(tmp_path, *AUGMENTED), 5, shuffle=True, drop_last=True)
    options = native_loader_for(loader).options
    assert {key: options["transform"][key] for key in ("crop", "size", "scale", "ratio", "flip_probability")} == {
        "crop": "random_resized", "size": 16, "scale": [0.3, 1.0], "ratio": [0.8, 1.25], "flip_probability": 0.25}
    assert (options["batch_size"], options["shuffle"], options["last_batch"], options["training"]) == (5, True, "drop", True)
    options = native_loader_for(DataLoader(folder(tmp_path, transforms.Resize([24]), transforms.RandomCrop(20)), 5)).options
    assert (options["transform"]["crop"], options["transform"]["size"], options["transform"]["resize"]) == ("random", 20, 24)
    options = native_loader_for(DataLoader(fashion(tmp_path, transforms.RandomCrop(28, padding=2), transforms.RandomHorizontalFlip()), 5)).options
    assert (options["transform"]["pad"], options["transform"]["flip_probability"]) == (2, 0.5)


class MyFolder(datasets.ImageFolder):
    pass


def renamed(data):
    data.samples[3] = (data.samples[4][0], data.samples[3][1])
    return data


def repainted(data):
    data.data[7, 3, 3] ^= 1
    return data


def elsewhere(path):
    write_photos(path, images=2)
    return datasets.ImageFolder(path / "images", transforms.Compose([*PLAIN, transforms.ToTensor()]))


NO_NATIVE_LOADER = {
    "another data set": (lambda path: DataLoader(TensorDataset(torch.ones(4))), "the data set is a TensorDataset"),
    "a subclass": (lambda path: DataLoader(MyFolder(folder(path).root, None)), "the data set is a MyFolder"),
    "a part": (lambda path: DataLoader(Subset(folder(path, *PLAIN), [0, 1])), "the data set is a Subset"),
    "own collation": (lambda path: DataLoader(folder(path, *PLAIN), collate_fn=lambda items: default_collate(items)), "collates"),
    "own order": (lambda path: DataLoader(folder(path, *PLAIN), sampler=[1, 0]), "the order comes from a list"),
    "with replacement": (lambda path: DataLoader(folder(path, *PLAIN), sampler=RandomSampler(range(12), replacement=True)),
                         "the order comes from a RandomSampler"),
    "worker_init_fn": (lambda path: DataLoader(folder(path, *PLAIN), num_workers=1, worker_init_fn=print), "worker_init_fn"),
    "other transforms": (lambda path: DataLoader(folder(path, *PLAIN, transforms.ColorJitter())), "found Resize, CenterCrop, Color"),
    "after ToTensor": (lambda path: DataLoader(fashion(path, transforms.RandomErasing())), "found RandomErasing, ToTensor"),
    "transforms v2": (lambda path: DataLoader(folder(path, v2.RandomResizedCrop(16))), r"found torchvision.transforms.v2\S+RandomRes"),
    "no transform": (lambda path: DataLoader(datasets.ImageFolder(folder(path).root)), "found builtins.NoneType"),
    "no square": (lambda path: DataLoader(folder(path, transforms.RandomResizedCrop((16, 20)))), "16 x 20"),
    "resize to height and width": (lambda path: DataLoader(folder(path, transforms.Resize((24, 24)), PLAIN[1])), "options that headrace"),
    "bicubic": (lambda path: DataLoader(folder(path, transforms.RandomResizedCrop(
        16, interpolation=transforms.InterpolationMode.BICUBIC))), "options that headrace"),
    "a crop beyond the image": (lambda path: DataLoader(folder(path, transforms.Resize(12), transforms.CenterCrop(16))),
                                  "resize is 12, size is 16|transform.resize"),
    "reflected padding": (lambda path: DataLoader(fashion(path, transforms.RandomCrop(28, padding=2, padding_mode="reflect"))),
                          "the crop has options"),
    "another folder": (lambda path: DataLoader(elsewhere(path)), "headrace reads DIR/train"),
    "other files": (lambda path: DataLoader(renamed(folder(path, *PLAIN))), "files are not those"),
    "other images": (lambda path: DataLoader(repainted(fashion(path))), "images are not those of its files"),
    "own opening": (lambda path: DataLoader(datasets.ImageFolder(folder(path).root, loader=open)), "in its own way"),
    "other labels": (lambda path: DataLoader(datasets.ImageFolder(folder(path).root, target_transform=str)), "labels"),
}


@pytest.mark.parametrize("make, reason", NO_NATIVE_LOADER.values(), ids=NO_NATIVE_LOADER.keys())
def test_what_is_not_replaced_says_why(tmp_path, make, reason):
    found = native_loader_for(make(tmp_path))
    assert isinstance(found, str)
    assert re.search(reason, found), found


def training(path):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 2))
    loader = DataLoader(folder(path, *AUGMENTED), 4, shuffle=True)
    return model, loader, torch.optim.SGD(model.parameters(), lr=0.01)


def forward(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_the_loader_in_its_place_begins_at_the_first_epoch_each_time_and_can_be_undone(tmp_path):
    model, loader, optimizer = training(tmp_path)
    subject = Subject(model, loader, optimizer, forward, run_steps=None, budget_s=60)
    found = {candidate.name: candidate for candidate in subject.offer("data").candidates}
    candidate = found["headrace.Loader"]
    assert candidate.numerics == "reduced_precision" and "other draws, drawn by headrace" in candidate.sentence
    assert subject.baseline()[LOADER] == '"dataloader"'
    assert all(each.changes[LOADER] == '"dataloader"' for name, each in found.items() if name.startswith("num_workers"))
    ours = subject.switch(candidate.changes)
    assert isinstance(ours, hr.Loader) and len(ours.dataset) == len(loader.dataset)
    assert ours.options["num_workers"] == int(candidate.changes["data.num_workers"])
    first = [images for images, _ in ours]
    assert subject.switch({}) is loader
    again = [images for images, _ in subject.switch(candidate.changes)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.engine
def test_a_trainer_trains_what_was_tuned(tmp_path):
    model, loader, optimizer = training(tmp_path)
    subject = Subject(model, loader, optimizer, forward, run_steps=None, budget_s=60)
    changes = {candidate.name: candidate.changes for candidate in subject.offer("data").candidates}
    ours = subject.switch({**changes["headrace.Loader"], **changes["channels-last"], **changes["fused optimizer"],
                           **changes["bf16 autocast"]})
    before = [parameter.clone() for parameter in model.parameters()]
    results = hr.Trainer(model, optimizer, forward).fit(ours, 2)
    assert [result["samples"] for result in results] == [12, 12] and ours.state_dict()["epoch"] == 2
    assert not any(torch.equal(p, q) for p, q in zip(model.parameters(), before))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last) and optimizer.param_groups[0]["fused"]


def test_tuning_tries_it_and_leaves_the_dataloader_as_it_was(tmp_path):
    model, loader, optimizer = training(tmp_path)
    before = dict(loader.__dict__), [p.clone() for p in model.parameters()], torch.get_rng_state()
    tuned = hr.tune(model, loader, optimizer, forward, budget_s=20, gain_min=10.0, only=["headrace.Loader"])
    (trial,) = tuned.trials
    assert trial.reason in ("no_gain", "slower", "budget"), trial.sentence
    numerics = tuned.ledger["trials"][0]["numerics"]
    assert numerics["class"] == "reduced_precision" and numerics["passed"]
    assert numerics["measure"].startswith("mean gradients of 4 batches")
    assert tuned.loader is loader and loader.__dict__ == before[0]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before[1])) and torch.equal(torch.get_rng_state(), before[2])
    entries = [entry for entry in hr.tune(model, DataLoader(loader.dataset, 4, sampler=[0, 1, 2]), optimizer, forward, budget_s=1,
                                          only=["denormals as 0"]).not_applicable if entry.name == "headrace.Loader"]
    assert [entry.key for entry in entries] == [LOADER] and "the order comes from a list" in entries[0].reason


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.forks)])
def test_a_fixed_number_of_workers_stays_that_of_the_loader_in_its_place(tmp_path, workers):
    model, _, optimizer = training(tmp_path)
    loader = DataLoader(folder(tmp_path, *AUGMENTED), 4, shuffle=True, num_workers=workers)
    tried = {"only": ["headrace.Loader"], "fixed": ["data.num_workers"]}
    subject = Subject(model, loader, optimizer, forward, run_steps=None, budget_s=60, **tried)
    changes = {each.name: each.changes for each in subject.offer("data").candidates if each.name.startswith("headrace.Loader")}
    assert changes == {"headrace.Loader": {LOADER: '"headrace"'}}
    assert subject.switch(changes["headrace.Loader"]).options["num_workers"] == workers
    subject.give_back()
    (trial,) = hr.tune(model, loader, optimizer, forward, budget_s=2, gain_min=10.0, **tried).trials
    assert trial.settings == {LOADER: '"headrace"'}


def test_a_fixed_loader_leaves_its_number_of_workers_to_be_tried(tmp_path):
    model, loader, optimizer = training(tmp_path)
    subject = Subject(model, loader, optimizer, forward, run_steps=None, budget_s=60, only=["headrace.Loader"], fixed=["data.loader"])
    changes = [each.changes for each in subject.offer("data").candidates if each.name.startswith("num_workers ")]
    assert changes and all(each.keys() == {"data.num_workers"} for each in changes)


class OtherBatches:
    """A headrace.Loader whose batches are changed on their way."""

    def __init__(self, loader, change):
        self._loader, self._change = loader, change

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def __len__(self):
        return len(self._loader)

    def __iter__(self):
        return (self._change(images, labels) for images, labels in self._loader)


def tried_with_batches(path, monkeypatch, change):
    """The trial of a headrace.Loader whose batches are changed, and whether all is as it was before."""
    for name, grey in (("cat", 5), ("dog", 250)):
        (path / "train" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (44, 40), (grey + i, grey, grey - i)).save(path / "train" / name / f"{i}.jpg")
    model, loader, optimizer = training(path)
    before = [parameter.clone() for parameter in model.parameters()], torch.get_rng_state()
    monkeypatch.setattr("headrace._subject.native_loader_for", lambda _: OtherBatches(native_loader_for(loader), change))
    tuned = hr.tune(model, loader, optimizer, forward, budget_s=10, gain_min=10.0, only=["headrace.Loader"])
    same = all(torch.equal(p, q) for p, q in zip(model.parameters(), before[0])) and torch.equal(torch.get_rng_state(), before[1])
    return tuned.trials[0], same and tuned.loader is loader


WRONG_BATCHES = {"labels of the other class": lambda images, labels: (images, 1 - labels),
                 "pixels that are not divided by 255": lambda images, labels: (images * 255, labels)}


@pytest.mark.parametrize("change", WRONG_BATCHES.values(), ids=WRONG_BATCHES.keys())
def test_a_loader_from_which_something_else_is_learned_is_refused_before_it_is_timed(tmp_path, monkeypatch, change):
    trial, is_undone = tried_with_batches(tmp_path, monkeypatch, change)
    assert (trial.verdict, trial.reason, trial.pairs) == ("refused", "numerics", 0), trial.sentence
    assert trial.sentence.startswith("Brings something else: mean gradients of 4 batches, distance relative")
    assert is_undone


def test_a_loader_that_fails_in_its_place_is_told_and_undone(tmp_path, monkeypatch):
    def no_such_pixel(images, labels):
        raise RuntimeError("no such pixel")

    trial, is_undone = tried_with_batches(tmp_path, monkeypatch, no_such_pixel)
    assert (trial.verdict, trial.reason) == ("failed", "error") and "no such pixel" in trial.sentence
    assert is_undone
