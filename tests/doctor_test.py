"""`headrace doctor RUN` on folders that real runs left behind."""

import json
import os

import pytest

from tiny_run import headrace, write_photos


@pytest.fixture
def recipe(tmp_path):
    """A recipe over 40 photographs of 2 classes, of which one is cut short."""
    write_photos(tmp_path / "data", train=15, val=5)
    cut = tmp_path / "data/train/cat/03.jpg"
    cut.write_bytes(cut.read_bytes()[:400])
    path = tmp_path / "r.toml"
    path.write_text(
        f'[data]\nsource = "folder:{tmp_path}/data"\nbatch_size = 10\non_corrupt = "replace"\n[data.transform]\nsize = 32\n'
        'crop = "random_resized"\nmean = [0.5]\nstd = [0.25]\n[model]\nname = "strided_cnn"\nnum_classes = 2\n'
        "[train]\nepochs = 2\n[compute]\nintra_op_threads = 1\n"
    )
    return path


def doctor(run):
    result = headrace("doctor", run, "--json", "-")
    document = json.loads(result.stdout)
    assert result.returncode == (3 if document["findings"] else 0), result.stderr
    findings = {}
    for finding in document["findings"]:
        findings[finding["code"]] = findings.get(finding["code"], "") + finding["sentence"] + ". "
    return document["facts"], findings


def test_a_corrupt_sample_is_named_by_every_verb_that_reads_it(recipe, tmp_path):
    for verb, flags in (("train", []), ("profile", ["--steps", 8]), ("tune", ["--tune.budget_s", 1])):
        result = headrace(verb, recipe, "--out", tmp_path / verb, *flags)
        assert result.returncode in (0, 3), result.stderr
        facts, findings = doctor(tmp_path / verb)
        assert facts["Verb"] == verb and facts["Ended"] == "whole"
        assert facts["Peak memory"] != "unavailable"
        assert "1 sample could not be read" in findings["corrupt_samples"]
        assert "data/train/cat/03.jpg" in findings["corrupt_samples"]
        assert not {"missing", "damaged", "failed", "in_use", "data_changed"} & set(findings)


def test_a_killed_run_is_found_and_a_resumed_one_is_whole(recipe, tmp_path):
    run = tmp_path / "run"
    environment = {**os.environ, "HEADRACE_FAULT": "write.rename:7"}  # Within the second epoch's checkpoints.
    assert headrace("train", recipe, "--out", run, env=environment).returncode < 0
    facts, findings = doctor(run)
    assert facts["Ended"] == "interrupted" and facts["Epochs"] == "1 of 2"
    assert findings["missing"] == "result.json is missing. report.html is missing. "
    assert "was left by a process that was killed" in findings["left_over"]
    assert headrace("train", recipe, "--out", run, "--resume").returncode == 0
    facts, findings = doctor(run)
    assert facts["Ended"] == "whole" and facts["Epochs"] == "2 of 2"
    assert set(findings) <= {"corrupt_samples", "slow_epochs"}


def test_a_failed_run_and_a_flipped_bit_are_found(recipe, tmp_path):
    run = tmp_path / "run"
    assert headrace("train", recipe, "--out", run).returncode == 0
    checkpoint = sorted(run.glob("checkpoint-0*.safetensors"))[-1]
    content = bytearray(checkpoint.read_bytes())
    content[content.index(b'"epoch":"2"') + 9] ^= 1  # Epoch 3 now, says its header.
    checkpoint.write_bytes(content)
    _, findings = doctor(run)
    assert checkpoint.name in findings["damaged"] and "header has checksum" in findings["damaged"]
    assert headrace("train", recipe, "--out", tmp_path / "failed", "--data.on_corrupt", "fail").returncode == 1
    _, findings = doctor(tmp_path / "failed")
    assert "03.jpg" in findings["failed"]
