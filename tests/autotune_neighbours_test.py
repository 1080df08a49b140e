"""hr.autotune where others are at work: programs that take the cores, and processes that train together."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from own_python import run_python
from planted_loop import FASTER, Loop, hooks_of, texts

pytestmark = pytest.mark.usefixtures("one_thread")

SPINS = "import time\nend = time.monotonic() + 60\nprint(flush=True)\nwhile time.monotonic() < end: pass"


@pytest.fixture
def busy_cores():
    """As many processes as cores that do nothing but count; none of them descends from the one that is tuned."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)]
    try:
        for one in spinning:
            assert one.stdout is not None and one.stdout.readline()
        yield
    finally:
        for one in spinning:
            one.kill()
        for one in spinning:
            one.communicate()


def test_beside_as_many_busy_processes_as_cores_that_is_said_first_and_the_loop_goes_on(busy_cores):
    script = textwrap.dedent("""
        import json
        import headrace as hr
        import torch
        from torch import nn

        torch.manual_seed(1)
        torch.set_num_threads(1)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        inputs, labels = torch.randn(32, 64), torch.randint(2, (32,))
        told, made = [], 0
        tuning = hr.autotune(model, optimizer, on_progress=lambda kind, text: told.append((kind, text)))
        while made < 50_000 and not any(kind == "began" for kind, _ in told):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            made += 1
        tuning.undo()
        print(json.dumps({"told": told[:2], "made": made, "problem": tuning.problem, "loss": loss.item(),
                          "quietness": tuning.ledger["ledger"]["quietness"], "updates": tuning.ledger["updates"]}))
    """)
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (first, sentence), (second, _) = found["told"]
    quietness = found["quietness"]
    assert (first, second) == ("machine", "began") and sentence.startswith("This machine is not quiet: "), quietness
    assert sentence.endswith(" The division of the cores is not tried.") and quietness["others"] >= 0.1, quietness
    assert found["problem"] is None and 0 < found["updates"] <= found["made"] < 50_000 and found["loss"] < 1


def test_a_loop_that_trains_with_other_processes_is_left_as_it_is(monkeypatch):
    loop = Loop()
    before = hooks_of(loop)
    with monkeypatch.context() as patch:
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_world_size", lambda: 2)
        handle = loop.autotune(FASTER)
    assert handle.problem == "2 processes train together; wanted one, because all would have to switch at the same update"
    assert texts(loop.told, "problem") == [f"{handle.problem}; the loop goes on as written"]
    assert not handle.watching and hooks_of(loop) == before
    loop.run(60)
    assert loop.knobs.applied == [] and handle.kept == [] and handle.trials == []
