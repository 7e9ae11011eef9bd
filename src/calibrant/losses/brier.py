"""The Brier score: squared error of the whole probability vector."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.losses.base import PrimaryLoss
from calibrant.losses.common import IGNORED, Rows, reduce, rows_of, weigh


def brier(
    input: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Σ_k (p_k − 1[k=y])² of (N,K,...) logits (r-aurc eq. 24).

    It is the MSE primary loss of soft-calibration, which never defines it: the sum over the
    classes, and not their mean, is ours. Class probabilities q take the place of 1[k=y], so
    the loss is 0 at p = q. ``weight`` weighs a sample by its class.
    """
    rows = rows_of(input, target, ignore_index)
    values = _gaps(rows).square().sum(1)
    return reduce(weigh(values, rows, weight), rows, reduction, weight)


def _gaps(rows: Rows) -> Tensor:
    """p − 1[k=y], without a table of the labels where they are indices."""
    probs = rows.log_probs.exp()
    if rows.soft is not None:
        return probs - rows.soft
    assert rows.labels is not None
    place = rows.labels.unsqueeze(1)
    return probs.scatter_add(1, place, torch.full_like(place, -1.0, dtype=probs.dtype))


class Brier(PrimaryLoss):
    """See `brier`."""

    name = "brier"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return brier(input, target, **self.options())
