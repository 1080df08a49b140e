"""The foreign scripts of bench/live_tuning/scripts are what they are taken for: they train, know nothing of Headrace, and hand
over their objects just before the loop.

Those that need other packages are run where these are installed: in the frameworks' environment.
"""

import ast
import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_run import write_photos

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "bench" / "live_tuning"
sys.path.insert(0, str(ROOT / "bench"))

from forked_programs import forked_programs  # noqa: E402
from live_tuning.scripts_known import SCRIPTS  # noqa: E402

HERE = [name for name, script in SCRIPTS.items() if not script.package or importlib.util.find_spec(script.package)]


def options_of(name: str, folder: Path) -> list[str]:
    if name != "unet_photos":
        return []
    write_photos(folder, train=4)
    return ["--photos", str(folder), "--size", "32", "--batch-size", "4"]


def play(request: dict) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, FOLDER / "play.py", json.dumps(request)], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def programs():
    with forked_programs("torch", "torchvision") as found:
        yield found


@pytest.mark.parametrize("name", HERE)
def test_script_makes_its_steps_with_a_finite_loss_and_hands_over_its_optimizer(name, programs, tmp_path):
    request = {"script": name, "steps": 3, "seed": 1, "arm": "untouched", "options": options_of(name, tmp_path)}
    output = programs.run([sys.executable, FOLDER / "play.py", json.dumps(request)]).output
    losses = re.findall(r"^step 3: .*\bloss (\S+)$", output, re.MULTILINE)
    assert len(losses) == 1 and math.isfinite(float(losses[0])), output
    found = json.loads(output.splitlines()[-1])
    assert found["steps"] == 3 and len(found["tenths_s"]) == 10 and found["tenths_s"] == sorted(found["tenths_s"])


def test_every_script_is_known():
    assert sorted(SCRIPTS) == sorted(path.stem for path in (FOLDER / "scripts").glob("*.py")) and len(SCRIPTS) == 12


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_one_that_knows_nothing_of_headrace(name):
    text = (FOLDER / "scripts" / f"{name}.py").read_text()
    assert 40 <= len(text.splitlines()) <= 120
    imported = {alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not any(module.split(".")[0] in ("headrace", "harness", "live_tuning") for module in imported)
    assert len(re.findall(r"^ +on_ready\(", text, re.MULTILINE)) == 1 and "if on_ready is not None:" in text


@pytest.mark.parametrize("name", [name for name, script in SCRIPTS.items() if script.package])
def test_script_that_needs_a_package_says_which_and_where_it_is(name):
    package = SCRIPTS[name].package
    without = f"import runpy, sys; sys.modules[{package!r}] = None; runpy.run_path({str(FOLDER / 'scripts' / f'{name}.py')!r})"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{name}: wanted {package}, of the frameworks' environment; found: ")
    assert done.stderr.count("\n") == 1


def test_a_run_can_be_ended_early_and_tells_each_step():
    done = play({"script": "tabular_mlp", "steps": 1_000_000, "seed": 1, "arm": "untouched", "limit_s": 0.2, "step_s": True})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert 0 < found["steps"] < 1_000_000 and 0.2 < found["seconds"]
    assert len(found["step_s"]) == found["steps"] - 1 - min(20, found["steps"] // 4)
    assert all(seconds > 0 for seconds in found["step_s"])


def test_a_run_that_has_to_make_some_steps_is_not_ended_before():
    done = play({"script": "tabular_mlp", "steps": 1_000_000, "seed": 1, "arm": "untouched", "limit_s": 1e-6, "least_steps": 25})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == 25


def test_an_arm_that_there_is_not_is_refused_by_name():
    done = play({"script": "tabular_mlp", "steps": 3, "seed": 1, "arm": "sideways"})
    assert done.returncode == 1 and done.stderr.startswith("play: arm: wanted one of untouched, autotuned, ")
    assert done.stderr.endswith("found sideways\n")
