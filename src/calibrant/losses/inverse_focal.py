"""Inverse focal loss: cross-entropy with more weight on rows that are already certain."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import IGNORED, Input, reduce, rows_of, take_expectation
from calibrant.losses.focal import check_gamma

# The loss falls with p_y everywhere as long as γ ≤ (1+p)/(−p ln p) for every p. That is least
# where ln p = −(1+p), at p = W(1/e) = 0.27846 (Lambert's W), and is 1/p there.
LARGEST_FALLING_GAMMA = 3.591121476668622


def inverse_focal(
    input: Input,
    target: Tensor,
    *,
    gamma: float = 1.5,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute the inverse focal loss, −(1+p_y)^γ ln p_y (r-aurc eq. 3).

    Its derivative by p_y is −γ(1+p)^(γ−1) ln p − (1+p)^γ / p; r-aurc's eq. 39–40 have the
    sign of the first term wrong. For γ > min over p of (1+p)/(−p ln p) = 1/W(1/e) = 3.5911, with
    W Lambert's function, the derivative is positive somewhere, and the loss drives p_y down there:
    such a γ warns. For class probabilities q the loss is its expectation,
    Σ_k q_k·(loss of class k).

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        gamma: γ, 0 or more; 0 is cross-entropy.
            Default: 1.5 (ours: between the 1 to 3 that r-aurc's table 4 lists by network).
        weight: One weight for each class. Default: None (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    check_gamma(gamma)
    _warn_where_rising(gamma)
    return _loss(input, target, gamma, weight, ignore_index, reduction)


def _loss(
    input: Input,
    target: Tensor,
    gamma: float,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    rows = rows_of(input, target, ignore_index)
    values = take_expectation(rows, lambda cost: (1.0 + (-cost).exp()) ** gamma * cost, weight)
    return reduce(values, rows, reduction, weight)


def _warn_where_rising(gamma: float) -> None:
    if gamma > LARGEST_FALLING_GAMMA and not torch.compiler.is_compiling():
        warnings.warn(
            f"inverse_focal with gamma={gamma:g} rises with p_y somewhere and can train a network "
            f"away from the label; use gamma <= {LARGEST_FALLING_GAMMA:.2f}",
            stacklevel=3,
        )


class InverseFocal(PrimaryLoss):
    """Inverse focal loss. See `inverse_focal` for the formula and the options.

    A γ above 3.59 warns once, when the loss is made.
    """

    name = "inverse_focal"

    def __init__(self, *, gamma: float = 1.5, **common: Unpack[Common]) -> None:
        super().__init__(**common)
        check_gamma(gamma)
        _warn_where_rising(gamma)
        self.gamma = gamma

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return _loss(input, target, self.gamma, **self.options())
