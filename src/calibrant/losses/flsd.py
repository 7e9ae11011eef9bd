"""Sample-dependent focal loss: a larger γ where the label is least likely."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, Input, reduce, rows_of, take_expectation
from calibrant.losses.focal import check_gamma, power


def flsd(
    input: Input,
    target: Tensor,
    *,
    gamma_below: float = 5.0,
    gamma_above: float = 3.0,
    threshold: float = 0.2,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute −(1−p_y)^γ ln p_y with a γ that depends on p_y (FLSD-53 of Mukhoti et al. 2020).

    r-aurc calls it FL-53 (section 5). acls supplement (1) has the predicted class's probability
    in the condition; the true class's is meant. The gradient flows through the weight; the loss
    jumps where p_y passes the threshold. For class probabilities q it is the expectation,
    Σ_k q_k·(loss of class k).

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        gamma_below: γ where p_y < threshold. Default: 5.0 (Mukhoti et al. 2020, FLSD-53).
        gamma_above: γ elsewhere. Default: 3.0 (Mukhoti et al. 2020, FLSD-53).
        threshold: The probability of the true class at which γ changes.
            Default: 0.2 (Mukhoti et al. 2020, FLSD-53).
        weight: One weight for each class. Default: None (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
    """

    check_gamma(gamma_below, gamma_above)
    _check(threshold)
    least = -math.log(threshold) if threshold > 0 else math.inf  # −ln p_y where p_y < threshold

    def value(cost: Tensor) -> Tensor:
        base = -torch.expm1(-cost)
        return cost * torch.where(cost > least, power(base, gamma_below), power(base, gamma_above))

    rows = rows_of(input, target, ignore_index)
    return reduce(take_expectation(rows, value, weight), rows, reduction, weight)


def _check(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold must be a probability, in [0, 1], found {threshold!r}")


class SampleDependentFocal(PrimaryLoss):
    """Sample-dependent focal loss. See `flsd` for the formula and the options."""

    name = "flsd"

    def __init__(
        self,
        *,
        gamma_below: float = 5.0,
        gamma_above: float = 3.0,
        threshold: float = 0.2,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        check_gamma(gamma_below, gamma_above)
        self.gamma_below, self.gamma_above = gamma_below, gamma_above
        _check(threshold)
        self.threshold = threshold

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return flsd(
            input,
            target,
            gamma_below=self.gamma_below,
            gamma_above=self.gamma_above,
            threshold=self.threshold,
            **self.options(),
        )
