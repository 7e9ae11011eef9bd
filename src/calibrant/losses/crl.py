"""Correctness ranking: order confidences as often as each sample was classified right."""

from __future__ import annotations

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
    is_place,
    largest,
    pick,
    row_mean,
    rows_of,
)
from calibrant.losses.history import CorrectnessHistory, gaps, judge_rows
from calibrant.losses.mbls import check_margin

CONDITIONS = ("ranking", "margin")


def crl(
    input: Input,
    target: Tensor,
    *,
    right: Tensor | None = None,
    seen: Tensor | None = None,
    condition: str = "ranking",
    margin: float = 10.0,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute the mean of max(0, −sgn(h_i−h_j)(c_i−c_j) + |h_i−h_j|), j = i+1 cyclic.

    Moon et al. 2020, the correctness ranking loss; acls supplement (18) leaves out its margin
    |h_i−h_j|. c = max p and h = ``right``/``seen``. Pairs of equal h give 0, and so do pairs with
    a sample that was never seen. Dense (N,K,...) logits raise an error: only samples have
    histories.

    ``condition="margin"`` (acls table 6, row 2) puts the indicator of acls eq. 11 in the place of
    the ranking's, acls supplement (21): the mean of c over rows with z_ŷ − min_k z_k ≥ M, whose
    gradient in z_j, ∂c/∂z_j (supplement 20), is held at 0 where z_ŷ − z_j < M, j ≠ ŷ.

    Args:
        input: Logits, (N,K); with ``condition="margin"`` (N,K,...), too.
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        right: How often each row's sample was classified right, (N,), for the ranking.
            Default: None (ours: the margin needs none).
        seen: How often each row's sample was seen, (N,), for the ranking.
            Default: None (ours: the margin needs none).
        condition: The rows to regularise: 'ranking', those ranked wrongly, or 'margin', those
            whose logits lie too far apart. Default: 'ranking' (Moon et al. 2020).
        margin: M of ``condition="margin"``. Default: 10.0 (acls, section 4.1; 6 for CIFAR-10).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    _check(condition, margin)
    rows = rows_of(input, target, ignore_index)
    if condition == "margin":
        return batch_value(row_mean(_penalise_margin(rows, margin), rows), rows, reduction)
    if right is None or seen is None:
        raise InputError(
            "condition='ranking' compares samples by their history: give right= and seen="
        )
    if rows.logits.ndim != 2:
        raise InputError(
            "crl ranks samples by their history, one prediction each: logits must have shape "
            f"(N,K), found {tuple(rows.logits.shape)}"
        )
    confidence = rows.top[0].exp()
    history, rise = gaps(confidence, right, seen, rows.counts)
    values = torch.relu(history.abs() - history.sign() * rise)
    return batch_value(row_mean(values, rows), rows, reduction)


def _penalise_margin(rows: Rows, margin: float) -> Tensor:
    """Compute c of the rows beyond the margin, its gradient in the classes beyond it alone."""
    top, predicted = largest(rows.logits.detach())
    far = top.unsqueeze(1) - rows.logits.detach() >= margin
    beyond = far.any(1)
    is_predicted = is_place(rows.logits, predicted) & beyond.unsqueeze(1)
    frozen = rows.logits.where(far | is_predicted, rows.logits.detach())
    return pick(torch.softmax(frozen, 1), predicted) * beyond


def _check(condition: str, margin: float) -> None:
    if condition not in CONDITIONS:
        raise InputError(f"condition must be {' or '.join(CONDITIONS)}, found {condition!r}")
    check_margin(margin)


class CorrectnessRanking(SecondaryLoss):
    """Correctness ranking loss. See `crl` for the formula and the options.

    Call it as ``loss(input, target, index=...)``; it remembers samples in `history`. As the authors
    train, each call in training mode compares with the history as it was and then records whether
    these rows were classified right: one pass over the training set is one more time seen. Nothing
    is recorded in ``eval()`` or without gradients; ``history.record(index, correct)`` records by
    hand. Under data parallelism pairs are those of the local batch; call ``history.synchronize()``
    after each epoch and before saving. Do not use it inside activation checkpoints, which compute
    and record everything twice.

    With ``condition="margin"`` there is no history, and it is called without ``index``.

    Args:
        num_samples: The size of the training set, needed by ``condition="ranking"``. Default: None
            (ours: the other condition keeps no history).
    """

    name = "crl"
    needs_index = True
    history: CorrectnessHistory | None

    def __init__(
        self,
        *,
        num_samples: int | None = None,
        condition: str = "ranking",
        margin: float = 10.0,
        **common: Unpack[Reduced],
    ) -> None:
        super().__init__(**common)
        _check(condition, margin)
        self.condition, self.margin = condition, margin
        self.needs_index = self.local_batch = condition == "ranking"
        self.register_module("history", None)
        if condition == "ranking":
            if num_samples is None:
                raise InputError(
                    "crl remembers the training samples: give num_samples=, how many there are"
                )
            self.history = CorrectnessHistory(num_samples)

    def forward(self, input: Input, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Compute the loss; ``index`` gives the training sample of each row."""
        rows = rows_of(input, target, self.ignore_index)
        if self.history is None:
            return crl(rows, target, condition=self.condition, margin=self.margin, **self.options())
        places = self.history.places(rows.logits, index)
        right, seen = self.history.of(places)
        value = crl(rows, target, right=right, seen=seen, **self.options())
        if self.training and torch.is_grad_enabled():
            self.history.record(places, *judge_rows(rows))
        return value
