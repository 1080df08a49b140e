"""The mean of the last epochs' weights in `headrace train` (train.swa_start): torch's own, the run's result, and the same after a kill."""

import os
import pathlib
import signal
import sys

import numpy
import pytest
import torch

import headrace as hr
from tiny_run import ROOT, assert_one_line_error, assert_same_tensors, evaluated, headrace, recipe_of, tensors_of, trained

sys.path.insert(0, str(ROOT / "bench" / "train_fashion"))
from small_cnn import SmallCnn  # noqa: E402

BATCHES = 10  # An epoch's.
MEAN = ("--model.name", "small_cnn", "--train.swa_start", 2, "--train.keep_checkpoints", 100)


@pytest.fixture
def job(tmp_path):
    return recipe_of(tmp_path, epochs=4, rate=1e-2, train=16 * BATCHES, val=48, t10k=64)


def trained_weights(folder: pathlib.Path, epoch: int) -> dict[str, torch.Tensor]:
    tensors = tensors_of(folder / f"checkpoint-{epoch * BATCHES:09}.safetensors")
    return {name.removeprefix("model/"): torch.from_numpy(tensor) for name, tensor in tensors.items() if name.startswith("model/")}


def test_the_mean_and_its_batch_norms_are_those_of_torch(job, tmp_path):
    out = tmp_path / "run"
    document, log = trained(job, out, *MEAN)
    model = SmallCnn(1, 8, 8)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for epoch in (2, 3, 4):
        model.load_state_dict(trained_weights(out, epoch))
        averaged.update_parameters(model)
    loader = hr.Loader(f"idx:{tmp_path}/data", batch_size=16, seed=1, num_workers=1)
    loader.start_at(4, 0)
    torch.optim.swa_utils.update_bn((batch["image"] for batch in loader), averaged)
    found = tensors_of(out / "model.safetensors")
    for name, wanted in averaged.module.state_dict().items():
        tolerance = 1e-4 if "running" in name else 1e-6
        assert numpy.allclose(found[name], wanted.numpy(), rtol=tolerance, atol=tolerance), name
    assert found["bn1.num_batches_tracked"] == BATCHES

    result = document["training"]["result"]
    assert result["swa_epochs"] == 3 and result["epoch"] == 4 and result["chosen_by"] is None
    assert "The mean of the weights after epochs 2 to 4 is the result" in document["choice"] and document["choice"] in log
    assert evaluated(job, out / "model.safetensors", *MEAN)["test_accuracy"] == document["test_accuracy"]
    assert evaluated(job, out / "model.safetensors", *MEAN, "--eval.split", "val")["val_accuracy"] == document["val_accuracy"]


def test_the_mean_changes_nothing_of_what_is_trained(job, tmp_path):
    trained(job, tmp_path / "plain", "--model.name", "small_cnn", "--train.keep_checkpoints", 100)
    trained(job, tmp_path / "mean", *MEAN)
    for epoch in range(1, 5):
        plain, mean = (trained_weights(tmp_path / name, epoch) for name in ("plain", "mean"))
        assert_same_tensors({name: tensor.numpy() for name, tensor in plain.items()}, {name: tensor.numpy() for name, tensor in mean.items()})


# The first writes are recipe.toml, environment.json and eval_transform.toml; then an epoch's checkpoint, and that of the best.
@pytest.mark.parametrize("write", [5, 7, 8, 9])
def test_a_run_that_was_killed_has_the_bits_of_one_that_was_not(job, tmp_path, write):
    whole, out = tmp_path / "whole", tmp_path / "killed"
    wanted, _ = trained(job, whole, *MEAN)
    killed = headrace("train", job, "--out", out, *MEAN, env=dict(os.environ, HEADRACE_FAULT=f"write.begin:{write}"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    found, _ = trained(job, out, *MEAN, "--resume")
    assert_same_tensors(tensors_of(out / "model.safetensors"), tensors_of(whole / "model.safetensors"))
    last = f"checkpoint-{4 * BATCHES:09}.safetensors"
    assert_same_tensors(tensors_of(out / last), tensors_of(whole / last))
    for key in ("swa_epochs", "val_loss", "val_accuracy", "val_by_class", "test_accuracy", "test_by_class"):
        assert found["training"]["result"][key] == wanted["training"]["result"][key], key

    again, log = trained(job, out, *MEAN, "--resume")
    assert "nothing is left to train" in log and again["training"]["checkpoints"] == 0
    assert_same_tensors(tensors_of(out / "model.safetensors"), tensors_of(whole / "model.safetensors"))


def test_without_the_mean_a_checkpoint_that_has_one_goes_on(job, tmp_path):
    out = tmp_path / "run"
    trained(job, out, *MEAN)
    document, log = trained(job, out, "--model.name", "small_cnn", "--train.epochs", 5, "--resume")
    assert "the mean of the weights since epoch 2, which is given up: train.swa_start is 0" in log
    assert "swa_epochs" not in document["training"]["result"] and document["training"]["result"]["chosen_by"] == "val_accuracy"


@pytest.mark.parametrize("flags, words", [(("--train.swa_start", 5), "train.swa_start is 5 and train.epochs is 4"),
                                          (("--train.swa_start", 2, "--train.ema_decay", 0.9), "wanted one of them at 0"),
                                          (("--train.swa_lr", 0.1), "train.swa_lr has no effect with train.swa_start = 0")])
def test_a_mean_that_there_cannot_be_is_refused_before_the_first_step(job, tmp_path, flags, words):
    assert_one_line_error(headrace("train", job, "--out", tmp_path / "run", *flags), 2, words)
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_a_torchscript_module_with_batch_norms_is_refused(job, tmp_path):
    torch.jit.script(SmallCnn(1, 8, 8)).save(tmp_path / "cnn.pt")
    result = headrace("train", job, "--out", tmp_path / "run", "--model.name", f"torchscript:{tmp_path}/cnn.pt", "--train.swa_start", 2)
    assert_one_line_error(result, 1, "running statistics of a TorchScript module")
