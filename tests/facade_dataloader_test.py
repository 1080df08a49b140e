"""Loaders by the names of published examples of YOLO training, over a data set with known boxes."""

import io
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from PIL import Image

import headrace as hr
from headrace import _core
from performance_optimization import _yolo_dataset
from performance_optimization_system import create_cpu_optimized_dataloader, optimize_cpu_settings

SIZE = 64
WITHOUT_LABELS = 3  # The number of an image.


def write_data(folder: Path, train: int = 12, val: int = 7, name: str = "data.json") -> Path:
    """Images 40 pixels wide and 20 high with one white box each, of the class that its number has by 3."""
    for split, count in {"train": train, "val": val}.items():
        images, labels = folder / split / "images", folder / split / "labels"
        images.mkdir(parents=True)
        labels.mkdir()
        for number in range(count):
            pixels = numpy.zeros((20, 40, 3), numpy.uint8)
            pixels[5:15, 10:30] = 255
            Image.fromarray(pixels).save(images / f"{number:03}.png")
            if number != WITHOUT_LABELS:
                (labels / f"{number:03}.txt").write_text(f"{number % 3} 0.5 0.5 0.5 0.5\n")
    (folder / name).write_text(json.dumps({"train": "train/images", "val": ["val/images"], "names": ["a", "b", "c"]}))
    return folder / name


def config_of(path: Path, **settings) -> SimpleNamespace:
    return SimpleNamespace(**{"batch_size": 5, "image_size": SIZE, "num_workers": 4, "dataset_config": {"data_yaml_path": str(path)},
                              **settings})


def names_of(batch) -> list[str]:
    return [Path(path).name for path in batch[2]]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_example_of_cpu_settings_and_their_loader_runs(tmp_path, monkeypatch, threads):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "")  # So that what is there is put back.
    config = config_of(write_data(tmp_path))

    optimize_cpu_settings()
    train_loader = create_cpu_optimized_dataloader(config, "train")
    val_loader = create_cpu_optimized_dataloader(config, "val")

    assert torch.get_num_threads() == _core.usable_cores()
    epochs = [[name for batch in train_loader for name in names_of(batch)] for _ in range(3)]
    assert all(len(names) == len(set(names)) == 10 for names in epochs)  # Of 12: no smaller last batch.
    assert len({tuple(names) for names in epochs}) == 3
    images, labels, paths, shapes = next(iter(val_loader))
    assert (images.dtype, images.shape, len(paths), shapes) == (torch.float32, (5, 3, SIZE, SIZE), 5, [(20, 40)] * 5)
    assert [len(batch[2]) for batch in val_loader] == [5, 2]
    assert [name for batch in val_loader for name in names_of(batch)] == [f"{number:03}.png" for number in range(7)]


def test_workers_are_the_cores_but_at_most_eight_and_nothing_is_page_locked(tmp_path, monkeypatch):
    path = write_data(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for cores, workers in {1: 1, 6: 6, 64: 8}.items():
        monkeypatch.setattr(_core, "usable_cores", lambda cores=cores: cores)
        loader = create_cpu_optimized_dataloader(config_of(path), "train")
        assert (loader.options["num_workers"], loader.options["persistent_workers"], loader.options["cache"]) == (workers, True, "decoded")
        told = {key: (requested, applied) for key, requested, applied, _ in loader.applied}
        assert told["pin_memory"] == ("false", "false") and told["persistent_workers"] == ("true", "true")
        assert not any(tensor.is_pinned() for tensor in next(iter(loader))[:2])


def test_later_epochs_read_and_decode_no_image(tmp_path, monkeypatch):
    read, plain = [], _yolo_dataset.YoloDataset.__getitem__
    monkeypatch.setattr(_yolo_dataset.YoloDataset, "__getitem__", lambda data, index: read.append(index) or plain(data, index))
    loader = create_cpu_optimized_dataloader(config_of(write_data(tmp_path), batch_size=4), "train")
    before = len(read)  # Making it looks at the first sample.
    first = {path: image.clone() for images, _, paths, _ in loader for path, image in zip(paths, images)}
    assert sorted(read[before:]) == list(range(12))
    again = {path: image.clone() for images, _, paths, _ in loader for path, image in zip(paths, images)}
    assert len(read) - before == 12 and loader.statistics()["cache_hits"] == 12
    assert first.keys() == again.keys() and all(torch.equal(first[path], again[path]) for path in first)


def test_a_box_is_where_the_letterbox_has_put_it_and_labels_carry_the_number_of_their_image(tmp_path):
    images, labels, paths, _ = next(iter(create_cpu_optimized_dataloader(config_of(write_data(tmp_path)), "val")))
    assert labels[:, 0].tolist() == [number for number in range(5) if number != WITHOUT_LABELS]
    assert labels[:, 1].tolist() == [number % 3 for number in range(5) if number != WITHOUT_LABELS]
    for of_image, *_, x, y, width, height in labels.tolist():
        rows, columns = (images[int(of_image), 0] > 0.75).nonzero().T  # Brighter than the gray beside the image, 114 / 255.
        found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        wanted = [(x - width / 2) * SIZE, (y - height / 2) * SIZE, (x + width / 2) * SIZE, (y + height / 2) * SIZE]
        assert all(abs(int(one) - other) <= 1 for one, other in zip(found, wanted)), (found, wanted)
    assert torch.allclose(images[:, :, :15], torch.tensor(114 / 255)) and (images[:, :, 17] < 0.25).all()


@pytest.mark.parametrize("save", ["JPEG", "PNG"])
def test_an_images_size_is_that_of_its_header(save):
    file = io.BytesIO()
    Image.new("RGB", (37, 23)).save(file, save)
    assert _yolo_dataset._size("made up", file.getvalue()) == (23, 37)
    with pytest.raises(ValueError, match="made up: wanted a JPEG or PNG file with the image's size in it, found 20 bytes"):
        _yolo_dataset._size("made up", file.getvalue()[:20])


def test_each_loader_is_logged_with_its_split(tmp_path, caplog):
    caplog.set_level(logging.INFO, "performance_optimization")
    create_cpu_optimized_dataloader(config_of(write_data(tmp_path)), "val")
    workers = min(_core.usable_cores(), 8)
    assert caplog.messages == [f"[VAL] 7 images, batches of 5, {workers} workers, decoded images cached"]


@pytest.mark.parametrize("config, split, message", [
    ({"dataset_config": {}}, "train", r"config\.dataset_config\.data_yaml_path: wanted the path of data\.yaml, found none"),
    ({"batch_size": 0}, "train", r"config\.batch_size: wanted a whole number of at least 1, found 0"),
    ({}, "dev", "split: wanted one of train, val, test, found 'dev'"),
    ({}, "test", r"data\.json: test: wanted a folder or a list of folders, found None"),
], ids=["no path", "batch size", "split", "not named"])
def test_a_setting_that_is_missing_or_cannot_be_is_named(tmp_path, config, split, message):
    with pytest.raises(ValueError, match=message):
        create_cpu_optimized_dataloader(config_of(write_data(tmp_path), **config), split)


def test_a_folder_that_is_missing_or_empty_is_named(tmp_path):
    path = write_data(tmp_path, val=0)
    with pytest.raises(ValueError, match=r"data\.json: val: wanted a folder with JPEG or PNG files, found none in it"):
        create_cpu_optimized_dataloader(config_of(path), "val")
    (tmp_path / "val/labels").rmdir()
    (tmp_path / "val/images").rmdir()
    with pytest.raises(ValueError, match=r"data\.json: val: wanted a folder, found none at .*val/images"):
        create_cpu_optimized_dataloader(config_of(path), "val")


@pytest.mark.parametrize("line", ["1 0.5 0.5 0.5", "1 0.5 0.5 0.5 1.5", "x 0.5 0.5 0.5 0.5", "1.5 0.5 0.5 0.5 0.5", "1 0.5 0.5 0.5 nan"])
def test_a_line_of_labels_that_is_no_box_is_named_by_file_and_line(tmp_path, line):
    path = write_data(tmp_path)
    (tmp_path / "val/labels/005.txt").write_text(f"0 0.5 0.5 0.5 0.5\n\n{line}\n")
    loader = create_cpu_optimized_dataloader(config_of(path), "val")
    assert loader.samples == 7
    with pytest.raises(ValueError, match=rf"val/labels/005\.txt:3: wanted a class number, .* found '{line}'"):
        list(loader)


def test_labels_that_are_no_text_are_named(tmp_path):
    path = write_data(tmp_path)
    (tmp_path / "val/labels/000.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"val/labels/000\.txt: wanted a text of boxes, found .*invalid start byte"):
        list(create_cpu_optimized_dataloader(config_of(path), "val"))


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    path = write_data(tmp_path)
    image = tmp_path / "val/images/004.png"
    image.write_bytes(image.read_bytes()[:60])  # Its header is whole.
    with pytest.raises(ValueError, match=r"val/images/004\.png: "):
        list(create_cpu_optimized_dataloader(config_of(path), "val"))


def test_a_yaml_file_is_read_by_pyyaml_and_told_without(tmp_path, monkeypatch):
    path = write_data(tmp_path, name="data.yaml")  # JSON is YAML, too.
    monkeypatch.setitem(sys.modules, "yaml", SimpleNamespace(safe_load=json.loads, YAMLError=ValueError))
    assert isinstance(create_cpu_optimized_dataloader(config_of(path), "val"), hr.Loader)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ModuleNotFoundError, match=r"data\.yaml: wanted PyYAML for a YAML file, found none"):
        create_cpu_optimized_dataloader(config_of(path), "val")
