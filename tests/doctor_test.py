"""`headrace doctor RUN` on folders that real runs left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import headrace as hr
import pytest

from tiny_run import headrace, write_photos

SCRIPT = """import sys
import torch
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(4, 2)).sum().backward()
    optimizer.step()
sys.exit(int(sys.argv[1]))
"""


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


def doctor_document(run):
    result = headrace("doctor", run, "--json", "-")
    document = json.loads(result.stdout)
    assert result.returncode == (3 if document["findings"] else 0), result.stderr
    return document


def doctor(run):
    document = doctor_document(run)
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
    assert set(findings) <= {"corrupt_samples", "slow_epochs", "loop_waits_for_data"}


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


def test_what_a_run_counted_of_its_cache_and_memory_is_in_one_document(recipe, tmp_path):
    cached = ("--data.cache", "encoded", "--train.epochs", 3)
    assert headrace("train", recipe, "--out", tmp_path / "run", *cached).returncode == 0
    document = doctor_document(tmp_path / "run")
    cache = document["cache_stats"]
    assert cache["samples_per_epoch"] == 30
    assert cache["hits"] + cache["misses"] >= 90 and cache["hits"] > 0 and cache["memory_bytes"] > 0
    assert cache["cache_hit_rate"] == cache["hits"] / (cache["hits"] + cache["misses"])
    assert document["memory_trends"]["cpu_memory_trend"]["trend"] == "insufficient_data"  # Of a run of a second.
    assert len(document["performance_summary"]["epochs"]) == 3


def test_a_loop_that_loads_its_batches_itself_is_judged_by_what_the_run_measured(recipe, tmp_path):
    assert headrace("train", recipe, "--out", tmp_path / "run", "--data.num_workers", 0).returncode == 0
    loading = json.loads((tmp_path / "run" / "result.json").read_text())["loading"]
    assert loading["num_workers"] == 0 and loading["cache"]["applied"] == "none" and loading["cache"]["hits"] == 0
    stages = {stage["name"]: stage for stage in loading["stages"]}
    sample_s = sum(stages[name]["busy_s"] for name in ("read", "decode", "transform")) / stages["transform"]["records"]
    consumer_s = stages["consume"]["busy_s"] / stages["consume"]["records"]
    document = doctor_document(tmp_path / "run")
    told = [one["sentence"] for one in document["findings"] if one["code"] == "loop_waits_for_data"]
    assert len(told) == (sample_s / (sample_s + consumer_s) >= 0.1)
    assert all("as it loads its batches itself (data.num_workers = 0)" in sentence for sentence in told)
    assert all(proposal["predicted_samples_per_second"] > 1 / (sample_s + consumer_s) for proposal in document["proposals"])


def test_a_run_without_a_cache_says_that_it_has_no_figures_of_one(recipe, tmp_path):
    assert headrace("train", recipe, "--out", tmp_path / "run").returncode == 0
    assert doctor_document(tmp_path / "run")["cache_stats"] == "unavailable: no sample was looked for in a cache"


@pytest.mark.parametrize("code", [0, 7])
def test_a_script_that_was_profiled_lacks_nothing_and_its_failure_is_told(tmp_path, code):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-m", "headrace", "profile", "--out", tmp_path / "run", "train.py", str(code)], cwd=tmp_path,
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path(hr.__file__).parent.parent)})
    assert done.returncode == code, done.stderr
    facts, findings = doctor(tmp_path / "run")
    assert facts["Verb"] == "profile"
    assert {"missing", "damaged", "data_gone"}.isdisjoint(findings)
    assert findings.get("failed") == ("the script ended with exit code 7. " if code else None)
