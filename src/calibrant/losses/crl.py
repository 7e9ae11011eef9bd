"""Correctness ranking: order confidences as often as each sample was classified right."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import IGNORED, Input, batch_value, row_mean, rows_of
from calibrant.losses.history import CorrectnessHistory, gaps, judge_rows


def crl(
    input: Input,
    target: Tensor,
    *,
    right: Tensor,
    seen: Tensor,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute the mean of max(0, −sgn(h_i−h_j)(c_i−c_j) + |h_i−h_j|), j = i+1 cyclic.

    Moon et al. 2020, the correctness ranking loss; acls supplement (18) leaves out its margin
    |h_i−h_j|. c = max p and h = ``right``/``seen``. Pairs of equal h give 0, and so do pairs with
    a sample that was never seen. Dense (N,K,...) logits raise an error: only samples have
    histories.

    Args:
        input: Logits, (N,K).
        target: Class indices, (N,), or class probabilities, (N,K).
        right: How often each row's sample was classified right, (N,).
        seen: How often each row's sample was seen, (N,).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'mean', or 'sum' for the value times the number of rows that count.
            Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    rows = rows_of(input, target, ignore_index)
    if rows.logits.ndim != 2:
        raise InputError(
            "crl ranks samples by their history, one prediction each: logits must have shape "
            f"(N,K), found {tuple(rows.logits.shape)}"
        )
    confidence = rows.top[0].exp()
    history, rise = gaps(confidence, right, seen, rows.counts)
    values = torch.relu(history.abs() - history.sign() * rise)
    return batch_value(row_mean(values, rows), rows, reduction)


class CorrectnessRanking(SecondaryLoss):
    """Correctness ranking loss. See `crl` for the formula and the options.

    Call it as ``loss(input, target, index=...)``; it remembers samples in `history`. As the authors
    train, each call in training mode compares with the history as it was and then records whether
    these rows were classified right: one pass over the training set is one more time seen. Nothing
    is recorded in ``eval()`` or without gradients; ``history.record(index, correct)`` records by
    hand. Under data parallelism pairs are those of the local batch; call ``history.synchronize()``
    after each epoch and before saving. Do not use it inside activation checkpoints, which compute
    and record everything twice.

    Args:
        num_samples: The size of the training set.
    """

    name = "crl"
    needs_index = True

    def __init__(self, *, num_samples: int, **common: Unpack[Reduced]) -> None:
        super().__init__(**common)
        self.history = CorrectnessHistory(num_samples)

    def forward(self, input: Input, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        """Compute the loss; ``index`` gives the training sample of each row."""
        rows = rows_of(input, target, self.ignore_index)
        places = self.history.places(rows.logits, index)
        right, seen = self.history.of(places)
        value = crl(rows, target, right=right, seen=seen, **self.options())
        if self.training and torch.is_grad_enabled():
            self.history.record(places, *judge_rows(rows))
        return value
