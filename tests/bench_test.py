"""The scripts in bench/ that judge something tell good from bad."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Stands for `headrace train`: holds 60 MB, says when an epoch ends, keeps some more of each when told to, and ends with
# 143 after SIGTERM.
TRAINER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
held = [bytes(60_000_000)]
for epoch in range(1, 1000):
    time.sleep(0.3)
    print(f"epoch {epoch}/1000  loss 0.1", file=sys.stderr, flush=True)
    held.append(bytearray(b"x" * int(sys.argv[1])))
"""


def script(name: str) -> ModuleType:
    """bench/<name>/run.py; all of them are called run."""
    module_name = f"bench_{name}"
    specification = importlib.util.spec_from_file_location(module_name, ROOT / "bench" / name / "run.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module  # Dataclasses look their module up.
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kept, grows", [(0, False), (5_000_000, True)])
def test_memory_that_grows_from_epoch_to_epoch_is_seen(kept, grows, capsys):
    memory = script("memory")
    samples = memory.sample_training([sys.executable, "-c", TRAINER, str(kept)], seconds=3, every_s=0.05)
    growth = memory.report(samples)
    assert (growth > 0.02) == grows
    assert "peak of epoch 1: " in capsys.readouterr().out


def test_memory_of_a_run_that_fails_or_is_too_short_is_not_judged():
    memory = script("memory")
    with pytest.raises(SystemExit, match="ended with status 3"):
        memory.sample_training([sys.executable, "-c", "raise SystemExit(3)"], seconds=5, every_s=0.05)
    with pytest.raises(SystemExit, match="wanted the first and two more"):
        memory.report([memory.Sample(1, 100, 100), memory.Sample(2, 100, 100)])


def test_shares_of_kept_changes_add_up(capsys):
    gain = {"low": 0.9, "high": 1.1}
    trials = [{"name": name, "verdict": verdict, "removed_again": removed, "gain": {"median": median, **gain}, "changes": {}}
              for name, verdict, removed, median in
              [("doubled", "kept", False, 1.0), ("quadrupled", "kept", False, 3.0), ("undone", "kept", True, 1.0),
               ("refused", "refused", False, -0.5)]]
    script("train_photos").show_shares({"trials": trials, "written": "today", "speedup": {"median": 8, "low": 7, "high": 9}})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 and "8.00x [7.00, 9.00]" in shown[0]
    assert "doubled" in shown[1] and "33% of the gain" in shown[1]
    assert "quadrupled" in shown[2] and "67% of the gain" in shown[2]
