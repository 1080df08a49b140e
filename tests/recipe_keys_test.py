"""That every key of a recipe has a test which proves its effect: recipe_key_tests.txt names one for each. And the effects that no other
test looks at."""

import ast
import contextlib
import re
from pathlib import Path

import headrace as hr
import pytest
import torch
from monitor_test import host
from tiny_run import headrace, write_tiny_job
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = dict.fromkeys(("source", "transform", "loader", "pack"), "data")  # Modules that share a test program, by CMakeLists.txt.


def proofs() -> dict[str, str]:
    """The test of each key."""
    lines = [line for line in (ROOT / "tests" / "recipe_key_tests.txt").read_text().splitlines() if not line.startswith("#")]
    found = dict(line.split(": ") for line in lines)
    assert len(found) == len(lines), "a key is there twice"
    return found


def tests_of_tree() -> set[str]:
    """All tests, as docs/requirements.md names them."""
    names = set()
    for path in ROOT.glob("src/**/*_test.cpp"):
        for suite, case in re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+),\s*(\w+)\)", path.read_text(), re.MULTILINE):
            names.add(f"{PROGRAMS.get(path.parent.name, path.parent.name)}.{suite}.{case}")
    for path in ROOT.glob("tests/**/*_test.py"):
        functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        names |= {f"{path.relative_to(ROOT).as_posix()}::{name}" for name in functions if name.startswith("test_")}
    return names


def test_every_key_of_a_recipe_has_a_test_that_proves_its_effect():
    told = headrace("explain", "--markdown").stdout
    keys = set(re.findall(r"^\| `([\w.\[\]]+)` \|", told, re.MULTILINE))
    assert len(keys) > 200 and proofs().keys() == keys


def test_the_tests_that_prove_a_key_are_there():
    tests = tests_of_tree()
    assert {key: test for key, test in proofs().items() if test not in tests} == {}


def forward(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batch():
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def trainer_of(**options):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=options.pop("foreach", False))
    return hr.Trainer(model, optimizer, forward, **options), model


@pytest.mark.engine
@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_refuses_what_has_no_deterministic_form(deterministic):
    before = torch.are_deterministic_algorithms_enabled()
    try:
        trainer_of(deterministic=deterministic)
        with pytest.raises(RuntimeError, match="deterministic") if deterministic else contextlib.nullcontext():
            torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.engine
@pytest.mark.parametrize("gradients", [True, False])
def test_a_step_guard_looks_at_gradients_where_it_is_asked_to(gradients):
    trainer, model = trainer_of(step_guard={"policy": "raise", "gradients": gradients})
    hook = model[0].weight.register_hook(lambda gradient: gradient * float("nan"))
    if gradients:
        with pytest.raises(hr.errors.NumericsError, match="0.weight"):
            trainer.step(batch())
    else:
        trainer.step(batch())
    hook.remove()
    assert bool(model[0].weight.isnan().any()) != gradients


@pytest.mark.engine
@pytest.mark.parametrize("foreach", [True, False])
def test_foreach_updates_by_operators_over_lists_of_tensors(foreach):
    trainer, _ = trainer_of(foreach=foreach)
    trainer.step(batch())
    with torch.autograd.profiler.profile() as profile:
        trainer.step(batch())
    assert any(event.name == "aten::_foreach_add_" for event in profile.function_events) == foreach


def test_a_recipe_s_figures_reach_tensorboard_s_files_a_table_and_a_collector(tmp_path):
    job = write_tiny_job(tmp_path, 1)
    with host(200) as collector:
        collector.is_slow.clear()
        done = headrace("train", job, "--out", tmp_path / "run", "--report.tensorboard", tmp_path / "events", "--report.csv",
                        tmp_path / "figures.csv", "--report.otlp", f"http://127.0.0.1:{collector.server_port}")
    assert done.returncode == 0, done.stderr
    assert any(b"train.epoch_loss" in path.read_bytes() for path in (tmp_path / "events").iterdir())
    assert "train.epoch_loss" in (tmp_path / "figures.csv").read_text()
    assert "/v1/metrics" in collector.paths and "train.epoch_loss" in str(collector.bodies)
