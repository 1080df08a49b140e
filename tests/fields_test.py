"""Batches of samples that are more than an image and a label: from any torch data set, by threads and by processes."""

import copy
import pickle
import re

import array_fields
import field_sources as sources
import numpy
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import headrace as hr
from headrace import errors

KINDS = ["thread", "process"]
DETECTION = ("image", "boxes", "box_labels", "tags", "mask", "caption")
AS_STORED = {"dtype": "uint8"}


def plain(loader) -> list[dict]:
    """The batches, as plain values in memory of their own."""
    return [{name: values_of(field) for name, field in batch.items()} for batch in loader]


def values_of(field):
    if isinstance(field, hr.RaggedTensor):
        return [part.clone() for part in field.unbind()]
    return field.clone() if isinstance(field, torch.Tensor) else list(field)


def same(ours, theirs) -> bool:
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(ours, theirs)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs


def step(batch) -> torch.Tensor:
    """What a training step would do with every field."""
    per_sample = torch.stack([boxes.sum() for boxes in batch["boxes"]])
    words = torch.tensor([len(text) for text in batch["caption"]])
    return (batch["image"].float().mean() + per_sample.mean() + batch.box_labels.values.float().sum()
            + batch["tags"].float().sum(1).mean() + batch["mask"].float().mean() + words.float().mean())


def test_every_field_reaches_a_training_step_with_the_same_bytes():
    options = {"batch_size": 6, "seed": 3, "transform": {"flip_probability": 0.5, "pad": 1}}
    reference = plain(hr.Loader(sources.Detection(), num_workers=0, **options))
    losses = [step(batch) for batch in hr.Loader(sources.Detection(), num_workers=0, **options)]
    assert len(reference) == 10 and list(reference[0]) == [*DETECTION, "valid"]
    for kind in KINDS:
        for workers in (1, 7):
            loader = hr.Loader(sources.Detection(), num_workers=workers, worker_type=kind, **options)
            assert same(plain(loader), reference), (kind, workers)
            loader.start_at(0)
            batches = iter(loader)
            assert all(torch.equal(step(next(batches)), losses[place]) for place in range(4))
            second = hr.Loader(sources.Detection(), num_workers=1, **options)
            second.load_state_dict(loader.state_dict())
            assert same(plain(second), reference[4:]), (kind, workers)
    halves = [plain(hr.Loader(sources.Detection(), num_workers=2, rank=rank, world_size=2, **{**options, "batch_size": 3}))
              for rank in (0, 1)]
    for whole, first, second in zip(reference, *halves, strict=True):
        for name in DETECTION:
            samples = [*first[name], *second[name]]
            assert same(sorted(map(key_of, samples)), sorted(map(key_of, whole[name]))), name


def sample_bytes(batch) -> list[tuple]:
    """Of each sample of a batch, each field's type, shape and bytes, and whether the sample has it."""
    found = []
    for place in range(len(batch["valid"])):
        parts = []
        for name, field in batch.items():
            value, present = field[place], batch.present(name) if name != "valid" else None
            parts.append(value if isinstance(value, str) else (value.dtype, tuple(value.shape), value.numpy().tobytes()))
            parts.append(None if present is None else bool(present[place]))
        found.append(tuple(parts))
    return found


def batch_bytes(batch) -> tuple:
    """All of it: where the samples of a ragged field begin, too."""
    return tuple([part.numpy().tobytes() for part in field.tensors()] if isinstance(field, hr.RaggedTensor) else
                 list(field) if isinstance(field, list) else field.numpy().tobytes() for field in batch.values())


def test_two_copies_of_an_epoch_have_the_same_bytes_whoever_loads_them_and_wherever_they_go_on():
    step, ways = 6, [("thread", 0), ("thread", 1), ("thread", 7), ("process", 1), ("process", 7)]
    options = {"seed": 3, "transform": {"flip_probability": 0.5, "pad": 1}, "fields": {"score": hr.Field("float64", optional=True)}}
    whole = [sample_bytes(batch) for batch in hr.Loader(array_fields.Scenes(), batch_size=step, num_workers=0, **options)]
    assert len(whole) == 40
    for ranks in (1, 2, 3):
        taken = []
        for rank in range(ranks):
            loaders = [hr.Loader(array_fields.Scenes(), batch_size=step // ranks, world_size=ranks, rank=rank, num_workers=workers,
                                 worker_type=kind, **options) for kind, workers in ways]
            taken.append([sample_bytes(batch) for batch in loaders[0]])
            loaders[0].start_at(0)
            reference = [batch_bytes(batch) for batch in loaders[0]]
            for way, loader in zip(ways, loaders):
                loader.start_at(0)
                assert [batch_bytes(batch) for batch in loader] == reference, (way, ranks, rank)
            for way, loader, other in zip(ways, loaders, [*loaders[1:], loaders[0]]):
                loader.start_at(0)
                batches = iter(loader)
                for stop in (10, 20, 30):
                    assert [batch_bytes(next(batches)) for _ in range(10)] == reference[stop - 10:stop], (way, ranks, rank)
                    other.load_state_dict(loader.state_dict())
                    assert [batch_bytes(batch) for batch in other] == reference[stop:], (way, ranks, rank, stop)
        for place, samples in enumerate(whole):
            assert [sample for of_rank in taken for sample in of_rank[place]] == samples, (ranks, place)


def key_of(sample):
    return sample if isinstance(sample, str) else str((sample.shape, sample.flatten().tolist()))


def test_values_are_those_of_the_data_set():
    data = sources.Detection()
    for source in (data, sources.Targets(), sources.Tupled()):
        names = {"fields": DETECTION} if isinstance(source, sources.Tupled) else {}
        for kind in KINDS:
            loader = hr.Loader(source, batch_size=60, shuffle=False, worker_type=kind, transform=AS_STORED, **names)
            batch = next(iter(loader))
            for index in range(60):
                sample = data[index]
                assert torch.equal(batch["image"][index].permute(1, 2, 0), torch.from_numpy(sample["image"]))
                assert torch.equal(batch["boxes"][index], torch.from_numpy(sample["boxes"]))
                assert torch.equal(batch["box_labels"][index], sample["box_labels"])
                assert torch.equal(batch["tags"][index], sample["tags"])
                assert torch.equal(batch["mask"][index], torch.from_numpy(sample["mask"]))
                assert batch["caption"][index] == sample["caption"]


def test_two_fields_stay_a_pair():
    for make in (sources.pil, sources.transformed, sources.planes, sources.pair_with_many_labels):
        images, labels = next(iter(hr.Loader(sources.Of(make), batch_size=8)))
        assert len(images) == len(labels) == 8
    images, labels = next(iter(hr.Loader(sources.Of(sources.pair_with_many_labels), batch_size=8, shuffle=False)))
    assert labels.tolist() == [[index % 2, 1.0] for index in range(8)] and images.dtype is torch.float32
    images, labels = next(iter(hr.Loader(sources.Of(sources.planes), batch_size=8, shuffle=False)))
    assert images.shape == (8, 3, 8, 9) and images.dtype is torch.uint8 and images[5, 0, 0, 0] == 5


def test_batch_is_a_dict_and_has_attributes():
    batch = next(iter(hr.Loader(sources.Detection(), batch_size=8)))
    assert isinstance(batch, tuple) and len(batch) == 6 and dict(batch).keys() == {*DETECTION, "valid"}
    assert batch.boxes is batch["boxes"] is batch[1] and batch.present("boxes") is None
    image, boxes, *_ = batch
    assert image is batch.image and isinstance(boxes, hr.RaggedTensor) and len(boxes) == 8
    with pytest.raises(KeyError, match="no field 'masks'; it has image, boxes"):
        batch["masks"]
    with pytest.raises(AttributeError, match="no field or attribute 'masks'"):
        batch.masks
    for other in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert same(plain([other]), plain([batch])) and other.epoch == batch.epoch


def test_a_ragged_tensor_is_one_of_samples():
    batch = next(iter(hr.Loader(sources.Detection(), batch_size=8, shuffle=False)))
    boxes = batch["boxes"]
    assert boxes.values.shape[1] == 4 and boxes.offsets.tolist()[0] == 0 and boxes.offsets[-1] == len(boxes.values)
    assert [len(part) for part in boxes] == boxes.offsets.diff().tolist() and len(boxes[3]) == 0
    assert torch.equal(boxes[-1], boxes[7])
    with pytest.raises(IndexError):
        boxes[8]
    nested = boxes.nested()
    assert nested.is_nested and torch.equal(nested.values(), boxes.values)
    memory = boxes[1].data_ptr()
    del batch, nested
    assert boxes[1].data_ptr() == memory


@pytest.mark.parametrize("kind", KINDS)
def test_any_torch_data_set(kind):
    data = sources.Of(sources.every_type)
    ours = next(iter(hr.Loader(data, batch_size=10, shuffle=False, worker_type=kind)))
    theirs = next(iter(DataLoader(data, batch_size=10)))
    for name, dtype in sources.TYPES.items():
        assert ours[name].dtype is dtype and torch.equal(ours[name], theirs[name]), name
    for name in ("number", "count", "odd", "scalar"):
        assert ours[name].dtype is theirs[name].dtype and torch.equal(ours[name], theirs[name]), name
    assert torch.equal(ours["list"], torch.stack(theirs["list"], 1).double()) and ours["word"] == theirs["word"]
    assert torch.equal(ours["nested.a"], theirs["nested"]["a"]) and torch.equal(ours["nested.b.c"], theirs["nested"]["b"]["c"])


@pytest.mark.parametrize("kind", KINDS)
def test_pil_images_are_taken_as_images(kind):
    for make, channels in ((sources.pil, 3), (sources.grey_pil, 1)):
        images, labels = next(iter(hr.Loader(array_fields.Of(make), batch_size=6, shuffle=False, worker_type=kind,
                                            transform=AS_STORED)))
        assert images.shape == (6, channels, 6, 5) and labels.tolist() == [0, 1, 2, 0, 1, 2]
        expected = torch.from_numpy(numpy.array(make(4)[0])).view(6, 5, channels)
        assert torch.equal(images[4].permute(1, 2, 0), expected)
        smaller, _ = next(iter(hr.Loader(array_fields.Of(make), batch_size=6, worker_type=kind, transform={"size": 4})))
        assert smaller.shape == (6, channels, 4, 4)


def test_a_named_tuple_gives_its_names():
    batch = next(iter(hr.Loader(sources.Named(), batch_size=4, shuffle=False)))
    assert batch["features"].shape == (4, 2, 3) and batch.score.tolist() == [0, 0.5, 1, 1.5]
    features, score = batch
    assert features is batch.features and score.dtype is torch.float64


def test_other_tuples_are_numbered_or_named():
    batch = next(iter(hr.Loader(sources.Of(sources.three), batch_size=4, shuffle=False)))
    assert batch["0"].tolist() == [0, 1, 2, 3] and [len(part) for part in batch["1"]] == [0, 1, 2, 0] and batch["2"] == ["text"] * 4
    batch = next(iter(hr.Loader(sources.Of(sources.three), batch_size=4, shuffle=False, fields=["id", "points", "word"])))
    assert batch.id.tolist() == [0, 1, 2, 3] and batch.word == ["text"] * 4


def test_collate_fn_gets_what_the_data_set_returns():
    def collated(source, **options):
        return next(iter(hr.Loader(source, batch_size=4, shuffle=False, collate_fn=lambda samples: samples, **options)))

    samples = collated(sources.Detection(), transform=AS_STORED)
    assert [list(sample) for sample in samples] == [list(DETECTION)] * 4
    assert all(sample["caption"] == sources.Detection()[index]["caption"] for index, sample in enumerate(samples))
    assert torch.equal(samples[1]["boxes"], torch.from_numpy(sources.Detection()[1]["boxes"]))
    samples = collated(sources.Of(sources.three))
    assert [type(sample) for sample in samples] == [tuple] * 4 and samples[3][0] == 3 and samples[3][2] == "text"
    assert default_collate([(x, word) for x, _, word in samples])[0].tolist() == [0, 1, 2, 3]
    samples = collated(sources.Of(sources.vector))
    assert samples[2]["y"] == 2 and isinstance(samples[2]["y"], int) and samples[2]["x"].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_collate_fn_gets_pairs_with_a_dict_and_dicts_within_dicts_as_they_were(kind):
    def collated(source, **options):
        loader = hr.Loader(source, batch_size=4, shuffle=False, worker_type=kind, transform=AS_STORED,
                           collate_fn=lambda samples: tuple(zip(*samples)), **options)
        return next(iter(loader))

    fields = {"weight": hr.Field("float64", optional=True)}
    images, targets = collated(sources.Of(sources.image_and_nested), fields=fields)
    assert [image.unique().tolist() for image in images] == [[0], [1], [2], [3]]
    for index, target in enumerate(targets):
        image, wanted = sources.image_and_nested(index)
        assert target.keys() == {*wanted, "weight"} and target["of"] == wanted["of"] and target["weight"] == wanted.get("weight")
        assert torch.equal(target["boxes"], wanted["boxes"])
    assert collated(sources.Of(sources.dict_of_image_and_label)) == (("image",) * 4, ("labels",) * 4)
    images, labels = collated(sources.Of(sources.label_in_an_array))
    assert labels == (0, 1, 2, 0)
    assert [type(target) for target in collated(sources.Of(sources.image_and_one_box_first))[1]] == [dict] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_one_box_in_the_first_sample_are_no_class(kind):
    for make in (sources.one_box_first, sources.image_and_one_box_first):
        batch = next(iter(hr.Loader(sources.Of(make), batch_size=6, shuffle=False, worker_type=kind)))
        assert [labels.tolist() for labels in batch["labels"]] == [[0], [0, 1], [0, 1, 2]] * 2
        assert [len(boxes) for boxes in batch["boxes"]] == [1, 2, 3] * 2
    images, labels = next(iter(hr.Loader(sources.Of(sources.label_in_an_array), batch_size=6, shuffle=False, worker_type=kind)))
    assert labels.tolist() == [0, 1, 2] * 2 and labels.dtype is torch.int64


def test_a_label_that_becomes_an_array_is_named():
    data = sources.OtherAtFive(lambda index: {"labels": index, "y": 1.0}, {"labels": torch.tensor([5]), "y": 1.0})
    with pytest.raises(TypeError, match=re.escape("field labels is int64 (1); wanted int64 ()")):
        plain(hr.Loader(data, batch_size=6))


@pytest.mark.parametrize("sample, names", [
    ({"tokens": torch.arange(128, dtype=torch.uint8)}, ["tokens"]),
    ((torch.arange(128, dtype=torch.uint8), 1, 2.0), ["0", "1", "2"]),
    ((numpy.arange(9, dtype="u1"), 1), ["0", "1"]),
    ((numpy.arange(120, dtype="u1").reshape(6, 5, 4), 1), ["image", "labels"]),
    ((numpy.arange(90, dtype="u1").reshape(3, 6, 5), 1), ["image", "labels"]),
    ((numpy.zeros((2, 6, 5, 3), "u1"), 1), ["image", "labels"]),
    ({"image": numpy.arange(60, dtype="u1").reshape(6, 5, 2)}, ["image"]),
    ({"image": numpy.arange(7, dtype="u1"), "mask": numpy.zeros((6, 5), "u1")}, ["image", "mask"]),
])
def test_arrays_of_uint8_that_are_no_images_are_fields_as_they_are(sample, names):
    batch = next(iter(hr.Loader([sample] * 4, batch_size=4)))
    values = sample.values() if isinstance(sample, dict) else sample
    for name, value in zip(names, values, strict=True):
        for found in batch[name]:
            assert torch.equal(found, torch.as_tensor(value, dtype=found.dtype)), name
            assert found.dtype is torch.uint8 or not hasattr(value, "dtype")
    with pytest.raises(errors.InvalidArgumentError, match="data.transform.size is 4, and the source has no image"):
        hr.Loader([sample] * 4, transform={"size": 4})


@pytest.mark.parametrize("kind", KINDS)
def test_classes_are_asked_for_where_a_field_is_one_alone(kind):
    batch = next(iter(hr.Loader(sources.Untold(sources.vector), batch_size=6, worker_type=kind)))
    assert batch["x"].shape == (6, 3)
    with pytest.raises(Exception, match="classes are not known yet"):
        hr.Loader(sources.Untold(sources.pil), worker_type=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_some_lack_is_declared(kind):
    data = sources.Of(sources.missing_sometimes)
    with pytest.raises(Exception, match="a sample is a dict of x, mask; wanted x, as sample 0 had"):
        plain(hr.Loader(data, batch_size=6, worker_type=kind))
    with pytest.raises(Exception, match="fields names mask; sample 0 has x"):
        hr.Loader(data, batch_size=6, worker_type=kind, fields={"mask": hr.Field("int8", (2,))})
    fields = {"mask": hr.Field("int8", (2,), optional=True)}
    batch = next(iter(hr.Loader(data, batch_size=6, shuffle=False, worker_type=kind, fields=fields)))
    assert batch.present("mask").tolist() == [0, 1, 1, 0, 1, 1] and batch["mask"].tolist() == [[0, 0], [1, 1], [1, 1]] * 2
    reordered = sources.OtherAtFive(sources.vector, {"x": None, "y": 5})
    loader = hr.Loader(reordered, batch_size=6, shuffle=False, worker_type=kind,
                       fields={"x": hr.Field(torch.float32, (3,), optional=True)})
    batch = next(iter(loader))
    assert batch.present("x").tolist() == [1, 1, 1, 1, 1, 0] and batch["x"][5].tolist() == [0, 0, 0] and batch["y"][5] == 5
    assert next(iter(hr.Loader(reordered, batch_size=6, shuffle=False, worker_type=kind, collate_fn=lambda samples: samples,
                               fields={"x": hr.Field("float32", (3,), optional=True)})))[5]["x"] is None


@pytest.mark.parametrize("other, words", [
    (None, "a sample is a NoneType; wanted (image, label), another tuple or a dict"),
    ((1, 2, 3), "a sample is a tuple of 0, 1, 2; wanted boxes, name, as sample 0 had"),
    ({"boxes": numpy.zeros((1, 4), "f4")}, "a sample is a dict of boxes; wanted boxes, name, as sample 0 had. One that some lack "
                                           "is declared: fields={'name': headrace.Field(..., optional=True)}"),
    ({"boxes": numpy.zeros((1, 4), "f4"), "name": "5", "more": 1}, "a sample is a dict of boxes, name, more; wanted boxes, name"),
    ({"boxes": numpy.zeros((1, 4)), "name": "5"}, "field boxes is float64 (1, 4); wanted float32 (-1, 4)"),
    ({"boxes": numpy.zeros((1, 5), "f4"), "name": "5"}, "field boxes is float32 (1, 5); wanted float32 (-1, 4)"),
    ({"boxes": numpy.zeros(4, "f4"), "name": "5"}, "field boxes is float32 (4); wanted float32 (-1, 4)"),
    ({"boxes": numpy.zeros((1, 4), "c8"), "name": "5"}, "field boxes is an array of complex64; wanted uint8"),
    ({"boxes": object(), "name": "5"}, "field boxes is a object; wanted an array or tensor"),
    ({"boxes": [[1, 2], [3]], "name": "5"}, "field boxes is a list that is no array"),
    ({"boxes": None, "name": "5"}, "field boxes is None; wanted float32 (-1, 4), or fields={'boxes': headrace.Field(..., optional=True)}"),
    ({"boxes": numpy.zeros((1, 4), "f4"), "name": 5}, "field name is a int; wanted a str"),
    ({"boxes": numpy.zeros((1, 4), "f4"), "name": "\ud800"}, "field name is no text that UTF-8 can hold"),
    ({"boxes": numpy.zeros((1, 4), "f4"), "name": "5", 7: 1}, "a dict with the key 7; wanted names"),
    ({}, "a sample is an empty dict"),
])
def test_samples_that_differ_from_the_first_are_named_and_nothing_is_lost(other, words):
    source = sources.OtherAtFive(sources.boxes, other, 24)
    for kind in KINDS if "wanted boxes, name" in words else KINDS[:1]:  # A process judges the others alike.
        loader = hr.Loader(source, batch_size=6, num_workers=2, worker_type=kind)
        with pytest.raises(Exception, match=re.escape(words)) as caught:
            plain(loader)
        names = [str(caught.value), *getattr(caught.value, "__notes__", [])]
        assert any("OtherAtFive[5]" in name for name in names), names
        skipping = hr.Loader(source, batch_size=24, on_corrupt="zero", shuffle=False, worker_type=kind)
        batch = next(iter(skipping))
        assert batch["valid"].tolist() == [index != 5 for index in range(24)] and len(batch["boxes"][5]) == 0
        assert batch["name"][4:7] == ["4", "", "6"]


@pytest.mark.parametrize("sample, words", [
    (({"image": 1}, 2), "field 0 is a dict"),
    ((numpy.zeros((4, 4, 3), "u1"), {"image": 1}), "a sample has two fields image"),
    ({"a": {"b": 1}, "a.b": 2}, "a sample has two fields a.b"),
    ({"x": numpy.zeros((1,) * 7)}, "field x has 7 axes; wanted at most 6"),
    ({"x": None}, "field x is None in the first sample; say what it is"),
    ({"valid": 1}, "valid"),
    ((), "a sample is an empty tuple"),
])
def test_first_samples_that_make_no_fields_are_refused(sample, words):
    for kind in KINDS:
        with pytest.raises(Exception, match=re.escape(words)):
            hr.Loader([sample] * 4, worker_type=kind)


def test_what_needs_an_image_is_refused_where_there_is_none():
    with pytest.raises(errors.InvalidArgumentError, match=re.escape("data.transform.size is 4, and the source has no image to "
                                                                    "transform: image float32 (3, 4, 4); labels int64 ()")):
        hr.Loader(sources.Of(sources.transformed), transform={"size": 4})
    with pytest.raises(errors.InvalidArgumentError, match="class_balanced.*no labels"):
        hr.Loader(sources.Of(sources.boxes), sampler="class_balanced")
    with pytest.raises(errors.InvalidArgumentError, match="fields: .* tells its own"):
        hr.Loader("idx:nowhere", fields=["a", "b"])
    for fields, words in (("image", "fields is a str"), ([1], "wanted names"), ({"x": "float32"}, "wanted a name and a headrace.Field")):
        with pytest.raises(errors.InvalidArgumentError, match=words):
            hr.Loader(sources.Of(sources.vector), fields=fields)
    for arguments, words in (({"dtype": "complex64"}, "type complex64"), ({"encoding": "jpeg"}, "encoding 'jpeg'")):
        with pytest.raises(errors.InvalidArgumentError, match=words):
            hr.Field(**arguments)


def test_a_state_of_other_fields_is_refused():
    state = hr.Loader(sources.Of(sources.vector), batch_size=6).state_dict()
    with pytest.raises(errors.InvalidArgumentError, match=re.escape("fields x float32 (3); y int64 (), this one has boxes")):
        hr.Loader(sources.Of(sources.boxes), batch_size=6).load_state_dict(state)


@pytest.mark.parametrize("cache", ["decoded", "encoded"])
def test_a_cache_keeps_every_field(cache):
    data = sources.OtherAtFive(sources.boxes, sources.boxes(5))
    options = {"batch_size": 6, "seed": 3, "num_workers": 2}
    loader = hr.Loader(data, cache=cache, **options)
    reference = hr.Loader(data, **options)
    for _ in range(2):
        assert same(plain(loader), plain(reference))
    assert loader.statistics()["cache_hits"] == 60


@pytest.mark.engine
def test_a_trainer_steps_over_batches_of_any_fields():
    model = torch.nn.Linear(3, 1)
    trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), 0.01),
                         lambda network, batch: (network(batch["x"])[:, 0] - batch["y"]).square().mean())
    losses = [float(trainer.step(batch)) for batch in hr.Loader(sources.Of(sources.vector), batch_size=6)]
    assert len(losses) == 10 and all(map(numpy.isfinite, losses))


def test_an_iterable_data_set_comes_in_its_own_order_whatever_the_workers():
    options = {"batch_size": 7, "seed": 3}
    reference = plain(hr.Loader(sources.Of(sources.boxes), shuffle=False, **options))
    for workers in (0, 1, 7):
        for source, length in ((sources.Counting(), {}), (sources.Counting(told=False), {"length": 60})):
            loader = hr.Loader(source, num_workers=workers, **length, **options)
            assert len(loader) == 9
            begun = source.begun
            for _ in range(2):
                assert same(plain(loader), reference)
            assert source.begun == begun + 2
    next(iter(loader))  # Left early.
    assert same(plain(loader), reference)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    other = hr.Loader(sources.Counting(told=False), num_workers=2, length=60, **options)
    other.load_state_dict(loader.state_dict())
    assert same(plain(other), reference[4:])
    ranks = [plain(hr.Loader(sources.Counting(), num_workers=2, world_size=2, rank=rank, batch_size=5, last_batch="drop"))
             for rank in (0, 1)]
    assert [name for first, second in zip(*ranks) for name in (*first["name"], *second["name"])] == [str(i) for i in range(60)]


@pytest.mark.parametrize("length", [None, sources.SIZE])
def test_an_iterable_data_set_goes_on_from_a_state_of_its_own(length):
    def loader(seed=5, workers=2, **options):
        return hr.Loader(sources.Drawing(seed), batch_size=8, num_workers=workers, length=length, **options)

    source = sources.Drawing()
    epochs = [[(sample["y"], sample["x"].tolist()) for sample in source] for _ in range(3)]
    for workers in (0, 1, 7):
        ours = loader(workers=workers)
        for wanted in epochs:
            assert [(y, x.tolist()) for batch in ours for y, x in zip(batch["y"].tolist(), batch["x"])] == wanted
    for stop in (0, 3, 7):
        first = loader()
        list(first)
        batches = iter(first)
        for _ in range(stop):
            next(batches)
        state = pickle.loads(pickle.dumps(first.state_dict()))
        assert (state["epoch"], state["data_set"]["position"]) == (1, 8 * stop)
        second = loader(seed=9)
        read = second.options["source"].source.given
        second.load_state_dict(state)
        assert second.state_dict()["data_set"]["position"] == 8 * stop
        for wanted in (epochs[1][8 * stop:], epochs[2]):
            assert [(y, x.tolist()) for batch in second for y, x in zip(batch["y"].tolist(), batch["x"])] == wanted
        assert second.options["source"].source.given - read == 60 - 8 * stop + 60
    ended = loader()
    list(ended)
    after = loader(seed=9)
    after.load_state_dict(ended.state_dict())
    assert [y for batch in after for y in batch["y"].tolist()] == list(range(60))
    left = loader(seed=5, world_size=2, rank=1, workers=0)
    next(iter(left))
    other = loader(seed=9, world_size=2, rank=1)
    other.load_state_dict(left.state_dict())
    assert [y for batch in other for y in batch["y"].tolist()][:8] == list(range(24, 32))


@pytest.mark.parametrize("options", [{"last_batch": "pad"}, {"world_size": 3, "rank": 2}], ids=["padded", "uneven ranks"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_tail_that_repeats_the_first_sample_leaves_an_iterable_data_set_where_it_was(options, workers):
    def loader(seed=5):
        return hr.Loader(sources.Drawing(seed), batch_size=8, num_workers=workers, **options)

    whole = loader()
    epochs = [plain(whole) for _ in range(3)]
    stateless = plain(hr.Loader(sources.Counting(), batch_size=8, num_workers=workers, **options))
    for epoch in epochs:
        assert [batch["y"].tolist() for batch in epoch] == [[int(name) for name in batch["name"]] for batch in stateless]
    assert not same(epochs[0], epochs[1]), "it draws on"
    stopped = loader()
    list(stopped)
    batches = iter(stopped)
    next(batches)
    resumed = loader(seed=9)
    resumed.load_state_dict(pickle.loads(pickle.dumps(stopped.state_dict())))
    assert same(plain(resumed), epochs[1][1:])
    assert same(plain(resumed), epochs[2])


def test_an_iterable_data_set_in_a_thread_is_any_generator_of_samples():
    class Plain:
        def __iter__(self):
            return ((numpy.full((4, 4, 3), index, numpy.uint8), index) for index in range(10))

    images, labels = next(iter(hr.Loader(Plain(), length=10, batch_size=10, transform=AS_STORED)))
    assert labels.tolist() == list(range(10)) and images[7].unique().tolist() == [7]


def test_what_an_iterable_data_set_cannot_do_is_refused_by_name():
    for options, words in (({"shuffle": True}, "shuffle is True, and CountingWithLength is an iterable"),
                           ({"worker_type": "process"}, "worker_type is 'process'"), ({"cache": "decoded"}, "cache is 'decoded'"),
                           ({"on_corrupt": "replace"}, "on_corrupt is \"replace\"")):
        with pytest.raises(errors.InvalidArgumentError, match=re.escape(words)):
            hr.Loader(sources.Counting(), **options)
    with pytest.raises(errors.InvalidArgumentError, match="length is 3; wanted where the source is an iterable"):
        hr.Loader(sources.Of(sources.boxes), length=3)
    loader = hr.Loader(sources.Counting(told=False), length=100, batch_size=10)
    with pytest.raises(EOFError, match="ended after 60 samples; it was said to have 100"):
        plain(loader)


TAILS = ["keep", "drop", "pad"]


@pytest.mark.parametrize("last_batch", TAILS)
def test_an_iterable_data_set_of_unknown_length_gives_the_batches_of_a_known_one(last_batch):
    options = {"batch_size": 7, "seed": 3, "last_batch": last_batch}

    def unknown(workers):
        return hr.Loader(sources.Counting(told=False), num_workers=workers, **options)

    wanted = plain(hr.Loader(sources.Counting(told=False), num_workers=0, length=60, **options))
    assert len(wanted) == (8 if last_batch == "drop" else 9)
    for workers in (0, 1, 7):
        loader = unknown(workers)
        for _ in range(2):
            assert same(plain(loader), wanted), workers
    for stop in range(len(wanted) + 1):
        first = unknown(workers=7)
        list(first)
        batches = iter(first)
        for _ in range(stop):
            next(batches)
        state = pickle.loads(pickle.dumps(first.state_dict()))
        assert (state["epoch"], state["position"]) == (1, min(7 * stop, 60))
        second = unknown(workers=stop % 3)
        second.load_state_dict(state)
        assert same(plain(second), wanted[stop:])
        assert second.state_dict()["epoch"] == 2
        assert same(plain(second), wanted)


@pytest.mark.parametrize("kind", [sources.Drawing, sources.DrawingOn], ids=["known", "unknown"])
@pytest.mark.parametrize("last_batch", TAILS)
def test_an_iterable_data_set_goes_on_from_a_state_of_its_own_whatever_its_tail(last_batch, kind):
    source = sources.Drawing()
    epochs = [[(sample["y"], sample["x"].tolist()) for sample in source] for _ in range(3)]
    options = {"batch_size": 8, "last_batch": last_batch}
    filled = {"keep": 60, "pad": 64, "drop": 56}[last_batch]

    def given(loader):
        return [(y, x.tolist()) for batch in loader for y, x in zip(batch["y"].tolist(), batch["x"])]

    wanted = [[*samples, *samples[:4]][:filled] for samples in epochs]
    for workers in (0, 7):
        loader = hr.Loader(kind(), num_workers=workers, **options)
        assert [given(loader) for _ in epochs] == wanted, workers
    for stop in (0, 3, 7, (filled + 7) // 8):
        first = hr.Loader(kind(), num_workers=2, **options)
        list(first)
        batches = iter(first)
        for _ in range(stop):
            next(batches)
        second = hr.Loader(kind(seed=9), num_workers=2, **options)
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        rest = wanted[1][8 * stop:]
        if rest or second.state_dict()["epoch"] == 1:  # Where no end was told, an epoch stands before its end.
            assert given(second) == rest, stop
        assert given(second) == wanted[2], stop


def test_requests_for_data_of_unknown_length_end_with_none():
    wanted = plain(hr.Loader(sources.Counting(), num_workers=0, batch_size=7))
    for workers in (0, 2):
        loader = hr.Loader(sources.Counting(told=False), num_workers=workers, batch_size=7)
        batches, found = iter(loader), []
        while True:
            asked = batches.request()
            assert loader.state_dict()["position"] == min(7 * len(found), 60), "before the batch"
            if (batch := asked.result()) is None:
                break
            found.append({name: values_of(field) for name, field in batch.items()})
        assert same(found, wanted)
        assert loader.state_dict()["epoch"] == 1
        assert next(batches, None) is None


def test_no_length_is_told_that_nobody_knows():
    loader = hr.Loader(sources.Counting(told=False), batch_size=7)
    words = "Counting is an iterable data set that does not tell its length; say it: length="
    with pytest.raises(TypeError, match=words):
        len(loader)
    with pytest.raises(ValueError, match="does not tell how many samples it has"):
        _ = loader.samples
    with pytest.raises(errors.InvalidArgumentError, match=f"world_size is 2: {words}"):
        hr.Loader(sources.Counting(told=False), world_size=2)
    with pytest.raises(ValueError, match="data.val_fraction is 0.5, and the source does not tell"):
        hr.Loader(sources.Counting(told=False), val_fraction=0.5)
    with pytest.raises(ValueError, match="data.cache is \"decoded\""):
        loader.set_cache("decoded")
    model = torch.nn.Linear(3, 1)
    with pytest.raises(errors.InvalidArgumentError, match="epochs: the loader has no length; give steps"):
        hr.tune(model, loader, torch.optim.SGD(model.parameters(), 0.01), lambda network, batch: network(batch["x"]).sum(),
                epochs=2)
    assert len(list(loader)) == 9


def test_data_of_unknown_length_without_a_sample_or_a_batch_are_an_error():
    with pytest.raises(ValueError, match="the source has no samples"):
        hr.Loader(sources.Counting(size=0, told=False))
    few = hr.Loader(sources.Counting(size=3, told=False), batch_size=7, last_batch="drop")
    with pytest.raises(ValueError, match="no batch is left: 3 samples in epoch 0"):
        plain(few)
    once = hr.Loader(sources.Once({"y": index} for index in range(20)), num_workers=2, batch_size=8)
    assert sum(len(batch["y"]) for batch in once) < 20, "some were looked at"
    with pytest.raises(ValueError, match="epoch 1 has no samples"):
        plain(once)


class Breaking(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from ({"y": index} for index in range(30))
        raise RuntimeError("the line is cut")


@pytest.mark.parametrize("on_corrupt", ["fail", "zero"])
@pytest.mark.parametrize("workers", [0, 7])
def test_an_iterator_that_breaks_is_no_end(workers, on_corrupt):
    batches = iter(hr.Loader(Breaking(), num_workers=workers, batch_size=8, on_corrupt=on_corrupt))
    for _ in range(3):
        next(batches)
    with pytest.raises(RuntimeError, match="the line is cut"):
        next(batches)


class Refusing(torch.utils.data.IterableDataset):
    """Cannot be gone over again after a few times."""

    def __init__(self, times):
        self.times = times

    def __iter__(self):
        self.times -= 1
        if self.times < 0:
            raise OSError("the line is gone")
        return ({"y": index} for index in range(20))


@pytest.mark.parametrize("on_corrupt", ["fail", "zero"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_cannot_be_had_is_an_error_of_the_epoch(workers, on_corrupt):
    options = {"num_workers": workers, "batch_size": 8, "on_corrupt": on_corrupt}
    loader = hr.Loader(Refusing(times=2), **options)  # Of which a look at its samples takes one.
    assert [batch["y"].tolist() for batch in loader] == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]
    with pytest.raises(OSError, match="the line is gone"):
        next(iter(loader))
    padded = iter(hr.Loader(Refusing(times=2), last_batch="pad", **options))  # It repeats the first samples.
    assert [next(padded)["y"].tolist() for _ in range(2)] == [[*range(8)], [*range(8, 16)]]
    with pytest.raises(OSError, match="the line is gone"):
        next(padded)


@pytest.mark.parametrize("length", [None, sources.SIZE])
def test_samples_that_threads_read_ahead_are_held_whatever_the_depth_becomes(length):
    source = sources.Counting(told=False)
    loader = hr.Loader(source, length=length, num_workers=0, batch_size=4, prefetch_batches=2)
    loader.set_prefetch_batches(20)
    loader.set_prefetch_batches(2)
    stream = loader.options["source"]
    stream.begin(0)
    begun = source.begun
    assert [stream[index]["name"] for index in (59, *range(59))] == ["59", *map(str, range(59))]
    assert source.begun == begun + 1, "else it would be gone over anew, and one that draws would give other samples"


class Spoilt(torch.utils.data.IterableDataset):
    """One in ten images has another size than the rest."""

    def __iter__(self):
        for index in range(60):
            side = 5 if index % 10 == 7 else 4
            yield numpy.full((side, side, 3), index, numpy.uint8), index % 3


def test_corrupt_samples_of_data_of_unknown_length_are_zeroed_as_of_a_known_one():
    options = {"batch_size": 8, "on_corrupt": "zero", "transform": AS_STORED}
    wanted = plain(hr.Loader(Spoilt(), length=60, num_workers=0, **options))
    for workers in (0, 7):
        loader = hr.Loader(Spoilt(), num_workers=workers, **options)
        assert same(plain(loader), wanted), workers
        assert loader.statistics()["corrupt"] == 6


@pytest.mark.engine
def test_a_trainer_goes_on_within_data_of_unknown_length(tmp_path):
    class Vectors(torch.utils.data.IterableDataset):
        def __iter__(self):
            return map(sources.vector, range(60))

    def trainer_of(seed):
        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 1)
        return model, hr.Trainer(model, torch.optim.SGD(model.parameters(), 1e-6),
                                 lambda network, batch: (network(batch["x"])[:, 0] - batch["y"]).square().mean())

    def loader(**length):
        return hr.Loader(Vectors(), num_workers=2, batch_size=8, **length)

    model, trainer = trainer_of(1)
    trainer.fit(loader(length=60), 3)
    for stop in (5, 8, 16):  # Within an epoch, and after the last batch of one.
        path = tmp_path / f"{stop}.safetensors"
        ours, first = trainer_of(1)
        steps = [0]

        def save(loss):
            steps[0] += 1
            if steps[0] == stop:
                first.save(path)

        results = first.fit(loader(), 3, on_step=save)
        assert [result["samples"] for result in results] == [60, 60, 60] and steps == [24]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(ours.parameters(), model.parameters()))
        resumed, second = trainer_of(2)
        second.load(path)
        second.fit(loader(), 3)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(resumed.parameters(), model.parameters())), stop


def test_a_pack_keeps_every_field(tmp_path):
    path = tmp_path / "fields.pack"
    assert hr.pack(sources.Detection(), path) == 60
    options = {"batch_size": 7, "seed": 3, "num_workers": 2}
    assert same(plain(hr.Loader(f"pack:{path}", **options)), plain(hr.Loader(sources.Detection(), **options)))
    with pytest.raises(errors.InvalidArgumentError, match="exists already"):
        hr.pack(sources.Detection(), path)
    pairs = sources.user_pairs()
    assert hr.pack(pairs, tmp_path / "pairs.pack", split="val") == 60
    images, labels = next(iter(hr.Loader(f"pack:{tmp_path}/pairs.pack", split="val", batch_size=60)))
    assert labels.tolist() == [index % 3 for index in range(60)] and images.shape == (60, 3, 6, 5)
    with pytest.raises(errors.InvalidArgumentError, match="does not tell its classes"):
        hr.pack(sources.Of(sources.pil), tmp_path / "unknown.pack")
    with pytest.raises(TypeError, match="field boxes is float64"):
        hr.pack(sources.OtherAtFive(sources.boxes, {"boxes": numpy.zeros((1, 4)), "name": "5"}), tmp_path / "broken.pack")


def test_what_cannot_be_packed_is_refused_by_name(tmp_path):
    def refusal(kind, source):
        with pytest.raises(kind) as caught:
            hr.pack(source, tmp_path / "no.pack")
        assert not (tmp_path / "no.pack").exists()
        (tmp_path / "no.pack.partial").unlink(missing_ok=True)
        return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])

    def pairs(other):
        source = sources.OtherAtFive(sources.pil, other)
        source.classes = 3
        return source

    image, _ = sources.pil(5)
    assert "OtherAtFive[5]: label -1; wanted 0 to 2" in refusal(errors.CorruptDataError, pairs((image, -1)))
    assert "OtherAtFive[5]: label 3; wanted 0 to 2" in refusal(errors.CorruptDataError, pairs((image, 3)))
    assert "OtherAtFive[5]: field image: uint8 (4, 4, 3); wanted uint8 (6, 5, 3)" in refusal(
        errors.CorruptDataError, pairs((image.resize((4, 4)), 0)))
    assert "OtherAtFive[5]: field image: an encoded image" in refusal(errors.CorruptDataError, pairs((b"\xff\xd8\xff", 0)))
    many = sources.user_pairs()
    many.classes = 2**40
    assert "1099511627776 classes; a pack takes at most 16777216" in refusal(errors.UnsupportedError, many)
    wanted = "wanted an object with __len__ and __getitem__"
    assert "source is a str; " + wanted in refusal(errors.InvalidArgumentError, "idx:somewhere")
    assert "source is a dict; " + wanted in refusal(errors.InvalidArgumentError, {})
    assert "source is a CountingWithLength, an iterable data set; " + wanted in refusal(
        errors.InvalidArgumentError, sources.Counting())
    assert "source is a list without samples" in refusal(errors.InvalidArgumentError, [])


def test_lists_of_numbers_are_arrays_and_the_first_may_be_empty():
    for kind in KINDS:
        batch = next(iter(hr.Loader(array_fields.Of(sources.lists), batch_size=6, shuffle=False, worker_type=kind)))
        assert batch.boxes.values.dtype is torch.float64 and [len(part) for part in batch.boxes] == [0, 1, 2, 0, 1, 2]
        assert batch.kinds.values.tolist() == [1, 2, 2, 4, 5, 5] and batch.kinds.values.dtype is torch.int64
        with pytest.raises(Exception, match="field boxes is an empty list in the first samples, which does not tell its type"):
            hr.Loader([{"boxes": []}] * 4, worker_type=kind)
