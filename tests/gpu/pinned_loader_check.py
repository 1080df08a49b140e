"""hr.Loader(pin_memory=True) where no Trainer was made, as beside a torch that the engine was not built for: its batches lie in page-locked
memory, and copies that a loop does not wait for have their bytes. Needs a CUDA device, so that no other run of pytest collects it: make
check ON=gpu names the folder and the form of the name. Each check in a process of its own: memory is locked for a whole process."""

import pytest
from own_python import run_python
from tiny_run import write_idx

BATCH, SIDE, BATCHES = 16, 64, 20

BEFORE = f"""
import sys
sys.modules["headrace._engine"] = None  # It cannot be had.
import headrace as hr
import torch
LONG = 20_000_000  # Cycles of a kernel: some 10 ms, in which a batch is loaded many times.

def loader_of(num_workers=2, **options):
    return hr.Loader(f"idx:{{sys.argv[1]}}", batch_size={BATCH}, num_workers=num_workers, prefetch_batches=2, seed=3, **options)

plain = loader_of()
expected = [(images.clone(), labels.clone()) for images, labels in plain]
assert len(expected) == {BATCHES} and not next(iter(plain))[0].is_pinned()
"""


@pytest.fixture
def run(tmp_path):
    write_idx(tmp_path, "train", BATCH * BATCHES, side=SIDE)
    write_idx(tmp_path, "t10k", BATCH, side=SIDE)

    def checked(code: str) -> None:
        done = run_python("-c", BEFORE + code, tmp_path, timeout=120)
        assert done.returncode == 0 and "CUDA error" not in done.stderr, done.stderr

    return checked


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("stream", ["torch.cuda.default_stream()", "torch.cuda.Stream()"], ids=["default stream", "own stream"])
def test_copies_that_are_not_waited_for_have_the_bytes_of_the_data(run, stream, num_workers):
    run(f"""
loader = loader_of({num_workers}, pin_memory=True)
assert loader.pinning == (True, "") and loader.not_applied == {{}}
copies = []
with torch.cuda.stream({stream}):
    for images, labels in loader:
        assert images.is_pinned() and labels.is_pinned()
        torch.cuda._sleep(LONG)
        copies.append((images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)))
        del images, labels
torch.cuda.synchronize()
wrong = [place for place, (found, wanted) in enumerate(zip(copies, expected, strict=True))
         if not (torch.equal(found[0].cpu(), wanted[0]) and torch.equal(found[1].cpu(), wanted[1]))]
assert not wrong, wrong
assert loader.statistics()["retired_batches"] == 0
""")


def test_a_loader_at_work_does_not_end_the_capture_of_another_thread(run):
    run("""
loader, other = loader_of(pin_memory=True), torch.cuda.Stream()
copies = [torch.zeros_like(images, device="cuda") for images, _ in expected]
source, target = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
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
assert all(torch.equal(copy.cpu(), images) for copy, (images, _) in zip(copies, expected, strict=True))
""")


def test_a_process_ends_well_while_a_batch_is_being_copied(run):
    run("""
loader = loader_of(pin_memory=True)
batches = iter(loader)
images, labels = next(batches)
for _ in range(10):
    torch.cuda._sleep(LONG)
copy = images.to("cuda", non_blocking=True)
""")
