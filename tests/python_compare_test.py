"""hr.compare: the command `headrace compare`, from Python. What it decides is compare_test.py's; these programs have no clock in them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import headrace as hr
import pytest
from shown_test import Checked

PACKAGE = str(Path(hr.__file__).parent.parent)


def program(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return path


def telling(folder: Path, name: str, **metrics: float) -> Path:
    return program(folder, name, f"echo '{json.dumps(metrics)}' > \"$HEADRACE_RESULT\"")


def test_a_slower_program_is_a_failure_as_a_dict_a_text_and_a_table(tmp_path):
    before, after = telling(tmp_path, "before", step_s=1.0, accuracy=0.9), telling(tmp_path, "after", step_s=1.1, accuracy=0.9)
    found = hr.compare(before, after, metrics=["step_p50_s", "accuracy"], pairs=20, seed=1, html=tmp_path / "c.html")
    assert found.is_failure and found.verdicts["step_p50_s"] == "regressed" and found.verdicts["accuracy"] in ("equivalent", "inconclusive")
    assert found["format"] == "headrace-compare" and found["pairs"] <= 20
    assert found.conclusion.startswith("NEW is worse than OLD: step_p50_s +10.0 %") and found.conclusion in str(found)
    assert str(found).startswith("OLD ") and str(tmp_path / "c.html") in found["command"]
    assert repr(found) == f"<headrace.Comparison: {found.conclusion}>"
    assert json.loads(json.dumps(found)) == found
    page = Checked(found._repr_html_())
    assert "table" in page.tags and "step_p50_s" in page.text and "+10.0%" in page.text
    assert "<h1>NEW is worse than OLD" in (tmp_path / "c.html").read_text()


def test_the_same_is_no_failure_and_every_option_reaches_the_command(tmp_path):
    seen = tmp_path / "seen"
    same = program(tmp_path, "same", f"echo \"$@\" >> {seen}", "echo '{\"gain\": 1, \"loss\": 0, \"other\": 5}' > \"$HEADRACE_RESULT\"")
    found = hr.compare(same, same, ["--lr", "0.1"], metrics=("gain", "loss"), tolerance={"loss": 0.1}, higher_is_better=["gain"],
                       absolute=["loss"], limit_s=50.0, false_discovery_rate=0.05, history=tmp_path / "h.db", save=tmp_path / "saved")
    assert not found.is_failure and set(found.verdicts.values()) == {"equivalent"}
    metrics = {metric["name"]: metric for metric in found["metrics"]}
    assert metrics.keys() == {"gain", "loss"} and metrics["gain"]["better"] == "higher"
    assert metrics["loss"]["absolute"] and metrics["loss"]["tolerance"] == 0.1
    assert set(seen.read_text().splitlines()) == {"--lr 0.1"}
    assert (tmp_path / "h.db").exists() and (tmp_path / "saved" / "new.json").exists()
    for word in ("--limit-s=50.0", "--false-discovery-rate=0.05"):
        assert word in found["command"]


def test_scripts_run_in_this_python(tmp_path):
    (tmp_path / "a.py").write_text(f"import sys; open({str(tmp_path / 'seen')!r}, 'a').write(sys.executable + '\\n')\n")
    hr.compare(tmp_path / "a.py", tmp_path / "a.py", pairs=1)
    assert set((tmp_path / "seen").read_text().split()) == {sys.executable}


def test_what_cannot_be_compared_is_an_error_with_the_command_s_own_sentence(tmp_path):
    fine, broken = telling(tmp_path, "fine", step_s=1.0), program(tmp_path, "broken", "echo no such layer", "exit 3")
    with pytest.raises(hr.Error, match=r"^compare: NEW \(.*broken@.*exit status 3; its last line: no such layer$"):
        hr.compare(fine, broken)
    with pytest.raises(hr.errors.InvalidArgumentError, match=r"^compare: --pairs must be 1 to 10000, found \"0\""):
        hr.compare(fine, fine, pairs=0)
    with pytest.raises(hr.errors.InvalidArgumentError, match="the tolerance of loss"):
        hr.compare(fine, fine, tolerance={"loss": 2.0})
    with pytest.raises(hr.errors.InvalidArgumentError, match="arguments: wanted a list of words, found the text '--lr 1'"):
        hr.compare(fine, fine, "--lr 1")
    with pytest.raises(hr.Error, match="no-such-thing"):
        hr.compare(fine, "no-such-thing")


def test_ctrl_c_ends_what_it_runs(tmp_path):
    endless = program(tmp_path, "endless", f"echo $$ > {tmp_path / 'pid'}", "exec sleep 1000")
    code = f"import headrace as hr; hr.compare({str(endless)!r}, {str(endless)!r})"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PACKAGE}) as process:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=60)[1]
    assert "KeyboardInterrupt" in told
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
