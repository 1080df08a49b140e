"""Three splits: val chooses the best checkpoint, test is read once, at the end, with the weights of the result."""

import json
import os
import pathlib
import shutil
import signal

import numpy
import pytest
from safetensors import safe_open

from tiny_run import (assert_one_line_error, assert_same_tensors, evaluated, headrace, newest_checkpoint, recipe_of, tensors_of,
                      trained, write_photos)

EARLIER = pathlib.Path(__file__).resolve().parent / "earlier"  # What an earlier version wrote.
NOTHING_CHOSEN = "Nothing was chosen: the data has no split val and data.val_fraction is 0"


def best_epoch(epochs):
    return max(epochs, key=lambda epoch: (epoch["val_accuracy"], -epoch["epoch"]))


def test_the_best_is_chosen_by_val_and_test_is_read_once_with_its_weights(tmp_path):
    # Far too fast: nothing is learned after the first epochs, so that the best is not the last.
    recipe = recipe_of(tmp_path, epochs=6, rate=0.3, train=160, val=48, t10k=64)
    document, log = trained(recipe, tmp_path / "run")
    epochs, result = document["training"]["epochs"], document["training"]["result"]
    best = best_epoch(epochs)
    assert best["epoch"] < 6
    assert result["epoch"] == best["epoch"] and result["chosen_by"] == "val_accuracy"
    assert document["val_accuracy"] == result["val_accuracy"] == best["val_accuracy"]
    assert not any(key.startswith("test") for epoch in epochs for key in epoch)
    assert log.count("test, read once") == 1
    for name in ("checkpoint-best.safetensors", "model.safetensors"):
        found = evaluated(recipe, tmp_path / "run" / name)
        assert found["split"] == "test" and found["samples"] == 64
        assert found["test_accuracy"] == document["test_accuracy"] == result["test_accuracy"]
        assert evaluated(recipe, tmp_path / "run" / name, "--eval.split", "val")["val_accuracy"] == best["val_accuracy"]
    assert f"The checkpoint of epoch {best['epoch']} is the result" in log
    page = (tmp_path / "run/report.html").read_text()
    assert "Val accuracy" in page and "Test accuracy" in page and "the best by val accuracy" in page
    # The newest checkpoint holds the last epoch's weights, not the result's.
    weights, last = tensors_of(tmp_path / "run/model.safetensors"), tensors_of(newest_checkpoint(tmp_path / "run"))
    chosen = tensors_of(tmp_path / "run/checkpoint-best.safetensors")
    assert all(numpy.array_equal(weights[name], chosen[f"model/{name}"]) for name in weights)
    assert not all(numpy.array_equal(weights[name], last[f"model/{name}"]) for name in weights)
    facts = headrace("doctor", tmp_path / "run").stdout
    assert "Val accuracy" in facts and "Test accuracy" in facts and "data_changed" not in facts


def test_of_imagenets_layout_the_figure_is_called_val_everywhere(tmp_path):
    recipe = recipe_of(tmp_path, train=160, val=48)
    document, log = trained(recipe, tmp_path / "run")
    assert document["val_accuracy"] == best_epoch(document["training"]["epochs"])["val_accuracy"]
    assert document["test_accuracy"] is None and "test accuracy" not in log.lower()
    page = (tmp_path / "run/report.html").read_text()
    assert "Val accuracy" in page and "Test accuracy" not in page
    found = evaluated(recipe, tmp_path / "run/model.safetensors")
    assert found["split"] == "val" and found["val_accuracy"] == document["val_accuracy"]
    assert not any(key.startswith("test") for key in found)
    assert_one_line_error(headrace("eval", recipe, "--checkpoint", tmp_path / "run", "--eval.split", "test"), 1,
                          "no split test")
    facts = headrace("doctor", tmp_path / "run").stdout
    assert "Val accuracy" in facts and "Test accuracy" not in facts


def test_without_val_nothing_is_chosen_and_that_is_said_once(tmp_path):
    recipe = recipe_of(tmp_path, train=160, t10k=64)
    document, log = trained(recipe, tmp_path / "run")
    assert log.count(NOTHING_CHOSEN) == 1 and document["choice"].startswith(NOTHING_CHOSEN)
    assert NOTHING_CHOSEN in (tmp_path / "run/report.html").read_text()
    assert document["training"]["result"]["epoch"] == 4 and document["training"]["result"]["chosen_by"] is None
    assert document["val_accuracy"] is None and not list((tmp_path / "run").glob("*best*"))
    assert "val accuracy" not in log and log.count("test, read once") == 1
    for checkpoint in (newest_checkpoint(tmp_path / "run"), tmp_path / "run/model.safetensors"):
        assert evaluated(recipe, checkpoint)["test_accuracy"] == document["test_accuracy"]


def test_a_run_on_train_alone_ends_without_an_accuracy(tmp_path):
    recipe = recipe_of(tmp_path, epochs=1, train=64)
    document, _ = trained(recipe, tmp_path / "run")
    assert document["test_accuracy"] is None and document["val_accuracy"] is None
    result = headrace("eval", recipe, "--checkpoint", tmp_path / "run")
    assert_one_line_error(result, 1, "has no split test or val")


@pytest.mark.parametrize("threads", [0, 7])
def test_what_val_fraction_holds_out_does_not_depend_on_threads(tmp_path, threads):
    recipe = recipe_of(tmp_path, train=160, t10k=64)
    held_out = ("--data.val_fraction", 0.2)
    one, _ = trained(recipe, tmp_path / "one", *held_out)
    other, _ = trained(recipe, tmp_path / "other", *held_out, "--data.num_workers", threads)
    assert one["training"]["result"] | {"val_seconds": 0, "test_seconds": 0} == other["training"]["result"] | {
        "val_seconds": 0, "test_seconds": 0}
    assert_same_tensors(tensors_of(tmp_path / "one/model.safetensors"), tensors_of(tmp_path / "other/model.safetensors"))
    found = evaluated(recipe, tmp_path / "one/checkpoint-best.safetensors", *held_out, "--eval.split", "val")
    assert found["samples"] == 32 and found["val_accuracy"] == one["val_accuracy"]
    resumed = headrace("train", recipe, "--out", tmp_path / "one", "--resume")
    assert resumed.returncode == 0 and "other data" in resumed.stderr
    assert headrace("doctor", tmp_path / "other").stdout.count("data_changed") == 0


def test_val_fraction_beside_a_val_of_the_data_is_refused(tmp_path):
    recipe = recipe_of(tmp_path, train=64, val=16)
    result = headrace("train", recipe, "--out", tmp_path / "run", "--data.val_fraction", "0.1")
    assert_one_line_error(result, 2, "data.val_fraction is 0.1", "has a split val of its own")


@pytest.mark.parametrize("splits", [{"val": 48, "t10k": 64}, {"t10k": 64}, {"val": 48}], ids="-".join)
def test_killed_between_the_last_epoch_and_the_end_the_result_is_the_same(tmp_path, splits):
    recipe = recipe_of(tmp_path, epochs=3, rate=0.3, train=160, **splits)
    whole, log = trained(recipe, tmp_path / "whole")
    reads = log.count("test, read once")
    assert reads == ("t10k" in splits)
    for number in range(6, 15):
        out = tmp_path / f"killed{number}"
        killed = headrace("train", recipe, "--out", out, env=dict(os.environ, HEADRACE_FAULT=f"write.rename:{number}"))
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        recorded = "result" in json.loads(history_of(newest_checkpoint(out)))
        document, log = trained(recipe, out, "--resume")
        assert log.count("test, read once") == (0 if recorded else reads), number
        assert without_times(document) == without_times(whole), number
        for name in ("model.safetensors", newest_checkpoint(out).name):
            assert_same_tensors(tensors_of(out / name), tensors_of(tmp_path / "whole" / name))
        again, log = trained(recipe, out, "--resume")
        assert "nothing is left to train" in log and log.count("test, read once") == 0
        assert again["training"]["result"] == document["training"]["result"] and again["training"]["checkpoints"] == 0
    assert number > 8 and killed.returncode == 0


def history_of(checkpoint):
    with safe_open(checkpoint, "np") as file:
        return file.metadata()["history"]


def without_times(document):
    timeless = {key: document[key] for key in ("val_accuracy", "test_accuracy", "choice")}
    for key in ("epochs", "result"):
        entries = document["training"][key] if key == "epochs" else [document["training"][key]]
        timeless[key] = [{name: value for name, value in entry.items() if name in (
            "epoch", "loss", "val_loss", "val_accuracy", "test_loss", "test_accuracy", "chosen_by")} for entry in entries]
    return timeless


def test_more_epochs_after_the_end_are_another_result(tmp_path):
    recipe = recipe_of(tmp_path, train=160, t10k=64)
    trained(recipe, tmp_path / "run", "--train.epochs", 2)
    document, log = trained(recipe, tmp_path / "run", "--train.epochs", 3, "--resume")
    assert document["training"]["result"]["epoch"] == 3 and log.count("test, read once") == 1


def test_a_run_of_an_earlier_version_goes_on_and_its_tests_of_val_are_val(tmp_path):
    write_photos(tmp_path / "photos", train=2, val=1)
    for name in ("module.pt", "run"):
        (shutil.copytree if name == "run" else shutil.copy)(EARLIER / name, tmp_path / name)
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        '[data]\nsource = "folder:photos"\nbatch_size = 2\n[data.transform]\nsize = 4\nmean = [0.5]\nstd = [0.25]\n'
        '[model]\nname = "torchscript:module.pt"\nnum_classes = 2\n[train]\nepochs = 3\n[compute]\nintra_op_threads = 1\n'
    )
    document, log = trained(recipe, tmp_path / "run", "--resume", cwd=tmp_path)
    assert "resuming checkpoint-000000004.safetensors in epoch 3" in log
    epochs = document["training"]["epochs"]
    assert [epoch.get("val_accuracy") for epoch in epochs[:2]] == [1.0, 1.0] and "test_accuracy" not in epochs[0]
    assert document["training"]["result"]["epoch"] == 1 and document["val_accuracy"] == 1.0
    wanted = tensors_of(EARLIER / "run/checkpoint-best.safetensors")
    for name, tensor in tensors_of(tmp_path / "run/model.safetensors").items():
        assert numpy.array_equal(tensor, wanted[f"model/{name}"])
