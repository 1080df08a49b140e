"""headrace compare as a shell and a pull request see it. The programs that are compared write figures that they draw, with no clock in
them: the machine's own noise decides nothing here."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path

import pytest
from document_blocks import GUIDES, snippet
from report_page_test import Page

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(os.environ.get("HEADRACE_BIN", ROOT / "build" / "release" / "bin" / "headrace"))
# Of a script's own Python: {factor} times 10 ms a step, of which the forward has all that is added, each run up to 1 % off.
SCRIPT = """
import json, os, random, sys
random.seed(os.getpid())
noise = 1 + random.uniform(-0.01, 0.01)
with open(os.environ["HEADRACE_RESULT"], "w") as result:
    for step in range(30):
        step_s = 0.01 * {factor} * noise
        result.write(json.dumps({{"step_s": step_s, "samples": 32, "stages": {{"forward": step_s - 0.006, "backward": 0.006}}}}) + "\\n")
    result.write(json.dumps({{"accuracy": 0.9, "arguments": " ".join(sys.argv[1:])}}) + "\\n")
"""
# The same without Python, a few ms a run: the number of the run seeds its noise, of 1 %.
QUICK = """#!/bin/sh
number=$(cat {counter} 2>/dev/null || echo {seed})
echo $((number + 1)) > {counter}
awk -v number=$number 'BEGIN {{ srand(number); for (i = 0; i < 12; i++) sum += rand();
  printf "{{\\"step_s\\": %.9f}}\\n", {factor} * (1 + 0.01 * (sum - 6)) }}' > "$HEADRACE_RESULT"
"""
METRICS = ("--metrics", "step_p50_s,step_p95_s,samples_per_s,accuracy")


def headrace(*arguments, **options):
    return subprocess.run([PROGRAM, "compare", *map(str, arguments)], capture_output=True, text=True, timeout=100, **options)


def script(folder: Path, name: str, factor: float = 1.0) -> Path:
    (folder / name).write_text(SCRIPT.format(factor=factor))
    return folder / name


def quick(folder: Path, name: str, factor: float = 1.0, seed: int = 1) -> Path:
    path = folder / name
    path.write_text(QUICK.format(counter=folder / f"{name}.count", factor=factor, seed=seed))
    path.chmod(0o755)
    return path


def assert_one_error(run, code, *words):
    assert run.returncode == code, run.stderr
    assert run.stdout == ""
    assert run.stderr.startswith("headrace: error: ") and run.stderr.count("\n") == 1, run.stderr
    for word in words:
        assert word in run.stderr


def test_a_slower_script_is_regressed_and_its_metrics_and_stage_are_named(tmp_path):
    run = headrace(script(tmp_path, "old.py"), script(tmp_path, "new.py", 1.1), *METRICS, "--python", sys.executable,
                   "--json", tmp_path / "c.json", "--junit", tmp_path / "c.xml", "--markdown", tmp_path / "c.md")
    assert run.returncode == 3, run.stderr
    document = json.loads((tmp_path / "c.json").read_text())
    verdicts = {metric["name"]: metric["verdict"] for metric in document["metrics"]}
    assert verdicts["step_p50_s"] == "regressed" and verdicts["samples_per_s"] == "regressed"
    assert verdicts["accuracy"] in ("equivalent", "inconclusive")
    assert [stage["name"] for stage in document["stages"] if stage["changed"]][:1] == ["forward"]
    assert document["pairs"] < 60
    assert "NEW is worse than OLD: " in run.stdout and "forward" in run.stdout
    suite = xml.etree.ElementTree.parse(tmp_path / "c.xml").getroot().find("testsuite")
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert {"step_p50_s", "samples_per_s"} <= failed and int(suite.get("failures")) == len(failed)
    assert "headrace compare: failed" in (tmp_path / "c.md").read_text()


# Figures that are drawn by nobody; a loop of torch only where headrace profile runs it, so that the pairs take no time.
UNEDITED = """
import json, os, sys, time
with open(os.environ["HEADRACE_RESULT"], "w") as result:
    result.write(json.dumps({{"step_s": {forward_s} + 0.01}}) + "\\n")
if "headrace" in sys.modules:
    import torch

    class Slow(torch.nn.Linear):
        def forward(self, inputs):
            time.sleep({forward_s})
            return super().forward(inputs)

    model = Slow(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs in torch.utils.data.DataLoader(torch.randn(32, 4), 4):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
"""


def test_the_part_that_has_changed_in_a_script_that_does_not_tell_is_found_after_the_verdict(tmp_path):
    for name, forward_s in (("old.py", 0.02), ("new.py", 0.1)):
        (tmp_path / name).write_text(UNEDITED.format(forward_s=forward_s))
    import headrace as hr

    environment = {**os.environ, "PYTHONPATH": str(Path(hr.__file__).parent.parent)}
    run = headrace(tmp_path / "old.py", tmp_path / "new.py", "--metrics", "step_p50_s", "--python", sys.executable, "--json", tmp_path / "c.json",
                   "--html", tmp_path / "c.html", env=environment)
    assert run.returncode == 3, run.stderr
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["stages_of"] == "one further pair", document["remarks"]
    assert document["stages"][0]["name"] == "forward"
    assert document["stages"][0]["new_s"] > document["stages"][0]["old_s"] and not document["stages"][0]["changed"]
    assert "Parts of a step, in one further pair:" in run.stdout
    page = Page((tmp_path / "c.html").read_text())
    assert page.of("svg", **{"class": "pairs-chart"}) and "forward" in page.text and not page.of("script")


def test_words_behind_the_dashes_reach_both_and_no_verdict_is_a_number_of_the_machine(tmp_path):
    seen = "import os, sys; open(os.environ['HEADRACE_RESULT'], 'w').write('{\"step_s\": 1}'); open(sys.argv[1], 'a').write(__file__ + '\\n')\n"
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text(seen)
    run = headrace(tmp_path / "old.py", tmp_path / "new.py", "--metrics", "step_p50_s", "--python", sys.executable, "--", tmp_path / "seen")
    assert (run.returncode, run.stderr) == (0, "")
    lines = (tmp_path / "seen").read_text().splitlines()
    assert lines.count(str(tmp_path / "old.py")) == lines.count(str(tmp_path / "new.py")) == len(lines) / 2
    assert "NEW and OLD are equivalent" in run.stdout


def test_of_twenty_times_the_same_build_at_most_one_is_an_alarm(tmp_path):
    found = [headrace(quick(tmp_path, f"a{number}", seed=1000 * number), quick(tmp_path, f"b{number}", seed=1000 * number + 500),
                      "--metrics", "step_p50_s").returncode for number in range(20)]
    assert set(found) <= {0, 3} and found.count(3) <= 1


def test_of_twenty_times_ten_percent_at_most_one_is_missed(tmp_path):
    found = [headrace(quick(tmp_path, f"a{number}", seed=1000 * number), quick(tmp_path, f"b{number}", 1.1, seed=1000 * number + 500),
                      "--metrics", "step_p50_s").returncode for number in range(20)]
    assert set(found) <= {0, 3} and found.count(3) >= 19


@pytest.fixture
def repository(tmp_path):
    """Two commits of a script; the second is slower."""
    folder = tmp_path / "repository"
    folder.mkdir()

    def git(*words):
        done = subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *words], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    git("init", "--quiet")
    for factor in (1.0, 1.1):
        script(folder, "job.py", factor)
        git("add", "job.py")
        git("commit", "--quiet", "-m", f"factor {factor}")
    return folder, git


def test_two_commits_are_built_and_run_and_the_checkout_stays_as_it_is(repository, tmp_path):
    folder, git = repository
    (folder / "job.py").write_text("raise SystemExit('the working tree is not what is compared')\n")
    run = headrace("HEAD~1", "HEAD", *METRICS, "--build", f"mv job.py built.py && echo built >> {tmp_path / 'builds'}",
                   "--json", tmp_path / "c.json", "--", sys.executable, "built.py", cwd=folder)
    assert run.returncode == 3, run.stderr
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["old"] == f"HEAD~1@{git('rev-parse', 'HEAD~1')[:12]}" and document["new"].startswith("HEAD@")
    assert (tmp_path / "builds").read_text() == "built\nbuilt\n"
    assert git("status", "--porcelain") == "M job.py" and git("worktree", "list").count("\n") == 0


MAKEFILE = f"""build:
\tmkdir -p build/release/bin
\t(echo '#!{sys.executable}'; cat job.py) > build/release/bin/headrace
\tchmod +x build/release/bin/headrace
"""


def test_the_guides_line_for_a_pull_request_builds_and_compares_both(repository, tmp_path):
    folder, git = repository
    (folder / "Makefile").write_text(MAKEFILE)
    for factor in (1.0, 1.3):
        script(folder, "job.py", factor)
        git("add", "Makefile", "job.py")
        git("commit", "--quiet", "-m", f"built, factor {factor}")
    git("update-ref", "refs/remotes/origin/main", "HEAD~1")
    (tmp_path / "headrace").write_text(f'#!/bin/sh\nexec "{PROGRAM}" "$@"\n')
    (tmp_path / "headrace").chmod(0o755)
    command = snippet(GUIDES / "comparing_runs.md", "sh", "origin/main HEAD")
    run = subprocess.run(["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
                         capture_output=True, text=True, timeout=100)
    assert run.returncode == 3, run.stderr
    cases = {case.get("name"): case for case in xml.etree.ElementTree.parse(folder / "compare.xml").getroot().iter("testcase")}
    failed = [name for name, case in cases.items() if case.find("failure") is not None]
    assert any("step_p50_s" in name for name in failed), cases
    assert "step_p50_s" in (folder / "compare.md").read_text()


def test_a_build_that_fails_and_a_commit_without_a_command_are_one_line(repository):
    folder, _ = repository
    assert_one_error(headrace("HEAD~1", "HEAD", "--build", "echo no compiler; exit 2", "--", "true", cwd=folder), 1,
                     "the build of OLD (HEAD~1@", "exit status 2", "no compiler")
    assert_one_error(headrace("HEAD~1", "HEAD", cwd=folder), 2, "nothing says what to run in it", "--")
    assert_one_error(headrace("HEAD~1", "no-such-branch", "--", "true", cwd=folder), 1, "NEW is \"no-such-branch\"")


def test_a_run_that_fails_is_an_error_of_the_pull_request_too(tmp_path):
    (tmp_path / "new.py").write_text("raise ValueError('no such layer')\n")
    run = headrace(script(tmp_path, "old.py"), tmp_path / "new.py", "--python", sys.executable, "--junit", tmp_path / "c.xml")
    assert_one_error(run, 1, "NEW (", "exit status 1", "ValueError: no such layer")
    suite = xml.etree.ElementTree.parse(tmp_path / "c.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1") and "no such layer" in suite.find("testcase/error").get("message")


def test_a_result_that_is_missing_is_a_failure(tmp_path):
    (tmp_path / "new.py").write_text(SCRIPT.format(factor=1.0).replace('"accuracy": 0.9, ', ""))
    run = headrace(script(tmp_path, "old.py"), tmp_path / "new.py", "--python", sys.executable)
    assert run.returncode == 3 and "a result is missing: accuracy" in run.stdout


def test_nan_and_wrong_ranges_are_one_line(tmp_path):
    (tmp_path / "nan.py").write_text("import os; open(os.environ['HEADRACE_RESULT'], 'w').write('{\"loss\": NaN}')\n")
    old = script(tmp_path, "old.py")
    assert_one_error(headrace(tmp_path / "nan.py", old, "--python", sys.executable), 1, "the result of OLD (", "line 1", "NaN")
    assert_one_error(headrace(old, old, "--tolerance", "step_p50_s=-1"), 2, "step_p50_s", "above 0")
    assert_one_error(headrace(old, old, "--false-discovery-rate", "2"), 2, "--false-discovery-rate")
    assert_one_error(headrace(old, old, "--metrics", "a,"), 2, "--metrics")


def test_stored_runs_of_other_machines_or_of_one_run_are_one_line(tmp_path):
    def stored(name, cpu, count):
        document = {"format": "headrace-measurements", "version": 1, "label": name, "written": "", "build": "", "config": "",
                    "machine": {"CPU": cpu}, "runs": [{"metrics": {"loss": 1.0}, "stages": {}, "outputs": []}] * count}
        (tmp_path / name).write_text(json.dumps(document))
        return tmp_path / name

    a, elsewhere, one = stored("a.json", "x", 5), stored("b.json", "y", 5), stored("one.json", "x", 1)
    assert_one_error(headrace(a, elsewhere), 2, "measured on x, NEW on y")
    assert_one_error(headrace(a, one), 2, "holds 1 run")
    judged = headrace(a, a)
    assert judged.returncode == 0 and "weak: these runs were not taken in turns" in judged.stdout


def test_ctrl_c_ends_it_with_130_and_what_it_runs_with_it(tmp_path):
    path = tmp_path / "endless"
    path.write_text(f"#!/bin/sh\necho $$ > {tmp_path / 'pid'}\nexec sleep 1000\n")
    path.chmod(0o755)
    process = subprocess.Popen([PROGRAM, "compare", path, path, "--junit", tmp_path / "c.xml"], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert "stopped after 0 pairs" in process.stderr.read()
    assert 'errors="1"' in (tmp_path / "c.xml").read_text()
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_history_is_read_by_sqlite_itself(tmp_path):
    import sqlite3

    run = headrace(quick(tmp_path, "a"), quick(tmp_path, "b", seed=500), "--metrics", "step_p50_s", "--history", tmp_path / "h.db")
    assert run.returncode == 0, run.stderr
    with sqlite3.connect(tmp_path / "h.db") as database:
        (change,) = database.execute("SELECT change FROM metric").fetchone()
        assert change in ("equivalent", "inconclusive")
        assert database.execute("SELECT count(*) FROM comparison").fetchone() == (1,)


def test_against_itself_it_tells_how_often_this_machine_alarms(tmp_path):
    run = headrace(quick(tmp_path, "a"), "--aa", "--pairs", "20", "--metrics", "step_p50_s", "--json", tmp_path / "aa.json")
    document = json.loads((tmp_path / "aa.json").read_text())
    alarms = document["no_change"]["regressed"] + document["no_change"]["improved"]
    assert document["no_change"]["comparisons"] == 1000 and document["pairs"] == 20
    assert run.returncode == (3 if alarms > 20 else 0) and f"{alarms} of 1000" in run.stdout


def test_by_python_scripts_run_in_this_python(tmp_path):
    import headrace as hr

    (tmp_path / "a.py").write_text(f"import sys; open({str(tmp_path / 'seen')!r}, 'a').write(sys.executable + '\\n')\n")
    command = [sys.executable, "-m", "headrace", "compare", tmp_path / "a.py", tmp_path / "a.py", "--pairs", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(hr.__file__).parent.parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "seen").read_text().split()) == {sys.executable}


def test_a_dry_run_says_what_would_be_compared(tmp_path):
    recipe = tmp_path / "a.toml"
    recipe.write_text('[data]\nsource = "idx:/nowhere"\n')
    run = headrace(recipe, recipe, "--dry-run")
    assert run.returncode == 0 and "(a recipe)" in run.stderr and "at most 60 pairs" in run.stderr
