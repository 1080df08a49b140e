"""What a recipe changes in the whole process, seen from outside of it: the system's own files tell."""

import ctypes
import os
import pathlib
import resource
import signal
import subprocess
import time

import pytest

from tiny_run import HEADRACE, assert_one_line_error, headrace, write_tiny_job

CORES = sorted(os.sched_getaffinity(0))
PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23  # Of linux/prctl.h and linux/capability.h.
PRCTL = ctypes.CDLL(None).prctl  # Looked up before a fork.


@pytest.fixture
def job(tmp_path):
    return write_tiny_job(tmp_path, epochs=1)


def threads_of(process: int) -> list[tuple[str, int]]:
    """The list of cores and the niceness of each thread."""
    found = []
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        try:
            status, stat = (task / "status").read_text(), (task / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # It has ended meanwhile.
            continue
        mask = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
        found.append((mask, int(stat.rpartition(")")[2].split()[16])))
    return found


def test_cores_and_niceness_are_those_of_every_thread_of_a_run(job, tmp_path):
    niceness = min(max(os.getpriority(os.PRIO_PROCESS, 0) + 1, 0), 19)
    flags = {"compute.affinity": CORES[-1], "compute.niceness": niceness, "data.num_workers": 2, "train.epochs": 100000}
    command = [HEADRACE, "train", job, "--out", tmp_path / "run", *(f"--{key}={value}" for key, value in flags.items())]
    run = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        found = []
        while len(found) < 3 and run.poll() is None and time.monotonic() < deadline:  # The loader's two, at least.
            found = threads_of(run.pid)
            time.sleep(0.01)
        assert len(found) >= 3
        assert set(found) == {(str(CORES[-1]), niceness)}
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(60)


def test_what_is_asked_for_is_in_the_report(job, tmp_path):
    out = tmp_path / "run"
    run = headrace("train", job, "--out", out, "--compute.affinity", CORES[0], "--compute.child_threads", 2)
    assert run.returncode == 0, run.stderr
    log, report = (out / "log.txt").read_text(), (out / "report.html").read_text()
    for key in ("compute.affinity", "compute.child_threads"):
        assert key in report and f"{key}:" not in log
    assert "for child processes" in report


def without_the_right_to_lower_a_niceness(before: int) -> None:
    """In the child that becomes the command. Root has no capability after exec that is outside of the bounding set."""
    os.setpriority(os.PRIO_PROCESS, 0, before)
    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
    PRCTL(PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0)  # Refused to a user without CAP_SETPCAP, who does not have the right anyway.


def test_a_niceness_that_may_not_be_lowered_is_told_in_the_log_and_in_the_report(job, tmp_path):
    out, before = tmp_path / "run", max(os.getpriority(os.PRIO_PROCESS, 0), 5)
    run = subprocess.run([HEADRACE, "train", job, "--out", out, "--compute.niceness", "0"], capture_output=True, text=True, timeout=120,
                         preexec_fn=lambda: without_the_right_to_lower_a_niceness(before))
    assert run.returncode == 0, run.stderr
    assert f"compute.niceness: requested 0, applied {before}: not permitted" in (out / "log.txt").read_text()
    assert "compute.niceness" in (out / "report.html").read_text()


def test_a_run_without_a_wish_tells_of_no_setting(job, tmp_path):
    out = tmp_path / "run"
    assert headrace("train", job, "--out", out).returncode == 0
    for text in ((out / "log.txt").read_text(), (out / "report.html").read_text()):
        for key in ("compute.affinity", "compute.niceness", "compute.child_threads"):
            assert key not in text


@pytest.mark.parametrize("cores, words", [("8191", ["affinity", "8191"]), ("one", ["affinity", '"0-3,6"', "one"]), ("3-1", ["3-1"]),
                                          ("node4095", ["node4095"])])
def test_cores_that_are_not_there_are_one_error(job, tmp_path, cores, words):
    out = tmp_path / "run"
    assert_one_line_error(headrace("train", job, "--out", out, f"--compute.affinity={cores}"), 2, *words)
    assert not out.exists()


def test_more_workers_than_cores_are_one_warning_with_the_numbers_and_automatic_ones_are_none(job, tmp_path):
    on_one_core = ("--compute.affinity", CORES[0])  # However many this machine has.
    run = headrace("train", job, "--out", tmp_path / "many", "--data.num_workers", 8, *on_one_core)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("8 loader workers and 1 compute thread share 1 usable core; wanted at most 2 together") == 1
    run = headrace("train", job, "--out", tmp_path / "auto", "--data.num_workers", "auto", *on_one_core)
    assert run.returncode == 0, run.stderr
    assert "loader worker" not in run.stderr
