"""Correctness ranking: confidence ordered as samples' record of being classified right."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.losses.base import Reduced, SecondaryLoss
from calibrant.losses.common import IGNORED, Input, batch_value, row_mean, rows_of
from calibrant.losses.history import CorrectnessHistory, gaps, right_now


def crl(
    input: Input,
    target: Tensor,
    *,
    right: Tensor,
    seen: Tensor,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Mean over pairs (i, j = i+1 cyclic) of max(0, −sgn(h_i−h_j)(c_i−c_j) + |h_i−h_j|).

    Moon et al. 2020, the correctness ranking loss; acls supplement (18) leaves out its margin
    |h_i−h_j|. c = max p of (N,K) logits and h = ``right``/``seen``, how often each row's sample
    was classified right of the times it was seen. Pairs of equal h give 0, and so do those
    with a sample never seen. Dense (N,K,...) logits are refused: samples have histories.
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
    """See `crl`; called as ``loss(input, target, index=...)``, and remembers in `history`.

    As the authors train, each call in training mode compares with the history as it was and
    then records whether these rows were classified right: one pass over the training set is
    one more time seen. Nothing is recorded in ``eval()`` or without gradients, and
    ``history.record(index, correct)`` does it by hand. Under data parallelism pairs are those
    of the local batch; call ``history.synchronize()`` after each epoch and before saving. Keep it
    out of activation checkpoints: what they compute again would see, and record, what it recorded.
    """

    name = "crl"
    needs_index = True

    def __init__(self, *, num_samples: int, **common: Unpack[Reduced]) -> None:
        super().__init__(**common)
        self.history = CorrectnessHistory(num_samples)

    def forward(self, input: Input, target: Tensor, *, index: Tensor | None = None) -> Tensor:
        """The loss; ``index`` says which training sample each row is."""
        rows = rows_of(input, target, self.ignore_index)
        places = self.history.places(rows.logits, index)
        right, seen = self.history.of(places)
        value = crl(rows, target, right=right, seen=seen, **self.options())
        if self.training and torch.is_grad_enabled():
            self.history.record(places, *right_now(rows))
        return value
