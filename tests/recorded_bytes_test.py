"""Batches, orders and files are what the first version of the formats made of them: tests/recorded holds what it wrote.

batches.json: a digest of the files that recorded_batches.make_folder() writes, and of the batches made of them. The other
files are a recipe, a checkpoint in the middle of its run and the weights at its end, a loader's state with a digest of the
batches that followed it, packs, an index beside its photographs and a ledger."""

import hashlib
import json
import pathlib
import re
import shutil

import numpy
import pytest
import torch

import headrace as hr
import recorded_batches
from tiny_run import headrace, newest_checkpoint, tensors_of

RECORDED = pathlib.Path(__file__).resolve().parent / "recorded"
WANTED = json.loads((RECORDED / "batches.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    assert recorded_batches.make_folder(folder) == WANTED["files"], "another encoder: these are not the recorded files"
    for form in ("files", "raw", "lz4"):
        options = () if form == "files" else ("--form", form)
        result = headrace("pack", f"folder:{folder}", folder / f"{form}.pack", *options)
        assert result.returncode == 0, result.stderr
    recorded_batches.break_one(folder)
    return folder


@pytest.fixture
def recorded(tmp_path):
    """A copy, as what reads may write beside it."""
    return shutil.copytree(RECORDED, tmp_path / "recorded")


@pytest.mark.parametrize("spelling", ["transform", "transforms"])
@pytest.mark.parametrize("name", recorded_batches.CASES)
def test_batches_are_those_that_were_recorded(folder, name, spelling):
    kind, options = recorded_batches.CASES[name]
    if spelling == "transforms":
        options = recorded_batches.as_lists(kind, options)
    loader = recorded_batches.loader_of(kind, folder, options)
    assert recorded_batches.digest_of(loader) == WANTED["batches"][name]


def test_every_option_that_decides_bytes_is_recorded():
    given = {"transforms", "eval_transforms"}  # Every case, and those of the split test, in their second spelling.
    for _, options in recorded_batches.CASES.values():
        given |= {key for key in options if key != "transform"} | {f"transform.{key}" for key in options.get("transform", {})}
    outside = {"source", "num_workers", "num_workers_max", "prefetch_batches", "prefetch_mib", "auto_tune", "cache", "cache_mib",
               "index", "in_order", "max_pixels", "max_sample_bytes"}
    recipe = headrace("explain", "--json", "-", RECORDED / "recipe.toml")
    keys = {entry["key"].removeprefix("data.") for entry in json.loads(recipe.stdout)["keys"] if entry["key"].startswith("data.")}
    assert keys - outside - given <= set(), "record batches of loaders with these options"


def test_a_checkpoint_in_the_middle_of_a_run_is_gone_on_with(recorded):
    whole = headrace("train", "recipe.toml", "--out", "whole", cwd=recorded)
    assert whole.returncode == 0, whole.stderr
    middle = newest_checkpoint(recorded / "run").name
    (recorded / "own").mkdir()
    shutil.copy(recorded / "whole" / middle, recorded / "own")
    for name in ("run", "own"):
        resumed = headrace("train", "recipe.toml", "--out", name, "--resume", cwd=recorded)
        assert resumed.returncode == 0, resumed.stderr
    # The processor that made the recorded half adds up in an order of its own. Where it is this one's, so are all bits.
    is_alike = all(map(numpy.array_equal, *(tensors_of(recorded / name / middle).values() for name in ("run", "whole"))))
    whole, run, own = (tensors_of(recorded / name / "model.safetensors") for name in ("whole", "run", "own"))
    there = tensors_of(recorded / "weights_at_the_end.safetensors")
    assert whole.keys() == run.keys() == own.keys() == there.keys()
    for name, tensor in there.items():
        assert numpy.array_equal(whole[name], own[name]), name
        assert not is_alike or numpy.array_equal(whole[name], run[name]), name
        numpy.testing.assert_allclose(run[name], tensor, rtol=1e-3, atol=1e-5, err_msg=name)
    assert newest_checkpoint(recorded / "run").name == "checkpoint-000000004.safetensors"


def test_an_old_recipe_is_refused_line_by_line_with_the_new_names(recorded):
    lines = (recorded / "recipe_0_1.toml").read_text().splitlines()
    now = {"data.threads": "data.num_workers", "data.transform.deviation": "data.transform.std", "model.classes": "model.num_classes",
           "optimizer.rate": "optimizer.lr", "optimizer.beta1": "optimizer.betas = [beta1, beta2]",
           "optimizer.implementation": 'optimizer.fused = true (for "fused"), or optimizer.foreach = true (for "foreach"), or '
                                       'optimizer.fused = false (for "plain")',
           "schedule": "lr_scheduler", "lr_scheduler.final_fraction": "lr_scheduler.eta_min = final_fraction * optimizer.lr",
           "lr_scheduler.name": '"CosineAnnealingLR"', "train.accumulate": "train.gradient_accumulation_steps", "train.clip_norm": "train.max_grad_norm",
           "compute.threads": "compute.intra_op_threads"}
    told, result = {}, None
    for _ in lines:  # Each is refused once at most: the line that an error names is left out of the next try.
        (recorded / "old.toml").write_text("\n".join(lines))
        result = headrace("explain", "old.toml", cwd=recorded)
        if result.returncode == 0:
            break
        found = re.search(r"old.toml:(\d+): (?:unknown (?:key|table) )?([\w.]+)(?: must be .*, found .*)?, which is now (.*)", result.stderr)
        assert found, result.stderr
        told[found[2]] = found[3].strip()
        lines[int(found[1]) - 1] = "[lr_scheduler]" if found[2] == "schedule" else ""
    assert result.returncode == 0
    assert told == now


def test_a_loaders_state_goes_on_with_the_same_bytes(recorded):
    state = json.loads((recorded / "loader_state.json").read_text())
    loader = hr.Loader(f"folder:{recorded}/photos", batch_size=3, seed=9, world_size=2, rank=1, transform={
        "size": 16, "crop": "random_resized", "flip_probability": 0.5, "mean": [0.4], "std": [0.3]})
    loader.load_state_dict(state["state"])
    digest = hashlib.sha256()
    for batch in [*loader, *loader]:
        for field in batch.fields.values():
            digest.update(field.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    assert digest.hexdigest() == state["rest"]


@pytest.mark.parametrize("form", ["files", "raw", "lz4"])
def test_packs_and_indexes_are_read(recorded, form):
    options = {"batch_size": 4, "shuffle": False, "transform": {"size": 20, "crop": "random_resized"}}
    photos = hr.Loader(f"folder:{recorded}/photos", **options)
    packed = hr.Loader(f"pack:{recorded}/{form}.pack", **options)
    for ours, theirs in zip(photos, packed, strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    assert photos.statistics()["index_hits"] == 8
    assert packed.statistics()["index_hits"] == (8 if form == "files" else 0)


def test_a_ledger_is_read_by_explain(recorded):
    (recorded / "run/ledger.json").write_bytes((recorded / "ledger.json").read_bytes())
    trials = json.loads((recorded / "ledger.json").read_text())["trials"]
    result = headrace("explain", "recipe.toml", "--out", "run", cwd=recorded)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("tuner: ") >= len(trials) - 1
