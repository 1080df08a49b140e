"""The labelled suite of bench/diagnosis: what it holds, and what counts as right. Runs no pipeline."""

import collections
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench" / "diagnosis"))

import labels  # noqa: E402


def test_each_resource_has_five_faults_and_ten_pipelines_are_healthy():
    pipelines = labels.suite([0.16, 0.3], seed=1)
    counts = collections.Counter(one.label for one in pipelines)
    assert counts.pop("healthy") == 10
    assert set(counts) == set(labels.LABELS) and len(counts) == 12
    assert set(counts.values()) == {5}
    assert {share for one in pipelines for share in one.shares} == {0.16, 0.3}
    assert all({one.network for one in pipelines if one.label == label} == set(labels.NETWORKS) for label in labels.LABELS)


def test_a_seed_draws_the_same_suite_again_and_another_one_another():
    assert labels.suite([0.2, 0.4], seed=7) == labels.suite([0.2, 0.4], seed=7)
    assert labels.suite([0.2, 0.4], seed=7) != labels.suite([0.2, 0.4], seed=8)
    assert labels.pairs([0.2, 0.4], seed=7) == labels.pairs([0.2, 0.4], seed=7) != labels.pairs([0.2, 0.4], seed=8)


def test_pairs_are_of_different_labels_that_the_training_thread_meets_itself():
    pairs = labels.pairs([0.16, 0.3], seed=1, count=40)
    assert all(len(one.faults) == len(one.shares) == len(set(one.labels)) == 2 and one.workers == 0 for one in pairs)
    assert len({one.labels for one in pairs}) == 40  # Of the 45 that 10 labels make.
    assert {label for one in pairs for label in one.labels} == set(labels.LABELS) - {"compute", "imbalance"}
    assert {one.network for one in pairs} == set(labels.NETWORKS)


def test_the_script_takes_the_options_of_each_pipeline_and_refuses_a_fault_without_its_share():
    for one in (*labels.suite([0.16], seed=1), *labels.pairs([0.16], seed=1)):
        options = one.options()
        at = options.index("--fault")
        assert options[at:] == ["--fault", *one.faults, "--share", *["0.16"] * len(one.faults)]
    script = Path(labels.__file__).parent / "pipeline.py"
    done = subprocess.run([sys.executable, script, "--fault", "slow_disk", "fresh_pages", "--share", "0.2"], capture_output=True, text=True)
    assert done.returncode == 2 and "found 1 and 0 of 2" in done.stderr


def judged(fault, first, healthy, predicted=None, measured=0.25):
    faults = (fault,) if fault else ()
    pipeline = labels.Pipeline("cnn", "sgd", 0, faults, (0.2,) * len(faults), 1)
    return labels.Judged(pipeline, first, healthy, predicted, (measured,) * len(faults))


@pytest.mark.parametrize("fault, first, healthy, right", [
    ("slow_disk", "storage", False, True), ("slow_disk", "decode", False, False), ("slow_disk", None, False, False),
    ("slow_disk", "compute", True, False), ("more_products", "compute", True, True), ("", "compute", True, True),
    ("", "python", False, False), ("", None, False, False)])
def test_a_verdict_is_right_where_it_names_the_label_and_accuses_nobody_without_a_fault(fault, first, healthy, right):
    assert judged(fault, first, healthy).right == right


def test_the_error_of_a_gain_is_of_right_verdicts_alone():
    assert judged("slow_disk", "storage", False, predicted=0.22, measured=0.2).error == pytest.approx(0.1)
    assert judged("slow_disk", "decode", False, predicted=0.22, measured=0.2).error is None
    assert judged("", "compute", True).error is None
    assert judged("slow_disk", "storage", False, predicted=0.22, measured=0.25).costs == pytest.approx(0.2)


@pytest.mark.parametrize("measured, first, right", [
    ((0.5, 0.2), "storage", True), ((0.5, 0.2), "optimizer", False), ((0.5, 0.2), "python", False),  # By what each costs,
    ((0.5, 0.41), "optimizer", True), ((0.5, 0.39), "optimizer", False), ((0.41, 0.5), "storage", True)])  # or either where that is alike.
def test_of_two_faults_the_one_that_costs_more_is_right(measured, first, right):
    pair = labels.Judged(labels.Pipeline("mlp", "sgd", 0, ("slow_disk", "spin_in_update"), (0.3, 0.2), 1), first, False, 0.5, measured)
    assert pair.right == right
    assert pair.costs == pytest.approx(1 / 3)
    assert pair.error == (pytest.approx(abs(0.5 - measured[pair.pipeline.labels.index(first)]) / measured[pair.pipeline.labels.index(first)])
                          if right else None)
