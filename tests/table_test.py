"""A table of numbers (csv:FILE): loaded and packed as any source, and refused by its fields where a network wants images."""

import pytest

import headrace as hr
from tiny_run import assert_one_line_error, headrace

BATCHES = {"train": [([[1.5, -2.0], [2.0, 0.25]], [0, 3])], "test": [([[3.0, 4.0]], [1])]}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("height,label,weight,split\n1.5,0,-2,train\n2,3,0.25,train\n3,1,4,test\n")
    return path


def batches_of(source, split):
    return [(batch["values"].tolist(), batch["labels"].tolist())
            for batch in hr.Loader(source, split=split, batch_size=2, training=False)]


def test_a_table_and_its_pack_give_the_same_batches(table, tmp_path):
    packed = headrace("pack", f"csv:{table}", tmp_path / "table.pack")
    assert packed.returncode == 0, packed.stderr
    for split, batches in BATCHES.items():
        assert batches_of(f"csv:{table}", split) == batches
        assert batches_of(f"pack:{tmp_path / 'table.pack'}", split) == batches


@pytest.mark.parametrize("verb", ["train", "profile", "tune"])
def test_a_recipe_on_a_table_is_refused_with_its_fields(table, tmp_path, verb):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'[data]\nsource = "csv:{table}"\nbatch_size = 2\n[model]\nname = "mlp"\n')
    run = headrace(verb, recipe, "--out", tmp_path / "run")
    assert_one_line_error(run, 2, "reads the fields image and labels", table, "values float32 (2); labels int64 ()")
