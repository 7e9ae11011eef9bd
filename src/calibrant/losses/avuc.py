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
    Rows,
    batch_value,
    correctness,
    entropy,
    row_mean,
    rows_of,
)


def avuc(
    input: Tensor,
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
    input: Tensor,
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
    input: Tensor,
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
    _, correct = correctness(rows)
    h = entropy(rows)
    uncertain = soft_uncertainty(h / math.log(rows.logits.shape[1]), threshold, temperature)
    certain = 1.0 - uncertain
    return _log_ratio(rows, correct, h, uncertain, certain, uncertain, certain, reduction)


def soft_uncertainty(share: Tensor, threshold: float, temperature: float) -> Tensor:
    """t_κ,T(h*) = logistic((1/T)·ln(h*(1−κ) / ((1−h*)κ))), from 0 at h* = 0 to 1 at h* = 1.

    κ is where t is 1/2 and T how softly it gets there: the step h* > κ as T → 0, the identity
    at κ = 0.5 and T = 1. h* is kept away from 0 and 1 by the precision of its numbers, where
    the derivative of the logarithm has no end.
    """
    margin = torch.finfo(share.dtype).eps
    odds = torch.logit(share.clamp(margin, 1.0 - margin)) - math.log(threshold / (1.0 - threshold))
    return torch.sigmoid(odds / temperature)


def _hard(
    input: Tensor,
    target: Tensor,
    threshold: float,
    ignore_index: int,
    reduction: str,
    *,
    stopped: bool,
) -> Tensor:
    _check_hard(threshold)
    rows = rows_of(input, target, ignore_index)
    confidence, correct = correctness(rows)
    confidence = confidence.detach() if stopped else confidence
    h = entropy(rows)
    uncertain = (h > threshold).to(h.dtype)
    certain, doubt = 1.0 - uncertain, 1.0 - confidence
    factors = (uncertain * confidence, certain * confidence, uncertain * doubt, certain * doubt)
    return _log_ratio(rows, correct, h, *factors, reduction)


def _log_ratio(
    rows: Rows,
    correct: Tensor,
    h: Tensor,
    right_uncertain: Tensor,
    right_certain: Tensor,
    wrong_uncertain: Tensor,
    wrong_certain: Tensor,
    reduction: str,
) -> Tensor:
    """ln(1 + (AU + IC)/(AC + IU)), each a factor times tanh h where uncertain, else 1 − tanh h."""
    vague = torch.tanh(h)
    sharp = 2.0 * torch.sigmoid(-2.0 * h)  # 1 − tanh h, without its cancellation
    wrong = 1.0 - correct
    bad = correct * right_uncertain * vague + wrong * wrong_certain * sharp
    good = correct * right_certain * sharp + wrong * wrong_uncertain * vague
    floor = torch.finfo(h.dtype).eps
    ratio = row_mean(bad, rows.counts) / row_mean(good, rows.counts).clamp_min(floor)
    return batch_value(torch.log1p(ratio), rows, reduction)


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

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return avuc(input, target, threshold=self.threshold, **self.options())


class AvUCGS(AvUC):
    """See `avuc_gs`."""

    name = "avuc_gs"

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
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

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss."""
        return s_avuc(
            input,
            target,
            threshold=self.threshold,
            temperature=self.temperature,
            **self.options(),
        )
