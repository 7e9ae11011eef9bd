"""Statistics of events over arrays: figures, their influence functions, and tests.

A row is a probability and whether the event happened. For a classifier judged by its predicted
class, the probability is the confidence and the event is "correct".

Functions called ``NAME_value`` compute a figure from arrays, ``NAME_influence`` its influence
function: ψ_i = W ∂figure/∂w_i with W = Σ w, so that the figure's error is nearly the weighted mean
Σ w_i ψ_i / W of influences whose own weighted mean is 0 (`calibrant.evaluation` makes intervals
of them).
Weights are sampling or importance weights: multiplying all by a constant changes nothing.
Grouped rows may be given as weighted rows with a fraction as their outcome, except to tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from calibrant.core.errors import InputError, UndefinedFigureError, first
from calibrant.functional.arrays import row_slices
from calibrant.functional.binning import check_bins
from calibrant.functional.ranking import rank
from calibrant.metrics.local_regression import smooth_outcomes

if TYPE_CHECKING:
    import pandas as pd

Floats: TypeAlias = NDArray[np.float64]

# Probabilities closer than this to 0 and 1 are moved to it before a logit is taken. A float64
# probability from a logit of up to 20.7 is left alone.
EPS = 1e-9
CURVE_CELLS = 1000  # cells of rows that the loess curve is computed from
SIMULATED_CELLS = 120  # the same where it is simulated many times
_GROUPED = 4096  # groups of rows that give Newton's method its start
_MANY = 100_000  # rows above which the start is worth a pass


class SeparatedError(UndefinedFigureError):
    """A threshold separates the outcomes: ``slope``, that of the recalibration, is ±inf."""

    def __init__(self, slope: float) -> None:
        super().__init__(
            "a threshold separates all events from all other rows: the slope of the "
            "recalibration is infinite and its intercept undefined"
        )
        self.slope = slope


# ------------------------------------------------------------------ rows


class Rows(NamedTuple):
    """Checked rows: float64 probabilities, outcomes and weights that sum to 1."""

    probability: Floats
    happened: Floats
    weights: Floats


def check_rows(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> Rows:
    """Return the rows as float64 arrays with weights that sum to 1, or say what is wrong.

    Args:
        probability: (N,) probabilities in [0, 1].
        happened: (N,) whether the event happened; a fraction stands for a group of rows.
        weights: (N,) positive weights; equal ones if None.
    """
    p, y = (np.asarray(values, dtype=np.float64) for values in (probability, happened))
    if p.ndim != 1 or p.shape != y.shape or not len(p):
        raise InputError(
            "probability and happened must be vectors of one length, at least 1; found shapes "
            f"{p.shape} and {y.shape}"
        )
    for name, values in (("probability", p), ("happened", y)):
        if not (values.min() >= 0 and values.max() <= 1):  # also NaN
            bad = np.flatnonzero(~((values >= 0) & (values <= 1)))
            raise InputError(f"{name} must lie in [0, 1]; look at rows {first(bad.tolist())}")
    if weights is None:
        return Rows(p, y, np.broadcast_to(np.float64(1.0 / len(p)), p.shape))  # no memory
    w = np.asarray(weights, dtype=np.float64)
    if w.shape != p.shape:
        raise InputError(f"weights must have one number a row: {p.shape}, found {w.shape}")
    if not (w.min() > 0 and np.isfinite(w.max())):
        bad = np.flatnonzero(~((w > 0) & np.isfinite(w)))
        raise InputError(f"weights must be positive and finite; look at rows {first(bad.tolist())}")
    return Rows(p, y, w / w.sum())


class Groups(NamedTuple):
    """Rows of equal probability together, by ascending probability; sums may be of many sets."""

    score: Floats  # (G,)
    total: Floats  # (..., G) rows, or their weight
    events: Floats  # (..., G) events, or their weight


def group_rows(rows: Rows) -> Groups:
    """Sort rows by probability and sum the weights of equal ones."""
    if _are_plain(rows):  # a radix sort of probability and outcome in one word
        ranked = rank(torch.from_numpy(rows.probability), torch.from_numpy(rows.happened == 0))
        number = len(rows.happened)
        count = ranked.bounds.diff().double()
        events = (count - ranked.values.diff()) / number
        return Groups(ranked.score.numpy(), count.numpy() / number, events.numpy())
    order = np.argsort(rows.probability)
    score = rows.probability[order]
    begins = np.flatnonzero(np.concatenate(([True], score[1:] != score[:-1])))
    weights = rows.weights[order]
    total = np.add.reduceat(weights, begins)
    weights *= rows.happened[order]
    return Groups(score[begins], total, np.add.reduceat(weights, begins))


def _are_plain(rows: Rows) -> bool:
    """Return whether all weights are equal and no outcome is a fraction."""
    y, w = rows.happened, rows.weights
    return bool(w.max() == w.min()) and bool(((y == 0) | (y == 1)).all())


# ------------------------------------------------------------------ recalibration


class Recalibration(NamedTuple):
    """A logistic recalibration, logit P(event) = intercept + slope · logit p."""

    intercept: float
    slope: float


def count_clipped(probability: ArrayLike, *, eps: float = EPS) -> int:
    """Return how many probabilities are so near 0 or 1 that their logit is clipped.

    Args:
        probability: (N,) probabilities.
        eps: The distance from 0 and 1 that counts as certain.
    """
    p = np.asarray(probability, dtype=np.float64)
    return int(np.count_nonzero((p < eps) | (p > 1 - eps)))


def clipped_logit(probability: Floats, eps: float = EPS) -> Floats:
    """Compute logit p, with p moved to [eps, 1 − eps]."""
    if not 0 < eps < 0.5:
        raise InputError(f"eps must lie in (0, 0.5), found {eps!r}")
    p = np.clip(probability, eps, 1 - eps)
    result: Floats = np.log(p / (1 - p))
    return result


def find_separation(x: Floats, happened: Floats) -> Literal[-1, 0, 1]:
    """Return 1 if every event is given at least as much as every other row, −1 if at most, else 0.

    Only if neither holds does the logistic recalibration have a finite slope (Albert & Anderson
    1984). Raises if no slope exists: all rows have one outcome, or one probability.
    """
    events, others = x[happened > 0], x[happened < 1]
    if not len(events) or not len(others):
        outcomes = "no events" if not len(events) else "only events"
        raise UndefinedFigureError(
            f"found {outcomes} among {len(x):,} rows: "
            "a calibration slope needs rows of both outcomes"
        )
    if max(events.max(), others.max()) == min(events.min(), others.min()):
        raise UndefinedFigureError(
            "all rows have one probability: a calibration slope needs at least two"
        )
    if others.max() <= events.min():
        return 1
    return -1 if events.max() <= others.min() else 0


def calibration_in_the_large_value(
    probability: ArrayLike,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    eps: float = EPS,
) -> float:
    """Compute the offset a of logit P(event) = a + logit p (Cox 1958), from arrays.

    −inf without events, +inf with events alone: the limits of the likelihood's maximum.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
        eps: Probabilities are moved to [eps, 1 − eps].
    """
    rows = check_rows(probability, happened, weights)
    rate = float(rows.weights @ rows.happened)
    if not rows.happened.any() or (rows.happened == 1).all():
        rate = float(rows.happened[0])  # exactly
    return offset_at_rate(rows, rate, eps=eps)


def offset_at_rate(rows: Rows, rate: float, *, eps: float = EPS) -> float:
    """Compute the offset a at which the mean of σ(a + logit p) is a rate; ±inf for 1 and 0.

    Args:
        rows: The rows; their outcomes are not used.
        rate: The rate of events.
        eps: Probabilities are moved to [eps, 1 − eps].
    """
    if rate <= 0 or rate >= 1:
        return -np.inf if rate <= 0 else np.inf
    x = clipped_logit(rows.probability, eps)
    if rate > 0.5:  # the rarer outcome is the one that sums keep precisely
        return -_find_offset(-x, rows, 1 - rate)
    return _find_offset(x, rows, rate)


def _find_offset(x: Floats, rows: Rows, rate: float) -> float:
    start = float(np.log(rate) - np.log1p(-rate))
    low, high = start - float(x.max()), start - float(x.min())
    offset = 0.0
    if len(x) > _MANY:
        grouped = _start_groups(x, rows)
        offset = _solve_offset(grouped[0], grouped[2], rate, low, high, 0.0)
    return _solve_offset(x, rows.weights, rate, low, high, offset)


def _solve_offset(
    x: Floats, w: Floats, rate: float, low: float, high: float, offset: float
) -> float:
    """Solve Σ w σ(a + x) = rate for a by Newton's method, kept inside a shrinking bracket."""
    offset = min(max(offset, low), high)
    for _ in range(200):
        excess, curve = -rate, 0.0
        for part in row_slices(x.shape, _CHUNK):
            fitted = _sigmoid(offset + x[part])
            excess += float(w[part] @ fitted)
            curve += float(w[part] @ (fitted * (1 - fitted)))
        if excess > 0:
            high = offset
        else:
            low = offset
        step = excess / curve if curve > 0 else np.inf
        moved = offset - step
        if not low <= moved <= high:
            moved = 0.5 * (low + high)
        if abs(moved - offset) <= 1e-12 * (1 + abs(offset)):
            return moved
        offset = moved
    raise InputError("calibration in the large did not converge; are the weights very uneven?")


_CHUNK = 1 << 16


def _sigmoid(x: Floats) -> Floats:
    from scipy.special import expit

    result: Floats = expit(x)
    return result


def _start_groups(x: Floats, rows: Rows) -> tuple[Floats, Floats, Floats]:
    """Return grouped rows (logit, mean outcome, weight), near enough for a start."""
    low, high = float(x.min()), float(x.max())
    place = ((x - low) * ((_GROUPED - 1) / max(high - low, 1e-300))).astype(np.int64)
    total = _bin_sums(place, rows.weights, _GROUPED)
    full = total > 0
    events = _bin_sums(place, rows.weights * rows.happened, _GROUPED)[full]
    middle = _bin_sums(place, rows.weights * x, _GROUPED)[full]
    return middle / total[full], np.clip(events / total[full], 0, 1), total[full]


def _bin_sums(index: NDArray[np.int64], values: Floats, size: int) -> Floats:
    return np.bincount(index, values, size).astype(np.float64, copy=False)


def fit_recalibration(
    probability: ArrayLike,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    eps: float = EPS,
) -> Recalibration:
    """Fit logit P(event) = a + b logit p by maximum likelihood (Cox 1958), from arrays.

    Raises `UndefinedFigureError` if no finite fit exists: all rows have one outcome or one
    probability, or a threshold separates events from other rows.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
        eps: Probabilities are moved to [eps, 1 − eps].
    """
    rows = check_rows(probability, happened, weights)
    x = clipped_logit(rows.probability, eps)
    if side := find_separation(x, rows.happened):
        raise SeparatedError(side * np.inf)
    centre = float(rows.weights @ x)
    scale = float(np.sqrt(rows.weights @ (x - centre) ** 2))
    x = (x - centre) / scale
    start = np.array([centre, scale])  # the identity
    if len(x) > _MANY:
        grouped = _start_groups(x, rows)
        if not find_separation(grouped[0], grouped[1]):
            start = _newton(*grouped, start)
    intercept, slope = _newton(x, rows.happened, rows.weights, start)
    return Recalibration(float(intercept - slope * centre / scale), float(slope / scale))


def _newton(x: Floats, y: Floats, w: Floats, start: Floats) -> Floats:
    """Maximise Σ w [y η − ln(1 + e^η)], η = a + b x, by Newton's method with halved steps."""
    theta = start
    value, slope, curve = _likelihood(x, y, w, theta)
    for _ in range(100):
        try:
            step = np.linalg.solve(curve, slope)
        except np.linalg.LinAlgError:
            step = slope / max(float(np.trace(curve)), 1e-12)
        share = 1.0
        for _ in range(40):
            trial = theta + share * step
            new, new_slope, new_curve = _likelihood(x, y, w, trial)
            if new >= value - 1e-12 * (1 + abs(value)):
                break
            share /= 2
        theta, value, slope, curve = trial, new, new_slope, new_curve
        if float(np.abs(step).max()) <= 1e-9 * (1 + float(np.abs(theta).max())):
            return theta
    raise UndefinedFigureError(
        "the logistic recalibration did not converge in 100 steps; a threshold almost separates "
        "events from other rows"
    )


def _likelihood(x: Floats, y: Floats, w: Floats, theta: Floats) -> tuple[float, Floats, Floats]:
    """Return the log-likelihood, its gradient and the negative of its second derivative."""
    value, slope, curve = 0.0, np.zeros(2), np.zeros((2, 2))
    for part in row_slices(x.shape, _CHUNK):
        xs, ys, ws = x[part], y[part], w[part]
        eta = theta[0] + theta[1] * xs
        fitted = _sigmoid(eta)
        # ln(1 + e^η) without overflow, from the sigmoid at hand.
        log_sum = np.maximum(eta, 0.0) - np.log(np.maximum(fitted, 1 - fitted))
        value += float(ws @ (ys * eta - log_sum))
        residual = ws * (ys - fitted)
        slope += (float(residual.sum()), float(residual @ xs))
        spread = ws * fitted * (1 - fitted)
        moment = float(spread @ xs)
        curve += ((float(spread.sum()), moment), (moment, float((spread * xs) @ xs)))
    return value, slope, curve


def calibration_slope_value(
    probability: ArrayLike,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    eps: float = EPS,
) -> float:
    """Compute the slope of `fit_recalibration`; ±inf where a threshold separates the outcomes.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
        eps: Probabilities are moved to [eps, 1 − eps].
    """
    try:
        return fit_recalibration(probability, happened, weights, eps=eps).slope
    except SeparatedError as error:
        return error.slope


def calibration_intercept_value(
    probability: ArrayLike,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    eps: float = EPS,
) -> float:
    """Compute the intercept of `fit_recalibration`; raises where that has no finite fit.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
        eps: Probabilities are moved to [eps, 1 − eps].
    """
    return fit_recalibration(probability, happened, weights, eps=eps).intercept


def offset_influence(rows: Rows, offset: float, *, eps: float = EPS) -> Floats:
    """Compute the influence on the offset a of calibration in the large.

    ψ_i = (y_i − π_i) / mean of π (1 − π), π the chance after the offset.

    Args:
        rows: The rows.
        offset: a, as `calibration_in_the_large_value` computes it.
        eps: Probabilities are moved to [eps, 1 − eps].
    """
    if not np.isfinite(offset):
        raise UndefinedFigureError(
            f"all {len(rows.happened):,} rows have one outcome: calibration in the large is "
            "infinite and has no influence function"
        )
    fitted = _sigmoid(offset + clipped_logit(rows.probability, eps))
    spread = float(rows.weights @ (fitted * (1 - fitted)))
    influence: Floats = np.subtract(rows.happened, fitted, out=fitted)
    influence /= spread
    return influence


def line_influence(rows: Rows, fit: Recalibration, which: int, *, eps: float = EPS) -> Floats:
    """Compute the influence on the intercept (0) or the slope (1) of the recalibration.

    ψ_i = H⁻¹ (y_i − π_i)(1, logit p_i), π the chance after recalibration and H the weighted mean
    of π (1 − π)(1, logit p)(1, logit p)ᵀ.

    Args:
        rows: The rows.
        fit: What `fit_recalibration` found for them.
        which: 0 for the intercept, 1 for the slope.
        eps: Probabilities are moved to [eps, 1 − eps].
    """
    x = clipped_logit(rows.probability, eps)
    _, _, curve = _likelihood(x, rows.happened, rows.weights, np.array(fit))
    inverse = np.linalg.inv(curve)
    influence = _sigmoid(fit.intercept + fit.slope * x)
    np.subtract(rows.happened, influence, out=influence)
    x *= inverse[which, 1]
    x += inverse[which, 0]
    influence *= x
    return influence


# ------------------------------------------------------------------ means


def _divide(above: Floats, below: Floats, otherwise: Floats | float) -> Floats:
    """Divide where the denominator is positive; elsewhere take ``otherwise``."""
    positive = below > 0
    result: Floats = np.where(positive, above / np.where(positive, below, 1.0), otherwise)
    return result


def mean_of(groups: Groups, values: Floats) -> Floats:
    """Compute the mean over rows of values summed within groups."""
    result: Floats = values.sum(-1) / groups.total.sum(-1)
    return result


def mean_gap_of(groups: Groups) -> Floats:
    """Compute mean p − mean y of grouped rows."""
    return mean_of(groups, groups.total * groups.score - groups.events)


def oe_ratio_of(groups: Groups) -> Floats:
    """Compute observed over expected events of grouped rows; see `oe_ratio_value`."""
    observed, expected = groups.events.sum(-1), (groups.total * groups.score).sum(-1)
    return _divide(observed, expected, np.where(observed > 0, np.inf, 1.0))


def brier_skill_of(groups: Groups) -> Floats:
    """Compute 1 − Σ w (p − y)² / (Σ w · ȳ (1 − ȳ)) of grouped rows.

    Where all rows have one outcome the base rate is never wrong: the value is −inf, or 0 if no
    probability is wrong either.
    """
    score, rate = groups.score, mean_of(groups, groups.events)
    brier = mean_of(groups, groups.total * score**2 + groups.events * (1 - 2 * score))
    base = rate * (1 - rate)
    return 1.0 - _divide(brier, base, np.where(brier > 0, np.inf, 1.0))


def _as_groups(rows: Rows) -> Groups:
    """Return rows as groups of one row each, for figures that need no order."""
    return Groups(rows.probability, rows.weights, rows.weights * rows.happened)


def mean_gap_influence(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> Floats:
    """Compute ψ_i = p_i − y_i − gap.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    rows = check_rows(probability, happened, weights)
    gap = rows.probability - rows.happened
    return gap - float(rows.weights @ gap)


def oe_ratio_value(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> float:
    """Compute Σ w y / Σ w p, observed over expected events, from arrays.

    Where every probability is 0: inf with events, 1 without.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    return float(oe_ratio_of(_as_groups(check_rows(probability, happened, weights))))


def oe_ratio_influence(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> Floats:
    """Compute ψ_i = (y_i − R p_i) / p̄, R the ratio; divide by R for that of ln R.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    rows = check_rows(probability, happened, weights)
    ratio = oe_ratio_value(*rows)
    expected = float(rows.weights @ rows.probability)
    if expected == 0:
        raise UndefinedFigureError("every probability is 0: the ratio has no influence function")
    return (rows.happened - ratio * rows.probability) / expected


def brier_skill_influence(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> Floats:
    """Compute ψ_i = B (1 − 2ȳ)(y_i − ȳ) / (ȳ(1 − ȳ))² − (b_i − B) / (ȳ(1 − ȳ)).

    b_i is row i's squared error and B their weighted mean.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    rows = check_rows(probability, happened, weights)
    rate = float(rows.weights @ rows.happened)
    base = rate * (1 - rate)
    if base <= 0:
        raise UndefinedFigureError(
            f"all {len(rows.happened):,} rows have one outcome: Brier skill has no influence "
            "function"
        )
    # For a fraction y of a group: the mean over its rows of (p − y)².
    loss = rows.probability**2 + rows.happened * (1 - 2 * rows.probability)
    mean = float(rows.weights @ loss)
    return mean * (1 - 2 * rate) * (rows.happened - rate) / base**2 - (loss - mean) / base


def brier_unc_influence(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> Floats:
    """Compute ψ_i = (1 − 2ȳ)(y_i − ȳ), the influence on ȳ (1 − ȳ).

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    rows = check_rows(probability, happened, weights)
    rate = float(rows.weights @ rows.happened)
    return (1 - 2 * rate) * (rows.happened - rate)


# ------------------------------------------------------------------ ranks and decisions


def auroc_of(groups: Groups) -> Floats:
    """Compute P(an event is given more than another row), ties a half, of grouped rows.

    0.5 where all rows have one outcome: there is nothing to rank.
    """
    others = groups.total - groups.events
    below = np.cumsum(others, axis=-1) - 0.5 * others
    pairs = groups.events.sum(-1) * others.sum(-1)
    value = (groups.events * below).sum(-1)
    return _divide(value, pairs, 0.5)


def average_precision_of(groups: Groups) -> Floats:
    """Compute Σ_t (R_t − R_{t−1}) P_t over thresholds t of grouped rows; 0 without events.

    R is recall, P precision.
    """
    events, total = (np.cumsum(counts[..., ::-1], axis=-1) for counts in groups[:0:-1])
    precision = _divide(events, total, 0.0)
    positives = events[..., -1]
    value = (groups.events[..., ::-1] * precision).sum(-1)
    return _divide(value, positives, 0.0)


def net_benefit_of(groups: Groups, threshold: float) -> Floats:
    """Compute (TP − FP · t/(1 − t)) / N for rows treated where p >= t, of grouped rows."""
    treated = groups.score >= threshold
    events, total = groups.events[..., treated].sum(-1), groups.total[..., treated].sum(-1)
    harm = threshold / (1 - threshold)
    result: Floats = (events - harm * (total - events)) / groups.total.sum(-1)
    return result


def check_threshold(threshold: float) -> float:
    """Return the threshold if it lies in [0, 1); raise if not."""
    if not 0 <= threshold < 1:
        raise InputError(f"threshold must lie in [0, 1), found {threshold!r}")
    return float(threshold)


def auroc_influence(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> Floats:
    """Compute the influence on the AUROC; see `auroc_influence_of`.

    Args:
        probability: (N,) probabilities, or any scores within [0, 1].
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    rows = check_rows(probability, happened, weights)
    return auroc_influence_of(rows, find_groups(rows.probability), group_rows(rows))


def auroc_influence_of(rows: Rows, index: NDArray[Any], groups: Groups) -> Floats:
    """Compute ψ_i from DeLong's placements (DeLong et al. 1988).

    An event's placement is the share of other rows below it, another row's the share of events
    above it, ties a half. ψ_i = (placement_i − AUROC) / share of the rows of its outcome.

    Args:
        rows: The rows.
        index: The group of each row, as `find_groups` finds it.
        groups: The groups.
    """
    whole = float(groups.total.sum())
    others = groups.total - groups.events
    positives, negatives = float(groups.events.sum()), float(others.sum())
    if positives <= 0 or negatives <= 0:
        raise UndefinedFigureError(
            f"all {len(index):,} rows have one outcome: AUROC has no influence function"
        )
    below = np.cumsum(others)
    others *= 0.5
    below -= others
    auroc = float(groups.events @ below) / (positives * negatives)
    # In place: these arrays are as long as the rows.
    below /= negatives
    below -= auroc
    below *= whole / positives
    above = np.cumsum(groups.events, out=others)
    above -= 0.5 * groups.events
    above /= -positives
    above += 1 - auroc
    above *= whole / negatives
    return _choose(rows.happened, below, above, index)


def _choose(happened: Floats, event: Floats, other: Floats, index: NDArray[Any]) -> Floats:
    """Return y · event + (1 − y) · other, the values of each row's group."""
    chosen: Floats = event[index]
    chosen -= other[index]
    chosen *= happened
    chosen += other[index]
    return chosen


def find_groups(probability: Floats) -> NDArray[np.int32]:
    """Return the number of the group of each row; rows of equal probability share a group."""
    order = np.argsort(probability)
    new = np.empty(len(order), dtype=bool)
    new[0] = False
    score = probability[order]
    np.not_equal(score[1:], score[:-1], out=new[1:])
    del score
    index = np.empty(len(order), dtype=np.int32)
    index[order] = np.cumsum(new, dtype=np.int32)  # far faster than a search for each row
    return index


def average_precision_influence(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> Floats:
    """Compute the influence on average precision; see `average_precision_influence_of`.

    Args:
        probability: (N,) probabilities, or any scores within [0, 1].
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    rows = check_rows(probability, happened, weights)
    return average_precision_influence_of(rows, find_groups(rows.probability), group_rows(rows))


def average_precision_influence_of(rows: Rows, index: NDArray[np.int32], groups: Groups) -> Floats:
    """Compute ψ_i = [y_i (prec_i − AP) + Σ_{events j: p_j <= p_i} w_j (y_i − prec_j) / n_j] / P.

    prec_j is the precision among the rows with at least p_j, n_j their weight, P the weight of
    the events; the weights sum to 1.

    Args:
        rows: The rows.
        index: The group of each row, as `find_groups` finds it.
        groups: The groups.
    """
    positives = float(groups.events.sum())
    if positives <= 0:
        raise UndefinedFigureError("found no events: average precision has no influence function")
    # In place: these arrays are as long as the rows.
    total = np.cumsum(groups.total[::-1])[::-1]
    event = np.cumsum(groups.events[::-1])[::-1]
    event /= total  # the precision
    value = float(groups.events @ event) / positives
    share = np.divide(groups.events, total, out=total)
    other = np.cumsum(share * event)
    event += np.cumsum(share, out=share)
    event -= other
    event -= value
    scale = float(groups.total.sum()) / positives
    event *= scale
    other *= -scale
    return _choose(rows.happened, event, other, index)


def net_benefit_influence(
    probability: ArrayLike,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    threshold: float = 0.5,
) -> Floats:
    """Compute ψ_i = benefit_i − net benefit.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
        threshold: t, the probability from which rows are treated, in [0, 1).
    """
    rows = check_rows(probability, happened, weights)
    harm = check_threshold(threshold) / (1 - threshold)
    benefit = (rows.probability >= threshold) * (rows.happened - harm * (1 - rows.happened))
    return benefit - float(rows.weights @ benefit)


def decision_table(
    probability: ArrayLike,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    thresholds: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Compute the net benefit of the model, of treating all and of treating none, from arrays.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
        thresholds: The thresholds; see `decision_curve` for None.
    """
    import pandas as pd

    groups = group_rows(check_rows(probability, happened, weights))
    rate = float(groups.events.sum() / groups.total.sum())
    if thresholds is None:
        highest = max(0.05, min(0.99, 4 * rate))
        chosen = np.linspace(0.0, highest, 100)
    else:
        chosen = np.array([check_threshold(number) for number in thresholds])
    # Rows treated are a suffix of the sorted groups: one cumulative sum serves all thresholds.
    begin = np.searchsorted(groups.score, chosen, side="left")
    events, total = (
        np.concatenate(([0.0], np.cumsum(counts[::-1])))[len(groups.score) - begin]
        for counts in (groups.events, groups.total)
    )
    harm = chosen / (1 - chosen)
    whole = float(groups.total.sum())
    return pd.DataFrame(
        {
            "threshold": chosen,
            "net_benefit": (events - harm * (total - events)) / whole,
            "treat_all": rate - harm * (1 - rate),
            "treat_none": 0.0,
            "treated": total / whole,
        }
    )


# ------------------------------------------------------------------ tests


class CalibrationTest(NamedTuple):
    """The outcome of a test of "an event given p happens with chance p"."""

    statistic: float
    p_value: float
    degrees: int | None = None  # of freedom, of a χ² statistic


def spiegelhalter_test(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> CalibrationTest:
    """Test the Brier score against its mean under calibration (Spiegelhalter 1986).

    z = Σ w (y − p)(1 − 2p) / sqrt(Σ w² (1 − 2p)² p (1 − p)), two-sided. z is positive if
    probabilities are too extreme. If every p is 0, ½ or 1, z is +inf where something impossible
    happened, else 0.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened, 0 or 1.
        weights: (N,) weights, or None.
    """
    from scipy.special import ndtr

    rows = check_rows(probability, happened, weights)
    tilt = rows.weights * (1 - 2 * rows.probability)
    excess = float(tilt @ (rows.happened - rows.probability))
    spread = float((tilt**2) @ (rows.probability * (1 - rows.probability)))
    if spread > 0:
        z = excess / float(np.sqrt(spread))
        return CalibrationTest(z, float(2 * ndtr(-abs(z))))
    return CalibrationTest(np.inf, 0.0) if excess > 1e-12 else CalibrationTest(0.0, 1.0)


def hosmer_lemeshow_test(
    probability: ArrayLike,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    num_bins: int = 10,
) -> CalibrationTest:
    """Test observed against expected events in bins of equally many rows (Hosmer & Lemeshow 1980).

    Σ_j (Σ w (y − p))² / (Σ w² · p̄_j (1 − p̄_j)) over bins j with mean probability p̄_j. On
    held-out predictions nothing was fitted to these rows, so that the statistic has as many
    degrees of freedom as bins (on training rows: two fewer). Rows of equal probability stay in
    one bin. A bin whose rows are all certain has no degree of freedom: the statistic is inf if
    one of them is wrong.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened, 0 or 1.
        weights: (N,) weights, or None.
        num_bins: The number of bins; fewer if probabilities tie.
    """
    from scipy.special import chdtrc

    rows = check_rows(probability, happened, weights)
    home = _bin_by_rank(rows.probability, check_bins(num_bins))

    def sums(values: Floats) -> Floats:
        return _bin_sums(home, values, num_bins)

    weight = sums(rows.weights)
    expected = sums(rows.weights * rows.probability)
    excess = sums(rows.weights * (rows.happened - rows.probability))
    mean = _divide(expected, weight, 0.0)
    spread = sums(rows.weights**2) * mean * (1 - mean)
    varies = (spread > 0) & (mean > 1e-15) & (mean < 1 - 1e-15)
    if (np.abs(excess[~varies]) > 1e-12).any():
        return CalibrationTest(np.inf, 0.0, int(varies.sum()))
    statistic = float((excess[varies] ** 2 / spread[varies]).sum())
    degrees = int(varies.sum())
    p_value = float(chdtrc(degrees, statistic)) if degrees else 1.0
    return CalibrationTest(statistic, p_value, degrees)


def _bin_by_rank(probability: Floats, num_bins: int) -> NDArray[np.int64]:
    """Return the equal-mass bin of each row; tied rows go where the middle of their tie lies."""
    ordered = np.sort(probability)
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    ends = np.append(begins[1:], len(ordered))
    home = (begins + ends - 1) * num_bins // (2 * len(ordered))
    # The bin rises with the probability: a row's bin follows from where each bin begins.
    cuts = ordered[begins[np.flatnonzero(np.diff(home)) + 1]]
    bins = np.concatenate(([home[0]], home[np.flatnonzero(np.diff(home)) + 1]))
    return np.asarray(bins[np.searchsorted(cuts, probability, side="right")], dtype=np.int64)


# ------------------------------------------------------------------ the smoothed curve

_SUMMARIES: dict[str, float | None] = {"ici": None, "e50": 0.5, "e90": 0.9, "emax": 1.0}


def curve_errors(totals: Tensor, *, span: float = 0.75, degree: int = 2) -> tuple[Floats, Floats]:
    """Compute |loess curve − p| at each cell of many sets, and the weight of each cell.

    Args:
        totals: (R, C, 3): weight, probability and outcome of each cell; cells of all sets have
            the same mean probability.
        span: See `ici`.
        degree: See `ici`.
    """
    count, confidence, correct = (tensor.cpu().double().numpy() for tensor in totals.unbind(-1))
    whole = count.sum(0)
    x = _divide(confidence.sum(0), whole, 0.0)
    curve = smooth_outcomes(x, count, correct, span=span, degree=degree)
    return np.abs(curve - x), count


def summarise_errors(errors: Floats, weight: Floats, quantile: float | None) -> Floats:
    """Compute the weighted mean of errors (R, C), or the smallest error with at least a quantile.

    Args:
        errors: (R, C) errors.
        weight: (R, C) their weights.
        quantile: In (0, 1]; None for the mean.
    """
    if quantile is None:
        mean: Floats = (errors * weight).sum(-1) / weight.sum(-1)
        return mean
    if quantile == 1:
        largest: Floats = np.where(weight > 0, errors, 0.0).max(-1)
        return largest
    order = np.argsort(errors, axis=-1)
    share = np.cumsum(np.take_along_axis(weight, order, -1), axis=-1)
    place = (share < quantile * (1 - 1e-12) * share[..., -1:]).sum(-1, keepdims=True)
    chosen: Floats = np.take_along_axis(np.take_along_axis(errors, order, -1), place, -1)[..., 0]
    return chosen


def curve_error(totals: Tensor, *, summary: str, span: float = 0.75, degree: int = 2) -> Tensor:
    """Compute ICI, E50, E90 or Emax of many sets of cells, (R, C, 3): (R,)."""
    errors, weight = curve_errors(totals, span=span, degree=degree)
    return torch.from_numpy(summarise_errors(errors, weight, _SUMMARIES[summary]))


# ------------------------------------------------------------------ isotonic decomposition


class BrierParts(NamedTuple):
    """The Brier score as miscalibration − discrimination + uncertainty."""

    miscalibration: float
    discrimination: float
    uncertainty: float


def isotonic_curve(groups: Groups) -> Floats:
    """Compute the isotonic regression of outcomes on probability, (G,): CORP's curve.

    Pool adjacent violators: the nondecreasing function with the smallest weighted squared error.
    """
    from scipy.optimize import isotonic_regression

    rate = _divide(groups.events, groups.total, 0.0)
    # Pooling sums weights: those of very many rows keep more digits near 1 than near 1/N.
    weights = np.maximum(groups.total, 1e-300)
    fitted: Floats = isotonic_regression(rate, weights=weights / weights.mean()).x
    return np.clip(fitted, 0.0, 1.0)


def brier_parts(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> BrierParts:
    """Compute the CORP decomposition of the Brier score (Dimitriadis, Gneiting & Jordan 2021).

    With the isotonic recalibration p*: miscalibration = Brier(p) − Brier(p*), discrimination =
    Brier(ȳ) − Brier(p*), uncertainty = Brier(ȳ) = ȳ (1 − ȳ). None is negative.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    return brier_parts_of(group_rows(check_rows(probability, happened, weights)))


def brier_parts_of(groups: Groups) -> BrierParts:
    """Compute the CORP decomposition of grouped rows; see `brier_parts`."""
    curve, total = isotonic_curve(groups), float(groups.total.sum())
    rate = float(groups.events.sum()) / total
    # Pools keep their sum of outcomes, so both differences are weighted squared distances; these
    # forms cannot turn negative by rounding.
    gap = groups.score - curve
    residual = groups.events - groups.total * curve
    miscalibration = float((groups.total * gap**2 - 2 * residual * gap).sum()) / total
    discrimination = float((groups.total * (curve - rate) ** 2).sum()) / total
    return BrierParts(max(miscalibration, 0.0), discrimination, rate * (1 - rate))


def brier_dsc_influence(
    probability: ArrayLike, happened: ArrayLike, weights: ArrayLike | None = None
) -> Floats:
    """Compute ψ_i = (y_i − ȳ)² − (y_i − p*_i)² − discrimination.

    Both ȳ and the isotonic p* minimise a squared error, so that their own dependence on a row's
    weight does not matter.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: (N,) weights, or None.
    """
    rows = check_rows(probability, happened, weights)
    curve = isotonic_curve(group_rows(rows))[find_groups(rows.probability)]
    rate = float(rows.weights @ rows.happened)
    gain = (rows.happened - rate) ** 2 - (rows.happened - curve) ** 2
    return gain - float(rows.weights @ gain)
