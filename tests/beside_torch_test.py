"""What python_package_test does with headrace alone, beside torch and the engine, where there are handlers at fork, OpenMP's threads and
another allocator below LibTorch: fork before and after the import, imports in threads, LD_PRELOAD."""

import subprocess

import pytest
from python_package_test import ALLOCATOR, loads, printed  # noqa: F401 - loads is a fixture.

pytestmark = pytest.mark.engine

# Loads torch and the engine, where they are not there yet, and trains a step.
TRAINS = """
import torch
import headrace
layer = torch.nn.Linear(4, 2)
trainer = headrace.Trainer(layer, torch.optim.AdamW(layer.parameters()), lambda model, batch: model(batch[0]).sum())
before = layer.weight.detach().clone()
assert torch.isfinite(trainer.step((torch.ones(8, 4),))) and not torch.equal(layer.weight, before)
"""


@pytest.mark.parametrize("before", ["", "import torch, headrace", TRAINS], ids=["before it is imported", "after", "after a step"])
def test_a_forked_process_loads_and_trains(loads, before):  # noqa: F811
    printed(f"""{before}
import os
child = os.fork()
if child == 0:
    try:
        import torch
        torch.set_num_threads(1)  # OpenMP's threads do not go through fork.
        exec({loads + TRAINS!r}, {{}})
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
{loads}{TRAINS}""")


def test_threads_import_it_at_once_and_train(loads):  # noqa: F811
    printed(f"""
import threading
ended, begin = [], threading.Barrier(4)
def run():
    begin.wait()
    exec({loads + TRAINS!r}, {{}})
    ended.append(True)
threads = [threading.Thread(target=run) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(ended) == 4""")


def test_another_allocator_may_be_loaded_before_torch_and_it(tmp_path, loads):  # noqa: F811
    (tmp_path / "own.c").write_text(ALLOCATOR)
    subprocess.run(["gcc", "-O1", "-fno-builtin", "-shared", "-fPIC", "-o", tmp_path / "own.so", tmp_path / "own.c"], check=True)
    printed(loads + TRAINS, LD_PRELOAD=str(tmp_path / "own.so"))
