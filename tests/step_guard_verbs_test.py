"""What headrace train says of numbers that are not finite, where its step guard goes on."""

import numpy
from safetensors.numpy import load_file, save_file
from tiny_run import headrace, write_tiny_job


def spoilt_weights(recipe, folder):
    """Those that a run ends with, but for one number."""
    assert headrace("train", recipe, "--out", folder / "first").returncode == 0
    weights = {name: value.copy() for name, value in load_file(folder / "first/model.safetensors").items()}
    next(value for value in weights.values() if value.ndim == 2).flat[0] = numpy.nan
    save_file(weights, folder / "spoilt.safetensors")
    return folder / "spoilt.safetensors"


def test_a_run_tells_each_fault_that_its_step_guard_bears_and_what_was_done(tmp_path):
    recipe = write_tiny_job(tmp_path, epochs=1)
    begin = ("train", recipe, "--model.weights", spoilt_weights(recipe, tmp_path))
    replaced = headrace(*begin, "--out", tmp_path / "replaced", "--train.step_guard.policy", "replace")
    assert replaced.returncode == 0, replaced.stderr
    told = [line for line in replaced.stderr.splitlines() if "train.step_guard.policy" in line]
    assert len(told) == 1 and "loss is nan in epoch 0, batch 0: " in told[0] and 'train.step_guard.policy = "replace"' in told[0]
    raised = headrace(*begin, "--out", tmp_path / "raised")
    assert raised.returncode != 0 and "loss is nan in epoch 0, batch 0" in raised.stderr
    assert "train.step_guard.policy" not in raised.stderr
