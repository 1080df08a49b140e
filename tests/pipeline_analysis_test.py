"""Four faults of an input pipeline, each in a real job, and what the analysis says of them: a cache that is too small (memory), one worker
that is too slow (computation), nothing that is loaded ahead (input and output), and shards of which one takes longer (distribution). Faults
are sleeps, many times as long as the rest of a step, or counts."""

import json
import re
import time

import headrace as hr
import pytest
import torch
from tiny_run import headrace, write_photos
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

BATCH, BATCHES = 4, 16
SLOW_BATCH_S, COMPUTE_S = 0.3, 0.04
pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_cache_that_is_too_small_is_named_with_the_size_that_holds_all(tmp_path):
    write_photos(tmp_path / "data", train=300, val=5)
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'[data]\nsource = "folder:{tmp_path}/data"\nbatch_size = 20\ncache = "decoded"\ncache_mib = 1\n[data.transform]\nsize = 32\n'
        'crop = "random_resized"\nmean = [0.5]\nstd = [0.25]\n[model]\nname = "strided_cnn"\nnum_classes = 2\n[train]\nepochs = 3\n'
        "[compute]\nintra_op_threads = 1\n")
    done = headrace("train", recipe, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    findings = json.loads(headrace("doctor", tmp_path / "run", "--json", "-").stdout)["findings"]
    (found,) = [finding for finding in findings if finding["code"] == "low_hit_rate"]
    assert "it is too small" in found["sentence"]
    asked = int(re.search(r"data\.cache_mib = (\d+)", found["advice"])[1])
    assert 600 * 40 * 44 * 3 <= asked * 2**20 <= 2 * 600 * 40 * 44 * 3


class Slow(Dataset):
    """Whose samples take `read_s` to be read, of the first worker alone where there are several."""

    def __init__(self, read_s):
        self.read_s = read_s

    def __len__(self):
        return BATCH * BATCHES

    def read(self):
        worker = get_worker_info()
        if worker is None or worker.id == 0:
            time.sleep(self.read_s)

    def __getitem__(self, index):
        self.read()
        return torch.full((4,), float(index)), index % 2


class Busy(nn.Linear):
    """A layer whose forward computes for COMPUTE_S, as its thread's CPU time has it."""

    def forward(self, features):
        end = time.thread_time() + COMPUTE_S
        while time.thread_time() < end:
            pass
        return super().forward(features)


def verdict_of(num_workers):
    torch.manual_seed(1)
    model = Busy(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(SLOW_BATCH_S / BATCH), BATCH, num_workers=num_workers)
    with hr.watch(model, optimizer, loader) as seen:
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
    return seen.verdict


def test_a_loop_that_loads_nothing_ahead_is_told_to_let_a_worker_do_it():
    verdict = verdict_of(num_workers=0)
    loss = verdict["losses"][0]
    assert verdict["first"] == "storage", verdict["sentence"]
    assert "as no worker loads ahead (data.num_workers = 0)" in loss["evidence"]
    assert loss["advice"].startswith("Let a worker load the next batches while the loop computes") and loss["keys"][0] == "data.num_workers"


@pytest.mark.forks
def test_one_worker_that_is_too_slow_is_named_by_what_it_spends_its_time_on():
    verdict = verdict_of(num_workers=1)
    loss = verdict["losses"][0]
    assert verdict["first"] == "storage", verdict["sentence"]
    assert "loads ahead" not in loss["evidence"] and "data.num_workers" in loss["keys"]


@pytest.mark.forks
def test_shards_of_which_one_takes_longer_are_an_imbalance():
    """Both workers together load a batch in 75 ms on average; the loop waits for every second one."""
    verdict = verdict_of(num_workers=2)
    assert verdict["first"] == "imbalance", verdict["sentence"]
    assert "some batches take longer than others" in verdict["losses"][0]["evidence"]
    assert "data.prefetch_batches" in verdict["losses"][0]["keys"]
