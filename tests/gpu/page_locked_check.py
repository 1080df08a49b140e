"""Batches in page-locked memory that a loop copies with non_blocking=True and drops at once: what arrives on the device. Needs a CUDA
device, so that no other run of pytest collects it: make check ON=gpu names the folder and the form of the name."""

import os
import subprocess
import sys
from typing import Any

import headrace as hr
import pytest
import torch
from tiny_run import write_idx
from torch import nn

BATCH, SIDE, BATCHES = 16, 64, 20
LONG = 20_000_000  # Cycles of a kernel: some 10 ms, in which a batch is loaded many times.


def forward(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch[0].flatten(1)).mean()


@pytest.fixture(autouse=True)
def trainer() -> Any:
    """On the device: pools that are made after it are locked."""
    model = nn.Linear(SIDE * SIDE, 10).cuda()
    return hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=1e-3), forward)


@pytest.fixture
def data(tmp_path) -> str:
    write_idx(tmp_path, "train", BATCH * BATCHES, side=SIDE)
    write_idx(tmp_path, "t10k", BATCH, side=SIDE)
    return f"idx:{tmp_path}"


def loader_of(data: str, num_workers: int = 1) -> Any:
    return hr.Loader(data, batch_size=BATCH, num_workers=num_workers, prefetch_batches=2, seed=3)


def expected_of(data: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images.clone(), labels.clone()) for images, labels in loader_of(data)]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("is_default", [True, False], ids=["default stream", "own stream"])
def test_copies_that_are_not_waited_for_have_the_bytes_of_the_data(data, is_default, num_workers):
    expected = expected_of(data)
    loader, copies = loader_of(data, num_workers), []
    pool_bytes = loader.statistics()["pool_bytes"]
    with torch.cuda.stream(torch.cuda.default_stream() if is_default else torch.cuda.Stream()):
        for images, labels in loader:
            assert images.is_pinned()
            torch.cuda._sleep(LONG)
            copies.append((images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)))
            del images, labels
    torch.cuda.synchronize()
    assert len(copies) == len(expected) == BATCHES
    wrong = [place for place, (found, wanted) in enumerate(zip(copies, expected))
             if not (torch.equal(found[0].cpu(), wanted[0]) and torch.equal(found[1].cpu(), wanted[1]))]
    assert not wrong, f"batches {wrong} of {BATCHES}"
    told = loader.statistics()
    assert told["retired_batches"] == 0 and told["pool_bytes"] == pool_bytes


def test_a_loader_at_work_does_not_end_the_capture_of_another_thread(data):
    expected = expected_of(data)
    source, target = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    copies = [torch.zeros_like(images, device="cuda") for images, _ in expected]
    loader, other = loader_of(data, 2), torch.cuda.Stream()
    batches, graph = iter(loader), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # In the mode "global".
        with torch.cuda.stream(other):  # Which is not captured. The workers look whether it has read a batch.
            for copy in copies:
                images, labels = next(batches)
                torch.cuda._sleep(LONG)
                copy.copy_(images, non_blocking=True)
                del images, labels
        target.copy_(source * 2)
    graph.replay()
    torch.cuda.synchronize()
    assert target.sum().item() == 2000 and loader.statistics()["retired_batches"] == 0
    assert all(torch.equal(copy.cpu(), images) for copy, (images, _) in zip(copies, expected))


def test_a_batch_that_is_dropped_within_a_capture_is_kept_for_the_graph(data):
    loader = loader_of(data)
    batches = iter(loader)
    images, labels = next(batches)
    wanted, target = images.clone(), torch.empty_like(images, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(images, non_blocking=True)
        del images, labels
    assert sum(1 for _ in batches) == BATCHES - 1
    assert loader.statistics()["retired_batches"] == loader.explain()["retired_batches"] == 1
    for _ in loader:  # Every block is filled anew, but that one.
        pass
    del loader, batches
    graph.replay()
    assert torch.equal(target.cpu(), wanted)


def test_batches_that_a_trainer_copies_are_used_again(data, trainer):
    loader = loader_of(data)
    pool_bytes = loader.statistics()["pool_bytes"]  # Of four batches. The Trainer holds four more at most, the loop one.
    for _ in range(3):
        for batch in loader:
            torch.cuda._sleep(LONG)
            trainer.step(batch)
            told = loader.statistics()
            assert told["retired_batches"] == 0 and told["pool_bytes"] <= 3 * pool_bytes


def test_a_forked_child_may_drop_its_batches(data):
    loader = loader_of(data, 0)
    images, labels = next(iter(loader))
    torch.cuda._sleep(LONG)
    copy = images.to("cuda", non_blocking=True)
    child = os.fork()
    if child == 0:
        del images, labels
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(copy.cpu(), images)


AT_THE_END = """
import sys
import headrace as hr, torch
model = torch.nn.Linear(4096, 10).cuda()
trainer = hr.Trainer(model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda model, batch: model(batch[0].flatten(1)).mean())
loader = hr.Loader(sys.argv[1], batch_size=16, num_workers=1, seed=3)
batches = iter(loader)
images, labels = next(batches)
for _ in range(10):
    torch.cuda._sleep(20_000_000)
copy = images.to("cuda", non_blocking=True)
"""


def test_a_process_ends_well_while_a_batch_is_being_copied(data):
    ended = subprocess.run([sys.executable, "-c", AT_THE_END, data], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "CUDA error" not in ended.stderr
