"""The confidence penalty: entropy for its own sake."""

from __future__ import annotations

from torch import Tensor

from calibrant.losses.base import SecondaryLoss
from calibrant.losses.common import IGNORED, Input, batch_value, negative_entropy, row_mean, rows_of


def confidence_penalty(
    input: Input,
    target: Tensor,
    *,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−h, the mean over rows of Σ_k p_k ln p_k in nats, of (N,K,...) logits (ECP).

    Pereyra et al. 2017; the five papers print no equation. Between −ln K and 0, whatever the
    labels: they only say which rows are ignored. β = 0.1 by default; figures that acls copies
    come from code that divides by K too, which is β = 0.1/K.
    """
    rows = rows_of(input, target, ignore_index)
    return batch_value(row_mean(negative_entropy(rows), rows), rows, reduction)


class ConfidencePenalty(SecondaryLoss):
    """See `confidence_penalty`."""

    name = "confidence_penalty"
    local_batch = False  # a mean over samples
    beta = 0.1

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return confidence_penalty(input, target, **self.options())
