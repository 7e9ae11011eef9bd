"""Selective prediction: how well does confidence rank correct rows before wrong ones?

Rows are accepted from the most confident down. Tied rows share their average weight, so no
value depends on row order. All store each row's score and loss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.arrays import Array, to_tensor
from calibrant.functional.ranking import Ranked, rank
from calibrant.metrics.base import Measure, check_choice, compute_one
from calibrant.metrics.coverage_interval import coverage_interval
from calibrant.metrics.event_statistics import Floats, Groups, Rows, auroc_influence_of
from calibrant.metrics.rank_state import RankState, Rowwise

SELECTIVE = ("aurc", "e_aurc", "augrc", "risk_at_coverage", "coverage_at_risk", "failure_auroc")


def position_weights(num_rows: int, weights: str) -> Tensor:
    """Compute the weight of each rank, least confident first: AURC = mean(weight · loss).

    ``empirical``: the mean over k of the risk of the k most confident gives rank i from
    the top the weight Σ_{k>=i} 1/k. ``log``: −ln(1 − r/(n+1)), r the ascending rank
    (r-AURC eq. 45). ``generalised``: AUGRC, (n − i + 1)/n.
    """
    descending = torch.arange(num_rows, 0, -1, dtype=torch.float64)
    if weights == "empirical":
        # Σ_{k>=i} 1/k, summed from the smallest term.
        return descending.reciprocal_().cumsum_(0)
    if weights == "log":
        ascending = torch.arange(1, num_rows + 1, dtype=torch.float64)
        return -torch.log1p(-ascending / (num_rows + 1))
    return (num_rows - descending + 1) / num_rows


def weighted_risk(ranked: Ranked, weights: str) -> Tensor:
    """Compute 1/n Σ weight·loss; ties share the mean of their weights."""
    position_weight = position_weights(ranked.num_rows, weights).to(ranked.values.device)
    if (
        ranked.bounds.ndim == 1
        and len(ranked.score) == ranked.num_rows
        and not (ranked.bounds.is_floating_point())
    ):  # no ties
        return position_weight @ ranked.values.diff() / ranked.num_rows
    total = _sum_up_to(position_weight, ranked.bounds)
    size = ranked.bounds.diff().double()
    share = total.diff() / torch.where(size > 0, size, 1.0)
    return (share * ranked.values.diff()).sum(-1) / ranked.num_rows


def _sum_up_to(values: Tensor, positions: Tensor) -> Tensor:
    """Sum over the ranks before each position; a position inside a rank takes a part of it.

    Positions are whole unless rows have weights: a row then stretches over several ranks, or
    over a part.
    """
    total = torch.cat((torch.zeros_like(values[:1]), values.cumsum(0)))
    if not positions.is_floating_point():
        return total[positions]
    whole = positions.long().clamp(0, len(values) - 1)
    return total[whole] + (positions - whole) * values[whole]


def oracle_risk(state: RankState, weights: str) -> Tensor:
    """Compute the smallest `weighted_risk` of any score: the largest losses ranked last."""
    ranked = state.rank_rows()
    position_weight = position_weights(ranked.num_rows, weights).to(ranked.values.device)
    if state.loss == "zero_one":
        # Wrong rows take the smallest weights; their number differs between resampled sets.
        wrong = ranked.values[..., -1]
        if not ranked.bounds.is_floating_point():
            wrong = wrong.round().long()
        return _sum_up_to(position_weight, wrong) / ranked.num_rows
    if state.row_weights() is not None:
        loss = state.concatenate("losses").double()
        return weighted_risk(rank(-loss, loss, state.row_weights()), weights)
    return (
        position_weight * state.concatenate("losses").double().sort(descending=True).values
    ).mean()


def risk_coverage_curve(ranked: Ranked) -> tuple[Tensor, Tensor, Tensor]:
    """Return accepted rows, their mean loss and the lowest score accepted, at each tie's end."""
    count = ranked.bounds[..., :-1].flip(-1).double().neg_().add_(ranked.num_rows)
    loss = ranked.values[..., :-1].flip(-1).neg_().add_(ranked.values[..., -1:])
    return count, loss.div_(torch.where(count > 0, count, 1.0)), ranked.score.flip(0)


def aurc_from_scores(score: Array, loss: Array, *, weights: str = "empirical") -> Any:
    """Compute the AURC of any scores and any losses of rows.

    Args:
        score: (N,) scores; larger means more confident.
        loss: (N,) losses.
        weights: ``"empirical"`` or ``"log"``, as in `aurc`. Default: 'empirical' (ours: the curve
            itself).
    """
    check_choice("weights", weights, ("empirical", "log"))
    scores, losses = to_tensor(score), to_tensor(loss)
    if scores.ndim != 1 or scores.shape != losses.shape or not len(scores):
        raise InputError(
            "score and loss must be vectors of one length, found shapes "
            f"{tuple(scores.shape)} and {tuple(losses.shape)}"
        )
    value = weighted_risk(rank(scores, losses), weights)
    return value if isinstance(score, Tensor) else value.numpy()[()]


def _rank_states(score: Rowwise, loss: Rowwise) -> tuple[partial[RankState]]:
    return (partial(RankState, score, loss),)


def _risk_influence(rows: _Ranks) -> Floats:
    """Compute the influence of each row on AURC, the mean of the risk R_j at each row's score.

    ψ_i = R_i − AURC + Σ_{j: s_j <= s_i} w_j (l_i − R_j) / C_j, with C_j the share of the rows that
    score at least s_j and weights that sum to 1.
    """
    risk = rows.losses_above / rows.above
    value = float(rows.total @ risk)
    passed = np.cumsum(rows.total / rows.above)
    met = np.cumsum(rows.total * risk / rows.above)
    return (risk - value - met)[rows.group] + rows.loss * passed[rows.group]


def _generalised_influence(rows: _Ranks) -> Floats:
    """Compute the influence on AUGRC, Σ_j w_j G_j with G_j = Σ_{i: s_i >= s_j} w_i l_i."""
    value = float(rows.total @ rows.losses_above)
    passed = np.cumsum(rows.total)
    return rows.losses_above[rows.group] + rows.loss * passed[rows.group] - 2 * value


def _excess_influence(rows: _Ranks) -> Floats:
    """Compute the influence on e-AURC of zero-one losses, AURC − e − (1 − e) ln(1 − e)."""
    rate = min(float(rows.weights @ rows.loss), 1 - 1e-12)
    return _risk_influence(rows) + float(np.log1p(-rate)) * (rows.loss - rate)


def _failure_influence(rows: _Ranks) -> Floats:
    # AUROC depends on ranks alone.
    place = np.arange(len(rows.total), dtype=np.float64)
    right = Rows(rows.group.astype(np.float64), 1 - rows.loss, rows.weights)
    return auroc_influence_of(
        right, rows.group, Groups(place, rows.total, rows.total - rows.losses)
    )


def _influences(of: Callable[[_Ranks], Floats]) -> dict[str, Any]:
    """Return the options of `Measure` that compute influences of rows, and of groups of rows."""

    def by_row(state: RankState) -> Floats:
        return of(_Ranks.of(state))

    def by_group(state: RankState) -> tuple[Floats, Floats] | None:
        if state.loss != "zero_one" or state.row_weights() is not None:
            return None
        rows = state.keep("outcomes of ties", partial(_Ranks.group_outcomes, state))
        return of(rows), rows.weights * state.rank_rows().num_rows

    return {"influence": by_row, "group_influence": by_group}


class _Ranks(NamedTuple):
    """The rows with their tie groups, and sums over groups by ascending score."""

    loss: Floats  # (N,)
    weights: Floats  # (N,)
    group: NDArray[np.int64]  # (N,)
    total: Floats  # (G,) weight of each group
    losses: Floats  # (G,) their losses, weighted
    above: Floats  # (G,) weight of the rows that score at least as much
    losses_above: Floats  # (G,) the losses of those

    @classmethod
    def of(cls, state: RankState) -> _Ranks:
        """Group the rows of a state."""
        return state.keep("groups of ties", partial(cls.group_rows, state))

    @classmethod
    def group_outcomes(cls, state: RankState) -> _Ranks:
        """Make two rows of each group of ties, all correct ones and all wrong ones of it."""
        ranked = state.rank_rows()
        total = ranked.bounds.diff().cpu().double().numpy() / ranked.num_rows
        wrong = ranked.values.diff().cpu().numpy() / ranked.num_rows
        weights = np.concatenate((total - wrong, wrong))
        group = np.tile(np.arange(len(total)), 2)
        keep = weights > 0
        above, losses_above = (np.cumsum(sums[::-1])[::-1] for sums in (total, wrong))
        loss = np.repeat((0.0, 1.0), len(total))[keep]
        return cls(loss, weights[keep], group[keep], total, wrong, above, losses_above)

    @classmethod
    def group_rows(cls, state: RankState) -> _Ranks:
        order, score, _ = state.sort_rows()
        loss = state.concatenate("losses").cpu().double().numpy()
        stored = state.row_weights()
        weights = np.ones(len(loss)) if stored is None else stored.cpu().double().numpy()
        weights = weights / weights.sum()
        new = np.concatenate(([False], np.diff(score.numpy()) != 0))
        group = np.empty(len(loss), dtype=np.int64)
        group[order.numpy()] = np.cumsum(new)
        number = int(new.sum()) + 1
        total, losses = (
            np.bincount(group, values, number).astype(np.float64, copy=False)
            for values in (weights, weights * loss)
        )
        above, losses_above = (np.cumsum(sums[::-1])[::-1] for sums in (total, losses))
        return cls(loss, weights, group, total, losses, above, losses_above)


def aurc_measure(
    *, score: Rowwise = "msp", loss: Rowwise = "zero_one", weights: str = "empirical"
) -> Measure:
    """Make the measure of `aurc`."""
    check_choice("weights", weights, ("empirical", "log"))

    def compute(state: RankState) -> Tensor:
        return weighted_risk(state.rank_rows(), weights)

    return Measure(
        "aurc",
        _rank_states(score, loss),
        compute,
        kind="selective",
        **_influences(_risk_influence),
    )


def e_aurc_measure(
    *, score: Rowwise = "msp", loss: Rowwise = "zero_one", weights: str = "empirical"
) -> Measure:
    """Make the measure of `e_aurc`."""
    check_choice("weights", weights, ("empirical", "log"))

    def compute(state: RankState) -> Tensor:
        risk = weighted_risk(state.rank_rows(), weights)
        return (risk - oracle_risk(state, weights)).clamp_min(0.0)

    kind: Literal["selective", "other"] = "selective" if loss == "zero_one" else "other"
    how = _influences(_excess_influence) if loss == "zero_one" else {}
    return Measure("e_aurc", _rank_states(score, loss), compute, kind=kind, **how)


def augrc_measure(*, score: Rowwise = "msp", loss: Rowwise = "zero_one") -> Measure:
    """Make the measure of `augrc`."""

    def compute(state: RankState) -> Tensor:
        return weighted_risk(state.rank_rows(), "generalised")

    return Measure(
        "augrc",
        _rank_states(score, loss),
        compute,
        kind="selective",
        **_influences(_generalised_influence),
    )


def risk_at_coverage_measure(
    *, coverage: float = 0.8, score: Rowwise = "msp", loss: Rowwise = "zero_one"
) -> Measure:
    """Make the measure of `risk_at_coverage`."""
    if not 0 < coverage <= 1:
        raise InputError(f"coverage must lie in (0, 1], found {coverage!r}")

    def compute(state: RankState) -> Tensor:
        ranked = state.rank_rows()
        # Without 1e-9, 0.7 · 10 = 7.000000000000001 would take an eighth row.
        count = max(1, int(-(-(coverage * ranked.num_rows - 1e-9) // 1)))
        rejected = torch.tensor([ranked.num_rows - count])
        return (ranked.values[..., -1] - ranked.up_to(rejected)[0][..., 0]) / count

    return Measure("risk_at_coverage", _rank_states(score, loss), compute, kind="selective")


def coverage_at_risk_measure(
    *, risk: float = 0.05, score: Rowwise = "msp", loss: Rowwise = "zero_one"
) -> Measure:
    """Make the measure of `coverage_at_risk`."""
    if not risk >= 0:
        raise InputError(f"risk must not be negative, found {risk!r}")

    def compute(state: RankState) -> Tensor:
        count, mean_loss, _ = risk_coverage_curve(state.rank_rows())
        fits = torch.where(mean_loss <= risk + 1e-12, count, torch.zeros_like(count))
        return fits.amax(-1) / state.rank_rows().num_rows

    def interval(state: RankState, level: float) -> tuple[float, float]:
        return coverage_interval(state, risk, level)

    return Measure(
        "coverage_at_risk",
        _rank_states(score, loss),
        compute,
        "higher",
        "selective",
        interval=interval,
    )


def compute_auroc(positive: Tensor, ranked: Ranked) -> Tensor:
    """Compute the AUROC from counts of positive rows up to each tie's end; ties count a half.

    0.5 where one side has no rows: there is nothing to separate.
    """
    ups = positive.diff()
    downs = ranked.bounds.diff().double() - ups
    below = (ranked.bounds[..., :-1].double() - positive[..., :-1]) + 0.5 * downs
    pairs = positive[..., -1] * (ranked.num_rows - positive[..., -1])
    area = (ups * below).sum(-1) / torch.where(pairs > 0, pairs, 1.0)
    return torch.where(pairs > 0, area, 0.5)


def failure_auroc_measure(*, score: Rowwise = "msp") -> Measure:
    """Make the measure of `failure_auroc`."""

    def compute(state: RankState) -> Tensor:
        ranked = state.rank_rows()
        return compute_auroc(ranked.bounds - ranked.values, ranked)

    return Measure(
        "failure_auroc",
        _rank_states(score, "zero_one"),
        compute,
        "higher",
        "selective",
        **_influences(_failure_influence),
    )


def aurc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    weights: str = "empirical",
    from_logits: bool = True,
    ignore_index: int | None = None,
    row_weights: Array | None = None,
) -> Any:
    """Compute the area under the risk-coverage curve.

    It is the mean over all coverages of the mean loss of the accepted rows.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        score: ``"msp"`` (the largest probability), ``"margin"``, ``"neg_entropy"``,
            ``"max_logit"`` or a function of a `Block`; larger means more confident. Default: 'msp'
            (Hendrycks & Gimpel 2017).
        loss: ``"zero_one"``, ``"cross_entropy"``, ``"brier"`` or a function of a `Block`. Default:
            'zero_one' (Geifman & El-Yaniv 2017).
        weights: ``"empirical"``, the curve itself, or ``"log"``, the estimator with weights
            −ln(1 − r/(n+1)) of r-aurc. Default: 'empirical' (ours: the curve itself).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        row_weights: A positive sampling or importance weight for each row, free of scale; not a
            number of repetitions. Default: None (ours: rows count the same).
    """
    measure = aurc_measure(score=score, loss=loss, weights=weights)
    return compute_one(
        measure,
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        weights=row_weights,
    )


def e_aurc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    weights: str = "empirical",
    from_logits: bool = True,
    ignore_index: int | None = None,
    row_weights: Array | None = None,
) -> Any:
    """Compute excess AURC: AURC less the AURC of the best order, largest losses last.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        score: ``"msp"`` (the largest probability), ``"margin"``, ``"neg_entropy"``,
            ``"max_logit"`` or a function of a `Block`; larger means more confident. Default: 'msp'
            (Hendrycks & Gimpel 2017).
        loss: ``"zero_one"``, ``"cross_entropy"``, ``"brier"`` or a function of a `Block`. Default:
            'zero_one' (Geifman & El-Yaniv 2017).
        weights: ``"empirical"``, the curve itself, or ``"log"``, the estimator with weights
            −ln(1 − r/(n+1)) of r-aurc. Default: 'empirical' (ours: the curve itself).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        row_weights: A positive sampling or importance weight for each row, free of scale; not a
            number of repetitions. Default: None (ours: rows count the same).
    """
    measure = e_aurc_measure(score=score, loss=loss, weights=weights)
    return compute_one(
        measure,
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        weights=row_weights,
    )


def augrc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute AUGRC (Traub et al. 2024): the mean over coverages of accepted loss over *all* rows.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        score: ``"msp"`` (the largest probability), ``"margin"``, ``"neg_entropy"``,
            ``"max_logit"`` or a function of a `Block`; larger means more confident. Default: 'msp'
            (Hendrycks & Gimpel 2017).
        loss: ``"zero_one"``, ``"cross_entropy"``, ``"brier"`` or a function of a `Block`. Default:
            'zero_one' (Geifman & El-Yaniv 2017).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = augrc_measure(score=score, loss=loss)
    return compute_one(
        measure, preds, target, from_logits=from_logits, ignore_index=ignore_index, weights=weights
    )


def risk_at_coverage(
    preds: Array,
    target: Array,
    *,
    coverage: float = 0.8,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the mean loss of the ceil(coverage·N) most confident rows.

    A tie that the coverage cuts counts with its mean loss.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        coverage: The share of rows accepted, in (0, 1]. Default: 0.8 (ours: one row in five goes to
            a person).
        score: ``"msp"`` (the largest probability), ``"margin"``, ``"neg_entropy"``,
            ``"max_logit"`` or a function of a `Block`; larger means more confident. Default: 'msp'
            (Hendrycks & Gimpel 2017).
        loss: ``"zero_one"``, ``"cross_entropy"``, ``"brier"`` or a function of a `Block`. Default:
            'zero_one' (Geifman & El-Yaniv 2017).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = risk_at_coverage_measure(coverage=coverage, score=score, loss=loss)
    return compute_one(
        measure, preds, target, from_logits=from_logits, ignore_index=ignore_index, weights=weights
    )


def coverage_at_risk(
    preds: Array,
    target: Array,
    *,
    risk: float = 0.05,
    score: Rowwise = "msp",
    loss: Rowwise = "zero_one",
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the largest share of rows that a threshold accepts with mean loss at most ``risk``.

    0 if no threshold does.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        risk: The largest mean loss allowed. Default: 0.05 (ours: one error in twenty).
        score: ``"msp"`` (the largest probability), ``"margin"``, ``"neg_entropy"``,
            ``"max_logit"`` or a function of a `Block`; larger means more confident. Default: 'msp'
            (Hendrycks & Gimpel 2017).
        loss: ``"zero_one"``, ``"cross_entropy"``, ``"brier"`` or a function of a `Block`. Default:
            'zero_one' (Geifman & El-Yaniv 2017).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = coverage_at_risk_measure(risk=risk, score=score, loss=loss)
    return compute_one(
        measure, preds, target, from_logits=from_logits, ignore_index=ignore_index, weights=weights
    )


def failure_auroc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the AUROC of confidence that separates correct from wrong rows.

    Ties count a half. 0.5 where all rows are correct or all are wrong.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        score: ``"msp"`` (the largest probability), ``"margin"``, ``"neg_entropy"``,
            ``"max_logit"`` or a function of a `Block`; larger means more confident. Default: 'msp'
            (Hendrycks & Gimpel 2017).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = failure_auroc_measure(score=score)
    return compute_one(
        measure, preds, target, from_logits=from_logits, ignore_index=ignore_index, weights=weights
    )
