"""Figures of a batch, for what forward returns beside its loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .errors import InvalidArgumentError


def accuracy(logits: torch.Tensor, labels: torch.Tensor, topk: Sequence[int] = (1, 5)) -> dict[str, torch.Tensor]:
    """Shares of right answers in a batch, {"top1": ..., "top5": ...}: float32 tensors of one number on the device of the logits,
    computed without waiting for it. Returned by forward beside the loss, they are averaged over the samples by evaluate():

        def forward(model, batch):
            logits = model(batch[0])
            return torch.nn.functional.cross_entropy(logits, batch[1]), headrace.accuracy(logits, batch[1])

    logits: of shape (N, classes).
    labels: indices of the right classes, of shape (N,) and an integer dtype.
    topk: for each k, at least 1, the share of labels among the k largest logits; of equal logits torch.topk chooses. A k is left
        out where there are no more than k classes: all would be right.

    InvalidArgumentError, a ValueError, says what was wanted: a shape, a dtype or a k.
    """
    if logits.dim() != 2:
        raise InvalidArgumentError(f"accuracy: logits: wanted the shape (N, classes), found {tuple(logits.shape)}")
    if labels.shape != logits.shape[:1]:
        raise InvalidArgumentError(f"accuracy: labels: wanted the shape ({len(logits)},), as there are logits, "
                                   f"found {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InvalidArgumentError(f"accuracy: labels: wanted indices of classes, found {labels.dtype}")
    if any(k < 1 for k in topk):
        raise InvalidArgumentError(f"accuracy: topk: wanted numbers of at least 1, found {tuple(topk)}")
    wanted = [k for k in topk if k < logits.shape[1]]
    right = logits.topk(max(wanted, default=0), dim=1).indices.eq(labels.unsqueeze(1))
    return {f"top{k}": right[:, :k].any(dim=1).float().mean() for k in wanted}
