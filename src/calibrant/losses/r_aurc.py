"""Regularised AURC: a loss weighted by the rank of a row's confidence in its batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import Unpack

from calibrant.core.errors import InputError
from calibrant.functional.soft_rank.ranks import hard_rank as rank_without_gradient
from calibrant.functional.soft_rank.ranks import soft_rank
from calibrant.losses.base import Common, PrimaryLoss
from calibrant.losses.common import (
    IGNORED,
    Input,
    Rows,
    negative_entropy,
    reduce,
    rows_of,
    take_expectation,
)
from calibrant.losses.registry import get

Confidence = Callable[[Tensor], Tensor]  # (N,K) or (N,K,L) log-probabilities to (N,) or (N,L)


def r_aurc(
    input: Input,
    target: Tensor,
    *,
    lam: float = 0.5,
    strength: float = 0.05,
    csf: str | Confidence = "msp",
    hard_rank: bool = False,
    reference_batch: int | None = 128,
    loss: str = "cross_entropy",
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Tensor:
    """Compute (1−λ)·ℓ + λ·[−ln(1 − r̂/(n+1))·ℓ] (r-aurc eq. 7, 20 and 23), ℓ cross-entropy.

    r̂ is the soft rank (`functional.soft_rank`), 1..n in ascending order, of a row's
    confidence among the n rows of the batch that are not ignored; its gradient is kept
    (eq. 41–45). The paper's algorithm 1 drops the division by n+1, without which the
    logarithm has no value; it is kept. Under data parallelism rows are ranked within the
    process's own batch.

    Args:
        input: Logits, (N,K) or (N,K,...).
        target: Class indices, (N,...), or class probabilities, (N,K,...).
        lam: λ, the weight of the AURC part: 0 is ℓ, 1 the AURC alone.
            Default: 0.5 (r-aurc, section 5).
        strength: ε of the soft rank. The soft ranks span at most (max g − min g)/ε places:
            about 20 of 127 for ``msp`` at 0.05, a mild reweighting, and most of the batch at
            0.01; in a dense batch of many thousand rows nearly none, so that every weight is
            near ln 2 unless ε is smaller or ``reference_batch`` is set, as it is by default.
            Default: 0.05 (r-aurc, section 5, for CIFAR-10; 0.01 for its other data sets).
        csf: The confidence g (table 3): 'msp', max p; 'margin', the largest p less the second;
            'neg_entropy', Σ_k p_k ln p_k (the table prints it over logits; it is meant over p);
            or a function from log-probabilities, classes in dimension 1, to one finite number
            per row. Default: 'msp' (ours: the first of r-aurc's table 3).
        hard_rank: Rank exactly, ties sharing their mean rank, with no gradient through the rank.
            ``strength`` and ``reference_batch`` then have no effect.
            Default: False (r-aurc, section 4.2).
        reference_batch: B, the batch size that ``strength`` belongs to. The weights depend on
            ε·(n+1), so a batch with n counted rows is ranked with ε·(B+1)/(n+1), which is ε at
            n = B. None uses ε as it is: at a batch of 512 the loss is then close to a multiple of
            cross-entropy. Default: 128 (r-aurc, section 7.4: the batch its ε belong to).
        loss: ℓ, a primary loss by its text, such as 'focal(gamma=2)', with one value a row.
            Default: 'cross_entropy' (r-aurc, section 5; eq. 7 has any ℓ).
        weight: One weight for each class. Default: None (torch.nn.CrossEntropyLoss).
        ignore_index: The label of rows to leave out. Default: -100 (torch.nn.CrossEntropyLoss).
        reduction: 'none', 'mean' or 'sum'. Default: 'mean' (torch.nn.CrossEntropyLoss).
    """
    _check(lam, strength, csf, reference_batch)
    inner = _make_inner(loss, ignore_index, weight)
    rows = rows_of(input, target, ignore_index)
    values = _compute_inner(inner, rows, target, weight)
    factors = _compute_factors(rows, lam, strength, csf, hard_rank, reference_batch)
    return reduce(factors * values, rows, reduction, weight)


def _make_inner(text: str, ignore_index: int, weight: Tensor | None) -> PrimaryLoss | None:
    """Make ℓ with one value a row; None for cross-entropy."""
    if text == "cross_entropy":
        return None
    loss = get(text, reduction="none", ignore_index=ignore_index, weight=weight)
    if not isinstance(loss, PrimaryLoss) or isinstance(loss, RegularizedAURC):
        raise InputError(
            f"loss of r_aurc must be another primary loss, such as focal, found {text!r}"
        )
    return loss


def _compute_inner(
    loss: PrimaryLoss | None, rows: Rows, target: Tensor, weight: Tensor | None
) -> Tensor:
    """Compute ℓ of each row, 0 where ignored."""
    if loss is None:
        return take_expectation(rows, lambda cost: cost, weight)
    shared = type(loss).__module__.startswith(__package__)  # losses of this package take rows
    whole = rows.logits.reshape(rows.shape[0], -1, *rows.shape[1:])
    values: Tensor = loss(rows if shared else whole, target)
    return values.reshape(rows.counts.shape)


def _compute_factors(
    rows: Rows,
    lam: float,
    strength: float,
    csf: str | Confidence,
    hard_rank: bool,
    reference_batch: int | None,
) -> Tensor:
    """Compute 1 − λ − λ·ln(1 − r̂/(n+1)) of each row."""
    # An infinite confidence ranks above all and pools with none: ignored rows take the places
    # past n and do not change the other ranks.
    confidence = _confidence(rows, csf).where(rows.counts, torch.inf).reshape(-1)
    if hard_rank:
        rank = rank_without_gradient(confidence)
    else:
        if reference_batch is not None:
            # The rank of g at ε·(B+1)/(n+1) is that of g·(n+1)/(B+1) at ε; n stays on its device.
            count = rows.counts.sum().to(confidence.dtype)
            confidence = confidence * ((count + 1) / (reference_batch + 1))
        rank = soft_rank(confidence, strength=strength)
    return 1.0 - lam + lam * _rank_weight(rank.reshape(rows.counts.shape), rows.counts)


def _rank_weight(rank: Tensor, counts: Tensor) -> Tensor:
    """Compute −ln(1 − r/(n+1)), n the number of rows that count; finite for the others too."""
    share = rank / (counts.sum() + 1)
    # Ranks of ignored rows pass n, and in float32 n/(n+1) itself is 1 from 2^24 rows on.
    return -torch.log1p(-share.clamp_max(1.0 - torch.finfo(share.dtype).eps))


def _confidence(rows: Rows, csf: str | Confidence) -> Tensor:
    """Compute one number per row, larger where the row is more certain."""
    if csf == "msp":
        return rows.top[0].exp()
    if csf == "margin":
        largest = rows.log_probs.topk(2, dim=1).values.exp()
        return largest[:, 0] - largest[:, 1]
    if csf == "neg_entropy":
        return negative_entropy(rows)
    assert callable(csf)
    values = csf(rows.log_probs)
    if values.shape != rows.counts.shape:
        raise InputError(
            f"csf must return one number per row, of shape {tuple(rows.counts.shape)} for "
            f"log-probabilities of shape {tuple(rows.log_probs.shape)}, found "
            f"{tuple(values.shape)}"
        )
    return values


def _check(lam: float, strength: float, csf: str | Confidence, reference_batch: int | None) -> None:
    if not 0 <= lam <= 1:
        raise InputError(f"lam must lie in [0, 1], found {lam!r}")
    if not strength > 0:
        raise InputError(
            f"strength must be positive, found {strength!r}; for exact ranks use hard_rank=True"
        )
    if not callable(csf) and csf not in ("msp", "margin", "neg_entropy"):
        raise InputError(f"csf must be msp, margin, neg_entropy or a function, found {csf!r}")
    if reference_batch is not None and (type(reference_batch) is not int or reference_batch < 1):
        raise InputError(
            f"reference_batch is a whole number of at least 1, or None, found {reference_batch!r}"
        )


class RegularizedAURC(PrimaryLoss):
    """Regularised AURC. See `r_aurc` for the formula and the options."""

    name = "r_aurc"
    local_batch = True

    def __init__(
        self,
        *,
        lam: float = 0.5,
        strength: float = 0.05,
        csf: str | Confidence = "msp",
        hard_rank: bool = False,
        reference_batch: int | None = 128,
        loss: str = "cross_entropy",
        **common: Unpack[Common],
    ) -> None:
        super().__init__(**common)
        _check(lam, strength, csf, reference_batch)
        self.lam, self.strength = lam, strength
        self.csf, self.hard_rank = csf, hard_rank
        self.reference_batch, self.loss = reference_batch, loss
        self._inner = _make_inner(loss, self.ignore_index, self.weight)

    def forward(self, input: Input, target: Tensor) -> Tensor:
        """Compute the loss."""
        rows = rows_of(input, target, self.ignore_index)
        values = _compute_inner(self._inner, rows, target, self.weight)
        how = (self.lam, self.strength, self.csf, self.hard_rank, self.reference_batch)
        return reduce(_compute_factors(rows, *how) * values, rows, self.reduction, self.weight)
