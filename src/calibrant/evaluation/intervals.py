"""The interval of each figure; the method follows from how the figure's uncertainty arises.

=============================  ==================================================================
calibration errors, as ECE     invert a test (`calibration_interval`, `inversion.invert`)
MCE                            Wilson's intervals of all bins (`worst_bin_interval`)
accuracy                       Wilson's interval (`row_intervals`)
means of rows, ranked risks    percentile bootstrap (`row_intervals`, `bootstrap`)
coverage_at_risk               an interval of its own (`Measure.interval`)
anything else                  spread over random halves of the rows (`half_samples`)
=============================  ==================================================================

With few rows or few errors, Wilson's interval of the accuracy widens the others
(`widen_for_few`). `compare` makes the intervals of differences, `groups.judge` those of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibrant.evaluation.bootstrap import (
    MOST_CELLS,
    ClassCellState,
    limit_resamples,
    make_row_states,
    percentile_interval,
    resample_counts,
    resample_measures,
)
from calibrant.evaluation.inversion import Interval, invert
from calibrant.functional.arrays import Array
from calibrant.functional.statistics import wilson
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import MeanState, RowState
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.registry import measure as get_measure
from calibrant.predictions import Predictions

GAP = "confidence − accuracy"  # resampled together with the figures, for the verdict

_SLOW = {"sweep_ece": 100, "smooth_ece": 200}  # draws of errors that are slow to simulate
_CELL_BUDGET = 150_000  # cells times draws
_FEW_ROWS, _FEW_OF_A_KIND = 30, 10  # rows, and right or wrong rows: fewer make resampling unsound
_BOUNDED_BY_GAP = ("ece", "adaptive_ece", "ks_error", "smooth_ece", "sweep_ece")


@dataclass(frozen=True)
class Plan:
    """The confidence level of the intervals, the number of resamples and their seed."""

    level: float = 0.95
    resamples: int = 1000
    seed: int = 0


def figure_intervals(
    measures: Mapping[str, Measure],
    values: Mapping[str, float],
    states: Mapping[str, Sequence[State]],
    row_states: Mapping[str, State],
    ranks: RankState,
    predictions: Predictions,
    plan: Plan,
    coupling: float,
) -> dict[str, Interval]:
    """Compute the interval of every figure that has one, and that of the gap (`GAP`).

    Args:
        measures: The measures by name.
        values: Their values.
        states: Their states, filled.
        row_states: The filled states of `make_row_states`.
        ranks: Confidence and correctness of all rows.
        predictions: The predictions, for measures computed on halves of the rows.
        plan: Level, resamples and seed.
        coupling: How much more class-wise errors vary than independent cells.
    """
    intervals: dict[str, Interval] = {}
    gap = RowState(GAP)
    gap.rows.append(row_gaps(ranks))
    rows: dict[str, State] = {GAP: gap}
    others: dict[str, Measure] = {}
    for name, measure in measures.items():
        if measure.kind == "calibration":
            intervals[name] = calibration_interval(measure, states[name][0], plan, coupling)
        elif name not in row_states:
            others[name] = measure
        elif not count_infinite(states[name][0]):
            rows[name] = row_states[name]
    by_row = {**measures, GAP: get_measure("accuracy")}
    intervals.update(row_intervals(by_row, rows, ranks.rank_rows().num_rows, plan))
    if has_few(ranks):
        widen_for_few(intervals, ranks, plan)
    if others and predictions.num_rows > 1:
        held = predictions.in_memory()
        halves = half_samples(
            list(others.values()),
            [lambda index: (held.array[index], held.labels[index])],
            held.num_rows,
            draws=min(200, limit_resamples(held.num_rows, plan.resamples)),
            seed=plan.seed,
            options=[{"from_logits": held.is_logits, "ignore_index": held.ignore_index}],
        )
        for column, name in enumerate(others):
            ends = normal_interval(values[name], halves[:, 0, column], plan.level)
            intervals[name] = Interval(*ends, None)
    return intervals


def has_few(ranks: RankState) -> bool:
    """Return whether rows, errors or correct rows are too few to be resampled.

    The bootstrap cannot produce errors that were never observed.
    """
    count, wrong = ranks.rank_rows().num_rows, int(ranks.concatenate("losses").sum())
    return count < _FEW_ROWS or min(wrong, count - wrong) < _FEW_OF_A_KIND


def widen_for_few(intervals: dict[str, Interval], ranks: RankState, plan: Plan) -> None:
    """Widen the gap's interval to Wilson's interval of the accuracy, and calibration errors too.

    A calibration error is never smaller than the gap between mean confidence and accuracy.
    """
    count = ranks.rank_rows().num_rows
    right = float((~ranks.concatenate("losses")).sum())
    confidence = float(row_gaps(ranks).mean()) + right / count
    low, high = wilson(np.array([right / count]), np.array([float(count)]), plan.level)
    before = intervals.get(GAP, Interval(1.0, -1.0, None))  # a single row has none
    ends = (
        min(before.low, confidence - float(high[0])),
        max(before.high, confidence - float(low[0])),
    )
    intervals[GAP] = Interval(*ends, None)
    for name in _BOUNDED_BY_GAP:
        if name in intervals:
            error = intervals[name]
            intervals[name] = Interval(error.low, max(error.high, *map(abs, ends)), error.estimate)


def row_gaps(ranks: RankState) -> Tensor:
    """Return each row's confidence less its correctness."""
    return ranks.concatenate("scores").double() - (~ranks.concatenate("losses")).double()


def count_infinite(state: State) -> int:
    """Return how many rows of a mean are infinite; a mean with such rows has no interval."""
    return state.infinite() if isinstance(state, MeanState) else 0


def calibration_interval(
    measure: Measure, state: State, plan: Plan, coupling: float = 1.0
) -> Interval:
    """Compute the interval of a calibration error, corrected for its upward bias."""
    assert measure.cells is not None
    cells = measure.cells(state)
    if measure.name == "mce":
        return worst_bin_interval(cells, plan.level)
    assert measure.error is not None
    draws = min(plan.resamples, _SLOW.get(measure.name, plan.resamples))
    return invert(
        cells,
        measure.error,
        population=measure.population,
        coupling=coupling if cells.ndim == 3 else 1.0,
        level=plan.level,
        resamples=max(100, min(draws, _CELL_BUDGET // cells[..., 0].numel())),
        seed=plan.seed,
    )


def make_cell_states(measures: Iterable[Measure], size: int) -> list[ClassCellState]:
    """Return the state that shows how class-wise cells vary together, if it fits in memory."""
    states = (s for measure in measures if measure.kind == "calibration" for s in measure.build())
    numbers = [s.num_bins for s in states if isinstance(s, ClassBinState)]
    return [ClassCellState(numbers[0])] if numbers and size <= MOST_CELLS else []


def estimate_coupling(states: Sequence[ClassCellState]) -> float:
    """Return the coupling of the cells that the rows show, or 1 if no state was kept."""
    return max(1.0, states[0].coupling()) if states else 1.0


def worst_bin_interval(cells: Tensor, level: float) -> Interval:
    """Compute a simultaneous interval of the largest gap of a bin.

    It is Bonferroni's correction of Wilson's intervals: which bin is worst is mostly noise, so
    resampling it says little. Bounding every bin's gap bounds the largest.
    """
    count, confidence, correct = cells[cells[:, 0] > 0].cpu().numpy().T
    mean = confidence / count
    low, high = wilson(correct / count, count, 1 - (1 - level) / len(count))
    inside = (low <= mean) & (mean <= high)
    nearest = np.where(inside, 0.0, np.minimum(np.abs(low - mean), np.abs(high - mean)))
    farthest = np.maximum(np.abs(low - mean), np.abs(high - mean))
    return Interval(float(nearest.max()), float(farthest.max()), None)


def row_intervals(
    measures: Mapping[str, Measure], states: Mapping[str, State], num_rows: int, plan: Plan
) -> dict[str, Interval]:
    """Compute percentile intervals of means of rows and of ranked rows, in one bootstrap.

    Accuracy is a proportion and gets Wilson's interval: the bootstrap cannot produce errors
    that were never observed. A measure may have an interval of its own. A value that is the
    same in all resamples, such as a risk without errors, has no interval, nor has a single row.
    """
    if num_rows < 2:
        return {}
    intervals: dict[str, Interval] = {}
    rates: dict[str, float] = {}
    resampled: dict[str, State] = {}
    for name, state in states.items():
        own = measures[name].interval
        if isinstance(state, RowState) and state.quantity == "correct":
            rates[name] = state.concatenate("rows").mean().item()
        elif own:
            intervals[name] = Interval(*own(state, plan.level), None)
        else:
            resampled[name] = state
    drawn: dict[str, list[NDArray[np.float64]]] = {name: [] for name in resampled}
    for counts in resample_counts(num_rows, limit_resamples(num_rows, plan.resamples), plan.seed):
        for name, values in resample_measures(measures, resampled, counts).items():
            drawn[name].append(values)
    for name, blocks in drawn.items():
        low, high = percentile_interval(np.concatenate(blocks), plan.level)
        if high - low > 1e-12 * max(abs(low), abs(high)):  # less is rounding error
            intervals[name] = Interval(low, high, None)
    for name, rate in rates.items():
        lows, highs = wilson(np.array([rate]), np.array([float(num_rows)]), plan.level)
        intervals[name] = Interval(float(lows[0]), float(highs[0]), None)
    return intervals


def half_samples(
    measures: Sequence[Measure],
    takes: Sequence[Callable[[NDArray[np.int64]], tuple[Array, Array]]],
    num_rows: int,
    *,
    draws: int,
    seed: int,
    options: Sequence[dict[str, Any]],
    tick: Callable[[], None] = lambda: None,
) -> NDArray[np.float64]:
    """Compute measures anew on random halves of the rows, the same halves for every set.

    This is for measures without a faster form. The spread over halves is the standard error of
    the whole (delete-half jackknife). Unlike a bootstrap it repeats no row, and a row's own
    copy would ruin leave-one-out estimates.

    Args:
        measures: The measures.
        takes: For each set of predictions, a function from row indices to scores and labels.
        num_rows: The number of rows of every set.
        draws: The number of halves.
        seed: The seed of the halves.
        options: For each set, options of `compute_all`.
        tick: Called after each half.

    Returns:
        (draws, sets, measures).
    """
    generator = np.random.default_rng(seed)
    values = np.empty((draws, len(takes), len(measures)))
    for line in values:
        rows = np.sort(generator.permutation(num_rows)[: max(1, num_rows // 2)])
        for index, (take, how) in enumerate(zip(takes, options, strict=True)):
            line[index] = [float(v) for v in compute_all(measures, [take(rows)], **how)]
        tick()
    return values


def normal_interval(value: float, drawn: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return the interval around ``value`` whose standard error is the spread of ``drawn``."""
    from scipy.special import ndtri

    half = float(ndtri(0.5 + level / 2)) * float(np.std(drawn, ddof=1))
    return value - half, value + half


def bootstrap_interval(
    measure: Measure,
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Compute the interval of one measure of arrays in memory.

    Calibration errors are corrected for their upward bias (see `inversion`). Means of rows and
    ranked risks have percentile bootstrap intervals. Any other measure is computed anew on
    random halves of the rows, whose spread is its standard error.

    Args:
        measure: The measure, as `calibrant.metrics.measure` makes it.
        preds: Logits or probabilities, as the measure takes them.
        target: The labels.
        from_logits: Whether ``preds`` are logits; False for probabilities.
        ignore_index: The label of rows to leave out.
        level: The confidence level.
        resamples: The number of resamples.
        seed: The seed of the resamples.
    """
    plan = Plan(level, resamples, seed)
    how: dict[str, Any] = {"from_logits": from_logits, "ignore_index": ignore_index}
    named, name = {measure.name: measure}, measure.name
    if measure.kind == "calibration":
        (state,) = measure.build()
        cells = make_cell_states([measure], int(np.prod(preds.shape)))
        compute_all([measure], [(preds, target)], extra=[state, *cells], **how)
        return calibration_interval(measure, state, plan, estimate_coupling(cells))
    rows = make_row_states(named, classes=False)
    count = MeanState("correct") if measure.build()[0].num_labels is None else None
    extra = [*rows.values(), *([count] if count else [])]
    (value,) = compute_all([measure], [(preds, target)], extra=extra, **how)
    low, high = -np.inf, np.inf  # one row does not show its spread
    if len(preds) > 1 and rows and count:
        interval = row_intervals(named, rows, int(count.total("totals")[0]), plan).get(name)
        low, high = (interval.low, interval.high) if interval else (low, high)
    elif len(preds) > 1:
        halves = half_samples(
            [measure],
            [lambda index: (preds[index], target[index])],
            len(preds),
            draws=min(200, resamples),
            seed=seed,
            options=[how],
        )
        low, high = normal_interval(float(value), halves[:, 0, 0], level)
    return Interval(low, high, float(value))
