"""Lists of operations as Python and recipes meet them: names, parameters and defaults, errors, states; and without a Loader."""

import dataclasses
import enum
import inspect
import io
import json
import pathlib
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch
import torchvision
from PIL import Image
from tiny_run import headrace, write_photos, write_tiny_job
from torchvision.transforms import v2

import headrace as hr
from headrace.transforms import (CenterCrop, Compose, Normalize, Pad, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize,
                                 ToDtype)

LIST = pathlib.Path(__file__).resolve().parent.parent / "include/headrace/options/transforms.inc"
NAMES = re.findall(r"^HEADRACE_OPERATION\((\w+)\)", LIST.read_text(), re.MULTILINE)
TO_FLOAT = {"name": "ToDtype", "dtype": "float32", "scale": True}


class Photos:
    """Images of many sizes."""

    classes = 3

    def __len__(self):
        return 40

    def __getitem__(self, index):
        random = numpy.random.default_rng(index)
        return random.integers(0, 256, (20 + index % 7, 18 + index % 5, 3), dtype=numpy.uint8), index % 3


def loader_of(**options):
    return hr.Loader(Photos(), **{"batch_size": 8, "seed": 3, "num_workers": 0, **options})


def images_of(loader):
    return torch.cat([batch["image"].clone() for batch in loader])


@pytest.fixture(scope="module")
def operations():
    schema = json.loads(headrace("explain", "--schema").stdout)
    operations = schema["properties"]["data"]["properties"]["transforms"]["items"]["oneOf"]
    return {operation["properties"]["name"]["const"]: operation for operation in operations}


def as_written(key, value):
    """What a recipe has for one of torchvision's defaults."""
    if value is None:
        return {"padding": [], "max_size": 0}[key]
    if isinstance(value, enum.Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def test_the_reference_has_every_operation_in_the_order_of_their_list(operations):
    assert list(operations) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_names_and_defaults_are_those_of_torchvision(operations, name):
    ours = {key: schema for key, schema in operations[name]["properties"].items() if key != "name"}
    theirs = {key: parameter.default for key, parameter in inspect.signature(getattr(v2, name)).parameters.items()
              if key != "inplace"}  # Nobody else holds the image here.
    assert list(ours) == list(theirs)
    for key, default in theirs.items():
        is_required = default is inspect.Parameter.empty
        assert is_required == (key in operations[name]["required"]) == ("default" not in ours[key]), key
        if not is_required:
            assert ours[key]["default"] == as_written(key, default), key


@pytest.mark.parametrize("name", NAMES)
def test_a_class_in_python_has_the_parameters_and_defaults_of_the_table(operations, name):
    ours = inspect.signature(getattr(hr.transforms, name)).parameters
    table = {key: schema for key, schema in operations[name]["properties"].items() if key != "name"}
    assert list(ours) == list(table)
    for key, parameter in ours.items():
        default = table[key].get("default", inspect.Parameter.empty)
        assert parameter.default == (tuple(default) if isinstance(default, list) else default), key


def test_there_is_a_class_for_each_operation_and_no_other():
    assert [name for name in hr.transforms.__all__ if name not in ("Compose", "Operation")] == NAMES


def test_an_operation_is_a_value():
    crop = RandomCrop(32, 4)
    assert crop == RandomCrop([32], padding=(4,)) == pickle.loads(pickle.dumps(crop)) and hash(crop) == hash(RandomCrop((32,), 4))
    assert crop != RandomCrop(32) == RandomCrop(32, None) and crop != Pad(4)
    assert (crop.size, crop.padding, RandomCrop(32).padding) == ((32,), (4,), ())
    assert dataclasses.replace(crop, size=[8, 9]).size == (8, 9)
    assert crop.as_table() == {"name": "RandomCrop", "size": (32,), "padding": (4,), "pad_if_needed": False, "fill": 0.0,
                               "padding_mode": "constant"}
    assert ToDtype(torch.float32, scale=True) == ToDtype("float32", scale=True)
    assert Resize(9, v2.InterpolationMode.BILINEAR) == Resize(9) and repr(CenterCrop(9)) == "CenterCrop(size=(9,))"
    assert Normalize(torch.tensor([0.5]), numpy.array([0.25])) == Normalize([0.5], (0.25,))
    with pytest.raises(dataclasses.FrozenInstanceError):
        crop.size = (33,)


@pytest.mark.parametrize("make, message", [
    (lambda: Resize(0), r"Resize\.size must be 1 to 8192, found 0"),
    (lambda: Resize(None), r"Resize\.size is missing; Resize has no default for it"),
    (lambda: Resize(9, "bicubic"), r'Resize: interpolation "bicubic"; there is "bilinear" alone'),
    (lambda: CenterCrop([1, 2, 3]), r"CenterCrop\.size has 3 numbers; wanted one, or height and width"),
    (lambda: RandomCrop(9, padding="many"), r"RandomCrop\.padding must be "),
    (lambda: RandomResizedCrop(9, scale=(1, 0.5)), r"RandomResizedCrop\.scale goes from 1 to 0.5; wanted the least first"),
    (lambda: RandomHorizontalFlip(2), r"RandomHorizontalFlip\.p must be 0.* found 2"),
    (lambda: ToDtype(torch.float16, scale=True), r'ToDtype: dtype "float16"; wanted "float32", "bfloat16" or "uint8"'),
    (lambda: ToDtype(torch.float32), r"ToDtype: scale = false"),
    (lambda: Normalize([], [1]), r"Normalize\.mean is missing"),
    (lambda: Normalize([0, 0], [1, 1, 1]), r"Normalize\.mean has 2 values and Normalize\.std has 3"),
])
def test_an_operation_that_cannot_be_is_refused_where_it_is_made(make, message):
    with pytest.raises(hr.errors.InvalidArgumentError, match=message):
        make()


def test_a_list_of_objects_of_dicts_or_of_torchvisions_is_the_same():
    class Own:  # Whatever else it is.
        def as_table(self):
            return {"name": "CenterCrop", "size": (12, 10)}

    lists = [
        [{"name": "RandomCrop", "size": 18, "padding": [1, 2, 3, 4]}, {"name": "CenterCrop", "size": [12, 10]},
         {"name": "RandomHorizontalFlip", "p": 0.3}, TO_FLOAT, {"name": "Normalize", "mean": [0.4], "std": [0.3]}],
        [RandomCrop(18, (1, 2, 3, 4)), CenterCrop((12, 10)), RandomHorizontalFlip(0.3), ToDtype("float32", scale=True),
         Normalize([0.4], [0.3])],
        Compose([Compose([RandomCrop(18, (1, 2, 3, 4)), Own()]), RandomHorizontalFlip(0.3), TO_FLOAT, Normalize([0.4], [0.3])]),
        v2.Compose([v2.ToImage(), v2.RandomCrop(18, padding=[1, 2, 3, 4]), v2.CenterCrop((12, 10)), v2.RandomHorizontalFlip(0.3),
                    v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4], [0.3]), v2.ToPureTensor()]),
        (RandomCrop(18, (1, 2, 3, 4)), v2.CenterCrop((12, 10)), {"name": "RandomHorizontalFlip", "p": 0.3}, TO_FLOAT,
         v2.Normalize([0.4], [0.3])),
    ]
    wanted = loader_of(transforms=lists[0])
    state = wanted.state_dict()
    images = images_of(wanted)
    for given in lists[1:]:
        found = loader_of(transforms=given)
        options = found.options["transforms"]
        assert [table["name"] for table in options] == [table["name"] for table in lists[0]]
        assert (options[0]["padding"], options[1]["size"]) == ([1, 2, 3, 4], [12, 10])
        assert found.state_dict() == state
        assert torch.equal(images_of(found), images)
    evaluated = [loader_of(transforms=given, eval_transforms=given[1:2] + given[3:4], training=False)
                 for given in (lists[0], lists[1], lists[4])]
    assert all(torch.equal(images_of(one), images_of(evaluated[0])) for one in evaluated[1:])
    composed = Compose(lists[1])
    assert composed == Compose([composed]) == pickle.loads(pickle.dumps(composed)) and isinstance(Compose([v2.Pad(1)])[0], Pad)
    assert repr(Compose([CenterCrop(9), Pad(1)])) == f"Compose([CenterCrop(size=(9,)), {Pad(1)!r}])"


# Without a resize only float32 rounds; with one, Pillow's and our blending of bytes.
@pytest.mark.parametrize("chain, of_pil, allowed", [
    ([v2.ToImage(), v2.Pad([1, 2, 3, 4]), v2.CenterCrop((9, 11)), v2.RandomHorizontalFlip(1.0)], False, 1e-6),
    ([v2.ToImage(), v2.RandomHorizontalFlip(1.0), v2.CenterCrop(17), v2.Pad(3)], False, 1e-6),
    ([v2.ToImage(), v2.CenterCrop(30)], False, 1e-6),
    ([v2.Resize(15), v2.CenterCrop(12), v2.ToImage()], True, 2 / 255),
    ([v2.Resize((16, 25)), v2.ToImage()], True, 2 / 255),
    ([v2.Resize(15, max_size=16), v2.CenterCrop(18), v2.ToImage()], True, 2 / 255),
])
def test_images_are_those_of_torchvisions_own_transforms(chain, of_pil, allowed):
    mean, std = [0.4, 0.5, 0.6], [0.5, 1.0, 2.0]
    chain = v2.Compose([*chain, v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)])
    photos = Photos()
    images = [photos[index][0] for index in range(len(photos))]
    wanted = torch.stack([chain(Image.fromarray(image) if of_pil else image) for image in images])
    found = images_of(loader_of(transforms=chain, shuffle=False))
    assert found.shape == wanted.shape
    assert (found - wanted).abs().amax().item() <= allowed * 2 + 1e-6  # Divided by 0.5.


def test_a_list_gives_the_bytes_of_the_shorthand_that_says_the_same():
    shorthand = {"size": 16, "crop": "random_resized", "flip_probability": 0.5, "mean": [0.4], "std": [0.3]}
    transforms = [{"name": "RandomResizedCrop", "size": [16, 16]}, {"name": "RandomHorizontalFlip"}, TO_FLOAT,
                  {"name": "Normalize", "mean": [0.4], "std": numpy.array([0.3])}]
    for training in (True, False):
        ours, theirs = loader_of(transforms=transforms, training=training), loader_of(transform=shorthand, training=training)
        assert torch.equal(images_of(ours), images_of(theirs))
        assert ours.state_dict() == theirs.state_dict()
        eval_transforms = [{"name": "Resize", "size": 20}, {"name": "CenterCrop", "size": 16}, TO_FLOAT, transforms[3]]
        ours = loader_of(transforms=transforms, eval_transforms=eval_transforms, training=training)
        theirs = loader_of(transform={**shorthand, "resize": 20}, training=training)
        assert torch.equal(images_of(ours), images_of(theirs))


def test_options_read_back_make_the_same_loader():
    transforms = [{"name": "Resize", "size": 20}, {"name": "RandomCrop", "size": 12, "padding": None}, TO_FLOAT]
    loader = loader_of(transforms=tuple(transforms), transform={"layout": "nhwc"})
    read = loader.options
    assert read["transforms"][0] == {"name": "Resize", "size": [20], "interpolation": "bilinear", "max_size": 0, "antialias": True}
    assert list(read["transforms"][1])[:3] == ["name", "size", "padding"] and read["transforms"][1]["padding"] == []
    assert read["eval_transforms"] == [] and read["transform"]["size"] == 0
    again = loader_of(transforms=read["transforms"], transform=read["transform"])
    assert torch.equal(images_of(again), images_of(loader))


def test_a_state_of_the_shorthand_resumes_a_list():
    transforms = [{"name": "Resize", "size": 14}, {"name": "RandomCrop", "size": 12}, TO_FLOAT]
    for resize in (0, 14):  # 8/7 of 12, rounded, by itself or written.
        before = loader_of(transform={"size": 12, "crop": "random", "resize": resize})
        batches = iter(before)
        next(batches)
        state = before.state_dict()
        rest = torch.cat([batch["image"].clone() for batch in batches])
        after = loader_of(transforms=transforms)
        after.load_state_dict(state)
        assert torch.equal(images_of(after), rest)
        before.load_state_dict(after.state_dict())
    other = loader_of(transforms=[{"name": "Resize", "size": 15}, *transforms[1:]])
    with pytest.raises(hr.errors.InvalidArgumentError, match="data.transform.resize 0, this one has 15"):
        other.load_state_dict(state)


@pytest.mark.parametrize("transforms, message", [
    ([{"name": "RandomResizeCrop", "size": 9}], r'transforms\[0\].name must be Resize \| .*, did you mean RandomResizedCrop\?'),
    ([TO_FLOAT, {"name": "Resize", "sise": 9}], r"unknown key transforms\[1\].sise, did you mean transforms\[1\].size\?"),
    ([TO_FLOAT, {"name": "Resize"}], r"data.transforms\[1\].size is missing; Resize has no default for it"),
    ([{"size": 9}], r"transforms\[0\].name is missing; wanted Resize \| "),
    ([{"name": 5}], r"transforms\[0\].name must be Resize \| .*, found 5"),
    ([{"name": "Resize", "size": [9, 2.5]}], r"transforms\[0\].size: wanted whole numbers, found 2.5"),
    ([{"name": "Resize", "size": 0}], r"transforms\[0\].size must be 1 to 8192, found 0"),
    ([{"name": "Normalize", "mean": [0], "std": ["x"]}], r"transforms\[0\].std: wanted numbers, found 'x'"),
    ([5], r"transforms\[0\]: wanted a dict of its keys, or an object whose as_table\(\) gives one; found int"),
    ({"name": "Resize", "size": 9}, r"transforms: wanted a list of its tables, found dict"),
    (Resize(9), r"transforms: wanted a list of its tables, found Resize"),
    ([Resize(9), v2.ColorJitter()], r"transforms\[1\]: there is no operation for .*\.v2\.ColorJitter; wanted .* Resize \|"),
    ([torchvision.transforms.ToTensor()], r"transforms\[0\]: there is no operation for torchvision.transforms.ToTensor"),
    ([torchvision.transforms.Resize(9)], r"transforms\[0\]: there is no operation for torchvision.transforms.Resize;"),
    (v2.Compose([v2.Compose([v2.GaussianBlur(3)])]), r"transforms\[0\]\[0\]: there is no operation for .*GaussianBlur"),
    ([v2.Resize(9, antialias=None)], r"transforms\[0\]: antialias of torchvision's Resize is None; wanted True"),
    ([v2.Resize(None, max_size=9)], r"transforms\[0\]: Resize.size is missing"),
    ([v2.Resize(9, v2.InterpolationMode.NEAREST)], r'transforms\[0\]: .*Resize: interpolation "nearest"'),
    ([v2.ToDtype({torch.Tensor: torch.float32}, scale=True)], r"transforms\[0\]: dtype of torchvision's ToDtype is a dict"),
    ([v2.Pad(1, fill=[1, 2, 3])], r"transforms\[0\]: Pad.fill must be "),
    ([v2.RandomCrop(9, padding=1, padding_mode="edge")], r'transforms\[0\]: .*RandomCrop: padding_mode "edge"'),
])
def test_what_is_wrong_with_a_list_is_named(transforms, message):
    with pytest.raises(hr.errors.InvalidArgumentError, match=message):
        loader_of(transforms=transforms)


def padded_and_cropped(image, padding, size):
    image = numpy.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    top, left = (round((side - size) / 2) for side in image.shape[:2])
    pixels = image[top:top + size, left:left + size]
    return (pixels.astype(numpy.float32) / numpy.float32(255)).transpose(2, 0, 1)


def test_a_list_that_no_shorthand_says_runs_as_it_is_written():
    transforms = [{"name": "Pad", "padding": 2}, {"name": "CenterCrop", "size": 9}, TO_FLOAT]
    photos = Photos()

    def made(change=lambda image: image):
        images = [padded_and_cropped(change(photos[index][0]), 2, 9) for index in range(len(photos))]
        return torch.from_numpy(numpy.stack(images))

    wanted = made()
    for options in ({"shuffle": False}, {"training": False}, {"training": False, "num_workers": 2}):
        assert torch.equal(images_of(loader_of(transforms=transforms, **options)), wanted)
    flipped = [{"name": "RandomHorizontalFlip", "p": 1.0}, *transforms]
    assert torch.equal(images_of(loader_of(transforms=flipped, shuffle=False)), made(lambda image: image[:, ::-1]))
    assert torch.equal(images_of(loader_of(transforms=flipped, training=False)), wanted)
    own = [{"name": "Pad", "padding": 1}, {"name": "CenterCrop", "size": 7}, TO_FLOAT]
    assert images_of(loader_of(transforms=flipped, eval_transforms=own, training=False)).shape == (40, 3, 7, 7)


def test_explain_says_which_operations_share_a_pass_and_why_not_the_others():
    loader = loader_of(transforms=[RandomHorizontalFlip(), RandomResizedCrop(12), Pad(1), ToDtype("float32", scale=True),
                                   Normalize([0.4], [0.3])])
    told = loader.explain()["transforms"]
    assert [(step["operations"], step["fused"]) for step in told] == [
        (["RandomHorizontalFlip"], False), (["RandomResizedCrop"], True), (["Pad"], False), (["ToDtype", "Normalize"], True)]
    assert told[0]["why"] == "" and told[1]["why"].startswith("RandomHorizontalFlip before RandomResizedCrop")
    assert told[2]["why"] == told[3]["why"] == "Pad runs by itself: no pass takes it over"
    list(loader)
    plan = loader.explain()
    assert plan["transforms"] == told and plan["bytes_a_sample"]["copied"] > 0 and plan["bytes_a_sample_stage_by_stage"] is None
    assert loader_of(transforms=[Resize(14), CenterCrop(12)]).explain()["transforms"] == [
        {"operations": ["Resize", "CenterCrop"], "fused": True, "why": ""}]


def test_a_state_of_a_list_that_no_shorthand_says_resumes_that_list_alone():
    transforms = [{"name": "RandomHorizontalFlip"}, {"name": "RandomResizedCrop", "size": 12}, TO_FLOAT]
    before = loader_of(transforms=transforms)
    batches = iter(before)
    next(batches)
    state = before.state_dict()
    rest = torch.cat([batch["image"].clone() for batch in batches])
    after = loader_of(transforms=transforms)
    after.load_state_dict(state)
    assert torch.equal(images_of(after), rest)
    other = loader_of(transforms=[transforms[1], transforms[0], TO_FLOAT])
    with pytest.raises(hr.errors.InvalidArgumentError, match="the state is of a loader with data.transforms"):
        other.load_state_dict(state)


def test_lists_that_cannot_be_meant_are_refused():
    with pytest.raises(hr.errors.InvalidArgumentError, match="transform: ToDtype: scale = false"):
        loader_of(transforms=[{"name": "CenterCrop", "size": 9}, {"name": "ToDtype", "dtype": "float32"}])
    with pytest.raises(hr.errors.InvalidArgumentError, match="Resize wants uint8 pixels, and gets float32 from ToDtype"):
        loader_of(transforms=[TO_FLOAT, {"name": "Resize", "size": [9, 9]}])
    with pytest.raises(hr.errors.InvalidArgumentError, match="data.transform.size is 9, and data.transforms is set"):
        loader_of(transform={"size": 9}, transforms=[TO_FLOAT])
    with pytest.raises(hr.errors.InvalidArgumentError, match="data.eval_transforms is set without data.transforms"):
        loader_of(eval_transforms=[TO_FLOAT])

    class Numbers:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"x": numpy.float32(index)}

    with pytest.raises(hr.errors.InvalidArgumentError, match="data.transforms is set, and the source has no image to transform"):
        hr.Loader(Numbers(), batch_size=2, transforms=[TO_FLOAT])


def test_a_recipe_of_a_list_that_no_shorthand_says_trains_and_evaluates(tmp_path):
    more = ("[[data.transforms]]\nname = 'RandomHorizontalFlip'\n"
            "[[data.transforms]]\nname = 'RandomCrop'\nsize = 8\npadding = 1\n"
            "[[data.transforms]]\nname = 'ToDtype'\ndtype = 'float32'\nscale = true\n")
    recipe = write_tiny_job(tmp_path, epochs=1, more=more)
    result = headrace("train", recipe, "--out", tmp_path / "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    plan = json.loads((tmp_path / "run/result.json").read_text())["loading"]["plan"]
    assert [step["operations"] for step in plan["transforms"]] == [["RandomHorizontalFlip"], ["RandomCrop", "ToDtype"]]
    assert plan["transforms"][1]["why"] == "RandomHorizontalFlip before RandomCrop: behind it, both run in one pass"
    page = (tmp_path / "run/report.html").read_text()
    assert "The passes over a sample" in page and "RandomCrop, ToDtype: one pass (RandomHorizontalFlip before" in page
    result = headrace("eval", recipe, "--checkpoint", tmp_path / "run/model.safetensors", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def photo_run(tmp_path_factory):
    """The folder of a run over photographs, and its data."""
    folder = tmp_path_factory.mktemp("photo_run")
    write_photos(folder / "data", train=6, val=5)
    (folder / "r.toml").write_text(f"""
[data]
source = "folder:{folder}/data"
batch_size = 4
[[data.transforms]]
name = "RandomResizedCrop"
size = 32
[[data.transforms]]
name = "RandomHorizontalFlip"
[[data.transforms]]
name = "ToDtype"
dtype = "float32"
scale = true
[[data.transforms]]
name = "Normalize"
mean = [0.4, 0.5, 0.6]
std = [0.2, 0.3, 0.25]
[model]
name = "strided_cnn"
num_classes = 2
[train]
epochs = 1
[compute]
intra_op_threads = 1
""")
    result = headrace("train", folder / "r.toml", "--out", folder / "run")
    assert result.returncode == 0, result.stderr
    return folder


def test_a_runs_evaluation_read_back_gives_validations_bytes(photo_run, tmp_path):
    transform = hr.Transform.from_run(photo_run / "run")
    assert transform.explain() == [{"operations": ["Resize", "CenterCrop", "ToDtype", "Normalize"], "fused": True, "why": ""}]
    loader = hr.Loader(f"folder:{photo_run}/data", split="val", batch_size=4, transforms=[
        RandomResizedCrop(32), ToDtype("float32", scale=True), Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25])])
    files = [pathlib.Path(loader.sample(index)[0]) for index in range(loader.samples)]
    wanted = images_of(loader)
    assert len(files) == 10
    for file, image in zip(files, wanted):
        found = transform.apply(file.read_bytes())
        assert found.dtype is torch.float32 and found.shape == (3, 32, 32) and torch.equal(found, image)
    pixels = numpy.asarray(Image.open(files[0]).convert("RGB"))
    for form in (pixels, memoryview(pixels), torch.from_numpy(pixels.copy()), Image.open(files[0])):
        assert torch.equal(transform.apply(form), wanted[0])  # The decoder has Pillow's bits.
    text = (photo_run / "run/eval_transform.toml").read_text()
    (tmp_path / "eval_transform.toml").write_text(text.replace('"nchw"', '"nhwc"'))
    by_pixel = hr.Transform.from_run(tmp_path).apply(files[0].read_bytes())
    assert torch.equal(by_pixel, wanted[0]) and by_pixel.stride() == (1, 32 * 3, 3)


def test_what_is_no_image_is_refused_by_a_runs_evaluation(photo_run):
    transform = hr.Transform.from_run(photo_run / "run")
    pixels = numpy.zeros((40, 44, 3), numpy.uint8)
    for image, error, message in [
            (5, hr.errors.InvalidArgumentError, "image: wanted the bytes of a JPEG or PNG file, or pixels; found int"),
            (pixels.astype(numpy.float32), hr.errors.InvalidArgumentError, 'image: an array of 3 axes and format "f"; wanted'),
            (pixels[:, ::-1], hr.errors.InvalidArgumentError, "not in C order; wanted"),
            (pixels[:, :, 0].copy(), hr.errors.CorruptDataError, r"field image: uint8 \(40, 44, 1\); wanted uint8 \(-1, -1, 3\)"),
            (b"", hr.errors.CorruptDataError, "field image: an encoded image of 0 bytes"),
            (b"x" * 100, hr.errors.CorruptDataError, "not a JPEG or PNG")]:
        with pytest.raises(error, match=message):
            transform.apply(image)


def test_a_run_whose_evaluation_is_damaged_is_named_by_file_and_key(photo_run, tmp_path):
    whole = (photo_run / "run/eval_transform.toml").read_text()
    file = tmp_path / "eval_transform.toml"
    with pytest.raises(hr.errors.NotFoundError, match=re.escape(f"there is no {file}")):
        hr.Transform.from_run(tmp_path)
    for text, error, message in [
            (whole.replace('"Resize"', '"Resizes"'), hr.errors.InvalidArgumentError, r":\d+: transforms\[0\].name must be .*Resize\?"),
            (whole.replace("size = [37]\n", ""), hr.errors.InvalidArgumentError, r": transforms\[0\].size is missing"),
            (whole[:len(whole) // 2], hr.errors.Error, ":"),
            (whole.replace("format = 1", "format = 3"), hr.errors.Error, ":1: format is 3; this version reads 1")]:
        assert text != whole
        file.write_text(text)
        with pytest.raises(error, match=re.escape(str(file)) + message):
            hr.Transform.from_run(str(tmp_path))
    (photo_run / "run/eval_transform.toml").write_text(whole[:-10])
    try:
        findings = json.loads(headrace("doctor", photo_run / "run", "--json", "-").stdout)["findings"]
        assert [finding for finding in findings if finding["code"] == "damaged"
                and finding["sentence"].startswith("eval_transform.toml does not load: ")]
    finally:
        (photo_run / "run/eval_transform.toml").write_text(whole)
    findings = json.loads(headrace("doctor", photo_run / "run", "--json", "-").stdout)["findings"]
    assert not [finding for finding in findings if finding["code"] in ("damaged", "missing")]


EVALUATION = [Resize(14), CenterCrop(12), ToDtype("float32", scale=True), Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25])]


def encoded(pixels, kind):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("last, dtype, shorthand", [
    (EVALUATION[2:], torch.float32, {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}),
    ([ToDtype("bfloat16", scale=True)], torch.bfloat16, {"dtype": "bfloat16"}),
    ([], torch.uint8, {"dtype": "uint8"}),
])
def test_a_transform_gives_the_bits_of_a_loader_and_of_the_shorthand(layout, last, dtype, shorthand):
    transforms = [Resize(14), CenterCrop(12), *last]
    transform, photos = hr.Transform(transforms, layout=layout), Photos()
    images = [transform.apply(photos[index][0]) for index in range(len(photos))]
    strides = (144, 12, 1) if layout == "nchw" else (1, 36, 3)
    assert all((image.dtype, image.shape, image.stride()) == (dtype, (3, 12, 12), strides) for image in images)
    found = torch.stack(images)
    for options in ({"transforms": transforms, "transform": {"layout": layout}},
                    {"transform": {"size": 12, "resize": 14, "layout": layout, **shorthand}}):
        assert torch.equal(images_of(loader_of(training=False, **options)), found)


def test_a_transform_takes_what_a_loader_takes():
    theirs = v2.Compose([v2.ToImage(), v2.Resize(14), v2.CenterCrop(12), v2.ToDtype(torch.float32, scale=True),
                         v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25])])
    pixels = Photos()[0][0]
    transform = hr.Transform(EVALUATION)
    wanted = transform.apply(pixels)
    mixed = [*EVALUATION[:2], theirs.transforms[3], EVALUATION[3].as_table()]
    for given in (theirs, Compose(EVALUATION), tuple(EVALUATION), [one.as_table() for one in EVALUATION], mixed):
        other = hr.Transform(given)
        assert other.explain() == transform.explain() == [
            {"operations": ["Resize", "CenterCrop", "ToDtype", "Normalize"], "fused": True, "why": ""}]
        assert torch.equal(other.apply(pixels), wanted)
    png, jpeg = encoded(pixels, "PNG"), encoded(pixels, "JPEG")
    for form in (png, bytearray(png), numpy.frombuffer(png, numpy.uint8), torch.from_numpy(pixels), Image.fromarray(pixels)):
        assert torch.equal(transform.apply(form), wanted) and torch.equal(transform(form), wanted)
    decoded = numpy.asarray(Image.open(io.BytesIO(jpeg)))  # The decoder has Pillow's bits.
    assert torch.equal(transform.apply(jpeg), transform.apply(decoded))
    gray = hr.Transform([CenterCrop(12)], channels=1)
    wanted = torch.from_numpy(pixels[4:16, 3:15, :1].copy()).permute(2, 0, 1)
    assert torch.equal(gray.apply(pixels[:, :, :1].copy()), wanted) and torch.equal(gray.apply(pixels[:, :, 0].copy()), wanted)


def test_a_transform_of_images_of_one_size_takes_pixels_of_that_size_alone():
    transform, photos = hr.Transform([ToDtype("float32", scale=True)], height=20, width=18), Photos()
    pixels = photos[0][0]
    wanted = (pixels.astype(numpy.float32) / numpy.float32(255)).transpose(2, 0, 1)
    assert torch.equal(transform.apply(pixels), torch.from_numpy(wanted))
    with pytest.raises(hr.errors.CorruptDataError, match=r"field image: uint8 \(21, 19, 3\); wanted uint8 \(20, 18, 3\)"):
        transform.apply(photos[1][0])
    with pytest.raises(hr.errors.CorruptDataError, match=r"field image: an encoded image; wanted uint8 \(20, 18, 3\)"):
        transform.apply(encoded(pixels, "PNG"))


def test_a_transform_that_draws_has_a_loaders_draws_for_a_samples_index():
    transforms = [RandomResizedCrop(12), RandomHorizontalFlip(), ToDtype("float32", scale=True)]
    transform, photos = hr.Transform(transforms), Photos()
    loader = loader_of(transforms=transforms, shuffle=False, seed=5)
    for epoch in range(2):
        found = [transform.apply(photos[index][0], seed=5, epoch=epoch, index=index) for index in range(len(photos))]
        assert torch.equal(torch.stack(found), images_of(loader))
    pixels = photos[0][0]
    assert torch.equal(transform.apply(pixels, index=3), transform.apply(pixels, seed=0, epoch=0, index=3))
    for key, message in [({}, "the list draws at random; wanted a sample's key: seed, epoch, index"),
                         ({"epoch": 1}, "epoch is 1, and index is not given; wanted the sample's index, too"),
                         ({"seed": -2, "index": 0}, "seed is -2; wanted at least 0"),
                         ({"index": -1}, "index is -1; wanted at least 0")]:
        with pytest.raises(hr.errors.InvalidArgumentError, match=message):
            transform.apply(pixels, **key)


@pytest.mark.parametrize("options, message", [
    ({"transforms": [Resize(12)]}, "transform: Resize leaves each image with a size of its own; wanted a crop"),
    ({"transforms": [{"name": "Resize"}]}, r"transforms\[0\].size is missing; Resize has no default for it"),
    ({"transforms": [{"name": "Resise", "size": 9}]}, r"transforms\[0\].name must be .*, did you mean Resize\?"),
    ({"transforms": [v2.ColorJitter()]}, r"transforms\[0\]: there is no operation for .*\.v2\.ColorJitter"),
    ({"transforms": Resize(12)}, "transforms: wanted a list of its tables, found Resize"),
    ({"transforms": [CenterCrop(9)], "layout": "nchv"}, r"layout must be nchw \| nhwc"),
    ({"transforms": [CenterCrop(9)], "channels": 5}, r"field image: an image of uint8 \(-1, -1, 5\); wanted .* 1 to 4 channels"),
    ({"transforms": [CenterCrop(9)], "height": 0, "width": 8}, r"field image: an image of uint8 \(0, 8, 3\); wanted"),
])
def test_what_is_wrong_with_a_transform_is_named(options, message):
    with pytest.raises(hr.errors.InvalidArgumentError, match=message):
        hr.Transform(**options)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("last, dtype", [(EVALUATION[2:], torch.float32), ([], torch.uint8)])
def test_out_is_written_in_place_and_nothing_beside_it(layout, last, dtype):
    transform, pixels = hr.Transform([Resize(14), CenterCrop(12), *last], layout=layout), Photos()[0][0]
    wanted = transform.apply(pixels)
    order = torch.contiguous_format if layout == "nchw" else torch.channels_last
    tensors = torch.zeros(3, 3, 12, 12, dtype=dtype).contiguous(memory_format=order)
    arrays = torch.zeros(3, 3, 12, 12, dtype=dtype).contiguous(memory_format=order).numpy()
    for batch in (tensors, arrays):
        row = batch[1]
        assert transform.apply(pixels, out=row) is row
        assert torch.equal(torch.as_tensor(batch[1]), wanted)
        assert not batch[0].any() and not batch[2].any()
    assert wanted.any()
    other = torch.zeros_like(tensors[0])
    assert transform.apply(encoded(pixels, "PNG"), other) is other and torch.equal(other, wanted)


def test_axes_of_one_element_lie_in_any_order():
    transform, pixels = hr.Transform([CenterCrop(12)], channels=1, layout="nhwc"), Photos()[0][0][:, :, 0].copy()
    out = torch.zeros(1, 12, 12, dtype=torch.uint8)
    assert torch.equal(transform.apply(pixels, out=out), torch.from_numpy(pixels[None, 4:16, 3:15].copy()))


def test_autograd_sees_that_out_was_written():
    transform, pixels = hr.Transform(EVALUATION), Photos()[0][0]
    image, weight = torch.ones(3, 12, 12), torch.ones(3, 12, 12, requires_grad=True)
    loss = (image * weight).sum()
    transform.apply(pixels, out=image)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.no_grad():
        assert torch.equal(transform.apply(pixels, out=weight), image)
    with torch.inference_mode():
        inferred = torch.zeros(3, 12, 12)
        assert torch.equal(transform.apply(pixels, out=inferred), image)
    with pytest.raises(RuntimeError, match="inference tensor"):
        transform.apply(pixels, out=inferred)


def read_only(array):
    array.setflags(write=False)
    return array


FLOATS = r"; wanted a writable float32 tensor or array \(3, 12, 12\) in C order$"


@pytest.mark.parametrize("out, message", [
    (torch.zeros(3, 12, 12, dtype=torch.float64), r"^out: float64 \(3, 12, 12\)" + FLOATS),
    (torch.zeros(3, 12, 12, dtype=torch.complex64), r"^out: complex64 \(3, 12, 12\)" + FLOATS),
    (torch.zeros(1, 3, 12, 12), r"^out: float32 \(1, 3, 12, 12\)" + FLOATS),
    (torch.zeros(12, 12, 3), r"^out: float32 \(12, 12, 3\)" + FLOATS),
    (torch.zeros(3, 12, 12).transpose(1, 2), r"^out: float32 \(3, 12, 12\), not in C order" + FLOATS),
    (torch.zeros(3, 12, 24)[:, :, ::2], r"^out: float32 \(3, 12, 12\), not in C order" + FLOATS),
    (torch.zeros(3, 1, 12).expand(3, 12, 12), r"^out: float32 \(3, 12, 12\), not in C order" + FLOATS),
    (torch.zeros(3, 12, 12, requires_grad=True), r"^out: float32 \(3, 12, 12\), requires grad" + FLOATS),
    (torch.zeros(3, 12, 12, device="meta"), r"^out: float32 \(3, 12, 12\), on meta" + FLOATS),
    (torch.zeros(3, 12, 12).to_sparse(), r"^out: float32 \(3, 12, 12\), not dense" + FLOATS),
    (read_only(numpy.zeros((3, 12, 12), numpy.float32)), r"^out: float32 \(3, 12, 12\), read-only" + FLOATS),
    (numpy.zeros((3, 12, 12)), r"^out: float64 \(3, 12, 12\)" + FLOATS),
    (numpy.zeros((3, 12, 12), ">f4"), r"^out: >f4 \(3, 12, 12\)" + FLOATS),
    (numpy.zeros((12, 12, 3), numpy.float32).transpose(2, 0, 1), r"^out: float32 \(3, 12, 12\), not in C order" + FLOATS),
    (numpy.zeros(4 * 432 + 1, numpy.uint8)[1:].view(numpy.float32).reshape(3, 12, 12),
     r"^out: float32 \(3, 12, 12\), not aligned" + FLOATS),
    (bytearray(4 * 432), r"^out: bytearray" + FLOATS),
    ([0.0], r"^out: list" + FLOATS),
])
def test_what_out_cannot_be_is_refused(out, message):
    transform = hr.Transform(EVALUATION)
    with pytest.raises(hr.errors.InvalidArgumentError, match=message):
        transform.apply(Photos()[0][0], out=out)
    if isinstance(out, numpy.ndarray) or (isinstance(out, torch.Tensor) and out.device.type == "cpu" and not out.is_sparse):
        assert not out.any()


def test_what_out_of_another_list_cannot_be_is_refused():
    pixels = numpy.ones((12, 12, 3), numpy.uint8)
    by_pixel = hr.Transform([CenterCrop(12)], layout="nhwc")
    wanted = r"; wanted a writable uint8 tensor or array \(3, 12, 12\) that lies pixel by pixel, as images of a channels-last batch do$"
    with pytest.raises(hr.errors.InvalidArgumentError, match=r"^out: uint8 \(3, 12, 12\), not pixel by pixel" + wanted):
        by_pixel.apply(pixels, out=numpy.zeros((3, 12, 12), numpy.uint8))
    with pytest.raises(hr.errors.InvalidArgumentError, match="^out: shares memory with the image; wanted memory of its own$"):
        by_pixel.apply(pixels, out=pixels.transpose(2, 0, 1))
    half = hr.Transform([CenterCrop(12), ToDtype("bfloat16", scale=True)])
    with pytest.raises(hr.errors.InvalidArgumentError, match=r"^out: uint16 .*; wanted a writable bfloat16 tensor \(3, 12, 12\) in C"):
        half.apply(pixels, out=numpy.zeros((3, 12, 12), numpy.uint16))
    out = torch.zeros(3, 12, 12, dtype=torch.bfloat16)
    assert torch.equal(half.apply(pixels, out=out), half.apply(pixels)) and out.any()


def test_threads_write_the_rows_of_one_batch_at_once():
    transform, photos = hr.Transform([RandomHorizontalFlip(1.0), Pad(1), *EVALUATION]), Photos()
    files = [encoded(photos[index][0], "PNG") for index in range(len(photos))]
    wanted = torch.stack([transform.apply(file, index=index) for index, file in enumerate(files)])
    batch = torch.zeros(len(files), 3, 12, 12)
    begin = threading.Barrier(2)

    def write(first):
        begin.wait()
        for index in range(first, len(files), 2):
            transform.apply(files[index], out=batch[index], index=index)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, range(2)))
    assert torch.equal(batch, wanted)


def test_a_recipe_of_lists_trains_to_the_weights_of_its_shorthand(tmp_path):
    (tmp_path / "list").mkdir()
    (tmp_path / "table").mkdir()
    runs = []
    for name, more in (("table", "[data.transform]\npad = 1\nflip_probability = 0.5\nmean = [0.3]\n"),
                       ("list", "[[data.transforms]]\nname = 'RandomCrop'\nsize = 8\npadding = 1\n"
                                "[[data.transforms]]\nname = 'RandomHorizontalFlip'\n"
                                "[[data.transforms]]\nname = 'ToDtype'\ndtype = 'float32'\nscale = true\n"
                                "[[data.transforms]]\nname = 'Normalize'\nmean = [0.3]\nstd = [1.0]\n")):
        recipe = write_tiny_job(tmp_path / name, epochs=1, more=more)
        result = headrace("train", recipe, "--out", tmp_path / name / "run", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        runs.append((tmp_path / name / "run/model.safetensors").read_bytes())
    assert runs[0] == runs[1]
    result = headrace("explain", recipe, "data.transforms")
    assert "data.transforms = 4 tables" in result.stdout
    assert re.search(r"data.transforms\[0\].name = \"RandomCrop\" +tiny.toml:\d+ ", result.stdout)
    assert re.search(r"data.transforms\[0\].fill = 0.0 +default", result.stdout)
