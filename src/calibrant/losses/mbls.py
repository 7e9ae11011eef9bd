"""Margin-based label smoothing: keep every logit within a margin of the largest."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import IGNORED, Input, batch_value, row_mean, rows_of


def mbls(
    input: Input,
    target: Tensor,
    *,
    margin: float = 10.0,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute the mean over rows and classes of ReLU(z_ŷ − z_k − M) (Liu et al. 2022).

    acls supplement (14) prints a sum over k; the published figures come from the mean. It is
    differentiated whole: acls supplement (15) leaves out the derivative through z_ŷ. Labels only
    say which rows are ignored.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        margin: M, the distance between logits that is free; the papers take 6 for CIFAR-10.
            Default: 10.0 (Liu et al. 2022; acls, section 4.1).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    check_margin(margin)
    rows = rows_of(input, target, ignore_index)
    largest = rows.logits.max(1, keepdim=True).values
    values = excess(largest - rows.logits, margin).mean(1)
    return batch_value(row_mean(values, rows), rows, reduction)


def excess(gap: Tensor, margin: float) -> Tensor:
    """Compute ReLU(gap − M) of gaps of 0 or more, in one operation."""
    return F.softshrink(gap, margin)


def check_margin(margin: float) -> None:
    """Raise unless the margin is a distance: finite, and 0 or more."""
    if not 0 <= margin < float("inf"):
        raise InputError(f"margin must be a distance between logits, 0 or more, found {margin!r}")


class MarginLabelSmoothing(SecondaryLoss):
    """Margin-based label smoothing. See `mbls` for the formula and the options.

    Its weight β is 0.1 unless given (Liu et al. 2022). It is a mean over samples, so the size of
    a local batch does not matter.
    """

    name = "mbls"
    local_batch = False  # a mean over samples
    beta = 0.1

    def __init__(self, *, margin: float = 10.0, **common: Unpack[Reduced]) -> None:
        super().__init__(**common)
        check_margin(margin)
        self.margin = margin

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return mbls(input, target, margin=self.margin, **self.options())
