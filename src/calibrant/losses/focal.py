"""Focal loss: cross-entropy with less weight on rows that are already certain."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, Input, reduce, rows_of, take_expectation


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
    """Compute the focal loss, −(1−p_y)^γ ln p_y (r-aurc eq. 2; Lin et al. 2017).

    For class probabilities q the loss is its expectation, Σ_k q_k·(loss of class k).

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        gamma: γ, 0 or more; 0 is cross-entropy. Default: 3.0 (Mukhoti et al. 2020, FL-3).
        detach_weight: Hold the weight (1−p_y)^γ constant in the gradient, as the code of
            class-scaling does. The gradient is then not that of the value.
            Default: False (r-aurc eq. 38: the gradient flows through the weight).
        weight: One weight for each class. Default: None (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
    """

    check_gamma(gamma)

    def value(cost: Tensor) -> Tensor:
        factor = focal_weight(-cost, gamma)
        return (factor.detach() if detach_weight else factor) * cost

    rows = rows_of(input, target, ignore_index)
    return reduce(take_expectation(rows, value, weight), rows, reduction, weight)


def focal_weight(log_true: Tensor, gamma: float) -> Tensor:
    """Compute (1−p_y)^γ from ln p_y; its gradient is finite at p_y = 1 for any γ ≥ 0."""
    return power(-torch.expm1(log_true), gamma)


def power(base: Tensor, gamma: float) -> Tensor:
    """Compute base^γ, with a finite gradient where the base is 0."""
    # Below γ = 1 the power's derivative is infinite at 0; the floor bounds it.
    floored = base.clamp_min(torch.finfo(base.dtype).tiny) if 0 < gamma < 1 else base
    return floored**gamma


def check_gamma(*gammas: float) -> None:
    """Raise unless every γ is 0 or more: a negative one has no bound at p_y = 1."""
    for gamma in gammas:
        if not 0 <= gamma < float("inf"):
            raise InputError(f"gamma must be finite and 0 (cross-entropy) or more, found {gamma!r}")


class Focal(PrimaryLoss):
    """Focal loss. See `focal` for the formula and the options."""

    name = "focal"

    def __init__(
        self, *, gamma: float = 3.0, detach_weight: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(**common)
        check_gamma(gamma)
        self.gamma, self.detach_weight = gamma, detach_weight

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return focal(
            input, target, gamma=self.gamma, detach_weight=self.detach_weight, **self.options()
        )
