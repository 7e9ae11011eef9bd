"""Sample-dependent focal loss: a larger γ for the rows the network is most wrong about."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, Input, expected, reduce, rows_of
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
    """−(1−p_y)^γ ln p_y of (N,K,...) logits, γ = 5 where p_y < 0.2 and 3 elsewhere.

    FLSD-53 of Mukhoti et al. 2020, FL-53 in r-aurc (section 5). acls supplement (1) has the
    predicted class's probability in the condition; the true class's is meant. The gradient
    flows through the weight; the loss jumps where p_y passes the threshold. Of class
    probabilities q it is the expectation, Σ_k q_k·(loss of class k).
    """

    check_gamma(gamma_below, gamma_above)
    _check(threshold)
    least = -math.log(threshold) if threshold > 0 else math.inf  # −ln p_y where p_y < threshold

    def value(cost: Tensor) -> Tensor:
        base = -torch.expm1(-cost)
        return cost * torch.where(cost > least, power(base, gamma_below), power(base, gamma_above))

    rows = rows_of(input, target, ignore_index)
    return reduce(expected(rows, value, weight), rows, reduction, weight)


def _check(threshold: float) -> None:
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold is a probability, in [0, 1], found {threshold!r}")


class SampleDependentFocal(PrimaryLoss):
    """See `flsd`."""

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
        """The loss."""
        return flsd(
            input,
            target,
            gamma_below=self.gamma_below,
            gamma_above=self.gamma_above,
            threshold=self.threshold,
            **self.options(),
        )
