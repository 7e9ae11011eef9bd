"""Cross-entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.losses.base import PrimaryLoss
from calibrant.losses.common import (
    IGNORED,
    check_reduction,
    checked,
    class_weights,
    expected,
    reduce,
    rows_of,
)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−ln p_y of (N,K,...) logits; of class probabilities q, −Σ_k q_k ln p_k.

    PyTorch's own, but for a batch with no row that counts, whose mean is 0 and not NaN.
    """
    if target.is_floating_point():
        rows = rows_of(input, target, ignore_index)
        return reduce(expected(rows, lambda log_true: -log_true, weight), rows, reduction, weight)
    logits, labels, counts = checked(input, target, ignore_index)
    how: Any = {"ignore_index": ignore_index}
    if weight is not None:
        how["weight"] = class_weights(logits, weight)
    if reduction != "mean":
        return F.cross_entropy(logits, labels, reduction=check_reduction(reduction), **how)
    total = F.cross_entropy(logits, labels, reduction="sum", **how)
    if weight is None:
        return total / counts.sum().clamp_min(1)
    heavy = how["weight"][labels.where(counts, 0)].where(counts, 0).sum()
    return total / heavy.where(heavy > 0, torch.ones_like(heavy))


class CrossEntropy(PrimaryLoss):
    """See `cross_entropy`."""

    name = "cross_entropy"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return cross_entropy(input, target, **self.options())
