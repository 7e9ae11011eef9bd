"""Adaptive and conditional label smoothing: MbLS with a penalty that grows with the violation."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
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
from calibrant.losses.history import CorrectnessHistory, gaps, judge_rows
from calibrant.losses.mbls import check_margin, excess

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
    """Compute λ1·ReLU(z_ŷ − min_k z_k − M)² + λ2·mean over j≠ŷ of ReLU(z_ŷ − z_j − M)².

    The value is the mean over rows of acls eq. 13, differentiated whole, through z_ŷ and
    min_k z_k: eq. 12, which the paper calls its gradient, is half of it with the other logit
    held constant, and training with that diverges. Labels only say which rows are ignored.

    Ablations. Table 5, AR only: ``condition="none"``, eq. 10 without an indicator, (·)² for
    ReLU(·)². CR only: ``adaptive=False``, eq. 11 with a constant f, ReLU(·) for ReLU(·)².
    Table 6: ``condition="ranking"``, the indicator of acls supplement (21) in place of the
    margin's: 1[(h_i − h_j)(c_i − c_j) < 0], j the next row, times (·)², h = ``right``/``seen``
    as in `crl`.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        margin: M, the distance between logits that is free; the paper takes 6 for CIFAR-10.
            Default: 10.0 (acls, section 4.1).
        lambda1: λ1, the weight of the largest logit's term. Default: 0.1 (acls, section 4.1).
        lambda2: λ2, the weight of the other logits' term. Default: 0.01 (acls, section 4.1).
        form: 'paper', eq. 13; or 'authors', their code: z_ŷ − M in the first term, and z_ŷ
            constant in the second. Default: 'paper' (ours: the better calibrated on CIFAR-100).
        class_sum: Sum over j, as eq. 13 is printed, instead of the mean over the K−1 classes.
            Default: False (the authors' code, which made the published figures).
        adaptive: Square the penalty, so that it grows with the violation.
            Default: True (acls eq. 10).
        condition: The rows and classes to penalise: 'margin', those beyond the margin; 'none',
            all; or 'ranking', rows that are ranked wrongly. Default: 'margin' (acls eq. 11).
        right: How often each row's sample was classified right, for ``condition="ranking"``.
            Default: None (ours: only that condition needs it).
        seen: How often each row's sample was seen, for ``condition="ranking"``.
            Default: None (ours: only that condition needs it).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
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
    """Compute what `acls` is the mean of: one number per row."""
    _check(margin, lambda1, lambda2, form, adaptive, condition)
    top, predicted = largest(rows.logits)
    top_values = top if form == "paper" else top.detach()
    gaps_below = top_values.unsqueeze(1) - rows.logits
    others = _penalty(gaps_below, margin, adaptive, condition)
    total = others.sum(1)
    if form != "paper":
        far = torch.relu(top) if condition == "margin" else top
        own_penalty = _penalty(far, margin, adaptive, condition)
    elif condition == "margin":  # the largest penalty is that of the smallest logit
        own_penalty = largest(others)[0]
    else:
        own_penalty = _penalty(largest(gaps_below)[0], margin, adaptive, condition)
    if condition != "margin":  # the term of ŷ itself, a gap of −M, is then not 0
        total = total - pick(others, predicted)
    share = lambda2 if class_sum else lambda2 / (rows.logits.shape[1] - 1)
    values = torch.add(lambda1 * own_penalty, total, alpha=share)
    if condition == "ranking":
        values = values * _mark_misranked(rows, right, seen)
    return values


def _penalty(gap: Tensor, margin: float, adaptive: bool, condition: str) -> Tensor:
    violation = excess(gap, margin) if condition == "margin" else gap - margin
    return violation.square() if adaptive else violation


def _mark_misranked(rows: Rows, right: Tensor | None, seen: Tensor | None) -> Tensor:
    """Return 1 where history and confidence order a row and the next one differently."""
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
        raise InputError(f"lambda1 and lambda2 must be finite, found {lambda1!r} and {lambda2!r}")
    if form not in FORMS:
        raise InputError(f"form must be {' or '.join(FORMS)}, found {form!r}")
    if condition not in CONDITIONS:
        raise InputError(f"condition must be one of {', '.join(CONDITIONS)}, found {condition!r}")
    if not adaptive and condition == "none":
        raise InputError(
            "adaptive=False with condition='none' leaves neither part of acls: use label_smoothing"
        )


class ACLS(SecondaryLoss):
    """ACLS. See `acls` for the formula and the options.

    It is a mean over samples, so the size of a local batch does not matter.

    Args:
        num_samples: The size of the training set, needed by ``condition="ranking"`` alone. The
            loss is then called with ``index=``, as `CorrectnessRanking` is, and its pairs are
            those of the local batch. Default: None (ours: the other conditions keep no history).
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
        """Compute the loss; ``index`` gives the training sample of each row, for ranking."""
        rows = rows_of(input, target, self.ignore_index)
        right = seen = None
        if self.history is not None:
            places = self.history.places(rows.logits, index)
            right, seen = self.history.of(places)
        values = self.penalties(rows, right, seen)
        value = batch_value(row_mean(values, rows), rows, self.reduction)
        if self.history is not None and self.training and torch.is_grad_enabled():
            self.history.record(places, *judge_rows(rows))
        return value

    def penalties(
        self, rows: Rows, right: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Compute what the loss is the mean of: one number per row."""
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
