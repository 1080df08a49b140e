"""Trace, span, diagnose, write_report and doctor from Python."""

import asyncio
import inspect
import json
import threading
import time

import pytest
import torch
from torch import nn

import headrace as hr


def train(steps: int):
    model = nn.Linear(64, 64)

    def forward(m, b):
        time.sleep(0.01)  # Beside which a pause between two steps, in which a list waits for nothing, is short.
        return m(b).square().mean()

    trainer = hr.Trainer(model, torch.optim.AdamW(model.parameters()), forward)
    trainer.fit([torch.randn(32, 64)] * steps, 1)


def test_spans_are_recorded_under_their_names_and_nest():
    with hr.Trace() as trace:
        for _ in range(3):
            with hr.span("outer"):
                with hr.span("inner"):
                    time.sleep(0.01)
    summary = trace.summary()
    spans = {entry["name"]: entry for entry in summary["operations"]}
    assert spans["outer"]["count"] == 3 and spans["inner"]["count"] == 3
    assert 0.03 <= spans["inner"]["total_s"] <= spans["outer"]["total_s"]
    assert summary["total_operations"] == 6
    assert summary["total_duration"] == pytest.approx(spans["outer"]["total_s"], rel=0.02)


def test_calls_of_a_profiled_operation_are_counted_and_timed_and_give_what_they_gave():
    class Cutter:
        @hr.profile_operation("cut")
        def cut(self, size: int, *, times: int = 1) -> int:
            """Cuts."""
            time.sleep(0.01)
            return size * times

        @staticmethod
        @hr.profile_operation("fails")
        def fails():
            raise KeyError("mine")

    with hr.Trace() as trace:
        assert [Cutter().cut(size, times=2) for size in range(3)] == [0, 2, 4]
        with pytest.raises(KeyError, match="mine"):
            Cutter.fails()
    spans = {entry["name"]: entry for entry in trace.summary()["operations"]}
    assert spans["cut"]["count"] == 3 and spans["fails"]["count"] == 1
    assert 0.01 <= spans["cut"]["min_s"] <= spans["cut"]["total_s"]
    assert (Cutter.cut.__name__, Cutter.cut.__doc__) == ("cut", "Cuts.")
    assert str(inspect.signature(Cutter.cut)) == "(self, size: int, *, times: int = 1) -> int"
    assert Cutter().cut(1) == 1  # Without a Trace.


def test_profiled_coroutines_overlap_and_each_keeps_its_own_time():
    @hr.profile_operation("fetch")
    async def fetch(seconds):
        await asyncio.sleep(seconds)
        return seconds

    async def both():
        return await asyncio.gather(fetch(0.03), fetch(0.01))

    assert inspect.iscoroutinefunction(fetch)
    with hr.Trace() as trace:
        assert asyncio.run(both()) == [0.03, 0.01]
    (entry,) = trace.summary()["operations"]
    assert entry["count"] == 2 and entry["min_s"] >= 0.01 and entry["max_s"] >= 0.03
    assert trace.summary()["total_duration"] < entry["total_s"]  # They ran at once.


def test_what_cannot_be_profiled_is_refused_by_name():
    def batches():
        yield 1

    for what, words in [(batches, "batches makes a generator"), (property(len), "found property; below"), (3, "found int")]:
        with pytest.raises(hr.errors.InvalidArgumentError, match=words):
            hr.profile_operation("x")(what)
    with pytest.raises(hr.errors.InvalidArgumentError, match="name: wanted a text, found function"):
        hr.profile_operation(batches)


def test_an_exception_closes_and_marks_a_span(tmp_path):
    with pytest.raises(KeyError):
        with hr.Trace() as trace:
            with hr.span("fails"):
                raise KeyError
    assert trace.summary()["operations"][0]["name"] == "fails"
    trace.write(tmp_path / "trace.json")
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert "fails: exception" in names
    with hr.Trace():  # The one that ended left the place free.
        pass


def test_one_trace_records_at_a_time_and_is_read_after_its_end():
    with hr.Trace() as trace:
        with pytest.raises(hr.errors.InvalidArgumentError):
            with hr.Trace():
                pass
        with pytest.raises(hr.errors.InvalidArgumentError, match="after its with block"):
            trace.summary()


def test_spans_of_threads_are_recorded():
    def work():
        with hr.span("in a thread"):
            pass

    with hr.Trace() as trace:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert trace.summary()["operations"][0]["count"] == 2


@pytest.mark.engine
def test_steps_of_a_trainer_are_split_diagnosed_and_reported(tmp_path):
    with hr.Trace() as trace:
        train(20)
    split = trace.time_split(skip=2)
    assert split["steps"] == 18
    diagnosis = hr.diagnose(trace, 32, skip=2)
    assert diagnosis["bound"] == "compute" and "compute-bound" in diagnosis["sentence"]
    assert isinstance(diagnosis, hr.Diagnosis) and diagnosis.time_split == split and "backward" in diagnosis._repr_html_()
    hr.write_report(tmp_path / "report.html", trace, 32, title="a linear layer", skip=2)
    page = (tmp_path / "report.html").read_text()
    assert "a linear layer" in page and diagnosis["sentence"].split(";")[0].split(":")[0] in page
    with pytest.raises(hr.errors.CorruptDataError):
        trace.time_split(skip=100)


@pytest.mark.parametrize(("bound", "first", "shown"), [("data", None, "data-bound"), ("data", "storage", "storage runs out first"),
                                                       ("unknown", None, "not known")])
def test_a_diagnosis_shows_the_verdict_over_resources_where_it_names_one_or_nothing_else_is_known(bound, first, shown):
    sentence = "storage runs out first" if first else "what runs out first is not known"
    found = {"bound": bound, "sentence": "data-bound", "findings": [], "resources": {"first": first, "sentence": sentence}}
    assert shown in repr(hr.Diagnosis(found, {}))


def test_a_file_that_is_no_trace_of_headrace_is_not_diagnosed(tmp_path):
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(hr.errors.CorruptDataError, match="trace.json"):
        hr.diagnose(tmp_path / "trace.json", 16)
    with pytest.raises(TypeError):
        hr.diagnose(3, 16)


def test_doctor_lists_findings_of_machine_and_run(tmp_path):
    assert all(set(finding) == {"code", "sentence", "advice"} for finding in hr.doctor())
    with pytest.raises(hr.errors.NotFoundError):
        hr.doctor(tmp_path / "nothing")
