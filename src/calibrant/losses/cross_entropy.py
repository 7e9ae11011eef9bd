"""Cross-entropy."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from calibrant.losses.base import PrimaryLoss
from calibrant.losses.common import IGNORED, Input, check_reduction, expected, reduce, rows_of


def cross_entropy(
    input: Input,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−ln p_y of (N,K,...) logits; of class probabilities q, −Σ_k q_k ln p_k (acls eq. 1).

    PyTorch's own, but for a batch with no row that counts, whose mean is 0 and not NaN.
    """
    rows = rows_of(input, target, ignore_index)
    if rows.labels is None or weight is not None or check_reduction(reduction) == "none":
        values = expected(rows, lambda cost: cost, weight)
        return reduce(values, rows, reduction, weight)
    total = F.nll_loss(rows.log_probs, rows.labels, ignore_index=ignore_index, reduction="sum")
    return total if reduction == "sum" else total / rows.number


class CrossEntropy(PrimaryLoss):
    """See `cross_entropy`."""

    name = "cross_entropy"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return cross_entropy(input, target, **self.options())
