"""Adaptive and conditional label smoothing: logits held within a margin, the more the further."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import (
    IGNORED,
    Input,
    Rows,
    batch_value,
    largest,
    pick,
    row_mean,
    rows_of,
)
from calibrant.losses.history import CorrectnessHistory, gaps, right_now
from calibrant.losses.mbls import beyond, check_margin

FORMS = ("paper", "authors")
CONDITIONS = ("margin", "none", "ranking")


def acls(
    input: Input,
    target: Tensor,
    *,
    margin: float = 10.0,
    lambda1: float = 0.1,
    lambda2: float = 0.01,
    form: str = "paper",
    class_sum: bool = False,
    adaptive: bool = True,
    condition: str = "margin",
    right: Tensor | None = None,
    seen: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """λ1·ReLU(z_ŷ − min_k z_k − M)² + λ2·mean over j≠ŷ of ReLU(z_ŷ − z_j − M)², mean over rows.

    acls eq. 13 of (N,K,...) logits, differentiated whole, through z_ŷ and min_k z_k: eq. 12,
    said to be its gradient, is half of it with the other logit held constant, and trained
    that way it diverges. ``class_sum=True`` sums over j as printed; the mean over the K−1
    classes is the normalisation of the published figures. ``form="authors"`` is the authors'
    code: z_ŷ − M in the first term, and z_ŷ constant in the second. Labels only say which rows
    count. M = 10 (6 for CIFAR-10).

    Ablations. Table 5, AR only: ``condition="none"``, eq. 10 without an indicator, (·)² for
    ReLU(·)². CR only: ``adaptive=False``, eq. 11 with a constant f, ReLU(·) for ReLU(·)².
    Table 6: ``condition="ranking"``, the indicator of acls supplement (21) in place of the
    margin's: 1[(h_i − h_j)(c_i − c_j) < 0], j the next row, times (·)², h = ``right``/``seen``
    as in `crl`.
    """
    rows = rows_of(input, target, ignore_index)
    values = penalties(
        rows,
        margin=margin,
        lambda1=lambda1,
        lambda2=lambda2,
        form=form,
        class_sum=class_sum,
        adaptive=adaptive,
        condition=condition,
        right=right,
        seen=seen,
    )
    return batch_value(row_mean(values, rows), rows, reduction)


def penalties(
    rows: Rows,
    *,
    margin: float,
    lambda1: float,
    lambda2: float,
    form: str,
    class_sum: bool,
    adaptive: bool,
    condition: str,
    right: Tensor | None = None,
    seen: Tensor | None = None,
) -> Tensor:
    """What `acls` is the mean of: a number a row."""
    _check(margin, lambda1, lambda2, form, adaptive, condition)
    top, predicted = largest(rows.logits)
    held = top if form == "paper" else top.detach()
    gaps_below = held.unsqueeze(1) - rows.logits
    others = _penalty(gaps_below, margin, adaptive, condition)
    total = others.sum(1)
    if form != "paper":
        far = torch.relu(top) if condition == "margin" else top
        own = _penalty(far, margin, adaptive, condition)
    elif condition == "margin":  # the smallest logit's is the largest of the penalties
        own = largest(others)[0]
    else:
        own = _penalty(largest(gaps_below)[0], margin, adaptive, condition)
    if condition != "margin":  # where the term of ŷ itself, a gap of −M, is not 0
        total = total - pick(others, predicted)
    share = lambda2 if class_sum else lambda2 / (rows.logits.shape[1] - 1)
    values = torch.add(lambda1 * own, total, alpha=share)
    if condition == "ranking":
        values = values * _misranked(rows, right, seen)
    return values


def _penalty(gap: Tensor, margin: float, adaptive: bool, condition: str) -> Tensor:
    kept = beyond(gap, margin) if condition == "margin" else gap - margin
    return kept.square() if adaptive else kept


def _misranked(rows: Rows, right: Tensor | None, seen: Tensor | None) -> Tensor:
    """1 where a row and the next are in one order by history and the other by confidence."""
    if right is None or seen is None or rows.logits.ndim != 2:
        raise InputError(
            "condition='ranking' compares samples by their history: it needs right= and seen= "
            "(ACLS(condition='ranking', num_samples=...) keeps them) and logits of shape (N,K)"
        )
    confidence = rows.top[0].detach().exp()
    history, rise = gaps(confidence, right, seen, rows.counts)
    return (history * rise < 0).to(confidence.dtype)


def _check(
    margin: float, lambda1: float, lambda2: float, form: str, adaptive: bool, condition: str
) -> None:
    check_margin(margin)
    if not (abs(lambda1) < math.inf and abs(lambda2) < math.inf):
        raise InputError(f"lambda1 and lambda2 are finite, found {lambda1!r} and {lambda2!r}")
    if form not in FORMS:
        raise InputError(f"form is {' or '.join(FORMS)}, found {form!r}")
    if condition not in CONDITIONS:
        raise InputError(f"condition is one of {', '.join(CONDITIONS)}, found {condition!r}")
    if not adaptive and condition == "none":
        raise InputError(
            "adaptive=False with condition='none' leaves neither part of acls: use label_smoothing"
        )


class ACLS(SecondaryLoss):
    """See `acls`. A mean over samples, so a smaller local batch is no matter.

    ``condition="ranking"`` alone needs ``num_samples`` and is called with ``index=``, as
    `CorrectnessRanking` is; its pairs are those of the local batch.
    """

    name = "acls"
    local_batch = False  # a mean over samples
    history: CorrectnessHistory | None

    def __init__(
        self,
        *,
        margin: float = 10.0,
        lambda1: float = 0.1,
        lambda2: float = 0.01,
        form: str = "paper",
        class_sum: bool = False,
        adaptive: bool = True,
        condition: str = "margin",
        num_samples: int | None = None,
        **common: Unpack[Reduced],
    ) -> None:
        super().__init__(**common)
        _check(margin, lambda1, lambda2, form, adaptive, condition)
        self.margin, self.lambda1, self.lambda2 = margin, lambda1, lambda2
        self.form, self.class_sum = form, class_sum
        self.adaptive, self.condition = adaptive, condition
        self.register_module("history", None)
        if condition == "ranking":
            self.needs_index = True
            self.local_batch = True  # its pairs are rows of one batch
            self.history = CorrectnessHistory(num_samples)  # type: ignore[arg-type]

    def forward(self, input: Input, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        """The loss; ``index`` says which training sample each row is, where it ranks."""
        rows = rows_of(input, target, self.ignore_index)
        right = seen = None
        if self.history is not None:
            places = self.history.places(rows.logits, index)
            right, seen = self.history.of(places)
        values = self.penalties(rows, right, seen)
        value = batch_value(row_mean(values, rows), rows, self.reduction)
        if self.history is not None and self.training and torch.is_grad_enabled():
            self.history.record(places, *right_now(rows))
        return value

    def penalties(
        self, rows: Rows, right: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """What the loss is the mean of: a number a row."""
        return penalties(
            rows,
            margin=self.margin,
            lambda1=self.lambda1,
            lambda2=self.lambda2,
            form=self.form,
            class_sum=self.class_sum,
            adaptive=self.adaptive,
            condition=self.condition,
            right=right,
            seen=seen,
        )
