"""Accuracy versus uncertainty: be certain where right and uncertain where wrong."""

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
    """Compute AvUC of a batch (Krishnan & Tickoo 2020; soft-calibration eq. 13, 14).

    ln(1 + (n_AU + n_IC)/(n_AC + n_IU)), where a row is uncertain if h > κ, else certain, and

    n_AU = Σ c·tanh h over right, uncertain rows; n_IC = Σ (1−c)(1−tanh h) over wrong, certain;
    n_AC = Σ c(1−tanh h) over right, certain rows; n_IU = Σ (1−c)·tanh h over wrong, uncertain.

    For class probabilities, a row is right by the share its label gives the prediction. Under data
    parallelism the value is that of the local batch. It is finite: the denominator, as a mean over
    rows, is floored at the precision of its numbers.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        threshold: κ, an entropy in nats. Default: 0.5 (ours: soft-calibration tunes it and prints
            no value; the entropy of .8 and .2, below ln 2, so that it splits two classes too).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
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
    """Compute AvUC-GS: the value of `avuc`, with no gradient through c.

    soft-calibration, appendix F. `avuc` rewards more confidence in wrong, certain rows and less
    in right, uncertain ones, through the factors 1−c and c; with c held constant only tanh h
    moves.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        threshold: κ, an entropy in nats. Default: 0.5 (ours: as in `avuc`).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
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
    """Compute S-AvUC of a batch, soft-calibration eq. 15, 16.

    ln(1 + (n′_AU + n′_IC)/(n′_AC + n′_IU)) with t = t_κ,T(h*) of `soft_uncertainty` and

    n′_AU = Σ t·tanh h and n′_AC = Σ (1−t)(1−tanh h) over right rows,
    n′_IU = Σ t·tanh h and n′_IC = Σ (1−t)(1−tanh h) over wrong ones.

    t takes h* = h/ln K, tanh takes h in nats. For class probabilities and the floor under the
    fraction see `avuc`.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        threshold: κ, a share of ln K between 0 and 1. Default: 0.5 (ours: soft-calibration tunes
            it and prints no value; with temperature 1, t is then h* itself).
        temperature: T, how softly t passes κ. Default: 1.0 (ours: as for threshold).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
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
    return _log_ratio(rows, rows.mask_ignored(bad).sum(), rows.mask_ignored(good).sum(), reduction)


def soft_uncertainty(share: Tensor, threshold: float, temperature: float) -> Tensor:
    """Compute t_κ,T(h*) = logistic((1/T)·ln(h*(1−κ) / ((1−h*)κ))), from 0 at h* = 0 to 1 at h* = 1.

    κ is where t is 1/2 and T how softly it gets there: the step h* > κ as T → 0, the identity
    at κ = 0.5 and T = 1. h* is kept away from 0 and 1, where the derivative of the logarithm is
    infinite, by the precision of its numbers.
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
    # `moving` is −tanh h in uncertain rows and 1 − tanh h in certain ones. Times c in right rows
    # and c − 1 in wrong ones, it is positive in the rows of AC and IU, negative in those of AU
    # and IC, and its size is what the row adds to that sum.
    moving = torch.tanh(certainty) + (certainty >= -threshold)
    if rows.labels is None:
        right = pick(label_table(rows), rows.top[1])
        as_right, as_wrong = confidence * moving, (confidence - 1.0) * moving
        bad = torch.lerp(torch.relu(-as_wrong), torch.relu(-as_right), right)
        good = torch.lerp(torch.relu(as_wrong), torch.relu(as_right), right)
        return _log_ratio(rows, bad.sum(), good.sum(), reduction)
    wrong = rows.top[1] != rows.labels
    signed = rows.mask_ignored(torch.add(confidence, wrong, alpha=-1) * moving)
    return _log_ratio(rows, torch.relu(-signed).sum(), torch.relu(signed).sum(), reduction)


def _not_tanh(certainty: Tensor) -> Tensor:
    """Compute 1 − tanh h from −h, without its cancellation."""
    return 2.0 * torch.sigmoid(2.0 * certainty)


def _log_ratio(rows: Rows, bad: Tensor, good: Tensor, reduction: str) -> Tensor:
    """Compute ln(1 + bad/good), of the sums AU + IC and AC + IU."""
    under = torch.clamp_min(good, rows.number * torch.finfo(good.dtype).eps)
    return batch_value(torch.log1p(bad / under), rows, reduction)


def _check_hard(threshold: float) -> None:
    if not threshold > 0:
        raise InputError(f"threshold must be an entropy in nats, above 0, found {threshold!r}")


def _check_soft(threshold: float, temperature: float) -> None:
    if not 0 < threshold < 1 or not temperature > 0:
        raise InputError(
            "s_avuc needs 0 < threshold < 1, a share of ln K, and temperature > 0, found "
            f"{threshold!r} and {temperature!r}"
        )


class AvUC(SecondaryLoss):
    """AvUC. See `avuc` for the formula and the options."""

    name = "avuc"

    def __init__(self, *, threshold: float = 0.5, **common: Unpack[Reduced]) -> None:
        super().__init__(**common)
        _check_hard(threshold)
        self.threshold = threshold

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return avuc(input, target, threshold=self.threshold, **self.options())


class AvUCGS(AvUC):
    """AvUC-GS. See `avuc_gs` for the formula and the options."""

    name = "avuc_gs"

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        return avuc_gs(input, target, threshold=self.threshold, **self.options())


class SoftAvUC(SecondaryLoss):
    """S-AvUC. See `s_avuc` for the formula and the options."""

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
        """Compute the loss."""
        return s_avuc(
            input,
            target,
            threshold=self.threshold,
            temperature=self.temperature,
            **self.options(),
        )
