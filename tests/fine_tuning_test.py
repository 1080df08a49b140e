"""Fine-tuning in three forms, by the commands of docs/guides/fine_tuning.md: the recipe, headrace.Trainer and plain PyTorch learn the same
from the same photographs, and a run that is killed ends with the bits of one that is not."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from document_blocks import ROOT, blocks_of
from PIL import Image
from safetensors.numpy import save_file
from tiny_run import HEADRACE, headrace, newest_checkpoint, tensors_of
from torchvision import models

pytestmark = pytest.mark.engine

GUIDE, SCRIPTS = ROOT / "docs" / "guides" / "fine_tuning.md", ROOT / "examples" / "python"
RECIPE = "examples/photos_fine_tuning.toml"  # From the folder of a run, which links to the examples.
BLOCKS = {language: [text for spoken, text, _ in blocks_of(GUIDE) if spoken == language] for language in ("python", "sh")}
COMMANDS = [line for text in BLOCKS["sh"] for line in text.splitlines() if not line.startswith("make ")]
CLASSES = 12  # As in the recipe; of each 7 photographs to train on and 2 of val, so 10 batches of 8 an epoch.
BATCHES, EPOCHS, SEED = 10, 2, 1
TIMEOUT_S = 240  # Of every child.
# What makes the runs small, as flags of the recipe and of the scripts.
SMALL = {"data.batch_size": 8, "data.transform.size": 32, "train.epochs": EPOCHS, "lr_scheduler.warmup_steps": 3,
         "train.ema_decay": 0.6, "compute.intra_op_threads": 1}  # That decay is reached after 13 of 20 updates.
SMALL_SCRIPT = ["--batch-size", "8", "--size", "32", "--epochs", str(EPOCHS), "--warmup-steps", "3", "--ema-decay", "0.6"]

# Runs a script whose fit() kills the process after an update.
KILLED_TRAINER = """
import os, runpy, signal, sys, headrace

fit, update = headrace.Trainer.fit, int(sys.argv[1])

def killed(trainer, *arguments, **keywords):
    def on_step(loss):
        if trainer.progress["optimizer_steps"] == update:
            os.kill(os.getpid(), signal.SIGKILL)
    return fit(trainer, *arguments, on_step=on_step, **keywords)

headrace.Trainer.fit = killed
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Runs a script that clips by the norm that headrace computes: torch's, of 2 million float32 numbers, is a few 1e-5 off on one thread.
EXACT_NORM = """
import os, runpy, sys, torch

def clip(parameters, norm_max):
    gradients = [parameter.grad for parameter in parameters]
    norm = torch.stack([gradient.double().norm() for gradient in gradients]).norm().item()
    for gradient in gradients if norm > norm_max else ():
        gradient.mul_(norm_max / (norm + 1e-6))

torch.nn.utils.clip_grad_norm_ = clip
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Runs a script that is killed when its first checkpoint has its name.
KILLED_PLAIN = """
import os, runpy, signal, sys

replace = os.replace

def killed(source, target):
    replace(source, target)
    if str(target).endswith("checkpoint.pt"):
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = killed
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclasses.dataclass
class Run:
    """What a run of the recipe or of the Trainer has left."""

    output: str
    checkpoint: dict  # Tensors of the newest,
    best: dict        # of the best, but for the optimizer's,
    result: dict      # and of model.safetensors.


def write_photos(folder: Path) -> None:
    """Noise around a colour of the class, so that there is something to learn."""
    random = numpy.random.default_rng(1)
    colours = random.integers(0, 256, (CLASSES, 3))
    for split, count in (("train", 7), ("val", 2)):
        for label, colour in enumerate(colours):
            (folder / split / f"class{label:02}").mkdir(parents=True)
            for i in range(count):
                height, width = random.integers(32, 65, 2)
                pixels = numpy.clip(colour + random.normal(0, 60, (height, width, 3)), 0, 255).astype(numpy.uint8)
                Image.fromarray(pixels).save(folder / split / f"class{label:02}" / f"{i}.jpg")


def environment(folder: Path) -> dict[str, str]:
    """Of every run: the commands of `folder`, this Python's paths, one compute thread, and output that a kill does not lose."""
    return {**os.environ, "PATH": f"{folder / 'commands'}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path),
            "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder of a reader of the guide, who has photographs and pretrained weights; the commands there make small runs."""
    folder = tmp_path_factory.mktemp("fine_tuning")
    write_photos(folder / "photos")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "commands").mkdir()
    flags = " ".join(f"--{key} {value}" for key, value in SMALL.items())
    for name, text in (("headrace", f'verb=$1 recipe=$2; shift 2; exec "{HEADRACE}" "$verb" "$recipe" {flags} "$@"'),
                       ("python", f'script=$1; shift; exec "{sys.executable}" "$script" {shlex.join(SMALL_SCRIPT)} "$@"')):
        (folder / "commands" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "commands" / name).chmod(0o755)
    resnet18 = models.resnet18
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(models, "resnet18", lambda weights: resnet18())  # Of ImageNet's classes; nothing is downloaded.
        torch.manual_seed(3)
        exec(BLOCKS["python"][0], {})
    yield folder
    shutil.rmtree(folder)


def run_command(job: Path, command: str) -> str:
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=job, env=environment(job), capture_output=True, text=True,
                          timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def run_script(job: Path, name: str, out: Path, *options: str, by: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """A script with small options, of which later ones win; `by` is code that runs it, and the code's own arguments."""
    runner = ["-c", *by] if by else []
    words = [*runner, SCRIPTS / f"{name}.py", *SMALL_SCRIPT, "--weights", "resnet18.safetensors", "--out", out, *options]
    return subprocess.run([sys.executable, *map(str, words)], cwd=job, env=environment(job), capture_output=True, text=True,
                          timeout=TIMEOUT_S)


def left_by(folder: Path, output: str) -> Run:
    best = {name: tensor for name, tensor in tensors_of(folder / "checkpoint-best.safetensors").items()
            if name.startswith(("model/", "ema/"))}
    return Run(output, tensors_of(newest_checkpoint(folder)), best, tensors_of(folder / "model.safetensors"))


@pytest.fixture(scope="module")
def recipe_run(job):
    """Its checkpoints stay, for the guide's later commands."""
    return left_by(job / "runs" / "fine_tuning_recipe", run_command(job, COMMANDS[0]))


@pytest.fixture(scope="module")
def trainer_run(job):
    run = left_by(job / "runs" / "fine_tuning", run_command(job, COMMANDS[1]))
    for checkpoint in (job / "runs" / "fine_tuning").glob("checkpoint-*"):
        checkpoint.unlink()  # They have 180 MB each.
    return run


@pytest.fixture(scope="module")
def plain_run(job):
    output = run_command(job, COMMANDS[2])
    (job / "runs" / "fine_tuning_plain" / "checkpoint.pt").unlink()
    return output


def epochs_of(output: str) -> list[dict[str, float]]:
    """The figures of each line "epoch 1: loss 2.5, lr 0.001, ..."."""
    lines = re.findall(r"^epoch \d+: (.*)$", output, re.MULTILINE)
    return [{name: float(value) for name, value in (part.rsplit(" ", 1) for part in line.split(", "))} for line in lines]


def recipe_epochs(job: Path) -> list[dict]:
    return json.loads((job / "runs" / "fine_tuning_recipe" / "result.json").read_text())["training"]["epochs"]


def initial_values(job: Path) -> dict[str, numpy.ndarray]:
    """The parameters that every form begins with: those of the file, and a head drawn from the seed."""
    torch.manual_seed(SEED)
    drawn = {name: parameter.detach().numpy() for name, parameter in models.resnet18(num_classes=CLASSES).named_parameters()}
    return {name: value for name, value in tensors_of(job / "resnet18.safetensors").items() if name in drawn and not is_head(name)} | {
        name: value for name, value in drawn.items() if is_head(name)}


def is_head(name: str) -> bool:
    return name.startswith("fc.")


def assert_equal_bits(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].tobytes() == tensor.tobytes(), name


def test_the_guide_has_the_commands_that_are_run_here():
    assert [command.split()[:3] for command in COMMANDS] == [
        ["headrace", "train", RECIPE], ["python", "examples/python/fine_tuning.py", "--weights"],
        ["python", "examples/python/fine_tuning_plain.py", "--weights"], ["headrace", "train", RECIPE], ["headrace", "eval", RECIPE]]
    assert len(BLOCKS["python"]) == 2


def assert_same_losses_and_rates(ours: list[dict[str, float]], theirs: list[dict[str, float]], relative: float):
    assert len(ours) == len(theirs) == EPOCHS
    for our, their in zip(ours, theirs):
        assert our.keys() == their.keys() == {"loss", "lr", "val loss", "val top1", "val top5"}
        assert our["loss"] == pytest.approx(their["loss"], rel=relative)
        assert our["val loss"] == pytest.approx(their["val loss"], rel=relative)
        assert our["lr"] == pytest.approx(their["lr"], rel=1e-5)
    assert 0 < ours[0]["lr"] < 1e-3 and ours[1]["lr"] == 0


def best_loss_of(output: str) -> float:
    return float(re.search(r"^the best: val loss ([\d.]+)", output, re.MULTILINE)[1])


def test_the_trainer_and_plain_pytorch_have_the_same_losses_and_rates(trainer_run, plain_run):
    ours = epochs_of(trainer_run.output)
    assert_same_losses_and_rates(ours, epochs_of(plain_run), 1e-3)
    assert best_loss_of(trainer_run.output) in [epoch["val loss"] for epoch in ours]


# Both compute by torch's operators, and update by the same kernel. All that differs above is the norm that clips.
def test_with_one_norm_the_trainer_and_plain_pytorch_agree_to_the_last_digits(job, trainer_run):
    done = run_script(job, "fine_tuning_plain", job / "exact", by=(EXACT_NORM,))
    assert done.returncode == 0, done.stderr
    (job / "exact" / "checkpoint.pt").unlink()
    ours, theirs = epochs_of(trainer_run.output), epochs_of(done.stdout)
    assert_same_losses_and_rates(ours, theirs, 1e-5)
    for our, their in zip(ours, theirs):
        assert (our["val top1"], our["val top5"]) == pytest.approx((their["val top1"], their["val top5"]), abs=1e-6)
    assert best_loss_of(trainer_run.output) == pytest.approx(best_loss_of(done.stdout), rel=1e-5)


def test_the_recipe_learns_what_the_trainer_learns(job, recipe_run, trainer_run):
    ours, theirs = recipe_epochs(job), epochs_of(trainer_run.output)
    assert len(ours) == EPOCHS
    for our, their in zip(ours, theirs):
        assert our["loss"] == pytest.approx(their["loss"], rel=1e-3)
        assert our["val_loss"] == pytest.approx(their["val loss"], rel=1e-3)
        assert our["val_top5_accuracy"] >= our["val_accuracy"]
    begin = initial_values(job)
    for of_head in (True, False):
        moved = [numpy.sqrt(sum(numpy.square(run.checkpoint[f"model/{name}"] - value, dtype=numpy.float64).sum()
                                for name, value in begin.items() if is_head(name) == of_head)) for run in (recipe_run, trainer_run)]
        assert moved[0] > 0 and moved[0] == pytest.approx(moved[1], rel=1e-2)


def test_the_recipes_first_update_has_the_rate_of_each_group_and_spares_biases_and_norms_the_decay(job):
    """AdamW's first update moves by the learning rate whatever the gradient, where this is not near 0; the decay comes first."""
    out = job / "runs" / "one_update"
    flags = {**SMALL, "data.batch_size": BATCHES * 8, "train.epochs": 1, "lr_scheduler.warmup_steps": 0}
    done = headrace("train", RECIPE, *(word for key, value in flags.items() for word in (f"--{key}", value)), "--out", out, cwd=job,
                    env=environment(job), timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    after = tensors_of(newest_checkpoint(out))
    shutil.rmtree(out)
    for name, before in initial_values(job).items():
        rate = 1e-3 if is_head(name) else 1e-4
        decayed = before.astype(numpy.float64) * (1 - rate * (0.05 if before.ndim > 1 else 0.0))
        assert numpy.abs(after[f"model/{name}"] - decayed).max() == pytest.approx(rate, rel=5e-3), name


@pytest.mark.parametrize("form", ["recipe_run", "trainer_run"])
def test_the_result_is_the_averages_of_the_best_epoch_under_torchvisions_names(form, job, request, monkeypatch):
    run = request.getfixturevalue(form)
    averages, raw = ({name.removeprefix(kind): tensor for name, tensor in run.best.items() if name.startswith(kind)}
                     for kind in ("ema/", "model/"))
    assert_equal_bits(run.result, averages)
    assert raw.keys() == averages.keys() and any((raw[name] != averages[name]).any() for name in raw)
    if form == "trainer_run":
        monkeypatch.chdir(job)
        names = {}
        exec(BLOCKS["python"][1], names)
        assert_equal_bits({name: tensor.numpy() for name, tensor in names["model"].state_dict().items()}, run.result)
    else:
        assert run.result.keys() == models.resnet18(num_classes=CLASSES).state_dict().keys()


def test_a_run_of_the_trainer_that_is_killed_twice_ends_with_the_bits_of_the_undisturbed_one(job, trainer_run):
    out = job / "runs" / "killed"
    killed = run_script(job, "fine_tuning", out, by=(KILLED_TRAINER, str(BATCHES + 3)))  # In the second epoch.
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(epochs_of(killed.stdout)) == 1
    # With a checkpoint a step, each of which waits for the one before, some of the second epoch are whole.
    again = run_script(job, "fine_tuning", out, "--checkpoint-every-s", "1e-6", by=(KILLED_TRAINER, str(BATCHES + 4)))
    assert again.returncode == -signal.SIGKILL, again.stderr
    assert f"goes on after {BATCHES} updates" in again.stdout
    assert epochs_of(again.stdout) == epochs_of(killed.stdout)  # Its checkpoint is older than its evaluation.
    last = run_script(job, "fine_tuning", out)
    assert last.returncode == 0, last.stderr
    assert BATCHES < int(re.search(r"^goes on after (\d+) updates$", last.stdout, re.MULTILINE)[1]) <= BATCHES + 4
    assert epochs_of(killed.stdout) + epochs_of(last.stdout) == epochs_of(trainer_run.output)
    run = left_by(out, last.stdout)
    shutil.rmtree(out)
    assert_equal_bits(run.checkpoint, trainer_run.checkpoint)
    assert_equal_bits(run.best, trainer_run.best)
    assert_equal_bits(run.result, trainer_run.result)


def test_plain_pytorch_goes_on_after_a_kill_with_the_same_figures(job, plain_run):
    out = job / "runs" / "plain_killed"
    killed = run_script(job, "fine_tuning_plain", out, by=(KILLED_PLAIN,))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    last = run_script(job, "fine_tuning_plain", out)
    assert last.returncode == 0, last.stderr
    assert f"goes on after {BATCHES} updates" in last.stdout
    assert epochs_of(killed.stdout) + epochs_of(last.stdout) == epochs_of(plain_run)
    result = tensors_of(out / "model.safetensors")
    shutil.rmtree(out)
    assert_equal_bits(result, tensors_of(job / "runs" / "fine_tuning_plain" / "model.safetensors"))


def test_both_scripts_stop_after_an_epoch_that_is_no_better(job):
    """At a learning rate of 0 the running statistics alone move."""
    accuracies = []
    for name in ("fine_tuning", "fine_tuning_plain"):
        out = job / "runs" / "early"
        done = run_script(job, name, out, "--lr", "0", "--patience", "1", "--epochs", "8")
        assert done.returncode == 0, done.stderr
        shutil.rmtree(out)
        top1 = [epoch["val top1"] for epoch in epochs_of(done.stdout)]
        assert 1 < len(top1) < 8 and f"stopped early, after {len(top1)} of 8 epochs" in done.stdout
        assert [i for i in range(1, len(top1)) if top1[i] <= top1[i - 1]] == [len(top1) - 1]
        accuracies.append(top1)
    assert accuracies[0] == accuracies[1]


def test_weights_of_another_network_are_refused(job):
    tensors = tensors_of(job / "resnet18.safetensors")
    tensors["layer1.0.conv9.weight"] = tensors.pop("layer1.0.conv1.weight")
    save_file(tensors, job / "other.safetensors")
    done = run_script(job, "fine_tuning", job / "runs" / "other", "--weights", "other.safetensors")
    (job / "other.safetensors").unlink()
    assert done.returncode == 1 and done.stderr.endswith("other.safetensors: wanted torchvision's resnet18, found it without "
                                                         "['layer1.0.conv1.weight'] and with ['layer1.0.conv9.weight']\n")


def test_a_recipe_that_has_ended_trains_nothing_more_and_its_result_is_that_of_the_best_epoch(job, recipe_run):
    before = recipe_epochs(job)
    assert "nothing is left to train" in run_command(job, COMMANDS[3])
    assert recipe_epochs(job) == before
    best = max(before, key=lambda epoch: epoch["val_accuracy"])  # Of equal ones the first.
    told = run_command(job, COMMANDS[4])
    assert f"val accuracy {best['val_accuracy']:.4f}" in told
    assert float(re.search(r"loss ([\d.]+)", told)[1]) == pytest.approx(best["val_loss"], abs=2e-4)
