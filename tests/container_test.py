"""A run in a container of 1 GB: it knows the container's limit, stays within it, and refuses by both numbers what does not fit."""

import json
import os
import re
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
from PIL import Image

from tiny_run import HEADRACE, assert_one_line_error

LIMIT = 1 << 30


def memory_groups():
    """Folders of this process' control groups that may bound memory, the innermost first, and the name of their limit."""
    groups = dict((line.split(":", 2)[1], line.split(":", 2)[2]) for line in Path("/proc/self/cgroup").read_text().splitlines())
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, kind = (part.split() for part in line.split(" - "))
        if kind[0] == "cgroup2":
            group, limit = groups.get("", "/"), "memory.max"
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            group, limit = next(path for names, path in groups.items() if "memory" in names.split(",")), "memory.limit_in_bytes"
        else:
            continue
        below = Path(group.removeprefix(place[3].rstrip("/")).lstrip("/"))
        for folder in [below, *below.parents]:
            yield Path(place[4]) / folder, limit


def enter(group):
    (group / "cgroup.procs").write_text(str(os.getpid()))


@contextmanager
def control_group():
    """A control group of LIMIT bytes of memory; None where this process may make none."""
    for parent, limit in memory_groups():
        group = parent / f"headrace-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
            subprocess.run(["true"], preexec_fn=lambda: enter(group), check=True)
        except (OSError, subprocess.SubprocessError):  # No controller for memory below that parent, or none may move there.
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    yield None


class Container:
    """Runs headrace in a control group of 1 GB, or, where none can be made, with 1 GB of addresses."""

    def __init__(self, group):
        self.group = group
        self.limit_from = "rlimit" if group is None else r"cgroup v[12] .*/" + group.name

    def enter(self):
        if self.group is None:
            resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
        else:
            enter(self.group)

    def headrace(self, *arguments):
        return subprocess.run([HEADRACE, *map(str, arguments)], preexec_fn=self.enter, capture_output=True, text=True, timeout=120)


@pytest.fixture(params=["control group", "addresses"])
def container(request):
    if request.param == "addresses":
        yield Container(None)
        return
    with control_group() as group:
        yield Container(group)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """150 photographs, decoded 1.4 GB; of half the memory that most machines have they would all be kept decoded."""
    folder = tmp_path_factory.mktemp("photos")
    y, x = numpy.mgrid[0:1500, 0:2000]
    pixels = numpy.stack([x % 256, y % 256, (x + y) % 256], axis=-1).astype(numpy.uint8)
    Image.fromarray(pixels).save(folder / "one.jpg", quality=80)
    for split, count in (("train", 150), ("val", 4)):
        for label in ("cat", "dog"):
            (folder / split / label).mkdir(parents=True)
        for i in range(count):
            os.link(folder / "one.jpg", folder / split / ("cat", "dog")[i % 2] / f"{i:03}.jpg")
    recipe = folder / "photos.toml"
    recipe.write_text(
        f"""
[data]
source = "folder:{folder}"
batch_size = 8
cache = "decoded"
[data.transform]
size = 32
crop = "random_resized"
[model]
name = "mlp"
[train]
epochs = 2
[compute]
intra_op_threads = 1
"""
    )
    return recipe


def test_training_stays_within_the_limit_of_its_container(container, recipe, tmp_path):
    out = tmp_path / "run"
    result = container.headrace("train", recipe, "--out", out)
    assert result.returncode == 0, result.stderr
    machine = json.loads((out / "environment.json").read_text())["machine"]
    assert machine["memory_limit"] == LIMIT and re.fullmatch(container.limit_from, machine["memory_limit_from"])
    document = json.loads((out / "result.json").read_text())
    assert len(document["training"]["epochs"]) == 2
    assert document["memory"]["peak"]["bytes"] < LIMIT
    assert 20e6 < document["memory"]["classes"]["cache"]["last"] < LIMIT / 2  # It was used, and bounded.


def test_what_does_not_fit_into_the_container_is_refused_by_both_numbers(container, recipe, tmp_path):
    result = container.headrace("train", recipe, "--out", tmp_path / "run", "--data.cache_mib", 4096)
    assert_one_line_error(result, 1, 4 << 30, f"the memory limit of {LIMIT} bytes")
