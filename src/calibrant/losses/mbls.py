"""Margin-based label smoothing: no logit should lie further than a margin below the largest."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
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
    """Mean over rows and classes of ReLU(z_ŷ − z_k − M) of (N,K,...) logits.

    Liu et al. 2022; acls supplement (14), which prints a sum over k where the published
    figures come from the mean. Differentiated whole: acls supplement (15) leaves out the
    derivative through z_ŷ. Labels only say which rows count. M = 10 (6 for CIFAR-10).
    """
    check_margin(margin)
    rows = rows_of(input, target, ignore_index)
    largest = rows.logits.max(1, keepdim=True).values
    values = beyond(largest - rows.logits, margin).mean(1)
    return batch_value(row_mean(values, rows), rows, reduction)


def beyond(gap: Tensor, margin: float) -> Tensor:
    """ReLU(gap − M) of gaps of 0 or more, in one operation."""
    return F.softshrink(gap, margin)


def check_margin(margin: float) -> None:
    """A margin is a distance between logits."""
    if not 0 <= margin < float("inf"):
        raise InputError(f"margin is a distance between logits, 0 or more, found {margin!r}")


class MarginLabelSmoothing(SecondaryLoss):
    """See `mbls`. A mean over samples, so a smaller local batch is no matter."""

    name = "mbls"
    local_batch = False  # a mean over samples
    beta = 0.1

    def __init__(self, *, margin: float = 10.0, **common: Unpack[Reduced]) -> None:
        super().__init__(**common)
        check_margin(margin)
        self.margin = margin

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return mbls(input, target, margin=self.margin, **self.options())
