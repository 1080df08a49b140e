"""How far tensors that a change computed lie from the reference's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Squares:
    """Sums of squares of the reference's numbers, the candidate's and their differences, summed in float64: those of
    several tensors add up."""

    reference: float = 0.0
    candidate: float = 0.0
    difference: float = 0.0

    def __add__(self, other: Squares) -> Squares:
        return Squares(self.reference + other.reference, self.candidate + other.candidate, self.difference + other.difference)

    @property
    def is_finite(self) -> bool:
        """Of the candidate: every number."""
        return math.isfinite(self.candidate)

    @property
    def relative_l2(self) -> float:
        """Of the difference to the reference; infinite where a number is not finite, or the reference alone is 0."""
        if not math.isfinite(self.difference):
            return math.inf
        if self.difference == 0:
            return 0.0
        return math.sqrt(self.difference / self.reference) if self.reference > 0 else math.inf

    @property
    def distance(self) -> float:
        """Of the difference to the larger of the two, so that it is the same both ways; infinite where a number is not finite."""
        return Squares(max(self.reference, self.candidate), self.candidate, self.difference).relative_l2

    @property
    def cosine(self) -> float:
        """Between the two; NaN where a number is not finite, 0 where one of them is 0 and the other is not."""
        if not math.isfinite(self.difference):
            return math.nan
        if self.reference == 0 or self.candidate == 0:
            return 1.0 if self.reference == self.candidate else 0.0
        product = (self.reference + self.candidate - self.difference) / 2
        return max(-1.0, min(1.0, product / (math.sqrt(self.reference) * math.sqrt(self.candidate))))


def squares(reference: torch.Tensor | None, candidate: torch.Tensor | None) -> Squares:
    """Of one tensor, dense or sparse; None, a gradient that does not exist, counts as zeros. One temporary tensor of its
    size."""
    first, second = _plain(reference), _plain(candidate)
    if first is None or second is None:
        known = _sum_of_squares(first if second is None else second)
        return Squares(known, 0.0, known) if second is None else Squares(0.0, known, known)
    return Squares(_sum_of_squares(first), _sum_of_squares(second), _sum_of_squares(second - first))


def output_squares(reference: torch.Tensor, candidate: torch.Tensor) -> Squares:
    """The same of what a call returned, without the numbers that are not finite in the reference either: a model that masks
    returns infinities by design."""
    counts = torch.isfinite(reference)
    if bool(counts.all()):
        return squares(reference, candidate)
    return squares(reference[counts], candidate[counts])


def same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Every bit, the signs of zeros too. NaN is never the same."""
    if a is None or b is None:
        return a is b
    if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
        return False
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return torch.equal(a, b) and (not a.is_floating_point() or torch.equal(torch.signbit(a), torch.signbit(b)))


def _plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """As dense real numbers that can be subtracted without loss."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.float() if tensor.is_floating_point() else tensor.double()


def _sum_of_squares(tensor: torch.Tensor | None) -> float:
    return 0.0 if tensor is None else torch.linalg.vector_norm(tensor, dtype=torch.float64).item() ** 2
