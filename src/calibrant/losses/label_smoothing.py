"""Label smoothing: cross-entropy against a softened label."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, Input, expected, reduce, rows_of, weigh


def label_smoothing(
    input: Input,
    target: Tensor,
    *,
    smoothing: float = 0.05,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−Σ_k q_k ln p_k of (N,K,...) logits, q = (1−ε)·onehot + ε/K (acls eq. 4).

    Class-probability targets take the place of the onehot. ``weight`` weighs a sample by its
    class, where `torch.nn.CrossEntropyLoss` weighs the classes of the smoothed label.
    """
    _check(smoothing)
    rows = rows_of(input, target, ignore_index)
    log_true = -expected(rows, lambda cost: cost)
    values = rows.kept(smoothed(log_true, rows.log_probs.mean(1), smoothing))
    return reduce(weigh(values, rows, weight), rows, reduction, weight)


def smoothed(log_true: Tensor, log_mean: Tensor, smoothing: float) -> Tensor:
    """−(1−ε) ln p_y − ε·(1/K) Σ_k ln p_k."""
    return torch.sub(-(1.0 - smoothing) * log_true, log_mean, alpha=smoothing)


def _check(smoothing: float) -> None:
    if not 0 <= smoothing <= 1:
        raise InputError(f"smoothing lies in [0, 1], found {smoothing!r}")


class LabelSmoothing(PrimaryLoss):
    """See `label_smoothing`."""

    name = "label_smoothing"

    def __init__(self, *, smoothing: float = 0.05, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        _check(smoothing)
        self.smoothing = smoothing

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return label_smoothing(input, target, smoothing=self.smoothing, **self.options())
