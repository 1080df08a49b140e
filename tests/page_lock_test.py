"""pin_memory=True without a Trainer, by a stand-in for torch's CUDA library (tests/stand_in_cuda.c): which memory is locked, when it is
given out again, and what is told where it is not. Each case in a process of its own, as memory is locked for a whole process."""

import subprocess
from pathlib import Path

import pytest
from own_python import run_python
from tiny_run import write_idx

STAND_IN = Path(__file__).with_name("stand_in_cuda.c")
BATCHES = 8

# torch believes in a device 1, and headrace finds the stand-in where it looks for torch's library.
BEFORE = """
import ctypes, os, re, sys
import headrace as hr
import torch
from headrace import _page_lock
torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 1
_page_lock.library_of = lambda torch: sys.argv[1]
cuda = ctypes.CDLL(sys.argv[1])

def number(name):
    return ctypes.c_long.in_dll(cuda, name)

def told(name):
    return number(name).value

def make(**options):
    return hr.Loader(f"idx:{sys.argv[2]}", batch_size=16, auto_tune=False, **{"num_workers": 2, "prefetch_batches": 2, **options})

def row(loader):
    return next(row for row in loader.applied if row[0] == "pin_memory")[1:]
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    made = tmp_path_factory.mktemp("cuda") / "libtorch_cuda.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", made, STAND_IN], check=True)
    return made


@pytest.fixture
def run(tmp_path, library):
    write_idx(tmp_path, "train", 16 * BATCHES)
    write_idx(tmp_path, "t10k", 16)

    def checked(code: str, library: Path = library) -> None:
        done = run_python("-c", BEFORE + code, library, tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr

    return checked


def test_blocks_are_locked_as_they_are_allocated_and_unlocked_before_they_are_freed(run):
    run("""
plain = make()
assert row(plain) == ("false", "false", "") and told("locked") == 0
loader = make(pin_memory=True)
assert row(loader) == ("true", "true", "") and loader.not_applied == {} and loader.pinning == (True, "")
blocks = told("locked")
assert blocks >= 2 and told("locked_bytes") == loader.statistics()["pool_bytes"]
later = make()
assert row(later) == ("false", "true", "a Trainer on a device, or another Loader, has those of the whole process locked")
assert later.not_applied == {} and told("locked") == 2 * blocks and row(plain) == ("false", "false", "")
del loader, later
assert told("unlocked") == 2 * blocks and told("faults") == 0
""")


def test_tensors_and_arrays_lie_in_the_blocks_where_the_loader_wrote_them(run):
    """What was copied on its way to Python would lie elsewhere."""
    run(f"""
cuda.is_within_locked.argtypes = ctypes.c_size_t, ctypes.c_size_t
loader, seen = make(pin_memory=True), 0
for batch in loader:
    for field in (*batch, batch["valid"]):
        assert cuda.is_within_locked(field.data_ptr(), field.nbytes)
        seen += 1
assert seen == 3 * {BATCHES} and not cuda.is_within_locked(torch.zeros(4).data_ptr(), 16)
""")


def test_a_batch_that_is_dropped_is_filled_anew_only_after_the_device_has_read_it(run):
    run(f"""
number("looks_wanted").value = 3
loader = make(pin_memory=True)
blocks = told("locked")
for _ in range(2):
    for images, labels in loader:
        del images, labels
assert told("recorded") == 2 * {BATCHES} and told("locked") == blocks and told("faults") == 0
del loader
assert told("destroyed") == told("recorded") and told("unlocked") == blocks and told("waited") >= 1
""")


def test_a_batch_that_is_dropped_within_a_capture_is_retired(run):
    run("""
loader = make(pin_memory=True)
batches = iter(loader)
images, labels = next(batches)
number("captures").value = 1
del images, labels
number("captures").value = 0
assert sum(1 for _ in batches) == 7
assert loader.statistics()["retired_batches"] == 1 and told("recorded") == 7 and told("faults") == 0
""")


def test_memory_that_cuda_refuses_to_lock_is_used_as_it_is_and_told(run):
    run(r"""
number("refuses").value = 1
loader = make(pin_memory=True)
asked, applied, reason = row(loader)
assert (asked, applied) == ("true", "false") and re.fullmatch(r"CUDA refused (\d+) of \1 blocks: out of memory", reason), reason
assert loader.not_applied == {"pin_memory": reason}
assert len(list(loader)) == 8 and told("recorded") == told("unlocked") == 0
""")


def test_a_forked_child_calls_nothing_of_cuda(run):
    run("""
loader = make(pin_memory=True, num_workers=0)  # No thread may hold a lock as it forks.
images, labels = next(iter(loader))
before = told("recorded"), told("locked")
child = os.fork()
if child == 0:
    try:
        del images, labels
        own = make(pin_memory=True, num_workers=0)
        assert row(own)[:2] == ("true", "false") and "is not called in a forked process" in own.not_applied["pin_memory"]
        assert len(list(own)) == 8 and (told("recorded"), told("locked")) == before
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")


def test_what_is_missing_is_the_reason_and_nothing_is_locked(run, tmp_path, library):
    less = tmp_path / "less.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-DWITHOUT_STREAM", "-o", less, STAND_IN], check=True)
    run("""
reason = f"{sys.argv[1]} has no aoti_torch_get_current_cuda_stream"
assert make(pin_memory=True).not_applied == {"pin_memory": reason} and told("locked") == 0
""", less)
    run("""
_page_lock.library_of = lambda torch: "/nowhere/libtorch_cuda.so"
assert make(pin_memory=True).not_applied == {"pin_memory": "torch has not loaded /nowhere/libtorch_cuda.so"}

def refuse():
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.\\nUse spawn.")

torch.cuda.current_device = refuse
assert make(pin_memory=True).not_applied == {
    "pin_memory": "CUDA cannot be used here: Cannot re-initialize CUDA in forked subprocess."}
assert told("locked") == 0
""")
