"""Calibration by pairwise constraints: the true class against the others, and those in pairs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import (
    IGNORED,
    Input,
    Rows,
    batch_value,
    label_table,
    row_mean,
    rows_of,
)

# Pairs computed at once: what a core's cache holds, or enough to keep a device busy.
_PAIRS = 1 << 18
_DEVICE_PAIRS = 1 << 24
_STRAIGHT = 40.0  # softplus is the identity above it, in float64 too


def cpc(
    input: Input,
    target: Tensor,
    *,
    lambda1: float = 0.1,
    lambda2: float = 1.0,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute λ1·mean over k≠y of −ln σ(z_y−z_k) + λ2·mean over k≠l, both ≠ y, of −ln σ(z_k−z_l).

    Cheng and Vasconcelos 2022; acls supplement (3) and (4), with means over the K−1 pairs and
    the (K−1)(K−2) ordered ones instead of its sums. The value is the mean over rows. Supplement
    (7) and (8) have sign slips: the derivative of the first part for j ≠ y is +p_j/(p_y+p_j).
    For class probabilities q the loss is its expectation over y ~ q. Time grows with K², memory
    does not; a second derivative raises an error.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        lambda1: λ1, the weight of the pairs with the true class.
            Default: 0.1 (Cheng and Vasconcelos 2022, as acls takes it).
        lambda2: λ2, the weight of the pairs of other classes.
            Default: 1.0 (Cheng and Vasconcelos 2022, as acls takes it).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    _check(lambda1, lambda2)
    rows = rows_of(input, target, ignore_index)
    classes = rows.logits.shape[1]
    first = lambda1 / (classes - 1)
    second = lambda2 / ((classes - 1) * (classes - 2)) if classes > 2 else 0.0
    # A compiled graph takes labels as probabilities: see `is_place`.
    hard = rows.soft is None and not torch.compiler.is_compiling()
    values = _hard(rows, first, second) if hard else _soft(rows, first, second)
    return batch_value(row_mean(values, rows), rows, reduction)


def _hard(rows: Rows, first: float, second: float) -> Tensor:
    label = rows.places.unsqueeze(1)
    place = torch.arange(rows.logits.shape[1] - 1, device=label.device)
    place = place.reshape(1, -1, *[1] * (label.ndim - 2))
    others = rows.logits.gather(1, place + (place >= label))
    against = softplus(others - rows.logits.gather(1, label), threshold=_STRAIGHT)
    pairs: Tensor = _PairSum.apply(others, None, None)  # type: ignore[no-untyped-call]
    return torch.add(first * against.sum(1), pairs, alpha=second)


def _soft(rows: Rows, first: float, second: float) -> Tensor:
    """Weigh −ln σ(z_k−z_l) by first·q_k + second·(1 − q_k − q_l), a part of k less a part of l."""
    share = label_table(rows)
    own_slope, other = first * share + second * (1 - share), second * share
    values: Tensor = _PairSum.apply(rows.logits, own_slope, other)  # type: ignore[no-untyped-call]
    return values


class _PairSum(torch.autograd.Function):
    """Σ_{k≠l} (u_k − v_l)·softplus(z_l − z_k) per row, with its gradient from the same pass.

    Without u and v each pair has weight 1: the gradient is then Σ_l tanh((z_k − z_l)/2).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, first: Tensor | None, second: Tensor | None) -> Tensor:
        value, slope = _pair_sums(logits, first, second)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise NotImplementedError("cpc has no second derivative: do not set create_graph=True")
        (slope,) = ctx.saved_tensors
        return grad.unsqueeze(1) * slope, None, None


def _pair_sums(
    logits: Tensor, first: Tensor | None, second: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the sum and its gradient in blocks of k against every l, never all pairs at once."""
    classes = logits.shape[1]
    value, rows = torch.zeros_like(logits[:, 0]), torch.empty_like(logits)
    columns = None
    # A compiled graph holds every block, so fewer and larger ones are better.
    in_cache = logits.device.type == "cpu" and not torch.compiler.is_compiling()
    at_once = _PAIRS if in_cache else _DEVICE_PAIRS
    step = max(1, at_once // logits.numel())
    for begin in range(0, classes, step):
        block = slice(begin, begin + step)
        gap = logits.unsqueeze(1) - logits[:, block].unsqueeze(2)
        cost, pull = softplus(gap, threshold=_STRAIGHT), torch.sigmoid(gap)
        if first is not None and second is not None:
            weight = first[:, block].unsqueeze(2) - second.unsqueeze(1)
            cost, pull = weight * cost, weight * pull
            columns = pull.sum(1) if columns is None else columns + pull.sum(1)
        value = value + cost.sum((1, 2))
        rows[:, block] = pull.sum(2)  # small tensors kept between large ones fragment memory
    # The pairs k = l are in the sum: ln 2 each, and a gradient that cancels.
    if first is not None and second is not None and columns is not None:
        return value - math.log(2) * (first - second).sum(1), columns - rows
    return value - math.log(2) * classes, classes - 2 * rows


def _check(*weights: float) -> None:
    for weight in weights:
        if not isinstance(weight, (int, float)) or not abs(weight) < math.inf:
            raise InputError(f"lambda1 and lambda2 must be finite numbers, found {weight!r}")


class PairwiseConstraints(SecondaryLoss):
    """Calibration by pairwise constraints. See `cpc` for the formula and the options.

    It is a mean over samples, so the size of a local batch does not matter.
    """

    name = "cpc"
    local_batch = False  # a mean over samples

    def __init__(
        self, *, lambda1: float = 0.1, lambda2: float = 1.0, **common: Unpack[Reduced]
    ) -> None:
        super().__init__(**common)
        _check(lambda1, lambda2)
        self.lambda1, self.lambda2 = lambda1, lambda2

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return cpc(input, target, lambda1=self.lambda1, lambda2=self.lambda2, **self.options())
