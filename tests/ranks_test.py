"""Two processes that share an epoch: each is a rank, runs beside the other, and loads its half. From a folder, a pack and Python."""

import hashlib
import json
import os
import subprocess
import sys

import numpy
import pytest
from tiny_run import headrace, write_photos

import headrace as hr

IMAGES, BATCH, EPOCH = 64, 4, 3
OPTIONS = {"batch_size": BATCH, "num_workers": 2, "seed": 5,
           "transform": {"size": 24, "crop": "random_resized", "flip_probability": 0.5}}

RANK = """
import json, sys
import headrace as hr
import ranks_test

loader = hr.Loader(sys.argv[1], world_size=2, rank=int(sys.argv[2]), **ranks_test.OPTIONS)
print("ready", flush=True)
sys.stdin.readline()  # Until the other one is ready, too.
batches = ranks_test.batches_of(loader)
print(json.dumps({"batches": batches, "read": loader.statistics()["samples"]}))
"""


COUNTING_RANK = """
import json, sys
import headrace as hr
import ranks_test

source = ranks_test.Counting()
loader = hr.Loader(source, world_size=2, rank=int(sys.argv[2]), batch_size=4, num_workers=2, seed=5)
source.calls.clear()  # Those that looked for the images' shape.
print("ready", flush=True)
sys.stdin.readline()
epochs = []
for _ in range(3):
    ids = [label for _, labels in loader for label in labels.tolist()]
    epochs.append({"ids": ids, "calls": sorted(source.calls)})
    source.calls.clear()
print(json.dumps(epochs))
"""


class Counting:
    """A user's own source, which counts what it is asked for. The label is the record's number."""

    def __init__(self):
        self.calls = []

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.calls.append(index)
        return numpy.full((4, 4, 1), index, numpy.uint8), index


def digest(*tensors) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def batches_of(loader) -> list[dict]:
    """Of each batch its bytes and its records, each told by its own bytes: no two images are alike."""
    loader.set_epoch(EPOCH)
    return [{"bytes": digest(images, labels), "records": [digest(*sample) for sample in zip(images, labels)]}
            for images, labels in loader]


def two_ranks(source: str, program: str = RANK) -> list[dict]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    processes = [subprocess.Popen([sys.executable, "-c", program, source, str(rank)], env=environment, text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE) for rank in range(2)]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world_size")
    write_photos(folder / "photos", train=IMAGES // 2, val=1)
    result = headrace("pack", f"folder:{folder / 'photos'}", folder / "photos.pack")
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("source", ["folder:{}/photos", "pack:{}/photos.pack"])
def test_two_processes_each_take_their_half_of_an_epoch(photos, source):
    source = source.format(photos)
    whole = batches_of(hr.Loader(source, **OPTIONS))
    ranks = two_ranks(source)
    halves = [{record for batch in rank["batches"] for record in batch["records"]} for rank in ranks]
    assert halves[0] | halves[1] == {record for batch in whole for record in batch["records"]}
    assert not halves[0] & halves[1] and len(halves[0] | halves[1]) == IMAGES
    assert [rank["read"] for rank in ranks] == [IMAGES // 2, IMAGES // 2]
    in_turns = [batch for both in zip(*(rank["batches"] for rank in ranks)) for batch in both]
    assert [batch["bytes"] for batch in in_turns] == [batch["bytes"] for batch in whole]


def test_each_process_asks_a_users_source_for_its_own_half_alone():
    for ranks in zip(*two_ranks("", COUNTING_RANK)):
        halves = [set(rank["ids"]) for rank in ranks]
        assert halves[0] | halves[1] == set(range(100)) and not halves[0] & halves[1]
        for rank in ranks:
            assert len(rank["calls"]) == 50 and rank["calls"] == sorted(rank["ids"])
