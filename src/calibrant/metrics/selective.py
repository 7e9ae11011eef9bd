"""Selective prediction: how well does confidence rank right before wrong?

Rows are accepted from the most confident down. Tied rows share one average weight, so no
value depends on row order. All keep each row's score and loss.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.functional.blocks import Array, to_tensor
from calibrant.functional.errors import InputError
from calibrant.functional.ranking import Ranked, rank
from calibrant.metrics.acceptance import coverage_interval
from calibrant.metrics.base import Measure, choice, compute_one
from calibrant.metrics.ranked import RankState, Rowwise


def position_weights(num_rows: int, weights: str) -> Tensor:
    """The weight of each rank, least confident first, so that AURC = mean(weight · loss).

    ``empirical``: the mean over k of the risk of the k most confident gives rank i from
    the top the weight Σ_{k>=i} 1/k. ``log``: −ln(1 − r/(n+1)), r the ascending rank
    (r-AURC eq. 45). ``generalised``: AUGRC, (n − i + 1)/n.
    """
    descending = torch.arange(num_rows, 0, -1, dtype=torch.float64)
    if weights == "empirical":
        # Σ_{k>=i} 1/k summed from the smallest term, then read from the least confident up.
        return descending.reciprocal().cumsum(0)
    if weights == "log":
        ascending = torch.arange(1, num_rows + 1, dtype=torch.float64)
        return -torch.log1p(-ascending / (num_rows + 1))
    return (num_rows - descending + 1) / num_rows


def weighted_risk(ranked: Ranked, weights: str) -> Tensor:
    """1/n Σ weight·loss, ties sharing the mean of their weights."""
    each = position_weights(ranked.num_rows, weights).to(ranked.values.device)
    total = torch.cat((torch.zeros_like(each[:1]), each.cumsum(0)))[ranked.bounds]
    size = ranked.bounds.diff().double().clamp_min(1.0)
    return (total.diff() / size * ranked.values.diff()).sum(-1) / ranked.num_rows


def oracle_risk(state: RankState, weights: str) -> Tensor:
    """The smallest such mean any score can reach: the largest losses ranked last."""
    ranked = state.ranked()
    each = position_weights(ranked.num_rows, weights).to(ranked.values.device)
    if state.loss == "zero_one":
        # The wrong rows take the smallest weights; a resampled set may have other numbers.
        total = torch.cat((torch.zeros_like(each[:1]), each.cumsum(0)))
        return total[ranked.values[..., -1].round().long()] / ranked.num_rows
    return (each * state.joined("losses").double().sort(descending=True).values).mean()


def accepted(ranked: Ranked) -> tuple[Tensor, Tensor, Tensor]:
    """Rows accepted, their mean loss, and the least score accepted, at the end of each tie."""
    count = (ranked.num_rows - ranked.bounds[..., :-1]).flip(-1).double()
    loss = (ranked.values[..., -1:] - ranked.values[..., :-1]).flip(-1)
    return count, loss / count.clamp_min(1.0), ranked.score.flip(0)


def aurc_from_scores(score: Array, loss: Array, *, weights: str = "empirical") -> Any:
    """AURC of any scores (larger means surer) and any per-row losses."""
    choice("weights", weights, ("empirical", "log"))
    scores, losses = to_tensor(score), to_tensor(loss)
    if scores.ndim != 1 or scores.shape != losses.shape or not len(scores):
        raise InputError(
            "score and loss must be vectors of one length, found shapes "
            f"{tuple(scores.shape)} and {tuple(losses.shape)}"
        )
    value = weighted_risk(rank(scores, losses), weights)
    return value if isinstance(score, Tensor) else value.numpy()[()]


def _kept(score: Rowwise, loss: Rowwise) -> tuple[partial[RankState]]:
    return (partial(RankState, score, loss),)


def aurc_measure(
    *, score: Rowwise = "msp", loss: Rowwise = "zero_one", weights: str = "empirical"
) -> Measure:
    """Area under the risk-coverage curve."""
    choice("weights", weights, ("empirical", "log"))

    def compute(state: RankState) -> Tensor:
        return weighted_risk(state.ranked(), weights)

    return Measure("aurc", _kept(score, loss), compute, kind="selective")


def e_aurc_measure(
    *, score: Rowwise = "msp", loss: Rowwise = "zero_one", weights: str = "empirical"
) -> Measure:
    """AURC in excess of the best possible order."""
    choice("weights", weights, ("empirical", "log"))

    def compute(state: RankState) -> Tensor:
        risk = weighted_risk(state.ranked(), weights)
        return (risk - oracle_risk(state, weights)).clamp_min(0.0)

    kind: Literal["selective", "other"] = "selective" if loss == "zero_one" else "other"
    return Measure("e_aurc", _kept(score, loss), compute, kind=kind)


def augrc_measure(*, score: Rowwise = "msp", loss: Rowwise = "zero_one") -> Measure:
    """Area under the generalised risk-coverage curve."""

    def compute(state: RankState) -> Tensor:
        return weighted_risk(state.ranked(), "generalised")

    return Measure("augrc", _kept(score, loss), compute, kind="selective")


def risk_at_coverage_measure(
    *, coverage: float = 0.8, score: Rowwise = "msp", loss: Rowwise = "zero_one"
) -> Measure:
    """Mean loss of the most confident share."""
    if not 0 < coverage <= 1:
        raise InputError(f"coverage must lie in (0, 1], found {coverage!r}")

    def compute(state: RankState) -> Tensor:
        ranked = state.ranked()
        # 1e-9 keeps 0.7 · 10 = 7.000000000000001 from asking for an eighth row.
        count = max(1, int(-(-(coverage * ranked.num_rows - 1e-9) // 1)))
        rejected = torch.tensor([ranked.num_rows - count])
        return (ranked.values[..., -1] - ranked.up_to(rejected)[0][..., 0]) / count

    return Measure("risk_at_coverage", _kept(score, loss), compute, kind="selective")


def coverage_at_risk_measure(
    *, risk: float = 0.05, score: Rowwise = "msp", loss: Rowwise = "zero_one"
) -> Measure:
    """Largest share that can be accepted at a risk."""
    if not risk >= 0:
        raise InputError(f"risk must not be negative, found {risk!r}")

    def compute(state: RankState) -> Tensor:
        count, mean_loss, _ = accepted(state.ranked())
        fits = torch.where(mean_loss <= risk + 1e-12, count, torch.zeros_like(count))
        return fits.amax(-1) / state.ranked().num_rows

    def interval(state: RankState, level: float) -> tuple[float, float]:
        return coverage_interval(state, risk, level)

    return Measure(
        "coverage_at_risk",
        _kept(score, loss),
        compute,
        "higher",
        "selective",
        interval=interval,
    )


def separation(positive: Tensor, ranked: Ranked) -> Tensor:
    """AUROC from counts of positive rows up to each tie's end; ties count a half.

    0.5 where one side has no rows: there is nothing to separate.
    """
    ups = positive.diff()
    downs = ranked.bounds.diff().double() - ups
    below = (ranked.bounds[..., :-1].double() - positive[..., :-1]) + 0.5 * downs
    pairs = positive[..., -1] * (ranked.num_rows - positive[..., -1])
    return torch.where(pairs > 0, (ups * below).sum(-1) / pairs.clamp_min(1.0), 0.5)


def failure_auroc_measure(*, score: Rowwise = "msp") -> Measure:
    """AUROC of the score separating right from wrong."""

    def compute(state: RankState) -> Tensor:
        ranked = state.ranked()
        return separation(ranked.bounds - ranked.values, ranked)

    return Measure("failure_auroc", _kept(score, "zero_one"), compute, "higher", "selective")


def aurc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    weights: str = "empirical",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Area under the risk-coverage curve: the mean over coverages of the accepted rows' risk.

    ``score``: ``msp``, ``margin``, ``neg_entropy``, ``max_logit`` or a function of a block;
    ``loss``: ``zero_one``, ``cross_entropy``, ``brier`` or a function of a block.
    ``weights="log"`` is the estimator with weights −ln(1 − r/(n+1)) of r-AURC.
    """
    measure = aurc_measure(score=score, loss=loss, weights=weights)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def e_aurc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    weights: str = "empirical",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Excess AURC: AURC less that of the order that puts the largest losses last."""
    measure = e_aurc_measure(score=score, loss=loss, weights=weights)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def augrc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """AUGRC (Traub et al. 2024): the mean over coverages of accepted loss over *all* rows."""
    measure = augrc_measure(score=score, loss=loss)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def risk_at_coverage(
    preds: Array,
    target: Array,
    *,
    coverage: float = 0.8,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Mean loss of the ceil(coverage·N) most confident rows; a tie cut by it counts its mean."""
    measure = risk_at_coverage_measure(coverage=coverage, score=score, loss=loss)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def coverage_at_risk(
    preds: Array,
    target: Array,
    *,
    risk: float = 0.05,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Largest share of rows a threshold can accept with mean loss at most ``risk``; 0 if none."""
    measure = coverage_at_risk_measure(risk=risk, score=score, loss=loss)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def failure_auroc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """AUROC of confidence separating right from wrong rows; ties count a half.

    Defined as 0.5 where all rows are right or all are wrong: there is nothing to separate.
    """
    measure = failure_auroc_measure(score=score)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)
