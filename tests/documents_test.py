"""Documents that are generated from the code are what the code would write today; `make docs` writes them anew."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "headrace"


@pytest.mark.parametrize("form, document", [("--markdown", "options.md"), ("--schema", "recipe.schema.json")])
def test_generated_document_is_current(form, document):
    now = subprocess.run([PROGRAM, "explain", form], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / document).read_text() == now, "run make docs"


def test_classes_of_operations_are_current():
    schema = subprocess.run([PROGRAM, "explain", "--schema"], capture_output=True, text=True, check=True).stdout
    now = subprocess.run([sys.executable, ROOT / "tools" / "operation_classes.py"], input=schema, capture_output=True, text=True,
                         check=True).stdout
    assert (ROOT / "python" / "headrace" / "_operation_classes.py").read_text() == now, "run make docs"


def test_schema_is_json():
    json.loads((ROOT / "docs" / "recipe.schema.json").read_text())


def test_architecture_names_every_module_and_no_missing_file():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    modules = re.findall(r"^\s*headrace_module\(([\w/]+)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    assert [module for module in modules if f"| {module} |" not in text] == []
    named = re.findall(r"`((?:include|src|cmake|tools|tests|bench|examples)/[\w./]+)`", text)
    assert named and [path for path in named if not (ROOT / path).exists()] == []


def test_architecture_names_no_function_that_its_file_lacks():
    named = re.findall(r"`(\w+/[\w/]+\.(?:cpp|h)):([\w:]+)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert named and [(file, name) for file, name in named if f"{name}(" not in (ROOT / "src" / file).read_text()] == []


def snippet(language: str, word: str) -> str:
    """The README's only block of code in this language that has the word."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    found, = [block for block in blocks if word in block]
    return found


def test_the_readmes_source_in_python_gives_batches_in_worker_processes(tmp_path):
    made, loader = snippet("python", "class Scans").split("\n\n", 1)
    script = tmp_path / "scans.py"
    script.write_text(f"""import headrace as hr
import numpy as np

def read_scan(index): return np.full((256, 240, 1), index % 251, np.uint8)
def label_of(index): return index % 2

{made}

if __name__ == "__main__":
    {loader.strip()}
    images, labels = next(iter(loader))
    print(tuple(images.shape), sorted(set(labels.tolist())), len(loader))
""")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "build" / "release" / "python")})
    assert (done.returncode, done.stdout.strip()) == (0, "(64, 1, 224, 224) [0, 1] 157"), done.stderr


def test_the_readmes_source_in_cpp_is_the_tested_one_of_at_most_20_lines():
    source = snippet("cpp", "class Checkerboards")
    assert source in (ROOT / "src" / "data" / "source" / "checkerboards.h").read_text()
    assert len(source.splitlines()) <= 20


@pytest.mark.parametrize("name", ["Mosaic", "MixUp"])
def test_operations_of_ones_own_are_as_short_as_the_decision_says(name):
    text = (ROOT / "src" / "data" / "loader" / f"{name.lower()}_test.cpp").read_text()
    (found,) = re.findall(rf"^class {name} .*?^}};$", text, re.MULTILINE | re.DOTALL)
    assert len(found.splitlines()) <= 60


@pytest.mark.parametrize("document", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(document):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_readmes_boxes_reach_a_training_step():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (script,) = [block for block in blocks if "class Streets" in block]
    import numpy
    import torch

    import headrace as hr

    read = []

    def read_street(index):
        read.append(index)
        return numpy.full((40, 50, 3), index % 256, numpy.uint8), numpy.full((index % 5, 4), index / 1000, numpy.float32)

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 4))
    before = model[1].weight.detach().clone()
    names = {"hr": hr, "torch": torch, "model": model, "read_street": read_street}
    exec(script.replace("return 1_000", "return 96").replace("epochs=2", "epochs=1"), names)
    assert names["trainer"].progress["optimizer_steps"] == 6 and set(read) == set(range(96))
    assert not torch.equal(model[1].weight, before) and model[1].weight.isfinite().all()
