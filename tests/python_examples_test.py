"""The scripts of examples/python run. Those before and after a few lines, and one as others write it: at most five lines, and both
run."""

import difflib
import importlib.util
import re
import runpy
import struct
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from own_python import run_python
from PIL import Image

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "python"
NAMES = ["fashion_mnist", "finetune", "own_dataset"]
# Runs the scripts in one process, with a tuner in a hurry.
RUN = """
import functools, runpy, sys
import headrace
headrace.tune = functools.partial(headrace.tune, budget_s=1.0)
scripts = [word for word in sys.argv[1:] if word.endswith(".py")]
options = sys.argv[1 + len(scripts):]
for script in scripts:
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")
"""

OTHERS = Path(__file__).resolve().parent / "others_script.py"
# Each stands before the line it names; the script itself stays as it is.
INTO_OTHERS = [
    ("import torch\n", "import headrace as hr\n"),
    ("    for epoch in range(1, args.epochs + 1):\n",
     "    tuned = hr.tune(model, train_loader, optimizer, lambda model, batch: F.nll_loss(model(batch[0]), batch[1]))\n"),
    ("    for epoch in range(1, args.epochs + 1):\n", "    train_loader = tuned.loader\n"),
]


def run_scripts(scripts: list[str], options: list[str], folder: Path) -> subprocess.CompletedProcess:
    """Threads that spin beside other tests take each other's core: here they sleep."""
    return run_python("-c", RUN, *scripts, *options, environment={"OMP_WAIT_POLICY": "passive"}, timeout=240, cwd=folder)


def write_fashion(root: Path) -> list[str]:
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    random = numpy.random.default_rng(1)
    for name, count in (("train", 192), ("t10k", 64)):
        images = random.integers(0, 256, (count, 28, 28), dtype=numpy.uint8)
        labels = random.integers(0, 10, count, dtype=numpy.uint8)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels.tobytes())
    return ["--data", str(root), "--batch-size", "16", "--epochs", "1"]


def write_photos(root: Path) -> list[str]:
    random = numpy.random.default_rng(1)
    for split, count in (("train", 8), ("val", 4)):
        for kind in ("cat", "dog"):
            folder = root / split / kind
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=numpy.uint8)).save(folder / f"{i}.jpg")
    return ["--data", str(root), "--batch-size", "4", "--size", "32", "--epochs", "1"]


def options_of(name: str, folder: Path) -> list[str]:
    if name == "fashion_mnist":
        return write_fashion(folder)
    if name == "finetune":
        return write_photos(folder)
    return ["--samples", "128", "--batch-size", "16", "--epochs", "1"]


IDX = ["--data", "FashionMNIST/raw"]
# By name, with few data: its options, and what it prints.
SCRIPTS = {
    "load_images": (["--data", "photos", "--batch-size", "4", "--size", "32"], r"goes on with the 12 images that were left"),
    "own_loop": ([*IDX, "--epochs", "1", "--batch-size", "32"], r"epoch 1: loss \d.*accuracy 0\.\d+\n(.*\n)*training loop"),
    "train": ([*IDX, "--epochs", "2", "--batch-size", "64"], r"epoch 2: .*\n<headrace\.Trainer after 6 updates> .*'accuracy'"),
    "watch_a_loop": (["--samples", "96"], r"a loop behind a slow loader\nstorage runs out first"),
    "vit": ([*IDX, "--steps", "6", "--batch-size", "32", "--depth", "1"], r"training loop"),
    "own_data": (["--samples", "64", "--epochs", "1", "--worker-type", "thread"], r"boxes RaggedTensor\(32 samples"),
    "lightning_module": ([*IDX, "--epochs", "2", "--batch-size", "16"], r"\d+ updates\s+seen"),
    "hugging_face": (["--steps", "20"], r"step 20: loss \d"),
}
ELSEWHERE = {"fine_tuning", "fine_tuning_plain"}  # fine_tuning_test runs them.
PACKAGES = {"lightning_module": "lightning", "hugging_face": "transformers"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.engine if name == "train" else ()) for name in SCRIPTS
                                  if importlib.util.find_spec(PACKAGES.get(name, "torch"))])
def test_an_example_runs_and_prints_what_it_found(name, tmp_path, monkeypatch, capsys):
    from headrace import _autotune

    options, printed = SCRIPTS[name]
    write_fashion(tmp_path)
    write_photos(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    finally:
        for handle in list(_autotune._open_handles):
            handle.undo()
    assert re.search(printed, capsys.readouterr().out)


def test_every_example_is_run():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert scripts == SCRIPTS.keys() | ELSEWHERE | {f"{name}_{when}" for name in NAMES for when in ("before", "after")}


@pytest.mark.parametrize("name", NAMES)
def test_tuning_a_script_changes_at_most_five_lines(name):
    before = (EXAMPLES / f"{name}_before.py").read_text().splitlines()
    after = (EXAMPLES / f"{name}_after.py").read_text().splitlines()
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-" and line[2:].strip()]
    assert 1 <= len(changed) <= 5, changed
    assert all(line.startswith("+ ") for line in changed), changed


@pytest.mark.parametrize("name", NAMES)
def test_script_runs_before_and_after_with_the_same_output_lines(name, tmp_path):
    scripts = [str(EXAMPLES / f"{name}_{which}.py") for which in ("before", "after")]
    done = run_scripts(scripts, options_of(name, tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^epoch 1: [0-9.]+ s, loss [0-9.]+, accuracy [0-9.]+$", done.stdout, re.MULTILINE)) == 2
    assert "Changes, in the order tried" in done.stdout


def test_a_script_as_others_write_it_is_tuned_by_three_lines(tmp_path):
    import torch

    before = OTHERS.read_text()
    assert "headrace" not in before[before.index("import argparse"):]
    after = before
    for place, line in INTO_OTHERS:
        assert after.count(place) == 1
        after = after.replace(place, line + place)
    changed = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] in "+-"]
    assert len(changed) == 3 and all(line.startswith("+ ") for line in changed), changed

    options = [*write_fashion(tmp_path), "--epochs", "2"]
    states, lines = [], []
    for name, text in (("before", before), ("after", after)):
        script, saved = tmp_path / f"{name}.py", tmp_path / f"{name}.pt"
        script.write_text(text)
        done = run_scripts([str(script)], [*options, "--save", str(saved)], tmp_path)
        assert done.returncode == 0, done.stderr
        lines.append([re.sub(r"[0-9]+\.[0-9]+|Accuracy: [0-9]+", "#", line) for line in done.stdout.splitlines()
                      if line.startswith(("Train Epoch", "Test set"))])
        states.append(torch.load(saved))
    assert lines[0] == lines[1] and len(lines[0]) == 2 * 3 + 2  # 12 batches an epoch, each fourth told.
    assert [(name, value.shape) for name, value in states[0].items()] == [(name, value.shape) for name, value in states[1].items()]
    assert all(torch.isfinite(value).all() for value in states[1].values())
