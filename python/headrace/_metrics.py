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
    _check("accuracy", logits, labels)
    if any(k < 1 for k in topk):
        raise InvalidArgumentError(f"accuracy: topk: wanted numbers of at least 1, found {tuple(topk)}")
    wanted = [k for k in topk if k < logits.shape[1]]
    right = logits.topk(max(wanted, default=0), dim=1).indices.eq(labels.unsqueeze(1))
    return {f"top{k}": right[:, :k].any(dim=1).float().mean() for k in wanted}


class ConfusionMatrix:
    """Counts of right and wrong answers by class, summed up on the device of the logits without waiting for it.

        matrix = headrace.ConfusionMatrix(10)

        def forward(model, batch):
            logits = model(batch[0])
            if not model.training:
                matrix.add(logits, batch[1])
            return torch.nn.functional.cross_entropy(logits, batch[1])

        trainer.evaluate(val_loader)
        print(matrix.accuracy(), matrix.counts)
        matrix.reset()

    num_classes: at least 1. Takes 8 bytes for each pair of classes. One thread may use it at a time.
    """

    def __init__(self, num_classes: int) -> None:
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 1:
            raise InvalidArgumentError(f"ConfusionMatrix: num_classes: wanted a whole number of at least 1, found {num_classes!r}")
        self.num_classes = num_classes
        self._counts: torch.Tensor | None = None

    def add(self, logits: torch.Tensor, labels: torch.Tensor, valid: torch.Tensor | None = None) -> None:
        """A batch: logits of shape (N, num_classes), labels as accuracy() takes them. valid: (N,), 0 where a sample does not count, as
        the last batch of a headrace.Loader that pads has it.

        InvalidArgumentError: another shape or dtype, or on the CPU a label that is no class."""
        _check("ConfusionMatrix", logits, labels)
        if logits.shape[1] != self.num_classes:
            raise InvalidArgumentError(f"ConfusionMatrix: logits: wanted {self.num_classes} classes, found {logits.shape[1]}")
        if valid is not None and valid.shape != labels.shape:
            raise InvalidArgumentError(f"ConfusionMatrix: valid: wanted the shape {tuple(labels.shape)}, found {tuple(valid.shape)}")
        if labels.device.type == "cpu" and ((labels < 0) | (labels >= self.num_classes)).any():
            wrong = next(label for label in labels.tolist() if not 0 <= label < self.num_classes)
            raise InvalidArgumentError(f"ConfusionMatrix: labels: wanted 0 to {self.num_classes - 1}, found {wrong}")
        if self._counts is None or self._counts.device != logits.device:
            with torch.inference_mode(False):  # What is made under it could not be written outside of it.
                self._counts = self.counts.to(logits.device)
        places = labels.long() * self.num_classes + logits.detach().argmax(dim=1)
        self._counts.view(-1).scatter_add_(0, places, torch.ones_like(places) if valid is None else (valid != 0).long())

    @property
    def counts(self) -> torch.Tensor:
        """int64 (num_classes, num_classes): in row i and column j the samples of class i for which logit j was the largest."""
        if self._counts is None:
            return torch.zeros(self.num_classes, self.num_classes, dtype=torch.int64)
        return self._counts.clone()

    def accuracy(self) -> list[float | None]:
        """Of each class the share of its samples that were right; None: it had none. Waits for the device."""
        counts = self.counts.cpu()
        return [right / count if count else None for right, count in zip(counts.diagonal().tolist(), counts.sum(dim=1).tolist())]

    def reset(self) -> None:
        """Forgets what was added."""
        self._counts = None

    def __repr__(self) -> str:
        return f"<headrace.ConfusionMatrix: {self.num_classes} classes>"


def _check(caller: str, logits: torch.Tensor, labels: torch.Tensor) -> None:
    if logits.dim() != 2:
        raise InvalidArgumentError(f"{caller}: logits: wanted the shape (N, classes), found {tuple(logits.shape)}")
    if labels.shape != logits.shape[:1]:
        raise InvalidArgumentError(f"{caller}: labels: wanted the shape ({len(logits)},), as there are logits, found {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise InvalidArgumentError(f"{caller}: labels: wanted indices of classes, found {labels.dtype}")
