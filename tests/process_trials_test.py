"""Settings that only a process can begin with: `headrace tune` tries them in two processes of its own."""

import json
import os
import tomllib

import pytest

from tiny_run import assert_one_line_error, headrace, write_tiny_job

THREADS = ("--compute.intra_op_threads", 2)


@pytest.fixture
def job(tmp_path):
    return write_tiny_job(tmp_path, epochs=1)


def environment(**more):
    return {**{key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}, **more}


def tune(job, out, policy, budget_s, *more, **variables):
    result = headrace("tune", job, "--out", out, *THREADS, "--tune.only", f"wait policy {policy}", "--tune.budget_s", budget_s, *more,
                      env=environment(**variables), timeout=300)
    assert result.returncode == 3, result.stderr  # Nothing is kept.
    (trial,) = json.loads((out / "ledger.json").read_text())["trials"]
    return trial, result.stderr


@pytest.mark.alone
def test_a_wait_policy_is_timed_in_processes_that_begin_with_it_and_has_the_same_bits(job, tmp_path):
    # No gain is worth keeping, so that six pairs are enough. That each process has its policy it checks itself.
    trial, _ = tune(job, tmp_path / "run", "passive", 120, "--tune.gain_min", 10)
    assert trial["verdict"] == "refused" and trial["reason"] in ("slower", "no_gain"), trial
    assert trial["pairs"] >= 6 and trial["changes"] == {"compute.wait_policy": '"passive"'}
    assert trial["numerics"]["class"] == "bit_equal" and trial["numerics"]["checked"] and trial["numerics"]["passed"]
    assert tomllib.loads((tmp_path / "run" / "tuned.toml").read_text())["compute"]["wait_policy"] == "system"


@pytest.mark.parametrize("fault, found", [
    ("trial.answer:1", "was killed by SIGKILL"),
    ("trial.answer:1:error", "trial.answer"),
])
def test_a_process_that_fails_is_the_failure_of_its_trial_and_the_run_goes_on(job, tmp_path, fault, found):
    # Threads that spin beside other tests take each other's core: here they sleep, and what is tried is to spin.
    trial, errors = tune(job, tmp_path / "run", "active", 60, OMP_WAIT_POLICY="passive", HEADRACE_FAULT=fault)
    assert (trial["verdict"], trial["reason"]) == ("failed", "error")
    assert trial["sentence"].startswith('Failed: tune: the process with compute.wait_policy = "system"')
    assert found in trial["sentence"] and trial["pairs"] == 0
    assert "training with what was kept" in errors and list((tmp_path / "run").glob("*.safetensors"))


def test_what_is_tried_is_told_and_not_where_one_thread_computes(job):
    plan = headrace("tune", job, "--dry-run", *THREADS, env=environment())
    assert plan.returncode == 0, plan.stderr
    tried, not_tried = plan.stdout.split("would not try:")
    assert "wait policy passive" in tried and "new_process" in tried and "wait policy" not in not_tried
    single = headrace("tune", job, "--dry-run", env=environment())
    assert "wait policy" in single.stdout.split("would not try:")[1]


def test_nobody_else_starts_such_a_process(job):
    assert_one_line_error(headrace("trial-process"), 2, "headrace tune")
    assert_one_line_error(headrace("trial-process", job, "key"), 2, "KEY=VALUE")
    assert "trial-process" not in headrace("--help").stdout
