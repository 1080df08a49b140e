"""hr.monitor: what files, listeners, alerts and the view get of a run, and that a sink that fails leaves the run alone."""

import contextlib
import gc
import http.server
import io
import json
import logging
import os
import re
import signal
import socket
import threading
import urllib.request
import weakref

import headrace as hr
import pytest
from headrace import _core, _webhook
from headrace._live_view import LiveView
from protobuf_fields import records


def sink(watch, name):
    return next(one for one in watch.status()["sinks"] if one["name"] == name)


def scraped(url):
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def test_values_reach_json_lines_and_csv_by_step(tmp_path):
    with hr.monitor(json_lines=tmp_path / "m.jsonl", csv=tmp_path / "m.csv", system_s=0) as watch:
        for step in range(3):
            assert watch.record(step, {"loss": 1 / (step + 1), "lr": 0.5})
        assert watch.flush()
        assert sink(watch, "json_lines")["records"] == 3 and sink(watch, "csv")["lost"] == 0
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [(line["step"], line["metric"], line["value"]) for line in lines if line["metric"] == "loss"] == [
        (0, "loss", 1.0), (1, "loss", 0.5), (2, "loss", 1 / 3)]
    rows = (tmp_path / "m.csv").read_text().splitlines()
    assert rows[0] == "wall_time,step,metric,labels,value" and len(rows) == 7


def test_event_files_hold_a_record_for_each_value(tmp_path):
    """TensorBoard's own reader reads them in the tests of exports."""
    with hr.monitor(tensorboard=tmp_path / "runs", system_s=0) as watch:
        for step in range(5):
            watch.record(step, {"loss": 0.25})
    (path,) = (tmp_path / "runs").iterdir()
    found = list(records(path.read_bytes()))
    assert sum(b"loss" in record for record in found) == 5
    assert len(found) == 6  # The first tells the file's version.


def test_a_scrape_during_the_run_reads_values_that_move():
    with hr.monitor(prometheus=0) as watch:
        url = sink(watch, "prometheus")["applied"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)
        for loss in (0.5, 0.25):
            watch.record(1, {"train.loss": loss})
            assert watch.flush()
            values = dict(line.split() for line in scraped(url).splitlines() if not line.startswith("#"))
            assert float(values["headrace_train_loss"]) == loss
        assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) for name in values)
    with pytest.raises(OSError):
        scraped(url)  # It has ended.


def test_prometheus_own_parser_reads_the_same_where_it_is_installed():
    with hr.monitor(prometheus=0, system_s=0) as watch:
        watch.record(1, {"loss": 0.125, "odd name!": 2})
        assert watch.flush()
        text = scraped(sink(watch, "prometheus")["applied"])
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:  # Then by its grammar: a name and a number a line.
        found = {name: float(value) for name, value in (line.split(" ") for line in text.splitlines() if line[0] != "#")}
    else:
        found = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert found == {"headrace_loss": 0.125, "headrace_odd_name_": 2.0}


def test_a_full_queue_drops_and_counts_and_the_loop_goes_on():
    watch = hr.monitor(system_s=0, queue_records=2)
    taken = sum(watch.record(step, {"loss": 1.0}) for step in range(20_000))  # More than a thread that sleeps between two looks can take.
    watch.close()
    status = watch.status()
    assert status["recorded"] == taken and status["dropped"] == 20_000 - taken > 0
    assert watch.record(1, {"loss": 1.0}) is False  # It is closed.


def test_a_sink_that_cannot_be_opened_is_off_logged_once_and_ends_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "headrace"), hr.monitor(csv=tmp_path / "file" / "m.csv", json_lines=tmp_path / "m.jsonl",
                                                                  system_s=0) as watch:
        for step in range(3):
            assert watch.record(step, {"loss": 1.0})
            assert watch.flush()
        assert sink(watch, "csv")["applied"] == "off" and "m.csv" in sink(watch, "csv")["reason"] and sink(watch, "csv")["lost"] == 3
        assert sink(watch, "json_lines")["records"] == 3
    assert [record.getMessage().split(":")[1].strip() for record in caplog.records] == ["csv"]


def test_a_listeners_port_in_use_is_one_line_and_the_run_goes_on():
    with hr.monitor(prometheus=0) as first:
        port = int(re.search(r":(\d+)/", sink(first, "prometheus")["applied"])[1])
        with hr.monitor(prometheus=port) as second:
            assert second.record(1, {"loss": 1.0}) and second.flush()
            assert sink(second, "prometheus")["applied"] == "off"
            assert f"127.0.0.1:{port}" in sink(second, "prometheus")["reason"] and "\n" not in sink(second, "prometheus")["reason"]


def test_an_alert_is_told_once_to_log_action_and_exit_code(caplog):
    heard = []
    rule = hr.Alert("cache hit rate", "cache.hit_rate", below=0.5, counted_by="cache.lookups", count_min=100, action=heard.append, exit_code=7)
    with caplog.at_level(logging.INFO, "headrace"), hr.monitor(alerts=[rule], system_s=0) as watch:
        for step, (rate, lookups) in enumerate([(0.1, 99), (0.5, 100), (0.49, 200), (0.4, 300), (0.54, 400), (0.55, 500), (0.499, 600)]):
            watch.record(step, {"cache.hit_rate": rate, "cache.lookups": lookups})
        watch.flush()
        assert watch.exit_code == 7
        assert [(one["step"], one["raised"]) for one in heard] == [(2, True), (5, False), (6, True)]
        assert watch.fired == heard
    told = [record for record in caplog.records if hasattr(record, "headrace_alert")]
    assert [record.levelno for record in told] == [logging.WARNING, logging.INFO, logging.WARNING]
    assert told[0].getMessage() == "cache hit rate: cache.hit_rate is 0.49, below 0.5 (step 2)"
    assert told[0].headrace_alert["value"] == 0.49


def test_logging_and_a_sink_of_c_have_the_same_events(tmp_path, caplog):
    """The file is written by a sink of C++."""
    with caplog.at_level(logging.DEBUG, "headrace"), hr.monitor(events=tmp_path / "events.jsonl", system_s=0,
                                                                alerts=[hr.Alert("loss", "loss", above=1.0)]) as watch:
        watch.tell("epoch 1 is over", name="epoch", level="debug", step=3, fields={"epoch": 1, "loss": 0.5, "best": True, "split": "val"})
        watch.tell_setting("optimizer.fused", True, False, "not on this device")
        watch.tell_setting("num_workers", 4, 4)
        assert watch.flush()
        watch.record(7, {"loss": 2.0})
        assert watch.flush()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    logged = [record for record in caplog.records if hasattr(record, "headrace_event")]
    assert [line.pop("version") for line in lines] == [1] * 5
    assert [record.headrace_event for record in logged] == lines
    assert [(record.levelname, record.headrace_event["event"]) for record in logged] == [
        ("INFO", "setting"), ("DEBUG", "epoch"), ("WARNING", "setting"), ("INFO", "setting"), ("WARNING", "alert")]
    assert [record.getMessage() for record in logged] == [line["sentence"] for line in lines]
    assert lines[0]["fields"]["key"] == "monitor.events" and lines[0]["fields"]["applied"] == str(tmp_path / "events.jsonl")
    assert lines[1]["fields"] == {"epoch": 1, "loss": 0.5, "best": True, "split": "val"} and lines[1]["step"] == 3
    assert lines[2]["sentence"] == "optimizer.fused: requested True, applied False: not on this device"
    assert lines[4]["step"] == 7 and lines[4]["fields"]["value"] == 2.0
    assert sink(watch, "events")["events"] == 5 and sink(watch, "events")["lost"] == 0


def test_an_event_that_is_told_is_logged_without_a_flush(caplog):
    with caplog.at_level(logging.INFO, "headrace"), hr.monitor(system_s=0) as watch:
        watch.tell("a note")
        for _ in range(500):
            if caplog.records:
                break
            threading.Event().wait(0.02)
        assert [record.getMessage() for record in caplog.records] == ["a note"]


def test_an_action_within_a_flush_may_close_the_monitor():
    def close(alert):
        threading.Event().wait(0.5)  # Meanwhile the monitor's own thread comes to look for alerts.
        watch.close()

    watch = hr.monitor(system_s=0, alerts=[hr.Alert("loss", "loss", above=1.0, action=close)])
    watch.record(1, {"loss": 2.0})
    assert watch.flush()
    watch.close()
    assert len(watch.fired) == 1


def test_an_event_that_is_told_after_the_end_is_logged(caplog):
    with caplog.at_level(logging.INFO, "headrace"):
        with hr.monitor(system_s=0) as watch:
            watch.tell("within")
        watch.tell("after")
    assert [record.getMessage() for record in caplog.records] == ["within", "after"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"level": "loud"}, "level: wanted debug, info, warning or error, found loud"),
    ({"name": "alert"}, "name: wanted one that is not the monitor's own, found 'alert'"),
    ({"name": ""}, "wanted a name and a sentence"),
    ({"step": -1}, "step: wanted a whole number"),
    ({"fields": {"x": [1]}}, 'fields["x"]: wanted a text, a number, True or False, found list'),
])
def test_an_event_that_makes_no_sense_is_refused(arguments, message):
    with hr.monitor(system_s=0) as watch, pytest.raises(hr.errors.InvalidArgumentError, match=re.escape(message)):
        watch.tell("a note", **arguments)


def test_an_action_that_raises_is_logged_and_the_next_alert_is_told(caplog):
    def fail(alert):
        raise KeyError("mine")

    heard = []
    alerts = [hr.Alert("first", "loss", above=1.0, action=fail), hr.Alert("second", "loss", above=1.0, action=heard.append)]
    with caplog.at_level(logging.ERROR, "headrace"), hr.monitor(alerts=alerts, system_s=0) as watch:
        watch.record(1, {"loss": 2.0})
        assert watch.flush()
    assert [one["name"] for one in heard] == ["second"]
    assert [record.exc_info[0] for record in caplog.records] == [KeyError]


def test_standard_alerts_hold_just_beyond_their_limits():
    def names(records):
        with hr.monitor(alerts=hr.standard_alerts(), system_s=0) as watch:
            for step, record in enumerate(records):
                watch.record(step, record)
            watch.flush()
            return [alert["name"] for alert in watch.fired]

    assert names([{"cache.hit_rate": 0.5, "cache.lookups": 100, "process.resident_bytes": 8e9}]) == []
    assert names([{"cache.hit_rate": 0.4999, "cache.lookups": 100}]) == ["cache hit rate"]
    assert names([{"process.resident_bytes": 8e9 + 1}]) == ["memory"]
    # 30 at 100 and 10 at 75: the mean of all is 93.75, of which 0.8 is 75.
    assert names([{"samples_per_s": 100.0}] * 30 + [{"samples_per_s": 75.0}] * 10) == []
    assert names([{"samples_per_s": 100.0}] * 30 + [{"samples_per_s": 74.9}] * 10) == ["throughput"]
    assert names([{"process.resident_bytes": 1e8 + 1e6 * step} for step in range(200)]) == ["memory trend"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"alerts": ["x"]}, "alerts: wanted headrace.Alert, found str"),
    ({"queue_records": 0}, "queue_records: wanted 1 to"),
    ({"total_steps": 1.5}, "total_steps: wanted a whole number above 0, found 1.5"),
    ({"system_s": float("nan")}, "system_s: wanted 0 to"),
    ({"prometheus": "no port"}, "prometheus: wanted PORT"),
    ({"prometheus": 70000}, "prometheus: wanted PORT"),
    ({"otlp": "collector"}, "otlp: wanted http://HOST"),
    ({"webhook": "http://example.com/x"}, "webhook: wanted https://HOST"),
    ({"webhook": "https://me:secret@example.com/x"}, "webhook: wanted https://HOST"),
    ({"webhook": "https://[::1/x"}, "webhook: wanted https://HOST"),
    ({"webhook": "https://example.com/a b"}, "webhook: wanted https://HOST"),
    ({"webhook": "https://example.com/\u00e9"}, "webhook: wanted https://HOST"),
])
def test_an_argument_that_makes_no_sense_is_named(arguments, message):
    with pytest.raises(hr.errors.InvalidArgumentError, match=re.escape(message)):
        hr.monitor(**arguments)


def test_what_is_no_metric_or_no_rule_is_named():
    with hr.monitor(system_s=0) as watch:
        for step, metrics, message in [(-1, {}, "step: wanted"), (1, {"loss": "high"}, 'metrics["loss"]: wanted a number, found str'),
                                       (1, {3: 1.0}, "wanted names"), (1, {"": 1.0}, "wanted a name"), (1, [1.0], "wanted numbers by name")]:
            with pytest.raises(ValueError, match=re.escape(message)):
                watch.record(step, metrics)
        assert watch.record(1, {"loss": float("nan")}) and watch.flush()
        assert watch.status()["not_finite"] == 1
    for arguments, message in [({}, "found none"), ({"below": 1.0, "above": 2.0}, "found below, above"), ({"below": 0.5, "clear": 0.4}, "clear:"),
                               ({"drop": 2.0}, "limit: wanted a ratio"), ({"above": 1.0, "exit_code": 256}, "exit_code: wanted 0 to 255")]:
        with pytest.raises(ValueError, match=re.escape(message)):
            hr.Alert("name", "metric", **arguments)


def test_a_monitor_that_is_forgotten_is_closed_and_its_records_are_written(tmp_path):
    watch = hr.monitor(json_lines=tmp_path / "m.jsonl", system_s=0, alerts=hr.standard_alerts())
    watch.record(1, {"loss": 1.0})
    gone = weakref.ref(watch)
    del watch
    for _ in range(200):  # Its own thread may hold it for the moment, and be the one that closes it.
        gc.collect()
        if gone() is None and "loss" in (tmp_path / "m.jsonl").read_text():
            break
        threading.Event().wait(0.05)
    assert gone() is None and "loss" in (tmp_path / "m.jsonl").read_text()


def test_a_forked_process_takes_nothing_and_waits_for_nothing(tmp_path):
    """As a DataLoader's worker that ends: it has the monitor, and not the monitor's thread."""
    with hr.monitor(json_lines=tmp_path / "m.jsonl", system_s=0) as watch:
        assert watch.record(1, {"loss": 1.0}) and watch.flush()
        child = os.fork()
        if child == 0:
            try:
                taken = watch.record(2, {"loss": 2.0})
                watch.close()
                del watch
                os._exit(3 if taken else 0)
            finally:
                os._exit(4)
        for _ in range(2000):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            threading.Event().wait(0.01)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child waits")
        assert os.waitstatus_to_exitcode(status) == 0
        assert watch.record(3, {"loss": 3.0}) and watch.flush()
    steps = [json.loads(line)["step"] for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert steps == [1, 3]


def test_figures_of_this_process_join_the_records():
    with hr.monitor(system_s=0.02) as watch:
        for _ in range(500):
            if "process.cpu_cores" in watch.latest():
                break
            threading.Event().wait(0.01)
        latest = watch.latest()
    assert latest["process.resident_bytes"] > 1e6 and latest["process.cpu_cores"] >= 0 and latest["monitor.dropped"] == 0
    assert any(name.startswith("gpu.") for name in latest) or watch.status()["gpu"].startswith("unavailable: ")


def test_a_slowdown_of_20_percent_is_found_within_100_steps_and_none_before():
    series = _core.MetricSeries()
    assert series.statistics() is None
    for step in range(500):
        series.add(0.020 * (1 + 0.02 * (step % 7 - 3)))
    assert series.statistics()["slowdown"] is None
    for step in range(100):
        series.add(0.024 * (1 + 0.02 * (step % 7 - 3)))
    slowdown = series.statistics()["slowdown"]
    assert 500 <= slowdown["found_at"] < 600 and slowdown["ratio"] == pytest.approx(1.2, abs=0.05)


# The live view.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_view_draws_over_its_last_drawing_in_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    now, stream = [0.0], Terminal()
    view = LiveView(100, stream=stream, clock=lambda: now[0])
    view.show(0, {})
    now[0] = 10.0
    view.show(20, {"samples_per_s": 64.0, "time.forward_s": 0.03, "time.data_wait_s": 0.01, "loader.queue_depth": 3,
                   "process.resident_bytes": 2.5e9, "cache.hit_rate": 0.875})
    first, second = stream.getvalue().split("\x1b[4F\x1b[J")
    assert "time left unavailable" in first and "cache hit rate unavailable" in first
    assert second.splitlines() == [
        "step 20 of 100; rate 2.00 steps/s, 64 samples/s; time left 0:40",
        "time split data_wait 25%, forward 75%",
        "queues loader.queue_depth 3",
        "memory 2.50 GB; cache hit rate 87.5%"]


def test_the_view_tells_plain_lines_where_there_is_no_terminal(capsys):
    now = [0.0]
    view = LiveView(stream=io.StringIO(), clock=lambda: now[0])
    for second in range(21):
        now[0] = float(second)
        view.show(second, {})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("headrace: step ") and "\x1b" not in line for line in lines)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    LiveView(stream=stream).show(1, {})
    assert stream.getvalue() == "" and capsys.readouterr().err.startswith("headrace: step 1; ")


def test_a_view_whose_stream_is_closed_ends_nothing():
    stream = Terminal()
    view = LiveView(stream=stream)
    stream.close()
    view.show(1, {})


# The webhook, mostly without TLS, which is Python's own.


class Host(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.paths.append(self.path)
        if self.server.is_slow.is_set():
            self.server.released.wait(10)
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def host(status=204):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Host)
    server.status, server.bodies, server.paths = status, [], []
    server.is_slow, server.released = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def without_tls(monkeypatch):
    monkeypatch.setattr(_webhook.Webhook, "_secure", lambda self, connection, context: None)


def until(is_so):
    """Whether it has come to be so within 20 s."""
    return any(is_so() or threading.Event().wait(0.02) for _ in range(1000))


def raised_to(server, **options):
    with hr.monitor(alerts=[hr.Alert("loss", "loss", above=1.0)], webhook=f"https://127.0.0.1:{server.server_port}/hook?key=secret", system_s=0,
                    **options) as watch:
        watch.record(3, {"loss": 2.0})
        watch.flush()
    return sink(watch, "webhook")


def test_an_alert_is_posted_to_the_webhook(without_tls):
    with host() as server:
        found = raised_to(server)
    assert server.paths == ["/hook?key=secret"]
    assert server.bodies[0]["sentence"] == "loss: loss is 2, above 1 (step 3)"
    assert found["records"] == 1 and found["lost"] == 0 and "secret" not in json.dumps(found)


def test_a_redirection_is_not_followed(without_tls):
    with host(302) as server:
        found = raised_to(server)
    assert server.paths == ["/hook?key=secret"]
    assert found["lost"] == 1 and "302" in found["reason"]


def test_a_slow_host_is_left_after_its_time_and_nobody_waited_for_it(without_tls, monkeypatch):
    monkeypatch.setattr(_webhook, "_TIMEOUT_S", 0.2)
    with host() as server:
        server.is_slow.set()
        found = raised_to(server)
        assert not server.released.is_set()  # The host has not answered to this moment.
    assert found["records"] == 0 and found["lost"] == 1 and "no answer" in found["reason"]


def test_a_look_up_that_is_slow_is_left_after_its_time_and_is_not_begun_twice(without_tls, monkeypatch):
    monkeypatch.setattr(_webhook, "_TIMEOUT_S", 0.2)
    released, asked, plain = threading.Event(), [], socket.getaddrinfo

    def slow(*words, **options):
        asked.append(words)
        released.wait(10)
        return plain(*words, **options)

    with host() as server:
        webhook = _webhook.Webhook(f"https://127.0.0.1:{server.server_port}/hook")
        monkeypatch.setattr(socket, "getaddrinfo", slow)
        webhook.send({"number": 1})
        webhook.send({"number": 2})
        assert until(lambda: webhook.status()["lost"] == 2)
        assert not released.is_set() and server.bodies == []  # Nobody has waited for the answer to this moment.
        assert "no answer" in webhook.status()["reason"]
        monkeypatch.setattr(_webhook, "_TIMEOUT_S", 20.0)
        monkeypatch.setattr(socket, "getaddrinfo", plain)
        released.set()
        webhook.send({"number": 3})
        assert until(lambda: webhook.status()["records"] == 1)
        webhook.close()
    assert [body["number"] for body in server.bodies] == [3] and len(asked) == 1


def test_a_name_that_no_host_has_is_a_reason(without_tls, monkeypatch):
    def unknown(*words, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    webhook = _webhook.Webhook("https://nowhere.invalid/hook")
    webhook.send({})
    webhook.close()
    assert webhook.status()["lost"] == 1 and "Name or service not known" in webhook.status()["reason"]


def test_a_host_without_a_certificate_gets_nothing():
    with host() as server:
        found = raised_to(server)
    assert server.bodies == []
    assert found["records"] == 0 and found["lost"] == 1 and found["reason"]
