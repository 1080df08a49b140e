"""What a user's folder may do to a run, through the verbs: one clear line each, the policy obeyed, nothing lost."""

import os
import shutil
import subprocess

import pytest

from tiny_run import ANY_USER, HEADRACE, assert_one_line_error, headrace, write_photos


@pytest.fixture
def recipe(tmp_path):
    write_photos(tmp_path / "data", train=10, val=5)
    path = tmp_path / "r.toml"
    path.write_text(
        f'[data]\nsource = "folder:{tmp_path}/data"\nbatch_size = 10\n[data.transform]\nsize = 32\ncrop = "random_resized"\n'
        'mean = [0.5]\nstd = [0.25]\n[model]\nname = "strided_cnn"\nnum_classes = 2\n[train]\nepochs = 1\n'
        "[compute]\nintra_op_threads = 1\n"
    )
    return path


def as_any_user(*arguments):
    return subprocess.run([*ANY_USER, HEADRACE, *map(str, arguments)], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("policy", ["fail", "replace", "zero"])
def test_an_image_that_may_not_be_read_obeys_the_policy_and_is_named(recipe, tmp_path, policy):
    image = tmp_path / "data/train/cat/03.jpg"
    image.chmod(0)
    result = as_any_user("train", recipe, "--out", tmp_path / "run", "--data.on_corrupt", policy)
    if policy == "fail":
        assert_one_line_error(result, 1, image, "Permission denied")
    else:
        assert result.returncode == 0, result.stderr
        assert result.stderr.count(f"{image}: Permission denied") == 1


def test_a_class_folder_that_may_not_be_listed_is_named(recipe, tmp_path):
    folder = tmp_path / "data/train/cat"
    folder.chmod(0)
    try:
        assert_one_line_error(as_any_user("train", recipe, "--out", tmp_path / "run"), 1, folder, "Permission denied")
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("verb", ["train", "profile", "tune"])
def test_a_folder_that_may_not_be_written_is_said_before_anything_is_measured(recipe, tmp_path, verb):
    out = tmp_path / "out"
    out.mkdir(mode=0o555)
    assert_one_line_error(as_any_user(verb, recipe, "--out", out / "run"), 1, out / "run", "Permission denied")
    assert list(out.iterdir()) == []


def test_a_run_whose_folder_became_read_only_keeps_its_checkpoints(recipe, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", recipe, "--out", out).returncode == 0
    before = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    out.chmod(0o555)
    try:
        assert_one_line_error(as_any_user("train", recipe, "--out", out, "--resume", "--train.epochs", 2), 1, out,
                              "Permission denied")
    finally:
        out.chmod(0o755)
    assert {path.name: path.read_bytes() for path in out.glob("*.safetensors")} == before
    assert headrace("train", recipe, "--out", out, "--resume", "--train.epochs", 2).returncode == 0


def test_data_that_is_gone_before_a_run_is_resumed_is_named_and_nothing_is_lost(recipe, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", recipe, "--out", out).returncode == 0
    before = sorted(path.name for path in out.glob("*.safetensors"))
    shutil.rmtree(tmp_path / "data/train/dog")
    result = headrace("train", recipe, "--out", out, "--resume", "--train.epochs", 2)
    assert_one_line_error(result, 1, "the splits have different classes", "dog")
    assert sorted(path.name for path in out.glob("*.safetensors")) == before


def test_odd_entries_of_a_folder_are_left_out_or_named_and_the_rest_is_trained(recipe, tmp_path):
    cat = os.fsencode(tmp_path / "data/train/cat")
    os.symlink("..", cat + b"/loop")
    os.rename(cat + b"/01.jpg", cat + b"/caf\xe9.jpg")
    (tmp_path / "data/train/cat/02.jpg").write_bytes(b"")
    assert_one_line_error(headrace("train", recipe, "--out", tmp_path / "strict"), 1, "cat/02.jpg is empty")
    result = headrace("train", recipe, "--out", tmp_path / "run", "--data.on_corrupt", "zero", "--train.epochs", 2)
    assert result.returncode == 0, result.stderr
    assert "perhaps a loop of links: 1" in result.stderr and "cat/loop" in result.stderr
    assert result.stderr.count("cat/02.jpg is empty") == 1


def test_a_set_of_one_class_is_trained_and_an_empty_one_is_named(recipe, tmp_path):
    for split in ("train", "val"):
        shutil.rmtree(tmp_path / "data" / split / "dog")
    assert headrace("train", recipe, "--out", tmp_path / "run").returncode == 0
    for image in (tmp_path / "data/train/cat").iterdir():
        image.unlink()
    assert_one_line_error(headrace("train", recipe, "--out", tmp_path / "empty"), 1, "train/cat has no images")
    shutil.rmtree(tmp_path / "data/train/cat")
    assert_one_line_error(headrace("train", recipe, "--out", tmp_path / "none"), 1, "data/train has no class folders")
