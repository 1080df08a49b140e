"""Documents that are generated from the code are what the code would write today (`make docs` writes them anew), and what is
named in those written by hand is there."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import headrace
import pytest
from document_blocks import GUIDES, README, ROOT, snippet

PROGRAM = ROOT / "build" / "release" / "bin" / "headrace"
MEASURED = sorted((ROOT / "docs" / "measured").glob("*.md"))
PAGES = [README, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
         *sorted((ROOT / "docs").rglob("*.md"))]
# By hand, of what is there now.
WRITTEN = [page for page in PAGES if page.name not in ("CHANGELOG.md", "requirements.md", "options.md", "api.md")
           and page.parent.name != "decisions"]
KEYS_OF_PYTHON = {"train.engine"}  # Of Tuned.step(), which no recipe has.


@pytest.mark.parametrize("form, document", [("--markdown", "options.md"), ("--schema", "recipe.schema.json")])
def test_generated_document_is_current(form, document):
    now = subprocess.run([PROGRAM, "explain", form], capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / document).read_text() == now, "run make docs"


def test_classes_of_operations_are_current():
    schema = subprocess.run([PROGRAM, "explain", "--schema"], capture_output=True, text=True, check=True).stdout
    now = subprocess.run([sys.executable, ROOT / "tools" / "operation_classes.py"], input=schema, capture_output=True, text=True,
                         check=True).stdout
    assert (ROOT / "python" / "headrace" / "_operation_classes.py").read_text() == now, "run make docs"


def test_the_reference_of_python_is_current():
    now = subprocess.run([sys.executable, ROOT / "tools" / "api_reference.py"], capture_output=True, text=True, check=True,
                         env={**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parent.parent)}).stdout
    assert (ROOT / "docs" / "api.md").read_text() == now, "run make docs"


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


def test_the_guides_recipe_is_read_as_it_is_written(tmp_path):
    def settings(table, prefix=""):
        for key, value in table.items():
            yield from settings(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]

    recipe = snippet(GUIDES / "recipes.md", "toml", "[data]")
    (tmp_path / "mine.toml").write_text(recipe)
    told = subprocess.run([PROGRAM, "explain", tmp_path / "mine.toml", "--json", "-", "--quiet"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    read = {key["key"]: key["value"] for key in json.loads(told.stdout)["keys"] if key["origin"].startswith("mine.toml:")}
    assert read == dict(settings(tomllib.loads(recipe)))


def test_the_guides_source_in_python_gives_batches_in_worker_processes(tmp_path):
    made, loader = snippet(GUIDES / "loader.md", "python", "class Scans").split("\n\n", 1)
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


def test_the_guides_source_in_cpp_is_the_tested_one_of_at_most_20_lines():
    source = snippet(GUIDES / "cpp.md", "cpp", "class Checkerboards")
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


def anchors_of(document: Path) -> set[str]:
    """What links to its headings are called: as the site and those who show Markdown make them of the text."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings():
    links = [(document, path, anchor) for document in PAGES
             for path, anchor in re.findall(r"\]\(([^)#:\s]*)#?([^)\s:]*)\)", document.read_text())]
    assert len(links) > 200
    targets = [(document, (document.parent / path).resolve() if path else document, anchor) for document, path, anchor in links]
    assert [(document.name, str(target)) for document, target, _ in targets if not target.is_file()] == []
    assert [(document.name, target.name, anchor) for document, target, anchor in targets
            if anchor and anchor not in anchors_of(target)] == []


def test_the_site_has_every_page():
    """Of those that are not, a strict build of the site says so, too, where its tools are (tools/site.sh)."""
    def linked(index: Path) -> set[Path]:
        return {(index.parent / page).resolve() for page in re.findall(r"\]\(([^)#:]+\.md)\)", index.read_text())}

    index, decisions = ROOT / "docs" / "index.md", ROOT / "docs" / "decisions" / "index.md"
    assert linked(index) | linked(decisions) | {index} == set(PAGES)


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
    files = (".h", ".html", ".md", ".pack", ".png", ".safetensors")
    assert named and {(document, key) for document, key in named if key not in keys | KEYS_OF_PYTHON and not key.endswith(files)
                      and not any(other.startswith(f"{key}.") for other in keys)} == set()


def test_every_section_of_figures_says_its_day_and_its_build():
    """Who reads an old figure beside newer code must see that it is old."""
    without = []
    for document in MEASURED:
        sections = re.split(r"^## ", document.read_text(), flags=re.MULTILINE)[1:]
        without += [(document.name, section.splitlines()[0]) for section in sections if re.search(r"\d\.\d", section)
                    and not re.search(r"20\d\d-\d\d-\d\d\W+[0-9a-f]{7}\b", section)]
    assert without == []


def test_the_guides_name_every_source_and_all_that_is_tried():
    schemes = re.findall(r"^HEADRACE_SCHEME\((\w+)\)", (ROOT / "src" / "data" / "source" / "schemes.inc").read_text(), re.MULTILINE)
    assert schemes and [scheme for scheme in schemes if f"{scheme}:" not in (GUIDES / "loader.md").read_text()] == []
    options = (ROOT / "docs" / "options.md").read_text()
    sources = [path.read_text() for path in (ROOT / "src" / "app" / "knobs").glob("knob*.cpp") if not path.stem.endswith("_test")]
    keys = [key for text in sources for key in re.findall(r'\.key = "([\w.]+)"', text) if f"| `{key}` |" in options]
    table = (GUIDES / "recipes.md").read_text().split("## What it tries")[1].split("Both arms of a trial")[0]
    assert len(keys) > 10 and [key for key in keys if f"`{key}" not in table and key != "tune.planted"] == []


def test_the_guides_boxes_reach_a_training_step():
    script = snippet(GUIDES / "loader.md", "python", "class Streets")
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
