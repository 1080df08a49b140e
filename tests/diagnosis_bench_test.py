"""The labelled suite of bench/diagnosis: what it holds, and what counts as right. Runs no pipeline."""

import collections
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
    assert {one.share for one in pipelines if one.fault} == {0.16, 0.3}
    assert all({one.network for one in pipelines if one.label == label} == set(labels.NETWORKS) for label in labels.LABELS)


def test_a_seed_draws_the_same_suite_again_and_another_one_another():
    assert labels.suite([0.2, 0.4], seed=7) == labels.suite([0.2, 0.4], seed=7)
    assert labels.suite([0.2, 0.4], seed=7) != labels.suite([0.2, 0.4], seed=8)


def judged(fault, first, healthy, predicted=None, measured=None):
    return labels.Judged(labels.Pipeline("cnn", "sgd", 0, fault, 0.2, 1), first, healthy, predicted, measured)


@pytest.mark.parametrize("fault, first, healthy, right", [
    ("slow_disk", "storage", False, True), ("slow_disk", "decode", False, False), ("slow_disk", None, False, False),
    ("slow_disk", "compute", True, False), ("more_products", "compute", True, True), ("", "compute", True, True),
    ("", "python", False, False), ("", None, False, False)])
def test_a_verdict_is_right_where_it_names_the_label_and_accuses_nobody_without_a_fault(fault, first, healthy, right):
    assert judged(fault, first, healthy).right == right


def test_the_error_of_a_gain_is_of_right_verdicts_alone():
    assert judged("slow_disk", "storage", False, predicted=0.22, measured=0.2).error == pytest.approx(0.1)
    assert judged("slow_disk", "decode", False, predicted=0.22, measured=0.2).error is None
    assert judged("", "compute", True, measured=None).error is None
    assert judged("slow_disk", "storage", False, predicted=0.22, measured=0.25).costs == pytest.approx(0.2)
