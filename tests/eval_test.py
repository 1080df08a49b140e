"""`headrace eval` against PyTorch's own evaluation of the same weights on the same data."""

import gzip
import json
import shutil
import zipfile

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_run import assert_one_line_error, headrace, write_idx


class Small(torch.nn.Module):
    """Batch normalisation between convolutions: what freezing folds away."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        )  # fmt: skip
        self.last = torch.nn.Linear(8, 10)

    def forward(self, images):
        return self.last(self.features(images).mean((2, 3)))


def data_of(folder, count, side=8):
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        images = numpy.frombuffer(file.read()[16:], numpy.uint8).reshape(count, 1, side, side)
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read()[8:], numpy.uint8)
    return (torch.from_numpy(images.copy()) / 255 - 0.4) / 0.25, torch.from_numpy(labels.astype(numpy.int64))


@pytest.mark.parametrize("form", [torch.jit.script, lambda module: torch.jit.trace(module, torch.zeros(2, 1, 8, 8))],
                         ids=["scripted", "traced"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_torchscript_module_evaluates_as_in_python(form, precision, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_idx(data, "train", 64)
    write_idx(data, "t10k", 330)
    torch.manual_seed(4)
    module = Small()
    images, labels = data_of(data, 330)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(30):  # Running statistics and weights that are not those of the start.
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(images), labels).backward()
        optimizer.step()
    module.eval()
    form(module).save(str(tmp_path / "module.pt"))
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()
               if not name.endswith("num_batches_tracked")}, tmp_path / "weights.safetensors")
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        f'[data]\nsource = "idx:{data}"\nbatch_size = 32\n[data.transform]\nmean = [0.4]\nstd = [0.25]\n'
        f'[model]\nname = "torchscript:{tmp_path / "module.pt"}"\n[train]\nprecision = "{precision}"\n'
    )
    result = headrace("eval", recipe, "--checkpoint", tmp_path / "weights.safetensors", "--json", "-")
    assert result.returncode == 0, result.stderr
    assert "module.pt: TorchScript runs code from this file" in result.stderr
    document = json.loads(result.stdout)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        logits = module(images)
    loss = torch.nn.functional.cross_entropy(logits.float(), labels).item()
    accuracy = (logits.argmax(1) == labels).double().mean().item()
    assert document["samples"] == 330
    assert document["test_loss"] == pytest.approx(loss, rel=1e-5 if precision == "fp32" else 2e-2)
    assert document["test_accuracy"] == pytest.approx(accuracy, abs=0 if precision == "fp32" else 0.02)


def trained_mlp(folder):
    """The recipe of a run in the folder "run" beside it."""
    data = folder / "data"
    data.mkdir()
    write_idx(data, "train", 64)
    write_idx(data, "t10k", 64)
    recipe = folder / "r.toml"
    recipe.write_text(f'[data]\nsource = "idx:{data}"\nbatch_size = 32\n[model]\nname = "mlp"\n[train]\nepochs = 1\n')
    assert headrace("train", recipe, "--out", folder / "run").returncode == 0
    return recipe


def test_weights_that_are_not_finite_are_an_error_and_no_accuracy(tmp_path):
    recipe = trained_mlp(tmp_path)
    weights = load_file(tmp_path / "run/model.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in weights.items()}, tmp_path / "nan.safetensors")
    result = headrace("eval", recipe, "--checkpoint", tmp_path / "nan.safetensors")
    assert_one_line_error(result, 1, "nan.safetensors", "test loss is nan")
    assert result.stdout == ""


def test_weights_of_torch_save_and_checkpoints_are_told_by_their_content(tmp_path):
    recipe = trained_mlp(tmp_path)
    result = tmp_path / "run/model.safetensors"
    weights = load_file(result)
    torch.save({"epoch": 1, "state_dict": weights}, tmp_path / "weights.pt")
    torch.save(weights, tmp_path / "weights.tensors")
    shutil.copy(result, tmp_path / "weights.bin")
    shutil.copy(next((tmp_path / "run").glob("checkpoint-0*.safetensors")), tmp_path / "best.ckpt")

    def evaluated(path):
        done = headrace("eval", recipe, "--checkpoint", path, "--json", "-")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        return document["test_loss"], document["test_accuracy"]

    wanted = evaluated(result)
    for name in ("weights.pt", "weights.tensors", "weights.bin", "best.ckpt"):
        assert evaluated(tmp_path / name) == pytest.approx(wanted, rel=1e-6), name

    torch.save(weights, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_one_line_error(headrace("eval", recipe, "--checkpoint", tmp_path / "old.pt"), 1, "old.pt", "format of torch before 1.6")
    with zipfile.ZipFile(tmp_path / "program.pt2", "w") as archive:
        archive.writestr("program/archive_format", "pt2")
    assert_one_line_error(headrace("eval", recipe, "--checkpoint", tmp_path / "program.pt2"), 1, "program.pt2",
                          "a program of torch.export (.pt2)")
