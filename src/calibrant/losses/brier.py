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
    """Compute the Brier score, Σ_k (p_k − 1[k=y])².

    soft-calibration trains with it as "MSE" and prints no equation; the sum over the classes,
    and not their mean, is ours. Class probabilities q take the place of 1[k=y], so the loss is
    0 at p = q.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        weight: One weight for each class, applied to the rows of that class.
            Default: None (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    rows = rows_of(input, target, ignore_index)
    values = rows.mask_ignored(less_labels(rows.log_probs.exp(), rows).square().sum(1))
    return reduce(weigh(values, rows, weight), rows, reduction, weight)


class Brier(PrimaryLoss):
    """The Brier score. See `brier` for the formula and the options."""

    name = "brier"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return brier(input, target, **self.options())
