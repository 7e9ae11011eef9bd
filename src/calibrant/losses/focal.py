"""Focal loss: cross-entropy that cares less about what is already certain."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, Input, expected, reduce, rows_of


def focal(
    input: Input,
    target: Tensor,
    *,
    gamma: float = 3.0,
    detach_weight: bool = False,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−(1−p_y)^γ ln p_y of (N,K,...) logits, r-aurc eq. 2 (Lin et al. 2017; Mukhoti et al. 2020).

    The gradient flows through the weight (1−p_y)^γ. ``detach_weight=True`` holds it
    constant, as the code of class-scaling does: then the value is no potential of its
    gradient. Of class probabilities q the loss is its expectation, Σ_k q_k·(loss of class k).
    """

    check_gamma(gamma)

    def value(cost: Tensor) -> Tensor:
        factor = focal_weight(-cost, gamma)
        return (factor.detach() if detach_weight else factor) * cost

    rows = rows_of(input, target, ignore_index)
    return reduce(expected(rows, value, weight), rows, reduction, weight)


def focal_weight(log_true: Tensor, gamma: float) -> Tensor:
    """(1−p_y)^γ of ln p_y; its gradient stays finite at p_y = 1 for any γ ≥ 0."""
    return power(-torch.expm1(log_true), gamma)


def power(base: Tensor, gamma: float) -> Tensor:
    """base^γ of a base that may be 0."""
    # Below γ = 1 the power's derivative is infinite at 0: the floor stops it there.
    floored = base.clamp_min(torch.finfo(base.dtype).tiny) if 0 < gamma < 1 else base
    return floored**gamma


def check_gamma(*gammas: float) -> None:
    """A focal loss with γ < 0 would weigh the surest rows without end."""
    for gamma in gammas:
        if not 0 <= gamma < float("inf"):
            raise InputError(f"gamma is 0 (cross-entropy) or more, and finite, found {gamma!r}")


class Focal(PrimaryLoss):
    """See `focal`."""

    name = "focal"

    def __init__(
        self, *, gamma: float = 3.0, detach_weight: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        check_gamma(gamma)
        self.gamma, self.detach_weight = gamma, detach_weight

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return focal(
            input, target, gamma=self.gamma, detach_weight=self.detach_weight, **self.options()
        )
