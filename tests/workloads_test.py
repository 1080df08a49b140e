"""bench/workloads: the set is what was asked for, its workloads are the same each time, and one that takes too long is told."""

import dataclasses
import json
import sys

import pytest
from bench_scripts import BENCH, script
from tiny_run import write_photos

sys.path.insert(0, str(BENCH))

run = script("workloads")
workloads = run.workloads
TINY = 0.02


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set") / "photos"
    write_photos(folder, train=5)
    return folder


@pytest.fixture
def made(photos, tmp_path):
    return workloads.make(tmp_path, photos, TINY)


def fingerprints(made):
    return {one.name: one.fingerprint for one in made}


def test_the_set_has_each_kind_or_says_that_it_is_not_built(made):
    assert [one.name for one in made] == ["tensor records", "photographs", "boxes", "MLP", "convolutions", "attention"]
    assert workloads.NOT_BUILT == ("video clips", "serving")


def test_a_run_sees_all_samples_and_a_second_one_as_many(made):
    assert [(one.name, one.run(), one.run()) for one in made] == [(one.name, one.samples, one.samples) for one in made]


def test_workloads_are_the_same_each_time_and_others_with_another_seed(made, photos, tmp_path):
    (tmp_path / "again").mkdir()
    assert fingerprints(workloads.make(tmp_path / "again", photos, TINY)) == fingerprints(made)
    (tmp_path / "other").mkdir()
    other = fingerprints(workloads.make(tmp_path / "other", photos, TINY, seed=2))
    assert {name for name, found in fingerprints(made).items() if other[name] == found} == {"photographs"}  # They are files.


def test_a_training_takes_the_same_steps_each_time(monkeypatch):
    make, trained = workloads.hr.Trainer, []

    def kept(model, optimizer, forward):
        trained.append((model, {name: value.clone() for name, value in model.state_dict().items()}))
        return make(model, optimizer, forward)

    monkeypatch.setattr(workloads.hr, "Trainer", kept)
    first = workloads.trainings(2, seed=1)[0]
    first.run()
    first.run()
    (one, begin), (other, _) = trained
    assert all(bool((value == other.state_dict()[name]).all()) for name, value in one.state_dict().items())
    assert any(bool((value != begin[name]).any()) for name, value in one.state_dict().items())


def test_a_workload_that_loses_samples_is_no_figure(made):
    lost = dataclasses.replace(made[0], run=lambda: made[0].samples - 1)
    with pytest.raises(SystemExit, match="tensor records: wanted .* samples, found"):
        run.rate(lost)


@pytest.mark.parametrize("seconds, times, status", [(600.0, 1, 0), (600.5, 1, 3), (6000.0, 4, 0)])
def test_a_small_mode_of_more_than_ten_minutes_is_a_failure(seconds, times, status):
    assert run.status_of(seconds, times) == status


def test_a_table_has_the_fingerprints_and_what_is_not_built(made):
    text = run.table(made, {one.name: [10.0, 12.0, 14.0] for one in made})
    assert all(one.fingerprint in text for one in made)
    assert text.count("unavailable: not built yet") == 2


def test_each_workload_is_a_metric_of_headrace_compare():
    assert json.loads(run.metrics({"tensor records": [1.0, 3.0, 2.0], "MLP": [4.0]})) == {
        "tensor_records_samples_per_s": 2.0, "mlp_samples_per_s": 4.0}


def test_an_unknown_workload_is_refused_with_those_there_are(made):
    with pytest.raises(SystemExit, match="--only: wanted tensor records, .*, found video"):
        run.chosen(made, ["video"])
    assert run.chosen(made, ["boxes"]) == [made[2]]
