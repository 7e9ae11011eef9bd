"""The Brier score: squared error of the whole probability vector."""

from __future__ import annotations

from torch import Tensor

from calibrant.losses.base import PrimaryLoss
from calibrant.losses.common import IGNORED, Input, less_labels, reduce, rows_of, weigh


def brier(
    input: Input,
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
    values = rows.kept(less_labels(rows.log_probs.exp(), rows).square().sum(1))
    return reduce(weigh(values, rows, weight), rows, reduction, weight)


class Brier(PrimaryLoss):
    """See `brier`."""

    name = "brier"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return brier(input, target, **self.options())
