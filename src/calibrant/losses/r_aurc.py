"""Regularised AURC: cross-entropy weighted by how confident a row is among its batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.functional.errors import InputError
from calibrant.functional.soft_ranks import hard_rank as rank_without_gradient
from calibrant.functional.soft_ranks import soft_rank
from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import (
    IGNORED,
    Input,
    Rows,
    expected,
    negative_entropy,
    reduce,
    rows_of,
)

Confidence = Callable[[Tensor], Tensor]  # (N,K) or (N,K,L) log-probabilities to (N,) or (N,L)


def r_aurc(
    input: Input,
    target: Tensor,
    *,
    lam: float = 0.5,
    strength: float = 0.05,
    csf: str | Confidence = "msp",
    hard_rank: bool = False,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """(1−λ)·CE + λ·[−ln(1 − r̂/(n+1))·CE] of (N,K,...) logits (r-aurc eq. 20 and 23).

    r̂ is the soft rank (`functional.soft_rank`), 1..n in ascending order, of a row's
    confidence among the n rows of the batch that are not ignored; its gradient is kept
    (eq. 41–45). The paper's algorithm 1 drops the division by n+1, without which the
    logarithm has no value; it is kept.

    ``lam`` is λ: 0 is cross-entropy, 1 the AURC alone. ``strength`` is the soft rank's ε, used
    as given at any batch size; the paper takes 0.05 for 10 classes, else 0.01. The soft ranks
    span at most (max g − min g)/ε places: about 20 of 127 for ``msp`` at 0.05, a mild
    reweighting, and most of the batch at 0.01; in a dense batch of many thousand rows nearly
    none, so that every weight is near ln 2 unless ε is smaller. ``hard_rank=True`` ranks
    exactly, ties sharing their mean rank, without a gradient through the rank.

    ``csf`` is the confidence g (table 3): ``msp``, max p; ``margin``, the largest p less the
    second; ``neg_entropy``, Σ_k p_k ln p_k (the table prints it over logits: it is meant over
    p); or a function from log-probabilities, classes in dimension 1, to one finite number a
    row. Under data parallelism ranks are those within the process's own batch.
    """
    _check(lam, strength, csf)
    rows = rows_of(input, target, ignore_index)
    loss = expected(rows, lambda cost: cost, weight)
    # An infinite confidence ranks above all and pools with none: ignored rows take the places
    # past n, and leave the others' ranks as if they were not there.
    confidence = _confidence(rows, csf).where(rows.counts, torch.inf).reshape(-1)
    if hard_rank:
        rank = rank_without_gradient(confidence)
    else:
        rank = soft_rank(confidence, strength=strength)
    values = (1.0 - lam + lam * _rank_weight(rank.reshape(loss.shape), rows.counts)) * loss
    return reduce(values, rows, reduction, weight)


def _rank_weight(rank: Tensor, counts: Tensor) -> Tensor:
    """−ln(1 − r/(n+1)), n the number of rows that count; of the others something finite."""
    share = rank / (counts.sum() + 1)
    # Ranks of ignored rows pass n, and in float32 n/(n+1) itself is 1 from 2^24 rows on.
    return -torch.log1p(-share.clamp_max(1.0 - torch.finfo(share.dtype).eps))


def _confidence(rows: Rows, csf: str | Confidence) -> Tensor:
    """One number a row, larger where the row is more certain."""
    if csf == "msp":
        return rows.top[0].exp()
    if csf == "margin":
        largest = rows.log_probs.topk(2, dim=1).values.exp()
        return largest[:, 0] - largest[:, 1]
    if csf == "neg_entropy":
        return negative_entropy(rows)
    assert callable(csf)
    found = csf(rows.log_probs)
    if found.shape != rows.counts.shape:
        raise InputError(
            f"csf must return one number a row, of shape {tuple(rows.counts.shape)} for "
            f"log-probabilities of shape {tuple(rows.log_probs.shape)}, found "
            f"{tuple(found.shape)}"
        )
    return found


def _check(lam: float, strength: float, csf: str | Confidence) -> None:
    if not 0 <= lam <= 1:
        raise InputError(f"lam lies in [0, 1], found {lam!r}")
    if not strength > 0:
        raise InputError(
            f"strength must be positive, found {strength!r}; for exact ranks use hard_rank=True"
        )
    if not callable(csf) and csf not in ("msp", "margin", "neg_entropy"):
        raise InputError(f"csf is msp, margin, neg_entropy or a function, found {csf!r}")


class RegularizedAURC(PrimaryLoss):
    """See `r_aurc`."""

    name = "r_aurc"
    local_batch = True

    def __init__(
        self,
        *,
        lam: float = 0.5,
        strength: float = 0.05,
        csf: str | Confidence = "msp",
        hard_rank: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        _check(lam, strength, csf)
        self.lam, self.strength = lam, strength
        self.csf, self.hard_rank = csf, hard_rank

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """The loss."""
        return r_aurc(
            input,
            target,
            lam=self.lam,
            strength=self.strength,
            csf=self.csf,
            hard_rank=self.hard_rank,
            **self.options(),
        )
