"""The code of the README, the guides, the pages for those who come from elsewhere and the one about errors runs, block by block in the
order of its page: each has the names and the files that those before it left, and small stand-ins for what it takes from its reader.
The scripts of docs/guides/tuning_my_own_script.md and docs/migration/from_lightning.md are guides_test's, docs/guides/fine_tuning.md is
fine_tuning_test's."""

import ast
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import headrace as hr
import pytest
import torch
from document_blocks import GUIDES, MIGRATION, README, ROOT, blocks_of
from headrace import _autotune
from shown_test import document
from tiny_run import write_photos
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DOCS = ROOT / "docs"
ELSEWHERE_WHOLE = {"tuning_my_own_script.md", "from_lightning.md", "fine_tuning.md"}  # Pages whose blocks other tests run.
PAGES = [README, DOCS / "quick_start.md", DOCS / "troubleshooting.md",
         *sorted(page for folder in (GUIDES, MIGRATION) for page in folder.glob("*.md") if page.name not in ELSEWHERE_WHOLE)]

# Blocks that a test of their own runs, by a word that they have: file and name.
ELSEWHERE = {
    "class Scans": ("documents_test.py", "test_the_guides_source_in_python_gives_batches_in_worker_processes"),
    "class Streets": ("documents_test.py", "test_the_guides_boxes_reach_a_training_step"),
    "find_package(headrace": ("cpp_door_test.py", "test_the_guides_cpp_builds_outside_the_tree_and_runs"),
    "hr::Trainer trainer": ("cpp_door_test.py", "test_the_guides_cpp_builds_outside_the_tree_and_runs"),
    "hr::FlightRecorder flights": ("cpp_door_test.py", "test_the_guides_cpp_builds_outside_the_tree_and_runs"),
    "torch::optim::AdamW adamw": ("cpp_door_test.py", "test_the_pages_loops_of_libtorch_build_and_run"),
    "torch::optim::AdamW optimizer": ("cpp_door_test.py", "test_the_pages_loops_of_libtorch_build_and_run"),
    "hr::Trainer training": ("cpp_door_test.py", "test_the_pages_loops_of_libtorch_build_and_run"),
    "class Checkerboards": ("cpp_door_test.py", "test_the_guides_cpp_builds_outside_the_tree_and_runs"),
    "origin/main HEAD": ("compare_test.py", "test_the_guides_line_for_a_pull_request_builds_and_compares_both"),
    "ledger.figure()": ("frameworks/notebook_test.py", "test_the_guides_figure_of_a_ledger_is_saved"),
    "timm.create_model": ("frameworks/timm_weights_test.py", "test_the_guides_weights_are_written_as_timm_has_them"),
    "cmake -S examples/cpp": ("cpp_door_test.py", "test_examples_build_outside_the_tree_and_run"),
}
# Commands that set up, build, install or test take minutes. Make is asked whether it would take them, no more.
MAKE = re.compile(r"make\b")
INSTALLS = re.compile(r"(python3 -m venv env && env/bin/)?pip install .*dist/headrace-\*\.whl$")  # make package CHECK=1 does.

# The command as it is, but that tuning and training end soon. Exit code 3 is a verdict.
HEADRACE = """#!/bin/sh
case "$*" in
  profile*.py*) exec python -m headrace "$@" ;;
  *--dry-run*) ;;
  "tune --data"*) set -- "$@" --tune.budget_s 1 --data.batch_size 2 --data.transform.size 8 --data.transform.crop center ;;
  train*) set -- "$@" --train.epochs 1 ;;
esac
"{program}" "$@"
code=$?
[ $code -eq 3 ] && exit 0
exit $code
"""


def runs_elsewhere(text: str) -> bool:
    return any(word in text for word in ELSEWHERE)


SCRIPT = """import torch
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""


def write_stored_runs(folder: Path) -> None:
    """Five run folders, as `headrace compare` reads them."""
    for number in range(5):
        run = {"metrics": {"loss": 1 + number / 100}, "stages": {}, "outputs": []}
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "result.json").write_text(json.dumps({
            "format": "headrace-measurements", "version": 1, "label": "", "written": "", "build": "", "config": "", "machine": {},
            "runs": [run]}))


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """The names, files and commands that whoever reads a page has."""
    write_photos(tmp_path / "photos", train=6, val=2)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "runs" / "mine" / "latest").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "latest" / "ledger.json").write_text(json.dumps(document()))
    for name in ("before", "after"):
        write_stored_runs(tmp_path / "runs" / f"fashion_mnist_{name}")
    monkeypatch.chdir(tmp_path)

    commands = tmp_path / "commands"
    commands.mkdir()
    for name, text in (("headrace", HEADRACE.format(program=ROOT / "build" / "release" / "bin" / "headrace")),
                       ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(hr.__file__).parent.parent))

    monkeypatch.setattr(hr, "tune", functools.partial(hr.tune, budget_s=1.0, only=["fused optimizer"]))
    # No sample is looked at in processes, and nothing of this process is switched.
    monkeypatch.setattr(hr, "autotune", functools.partial(hr.autotune, fixed=["data", "compute"]))
    torch.manual_seed(1)
    dataloader = DataLoader(TensorDataset(torch.randn(32, 3, 64, 64), torch.arange(32) % 2), batch_size=8)
    model, criterion = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 2)), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters())

    def train():
        for images, labels in dataloader:
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()

    files = [(str(path), label) for label, name in enumerate(("cat", "dog")) for path in sorted(Path("photos/train", name).iterdir())]
    yield {"model": model, "optimizer": optimizer, "loader": dataloader, "dataloader": dataloader, "criterion": criterion,
           "train": train, "files": files, "file_bytes": Path(files[0][0]).read_bytes()}
    for handle in list(_autotune._open_handles):
        handle.undo()


def check_make(words: list[str]) -> None:
    """Its targets and variables, each of which the Makefile reads, and the values of those that refuse others."""
    makefile = (ROOT / "Makefile").read_text()
    for name, equals, _ in (word.partition("=") for word in words):
        assert not equals or f"$({name})" in makefile or f"call one_of,{name}," in makefile, words
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stderr}"


def run_shell(text: str) -> None:
    kept = []
    for line in text.splitlines():
        if MAKE.match(line):
            check_make(shlex.split(line, comments=True)[1:])
        elif not INSTALLS.match(line):
            kept.append(line)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(kept)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_a_page_runs_in_its_order(page, reader, capsys):
    names, promised = {"__name__": "page", **reader}, set()
    for language, text, line in blocks_of(page):
        if runs_elsewhere(text):
            continue
        if language == "toml":
            Path("mine.toml").write_text(text)
        elif language == "sh":
            run_shell(text)
        elif language == "python":
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), names)
            promised |= set(re.findall(r"# (\w+: .* -> .*)", text))
    assert promised <= set(capsys.readouterr().out.splitlines())


def test_every_block_says_what_it_is_and_claims_to_run_only_where_it_does():
    kinds = {(page.name, language) for page in PAGES for language, text, _ in blocks_of(page) if not runs_elsewhere(text)}
    assert {kind for kind in kinds if kind[1] not in ("python", "sh", "toml", "text")} == set()
    for word, (file, name) in ELSEWHERE.items():
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()
        assert sum(word in text for page in PAGES for _, text, _ in blocks_of(page)) == 1, word


def test_the_readme_fits_on_two_screens_and_says_how_to_try_it_on_the_first():
    lines = README.read_text().splitlines()
    assert len(lines) <= 120
    assert {"make demo", "make test"} <= {" ".join(line.split()[:2]) for line in lines[:20]}


# ---- What pages say of errors is what the code says ----

LITERALS = re.compile(r"""(?:f?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')\s*)+""")
LITERAL = re.compile(r"""f?(?:"((?:[^"\\\n]|\\.)*)"|'((?:[^'\\\n]|\\.)*)')""")


def texts_in(path: Path) -> str:
    """Its string literals, one a line and adjacent ones as one, with a sign that no message has where a value is put in."""
    code = path.read_text(errors="replace")
    if path.suffix != ".py":
        code = re.sub(r"(?<!:)//[^\n]*", "", code)  # Not of an address within a text.
    joined = ("".join(double or single for double, single in LITERAL.findall(found[0])) for found in LITERALS.finditer(code))
    return "\n".join(re.sub(r"\{[^{}]*\}", "\0", text.replace('\\"', '"').replace("\\'", "'")) for text in joined)


# Those whose words come from two literals.
OF_TWO_LITERALS = {"unknown key ..., did you mean ...?"}


def explained() -> dict[str, str]:
    """Each message of the page with its pattern. No dot stands for the end of a line: all of a message is in one literal."""
    messages = re.findall(r"^\| `([^`]+)` \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    return {message: ".*".join(re.escape(piece.strip()) for piece in message.split("...")) for message in messages}


def test_every_message_that_is_explained_is_one_of_the_code():
    sources = [path for folder in ("src", "python") for path in sorted((ROOT / folder).rglob("*"))
               if path.suffix in (".cpp", ".h", ".py") and not path.stem.endswith("_test")]
    texts = "\n".join(map(texts_in, sources))
    patterns = explained()
    classes = {kind.__name__ for kind in hr.errors.class_of_code.values()}
    assert classes <= patterns.keys() and len(patterns) > 100
    assert {message for message, pattern in patterns.items()
            if message not in classes and not re.search(pattern, texts)} == OF_TWO_LITERALS


def texts_of(node: ast.AST) -> Iterator[str]:
    """A zero byte stands where a value is put in."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(one.value) if isinstance(one, ast.Constant) else "\0" for one in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for below in ast.iter_child_nodes(node):
            yield from texts_of(below)


def refusals_of(path: Path) -> list[str]:
    """What a file of Python raises, ends the process with, or returns from a function that is called a refusal. Not what only stands
    before another one's words."""
    tree = ast.parse(path.read_text())
    said = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.exc is not None]
    said += [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "sys.exit"]
    said += [node.value for function in ast.walk(tree) if isinstance(function, ast.FunctionDef) and function.name.endswith("_refusal")
             for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    return [text for node in said for text in texts_of(node) if len(text.split()) >= 4 and not text.endswith(": \0")]


def test_every_refusal_to_be_loaded_is_explained():
    package = ROOT / "python" / "headrace"
    refusals = [text for name in ("_core_door", "_arrays", "__main__") for text in refusals_of(package / f"{name}.py")]
    module = texts_in(ROOT / "src" / "python" / "core" / "core_module.cpp").split("\n")
    refusals += [text for text in module if "process" in text]
    assert len(refusals) == 13
    assert [text for text in refusals if not any(re.search(pattern, text) for pattern in explained().values())] == []
