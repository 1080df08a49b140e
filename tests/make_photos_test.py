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


def make_photos(*arguments: object, script: Path = SCRIPT, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True, timeout=200,
                          env={**os.environ, **environment})


def digests(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def programs(folder: Path, **scripts: str) -> str:
    """PATH with these scripts of sh first, by name with _ for -."""
    folder.mkdir()
    for name, text in scripts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def small_package(tmp_path_factory) -> str:
    """PATH on which one package is installed, of 12 wallpapers no larger than they must be: those of Debian take long to look at."""
    folder = tmp_path_factory.mktemp("wallpapers")
    draw = numpy.random.default_rng(1)
    for number in range(maker.CLASSES):
        coarse = draw.integers(0, 256, (100, 160, 3), dtype=numpy.uint8)
        Image.fromarray(coarse).resize((maker.WIDTH_MIN, maker.HEIGHT_MIN)).save(folder / f"paper{number:02}.jpg")
    return programs(tmp_path_factory.mktemp("package") / "bin", dpkg=f'[ "$2" = gnome-backgrounds ] && ls -d "{folder}"/*.jpg',
                    dpkg_query='echo "installed gnome-backgrounds 1"')


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


def wallpapers_of(folder: Path) -> list[maker.Wallpaper]:
    """Those that a folder was cut from."""
    found = []
    for origin in json.loads((folder / "about.json").read_text())["classes"]:
        with Image.open(origin["image"]) as image:
            found.append(maker.Wallpaper(origin["class"], Path(origin["image"]), image.width, image.height, maker.DETAIL_MIN))
    return found


def test_sizes_qualities_and_kinds_are_mixed(cut):
    """As 3,000 are planned; and the files of a few are what their plan says."""
    wallpapers = wallpapers_of(cut)
    planned = {f"{split}/{wallpaper.label}/{photo.name}": photo
               for split, counts in maker.split_counts(3000, len(wallpapers)).items() for wallpaper, count in zip(wallpapers, counts)
               for photo in (maker.plan_photo(wallpaper, split, index, 1) for index in range(count))}
    assert len(planned) == 3000
    pixels = [photo.size[0] * photo.size[1] for photo in planned.values()]
    assert 0.25e6 <= numpy.mean(pixels) <= 0.30e6
    assert numpy.quantile(pixels, 0.95) > 8 * numpy.quantile(pixels, 0.05)
    assert all(0.7 <= photo.size[0] / photo.size[1] <= 1.85 for photo in planned.values())
    assert len({photo.quality for photo in planned.values()}) > 30
    assert 60 <= sum(photo.progressive for photo in planned.values()) <= 240
    layers_of = {"4:2:0": ((2, 2), (1, 1), (1, 1)), "4:4:4": ((1, 1), (1, 1), (1, 1)), "grey": ((1, 1),)}
    assert {"grey" if photo.grey else photo.subsampling for photo in planned.values()} == set(layers_of)

    tables = {}
    for path in cut.glob("*/*/*.jpg"):
        photo = planned[str(path.relative_to(cut))]
        with Image.open(path) as image:
            assert image.size == photo.size and image.mode == ("L" if photo.grey else "RGB"), path
            assert tuple(layer[1:3] for layer in image.layer) == layers_of["grey" if photo.grey else photo.subsampling], path
            assert ("progressive" in image.info) == photo.progressive, path
            tables.setdefault(photo.quality, set()).add(tuple(image.quantization[0]))
    assert all(len(found) == 1 for found in tables.values()) and len(set.union(*tables.values())) == len(tables) > 20


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


def test_killed_run_leaves_nothing_whole_and_the_next_run_gives_the_same_bytes_as_any(small_package, tmp_path):
    whole, target, partial = tmp_path / "whole", tmp_path / "killed", tmp_path / "killed.partial"
    assert make_photos("--count", COUNT, "--out", whole, PATH=small_package).returncode == 0
    process = subprocess.Popen([sys.executable, SCRIPT, "--count", "600", "--out", target], env={**os.environ, "PATH": small_package})
    while not list(partial.glob("val/*/*.jpg")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not target.exists() and list(partial.rglob("*.jpg"))
    assert make_photos("--count", COUNT, "--out", target, PATH=small_package).returncode == 0
    assert digests(target) == digests(whole) and not partial.exists()


def test_folder_in_the_cache_is_made_once_and_linked(small_package, tmp_path):
    tree = tmp_path / "tree"
    (tree / "tools").mkdir(parents=True)
    for name in ("make_photos.py", "apt-packages-photos.txt"):
        shutil.copy(ROOT / "tools" / name, tree / "tools")

    def made_there() -> subprocess.CompletedProcess:
        return make_photos("--count", 24, script=tree / "tools" / "make_photos.py", PATH=small_package,
                           XDG_CACHE_HOME=str(tmp_path / "cache"))

    first = made_there()
    assert first.returncode == 0, first.stderr
    folder = (tree / "photos").resolve()
    assert folder.parent == tmp_path / "cache" / "headrace" and (tree / "photos").is_symlink()
    made = (folder / "about.json").stat().st_mtime_ns
    second = made_there()
    assert second.stdout == f"photos: {folder} is there already\n"
    assert (folder / "about.json").stat().st_mtime_ns == made

    (tree / "photos").unlink()
    (tree / "photos").mkdir()
    refused = made_there()
    assert refused.returncode == 1 and f"{tree / 'photos'} is a folder of its own" in refused.stderr


def test_missing_packages_are_named_in_one_line(tmp_path):
    refused = make_photos("--out", tmp_path / "none", PATH=programs(tmp_path / "bin", dpkg="exit 1", dpkg_query="exit 1"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == ("photos: found 0 usable images, wanted 10; they come with the Debian packages gnome-backgrounds, "
                              "mate-backgrounds, plasma-workspace-wallpapers: run tools/setup.sh photos\n")
    assert list(tmp_path.iterdir()) == [tmp_path / "bin"]


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
