"""hr.Trace of chosen names, of every n-th step and of a time: what is recorded, counted."""

import time

import headrace as hr


def counts(trace: hr.Trace) -> dict[str, int]:
    return {operation["name"]: operation["count"] for operation in trace.summary()["operations"]}


def one_of_each() -> None:
    for name in ("load image", "load label", "augment"):
        with hr.span(name):
            pass


def test_only_names_that_match_a_pattern_are_recorded():
    with hr.Trace(names=["load *"]) as trace:
        one_of_each()
        one_of_each()
    assert counts(trace) == {"load image": 2, "load label": 2}
    with hr.Trace() as trace:
        one_of_each()
    assert len(counts(trace)) == 3


def test_of_every_tenth_step_all_is_recorded_and_of_the_others_nothing():
    with hr.Trace(every_steps=10) as trace:
        one_of_each()  # Of no step.
        for number in range(30):
            hr.Trace.step(number)
            one_of_each()
    assert counts(trace) == {"load image": 3, "load label": 3, "augment": 3}


def test_outside_of_its_time_nothing_is_recorded():
    with hr.Trace(from_s=1e6, length_s=1e6) as trace:
        one_of_each()
    assert counts(trace) == {}
    with hr.Trace(from_s=0.05, length_s=1e6) as trace:
        time.sleep(0.1)
        with hr.span("later"):
            pass
    assert counts(trace) == {"later": 1}
