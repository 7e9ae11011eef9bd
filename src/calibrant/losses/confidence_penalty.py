"""Confidence penalty: a reward for entropy, whatever the label."""

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
    """Compute −h, the mean over rows of Σ_k p_k ln p_k in nats (ECP, Pereyra et al. 2017).

    The five papers print no equation. The value lies between −ln K and 0, whatever the labels,
    which only say which rows are ignored.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    rows = rows_of(input, target, ignore_index)
    return batch_value(row_mean(negative_entropy(rows), rows), rows, reduction)


class ConfidencePenalty(SecondaryLoss):
    """Confidence penalty. See `confidence_penalty` for the formula and the options.

    Its weight β is 0.1 unless given (Pereyra et al. 2017). The figures that acls copies come from
    code that also divides by K, which is β = 0.1/K.
    """

    name = "confidence_penalty"
    local_batch = False  # a mean over samples
    beta = 0.1

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return confidence_penalty(input, target, **self.options())
