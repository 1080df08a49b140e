"""What tests of the executable share: calling it, data of a few hundred tiny images, disks, and looking at what it wrote."""

import contextlib
import gzip
import json
import os
import pathlib
import struct
import subprocess

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADRACE = os.environ.get("HEADRACE_BIN", str(ROOT / "build/release/bin/headrace"))

# Of [tune], with what comes before them there: a change that pays, and three that must not be kept.
PLANTED_KNOBS = """\
only = ["faster", "wrong", "slower", "thrower"]
[[tune.planted]]
name = "faster"
off_ms = 3.0
[[tune.planted]]
name = "wrong"
off_ms = 3.0
gradient_error = 0.05
[[tune.planted]]
name = "slower"
on_ms = 3.0
[[tune.planted]]
name = "thrower"
throw_probability = 1.0
"""


def write_idx(folder: pathlib.Path, split: str, count: int, side: int = 8) -> None:
    """Images whose brightness is their label, so that a network has something to learn."""
    random = numpy.random.default_rng(3)
    labels = numpy.arange(count, dtype=numpy.uint8) % 10
    images = (labels[:, None, None] * 20 + random.integers(0, 50, (count, side, side))).astype(numpy.uint8)
    with gzip.open(folder / f"{split}-images-idx3-ubyte.gz", "wb", 1) as file:
        file.write(struct.pack(">4I", 0x803, count, side, side) + images.tobytes())
    with gzip.open(folder / f"{split}-labels-idx1-ubyte.gz", "wb", 1) as file:
        file.write(struct.pack(">2I", 0x801, count) + labels.tobytes())


def write_tiny_job(folder: pathlib.Path, epochs: int, more: str = "") -> pathlib.Path:
    """A recipe over a tiny data set, tiny.toml; a step takes well under a millisecond. `more`: further tables."""
    data = folder / "data"
    data.mkdir()
    write_idx(data, "train", 1280)
    write_idx(data, "t10k", 320)
    recipe = folder / "tiny.toml"
    recipe.write_text(
        f"""
[data]
source = "idx:{data}"
batch_size = 32
[model]
name = "mlp"
{more}
[train]
epochs = {epochs}
[compute]
intra_op_threads = 1
"""
    )
    return recipe


def write_photos(folder: pathlib.Path, **counts: int) -> None:
    """Photographs of noise in ImageFolder's layout, of two classes: as many of each as `counts` says of each split."""
    from PIL import Image

    random = numpy.random.default_rng(1)
    for split, count in counts.items():
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                image = Image.fromarray(random.integers(0, 255, (40, 44, 3), dtype=numpy.uint8))
                image.save(folder / split / name / f"{i:02}.jpg")


AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "-n"]
# As root every file is readable; without these capabilities root is as any user.
ANY_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@contextlib.contextmanager
def disk_of(size: str, folder: pathlib.Path):
    """A file system of its own in memory, mounted on the new `folder`."""
    folder.mkdir()
    subprocess.run([*AS_ROOT, "mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*AS_ROOT, "umount", folder], check=True)


def resize_disk(folder: pathlib.Path, size: str) -> None:
    subprocess.run([*AS_ROOT, "mount", "-o", f"remount,size={size}", folder], check=True)


def headrace(*arguments, cwd=None, timeout=120, **keywords):
    command = [HEADRACE, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, timeout=timeout, capture_output=True, text=True, **keywords)


def recipe_of(folder: pathlib.Path, epochs: int = 4, rate: float = 3e-2, **splits: int) -> pathlib.Path:
    """A recipe over IDX files of as many tiny images of ten classes as `splits` says of each; IDX calls test t10k."""
    data = folder / "data"
    data.mkdir()
    for split, count in splits.items():
        write_idx(data, split, count)
    recipe = folder / "r.toml"
    recipe.write_text(
        f'[data]\nsource = "idx:{data}"\nbatch_size = 16\n[model]\nname = "mlp"\n[optimizer]\nlr = {rate}\n'
        f"[train]\nepochs = {epochs}\n[compute]\nintra_op_threads = 1\n"
    )
    return recipe


def trained(recipe, out, *arguments, **keywords) -> tuple[dict, str]:
    """What `headrace train` leaves as JSON, and what it says."""
    result = headrace("train", recipe, "--out", out, "--json", "-", *arguments, **keywords)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def evaluated(recipe, checkpoint, *arguments) -> dict:
    """What `headrace eval` finds."""
    result = headrace("eval", recipe, "--checkpoint", checkpoint, "--json", "-", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def tensors_of(path: pathlib.Path) -> dict:
    from safetensors.numpy import load_file

    return load_file(path)


def assert_same_tensors(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert numpy.array_equal(a[name], b[name]), name


def newest_checkpoint(folder: pathlib.Path) -> pathlib.Path:
    return sorted(folder.glob("checkpoint-[0-9]*.safetensors"))[-1]


def assert_one_line_error(result, code, *words):
    assert result.returncode == code, result.stderr
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    assert len(errors) == 1, result.stderr
    for word in words:
        assert str(word) in errors[0], result.stderr
