"""Cross-entropy."""

from __future__ import annotations

from torch import Tensor

from calibrant.losses.base import PrimaryLoss
from calibrant.losses.common import IGNORED, expected, reduce, rows_of


def cross_entropy(
    input: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−ln p_y of (N,K,...) logits; of class probabilities q, −Σ_k q_k ln p_k."""
    rows = rows_of(input, target, ignore_index)
    return reduce(expected(rows, lambda log_true: -log_true, weight), rows, reduction, weight)


class CrossEntropy(PrimaryLoss):
    """See `cross_entropy`."""

    name = "cross_entropy"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return cross_entropy(input, target, **self.options())
