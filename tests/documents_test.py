"""Documents that are generated from the code are what the code would write today; `make docs` writes them anew."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "headrace"


@pytest.mark.parametrize("form, document", [("--markdown", "options.md"), ("--schema", "recipe.schema.json")])
def test_generated_document_is_current(form, document):
    now = subprocess.run([PROGRAM, "explain", form], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / document).read_text() == now, "run make docs"


def test_schema_is_json():
    json.loads((ROOT / "docs" / "recipe.schema.json").read_text())
