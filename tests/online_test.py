"""tune.online and tune.replay: `headrace train` tunes itself while it trains, stops, goes on, and is repeated bit for bit."""

import json
import os
import signal
import subprocess

import numpy
import pytest
from safetensors import safe_open

from tiny_run import HEADRACE, PLANTED_KNOBS, assert_one_line_error, headrace, newest_checkpoint, tensors_of, write_tiny_job

PLANTED = f"""
[tune]
online = true
{PLANTED_KNOBS}"""
# Both are of class rounding; the first changes bits.
ROUNDING = ("--tune.online", "true", "--tune.only", "fused optimizer,channels-last")


@pytest.fixture
def job(tmp_path):
    return write_tiny_job(tmp_path, epochs=120, more="[optimizer]\nlr = 1e-2\nfused = false")


def ledger_of(folder):
    return json.loads((folder / "ledger.json").read_text())


def assert_same_end(a, b):
    wanted, found = tensors_of(newest_checkpoint(a)), tensors_of(newest_checkpoint(b))
    assert newest_checkpoint(a).name == newest_checkpoint(b).name and wanted.keys() == found.keys()
    for name in wanted:
        assert numpy.array_equal(wanted[name], found[name]), name
    weights = [tensors_of(folder / "model.safetensors") for folder in (a, b)]
    assert all(numpy.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.alone
def test_a_recipe_tunes_itself_while_it_trains(job, tmp_path):
    plain, out = tmp_path / "plain", tmp_path / "run"
    job.write_text(job.read_text().replace("epochs = 120", "epochs = 50"))
    assert headrace("train", job, "--out", plain).returncode == 0
    job.write_text(job.read_text() + PLANTED)
    result = headrace("train", job, "--out", out, "--json", "-", timeout=300)
    assert result.returncode == 0, result.stderr
    assert "tuning while it trains: 4 changes; " in result.stderr
    assert f"{'kept':<12} faster: Pays: " in result.stderr and "the search is over: " in result.stderr

    ledger, document = ledger_of(out), json.loads(result.stdout)
    assert ledger["format"] == "headrace-live-ledger" and ledger["ended"] and ledger["problem"] is None
    verdicts = {trial["name"]: (trial["verdict"], trial["reason"]) for trial in ledger["ledger"]["trials"]}
    assert verdicts["faster"] == ("kept", "none")
    assert verdicts["wrong"] == ("refused", "numerics")
    assert verdicts["slower"][0] == "refused"
    assert verdicts["thrower"] == ("failed", "error")
    updates = [turn["update"] for turn in ledger["turns"]]
    assert updates == sorted(updates) and 1 < updates[0] and updates[-1] <= 50 * 40
    assert ledger["turns"][-1]["settings"] == {"planted.faster": "true"}
    assert not any("planted.wrong" in turn["settings"] for turn in ledger["turns"]), "the gate comes first"
    assert document["tuning"]["kept"] == ["faster"] and document["tuning"]["problem"] is None
    assert {"report.html", "tuned.toml", "result.json"} <= {path.name for path in out.iterdir()}
    report = (out / "report.html").read_text()
    assert "What was tried" in report and "times as fast as the recipe as written" in report
    with safe_open(newest_checkpoint(out), "np") as checkpoint:
        assert json.loads(checkpoint.metadata()["tuning"])["turns"] == ledger["turns"]

    # None of these knobs changes a bit of a run; what threw was made again.
    assert_same_end(plain, out)
    evaluated = headrace("eval", job, "--checkpoint", newest_checkpoint(out), "--json", "-")
    assert json.loads(evaluated.stdout)["test_accuracy"] == document["test_accuracy"]
    explained = headrace("explain", job, "tune.planted", "--out", out)
    assert explained.returncode == 0, explained.stderr
    assert "missing" not in headrace("doctor", out).stdout
    # A tuned recipe tries nothing.
    again = headrace("train", out / "tuned.toml", "--out", tmp_path / "again", "--train.epochs", 1)
    assert again.returncode == 0 and "tuning" not in again.stderr, again.stderr


def test_a_run_that_tuned_itself_is_repeated_bit_for_bit(job, tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    # Long enough for trials, of whose blocks each takes many of these updates.
    flags = ("--train.gradient_accumulation_steps", 2, "--train.epochs", 240)
    result = headrace("train", job, "--out", first, *ROUNDING, *flags)
    assert result.returncode == 0, result.stderr
    turns = ledger_of(first)["turns"]
    assert turns
    result = headrace("train", job, "--out", again, "--tune.replay", first / "ledger.json", *flags, "--json", "-")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["replay"] == {
        "ledger": str(first / "ledger.json"), "turns_applied": len(turns), "turns": len(turns)}
    assert ledger_of(again)["turns"] == turns and "Repeated from" in (again / "report.html").read_text()
    assert_same_end(first, again)


@pytest.mark.parametrize("fault, code", [("write.begin:60:sigterm", 143), ("write.folder:60", -signal.SIGKILL)])
def test_a_run_that_was_ended_early_goes_on_with_what_it_kept_and_its_ledger_repeats_all_of_it(job, tmp_path, fault, code):
    out, again = tmp_path / "run", tmp_path / "again"
    stopped = headrace("train", job, "--out", out, *ROUNDING, env=dict(os.environ, HEADRACE_FAULT=fault))
    assert stopped.returncode == code, stopped.stderr
    if code == 143:
        ledger = ledger_of(out)
        assert ledger["ended"] and (out / "report.html").exists() and (out / "tuned.toml").exists()
    with safe_open(newest_checkpoint(out), "np") as checkpoint:
        saved, updates = json.loads(checkpoint.metadata()["tuning"]), int(checkpoint.metadata()["optimizer_steps"])
    kept = saved["ledger"]["best"]["settings"]

    resumed = headrace("train", job, "--out", out, "--resume", *ROUNDING, "--json", "-")
    assert resumed.returncode == 0, resumed.stderr
    ledger = ledger_of(out)
    assert [turn for turn in ledger["turns"] if turn["update"] <= updates] == [
        turn for turn in saved["turns"] if turn["update"] <= updates]
    assert kept.items() <= ledger["ledger"]["best"]["settings"].items()
    for turn in ledger["turns"]:
        assert turn["update"] <= updates or kept.items() <= turn["settings"].items(), turn
    names = [trial["name"] for trial in ledger["ledger"]["trials"]]
    assert sorted(names) == ["channels-last", "fused optimizer"]
    assert f"The run was resumed after {updates} updates" in (out / "report.html").read_text()

    repeated = headrace("train", job, "--out", again, "--tune.replay", out / "ledger.json")
    assert repeated.returncode == 0, repeated.stderr
    assert_same_end(out, again)


def test_ctrl_c_leaves_a_checkpoint_and_what_was_found(job, tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen([HEADRACE, "train", str(job), "--out", str(out), "--train.epochs", "100000", *ROUNDING],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "tuning while it trains" not in (line := process.stderr.readline()):
        assert line, process.wait()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    ledger = ledger_of(out)
    assert ledger["ended"] and len(ledger["ledger"]["trials"]) == 2
    assert newest_checkpoint(out).exists() and (out / "report.html").exists()


def test_a_finished_run_that_is_resumed_keeps_its_ledger(job, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", job, "--out", out, *ROUNDING, "--train.epochs", 30).returncode == 0
    before = ledger_of(out)
    resumed = headrace("train", job, "--out", out, "--resume", *ROUNDING, "--train.epochs", 30)
    assert resumed.returncode == 0 and "nothing is left to train" in resumed.stderr, resumed.stderr
    after = ledger_of(out)
    for key in ("ledger", "turns", "estimates", "updates", "end_reason"):
        assert after[key] == before[key], key


def test_a_run_that_goes_on_without_tuning_is_told_what_it_loses(job, tmp_path):
    out = tmp_path / "run"
    stopped = headrace("train", job, "--out", out, *ROUNDING, env=dict(os.environ, HEADRACE_FAULT="write.begin:12:sigterm"))
    assert stopped.returncode == 143, stopped.stderr
    resumed = headrace("train", job, "--out", out, "--resume", "--train.epochs", 12)
    assert resumed.returncode == 0, resumed.stderr
    assert "the run so far tuned itself and had kept" in resumed.stderr and "tune.online is false" in resumed.stderr
    with safe_open(newest_checkpoint(out), "np") as checkpoint:
        assert "tuning" not in checkpoint.metadata()


def test_dry_run_names_what_would_be_tried(job, tmp_path):
    result = headrace("train", job, "--out", tmp_path / "run", "--tune.online", "true", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "would try while it trains: " in result.stderr and "fused optimizer" in result.stderr
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_is_refused_in_one_line(job, tmp_path):
    def refused(code, *words, flags):
        assert_one_line_error(headrace("train", job, "--out", tmp_path / "run", *flags), code, *words)

    refused(2, "tune.online is true and data.auto_tune is false", flags=("--tune.online", "true", "--data.auto_tune", "false"))
    refused(2, "tune.online is true and tune.replay is set", flags=("--tune.online", "true", "--tune.replay", "ledger.json"))
    refused(2, '"nobody"', "fused optimizer", flags=("--tune.online", "true", "--tune.only", "nobody"))
    refused(1, "absent.json", flags=("--tune.replay", tmp_path / "absent.json"))
    ledger = tmp_path / "other.json"
    ledger.write_text('{"format": "headrace-ledger", "version": 1}')
    refused(1, "other.json is not a live ledger", flags=("--tune.replay", ledger))
    ledger.write_text(json.dumps({
        "format": "headrace-live-ledger", "version": 1, "estimates": [], "updates": 9, "counted_units": 9, "lost_s": 0,
        "lost_most_s": 0, "lost_allowed_s": 10, "ended": True, "end_reason": "", "ledger": empty_ledger(job, tmp_path),
        "turns": [{"update": 3, "settings": {"optimizer.fuse": "true"}, "why": "pair 1"}]}))
    refused(2, "other.json", "update 3", "optimizer.fuse", flags=("--tune.replay", ledger))


def empty_ledger(job, tmp_path):
    """The inner ledger of a run that was over before anything was tried."""
    out = tmp_path / "short"
    assert headrace("train", job, "--out", out, *ROUNDING, "--train.epochs", 1).returncode == 0
    inner = ledger_of(out)["ledger"]
    return {**inner, "trials": []}
