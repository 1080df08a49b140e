"""bench/doctor_gains sets promised against measured gains: figures made by hand, nothing is run."""

import pytest
from bench_scripts import script


@pytest.fixture(scope="module")
def bench():
    return script("doctor_gains")


@pytest.mark.parametrize("measured, is_met", [(0.49, False), (0.5, True), (1.0, True), (2.0, True), (2.1, False), (-0.1, False)])
def test_a_gain_is_as_promised_within_a_factor_of_two(bench, measured, is_met):
    line, found = bench.told("a job", [{"setting": "data.num_workers = 2", "promised": 1.0, "measured": measured}] * 5)
    assert found is is_met and line.startswith("a job: data.num_workers = 2: promised +100%, measured ")
    assert line.endswith("met" if is_met else "MISSED")


def test_the_loaders_rate_counts_waiting_or_what_the_training_thread_loads_itself(bench):
    def result(num_workers):
        stages = [{"name": "read", "busy_s": 1.0}, {"name": "decode", "busy_s": 2.0}, {"name": "transform", "busy_s": 1.0},
                  {"name": "consume", "busy_s": 1.0, "wait_for_input_s": 3.0 if num_workers else 0.0, "records": 1000}]
        return {"loading": {"num_workers": num_workers, "stages": stages}}

    assert bench.loaders_rate(result(2)) == 250
    assert bench.loaders_rate(result(0)) == 200


def test_a_setting_becomes_a_flag(bench):
    assert bench.changed({"data.num_workers": "1"}, 'data.cache = "decoded"') == {"data.num_workers": "1", "data.cache": "decoded"}
    assert bench.changed({"data.num_workers": "1"}, "data.num_workers = 4") == {"data.num_workers": "4"}
