"""A test run counts what it ran, what failed and what it left out, and leaves out only what passed as it is now."""

import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import passed  # noqa: E402
import run_tests  # noqa: E402
import test_programs  # noqa: E402

BEGIN = 'print("[==========] Running 3 tests from 1 test suite.\\n[ RUN      ] S.One\\n[       OK ] S.One (1500 ms)", flush=True)\n'
TWO = 'print("[ RUN      ] S.Two", flush=True)\n'
REST = TWO + 'print("said by the case[       OK ] S.Two (2 ms)\\n[ RUN      ] S.Three\\n[       OK ] S.Three (3 ms)\\n")\n'


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A build tree whose CTests are scripts that speak as GoogleTest does, and a cache of its own."""
    made = Tree(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(test_programs, "ROOT", made.root)
    monkeypatch.setattr(run_tests, "ROOT", made.root)
    monkeypatch.setattr(run_tests, "LOGS", made.root / "build" / "test")
    monkeypatch.setattr(run_tests, "SHARDS", 1)
    monkeypatch.setattr(test_programs, "machine", lambda: "this one")
    monkeypatch.setattr(test_programs, "file_hash", test_programs.file_hash.__wrapped__)
    monkeypatch.setattr(test_programs, "shared_libraries", lambda binary: [])
    monkeypatch.setattr(run_tests.test_programs, "read_programs", lambda build: list(made.programs.values()))
    monkeypatch.setattr(run_tests, "commit", lambda: made.commit)
    monkeypatch.setattr(passed, "drawn", lambda commit, name: (commit, name) in made.drawn)
    return made


class Tree:
    def __init__(self, folder: Path):
        self.root = folder / "checkout"
        (self.root / "build" / "test").mkdir(parents=True)
        self.programs: dict[str, test_programs.Program] = {}
        self.ran = folder / "ran"
        self.commit = "first"
        self.drawn: set[tuple[str, str]] = set()

    def write(self, name: str, body: str, inputs: list[Path] = [], labels: list[str] = ["gtest"], timeout_s: float = 60) -> None:
        path = self.root / name
        path.write_text(f"#!{sys.executable}\nimport os, signal, sys, time\nopen({str(self.ran)!r}, 'a').write('{name} ')\n{body}")
        path.chmod(0o755)
        self.programs[name] = test_programs.Program(name, [str(path)], str(self.root), timeout_s, labels, inputs, False)

    def run(self, **options: str) -> run_tests.Result:
        self.ran.write_text("")
        return run_tests.run_sanitized("asan", "asan", options)

    def names_run(self) -> list[str]:
        return self.ran.read_text().split()


def test_a_program_that_passed_is_counted_apart_and_not_run(tree):
    tree.write("one", BEGIN + REST)
    tree.write("two", BEGIN + REST)
    first = tree.run()
    assert (first.passed, first.failures, first.unchanged) == (6, [], 0)
    assert first.seconds["asan one.S.One"] == 1.5
    second = tree.run()
    assert (second.passed, second.failures, second.unchanged) == (0, [], 6)
    assert tree.names_run() == []
    assert second.note.startswith("6 unchanged since they passed, in 2 of 2 programs")


def test_a_program_runs_again_after_its_bytes_its_inputs_or_its_options_changed(tree):
    data = tree.root / "inputs"
    data.mkdir()
    (data / "a").write_text("1")
    tree.write("one", BEGIN + REST, [data])
    tree.run(OPTIONS="a")
    assert tree.run(OPTIONS="a").unchanged == 3
    assert tree.run(OPTIONS="b").unchanged == 0
    (data / "a").write_text("2")
    assert tree.run(OPTIONS="a").unchanged == 0
    (data / "b").write_text("2")
    assert tree.run(OPTIONS="a").unchanged == 0
    tree.write("one", BEGIN + REST + "\n", [data])
    assert tree.run(OPTIONS="a").unchanged == 0
    assert tree.run(OPTIONS="a").unchanged == 3


def test_the_key_is_the_same_in_another_clone(tree, tmp_path, monkeypatch):
    def key_in(clone: Path) -> str:
        (clone / "data").mkdir(parents=True)
        (clone / "data" / "a").write_text("1")
        (clone / "program").write_text("the same bytes")
        monkeypatch.setattr(test_programs, "ROOT", clone)
        program = test_programs.Program("one", [str(clone / "program"), "data"], str(clone), 60, ["gtest"], [clone / "data"], False)
        return test_programs.outcome_key(program, [], {})

    assert key_in(tmp_path / "a") == key_in(tmp_path / "b")


def test_a_program_under_a_sanitizer_finds_only_the_files_it_names(tree):
    (tree.root / "examples").mkdir()
    for name in ("named.toml", "other.toml"):
        (tree.root / "examples" / name).write_text("")
    found = "print(os.listdir('examples'), os.listdir('.'), sorted(os.environ))\n"
    tree.write("one", BEGIN + REST + found, [tree.root / "examples" / "named.toml"])
    assert tree.run(OPTIONS="a").failures == []
    shown = (tree.root / "build" / "test" / "asan" / "one.0.log").read_text()
    assert "['named.toml'] ['examples']" in shown and "'OPTIONS'" in shown and "PYTEST_CURRENT_TEST" not in shown


def test_one_drawn_by_the_commit_runs_although_unchanged(tree):
    tree.write("one", BEGIN + REST)
    tree.write("two", BEGIN + REST)
    tree.run()
    tree.commit, tree.drawn = "second", {("second", "asan two")}
    result = tree.run()
    assert (result.passed, result.unchanged, tree.names_run()) == (3, 3, ["two"])
    assert "run although unchanged: two" in result.note


def test_one_in_ten_is_drawn_and_the_same_for_the_same_commit():
    names = [f"asan {number}" for number in range(2000)]
    first = [name for name in names if passed.drawn("c0ffee", name)]
    assert 140 < len(first) < 260
    assert first == [name for name in names if passed.drawn("c0ffee", name)]
    assert first != [name for name in names if passed.drawn("decaf", name)]


def test_programs_that_there_is_no_time_for_are_named_and_not_remembered(tree, monkeypatch):
    tree.write("one", BEGIN + REST)
    monkeypatch.setattr(run_tests, "END_S", time.monotonic())
    late = tree.run()
    assert (late.passed, late.failures, late.left_out, tree.names_run()) == (0, [], ["asan one"], [])
    monkeypatch.setattr(run_tests, "END_S", math.inf)
    assert (tree.run().passed, tree.names_run()) == (3, ["one"])


def test_a_run_whose_time_ends_starts_no_program_more(tree, monkeypatch):
    monkeypatch.setattr(run_tests, "CORES", 1)
    for name in ("one", "two"):
        tree.write(name, BEGIN + "time.sleep(1.5)\n" + REST)
    monkeypatch.setattr(run_tests, "END_S", time.monotonic() + 1)
    found = tree.run()
    assert (found.passed, found.failures, found.left_out, tree.names_run()) == (3, [], ["asan two"], ["one"])


@pytest.mark.parametrize("said, failed", [("[3/9] Building CXX object", 0), ("FAILED: CMakeFiles/one.o", 1)])
def test_a_build_that_ends_with_the_time_is_a_failure_only_where_something_does_not_compile(tree, monkeypatch, said, failed):
    def cut(name, preset, timeout_s, *targets):
        assert (name, preset, targets) == ("asan", "asan", ("test_programs",)) and timeout_s == 1
        (run_tests.LOGS / "asan.log").write_text(said)
        return run_tests.Result(failures=["asan (status 124)"])

    monkeypatch.setattr(run_tests, "build", cut)
    monkeypatch.setattr(run_tests, "END_S", time.monotonic())
    found = run_tests.build_sanitized("asan", 3600)
    assert (len(found.failures), len(found.left_out)) == (failed, 1 - failed)
    monkeypatch.setattr(run_tests, "END_S", math.inf)
    monkeypatch.setattr(run_tests, "build", lambda *words: run_tests.Result(failures=["asan (status 124)"]))
    assert run_tests.build_sanitized("asan", 3600).failures == ["asan (status 124)"]


def test_make_check_takes_nothing_from_the_memory(tree, monkeypatch):
    tree.write("one", BEGIN + REST)
    tree.run()
    monkeypatch.setattr(run_tests, "ANEW", True)
    result = tree.run()
    assert (result.passed, result.unchanged) == (3, 0)


def test_a_program_that_fails_is_forgotten_until_it_passes(tree):
    flag = tree.root / "fails"
    tree.write("one", BEGIN + REST + f"sys.exit(os.path.exists({str(flag)!r}))\n")
    tree.run()
    flag.touch()
    tree.drawn = {("first", "asan one")}
    failed = tree.run()
    assert failed.failures == ["asan one (every case that ran passed, then status 1)"] and failed.passed == 3
    flag.unlink()
    tree.drawn = set()
    assert tree.run().passed == 3
    assert tree.run().unchanged == 3


def damaged_in_every_way(text: str):
    yield ""
    yield text[: len(text) // 2]
    yield "[]"
    yield "null"
    yield text.replace('"cases": 3', '"cases": 4')
    yield json.dumps({**json.loads(text), "format": 2})
    yield json.dumps({"format": 1, "entries": {}})
    yield "\0" * len(text)


def test_a_damaged_memory_is_said_and_everything_runs(tree, capsys):
    tree.write("one", BEGIN + REST)
    tree.run()
    path = passed.open_passed().path
    whole = path.read_text()
    for text in damaged_in_every_way(whole):
        path.write_text(text)
        result = tree.run()
        assert (result.passed, result.unchanged, result.failures) == (3, 0, []), text
        assert capsys.readouterr().out.count("the memory of what passed is damaged, everything runs: ") == 1
        assert tree.run().unchanged == 3  # It was written anew.


def test_two_runs_at_once_keep_what_both_learn(tmp_path):
    path = tmp_path / "passed.json"
    writers = [threading.Thread(target=lambda first=first: [
        passed.Passed.load(path).remember({f"{first} {number}": 1}) for number in range(40)]) for first in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    memory = passed.Passed.load(path)
    assert memory.damage == "" and len(memory.entries) == 160
    assert sorted(file.name for file in tmp_path.iterdir()) == ["passed.json", "passed.lock"]


def test_the_memory_is_bounded_and_keeps_what_was_used_last(tmp_path, monkeypatch):
    clock = itertools.count(1000)
    monkeypatch.setattr(passed.time, "time", lambda: next(clock))
    monkeypatch.setattr(passed, "ENTRIES_MAX", 2)
    memory = passed.Passed.load(tmp_path / "passed.json")
    memory.remember({"old": 1})
    memory.remember({"new": 1})
    memory.remember({}, used=["old"])
    memory.remember({"newest": 1})
    assert sorted(passed.Passed.load(memory.path).entries) == ["newest", "old"]


@pytest.mark.parametrize("ending, said", [("os.kill(os.getpid(), signal.SIGSEGV)", "signal 11 (SIGSEGV)"), ("sys.exit(0)", "the process ended in it"),
                                          ("sys.exit(3)", "status 3")])
def test_a_crash_is_the_failure_of_the_case_that_ran_and_of_those_behind_it(tree, ending, said):
    tree.write("one", BEGIN + TWO + ending)
    result = tree.run()
    assert result.passed == 1
    assert result.failures == [f"asan one.S.Two ({said})", "asan a case behind one.S.Two (did not run)"]
    assert tree.run().unchanged == 0


def test_a_case_that_hangs_is_ended_and_named(tree, monkeypatch):
    monkeypatch.setattr(test_programs, "CASE_TIMEOUT_S", 1)
    tree.write("one", BEGIN + TWO + "time.sleep(60)")
    result = tree.run()
    assert result.failures[0] == "asan one.S.Two (stopped after 1 s of one case)"
    tree.programs.clear()
    tree.write("plain", "time.sleep(60)", labels=["fuzz_replay"], timeout_s=1)
    assert tree.run().failures == ["asan plain (stopped after 1 s)"]


def test_cases_that_fail_are_skipped_or_disabled_count_as_failed(tree):
    tree.write("one", BEGIN + 'print("[ RUN      ] S.Two\\n[  SKIPPED ] S.Two (0 ms)\\n[ RUN      ] S.Three/0\\n'
               '[  FAILED  ] S.Three/0, where GetParam() = 4 (7 ms)\\n[  FAILED  ] S.Three/0, where GetParam() = 4\\n'
               '  YOU HAVE 1 DISABLED TEST\\n")\nsys.exit(1)')
    result = tree.run()
    assert result.passed == 1
    assert result.failures == ["asan one.S.Two (skipped)", "asan one.S.Three/0 (failed)", "asan disabled cases (1 disabled)"]


def test_a_program_without_a_case_or_not_built_fails(tree):
    tree.write("empty", 'print("[==========] Running 0 tests from 0 test suites.")')
    tree.write("gone", "")
    (tree.root / "gone").unlink()
    assert sorted(tree.run().failures) == ["asan empty (it has no case)", "asan gone (it was not built)"]


def test_programs_of_a_build_tree_are_read_with_what_they_need(tmp_path):
    (tmp_path / "CTestTestfile.cmake").write_text("""
      add_test(data /bin/true word)
      set_tests_properties(data PROPERTIES LABELS gtest TIMEOUT 9 WORKING_DIRECTORY /tmp REQUIRED_FILES "/a;/b" RUN_SERIAL ON)
    """)
    (program,) = test_programs.read_programs(tmp_path)
    assert program == test_programs.Program("data", ["/bin/true", "word"], "/tmp", 9, ["gtest"], [Path("/a"), Path("/b")], True)


def test_junit_counts_failures_and_skips(tmp_path):
    path = tmp_path / "results.xml"
    path.write_text("""<testsuite><testcase classname="tests.a_test" name="a" time="1.5"/>
      <testcase classname="tests.a_test" name="b"><failure message=""/></testcase>
      <testcase classname="tests.a_test" name="c"><skipped message=""/></testcase></testsuite>""")
    result = run_tests.read_junit(path, "pytest")
    assert result.passed == 1 and result.failures == ["pytest tests/a_test.py::b", "pytest tests/a_test.py::c"]
    assert result.seconds["pytest tests/a_test.py::a"] == 1.5
    assert len(run_tests.read_junit(tmp_path / "absent.xml", "x").failures) == 1


@pytest.fixture
def write_test_file(tmp_path, monkeypatch):
    """Writes a test file of two cases. Each case leaves a line in the file `ran` when it is run."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "logs").mkdir()
    for name in ("pytest.ini", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "LOGS", tmp_path / "logs")

    def write(name: str, body: str = "") -> None:
        (tmp_path / "tests" / f"{name}_test.py").write_text(
            f"import os, signal\n\ndef ran(case):\n    with open({str(tmp_path / 'ran')!r}, 'a') as file:\n"
            f"        file.write(f'{name} {{case}}\\n')\n\n"
            f"def test_one():\n    ran('one')\n\ndef test_two():\n    ran('two')\n{body}")

    return write


def test_shards_run_each_test_file_once(write_test_file, tmp_path):
    names, cases = [f"file{number}" for number in range(6)], ("one", "two")
    for name in names:
        write_test_file(name)
    for _ in range(2):  # The second run does not take the first one's claims for its own.
        (tmp_path / "ran").unlink(missing_ok=True)
        result = run_tests.pytest("pytest", timeout_s=300, shards=3)
        assert (result.passed, result.failures) == (12, [])
        assert sorted((tmp_path / "ran").read_text().splitlines()) == [f"{name} {case}" for name in names for case in cases]
    assert sorted(result.seconds) == [f"pytest tests/{name}_test.py::test_{case}" for name in names for case in cases]


def test_a_failure_in_one_shard_and_a_crash_of_another_are_the_runs(write_test_file):
    write_test_file("sound")
    write_test_file("wrong", "    assert False\n")
    assert run_tests.pytest("pytest", timeout_s=300, shards=2).failures == ["pytest tests/wrong_test.py::test_two"]
    write_test_file("wrong", "    os.kill(os.getpid(), signal.SIGSEGV)\n")
    result = run_tests.pytest("pytest", timeout_s=300, shards=2)
    assert "pytest: wrote no results" in result.failures


def test_pytest_without_a_case_or_in_time_fails(write_test_file, tmp_path):
    write_test_file("none")
    assert run_tests.pytest("pytest", "-m", "alone", timeout_s=300).failures
    write_test_file("hanging", "    __import__('time').sleep(60)\n")
    assert run_tests.pytest("pytest", timeout_s=3).failures == ["pytest: wrote no results"]
    assert "stopped after 3 s" in (tmp_path / "logs" / "pytest.0.log").read_text()


def run_main(monkeypatch, tmp_path, *words: str, **parts) -> int:
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run_tests.py", *words])
    monkeypatch.setattr(run_tests, "PARTS", parts)
    monkeypatch.setattr(run_tests, "ANEW", False)  # Put back behind the test, as the next one is.
    monkeypatch.setattr(run_tests, "END_S", math.inf)
    return run_tests.main()


def test_count_is_the_last_line_also_when_a_part_fails(monkeypatch, capsys, tmp_path):
    def broken():
        raise OSError("no such tool")

    assert run_main(monkeypatch, tmp_path, first=broken, second=lambda: run_tests.Result(passed=3, failures=["second: case"]),
                    third=lambda: run_tests.Result(passed=2)) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 2 failed"
    assert run_main(monkeypatch, tmp_path, only=lambda: run_tests.Result(passed=2, unchanged=70)) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["70 unchanged since they passed", "2 passed, 0 failed"]
    late = run_tests.Result(passed=2, left_out=["asan one", "tidy"])
    assert run_main(monkeypatch, tmp_path, "--minutes", "7", only=lambda: late) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "only: 2 passed, 0 failed, 0 s (no time for 2)" in shown
    assert shown[-2:] == ["not run, as the 7 minutes were over: asan one, tidy", "2 passed, 0 failed"]
    assert (tmp_path / "count").read_text() == "2 passed, 0 failed\n"


def test_the_slowest_are_shown_and_a_slow_one_without_a_reason_is_a_warning(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run_tests, "SLOW", tmp_path / "slow_tests.txt")
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    (tmp_path / "slow_tests.txt").write_text("# of all\ntests/a_test.py::known: it waits for a clock\n")
    seconds = {f"asan x.S.{number}": number / 100 for number in range(20)}
    seconds |= {"pytest tests/a_test.py::known[3]": 30.0, "asan x.S.Unknown": 25.0}
    assert run_main(monkeypatch, tmp_path, only=lambda: run_tests.Result(passed=22, seconds=seconds)) == 0
    shown = capsys.readouterr().out.split("slowest:\n")[1].splitlines()
    assert shown[0] == "    30.0 s  pytest tests/a_test.py::known[3] (it waits for a clock)"
    assert "x.S.Unknown warning: over 20 s, and slow_tests.txt gives no reason" in shown[1]
    assert len([line for line in shown if " s  " in line]) == 10 and shown[-1] == "22 passed, 0 failed"


def test_every_reason_belongs_to_a_test_that_exists():
    names = {tuple(name.split("::")) for name in run_tests.read_reasons() if "::" in name}
    assert names and [(file, name) for file, name in names if f"def {name}(" not in (ROOT / file).read_text()] == []
    cases = {tuple(name.split(".")[1:]) for name in run_tests.read_reasons() if name.count(".") == 2}
    sources = "".join(path.read_text() for path in ROOT.glob("src/**/*_test.cpp"))
    assert cases and [case for case in cases if not re.search(rf"\bTEST(?:_F|_P)?\({case[0]},\s*{case[1]}\)", sources)] == []


def covers(entry: str, name: str) -> bool:
    return name == entry or name.startswith((f"{entry}::", f"{entry}["))


def test_what_is_left_out_without_the_engine_is_what_the_list_says_and_why():
    lines = (ROOT / "tests" / "engine_tests.txt").read_text().splitlines()
    entries = [line.split(": ", 1)[0] for line in lines if not line.startswith("#")]
    assert all(line.startswith("#") or line.split(": ", 1)[1] for line in lines) and len(set(entries)) == len(entries)
    files = sorted(f"tests/{path.name}" for path in (ROOT / "tests").glob("*_test.py") if "mark.engine" in path.read_text())
    listed = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "engine", *files], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout
    marked = [line for line in listed.splitlines() if "::" in line]
    assert [name for name in marked if sum(covers(entry, name) for entry in entries) != 1] == []
    assert [entry for entry in entries if not any(covers(entry, name) for name in marked)] == []


def test_every_file_of_the_suite_without_the_engine_is_there():
    files = run_tests.test_files(*run_tests.WITHOUT_ENGINE, *run_tests.WITHOUT_ENGINE_IF_ANEW)
    assert len(set(files)) == len(files) and [file for file in files if not (ROOT / file).is_file()] == []
    # All that import the package but those of the command, of documents and of what is built outside the tree, and what the list leaves
    # out whole.
    importing = {f"tests/{path.name}" for path in (ROOT / "tests").glob("*_test.py")
                 if re.search(r"^(import headrace|from headrace\b)", path.read_text(), re.MULTILINE)}
    assert importing - set(files) == set(run_tests.test_files(
        "bad_training", "beside_torch", "device_figures", "documents", "engine_calls", "facade_field_costs",
        "facade_performance_optimizer", "facade_trainer", "live_figures", "operator_profile", "own_kernel", "pages",
        "python_batch_size", "python_fine_tuning_trainer", "python_torch_optimizers", "python_trainer", "recorded_bytes",
        "swa_verbs", "table", "trainer_parity", "trainer_state", "training_parts"))


def test_part_that_hangs_is_stopped(monkeypatch, tmp_path):
    monkeypatch.setattr(run_tests, "LOGS", tmp_path)
    assert run_tests.run_logged("slow", ["sleep", "60"], timeout_s=1) == 124
    assert "stopped after 1 s" in (tmp_path / "slow.log").read_text()


@pytest.mark.parametrize("stop", ["SIGINT", "SIGTERM"])
def test_a_run_that_is_interrupted_leaves_no_program_behind(tree, stop):
    mark = tree.root / "pid"
    # Renamed once it is whole: the run is interrupted as soon as it is there.
    note = f"open({str(mark)!r} + '.aside', 'w').write(str(os.getpid()))\nos.rename({str(mark)!r} + '.aside', {str(mark)!r})\n"
    tree.write("one", BEGIN + TWO + note + "time.sleep(600)", timeout_s=600)
    code = f"""
import sys, threading, time, os, signal
sys.path.insert(0, {str(ROOT / "tools")!r})
import run_tests, test_programs
from pathlib import Path
run_tests.stop_alike()
def interrupt():
    while not Path({str(mark)!r}).exists(): time.sleep(0.05)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.{stop})
threading.Thread(target=interrupt).start()
run_tests.LOGS = Path({str(tree.root / "build" / "test")!r})
(run_tests.LOGS / "asan").mkdir()
program = test_programs.Program("one", [{str(tree.root / "one")!r}], {str(tree.root)!r}, 600, ["gtest"], [], False)
try:
    run_tests.Runs("asan", dict(os.environ), lambda program: Path(program.folder)).run([program])
except KeyboardInterrupt:
    sys.exit(5)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=300)
    assert done.returncode == 5
    with pytest.raises(ProcessLookupError):
        __import__("os").kill(int(mark.read_text()), 0)
