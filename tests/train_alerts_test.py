"""What [report] has headrace train watch for: alerts with their exit code, the flight recorder, and sinks that may not be written."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from tiny_run import ANY_USER, HEADRACE, assert_one_line_error, headrace, write_photos, write_tiny_job


@pytest.fixture
def job(tmp_path):
    return write_tiny_job(tmp_path, epochs=1)


def result_of(folder):
    return json.loads((folder / "result.json").read_text())["training"]["watched"]


def test_an_alert_is_a_warning_and_the_exit_code_of_a_run_that_went_to_its_end(job, tmp_path):
    out, events = tmp_path / "run", tmp_path / "events.jsonl"
    result = headrace("train", job, "--out", out, "--report.events", events, "--report.alerts.memory_mib_max", 1, "--report.alerts.exit_code", 7)
    assert result.returncode == 7, result.stderr
    (alert,) = result_of(out)["alerts"]
    assert f"warning: {alert['sentence']}\n" in result.stderr and alert["sentence"].startswith("memory: process.resident_bytes is ")
    assert alert["fields"]["raised"] is True and alert["fields"]["limit"] == 1 << 20
    assert [line["sentence"] for line in map(json.loads, events.read_text().splitlines()) if line["event"] == "alert"] == [alert["sentence"]]
    assert (out / "model.safetensors").exists(), "the run is whole"


def test_without_an_exit_code_an_alert_changes_none_and_below_its_limit_there_is_none(job, tmp_path):
    raised = headrace("train", job, "--out", tmp_path / "raised", "--report.alerts.memory_mib_max", 1)
    assert raised.returncode == 0 and "warning: memory: " in raised.stderr
    quiet = headrace("train", job, "--out", tmp_path / "quiet", "--report.alerts.memory_mib_max", 1e9, "--report.alerts.exit_code", 7)
    assert quiet.returncode == 0 and "resident_bytes" not in quiet.stderr
    assert result_of(tmp_path / "quiet") == {"alerts": [], "flights": []}


def test_an_alert_that_has_nothing_to_judge_says_why(job, tmp_path):
    result = headrace("train", job, "--out", tmp_path / "run", "--report.alerts.hit_rate_min", 0.5, "--report.alerts.exit_code", 7)
    assert result.returncode == 0
    assert "report.alerts.hit_rate_min: requested 0.5, applied unavailable: data.cache is none" in result.stderr
    assert "report.alerts.exit_code: requested 7, applied 0: no alert can be raised" in result.stderr
    assert "report.alerts.hit_rate_min" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(("key", "value"), [("throughput_min", 1.5), ("hit_rate_min", -0.1), ("memory_mib_max", "nan"), ("exit_code", 256)])
def test_a_limit_outside_its_range_is_one_line(job, tmp_path, key, value):
    result = headrace("train", job, "--out", tmp_path / "run", f"--report.alerts.{key}={value}")
    assert_one_line_error(result, 2, f"report.alerts.{key}")


def test_a_webhook_is_no_key_of_a_recipe(job, tmp_path):
    result = headrace("train", job, "--out", tmp_path / "run", "--report.webhook", "https://example.com/hook")
    assert_one_line_error(result, 2, "report.webhook")


def test_a_signal_writes_the_last_minute_and_the_run_goes_on(job, tmp_path):
    flights, said = tmp_path / "flights", tmp_path / "stderr.txt"
    with said.open("w") as stderr:
        run = subprocess.Popen([HEADRACE, "train", job, "--out", tmp_path / "run", "--train.epochs", "100000", "--report.flights", flights],
                               stdout=subprocess.DEVNULL, stderr=stderr)

    def wait_for(is_so):
        ends = time.monotonic() + 60
        while not is_so():
            assert run.poll() is None and time.monotonic() < ends, said.read_text()
            time.sleep(0.05)

    try:
        told = re.compile(rf"SIGUSR2 to process (\d+) writes the last minute into {re.escape(str(flights))}\n")
        wait_for(lambda: told.search(said.read_text()))
        os.kill(int(told.search(said.read_text())[1]), signal.SIGUSR2)
        wait_for(lambda: list(flights.glob("flight-*-signal.json")))
        wait_for(lambda: "flight recorder: signal: " in said.read_text())
    finally:
        run.send_signal(signal.SIGTERM)
        code = run.wait(60)
    assert code == 143, said.read_text()
    (dump,) = flights.glob("flight-*-signal.json")
    names = {event["name"] for event in json.loads(dump.read_text())["traceEvents"]}
    assert {"step", "forward", "optimizer"} <= names
    found = [flight for flight in result_of(tmp_path / "run")["flights"] if flight["reason"] == "signal"]
    assert [flight["path"] for flight in found] == [str(dump)] and found[0]["events"] > 0


def test_an_error_that_ends_a_run_leaves_a_flight(tmp_path):
    write_photos(tmp_path / "data", train=10, val=5)
    image = tmp_path / "data/train/cat/03.jpg"
    image.chmod(0)
    recipe = tmp_path / "r.toml"
    recipe.write_text(f'[data]\nsource = "folder:{tmp_path}/data"\nbatch_size = 10\n[data.transform]\nsize = 32\ncrop = "random_resized"\n'
                      'mean = [0.5]\nstd = [0.25]\n[model]\nname = "strided_cnn"\nnum_classes = 2\n[train]\nepochs = 1\n'
                      f'[compute]\nintra_op_threads = 1\n[report]\nflights = "{tmp_path}/flights"\n')
    result = subprocess.run([*ANY_USER, HEADRACE, "train", recipe, "--out", tmp_path / "run"], capture_output=True, text=True, timeout=120)
    assert_one_line_error(result, 1, image, "Permission denied")
    assert [path.name for path in (tmp_path / "flights").iterdir()] == ["flight-00-exception.json"]


@pytest.mark.parametrize(("key", "said"), [("csv", "monitor: csv: "), ("json_lines", "monitor: json_lines: "), ("events", "monitor: events: "),
                                           ("tensorboard", "monitor: tensorboard: "), ("flights", "report.flights: requested ")])
def test_a_folder_that_may_not_be_written_is_a_warning_and_the_run_goes_on(job, tmp_path, key, said):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    result = subprocess.run([*ANY_USER, HEADRACE, "train", job, "--out", tmp_path / "run", f"--report.{key}", closed / "within"],
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    (warning,) = [line for line in result.stderr.splitlines() if said in line]
    assert "warning: " in warning and str(closed / "within") in warning and "Permission denied" in warning
    assert list(closed.iterdir()) == []
