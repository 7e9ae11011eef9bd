"""Cross-entropy."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from calibrant.losses.base import PrimaryLoss
from calibrant.losses.common import (
    IGNORED,
    Input,
    check_reduction,
    reduce,
    rows_of,
    take_expectation,
)


def cross_entropy(
    input: Input,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute cross-entropy, −ln p_y; of class probabilities q, −Σ_k q_k ln p_k (acls eq. 1).

    It is PyTorch's own, except that the mean of a batch whose rows are all ignored is 0, not NaN.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        weight: One weight for each class. Default: None (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    rows = rows_of(input, target, ignore_index)
    if rows.labels is None or weight is not None or check_reduction(reduction) == "none":
        values = take_expectation(rows, lambda cost: cost, weight)
        return reduce(values, rows, reduction, weight)
    total = F.nll_loss(rows.log_probs, rows.labels, ignore_index=ignore_index, reduction="sum")
    return total if reduction == "sum" else total / rows.number


class CrossEntropy(PrimaryLoss):
    """Cross-entropy. See `cross_entropy` for the formula and the options."""

    name = "cross_entropy"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return cross_entropy(input, target, **self.options())
