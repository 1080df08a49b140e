"""The verbs that train, from the command line: what they write, how they fail, how they stop and go on."""

import errno
import fcntl
import gzip
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import tomllib

import numpy
import pytest
from safetensors import safe_open

from tiny_run import (HEADRACE, PLANTED_KNOBS, assert_one_line_error, disk_of, headrace, newest_checkpoint, resize_disk, tensors_of,
                      write_idx, write_tiny_job)


@pytest.fixture
def job(tmp_path):
    return write_tiny_job(tmp_path, epochs=3, more="[optimizer]\nlr = 1e-2")


def test_train_writes_what_it_says_and_eval_agrees(job, tmp_path):
    out = tmp_path / "run"
    result = headrace("train", job, "--out", out, "--json", "-")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert len(document["training"]["epochs"]) == 3
    assert document["test_accuracy"] > 0.5
    assert {"recipe.toml", "environment.json", "log.txt", "result.json", "report.html"} <= {p.name for p in out.iterdir()}
    assert document["memory"]["classes"]["parameters"]["last"] > 0
    assert document["memory"]["classes"]["activations"] is None  # Counted by profile alone.
    stages = {stage["name"]: stage for stage in document["loading"]["stages"]}
    assert stages["consume"]["records"] == stages["transform"]["records"] > 0 and document["loading"]["decisions"] == []
    report = (out / "report.html").read_text()
    assert "Memory over time" in report and "What was tried" not in report

    evaluated = headrace("eval", job, "--checkpoint", newest_checkpoint(out), "--json", "-")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["test_accuracy"] == document["test_accuracy"]
    assert json.loads(evaluated.stdout)["samples"] == 320


def test_checkpoint_is_a_safetensors_file_that_python_reads(job, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", job, "--out", out, "--train.epochs", 1).returncode == 0
    tensors = tensors_of(newest_checkpoint(out))
    assert any(name.startswith("model/") for name in tensors)
    assert all(numpy.isfinite(value).all() for name, value in tensors.items() if name.startswith("model/"))


AUTO = ("--data.num_workers", "auto", "--data.prefetch_batches", "auto", "--data.cache", "auto")


def test_what_the_loader_has_found_is_a_recipe_that_decides_nothing(job, tmp_path):
    found, again = tmp_path / "found", tmp_path / "again"
    result = headrace("train", job, *AUTO, "--train.epochs", 40, "--out", found, "--json", "-")
    assert result.returncode == 0, result.stderr
    loading = json.loads(result.stdout)["loading"]
    fixed = tomllib.loads((found / "fixed.toml").read_text())["data"]
    assert fixed["num_workers"] == loading["num_workers"] and fixed["prefetch_batches"] == loading["prefetch_batches"]
    assert fixed["cache"] in ("none", "decoded", "encoded") and fixed["auto_tune"] is False

    result = headrace("train", found / "fixed.toml", "--out", again, "--json", "-")
    assert result.returncode == 0, result.stderr
    repeated = json.loads(result.stdout)["loading"]
    assert repeated["num_workers"] == fixed["num_workers"] and repeated["prefetch_batches"] == fixed["prefetch_batches"]
    assert repeated["decisions"] == [] and not (again / "fixed.toml").exists()
    ends = [tensors_of(newest_checkpoint(out)) for out in (found, again)]
    assert ends[0].keys() == ends[1].keys()
    for name in ends[0]:
        assert numpy.array_equal(ends[0][name], ends[1][name]), name


def test_with_auto_tune_off_a_run_decides_nothing(job, tmp_path):
    result = headrace("train", job, *AUTO, "--data.auto_tune", "false", "--train.epochs", 40, "--out", tmp_path / "run",
                      "--json", "-")
    assert result.returncode == 0, result.stderr
    loading = json.loads(result.stdout)["loading"]
    assert loading["decisions"] == [] and (loading["num_workers"], loading["prefetch_batches"]) == (1, 2)
    assert not (tmp_path / "run" / "fixed.toml").exists()


def test_eval_below_its_bar_exits_3(job, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", job, "--out", out, "--train.epochs", 1).returncode == 0
    result = headrace("eval", job, "--checkpoint", out, "--eval.at_least", "1.0", "--train.epochs", 1)
    assert result.returncode in (0, 3)
    accuracy = json.loads(headrace("eval", job, "--checkpoint", out, "--json", "-").stdout)["test_accuracy"]
    assert (result.returncode == 3) == (accuracy < 1.0)


def test_stopped_and_resumed_run_equals_the_whole_one(job, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    epochs = ("--train.epochs", 60)
    assert headrace("train", job, "--out", whole, *epochs).returncode == 0

    # From inside, so that it is stopped however late this process gets a core; the third time from outside, anywhere.
    for resume in ([], ["--resume"]):
        stopped = headrace("train", job, "--out", parts, *resume, *epochs,
                           env={**os.environ, "HEADRACE_FAULT": "write.begin:12:sigterm"})
        assert stopped.returncode == 143, stopped.stderr
    process = subprocess.Popen([HEADRACE, "train", str(job), "--out", str(parts), "--resume", *map(str, epochs)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "epoch" not in (process.stderr.readline() or "epoch"):
        pass
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode in (0, 143), stderr
    assert headrace("train", job, "--out", parts, "--resume", *epochs).returncode == 0

    a, b = tensors_of(newest_checkpoint(whole)), tensors_of(newest_checkpoint(parts))
    assert a.keys() == b.keys()
    for name in a:
        assert numpy.array_equal(a[name], b[name]), name


# Of a run whose val loss is never better by as much as is wanted.
PLATEAU = ("--data.val_fraction", "0.25", "--lr_scheduler.name", "ReduceLROnPlateau", "--lr_scheduler.patience", 0,
           "--lr_scheduler.threshold", 1, "--lr_scheduler.factor")


def test_a_plateau_of_val_lowers_the_learning_rate_of_the_run(job, tmp_path):
    def said(out, *flags):
        result = headrace("train", job, "--out", tmp_path / out, *flags)
        assert result.returncode == 0, result.stderr
        assert (tmp_path / out / "log.txt").read_text().count("on a plateau") == result.stderr.count("on a plateau")
        return re.findall(r"val is on a plateau: the learning rate is (\S+) from now on", result.stderr)

    assert said("halved", *PLATEAU, "0.5") == ["0.005", "0.0025", "0.00125"]
    assert said("stopped", *PLATEAU, "1e-9") == ["1e-11"]  # Another reduction would be one by less than eps.
    assert said("one", *PLATEAU, "1e-9", "--train.epochs", 1) == ["1e-11"]
    assert said("plain", "--data.val_fraction", "0.25") == []
    stopped, one, plain = (tensors_of(newest_checkpoint(tmp_path / out)) for out in ("stopped", "one", "plain"))
    names = [name for name in one if name.startswith("model/")]
    assert all(numpy.allclose(stopped[name], one[name], rtol=0, atol=1e-8) for name in names), "nothing after epoch 1"
    assert not any(numpy.allclose(plain[name], one[name], rtol=0, atol=1e-8) for name in names)


def test_a_plateau_without_val_is_refused_before_the_first_step(job, tmp_path):
    for verb in ("train", "train --dry-run", "tune"):
        out = tmp_path / verb.replace(" ", "")
        result = headrace(*verb.split(), job, "--out", out, "--lr_scheduler.name", "ReduceLROnPlateau")
        assert_one_line_error(result, 2, 'lr_scheduler.name is "ReduceLROnPlateau"', "no split val", "data.val_fraction")
        assert not list(out.glob("checkpoint-*"))


def test_ctrl_c_exits_130_and_leaves_a_checkpoint(job, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen([HEADRACE, "train", str(job), "--out", str(out), "--train.epochs", "100000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert newest_checkpoint(out).exists()


def test_profile_divides_the_time_and_changes_nothing(job, tmp_path):
    out = tmp_path / "run"
    result = headrace("profile", job, "--out", out, "--steps", 40, "--trace-form", "folded", "--json", "-")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    split = document["time_split"]
    parts = [split[part] for part in ("data_wait_s", "transfer_s", "forward_s", "backward_s", "optimizer_s", "other_s")]
    assert split["steps"] == 40
    assert sum(parts) == pytest.approx(split["total_s"], rel=1e-6)
    assert document["diagnosis"]["bound"] in ("compute", "data")
    for name in ("training_speed", "memory_usage", "data_loading_time", "forward_pass_time", "backward_pass_time", "optimizer_time"):
        assert len(document["metrics"][name]["values"]) == 40
    assert not list(out.glob("checkpoint-*"))
    trace = json.loads((out / "trace.json").read_text())
    assert {"forward", "backward", "optimizer", "data_wait", "transfer", "step"} <= {e["name"] for e in trace["traceEvents"]}
    assert any(";backward " in line for line in (out / "trace.folded").read_text().splitlines())
    page = (out / "report.html").read_text()
    assert "<html" in page and "The passes over a sample" in page and "Proposals" in page
    assert re.search("(No sample is kept in memory|Samples are kept)", page)
    loading = document["loading"]
    assert [one["name"] for one in loading["plan"]["passes"]][0] == "read"
    assert loading["plan"]["bytes_a_sample"]["copied"] < loading["plan"]["bytes_a_sample_stage_by_stage"]["copied"]
    assert list(loading["advice"]["seconds_a_sample"]) == ["read", "decode", "augment", "collate", "copy"]
    gpu = loading["advice"]["proposals"][-1]
    assert gpu["requested"] == "gpu" and gpu["applied"] == "cpu" and not gpu["applicable"] and gpu["reason"]
    assert "A sample costs the loader" in page and "augment on the GPU: not applicable:" in page


PLANTED = f"""
[tune]
budget_s = 30
{PLANTED_KNOBS}"""


@pytest.mark.alone
def test_tune_keeps_the_planted_gain_and_refuses_the_rest(job, tmp_path):
    job.write_text(job.read_text() + PLANTED)
    out = tmp_path / "run"
    result = headrace("tune", job, "--out", out, "--json", "-", timeout=300)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    verdicts = {trial["name"]: (trial["verdict"], trial["reason"]) for trial in document["trials"]}
    assert verdicts["faster"][0] == "kept", document["trials"]
    assert verdicts["wrong"] == ("refused", "numerics")
    assert verdicts["slower"] == ("refused", "slower")
    assert verdicts["thrower"] == ("failed", "error")
    assert document["speedup"]["low"] > 1
    assert document["best"]["samples_per_second"] > document["baseline"]["samples_per_second"]
    assert 0 <= document["test_accuracy"] <= 1
    for arm in ("baseline", "best"):  # The splits are of the very blocks that the speedup is from.
        split, block_s = document["time_split"][arm], document["speedup"][f"{arm}_s"]
        assert len(block_s) == document["speedup"]["pairs"]
        assert split["total_s"] / split["steps"] == pytest.approx(sum(block_s) / len(block_s))
    for trial in document["trials"]:
        assert {"name", "verdict", "reason", "pairs", "gain", "numerics"} <= trial.keys()
    assert {"report.html", "tuned.toml", "ledger.json", "trace-baseline.json"} <= {p.name for p in out.iterdir()}
    # A planted knob is no setting: the tuned recipe is a recipe that runs.
    again = headrace("train", out / "tuned.toml", "--out", tmp_path / "again", "--train.epochs", 1)
    assert again.returncode == 0, again.stderr


def test_dry_run_runs_nothing(job, tmp_path):
    for verb in ("train", "profile", "tune"):
        out = tmp_path / verb
        result = headrace(verb, job, "--out", out, "--dry-run", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert not out.exists()
    assert not (tmp_path / "runs").exists()


def test_default_run_folder_has_a_latest_link(job, tmp_path):
    assert headrace("train", job, "--train.epochs", 1, cwd=tmp_path).returncode == 0
    latest = tmp_path / "runs" / "tiny" / "latest"
    assert latest.is_symlink() and (latest / "result.json").exists()


def test_progress_is_not_written_to_a_pipe(job, tmp_path):
    result = headrace("train", job, "--out", tmp_path / "run", "--train.epochs", 1)
    assert "\r" not in result.stderr and "Avg Loss" not in result.stderr
    quiet = headrace("train", job, "--out", tmp_path / "quiet", "--train.epochs", 1, "--quiet")
    assert quiet.stdout == "" and quiet.stderr == ""


def test_progress_on_a_terminal_has_the_loss_and_its_mean_and_is_removed(job, tmp_path):
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 200, 0, 0))
    command = [HEADRACE, "train", str(job), "--out", str(tmp_path / "run"), "--train.epochs", "1"]
    run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm"})
    os.close(terminal)
    shown = b""
    while piece := read_or_nothing(screen):
        shown += piece
    os.close(screen)
    assert run.wait(60) == 0
    lines = re.findall(r"\rTraining  epoch 1/1 +\d+ %  Loss: (\d+\.\d{4})  Avg Loss: (\d+\.\d{4})  ", shown.decode())
    assert lines and lines[0][0] == lines[0][1], shown  # Of the first step both are one figure.
    assert "\r\x1b[K" in shown.decode().rsplit("Avg Loss", 1)[1], "removed at the end"


def read_or_nothing(screen):
    """A terminal whose last writer has gone gives EIO, not an end."""
    try:
        return os.read(screen, 65536)
    except OSError as error:
        assert error.errno == errno.EIO
        return b""


def test_missing_data_is_named(job, tmp_path):
    result = headrace("train", job, "--data.source", f"idx:{tmp_path}/nowhere", "--out", tmp_path / "run")
    assert_one_line_error(result, 1, "nowhere")


@pytest.mark.parametrize("damage", ["truncated", "magic", "fewer labels", "empty", "directory"])
def test_damaged_data_is_named(job, tmp_path, damage):
    images = tmp_path / "data" / "train-images-idx3-ubyte.gz"
    labels = tmp_path / "data" / "train-labels-idx1-ubyte.gz"
    if damage == "truncated":
        images.write_bytes(images.read_bytes()[:2000])
    elif damage == "magic":
        with gzip.open(images, "wb") as file:
            file.write(struct.pack(">4I", 0x1234, 1, 8, 8) + bytes(64))
    elif damage == "fewer labels":
        with gzip.open(labels, "wb") as file:
            file.write(struct.pack(">2I", 0x801, 100) + bytes(100))
    elif damage == "empty":
        images.write_bytes(b"")
    else:
        images.unlink()
        images.mkdir()
    result = headrace("train", job, "--out", tmp_path / "run")
    assert_one_line_error(result, 1, "labels" if damage == "fewer labels" else images.name)


def test_unknown_network_names_the_known_ones(job, tmp_path):
    assert_one_line_error(headrace("train", job, "--model.name", "small_cn", "--out", tmp_path / "r"), 2, "small_cnn")


def test_checkpoint_of_another_model_is_refused(job, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", job, "--out", out, "--train.epochs", 1).returncode == 0
    result = headrace("eval", job, "--model.name", "small_cnn", "--checkpoint", newest_checkpoint(out))
    assert_one_line_error(result, 2, "mlp", "small_cnn")


def test_damaged_newest_checkpoint_falls_back_to_the_older_one(job, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", job, "--out", out).returncode == 0
    newest = newest_checkpoint(out)
    newest.write_bytes(newest.read_bytes()[:-100])
    result = headrace("train", job, "--out", out, "--resume")
    assert result.returncode == 0, result.stderr
    assert newest.name in result.stderr and "resuming" in result.stderr


def test_run_folder_in_use_is_refused(job, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen([HEADRACE, "train", str(job), "--out", str(out), "--train.epochs", "100000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stderr.readline()
    try:
        assert_one_line_error(headrace("train", job, "--out", out), 1, out)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_full_disk_is_one_line_and_keeps_the_older_checkpoint(job, tmp_path):
    with disk_of("400k", tmp_path / "disk") as disk:
        result = headrace("train", job, "--out", disk / "run", "--train.keep_checkpoints", 100, "--train.epochs", 50)
        assert_one_line_error(result, 1, "checkpoint-", "No space left on device")
        assert len(list((disk / "run").glob("checkpoint-*"))) >= 1
        assert not list((disk / "run").glob("*tmp*"))
        loaded = headrace("eval", job, "--checkpoint", disk / "run")
        assert loaded.returncode == 0, loaded.stderr


def test_a_disk_that_fills_up_with_the_report_costs_the_report_alone(job, tmp_path):
    data = tmp_path / "small"
    data.mkdir()
    write_idx(data, "train", 1280, side=2)  # So few weights that what else is written is smaller than the report.
    write_idx(data, "t10k", 320, side=2)
    with disk_of("4m", tmp_path / "disk") as disk:
        out = disk / "run"
        train = ("train", job, "--out", out, "--train.epochs", 1, "--data.source", f"idx:{data}")
        assert headrace(*train).returncode == 0
        files = {path.name for path in out.iterdir()}
        accuracy = json.loads((out / "result.json").read_text())["test_accuracy"]
        assert (out / "report.html").stat().st_size > 4 * 4096 and (out / "model.safetensors").stat().st_size <= 3 * 4096
        (out / "report.html").unlink()
        (out / "result.json").unlink()
        used = os.statvfs(disk)
        resize_disk(disk, str((used.f_blocks - used.f_bfree) * used.f_bsize + 4 * 4096))
        assert_one_line_error(headrace(*train, "--resume"), 1, out / "report.html", "No space left on device")
        assert {path.name for path in out.iterdir()} == files - {"report.html"}
        assert json.loads((out / "result.json").read_text())["test_accuracy"] == accuracy
        evaluated = headrace("eval", job, "--data.source", f"idx:{data}", "--checkpoint", out / "model.safetensors", "--json", "-")
        assert json.loads(evaluated.stdout)["test_accuracy"] == accuracy
        resize_disk(disk, "4m")
        again = headrace(*train, "--resume")
        assert again.returncode == 0 and "nothing is left to train" in again.stderr, again.stderr
        assert (out / "report.html").read_text().rstrip().endswith("</html>")


def test_loss_that_is_not_finite_stops_with_its_place(job, tmp_path):
    result = headrace("train", job, "--optimizer.lr", 1000, "--data.transform.std", "1e-6", "--out", tmp_path / "run",
                      "--train.epochs", 50)
    assert_one_line_error(result, 1, "epoch", "batch")


def test_a_folder_with_checkpoints_is_resumed_or_refused(job, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", job, "--out", out, "--train.epochs", 1).returncode == 0
    assert_one_line_error(headrace("train", job, "--out", out, "--train.epochs", 1), 2, out, "--resume")
    assert_one_line_error(headrace("tune", job, "--out", out), 2, out)


def test_warm_up_longer_than_the_run_is_refused(job, tmp_path):
    result = headrace("train", job, "--out", tmp_path / "run", "--lr_scheduler.warmup_steps", 5000)
    assert_one_line_error(result, 2, "warmup_steps", "5000")


@pytest.fixture(scope="module")
def scarce(tmp_path_factory):
    """A recipe with BatchNorm and batches of 320, flags with the largest tried limit that does not hold a step of one, and the folder
    and document of a run with them."""
    folder = tmp_path_factory.mktemp("scarce")
    recipe = write_tiny_job(folder, epochs=2)
    flags = ("--model.name", "small_cnn", "--data.batch_size", 320, "--train.async_checkpoints", "false", "--train.memory_limit_mib")
    for limit in (64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2):
        out = folder / f"run{limit}"
        result = headrace("train", recipe, "--out", out, *flags, limit, "--train.on_out_of_memory", "halve", "--json", "-")
        assert result.returncode == 0, result.stderr
        assert "train.memory_limit_mib" not in result.stderr, result.stderr
        document = json.loads(result.stdout)
        if document["training"]["out_of_memory"]:
            return recipe, (*flags, limit), out, document
    raise AssertionError("2 MiB hold a step of 320 samples")


def header_of(checkpoint):
    with safe_open(checkpoint, "np") as file:
        return file.metadata()


def test_a_run_that_runs_out_of_memory_goes_on_in_parts_and_says_so(scarce, tmp_path):
    recipe, flags, out, document = scarce
    micro_batch = document["training"]["micro_batch"]
    assert 0 < micro_batch <= 160
    log = (out / "log.txt").read_text()
    assert "memory ran out with 320 samples at once, from now on it is at most 160" in log and "BatchNorm" in log
    header = header_of(newest_checkpoint(out))
    assert header["optimizer_steps"] == "8"  # 2 epochs of 4 batches, as ever.
    assert header["micro_batch"] == str(micro_batch)
    assert header["out_of_memory"] == str(document["training"]["out_of_memory"])

    result = headrace("train", recipe, "--out", tmp_path / "raised", *flags)
    assert_one_line_error(result, 1, "limit")
    result = headrace("train", recipe, "--out", tmp_path / "refused", *flags, "--train.on_out_of_memory", "shrink")
    assert_one_line_error(result, 2, "train.on_out_of_memory", "raise", "halve")


def test_an_evaluation_is_computed_in_parts_as_the_training_is(scarce, tmp_path):
    recipe, flags, _, _ = scarce
    # The result of the first convolution for 320 images takes 2.5 MiB, weights and the optimizer's state 0.6 MiB.
    result = headrace("train", recipe, "--out", tmp_path / "run", *flags[:-1], 3, "--train.on_out_of_memory", "halve", "--json", "-")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert 0 < document["training"]["micro_batch"] <= 80
    assert len(document["training"]["epochs"]) == 2
    header = header_of(newest_checkpoint(tmp_path / "run"))
    assert header["optimizer_steps"] == "8" and header["evaluation_due"] == "false"


def test_a_run_in_parts_that_is_killed_ends_with_the_same_bits(scarce, tmp_path):
    recipe, flags, reference, _ = scarce
    out = tmp_path / "run"
    command = ("train", recipe, "--out", out, *flags, "--train.on_out_of_memory", "halve")
    # Three files before training; the third checkpoint is after the third step of four.
    killed = headrace(*command, "--train.checkpoint_every_s", "1e-6", env={**os.environ, "HEADRACE_FAULT": "write.folder:6"})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert int(header_of(newest_checkpoint(out))["micro_batch"]) > 0
    assert headrace(*command, "--resume").returncode == 0
    wanted, found = tensors_of(newest_checkpoint(reference)), tensors_of(newest_checkpoint(out))
    assert wanted.keys() == found.keys()
    for name in wanted:
        assert wanted[name].tobytes() == found[name].tobytes(), name
    for key in ("optimizer_steps", "micro_batch", "out_of_memory"):
        assert header_of(newest_checkpoint(reference))[key] == header_of(newest_checkpoint(out))[key], key


def test_a_plan_of_the_batch_is_made_before_the_first_step_alone(scarce, tmp_path):
    recipe, flags, _, _ = scarce
    out = tmp_path / "run"
    command = ("train", recipe, "--out", out, *flags, "--train.plan_batch_size", "true", "--json", "-")
    result = headrace(*command)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    plan = document["batch_plan"]
    assert 0 < plan["batch_size"] < 320 and plan["batch_size"] * plan["gradient_accumulation_steps"] >= 320
    assert plan["predicted_peak"] <= plan["memory_limit"] and 1 <= len(plan["probes"]) <= 5
    assert all(probe["batch_size"] <= 320 for probe in plan["probes"])
    assert document["training"]["micro_batch"] == plan["batch_size"] and document["training"]["out_of_memory"] == 0
    assert f"batch plan: {plan['batch_size']} of 320 samples at once" in (out / "log.txt").read_text()
    assert header_of(newest_checkpoint(out))["optimizer_steps"] == "8"

    resumed = json.loads(headrace(*command, "--resume", "--train.epochs", 3).stdout)
    assert "batch_plan" not in resumed and resumed["training"]["micro_batch"] == plan["batch_size"]
    assert header_of(newest_checkpoint(out))["optimizer_steps"] == "12"
