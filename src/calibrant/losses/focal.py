"""Focal loss: cross-entropy that cares less about what is already certain."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, expected, reduce, rows_of


def focal(
    input: Tensor,
    target: Tensor,
    *,
    gamma: float = 3.0,
    detach_weight: bool = False,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """−(1−p_y)^γ ln p_y of (N,K,...) logits (Lin et al. 2017; Mukhoti et al. 2020).

    The gradient flows through the weight (1−p_y)^γ. ``detach_weight=True`` holds it
    constant, as the code of class-scaling does: then the value is no potential of its
    gradient. Of class probabilities q the loss is its expectation, Σ_k q_k·(loss of class k).
    """

    def value(log_true: Tensor) -> Tensor:
        factor = focal_weight(log_true, gamma)
        return -(factor.detach() if detach_weight else factor) * log_true

    rows = rows_of(input, target, ignore_index)
    return reduce(expected(rows, value, weight), rows, reduction, weight)


def focal_weight(log_true: Tensor, gamma: float) -> Tensor:
    """(1−p_y)^γ of ln p_y; its gradient stays finite at p_y = 1 for any γ ≥ 0."""
    # Below γ = 1 the power's derivative is infinite at 0: the floor stops it there.
    return (-torch.expm1(log_true)).clamp_min(torch.finfo(log_true.dtype).tiny) ** gamma


class Focal(PrimaryLoss):
    """See `focal`."""

    name = "focal"

    def __init__(
        self, *, gamma: float = 3.0, detach_weight: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        self.gamma, self.detach_weight = gamma, detach_weight

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return focal(
            input, target, gamma=self.gamma, detach_weight=self.detach_weight, **self.options()
        )
