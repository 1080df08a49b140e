"""`headrace tune --data DIR --model NAME`: a recipe is made, tuned step by step on a part of the data, and can be trained."""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib

import pytest

from tiny_run import HEADRACE, ROOT, assert_one_line_error, headrace, write_idx, write_photos

# As root every folder can be listed; without these capabilities root is as any user.
ANY_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
# Each step with it takes longer by a multiple of what the step takes; beside it one change that is no planted one.
HARMFUL = ("--tune.planted", "[{name = 'harmful', on_ms = 20.0}]", "--tune.only", "harmful,channels-last")
IN_A_HURRY = ("--tune.budget_s", "8", "--compute.intra_op_threads", "1")


@pytest.fixture
def photos(tmp_path):
    write_photos(tmp_path / "photos", train=30, val=6)
    return tmp_path / "photos"


def tune(data, model, *more, **keywords):
    return headrace("tune", "--data", data, "--model", model, *more, **keywords)


def assumed(document):
    return {one["key"]: (one["value"], one["source"]) for one in document["assumed"]}


@pytest.mark.alone
def test_a_folder_and_a_model_name_are_enough(photos, tmp_path):
    out = tmp_path / "run"
    result = tune(photos, "strided_cnn", "--out", out, "--json", "-", *IN_A_HURRY, *HARMFUL, timeout=300)
    assert result.returncode in (0, 3), result.stderr  # 3: here nothing but a harmful change is sure to be offered.
    document = json.loads(result.stdout)

    # What it assumed, each with what told it: said, logged, in the recipe and in the ledger.
    told = assumed(document)
    assert told["data.source"] == (f'"folder:{photos}"', "the folders train, val")
    assert told["model.num_classes"] == ("2", f"2 classes: the folders of {photos}/train")
    assert told["data.transform.size"][0] == "32" and "60 images looked at is 40 pixels" in told["data.transform.size"][1]
    assert told["tune.samples_max"] == ("8192", "trials take all 60 training samples")
    assert {"data.batch_size", "optimizer.name", "optimizer.lr", "train.epochs", "model.name"} <= told.keys()
    log, recipe = (out / "log.txt").read_text(), (out / "recipe.toml").read_text()
    for key, (value, source) in told.items():
        assert f"  {key} = {value}  # {source}\n" in result.stderr and f"  {key} = {value}  # {source}\n" in log
        assert f"{key.rsplit('.', 1)[-1]} = {value}  # {source}\n" in recipe
    assert tomllib.loads(recipe)["train"]["precision"] == "fp32"

    # Each step with its gain; the harmful one is rejected.
    trials = {trial["name"]: trial for trial in document["trials"]}
    assert trials.keys() == {"harmful", "channels-last"}
    harmful = trials["harmful"]
    assert (harmful["verdict"], harmful["reason"]) == ("refused", "slower")
    assert harmful["gain"]["median"] < -0.02 and harmful["pairs"] > 0
    page = (out / "report.html").read_text()
    for name, trial in trials.items():
        assert name in page and trial["sentence"] in log
    assert "planted.harmful" not in document["best"]["settings"]

    # Nothing was trained, and what is left is a recipe that can be.
    assert {"recipe.toml", "tuned.toml", "ledger.json", "report.html", "log.txt"} <= {path.name for path in out.iterdir()}
    assert document["training"]["epochs"] == [] and not list(out.glob("*.safetensors"))
    assert f"headrace train {out / 'tuned.toml'}" in result.stderr
    trained = headrace("train", out / "tuned.toml", "--out", tmp_path / "trained", "--train.epochs", 1, "--json", "-", cwd="/")
    assert trained.returncode == 0, trained.stderr
    assert 0 <= json.loads(trained.stdout)["val_accuracy"] <= 1


def test_every_kind_of_data_is_told_by_what_is_there(photos, tmp_path):
    idx, plain = tmp_path / "idx", tmp_path / "plain"
    idx.mkdir()
    write_idx(idx, "train", 640)
    write_idx(idx, "t10k", 64)
    (photos / "train").rename(plain)
    write_photos(tmp_path / "packed", train=8)
    packs = tmp_path / "packs"
    packs.mkdir()
    assert headrace("pack", f"folder:{tmp_path / 'packed'}", packs / "a.pack").returncode == 0
    for data, source in ((idx, f"idx:{idx}"), (plain, f"classes:{plain}"), (packs, f"pack:{packs}"),
                         (packs / "a.pack", f"pack:{packs / 'a.pack'}")):
        result = tune(data, "strided_cnn", "--dry-run", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert f'  data.source = "{source}"  # ' in result.stderr
        assert "would try" in result.stdout
        assert ("val_fraction = 0.1  # the data have no split val or test" in result.stderr) == (data != idx)
    assert not (tmp_path / "runs").exists()


def test_flags_say_otherwise_and_are_no_assumptions(photos, tmp_path):
    result = tune(photos, "mlp", "--dry-run", "--data.batch_size", 5, "--data.transform.size", 16, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "12 batches an epoch" in result.stdout
    assert "data.batch_size" not in result.stderr and "data.transform.size" not in result.stderr


def empty(folder):
    folder.mkdir()
    return folder


def a_file(folder):
    folder.write_text("[data]\n")
    return folder


def unknown_contents(folder):
    folder.mkdir()
    (folder / "table.parquet").write_bytes(b"PAR1")
    return folder


def images_without_classes(folder):
    write_photos(folder, train=1)
    return folder / "train" / "cat"


def two_kinds(folder):
    write_photos(folder, train=1)
    write_idx(folder, "train", 10)
    return folder


@pytest.mark.parametrize("make, code, words", [
    (lambda folder: folder, 1, ["No such file or directory"]),
    (empty, 1, ["is empty", "IDX files", "DIR/train/CLASS"]),
    (a_file, 2, ["is a file", "wanted a folder"]),
    (unknown_contents, 1, ["table.parquet", "wanted IDX files"]),
    (images_without_classes, 1, ["images without a folder for each class", "00.jpg"]),
    (two_kinds, 2, ["IDX files and the folder train", "wanted one kind"]),
], ids=["missing", "empty", "a file", "unknown contents", "images without classes", "two kinds"])
def test_data_that_cannot_be_told_is_one_line_and_writes_nothing(tmp_path, make, code, words):
    data = make(tmp_path / "given")
    result = tune(data, "mlp", "--out", tmp_path / "run")
    assert_one_line_error(result, code, data, *words)
    assert not (tmp_path / "run").exists()


def test_data_that_may_not_be_listed_is_named(tmp_path):
    data = tmp_path / "closed"
    write_photos(data, train=1)
    data.chmod(0)
    try:
        command = [*ANY_USER, HEADRACE, "tune", "--data", str(data), "--model", "mlp", "--out", str(tmp_path / "run")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert_one_line_error(result, 1, data, "Permission denied")
    finally:
        data.chmod(0o755)


def test_an_unknown_network_names_the_known_ones(photos, tmp_path):
    result = tune(photos, "resnet81", "--out", tmp_path / "run")
    assert_one_line_error(result, 2, "resnet81", "did you mean resnet18?", "small_cnn, mlp, resnet18, strided_cnn")


@pytest.mark.parametrize("arguments, words", [
    (["RECIPE", "--data", "DATA", "--model", "mlp"], ["is a recipe", "wanted one of them"]),
    (["--data", "DATA"], ["--data needs --model NAME"]),
    (["--model", "mlp"], ["--model needs --data DIR"]),
    ([], ["recipe is required", "--data DIR and --model NAME"]),
    (["--data", "DATA", "--model", "mlp", "--data.source", "idx:/"], ["--data.source and --data"]),
    (["--data", "DATA", "--model", "mlp", "--data.batch_size", "0"], ["--data.batch_size must be 1 to 65536"]),
])
def test_half_of_a_job_or_two_are_refused(photos, tmp_path, arguments, words):
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'[data]\nsource = "folder:{photos}"\n')
    places = {"DATA": photos, "RECIPE": recipe}
    result = headrace("tune", *[places.get(word, word) for word in arguments], cwd=tmp_path)
    assert_one_line_error(result, 2, *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kept, tuned_s, met", [(["a"], 5.0, True), (["a"], 10.1, False), ([], 10.1, True)])
def test_the_bench_wants_what_was_kept_to_be_faster(kept, tuned_s, met, tmp_path, capsys):
    script = ROOT / "bench" / "zero_configuration" / "run.py"
    specification = importlib.util.spec_from_file_location("bench_zero_configuration", script)
    bench = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = bench  # Dataclasses look their module up.
    specification.loader.exec_module(bench)
    trials = [{"name": name, "verdict": "kept", "pairs": 9, "gain": {"low": 0.1, "median": 0.2, "high": None}} for name in kept]
    ledger = {"trials": trials, "assumed": [{"key": "seed", "value": "1", "source": "given"}], "speedup": {"median": 2.0}}
    found = bench.rows.Rows(tmp_path / "rows.jsonl")
    assert bench.judge("fashion", found, complete=True) is None
    found.add({"workload": "fashion", "what": "tune"}, {"seconds": 50.0, "ledger": ledger})
    for seed in range(3):
        for arm, seconds in (("basic", 10.0), ("tuned", tuned_s)):
            found.add({"workload": "fashion", "what": "train", "seed": seed, "arm": arm},
                      {"training_s": seconds, "accuracy": 0.5})
    assert bench.judge("fashion", found, complete=True).met is met
    assert bench.judge("fashion", found, complete=False).met is None
    shown = capsys.readouterr().out
    assert f"kept {', '.join(kept) or 'nothing'}" in shown
    assert ("+20.0% [+10.0%, unavailable], 9 pairs" in shown) == bool(kept)
