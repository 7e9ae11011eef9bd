"""Label smoothing: cross-entropy against a softened label."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, Input, reduce, rows_of, take_expectation, weigh


def label_smoothing(
    input: Input,
    target: Tensor,
    *,
    smoothing: float = 0.05,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute −Σ_k q_k ln p_k with the smoothed label q = (1−ε)·onehot + ε/K (acls eq. 4).

    Class probabilities take the place of the onehot label.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        smoothing: ε, the share of the label that is spread over all classes.
            Default: 0.05 (Mukhoti et al. 2020, LS-0.05).
        weight: One weight for each class, applied to the rows of that class;
            `torch.nn.CrossEntropyLoss` weighs the classes of the smoothed label instead.
            Default: None (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    _check(smoothing)
    rows = rows_of(input, target, ignore_index)
    log_true = -take_expectation(rows, lambda cost: cost)
    values = rows.mask_ignored(smooth_cross_entropy(log_true, rows.log_probs.mean(1), smoothing))
    return reduce(weigh(values, rows, weight), rows, reduction, weight)


def smooth_cross_entropy(log_true: Tensor, log_mean: Tensor, smoothing: float) -> Tensor:
    """Compute −(1−ε) ln p_y − ε·(1/K) Σ_k ln p_k."""
    return torch.sub(-(1.0 - smoothing) * log_true, log_mean, alpha=smoothing)


def _check(smoothing: float) -> None:
    if not 0 <= smoothing <= 1:
        raise InputError(f"smoothing must lie in [0, 1], found {smoothing!r}")


class LabelSmoothing(PrimaryLoss):
    """Label smoothing. See `label_smoothing` for the formula and the options."""

    name = "label_smoothing"

    def __init__(self, *, smoothing: float = 0.05, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        _check(smoothing)
        self.smoothing = smoothing

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return label_smoothing(input, target, smoothing=self.smoothing, **self.options())
