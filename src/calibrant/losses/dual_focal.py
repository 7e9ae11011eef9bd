"""Dual focal loss: a focal loss that also takes the class just below the true one."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, Input, largest, reduce, rows_of, take_expectation
from calibrant.losses.focal import check_gamma, power


def dual_focal(
    input: Input,
    target: Tensor,
    *,
    gamma: float = 5.0,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute the dual focal loss, −(1 − p_y + p_j)^γ ln p_y (Tao et al. 2023).

    The five papers name it and print no equation. p_j is the largest p_k strictly below p_y, 0
    if there is none, and its gradient is kept; with the largest over all k ≠ y instead, training
    collapsed. The loss jumps where another class passes the true one. For class probabilities q it
    is the expectation, Σ_k q_k·(loss of class k), each with the p_j below its own p_k.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        gamma: γ, 0 or more; 0 is cross-entropy. r-aurc's table 4 lists others by network.
            Default: 5.0 (r-aurc, table 4, ResNet-50 on CIFAR-10 and CIFAR-100).
        weight: One weight for each class. Default: None (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
    """

    check_gamma(gamma)

    def value(cost: Tensor) -> Tensor:
        log_true = -cost
        below = _all_below(log_true) if rows.labels is None else _below(rows.log_probs, log_true)
        return power(below - torch.expm1(log_true), gamma) * cost

    rows = rows_of(input, target, ignore_index)
    return reduce(take_expectation(rows, value, weight), rows, reduction, weight)


def _below(log_probs: Tensor, log_true: Tensor) -> Tensor:
    """Find the largest p_k strictly below p_y: one number per row, 0 if there is none."""
    lower = log_probs.where(log_probs < log_true.unsqueeze(1), -torch.inf)
    return largest(lower)[0].exp()


def _all_below(log_probs: Tensor) -> Tensor:
    """Find for every class the largest probability strictly below its own, 0 if there is none."""
    ordered, order = log_probs.sort(dim=1)
    rises = ordered[:, 1:] > ordered[:, :-1]
    # The class below is the one before the last rise up to this one; ties share it.
    steps = torch.arange(rises.shape[1], device=rises.device)
    steps = steps.reshape(-1, *[1] * (rises.ndim - 2))
    place = torch.where(rises, steps, -1).cummax(1).values
    lower = ordered.exp().gather(1, place.clamp_min(0)).where(place >= 0, 0)
    below = torch.cat([torch.zeros_like(lower[:, :1]), lower], dim=1)
    return torch.zeros_like(log_probs).scatter(1, order, below)


class DualFocal(PrimaryLoss):
    """Dual focal loss. See `dual_focal` for the formula and the options."""

    name = "dual_focal"

    def __init__(self, *, gamma: float = 5.0, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        check_gamma(gamma)
        self.gamma = gamma

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return dual_focal(input, target, gamma=self.gamma, **self.options())
