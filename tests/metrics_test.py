"""headrace.accuracy and ConfusionMatrix against counts by hand."""

import pytest
import torch

import headrace as hr


def batch(samples=64, classes=10, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, classes, generator=generator), torch.randint(classes, (samples,), generator=generator)


def counted(logits, labels, k):
    """The share of labels than whose logits fewer than k are larger."""
    right = [sum(other > row[label] for other in row) < k for row, label in zip(logits.tolist(), labels.tolist())]
    return sum(right) / len(right)


@pytest.mark.parametrize("topk", [(1, 5), (3,), (2, 1), (9,), ()])
def test_shares_are_those_of_a_count_by_hand(topk):
    logits, labels = batch()
    found = hr.accuracy(logits, labels, topk)
    assert list(found) == [f"top{k}" for k in topk]
    for k in topk:
        assert found[f"top{k}"].item() == pytest.approx(counted(logits, labels, k))


def test_top_1_and_top_5_are_given_where_nobody_asks_for_others():
    logits, labels = batch()
    found = hr.accuracy(logits, labels)
    assert found.keys() == {"top1", "top5"} and found["top1"] < found["top5"] < 1


def test_a_share_is_a_tensor_of_one_number_without_a_graph():
    logits, labels = batch()
    for dtype in (torch.float32, torch.bfloat16):
        for share in hr.accuracy(logits.to(dtype).requires_grad_(), labels).values():
            assert share.shape == () and share.dtype == torch.float32 and not share.requires_grad


def test_a_device_is_not_waited_for():
    logits, labels = batch()
    found = hr.accuracy(logits.to("meta"), labels.to("meta"))  # Of that device no value can be read.
    assert [(name, share.device.type, share.shape) for name, share in found.items()] == [("top1", "meta", ()), ("top5", "meta", ())]


def test_a_k_of_all_classes_or_more_is_left_out():
    for classes in (4, 5):
        assert list(hr.accuracy(*batch(classes=classes))) == ["top1"]
    assert list(hr.accuracy(*batch(classes=6))) == ["top1", "top5"]
    assert list(hr.accuracy(*batch(classes=4), (5, 4, 3))) == ["top3"]


@pytest.mark.parametrize("logits, labels, topk, words", [
    (torch.zeros(4), torch.zeros(4, dtype=torch.long), (1,), r"logits: wanted the shape \(N, classes\), found \(4,\)"),
    (torch.zeros(4, 3, 2), torch.zeros(4, dtype=torch.long), (1,), r"logits: .* found \(4, 3, 2\)"),
    (torch.zeros(4, 3), torch.zeros(3, dtype=torch.long), (1,), r"labels: wanted the shape \(4,\), .* found \(3,\)"),
    (torch.zeros(4, 3), torch.zeros(4, 3), (1,), r"labels: wanted the shape \(4,\), .* found \(4, 3\)"),
    (torch.zeros(4, 3), torch.zeros(4), (1,), "labels: wanted indices of classes, found torch.float32"),
    (torch.zeros(4, 3), torch.zeros(4, dtype=torch.bool), (1,), "labels: wanted indices of classes, found torch.bool"),
    (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), (1, 0), r"topk: wanted numbers of at least 1, found \(1, 0\)"),
], ids=["one axis", "three axes", "fewer labels", "a target a class", "real labels", "labels of bools", "top 0"])
def test_wrong_shapes_dtypes_and_topk_are_refused_with_what_was_wanted(logits, labels, topk, words):
    with pytest.raises(ValueError, match=words):
        hr.accuracy(logits, labels, topk)


# ---- By class ----


def test_a_confusion_matrix_counts_each_sample_that_counts_once():
    matrix, wanted = hr.ConfusionMatrix(4), [[0] * 4 for _ in range(4)]
    for seed, valid in ((1, None), (2, torch.arange(64) % 3)):
        logits, labels = batch(classes=4, seed=seed)
        matrix.add(logits.requires_grad_(), labels, valid)
        for place, (row, label) in enumerate(zip(logits.tolist(), labels.tolist())):
            wanted[label][row.index(max(row))] += valid is None or bool(valid[place])
    assert matrix.counts.tolist() == wanted and matrix.counts.dtype == torch.int64
    assert matrix.accuracy() == [wanted[label][label] / sum(wanted[label]) for label in range(4)]
    matrix.reset()
    assert matrix.counts.tolist() == [[0] * 4] * 4 and matrix.accuracy() == [None] * 4


def test_a_confusion_matrix_goes_on_behind_batches_of_inference_mode():
    matrix = hr.ConfusionMatrix(3)
    for mode in (torch.inference_mode, torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            matrix.add(torch.eye(3), torch.tensor([0, 1, 1]))
    assert matrix.counts.tolist() == [[4, 0, 0], [0, 4, 4], [0, 0, 0]]


def test_a_class_without_samples_has_no_accuracy():
    matrix = hr.ConfusionMatrix(3)
    matrix.add(torch.eye(3)[[0, 1, 0]], torch.tensor([0, 0, 0]))
    assert matrix.accuracy() == [2 / 3, None, None]


def test_a_confusion_matrix_does_not_wait_for_a_device():
    matrix = hr.ConfusionMatrix(10)
    logits, labels = batch()
    matrix.add(logits.to("meta"), labels.to("meta"))  # Of that device no value can be read.
    assert (matrix.counts.device.type, matrix.counts.shape) == ("meta", (10, 10))


@pytest.mark.parametrize("logits, labels, valid, words", [
    (torch.zeros(4), torch.zeros(4, dtype=torch.long), None, r"ConfusionMatrix: logits: wanted the shape \(N, classes\)"),
    (torch.zeros(4, 5), torch.zeros(4, dtype=torch.long), None, "logits: wanted 3 classes, found 5"),
    (torch.zeros(4, 3), torch.tensor([0, 1, 3, 0]), None, "labels: wanted 0 to 2, found 3"),
    (torch.zeros(4, 3), torch.tensor([0, -1, 2, 0]), None, "labels: wanted 0 to 2, found -1"),
    (torch.zeros(4, 3), torch.zeros(4, dtype=torch.long), torch.ones(3), r"valid: wanted the shape \(4,\), found \(3,\)"),
])
def test_what_a_confusion_matrix_cannot_count_is_refused_and_not_counted(logits, labels, valid, words):
    matrix = hr.ConfusionMatrix(3)
    with pytest.raises(hr.errors.InvalidArgumentError, match=words):
        matrix.add(logits, labels, valid)
    assert int(matrix.counts.sum()) == 0


def test_a_number_of_classes_that_is_none_is_refused():
    for wrong in (0, 2.0, True):
        with pytest.raises(hr.errors.InvalidArgumentError, match="num_classes: wanted a whole number of at least 1, found "):
            hr.ConfusionMatrix(wrong)
