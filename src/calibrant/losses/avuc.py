"""Accuracy versus uncertainty: be certain where right and uncertain where wrong."""

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
    label_table,
    negative_entropy,
    pick,
    rows_of,
)


def avuc(
    input: Input,
    target: Tensor,
    *,
    threshold: float = 0.5,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """AvUC of a batch of (N,K,...) logits (Krishnan & Tickoo 2020; soft-calibration eq. 13, 14).

    ln(1 + (n_AU + n_IC)/(n_AC + n_IU)), a row being uncertain where h > κ and certain
    elsewhere, and

    n_AU = Σ c·tanh h over right, uncertain rows; n_IC = Σ (1−c)(1−tanh h) over wrong, certain;
    n_AC = Σ c(1−tanh h) over right, certain rows; n_IU = Σ (1−c)·tanh h over wrong, uncertain.

    ``threshold`` is κ in nats. The paper tunes it and prints no value: 0.5 is the entropy of
    the probabilities .8 and .2, and below ln 2, so that it splits the rows of two classes too.
    Of class probabilities, a row is right by the share its label gives the prediction. The
    value is of the local batch, and finite: the denominator, as a mean over rows, is floored
    at the precision of its numbers.
    """
    return _hard(input, target, threshold, ignore_index, reduction, stopped=False)


def avuc_gs(
    input: Input,
    target: Tensor,
    *,
    threshold: float = 0.5,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """AvUC-GS: the value of `avuc`, no gradient through c (soft-calibration appendix F).

    `avuc` rewards more confidence in wrong, certain rows and less in right, uncertain ones,
    through the factors 1−c and c; with c held constant only tanh h moves.
    """
    return _hard(input, target, threshold, ignore_index, reduction, stopped=True)


def s_avuc(
    input: Input,
    target: Tensor,
    *,
    threshold: float = 0.5,
    temperature: float = 1.0,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """S-AvUC of a batch of (N,K,...) logits, soft-calibration eq. 15, 16.

    ln(1 + (n′_AU + n′_IC)/(n′_AC + n′_IU)) with t = t_κ,T(h*) of `soft_uncertainty` and

    n′_AU = Σ t·tanh h and n′_AC = Σ (1−t)(1−tanh h) over right rows,
    n′_IU = Σ t·tanh h and n′_IC = Σ (1−t)(1−tanh h) over wrong ones.

    t takes h* = h/ln K, tanh takes h in nats. ``threshold`` is κ and ``temperature`` T. The
    paper tunes both and prints no value: at 0.5 and 1, the defaults, t is h* itself. For labels
    that are class probabilities and for the floor under the fraction see `avuc`.
    """
    _check_soft(threshold, temperature)
    rows = rows_of(input, target, ignore_index)
    certainty = negative_entropy(rows)
    share = certainty / -math.log(rows.logits.shape[1])
    uncertain = soft_uncertainty(share, threshold, temperature)
    vague = uncertain * torch.tanh(-certainty)
    sharp = (1.0 - uncertain) * _not_tanh(certainty)
    if rows.labels is None:
        right = pick(label_table(rows), rows.top[1])
        bad, good = torch.lerp(sharp, vague, right), torch.lerp(vague, sharp, right)
        return _log_ratio(rows, bad.sum(), good.sum(), reduction)
    right = rows.top[1] == rows.labels
    bad, good = torch.where(right, vague, sharp), torch.where(right, sharp, vague)
    return _log_ratio(rows, rows.kept(bad).sum(), rows.kept(good).sum(), reduction)


def soft_uncertainty(share: Tensor, threshold: float, temperature: float) -> Tensor:
    """t_κ,T(h*) = logistic((1/T)·ln(h*(1−κ) / ((1−h*)κ))), from 0 at h* = 0 to 1 at h* = 1.

    κ is where t is 1/2 and T how softly it gets there: the step h* > κ as T → 0, the identity
    at κ = 0.5 and T = 1. h* is kept away from 0 and 1 by the precision of its numbers, where
    the derivative of the logarithm has no end.
    """
    odds = torch.logit(share, eps=torch.finfo(share.dtype).eps)
    if threshold != 0.5:
        odds = odds - math.log(threshold / (1.0 - threshold))
    return torch.sigmoid(odds if temperature == 1 else odds / temperature)


def _hard(
    input: Input,
    target: Tensor,
    threshold: float,
    ignore_index: int,
    reduction: str,
    *,
    stopped: bool,
) -> Tensor:
    _check_hard(threshold)
    rows = rows_of(input, target, ignore_index)
    confidence = rows.top[0].exp()
    confidence = confidence.detach() if stopped else confidence
    certainty = negative_entropy(rows)
    # −tanh h in uncertain rows, 1 − tanh h in certain ones: its sign says which it is. Times c
    # in right rows and c − 1 in wrong ones, it is positive in the rows of AC and IU, negative
    # in those of AU and IC, and as large as what the row adds to them.
    moving = torch.tanh(certainty) + (certainty >= -threshold)
    if rows.labels is None:
        right = pick(label_table(rows), rows.top[1])
        as_right, as_wrong = confidence * moving, (confidence - 1.0) * moving
        bad = torch.lerp(torch.relu(-as_wrong), torch.relu(-as_right), right)
        good = torch.lerp(torch.relu(as_wrong), torch.relu(as_right), right)
        return _log_ratio(rows, bad.sum(), good.sum(), reduction)
    wrong = rows.top[1] != rows.labels
    signed = rows.kept(torch.add(confidence, wrong, alpha=-1) * moving)
    return _log_ratio(rows, torch.relu(-signed).sum(), torch.relu(signed).sum(), reduction)


def _not_tanh(certainty: Tensor) -> Tensor:
    """1 − tanh h of −h, without its cancellation."""
    return 2.0 * torch.sigmoid(2.0 * certainty)


def _log_ratio(rows: Rows, bad: Tensor, good: Tensor, reduction: str) -> Tensor:
    """ln(1 + bad/good), of the sums AU + IC and AC + IU."""
    under = torch.clamp_min(good, rows.number * torch.finfo(good.dtype).eps)
    return batch_value(torch.log1p(bad / under), rows, reduction)


def _check_hard(threshold: float) -> None:
    if not threshold > 0:
        raise InputError(f"threshold is an entropy in nats, above 0, found {threshold!r}")


def _check_soft(threshold: float, temperature: float) -> None:
    if not 0 < threshold < 1 or not temperature > 0:
        raise InputError(
            "s_avuc needs 0 < threshold < 1, a share of ln K, and temperature > 0, found "
            f"{threshold!r} and {temperature!r}"
        )


class AvUC(SecondaryLoss):
    """See `avuc`."""

    name = "avuc"

    def __init__(self, *, threshold: float = 0.5, **common: Unpack[Reduced]) -> None:
        super().__init__(**common)
        _check_hard(threshold)
        self.threshold = threshold

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return avuc(input, target, threshold=self.threshold, **self.options())


class AvUCGS(AvUC):
    """See `avuc_gs`."""

    name = "avuc_gs"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return avuc_gs(input, target, threshold=self.threshold, **self.options())


class SoftAvUC(SecondaryLoss):
    """See `s_avuc`."""

    name = "s_avuc"

    def __init__(
        self,
        *,
        threshold: float = 0.5,
        temperature: float = 1.0,
        **common: Unpack[Reduced],
    ) -> None:
        super().__init__(**common)
        _check_soft(threshold, temperature)
        self.threshold, self.temperature = threshold, temperature

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return s_avuc(
            input,
            target,
            threshold=self.threshold,
            temperature=self.temperature,
            **self.options(),
        )
