"""The checks of the tree find what they are there to find."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import layer_check as layers  # noqa: E402
import names_check as names  # noqa: E402
import requirements_check as requirements  # noqa: E402
import tidy  # noqa: E402

LINES = """
headrace_module(base PUBLIC error.h)
headrace_module(data PUBLIC loader.h source.h DEPENDS base LINK ZLIB::ZLIB)
headrace_module(tensor TORCH DEPENDS base)
"""


def findings_for(source: str, module: str, *files: str) -> list[str]:
    modules = layers.read_modules(LINES)
    owners = {header: name for name in modules for header in modules[name].headers}
    return layers.check_object(source, module, [source, *files], modules, owners)


def test_lines_of_modules_are_read():
    modules = layers.read_modules(LINES)
    assert modules["data"].headers == ["loader.h", "source.h"]
    assert modules["data"].depends == ["base"]
    assert modules["tensor"].torch and not modules["data"].torch


def test_include_of_a_module_not_named_is_found():
    assert findings_for("src/base/x.cpp", "base", "src/base/x.h", "include/headrace/error.h") == []
    assert "sees include/headrace/loader.h of module data" in findings_for(
        "src/tensor/x.cpp", "tensor", "include/headrace/loader.h")[0]


def test_options_headers_are_free():
    assert findings_for("src/base/x.cpp", "base", "src/data/data_options.h") == []


def test_torch_before_the_line_is_found():
    header = ".venv/lib/python3.11/site-packages/torch/include/ATen/core/Tensor.h"
    assert "before the LibTorch line" in findings_for("src/data/x.cpp", "data", header)[0]
    assert findings_for("src/tensor/x.cpp", "tensor", header) == []


def test_later_module_in_a_line_is_found():
    modules = layers.read_modules("headrace_module(a DEPENDS b)\nheadrace_module(b)\n")
    assert "not an earlier module" in layers.check_order(modules)[0]


RETIRED = """
RETIRED_KEY("optimizer.rate", "optimizer.lr", "", "", "")
RETIRED_TABLE("schedule", "lr_scheduler")
RETIRED_WORD("shelf", "cache")
RETIRED_WORD("Deal", "BatchSampler")
"""


@pytest.mark.parametrize("text", ["optimizer.rate = 3", "--optimizer.rate 3", "[schedule]", "--schedule.name cosine", "the shelves' shelf",
                                  "EntropyShelf", "entropy_shelf", "shelf_index", "a Deal of"])
def test_a_name_of_an_earlier_version_is_found(text):
    found = names.check_retired("src/x.cpp", f"one line\n{text}", names.retired_patterns(RETIRED))
    assert len(found) == 1 and found[0].startswith("src/x.cpp:2: ")


@pytest.mark.parametrize("text", ["my_optimizer.rate()", "optimizer.rates", "recipe.optimizer.rate", "a schedule", "bookshelfish", "a great deal"])
def test_plain_english_and_other_names_are_left_alone(text):
    assert names.check_retired("src/x.cpp", text, names.retired_patterns(RETIRED)) == []


def test_a_file_named_by_a_word_of_an_earlier_version_is_found():
    assert names.check_retired("src/entropy_shelf.cpp", "", names.retired_patterns(RETIRED))[0].startswith("src/entropy_shelf.cpp:0: ")
    assert names.check_retired("docs/decisions/0001-a-shelf.md", "a shelf", names.retired_patterns(RETIRED)) == []


def test_names_are_split_into_words():
    for name in ("batch_manager", "BatchManager", "kBatchManager", "makeBatchManager", "HTTPManager"):
        assert "manager" in names.words_of(name), name
    assert "util" not in names.words_of("utilization")


def test_forbidden_words_in_comments_and_strings_do_not_count():
    text = '// helper\nint x = 1;  /* util\n*/ const char* y = "manager";\n'
    assert "helper" not in names.blanked(text, ".h")
    assert "manager" not in names.blanked(text, ".h")
    assert names.blanked(text, ".h").count("\n") == text.count("\n")


def test_names_of_others_after_a_dot_do_not_count_in_python():
    found = names.IDENTIFIER["hash"].findall("self.helper = torch.nn.utils.clip(my_util)")
    assert "helper" in found and "my_util" in found and "utils" not in found


def ledger_of(**rows: str) -> str:
    """All IDs with nothing done, but for those that are given what stands behind the title."""
    return "\n".join(f"| {name} | x | {rows.get(name, 'none | | 2 x | not measured' if name.startswith('T-') else 'none |')} |"
                     for name in requirements.expected_ids())


def test_ledger_that_lacks_an_id_or_names_an_unknown_test_is_refused():
    def findings(table: str, *tests: str) -> str:
        return "\n".join(requirements.check_table(table, known_tests=set(tests)))

    table = ledger_of()
    assert findings(table) == ""
    assert "H-1 is missing" in findings(table.split("\n", 1)[1])
    assert "H-1 is there twice" in findings(table + "\n" + table.split("\n", 1)[0])
    assert "H-1 is 'done' and names no test" in findings(ledger_of(**{"H-1": "done |"}))
    part = ledger_of(**{"H-1": "part | `base.Gone.Gone`. Missing: what `auto` says."})
    assert "H-1 names base.Gone.Gone, which does not exist" in findings(part)
    assert findings(part, "base.Gone.Gone") == ""


def test_ledger_whose_part_does_not_say_what_is_missing_is_refused():
    for row, says in (("part | `a.B.C`", "does not say"), ("part | `a.B.C`. Missing: ", "does not say"),
                      ("done | `a.B.C`. Missing: the rest.", "says"), ("done | `a.B.C`", None)):
        found = requirements.check_table(ledger_of(**{"H-1": row}), known_tests={"a.B.C"})
        assert len(found) == (says is not None), found
        assert says is None or f"{says} what is missing" in found[0]


def test_ledger_whose_target_lacks_its_figures_is_refused():
    for row, words in (("none | | 2 x | 3 x (2026-11-22, `make a`)", None), ("none | | 2 x | not measured", None),
                       ("none | | | not measured", "does not say what is wanted"), ("none | | 2 x | 3 x", "wanted 'not measured', or"),
                       ("none | | 2 x | 3 x (`make a`)", "wanted 'not measured', or"), ("none |", "not | ID | title")):
        found = requirements.check_table(ledger_of(**{"T-01": row}), known_tests=set())
        assert bool(found) == (words is not None), (row, found)
        assert words is None or words in found[0]


def test_every_sentence_of_help_names_a_target():
    makefile = (ROOT / "Makefile").read_text()
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = {line.split()[1] for line in shown.splitlines() if line.startswith("make ") and line[5] != " "}
    targets = set(re.search(r"\.PHONY: (.*)", makefile)[1].split()) - {"help"}
    assert named - {"make"} | {"build"} == targets
    assert all(f"\n{target}:" in makefile for target in targets)


def make(*words: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *words], cwd=ROOT, text=True, env=environment, capture_output=True)


def test_an_argument_that_does_not_exist_is_refused_by_name_with_those_there_are():
    for words, said in ((["test", "IN=network"], "no IN=network; there is IN=bare"), (["demo", "IN=x"], "there is IN=bare"),
                        (["setup", "JOB=x"], "there is JOB=photos"), (["check", "ON=gpu"], "no check on a GPU yet")):
        done = make("--dry-run", *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_count_is_the_last_line_of_a_failed_ci_run():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run([".ci/run"], cwd=ROOT, text=True, env={**environment, "PARTS": "nothing_of_this_name"},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"


def test_dependencies_of_an_object_are_read_and_stale_ones_left_out():
    listing = "a.o: #deps 2, deps mtime 1 (VALID)\n    ../a.cpp\n    ../a.h\n\nb.o: #deps 1, deps mtime 2 (STALE)\n    ../b.cpp\n\n"
    assert tidy.read_dependencies(listing) == {"a.o": ["../a.cpp", "../a.h"]}
