"""Metrics of events: does what is given a probability p happen with that frequency?

A row is a probability and whether the event happened. For a classifier judged by its predicted
class, the probability is the confidence and the event is "correct". The formulas, tests and
influence functions over arrays are in `event_statistics`; all metrics here store their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.arrays import Array
from calibrant.functional.binning import check_bins
from calibrant.functional.blocks import find_view, warn_of_probabilities
from calibrant.metrics.base import (
    Measure,
    calibration_measure,
    check_choice,
    check_order,
    compute_all,
    compute_one,
)
from calibrant.metrics.event_statistics import (
    CURVE_CELLS,
    EPS,
    SIMULATED_CELLS,
    CalibrationTest,
    Floats,
    Groups,
    Recalibration,
    Rows,
    SeparatedError,
    auroc_influence_of,
    auroc_of,
    average_precision_influence_of,
    average_precision_of,
    brier_dsc_influence,
    brier_parts_of,
    brier_skill_influence,
    brier_skill_of,
    brier_unc_influence,
    calibration_in_the_large_value,
    check_rows,
    check_threshold,
    curve_error,
    decision_table,
    find_groups,
    fit_recalibration,
    hosmer_lemeshow_test,
    line_influence,
    mean_gap_influence,
    mean_gap_of,
    mean_of,
    net_benefit_influence,
    net_benefit_of,
    oe_ratio_influence,
    oe_ratio_of,
    offset_influence,
    spiegelhalter_test,
)
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.toplabel import FINE, binned_error

if TYPE_CHECKING:
    import pandas as pd

LOG_LOW = 1e-4  # where the log-spaced bins begin


# ------------------------------------------------------------------ measures


def rows_of(state: RankState) -> Rows:
    """Return the stored rows as arrays."""

    def make() -> Rows:
        weights = state.row_weights()
        return check_rows(
            _clamp(state.concatenate("scores").double()).cpu().numpy(),
            (~state.concatenate("losses")).cpu().numpy(),
            None if weights is None else weights.double().cpu().numpy(),
        )

    return state.keep("rows", make)


def _clamp(score: Tensor) -> Tensor:
    """Return the scores within [0, 1], without a copy where all are."""
    low, high = torch.aminmax(score)
    return score if float(low) >= 0 and float(high) <= 1 else score.clamp(0.0, 1.0)


def groups_of(state: RankState) -> Groups:
    """Return the stored rows grouped by probability, or many resampled sets of them."""
    ranked = state.rank_rows()
    total = ranked.bounds.diff().double()
    events = total - ranked.values.diff()
    score = _clamp(ranked.score)
    return Groups(*(tensor.cpu().numpy() for tensor in (score, total, events)))


def _tensor(value: Any, state: RankState) -> Tensor:
    device = "cpu" if state.preset is not None else state.concatenate("scores").device
    return torch.as_tensor(value, dtype=torch.float64, device=device)


def _row_measure(
    name: str,
    value: Callable[[RankState], float],
    influence: Callable[[RankState], Floats] | None = None,
) -> Measure:
    """Make the measure of a figure of all rows."""

    def compute(state: RankState) -> Tensor:
        return _tensor(value(state), state)

    return Measure(name, (RankState,), compute, "neither", influence=influence)


def _group_measure(
    name: str,
    value: Callable[[Groups], Any],
    better: Literal["lower", "higher", "neither"],
    influence: Callable[..., Floats],
    *,
    ranked: bool = False,
) -> Measure:
    """Make the measure of a figure of grouped rows, which may be of many resampled sets."""

    def compute(state: RankState) -> Tensor:
        return _tensor(value(groups_of(state)), state)

    def influence_of(state: RankState) -> Floats:
        rows = rows_of(state)
        if not ranked:
            return influence(*rows)
        index = state.keep("index", lambda: find_groups(rows.probability))
        return influence(rows, index, groups_of(state))

    return Measure(name, (RankState,), compute, better, "selective", influence=influence_of)


def calibration_in_the_large_measure(*, eps: float = EPS) -> Measure:
    """Make the measure of `calibration_in_the_large`."""

    def value(state: RankState) -> float:
        rows = rows_of(state)
        return state.keep(f"offset {eps}", lambda: calibration_in_the_large_value(*rows, eps=eps))

    def influence(state: RankState) -> Floats:
        return offset_influence(rows_of(state), value(state), eps=eps)

    return _row_measure("calibration_in_the_large", value, influence)


def _fit_rows(state: RankState, eps: float) -> Recalibration:
    return state.keep(f"line {eps}", lambda: fit_recalibration(*rows_of(state), eps=eps))


def calibration_slope_measure(*, eps: float = EPS) -> Measure:
    """Make the measure of `calibration_slope`."""

    def value(state: RankState) -> float:
        try:
            return _fit_rows(state, eps).slope
        except SeparatedError as error:
            return error.slope

    def influence(state: RankState) -> Floats:
        return line_influence(rows_of(state), _fit_rows(state, eps), 1, eps=eps)

    return _row_measure("calibration_slope", value, influence)


def calibration_intercept_measure(*, eps: float = EPS) -> Measure:
    """Make the measure of `calibration_intercept`."""

    def value(state: RankState) -> float:
        return _fit_rows(state, eps).intercept

    def influence(state: RankState) -> Floats:
        return line_influence(rows_of(state), _fit_rows(state, eps), 0, eps=eps)

    return _row_measure("calibration_intercept", value, influence)


def oe_ratio_measure() -> Measure:
    """Make the measure of `oe_ratio`."""
    return _group_measure("oe_ratio", oe_ratio_of, "neither", oe_ratio_influence)


def mean_gap_measure() -> Measure:
    """Make the measure of `mean_gap`."""
    return _group_measure("mean_gap", mean_gap_of, "neither", mean_gap_influence)


def brier_skill_measure() -> Measure:
    """Make the measure of `brier_skill`."""
    return _group_measure("brier_skill", brier_skill_of, "higher", brier_skill_influence)


def auroc_measure() -> Measure:
    """Make the measure of `auroc`."""
    return _group_measure("auroc", auroc_of, "higher", auroc_influence_of, ranked=True)


def average_precision_measure() -> Measure:
    """Make the measure of `average_precision`."""
    return _group_measure(
        "average_precision",
        average_precision_of,
        "higher",
        average_precision_influence_of,
        ranked=True,
    )


def net_benefit_measure(*, threshold: float = 0.5) -> Measure:
    """Make the measure of `net_benefit`."""
    at = check_threshold(threshold)
    value = partial(net_benefit_of, threshold=at)
    influence = partial(net_benefit_influence, threshold=at)
    return _group_measure("net_benefit", value, "higher", influence)


def _curve_measure(name: str, span: float, degree: int) -> Measure:
    error = partial(curve_error, summary=name, span=span, degree=degree)

    def compute(state: RankState) -> Tensor:
        return _tensor(error(_curve_cells(state).unsqueeze(0))[0], state)

    cells = partial(RankState.mass_totals, num_bins=SIMULATED_CELLS)
    return calibration_measure(name, RankState, cells, error, compute=compute)


def _curve_cells(state: RankState) -> Tensor:
    """Sum weight, probability and outcome over tied rows, or over cells of equal weight: (C, 3)."""
    groups = groups_of(state)
    if len(groups.score) > CURVE_CELLS:
        return state.mass_totals(CURVE_CELLS)
    cells = (groups.total, groups.total * groups.score, groups.events)
    return torch.from_numpy(np.stack(cells, axis=-1))


def ici_measure(*, span: float = 0.75, degree: int = 2) -> Measure:
    """Make the measure of `ici`."""
    return _curve_measure("ici", span, degree)


def e50_measure(*, span: float = 0.75, degree: int = 2) -> Measure:
    """Make the measure of `e50`."""
    return _curve_measure("e50", span, degree)


def e90_measure(*, span: float = 0.75, degree: int = 2) -> Measure:
    """Make the measure of `e90`."""
    return _curve_measure("e90", span, degree)


def emax_measure(*, span: float = 0.75, degree: int = 2) -> Measure:
    """Make the measure of `emax`."""
    return _curve_measure("emax", span, degree)


def _log_cells(state: RankState, num_bins: int, low: float) -> Tensor:
    """Sum weight, probability and outcome over log-spaced bins: (..., M, 3)."""
    groups = groups_of(state)
    inner = np.power(low, 1 - np.arange(1, num_bins) / num_bins)
    last = np.searchsorted(groups.score, inner, side="right")
    last = np.concatenate(([0], last, [len(groups.score)]))
    totals = []
    for values in (groups.total, groups.total * groups.score, groups.events):
        zero = np.zeros((*values.shape[:-1], 1))
        cumulative = np.concatenate((zero, np.cumsum(values, axis=-1)), axis=-1)
        totals.append(np.diff(cumulative[..., last], axis=-1))
    return _tensor(np.stack(totals, axis=-1), state)


def log_ece_measure(*, num_bins: int = 15, order: float = 1, low: float = LOG_LOW) -> Measure:
    """Make the measure of `log_ece`."""
    if not 0 < low < 1:
        raise InputError(f"low must lie in (0, 1), found {low!r}")
    cells = partial(_log_cells, num_bins=check_bins(num_bins), low=low)
    error = partial(binned_error, order=check_order(order))
    return calibration_measure("log_ece", RankState, cells, error)


def _test_measure(name: str, test: Callable[[Rows], CalibrationTest], returns: str) -> Measure:
    check_choice("returns", returns, ("p_value", "statistic"))

    def compute(state: RankState) -> Tensor:
        return _tensor(float(getattr(test(rows_of(state)), returns)), state)

    return Measure(name, (RankState,), compute, "neither", "test")


def spiegelhalter_measure(*, returns: str = "p_value") -> Measure:
    """Make the measure of `spiegelhalter`."""
    return _test_measure("spiegelhalter", lambda rows: spiegelhalter_test(*rows), returns)


def hosmer_lemeshow_measure(*, num_bins: int = 10, returns: str = "p_value") -> Measure:
    """Make the measure of `hosmer_lemeshow`."""
    bins = check_bins(num_bins)
    return _test_measure(
        "hosmer_lemeshow", lambda rows: hosmer_lemeshow_test(*rows, num_bins=bins), returns
    )


def _mcb_of_cells(totals: Tensor) -> Tensor:
    """Compute the miscalibration of many sets of cells, (R, C, 3): (R,)."""
    values = []
    for count, confidence, correct in totals.cpu().double().numpy().swapaxes(-1, -2):
        full = count > 0
        cells = Groups(confidence[full] / count[full], count[full], correct[full])
        values.append(brier_parts_of(cells).miscalibration)
    return torch.tensor(values, dtype=torch.float64)


def brier_mcb_measure() -> Measure:
    """Make the measure of `brier_mcb`."""

    def compute(state: RankState) -> Tensor:
        return _tensor(brier_parts_of(groups_of(state)).miscalibration, state)

    cells = partial(RankState.mass_totals, num_bins=FINE)
    return calibration_measure("brier_mcb", RankState, cells, _mcb_of_cells, compute=compute)


def brier_dsc_measure() -> Measure:
    """Make the measure of `brier_dsc`."""

    def compute(state: RankState) -> Tensor:
        return _tensor(brier_parts_of(groups_of(state)).discrimination, state)

    def influence(state: RankState) -> Floats:
        return brier_dsc_influence(*rows_of(state))

    return Measure("brier_dsc", (RankState,), compute, "higher", influence=influence)


def brier_unc_measure() -> Measure:
    """Make the measure of `brier_unc`."""

    def value(groups: Groups) -> Floats:
        rate = mean_of(groups, groups.events)
        return rate * (1 - rate)

    return _group_measure("brier_unc", value, "neither", brier_unc_influence)


# ------------------------------------------------------------------ functions


def calibration_in_the_large(
    preds: Array,
    target: Array,
    *,
    eps: float = EPS,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute calibration in the large: the offset a of logit P(event) = a + logit p.

    Cox's (1958) model with the slope fixed at 1. 0 is calibrated on average; negative means that
    probabilities are too high. −inf without events, +inf with events alone.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        eps: Probabilities are moved to [eps, 1 − eps] before their logit is taken; `count_clipped`
            says how many. Default: 1e-09 (ours: only certainty is touched).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        calibration_in_the_large_measure(eps=eps),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def calibration_slope(
    preds: Array,
    target: Array,
    *,
    eps: float = EPS,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the calibration slope b of logit P(event) = a + b logit p.

    Cox's (1958) logistic recalibration by maximum likelihood. 1 is calibrated; below 1,
    probabilities are too extreme, above 1 too timid. ±inf where a threshold separates all events
    from all other rows. Raises where all rows have one outcome or one probability.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        eps: Probabilities are moved to [eps, 1 − eps] before their logit is taken; `count_clipped`
            says how many. Default: 1e-09 (ours: only certainty is touched).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        calibration_slope_measure(eps=eps),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def calibration_intercept(
    preds: Array,
    target: Array,
    *,
    eps: float = EPS,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the calibration intercept a of logit P(event) = a + b logit p.

    Cox's (1958) logistic recalibration by maximum likelihood. 0 is calibrated where the slope is 1;
    `calibration_in_the_large` fixes the slope at 1. Raises where no finite fit exists.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        eps: Probabilities are moved to [eps, 1 − eps] before their logit is taken; `count_clipped`
            says how many. Default: 1e-09 (ours: only certainty is touched).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        calibration_intercept_measure(eps=eps),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def oe_ratio(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the ratio of observed to expected events, Σ y / Σ p.

    1 is calibrated on average; below 1, probabilities are too high. Where every probability is 0:
    inf with events, 1 without.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        oe_ratio_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def mean_gap(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute mean probability less frequency of the event.

    For the predicted class: mean confidence less accuracy.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        mean_gap_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def ici(
    preds: Array,
    target: Array,
    *,
    span: float = 0.75,
    degree: int = 2,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the integrated calibration index, the mean of |ĉ(p_i) − p_i| over rows.

    ĉ(p) is the frequency of the event at p, smoothed by local regression (loess: tricube weights
    over the nearest ``span`` of the rows, as Austin & Steyerberg 2019 have it), clipped to [0, 1].
    It needs no bins, and nearest rows adapt its width to rare events. Above 1,000 rows the curve is
    computed from 1,000 cells of equally many rows. Noise biases the value upward: see the
    intervals of ``calibrant.evaluate``.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        span: The share of the rows that a local fit reaches. Default: 0.75 (Austin & Steyerberg
            2019).
        degree: The degree of the local polynomial: 0, 1 or 2. Default: 2 (Austin & Steyerberg
            2019).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        ici_measure(span=span, degree=degree),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def e50(
    preds: Array,
    target: Array,
    *,
    span: float = 0.75,
    degree: int = 2,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute E50, the median of |ĉ(p_i) − p_i| over rows.

    ĉ is the smoothed curve of `ici` (Austin & Steyerberg 2019).

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        span: The share of the rows that a local fit reaches. Default: 0.75 (Austin & Steyerberg
            2019).
        degree: The degree of the local polynomial: 0, 1 or 2. Default: 2 (Austin & Steyerberg
            2019).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        e50_measure(span=span, degree=degree),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def e90(
    preds: Array,
    target: Array,
    *,
    span: float = 0.75,
    degree: int = 2,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute E90, the 90% quantile of |ĉ(p_i) − p_i| over rows.

    ĉ is the smoothed curve of `ici` (Austin & Steyerberg 2019).

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        span: The share of the rows that a local fit reaches. Default: 0.75 (Austin & Steyerberg
            2019).
        degree: The degree of the local polynomial: 0, 1 or 2. Default: 2 (Austin & Steyerberg
            2019).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        e90_measure(span=span, degree=degree),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def emax(
    preds: Array,
    target: Array,
    *,
    span: float = 0.75,
    degree: int = 2,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute Emax, the largest |ĉ(p_i) − p_i| of a row.

    ĉ is the smoothed curve of `ici` (Austin & Steyerberg 2019). Noisy: it may hang on one
    isolated row.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        span: The share of the rows that a local fit reaches. Default: 0.75 (Austin & Steyerberg
            2019).
        degree: The degree of the local polynomial: 0, 1 or 2. Default: 2 (Austin & Steyerberg
            2019).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        emax_measure(span=span, degree=degree),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def spiegelhalter(
    preds: Array,
    target: Array,
    *,
    returns: str = "p_value",
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Test the Brier score against its mean under calibration (Spiegelhalter 1986).

    z = Σ (y − p)(1 − 2p) / sqrt(Σ (1 − 2p)² p (1 − p)), two-sided. z is positive if probabilities
    are too extreme.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        returns: ``"p_value"`` or ``"statistic"``. Default: 'p_value' (ours: it can be read alone).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        spiegelhalter_measure(returns=returns),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def hosmer_lemeshow(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 10,
    returns: str = "p_value",
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Test observed against expected events bin by bin (Hosmer & Lemeshow 1980).

    Bins of equally many rows, ties kept together. On held-out predictions, as here, the statistic
    has as many degrees of freedom as bins.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins. Default: 10 (Hosmer & Lemeshow 1980).
        returns: ``"p_value"`` or ``"statistic"``. Default: 'p_value' (ours: it can be read alone).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        hosmer_lemeshow_measure(num_bins=num_bins, returns=returns),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def brier_skill(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the Brier skill score, 1 − Brier / Brier of the base rate.

    1 is perfect, 0 no better than always giving the base rate of these rows, below 0 worse. Where
    all rows have one outcome: −inf, or 0 if no probability is wrong.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        brier_skill_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def log_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 1,
    low: float = LOG_LOW,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute ECE with bins equally spaced in log10 p, for rare events.

    Bins end at 10^(log10(low) (1 − j/M)), j = 1..M; the first also holds all below it. Equal-width
    bins put nearly all rows of a rare event into the first.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        order: The order p of the error. Default: 1 (Guo et al. 2017).
        low: Where the first bin would begin, were it as wide as the others. Default: 0.0001
            (ours: four decades).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        log_ece_measure(num_bins=num_bins, order=order, low=low),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def auroc(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the AUROC: the chance that an event is given more than another row.

    Ties count a half. 0.5 where all rows have one outcome.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        auroc_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def average_precision(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute average precision, Σ_t (R_t − R_{t−1}) P_t over thresholds t.

    R is recall, P precision; no interpolation. 0 without events.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        average_precision_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def net_benefit(
    preds: Array,
    target: Array,
    *,
    threshold: float = 0.5,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute net benefit at a threshold, (TP − FP · t/(1 − t)) / N (Vickers & Elkin 2006).

    Rows are treated where p >= t. See `decision_curve` for many thresholds.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        threshold: t, in [0, 1): treat an event at 1 in 1/t. Default: 0.5 (ours: a false alarm
            costs as much as a missed event).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        net_benefit_measure(threshold=threshold),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def brier_mcb(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the miscalibration part of the Brier score (CORP).

    What isotonic recalibration would remove: Brier(p) − Brier(isotonic p) (Dimitriadis, Gneiting &
    Jordan 2021). Brier = brier_mcb − brier_dsc + brier_unc. Noise biases it upward.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        brier_mcb_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def brier_dsc(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the discrimination part of the Brier score (CORP).

    How much better the isotonic recalibration is than the base rate: Brier(ȳ) − Brier(isotonic p)
    (Dimitriadis, Gneiting & Jordan 2021).

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        brier_dsc_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def brier_unc(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the uncertainty part of the Brier score, ȳ (1 − ȳ).

    It belongs to the rows, not to the model (Dimitriadis, Gneiting & Jordan 2021).

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        brier_unc_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def decision_curve(
    preds: Array,
    target: Array,
    *,
    thresholds: Sequence[float] | None = None,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> pd.DataFrame:
    """Compute the decision curve: net benefit over thresholds (Vickers & Elkin 2006).

    Returns a table with columns ``threshold``, ``net_benefit`` (treat where p >= t), ``treat_all``,
    ``treat_none`` (0) and ``treated``, the share of rows that the model treats.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        thresholds: The thresholds, each in [0, 1). Default: None (ours: 100 from 0 to four times
            the base rate, at least 5% and at most 99%).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    if from_logits:
        warn_of_probabilities(preds, stacklevel=2)
    state = RankState()
    compute_all(
        [mean_gap_measure()],
        [(preds, target, weights)],
        from_logits=from_logits,
        ignore_index=ignore_index,
        positive=find_view(np.shape(preds), view, pos_label),
        extra=[state],
    )
    return decision_table(*rows_of(state), thresholds=thresholds)
