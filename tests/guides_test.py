"""The scripts of the guides run as they stand, each by itself. Those that need other packages run where these are installed; blocks
that are parts of one script are pages_test's."""

import ast
import importlib.util
import re

import pytest
from document_blocks import GUIDES, MIGRATION, blocks_of
from own_python import run_python

GUIDE, LIGHTNING = GUIDES / "tuning_my_own_script.md", MIGRATION / "from_lightning.md"
BLOCKS = [text for document in (GUIDE, LIGHTNING) for language, text, _ in blocks_of(document) if language == "python"]


def packages_of(block: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(block)))
    return {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names} | {
        node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}


NEEDED = [packages_of(block) - {"headrace", "torch"} for block in BLOCKS]


def test_the_guide_has_a_cnn_a_vit_a_gan_and_a_lightning_module():
    assert [word for word in ("nn.BatchNorm2d", "class ViT", "discriminator", "LightningModule")
            if sum(word in block for block in BLOCKS) == 0] == []
    assert NEEDED == [set(), set(), set(), {"lightning"}, {"gc"}, {"lightning"}]


@pytest.mark.parametrize("index", [index for index, needed in enumerate(NEEDED) if all(map(importlib.util.find_spec, needed))])
def test_code_of_the_guide_runs_as_it_stands(index, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BLOCKS[index])
    done = run_python(script, environment={"OMP_WAIT_POLICY": "passive"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "headrace: " in done.stderr and "goes on as written" not in done.stderr, done.stderr
    if "report()" in BLOCKS[index]:
        assert re.search(r"\d+ updates\s+seen", done.stdout)
    if 'out="runs/vit"' in BLOCKS[index]:
        assert sorted(path.name for path in (tmp_path / "runs" / "vit").iterdir()) == ["ledger.json", "report.html"]
