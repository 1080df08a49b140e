"""What fine-tunes, from the command line: averages, top 5, groups, smoothed labels, early stop, checkpoints written beside training."""

import json
import os
import signal

import numpy
import pytest
from safetensors.numpy import save_file

from tiny_run import (assert_one_line_error, assert_same_tensors, evaluated, headrace, newest_checkpoint, recipe_of, tensors_of,
                      trained, write_photos)

AVERAGES = ("--train.ema_decay", "0.99")


@pytest.fixture
def job(tmp_path):
    return recipe_of(tmp_path, epochs=3, rate=1e-2, train=320, val=80, t10k=96)


def weights_in(checkpoint, part):
    """The tensors below "model/" or "ema/", by the names of the model."""
    tensors = tensors_of(checkpoint)
    return {name.removeprefix(f"{part}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{part}/")}


def two_class_recipe(folder):
    """One epoch over 8 photos, with 4 to validate."""
    write_photos(folder / "photos", train=8, val=4)
    recipe = folder / "r.toml"
    recipe.write_text(
        f'[data]\nsource = "folder:{folder}/photos"\nbatch_size = 4\n[data.transform]\nsize = 8\n'
        '[model]\nname = "mlp"\nnum_classes = 2\n[train]\nepochs = 1\n[compute]\nintra_op_threads = 1\n'
    )
    return recipe


def test_averages_are_evaluated_and_become_the_result(job, tmp_path):
    out = tmp_path / "run"
    document, _ = trained(job, out, *AVERAGES)
    result, best = tensors_of(out / "model.safetensors"), out / "checkpoint-best.safetensors"
    assert_same_tensors(result, weights_in(best, "ema"))
    assert all(not numpy.array_equal(result[name], tensor) for name, tensor in weights_in(best, "model").items())
    for checkpoint in (out / "model.safetensors", best):
        assert evaluated(job, checkpoint)["test_accuracy"] == document["test_accuracy"]
        assert evaluated(job, checkpoint, "--eval.split", "val")["val_accuracy"] == document["val_accuracy"]

    # The newest checkpoint, whose figures are those of the last epoch.
    losses = {}
    for part in ("ema", "model"):
        save_file(weights_in(newest_checkpoint(out), part), tmp_path / f"{part}.safetensors")
        losses[part] = evaluated(job, tmp_path / f"{part}.safetensors", "--eval.split", "val")["val_loss"]
    last = document["training"]["epochs"][-1]
    assert losses["ema"] == pytest.approx(last["val_loss"], rel=1e-5)
    assert losses["model"] != pytest.approx(last["val_loss"], rel=1e-4)
    assert evaluated(job, newest_checkpoint(out), "--eval.split", "val")["val_loss"] == losses["ema"]


def test_averages_do_not_change_what_is_trained(job, tmp_path):
    trained(job, tmp_path / "plain")
    trained(job, tmp_path / "averaged", *AVERAGES)
    plain, averaged = (newest_checkpoint(tmp_path / name) for name in ("plain", "averaged"))
    assert_same_tensors(weights_in(plain, "model"), weights_in(averaged, "model"))
    assert weights_in(plain, "ema") == {} and weights_in(averaged, "ema").keys() == weights_in(averaged, "model").keys()


def test_without_val_the_last_averages_are_the_result(tmp_path):
    job = recipe_of(tmp_path, epochs=3, rate=1e-2, train=320, t10k=96)
    document, _ = trained(job, tmp_path / "run", *AVERAGES)
    assert_same_tensors(tensors_of(tmp_path / "run/model.safetensors"), weights_in(newest_checkpoint(tmp_path / "run"), "ema"))
    assert evaluated(job, tmp_path / "run/model.safetensors")["test_accuracy"] == document["test_accuracy"]


def test_a_checkpoint_without_averages_is_refused_by_a_run_that_keeps_some(job, tmp_path):
    trained(job, tmp_path / "run", "--train.epochs", 1)
    result = headrace("train", job, "--out", tmp_path / "run", "--resume", *AVERAGES)
    assert_one_line_error(result, 2, newest_checkpoint(tmp_path / "run").name, "train.ema_decay")


def test_top5_accuracy_is_told_wherever_the_accuracy_is(job, tmp_path):
    out = tmp_path / "run"
    document, log = trained(job, out, "--train.epochs", 2)
    epochs, result = document["training"]["epochs"], document["training"]["result"]
    for epoch in epochs:
        assert epoch["val_accuracy"] <= epoch["val_top5_accuracy"] <= 1
        assert f"val accuracy {epoch['val_accuracy']:.4f} (top 5: {epoch['val_top5_accuracy']:.4f})" in log
    assert document["val_top5_accuracy"] == result["val_top5_accuracy"] == epochs[result["epoch"] - 1]["val_top5_accuracy"]
    assert document["test_top5_accuracy"] == result["test_top5_accuracy"]
    told = f"accuracy {document['test_accuracy']:.4f} (top 5: {document['test_top5_accuracy']:.4f})"
    assert f"test, read once: {told}" in log
    assert evaluated(job, out / "model.safetensors")["test_top5_accuracy"] == document["test_top5_accuracy"]
    assert f"test {told}" in headrace("eval", job, "--checkpoint", out / "model.safetensors").stdout
    assert f"(top 5: {document['test_top5_accuracy']:.4f})" in headrace("doctor", out).stdout
    assert "Val accuracy, top 5" in (out / "report.html").read_text()


def test_of_at_most_five_classes_there_is_no_second_accuracy(tmp_path):
    recipe = two_class_recipe(tmp_path)
    document, log = trained(recipe, tmp_path / "run")
    assert document["val_accuracy"] is not None and "top 5" not in log
    found = evaluated(recipe, tmp_path / "run/model.safetensors")
    for keys in (document, document["training"]["epochs"][0], document["training"]["result"], found):
        assert not any("top5" in key for key in keys)


def test_each_class_is_counted_in_the_result_and_by_eval(job, tmp_path):
    out = tmp_path / "run"
    document, _ = trained(job, out, "--train.epochs", 2)
    result = document["training"]["result"]
    found = evaluated(job, out / "model.safetensors")
    for split, samples in (("val", 80), ("test", 96)):
        by_class = result[f"{split}_by_class"]
        assert by_class.keys() == {"samples", "right", "predicted"}
        assert by_class["samples"] == [sum(i % 10 == label for i in range(samples)) for label in range(10)]
        assert sum(by_class["predicted"]) == samples
        assert sum(by_class["right"]) / samples == pytest.approx(document[f"{split}_accuracy"])
        assert all(right <= min(pair) for right, *pair in zip(by_class["right"], by_class["samples"], by_class["predicted"]))
    assert found["test_by_class"] == result["test_by_class"]
    assert "class_names" not in found and "class_names" not in document  # IDX files have none.
    assert not any("by_class" in key for epoch in document["training"]["epochs"] for key in epoch)
    assert "Answers by class" in (out / "report.html").read_text()


def test_classes_have_the_names_of_the_folder(tmp_path):
    recipe = two_class_recipe(tmp_path)
    document, _ = trained(recipe, tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "photos/train").iterdir())
    assert document["class_names"] == names == evaluated(recipe, tmp_path / "run/model.safetensors")["class_names"]
    assert document["training"]["result"]["val_by_class"]["samples"] == [4, 4]
    assert all(name in (tmp_path / "run/report.html").read_text() for name in names)


FROZEN = ("--model.name", "small_cnn", "--model.frozen", "conv1,bn1", "--optimizer.weight_decay", 0.1)


def test_frozen_parts_stay_as_they_were_and_their_statistics_too(job, tmp_path):
    out = tmp_path / "run"
    document, log = trained(job, out, "--train.epochs", 2, "--train.keep_checkpoints", 100, *FROZEN)
    first, last = (weights_in(path, "model") for path in sorted(out.glob("checkpoint-[0-9]*"))[:2])
    for name, tensor in first.items():
        assert numpy.array_equal(tensor, last[name]) == name.startswith(("conv1.", "bn1.")), name
    assert not first["bn1.running_mean"].any() and first["bn1.num_batches_tracked"] == 0
    state = [name for name in tensors_of(newest_checkpoint(out)) if name.startswith("optimizer/")]
    assert state and not any(name.startswith(("optimizer/conv1.", "optimizer/bn1.")) for name in state)
    assert "model.frozen: 4 of 12 parameters" in log and "1 batch norm keeps its running statistics" in log
    assert evaluated(job, out / "model.safetensors", *FROZEN)["test_accuracy"] == document["test_accuracy"]
    assert "<code>model.frozen</code>" in (out / "report.html").read_text()


def test_a_run_with_frozen_parts_goes_on_to_the_same_bits(job, tmp_path):
    trained(job, tmp_path / "whole", *FROZEN)
    killed = headrace("train", job, "--out", tmp_path / "killed", *FROZEN, env=dict(os.environ, HEADRACE_FAULT="write.begin:7"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    trained(job, tmp_path / "killed", *FROZEN, "--resume")
    assert_same_tensors(*(tensors_of(newest_checkpoint(tmp_path / name)) for name in ("whole", "killed")))


def test_a_frozen_part_that_is_not_there_is_named_with_the_nearest(job, tmp_path):
    out = tmp_path / "run"
    misspelt = headrace("train", job, "--out", out, "--model.name", "small_cnn", "--model.frozen", "conv3")
    assert_one_line_error(misspelt, 2, 'model.frozen: "conv3" names no parameter and no module, did you mean conv')
    everything = headrace("train", job, "--out", out, "--model.frozen", "*")
    assert_one_line_error(everything, 2, "model.frozen: wanted a parameter that is left to train, found all 4 of them frozen")
    assert not list(out.glob("checkpoint-*"))


def test_a_group_has_a_learning_rate_of_its_own(job, tmp_path):
    frozen = ("--optimizer.group", "[{params = ['fc1'], lr_mult = 0}]")
    trained(job, tmp_path / "one", "--train.epochs", 1, *frozen)
    trained(job, tmp_path / "two", "--train.epochs", 2, *frozen)
    trained(job, tmp_path / "free", "--train.epochs", 1)
    one, two, free = (weights_in(newest_checkpoint(tmp_path / name), "model") for name in ("one", "two", "free"))
    for name, tensor in one.items():
        assert numpy.array_equal(tensor, two[name]) == name.startswith("fc1."), name
        assert not numpy.array_equal(tensor, free[name]), name


def test_a_group_without_parameters_is_refused_before_the_first_step(job, tmp_path):
    out = tmp_path / "run"
    misspelt = headrace("train", job, "--out", out, "--optimizer.group", "[{params = ['fc1', 'fc3']}]")
    assert_one_line_error(misspelt, 2, 'optimizer.group[0].params: "fc3" names no parameter', "did you mean fc1?")
    assert not list(out.glob("checkpoint-*"))


def test_smoothed_labels_count_by_their_share_in_the_loss(job, tmp_path):
    trained(job, tmp_path / "run")
    found = [evaluated(job, tmp_path / "run", "--loss.label_smoothing", share) for share in (0, 0.1, 0.2)]
    hard, some, more = (one["test_loss"] for one in found)
    assert abs(some - hard) > 1e-3
    assert more - hard == pytest.approx(2 * (some - hard), rel=1e-3)
    assert found[0]["test_accuracy"] == found[1]["test_accuracy"] == found[2]["test_accuracy"]


def test_checkpoints_written_beside_training_are_those_that_training_waits_for(job, tmp_path):
    flags = (*AVERAGES, "--train.checkpoint_every_s", "1e-6", "--train.keep_checkpoints", 1000)
    beside, _ = trained(job, tmp_path / "beside", *flags)
    waiting, _ = trained(job, tmp_path / "waiting", *flags, "--train.async_checkpoints", "false")
    assert beside["training"]["checkpoints"] == waiting["training"]["checkpoints"] > 60
    names = [{path.name for path in (tmp_path / run).glob("*.safetensors")} for run in ("beside", "waiting")]
    assert names[0] == names[1] and len(names[0]) == 62  # Of 60 updates, the best, and the result.
    for name in names[0]:
        assert_same_tensors(tensors_of(tmp_path / "beside" / name), tensors_of(tmp_path / "waiting" / name))


# ---- Early stop ----

# Nothing is learned, so that no epoch is better than the first.
PATIENCE = ("--optimizer.lr", 0, "--train.early_stopping_patience", 2)


@pytest.fixture
def long_job(tmp_path):
    return recipe_of(tmp_path, epochs=6, rate=1e-2, train=160, val=48, t10k=64)


def assert_stopped_early(document):
    training = document["training"]
    assert training["stopped_early"] is True and training["stopped_by"] == 0
    assert [epoch["epoch"] for epoch in training["epochs"]] == [1, 2, 3]
    assert training["result"]["epoch"] == 1 and document["test_accuracy"] is not None


def test_a_run_ends_after_as_many_epochs_without_a_better_accuracy_and_stays_ended(long_job, tmp_path):
    out = tmp_path / "run"
    document, log = trained(long_job, out, *PATIENCE)
    assert_stopped_early(document)
    assert log.count("stopped early: no better val accuracy in 2 epochs") == 1 and log.count("test, read once") == 1
    assert "of epoch 1, the best of 3, stopped early" in log
    assert "3 of 6, ended by train.early_stopping_patience" in headrace("doctor", out).stdout
    weights = tensors_of(out / "model.safetensors")

    again, log = trained(long_job, out, *PATIENCE, "--resume")
    assert "nothing is left to train" in log and log.count("stopped early: no better") == 0
    assert_stopped_early(again)
    assert again["training"]["checkpoints"] == 0 and again["training"]["result"] == document["training"]["result"]
    assert_same_tensors(tensors_of(out / "model.safetensors"), weights)

    # Whoever wants more of it says so.
    more, _ = trained(long_job, out, "--optimizer.lr", 0, "--resume")
    assert len(more["training"]["epochs"]) == 6 and more["training"]["stopped_early"] is False


def test_a_run_that_was_killed_knows_how_long_it_has_waited(long_job, tmp_path):
    out = tmp_path / "run"
    # The files are recipe.toml, environment.json, eval_transform.toml, the first epoch's checkpoint, the best, and one an epoch.
    killed = headrace("train", long_job, "--out", out, *PATIENCE, env=dict(os.environ, HEADRACE_FAULT="write.begin:7"))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    document, log = trained(long_job, out, *PATIENCE, "--resume")
    assert "at the end of epoch 2" in log and "stopped early: no better val accuracy in 2 epochs" in log
    assert_stopped_early(document)


def test_patience_that_ends_with_the_last_epoch_has_stopped_nothing(long_job, tmp_path):
    document, log = trained(long_job, tmp_path / "run", "--optimizer.lr", 0, "--train.early_stopping_patience", 5)
    assert len(document["training"]["epochs"]) == 6 and document["training"]["stopped_early"] is False
    assert "stopped early" not in log


def test_a_run_that_tunes_itself_stops_early_too(long_job, tmp_path):
    out = tmp_path / "run"
    document, log = trained(long_job, out, *PATIENCE, "--tune.online", "true", "--optimizer.fused", "false",
                            "--tune.only", "fused optimizer")
    assert_stopped_early(document)
    assert log.count("stopped early: no better val accuracy in 2 epochs") == 1
    assert document["tuning"]["problem"] is None and json.loads((out / "ledger.json").read_text())["ended"]


def test_patience_without_val_is_refused_before_the_first_step(tmp_path):
    job = recipe_of(tmp_path, epochs=1, rate=1e-2, train=160, t10k=64)
    patience = ("--train.early_stopping_patience", 3)
    for verb in ("train", "train --dry-run", "tune"):
        out = tmp_path / verb.replace(" ", "")
        result = headrace(*verb.split(), job, "--out", out, *patience)
        assert_one_line_error(result, 2, "train.early_stopping_patience is 3", "no split val", "data.val_fraction")
        assert not list(out.glob("checkpoint-*"))
    document, _ = trained(job, tmp_path / "held_out", *patience, "--data.val_fraction", "0.25")
    assert document["val_accuracy"] is not None
