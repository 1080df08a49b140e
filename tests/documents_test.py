"""Documents that are generated from the code are what the code would write today (`make docs` writes them anew), and what is
named in those written by hand is there."""

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import headrace
import pytest
from tiny_run import write_photos

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "headrace"
MEASURED = sorted((ROOT / "docs" / "measured").glob("*.md"))
WRITTEN = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *MEASURED]  # By hand, of what is there now.


@pytest.mark.parametrize("form, document", [("--markdown", "options.md"), ("--schema", "recipe.schema.json")])
def test_generated_document_is_current(form, document):
    now = subprocess.run([PROGRAM, "explain", form], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / document).read_text() == now, "run make docs"


def test_classes_of_operations_are_current():
    schema = subprocess.run([PROGRAM, "explain", "--schema"], capture_output=True, text=True, check=True).stdout
    now = subprocess.run([sys.executable, ROOT / "tools" / "operation_classes.py"], input=schema, capture_output=True, text=True,
                         check=True).stdout
    assert (ROOT / "python" / "headrace" / "_operation_classes.py").read_text() == now, "run make docs"


def test_keywords_of_loaders_are_current():
    now = subprocess.run([sys.executable, ROOT / "tools" / "loader_options.py"], capture_output=True, text=True, check=True,
                         input=(ROOT / "docs" / "recipe.schema.json").read_text()).stdout
    assert (ROOT / "python" / "headrace" / "_loader_options.py").read_text() == now, "run make docs"


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


def snippets(language: str) -> list[str]:
    """The README's blocks of code in this language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def snippet(language: str, word: str) -> str:
    """The only one of them that has the word."""
    found, = [block for block in snippets(language) if word in block]
    return found


def test_the_readmes_recipe_is_read_as_it_is_written(tmp_path):
    def settings(table, prefix=""):
        for key, value in table.items():
            yield from settings(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]

    recipe = snippet("toml", "[data]")
    (tmp_path / "mine.toml").write_text(recipe)
    told = subprocess.run([PROGRAM, "explain", tmp_path / "mine.toml", "--json", "-", "--quiet"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    read = {key["key"]: key["value"] for key in json.loads(told.stdout)["keys"] if key["origin"].startswith("mine.toml:")}
    assert read == dict(settings(tomllib.loads(recipe)))


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
                          env={**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parent.parent)})
    assert (done.returncode, done.stdout.strip()) == (0, "(64, 1, 224, 224) [0, 1] 157"), done.stderr


def test_the_readmes_python_runs_in_its_order(tmp_path, monkeypatch, capsys):
    """Each block has the names that those before it left, and small stand-ins for what it takes from its reader. The blocks of the
    two sources of one's own have tests of their own."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import headrace as hr

    write_photos(tmp_path / "photos", train=6)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hr, "tune", functools.partial(hr.tune, budget_s=1.0, only=["fused optimizer"]))
    monkeypatch.setattr(hr, "autotune", functools.partial(hr.autotune, fixed=["data"]))  # No sample is looked at in processes.
    ran, names = [snippet("python", "class Scans"), snippet("python", "class Streets")], {}

    def run(word: str, **stand_ins) -> list[str]:
        """The block with the word; what it printed."""
        ran.append(snippet("python", word))
        names.update(stand_ins)
        exec(ran[-1], names)
        return capsys.readouterr().out.splitlines()

    few = DataLoader(TensorDataset(torch.randn(32, 4), torch.arange(32) % 2), batch_size=8)
    small = torch.nn.Linear(4, 2)
    run("hr.autotune(", model=small, optimizer=torch.optim.AdamW(small.parameters()), loader=few)

    told = run("max_grad_norm", model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 2)))
    assert len(told) == 4 and names["trainer"].progress["optimizer_steps"] == 4, "an epoch is a line and a batch"

    run("RandomResizedCrop")
    images, labels = next(iter(names["loader"]))
    assert images.shape == (12, 3, 224, 224) and sorted(labels.tolist()) == [0] * 6 + [1] * 6

    run("evaluation.apply", file_bytes=(tmp_path / "photos" / "train" / "cat" / "00.jpg").read_bytes())
    assert names["image"].shape == (3, 224, 224) and torch.equal(names["batch"][0], names["image"])

    plain = DataLoader(TensorDataset(torch.randn(32, 4), torch.arange(32) % 2), batch_size=8)
    told = run("DataPipelineOptimizer", loader=plain)
    promised = re.findall(r"# (\w+: .*)", ran[-1])
    assert promised and set(promised) <= set(told)

    model, criterion = torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters())
    told = run("hr.tune(", model=model, loader=plain, optimizer=optimizer, criterion=criterion)
    assert "fused optimizer" in " ".join(" ".join(told).split()) and names["loader"] is plain

    def train() -> None:
        for data, label in plain:
            optimizer.zero_grad()
            criterion(model(data), label).backward()
            optimizer.step()

    assert any("backward" in line for line in run("hr.watch(", train=train))
    assert sorted(ran) == sorted(snippets("python"))


def test_the_readmes_source_in_cpp_is_the_tested_one_of_at_most_20_lines():
    source = snippet("cpp", "class Checkerboards")
    assert source in (ROOT / "src" / "data" / "source" / "checkerboards.h").read_text()
    assert len(source.splitlines()) <= 20


@pytest.mark.parametrize("name", ["Mosaic", "MixUp"])
def test_operations_of_ones_own_are_as_short_as_the_decision_says(name):
    text = (ROOT / "src" / "data" / "loader" / f"{name.lower()}_test.cpp").read_text()
    (found,) = re.findall(rf"^class {name} .*?^}};$", text, re.MULTILINE | re.DOTALL)
    assert len(found.splitlines()) <= 60


def found_in(documents: list[Path], pattern: str) -> set[tuple[str, ...]]:
    """Each match's groups, behind the document's name."""
    return {(document.name, *([match] if isinstance(match, str) else match))
            for document in documents for match in re.findall(pattern, document.read_text(), re.MULTILINE)}


def test_links_lead_to_files():
    documents = [*WRITTEN, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    links = [(document.parent / link) for document in documents for link in re.findall(r"\]\(([^)#:]+)", document.read_text())]
    assert links and [link for link in links if not link.exists()] == []


def test_benches_that_documents_name_exist():
    listed = subprocess.run([sys.executable, ROOT / "bench" / "run.py", "list"], capture_output=True, text=True, check=True)
    benches = {line.split()[0].replace("_", "-") for line in listed.stdout.splitlines()}
    named = found_in(WRITTEN, r"make bench NAME=([\w-]+)")
    assert named and {(document, bench) for document, bench in named if bench.replace("_", "-") not in benches} == set()
    programs = found_in(WRITTEN, r"build/release/bin/(\w+_bench)")
    assert programs and {(document, name) for document, name in programs if name.replace("_", "-") not in benches} == set()


def test_tests_that_documents_name_exist():
    in_python = found_in(WRITTEN, r"`(tests/\w+\.py)::(\w+)`")
    assert in_python and {(document, file, name) for document, file, name in in_python
                          if f"def {name}(" not in (ROOT / file).read_text()} == set()
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*_test.cpp"))
    in_cpp = found_in(WRITTEN, r"`[a-z]+\.(?:\w+/)?([A-Z]\w+)\.([A-Z]\w+)(?:/\w+)?`")
    assert in_cpp and {(document, suite, case) for document, suite, case in in_cpp
                       if not re.search(rf"\bTEST(?:_F|_P)?\({suite},\s*{case}\)", sources)} == set()


def test_keys_that_documents_name_exist():
    keys = set(re.findall(r"^\| `([\w.\[\]]+)` \|", (ROOT / "docs" / "options.md").read_text(), re.MULTILINE))
    tables = "|".join(sorted({key.split(".")[0] for key in keys if "." in key}))
    named = found_in(WRITTEN, rf"`((?:{tables})\.[a-z_.]+)(?: = [^`]*)?`")
    files = (".html", ".md", ".pack", ".png", ".safetensors")
    assert named and {(document, key) for document, key in named if key not in keys and not key.endswith(files)
                      and not any(other.startswith(f"{key}.") for other in keys)} == set()


def test_every_section_of_figures_says_its_day_and_its_build():
    """Who reads an old figure beside newer code must see that it is old."""
    without = []
    for document in MEASURED:
        sections = re.split(r"^## ", document.read_text(), flags=re.MULTILINE)[1:]
        without += [(document.name, section.splitlines()[0]) for section in sections if re.search(r"\d\.\d", section)
                    and not re.search(r"20\d\d-\d\d-\d\d\W+[0-9a-f]{7}\b", section)]
    assert without == []


def test_the_readme_names_every_source_and_all_that_is_tried():
    readme = (ROOT / "README.md").read_text()
    schemes = re.findall(r"^HEADRACE_SCHEME\((\w+)\)", (ROOT / "src" / "data" / "source" / "schemes.inc").read_text(), re.MULTILINE)
    assert schemes and [scheme for scheme in schemes if f"{scheme}:" not in readme] == []
    options = (ROOT / "docs" / "options.md").read_text()
    sources = [path.read_text() for path in (ROOT / "src" / "app" / "knobs").glob("knob*.cpp") if not path.stem.endswith("_test")]
    keys = [key for text in sources for key in re.findall(r'\.key = "([\w.]+)"', text) if f"| `{key}` |" in options]
    table = readme.split("## What it tries")[1].split("Both arms of a trial")[0]
    assert len(keys) > 10 and [key for key in keys if f"`{key}" not in table and key != "tune.planted"] == []


def test_readmes_boxes_reach_a_training_step():
    script = snippet("python", "class Streets")
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
