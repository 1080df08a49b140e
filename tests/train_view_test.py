"""What headrace train shows while it goes on: a view in a terminal, lines elsewhere, and figures that are scraped or read from files."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import urllib.request

import pytest

from tiny_run import HEADRACE, assert_one_line_error, headrace, write_tiny_job

VIEW = re.compile(r"\rTraining  epoch 1/1 .*?\n"
                  r"step (\d+) of (\d+); rate .*?; time left .*?\n"
                  r"time split (.*?)\n"
                  r"queues (.*?)\n"
                  r"memory (.*?); cache hit rate ([^\x1b\r\n]+)")


@pytest.fixture
def job(tmp_path):
    return write_tiny_job(tmp_path, epochs=1)


def shown_in_a_terminal(job, out, term, *words):
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 200, 0, 0))
    run = subprocess.Popen([HEADRACE, "train", str(job), "--out", str(out), *words], stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal,
                           env={**os.environ, "TERM": term})
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(screen, 65536):
            shown += piece
    except OSError:  # EIO: its last writer has gone.
        pass
    os.close(screen)
    assert run.wait(60) == 0, shown
    return shown.decode()


def test_a_terminal_has_rate_time_split_queues_memory_and_hit_rate(job, tmp_path):
    shown = shown_in_a_terminal(job, tmp_path / "run", "xterm")
    plain = shown.replace("\x1b[K", "").replace("\r\n", "\n")
    views = VIEW.findall(plain)
    assert views, shown
    step, total, split, queues, memory, rate = views[0]
    assert 1 <= int(step) <= int(total)
    assert split == "unavailable", "no step was over when the first was shown"
    assert queues.startswith("loader.queue_depth ") or queues == "unavailable"
    assert re.fullmatch(r"\d+\.\d\d [MG]B", memory) and rate == "unavailable", "this job has no cache"
    removed = plain.rsplit("cache hit rate", 1)[1]
    assert removed.count("\x1b[A") >= 4, "it is taken away at the end"


@pytest.mark.parametrize("words", [(), ("--quiet",)])
def test_a_dumb_terminal_and_quiet_get_no_view(job, tmp_path, words):
    shown = shown_in_a_terminal(job, tmp_path / "run", "dumb" if not words else "xterm", *words)
    assert "time split" not in shown and "\x1b" not in shown


def test_values_move_while_they_are_scraped_and_reach_a_file(job, tmp_path):
    figures, events, said = tmp_path / "figures.jsonl", tmp_path / "events.jsonl", tmp_path / "stderr.txt"
    with said.open("w") as stderr:
        run = subprocess.Popen([HEADRACE, "train", str(job), "--out", str(tmp_path / "run"), "--train.epochs", "100000",
                                "--report.prometheus", "0", "--report.json_lines", str(figures), "--report.events", str(events)],
                               stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        ends = time.monotonic() + 60
        while (found := re.search(r"monitor\.prometheus: applied (http://127\.0\.0\.1:\d+/metrics)\n", said.read_text())) is None:
            assert run.poll() is None and time.monotonic() < ends, said.read_text()
            time.sleep(0.05)
        url, seen = found[1], set()
        while len(seen) < 3 and time.monotonic() < ends:
            values = dict(line.split() for line in scraped(url).splitlines() if not line.startswith("#"))
            if "headrace_train_loss" in values:
                seen.add(values["headrace_train_loss"])
            time.sleep(0.05)
        assert len(seen) >= 3, values
        assert float(values["headrace_samples_per_s"]) > 0 and float(values["headrace_process_resident_bytes"]) > 1e6
        assert float(values["headrace_time_forward_s"]) > 0, "some steps are over by then"
    finally:
        run.send_signal(signal.SIGTERM)
        code = run.wait(60)
    assert code == 143, said.read_text()
    rows = [json.loads(line) for line in figures.read_text().splitlines()]
    steps = [row["step"] for row in rows if row["metric"] == "train.loss"]
    assert len(steps) >= 3 and steps == sorted(steps) and len(set(steps)) > 1
    settings = {event["fields"]["key"]: event["fields"] for event in map(json.loads, events.read_text().splitlines())
                if event["event"] == "setting"}
    assert settings["monitor.prometheus"]["applied"] == url
    assert any(not key.startswith("monitor.") for key in settings), "the run's own settings, too"


def test_an_address_that_is_none_is_one_line(job, tmp_path):
    result = headrace("train", job, "--out", tmp_path / "run", "--report.prometheus", "no port")
    assert_one_line_error(result, 2, "prometheus: wanted PORT")


def test_steps_that_were_watched_are_percentiles_on_the_page_and_latencies_stand_beside_the_loading(job, tmp_path):
    result = headrace("train", job, "--out", tmp_path / "run", "--report.json_lines", tmp_path / "figures.jsonl")
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(r"\d+ steps: half of them take at most", page)
    assert re.search(r"Half of the batches came .* or more after they were asked for", page)
    latency = json.loads((tmp_path / "run" / "result.json").read_text())["loading"]["latency"]
    assert 0 <= latency["p50_s"] <= latency["p95_s"] <= latency["p99_s"]


def scraped(url):
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        return answer.read().decode()
