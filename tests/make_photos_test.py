"""tools/make_photos.py cuts what it says, the same each time, and leaves nothing half made that counts as whole."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tools" / "make_photos.py"
sys.path.insert(0, str(ROOT / "tools"))

import make_photos as maker  # noqa: E402

COUNT = 100


def make_photos(*arguments: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=200,
                          env={**os.environ, **environment})


def digests(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def cut(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "cut"
    done = make_photos("--count", COUNT, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"photos: {COUNT} photographs of 12 classes in {folder}: ")
    return folder


def test_layout_is_that_of_an_image_folder(cut):
    assert sorted(path.name for path in cut.iterdir()) == ["about.json", "train", "val"]
    classes = sorted(path.name for path in (cut / "train").iterdir())
    assert len(classes) >= 10
    assert classes == sorted(path.name for path in (cut / "val").iterdir())
    files = [path for path in cut.rglob("*") if path.is_file() and path.name != "about.json"]
    assert len(files) == COUNT and {path.suffix for path in files} == {".jpg"}
    counts = [len(list((cut / split / name).iterdir())) for split in ("train", "val") for name in classes]
    assert min(counts) >= 1 and max(counts[:12]) - min(counts[:12]) <= 1
    assert not list(cut.parent.glob("*.partial"))


def test_another_seed_and_another_index_give_other_photographs():
    wallpaper = maker.Wallpaper("plasma-kay", Path("kay.png"), 2560, 1600, 5.0)
    boxes = {maker.plan_photo(wallpaper, split, index, seed).box
             for split in ("train", "val") for index in range(20) for seed in (1, 2)}
    assert len(boxes) == 80


def test_sizes_qualities_and_kinds_are_mixed(photos):
    pixels, modes, tables, layouts, progressive = [], set(), set(), set(), 0
    files = sorted(photos.glob("*/*/*.jpg"))
    assert len(files) == 3000
    for path in files:
        with Image.open(path) as image:
            pixels.append(image.width * image.height)
            assert 0.7 <= image.width / image.height <= 1.85, path
            modes.add(image.mode)
            tables.add(tuple(image.quantization[0]))
            layouts.add(tuple(layer[1:3] for layer in image.layer))
            progressive += "progressive" in image.info
    assert 0.25e6 <= numpy.mean(pixels) <= 0.30e6
    assert numpy.quantile(pixels, 0.95) > 8 * numpy.quantile(pixels, 0.05)
    assert modes == {"RGB", "L"} and len(tables) > 30
    assert {((2, 2), (1, 1), (1, 1)), ((1, 1), (1, 1), (1, 1)), ((1, 1),)} == layouts
    assert 60 <= progressive <= 240


def test_training_and_validation_share_no_column_of_a_wallpaper(cut):
    about = json.loads((cut / "about.json").read_text())
    assert len(about["classes"]) == 12
    for origin in about["classes"]:
        wallpaper = maker.examine(origin["class"].split("-")[0], Path(origin["image"]))
        assert wallpaper is not None and wallpaper.label == origin["class"]
        (train_begin, train_end), (val_begin, val_end) = origin["columns"]["train"], origin["columns"]["val"]
        assert train_end <= val_begin or val_end <= train_begin
        for split, (begin, end) in origin["columns"].items():
            for index in range(200):
                photo = maker.plan_photo(wallpaper, split, index, about["seed"])
                left, top, right, bottom = photo.box
                assert begin <= left < right <= end and 0 <= top < bottom <= wallpaper.height
                assert 0 < photo.size[0] <= right - left and 0 < photo.size[1] <= bottom - top


def test_killed_run_leaves_nothing_whole_and_the_next_run_gives_the_same_bytes_as_any(cut, tmp_path):
    target, partial = tmp_path / "killed", tmp_path / "killed.partial"
    process = subprocess.Popen([sys.executable, SCRIPT, "--count", "3000", "--out", target])
    while not list(partial.glob("val/*/*.jpg")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not target.exists() and list(partial.rglob("*.jpg"))
    assert make_photos("--count", COUNT, "--out", target).returncode == 0
    assert digests(target) == digests(cut) and not partial.exists()


def test_folder_in_the_cache_is_made_once_and_linked(tmp_path):
    tree = tmp_path / "tree"
    (tree / "tools").mkdir(parents=True)
    for name in ("make_photos.py", "apt-packages-photos.txt"):
        shutil.copy(ROOT / "tools" / name, tree / "tools")
    command = [sys.executable, tree / "tools" / "make_photos.py", "--count", "24"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    first = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    folder = (tree / "photos").resolve()
    assert folder.parent == tmp_path / "cache" / "headrace" and (tree / "photos").is_symlink()
    made = (folder / "about.json").stat().st_mtime_ns
    second = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert second.stdout == f"photos: {folder} is there already\n"
    assert (folder / "about.json").stat().st_mtime_ns == made

    (tree / "photos").unlink()
    (tree / "photos").mkdir()
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1 and f"{tree / 'photos'} is a folder of its own" in refused.stderr


def test_missing_packages_are_named_in_one_line(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dpkg", "dpkg-query"):
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    refused = make_photos("--out", tmp_path / "none", PATH=f"{programs}:{os.environ['PATH']}")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == ("photos: found 0 usable images, wanted 10; they come with the Debian packages gnome-backgrounds, "
                              "mate-backgrounds, plasma-workspace-wallpapers: run tools/setup.sh photos\n")
    assert list(tmp_path.iterdir()) == [programs]


def test_folder_that_exists_is_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    refused = make_photos("--out", tmp_path / "mine")
    assert refused.returncode == 1 and f"{tmp_path / 'mine'} exists" in refused.stderr
    assert list((tmp_path / "mine").iterdir()) == []


def test_images_that_cannot_be_used_are_left_out(tmp_path):
    noise = numpy.random.default_rng(1).integers(0, 256, (1000, 1600, 3), dtype=numpy.uint8)
    Image.fromarray(noise).save(tmp_path / "good.png")
    Image.fromarray(noise[:999]).save(tmp_path / "small.png")
    Image.fromarray(noise[:, :, :1].repeat(4, axis=2), "RGBA").save(tmp_path / "transparent.png")
    Image.new("RGB", (1600, 1000), "teal").save(tmp_path / "flat.png")
    (tmp_path / "torn.png").write_bytes((tmp_path / "good.png").read_bytes()[:5000])
    (tmp_path / "text.jpg").write_text("not an image")
    usable = [path.name for path in sorted(tmp_path.iterdir()) if maker.examine("mate-backgrounds", path) is not None]
    assert usable == ["good.png"]


def test_forms_of_a_wallpaper_are_one_class():
    labels = {maker.label_of("plasma-workspace-wallpapers", Path(f"/usr/share/wallpapers/Kay/contents/{name}"))
              for name in ("images/1080x1920.png", "images_dark/5120x2880.png")}
    assert labels == {"plasma-kay"}
    assert maker.label_of("mate-backgrounds", Path("/a/Elephants_3840x2160.jpg")) == "mate-elephants"
    assert maker.label_of("gnome-backgrounds", Path("/a/wood-d.webp")) == "gnome-wood"
