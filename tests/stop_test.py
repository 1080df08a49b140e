"""Ctrl-C and SIGTERM while a verb works: its exit code, what it says, and what a later run finds."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tiny_run import HEADRACE, assert_one_line_error, headrace, write_idx, write_photos, write_tiny_job

SIGNALS = pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])


def at(point, number):
    """The environment in which the process gets the signal at that passage of a fault point."""
    return dict(os.environ, HEADRACE_FAULT=f"{point}:{'sigint' if number == signal.SIGINT else 'sigterm'}")


@pytest.fixture
def job(tmp_path):
    return write_tiny_job(tmp_path, epochs=2)


@pytest.fixture
def photos(tmp_path):
    write_photos(tmp_path / "photos", train=10, val=5)
    return tmp_path / "photos"


def leftovers(folder):
    return list(folder.rglob("*.headrace-tmp"))


@SIGNALS
def test_a_profile_that_is_stopped_writes_no_result_and_is_not_the_latest_run(job, tmp_path, number, code):
    # The signal comes before the first of as many steps as a profile may have.
    result = headrace("profile", job, "--steps", 100_000, cwd=tmp_path, env=at("write.begin:2", number))
    assert_one_line_error(result, code, "profile: stopped by a signal")
    runs = tmp_path / "runs" / "tiny"
    assert not (runs / "latest").exists()
    folder = (runs / "started").resolve()
    assert {path.name for path in folder.iterdir()} == {"recipe.toml", "environment.json", "log.txt", "lock"}
    again = headrace("profile", job, "--steps", 10, "--out", folder)
    assert again.returncode == 0, again.stderr


@SIGNALS
def test_an_evaluation_that_is_stopped_says_so_in_place_of_a_result(job, tmp_path, number, code):
    assert headrace("train", job, "--out", tmp_path / "run", "--train.epochs", 1).returncode == 0
    write_idx(tmp_path / "data", "t10k", 400_000)
    process = subprocess.Popen([HEADRACE, "eval", job, "--checkpoint", tmp_path / "run", "--data.batch_size", "1",
                                "--json", tmp_path / "eval.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Then the handlers stand, and 400,000 batches are to come: more than the time in which others keep this test from its signal.
    while "libheadrace_torch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code and "eval: stopped by a signal" in errors, errors
    assert output == "" and not (tmp_path / "eval.json").exists()


TUNE = """
[tune]
budget_s = {budget}
only = {names}
[[tune.planted]]
name = "faster"
off_ms = 3.0
[[tune.planted]]
name = "slower"
on_ms = 3.0
[[tune.planted]]
name = "nothing"
"""


@pytest.mark.alone
@SIGNALS
def test_a_tuner_that_is_stopped_leaves_what_it_decided_and_trains_nothing(job, tmp_path, number, code):
    job.write_text(job.read_text() + TUNE.format(budget=120, names=["faster", "nothing"]))
    # Any gain counts, so that a change that does nothing is refused for none, and its trial goes on until it is stopped.
    process = subprocess.Popen([HEADRACE, "tune", job, "--tune.gain_min", "1e-4"], cwd=tmp_path, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    before = []
    while not before or not before[-1].startswith("kept"):  # The next trial takes a minute.
        before.append(process.stderr.readline())
        assert before[-1], before
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "tune: stopped; ledger.json holds what was decided so far" in errors
    runs = tmp_path / "runs" / "tiny"
    assert not (runs / "latest").exists()
    folder = (runs / "started").resolve()
    ledger = json.loads((folder / "ledger.json").read_text())
    trials = {trial["name"]: trial for trial in ledger["trials"]}
    assert trials["faster"]["verdict"] == "kept" and trials["nothing"]["verdict"] == "inconclusive"
    assert trials["nothing"]["sentence"].startswith("Stopped")
    assert ledger["training"]["stopped_by"] == number and ledger["training"]["epochs"] == []
    assert "Stopped before the end" in output and "No change paid" not in output
    assert not list(folder.glob("*.safetensors")) and leftovers(folder) == []
    again = headrace("train", folder / "tuned.toml", "--out", tmp_path / "again", "--train.epochs", 1)
    assert again.returncode == 0, again.stderr


def test_a_tuner_that_is_stopped_before_its_first_trial_has_no_result(job, tmp_path):
    result = headrace("tune", job, "--out", tmp_path / "run", env=at("write.begin:2", signal.SIGTERM))
    assert_one_line_error(result, 143, "tune: stopped by a signal")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"recipe.toml", "environment.json", "log.txt", "lock"}


def test_a_kill_while_the_tuned_job_trains_leaves_the_ledger(job, tmp_path):
    job.write_text(job.read_text() + TUNE.format(budget=4, names=["slower"]))
    folder = tmp_path / "run"
    # The seventh file is the first checkpoint, after recipe.toml, environment.json, tuned.toml, a trace, the ledger and
    # eval_transform.toml.
    result = headrace("tune", job, "--out", folder, env=dict(os.environ, HEADRACE_FAULT="write.begin:7"))
    assert result.returncode == -signal.SIGKILL, result.stderr
    ledger = json.loads((folder / "ledger.json").read_text())
    assert [trial["name"] for trial in ledger["trials"]] == ["slower"] and ledger["training"] is None
    facts = json.loads(headrace("doctor", folder, "--json", "-").stdout)
    assert facts["facts"]["Ended"] == "interrupted"


@SIGNALS
def test_a_pack_that_is_stopped_goes_on_and_becomes_the_same_pack(photos, tmp_path, number, code):
    whole, target = tmp_path / "whole.pack", tmp_path / "p.pack"
    assert headrace("pack", photos, whole).returncode == 0
    result = headrace("pack", photos, target, env=at("pack.sample:7", number))
    assert result.returncode == code and "stopped; the same command goes on with what is there" in result.stderr
    assert not target.exists() and (tmp_path / "p.pack.partial").exists()
    assert_one_line_error(headrace("pack", "--verify", target), 1, target)
    document = json.loads(headrace("pack", photos, target, "--json", "-").stdout)
    assert document["samples"] == 30 and 0 < document["added"] < 30
    assert target.read_bytes() == whole.read_bytes() and not (tmp_path / "p.pack.partial").exists()


def test_an_index_that_is_stopped_is_whole_for_one_split_and_absent_for_the_other(photos):
    result = headrace("pack", "--index", photos, env=at("write.sync:1", signal.SIGINT))
    assert result.returncode == 130 and "stopped; the index of val is as it was" in result.stderr
    document = json.loads(headrace("pack", "--index", photos, "--json", "-").stdout)
    assert document["train"]["known_before"] == 20 and document["val"]["known_before"] == 0


def test_an_unpacking_that_is_stopped_leaves_no_folder_of_that_name(job, tmp_path):
    pack, target = tmp_path / "p.pack", tmp_path / "again"
    assert headrace("pack", f"idx:{tmp_path}/data", pack).returncode == 0
    result = headrace("pack", "--unpack", pack, target, env=at("write.middle:5", signal.SIGTERM))
    assert result.returncode == 143 and f"{target}.partial can be removed" in result.stderr
    assert not target.exists()
