"""The interval of each figure; the method follows from how the figure's uncertainty arises.

=============================  ==================================================================
calibration errors, as ECE     invert a test (`calibration_interval`, `inversion.invert`)
MCE                            Wilson's intervals of all bins (`worst_bin_interval`)
accuracy                       Wilson's interval (`row_intervals`)
means of rows                  ABC, the bootstrap in closed form (`bootstrap.mean_interval`)
ranked risks                   influences, on a scale of logarithms (`row_intervals`)
coverage_at_risk               an interval of its own (`Measure.interval`)
figures with an influence      closed form (`clustered.influence_interval`)
anything else                  spread over random halves of the rows (`half_samples`)
=============================  ==================================================================

Events, and rows with weights or clusters (`Units`), get the intervals of `clustered` for all but
the calibration errors of plain events.

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

from calibrant.core.errors import UndefinedFigureError
from calibrant.evaluation.bootstrap import (
    MOST_CELLS,
    SAMPLED_CELLS,
    ClassCellState,
    limit_resamples,
    make_row_states,
    mean_interval,
    percentile_interval,
    resample_counts,
    resample_measures,
    share_states,
)
from calibrant.evaluation.clustered import (
    Scale,
    check_weights,
    encode_clusters,
    gap_interval,
    grouped_interval,
    has_few_events,
    influence_interval,
    jackknife_interval,
    leave_out_weights,
    make_cell_noise,
    mean_influence,
    offset_interval,
    proportion_interval,
    ratio_interval,
)
from calibrant.evaluation.inversion import CellNoise, Interval, invert
from calibrant.functional.arrays import Array, as_numpy
from calibrant.functional.blocks import find_view
from calibrant.functional.statistics import wilson
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import MeanState, RowState
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.registry import measure as get_measure
from calibrant.metrics.selective import SELECTIVE
from calibrant.predictions import Predictions
from calibrant.predictions.arrays import as_clusters, as_weights

GAP = "confidence − accuracy"  # resampled together with the figures, for the verdict

_SLOW = {"sweep_ece": 100, "smooth_ece": 200}  # draws of errors that are slow to simulate
_CELL_BUDGET = 150_000  # cells times draws
_FEW_ROWS, _FEW_OF_A_KIND = 30, 10  # rows, and right or wrong rows: fewer make resampling unsound
BOUNDED_BY_GAP = ("ece", "adaptive_ece", "ks_error", "smooth_ece", "sweep_ece")


@dataclass(frozen=True)
class Units:
    """The weight and the cluster of each row that counts; None if rows are plain."""

    weights: NDArray[np.float64] | None = None
    clusters: NDArray[np.int64] | None = None

    @property
    def plain(self) -> bool:
        """Return whether rows are independent and count the same."""
        return self.weights is None and self.clusters is None

    def options(self) -> dict[str, Any]:
        """Return the units as the options of the functions of `clustered`."""
        return {"weights": self.weights, "clusters": self.clusters}

    def take(self, rows: NDArray[np.int64]) -> Units:
        """Return the weights and clusters of some rows."""
        return Units(
            None if self.weights is None else self.weights[rows],
            None if self.clusters is None else self.clusters[rows],
        )


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
    cells: Sequence[ClassCellState],
    units: Units,
    options: Mapping[str, Any],
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
        cells: The filled state of `make_cell_states`, or none.
        units: The weights and clusters of the rows.
        options: Options of `compute_all`.
    """
    others: dict[str, Measure] = {}
    # What is undefined or infinite has no interval.
    measures = {name: measure for name, measure in measures.items() if np.isfinite(values[name])}
    if not units.plain or options.get("positive") is not None:
        intervals = unit_intervals(measures, values, states, row_states, ranks, plan, cells, units)
        if units.plain:
            others = {n: m for n, m in measures.items() if m.kind == "other" and not m.influence}
    else:
        intervals, others = _class_intervals(measures, states, row_states, ranks, plan, cells)
    if units.plain and has_few(ranks):
        widen_for_few(intervals, ranks, plan)
    if others and predictions.num_rows > 1:
        rows = predictions.in_memory()
        halves = half_samples(
            list(others.values()),
            [lambda index: (rows.array[index], rows.known_labels[index])],
            rows.num_rows,
            draws=min(200, limit_resamples(rows.num_rows, plan.resamples)),
            seed=plan.seed,
            options=[dict(options)],
        )
        for column, name in enumerate(others):
            ends = normal_interval(values[name], halves[:, 0, column], plan.level)
            intervals[name] = Interval(*ends, None)
    for state in {id(s): s for several in states.values() for s in several}.values():
        if isinstance(state, RankState):
            state.forget()
    return intervals


def _class_intervals(
    measures: Mapping[str, Measure],
    states: Mapping[str, Sequence[State]],
    row_states: Mapping[str, State],
    ranks: RankState,
    plan: Plan,
    cells: Sequence[ClassCellState],
) -> tuple[dict[str, Interval], dict[str, Measure]]:
    """Compute the intervals of independent rows of the predicted class, and name the rest."""
    intervals: dict[str, Interval] = {}
    others: dict[str, Measure] = {}
    coupling = estimate_coupling(cells, states)
    gap = RowState(GAP)
    gap.rows.append(row_gaps(ranks))
    rows: dict[str, State] = {GAP: gap}
    for name, measure in measures.items():
        if measure.kind == "calibration":
            intervals[name] = calibration_interval(measure, states[name][0], plan, coupling)
        elif name in row_states:
            if not count_infinite(states[name][0]):
                rows[name] = row_states[name]
        elif measure.kind == "other":
            others[name] = measure
    by_row = {**measures, GAP: get_measure("accuracy")}
    intervals.update(row_intervals(by_row, rows, ranks.rank_rows().num_rows, plan))
    return intervals, others


SCALES: dict[str, Scale] = {
    "oe_ratio": "log",
    "auroc": "logit",
    "average_precision": "logit",
    "failure_auroc": "logit",
}


def closed_interval(
    measure: Measure, value: float, state: RankState, units: Units, plan: Plan
) -> Interval | None:
    """Compute the interval of a figure from the influence of each row on it.

    Figures that follow from the number of events alone are sound for few events; others have no
    interval where no influence is defined.
    """
    assert measure.influence is not None
    how: dict[str, Any] = {"level": plan.level, **units.options()}
    interval: Any
    probability, happened = read_rows(state)
    if measure.name == "oe_ratio" and np.isfinite(value) and probability.any():
        interval = ratio_interval(probability, happened, **how)
    elif measure.name == "mean_gap":
        interval = gap_interval(probability, happened, **how)
    elif measure.name == "calibration_in_the_large" and has_few_events(happened):
        return Interval(*offset_interval(probability, happened, **how), None)
    else:
        try:
            influence = measure.influence(state)
        except UndefinedFigureError:
            return None
        scale = SCALES.get(measure.name, "identity")
        interval = influence_interval(value, influence, scale=scale, heavy_tails=True, **how)
    return Interval(interval.low, interval.high, None)


def read_rows(state: RankState) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the judged probability of each row, and whether what it says happened."""

    def make() -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        scores = state.concatenate("scores").double().cpu().numpy()
        return scores, (~state.concatenate("losses")).cpu().numpy()

    return state.keep("arrays", make)


def unit_intervals(
    measures: Mapping[str, Measure],
    values: Mapping[str, float],
    states: Mapping[str, Sequence[State]],
    row_states: Mapping[str, State],
    ranks: RankState,
    plan: Plan,
    cells: Sequence[ClassCellState],
    units: Units,
) -> dict[str, Interval]:
    """Compute the intervals of events, and of rows that have weights or come in clusters.

    Figures without an interval in that case (kernel errors, for instance) are left out. A
    calibration error is never smaller than the gap between mean probability and frequency, so
    of clusters its interval reaches as far as that of the gap. The arguments are those of
    `figure_intervals`.
    """
    how = units.options()
    probability, happened = read_rows(ranks)
    gap = gap_interval(probability, happened, level=plan.level, **how)
    intervals = {GAP: Interval(gap.low, gap.high, None)}
    resampled: dict[str, Measure] = {}
    for name, measure in measures.items():
        state = row_states.get(name, states[name][0])
        interval: Any = None
        if measure.kind == "calibration" and units.plain:
            interval = calibration_interval(measure, states[name][0], plan)
        elif measure.kind == "calibration":
            interval = unit_calibration_interval(
                measure, states[name][0], probability, happened, plan, cells, units
            )
        elif measure.interval is not None:
            if units.plain:
                interval = Interval(*measure.interval(state, plan.level), None)
        elif measure.influence is not None:
            assert isinstance(state, RankState)
            interval = closed_interval(measure, values[name], state, units, plan)
        elif isinstance(state, RowState):
            rows = state.concatenate("rows").cpu().numpy()
            if not np.isfinite(rows).all():
                continue
            if state.quantity == "right":
                interval = proportion_interval(rows, level=plan.level, **how)
            else:
                mean, influence = mean_influence(rows, units.weights)
                interval = influence_interval(mean, influence, level=plan.level, **how)
        elif measure.kind == "selective":
            resampled[name] = measure
        if interval is not None:
            high = interval.high
            if units.clusters is not None and measure.name in BOUNDED_BY_GAP:
                high = max(high, abs(gap.low), abs(gap.high))
            intervals[name] = Interval(interval.low, high, getattr(interval, "estimate", None))
    if resampled:
        chosen = {name: row_states[name] for name in resampled}
        lines = leave_out_weights(len(probability), seed=plan.seed, **how)
        drawn = [resample_measures(resampled, chosen, line[None]) for line in lines]
        for name in resampled:
            left_out = np.array([float(values[name][0]) for values in drawn])
            ends = jackknife_interval(values[name], left_out, level=plan.level)
            intervals[name] = Interval(ends.low, ends.high, None)
    return {
        name: interval if name == GAP else keep_possible(measures[name].name, interval)
        for name, interval in intervals.items()
    }


# Figures that cannot be negative, and those that are shares as well.
_SHARES = {"accuracy", "failure_auroc", "auroc", "average_precision", "e90", "ici", "e50"}
_NOT_NEGATIVE = {*_SHARES, "aurc", "e_aurc", "augrc", "brier", "nll", "risk_at_coverage"}


def keep_possible(name: str, interval: Interval) -> Interval:
    """Cut an interval off where the figure cannot lie."""
    low = max(interval.low, 0.0) if name in _NOT_NEGATIVE else interval.low
    high = min(interval.high, 1.0) if name in _SHARES else interval.high
    return Interval(low, high, interval.estimate)


def unit_calibration_interval(
    measure: Measure,
    state: State,
    probability: NDArray[np.float64],
    happened: NDArray[np.bool_],
    plan: Plan,
    class_cells: Sequence[ClassCellState],
    units: Units,
) -> Interval | None:
    """Compute the interval of a calibration error of rows with weights or clusters."""
    assert measure.cells is not None
    cells = measure.cells(state)
    # As many rows as there are, of mean weight 1: nothing may depend on the scale of weights.
    sets = cells.shape[0] if cells.ndim == 3 else 1
    cells = cells * (sets * len(probability) / float(cells[..., 0].sum()))
    how: dict[str, Any] = {
        "weights": check_weights(units.weights, len(probability)),
        "clusters": units.clusters,
    }
    if cells.ndim == 3:
        if not class_cells:
            return None
        home, residual = class_cells[0].residuals()
        if class_cells[0].num_bins != cells.shape[1]:
            return None
    else:
        home = find_homes(cells, probability, how["weights"])
        residual = happened - probability
    if measure.name == "mce":
        return _worst_unit_bin(cells, home, probability, happened, plan, how)
    noise = make_cell_noise(home, residual, tuple(cells.shape[:-1]), seed=plan.seed, **how)
    return calibration_interval(measure, cells, plan, noise=noise)


def find_homes(
    cells: Tensor, probability: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the cell of each row, given cells that are ranges of ascending probability."""
    order = np.argsort(probability, kind="stable")
    row_weights = weights[order]
    middle = np.cumsum(row_weights) - 0.5 * row_weights
    ends = np.cumsum(cells[:, 0].cpu().double().numpy())
    home = np.empty(len(order), dtype=np.int64)
    home[order] = np.minimum(np.searchsorted(ends, middle), len(ends) - 1)
    return home


def measure_bin_noise(
    cells: Tensor,
    probability: NDArray[np.float64],
    happened: NDArray[np.bool_],
    units: Units,
    plan: Plan,
) -> tuple[Tensor, CellNoise | None]:
    """Return bins scaled to mean weight 1, and how they vary; None if rows are plain."""
    if units.plain:
        return cells, None
    number = len(probability)
    scaled = cells * (number / float(cells[..., 0].sum()))
    weights = check_weights(units.weights, number)
    home = find_homes(scaled, probability, weights)
    residual = happened - probability
    shape = tuple(cells.shape[:-1])
    how: dict[str, Any] = {"weights": weights, "clusters": units.clusters, "seed": plan.seed}
    return scaled, make_cell_noise(home, residual, shape, **how)


def _worst_unit_bin(
    cells: Tensor,
    home: NDArray[np.int64],
    probability: NDArray[np.float64],
    happened: NDArray[np.bool_],
    plan: Plan,
    how: Mapping[str, Any],
) -> Interval:
    """Compute `worst_bin_interval` with intervals for weights and clusters in each bin."""
    full = [bin for bin in range(len(cells)) if float(cells[bin, 0]) > 0]
    level = 1 - (1 - plan.level) / len(full)
    nearest, farthest = [], []
    for bin in full:
        mine = home == bin
        options = {key: None if array is None else array[mine] for key, array in how.items()}
        rate = proportion_interval(happened[mine], level=level, **options)
        mean = float(np.average(probability[mine], weights=options["weights"]))
        ends = (abs(rate.low - mean), abs(rate.high - mean))
        nearest.append(0.0 if rate.low <= mean <= rate.high else min(ends))
        farthest.append(max(ends))
    return Interval(max(nearest), max(farthest), None)


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
    for name in BOUNDED_BY_GAP:
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
    measure: Measure,
    state: State | Tensor,
    plan: Plan,
    coupling: float = 1.0,
    noise: CellNoise | None = None,
) -> Interval:
    """Compute the interval of a calibration error, corrected for its upward bias.

    ``state`` is the measure's filled state, or its cells.
    """
    assert measure.cells is not None
    cells = state if isinstance(state, Tensor) else measure.cells(state)
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
        noise=noise,
        additive=measure.additive,
    )


def make_cell_states(
    measures: Iterable[Measure], size: int, *, sample: bool
) -> list[ClassCellState]:
    """Return the state that shows how class-wise cells vary together, if it fits in memory.

    Args:
        measures: The measures.
        size: The number of scores.
        sample: Whether some of the rows do, as they do for `estimate_coupling`.
    """
    states = (s for measure in measures if measure.kind == "calibration" for s in measure.build())
    numbers = [s.num_bins for s in states if isinstance(s, ClassBinState)]
    if not numbers or (size > MOST_CELLS and not sample):
        return []
    return [ClassCellState(numbers[0], max(1, size // SAMPLED_CELLS) if sample else 1)]


def estimate_coupling(
    cells: Sequence[ClassCellState], states: Mapping[str, Sequence[State]]
) -> float:
    """Return the coupling of the cells that the rows show, or 1 if no state was kept.

    Args:
        cells: The filled state of `make_cell_states`, or none.
        states: The filled states of the measures.
    """
    for state in (kept for several in states.values() for kept in several):
        if cells and isinstance(state, ClassBinState) and state.num_bins == cells[0].num_bins:
            return max(1.0, cells[0].coupling(state.total("totals")))
    return 1.0


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
    """Compute the intervals of means of rows and of ranked rows.

    Accuracy is a proportion and gets Wilson's interval: neither resamples nor influences show
    errors that were never observed. Other means get that of `mean_interval`, ranked risks that of
    their influences. A measure may have an interval of its own; what has none in closed form gets
    the percentile bootstrap's. A value that the rows do not vary, such as a risk without errors,
    has no interval, nor has a single row.
    """
    if num_rows < 2:
        return {}
    intervals: dict[str, Interval] = {}
    resampled: dict[str, State] = {}
    ends: dict[str, tuple[float, float]] = {}
    for name, state in states.items():
        measure = measures[name]
        closed = None
        if isinstance(state, RowState):
            rows = state.concatenate("rows").cpu().numpy()
            if state.quantity == "right":
                lows, highs = wilson(
                    np.array([rows.mean()]), np.array([float(num_rows)]), plan.level
                )
                intervals[name] = Interval(float(lows[0]), float(highs[0]), None)
                continue
            closed = mean_interval(rows, plan.level)
        elif measure.interval:
            intervals[name] = Interval(*measure.interval(state, plan.level), None)
            continue
        elif measure.group_influence is not None:
            closed = _ranked_interval(measure, state, plan)
        if closed is None:
            resampled[name] = state
        else:
            ends[name] = closed
    drawn: dict[str, list[NDArray[np.float64]]] = {name: [] for name in resampled}
    draws = limit_resamples(num_rows, plan.resamples) if resampled else 0
    for counts in resample_counts(num_rows, draws, plan.seed):
        for name, values in resample_measures(measures, resampled, counts).items():
            drawn[name].append(values)
    for name, blocks in drawn.items():
        ends[name] = percentile_interval(np.concatenate(blocks), plan.level)
    for name, (low, high) in ends.items():
        if high - low > 1e-12 * max(abs(low), abs(high)):  # less is rounding error
            intervals[name] = Interval(low, high, None)
    return intervals


def _ranked_interval(measure: Measure, state: State, plan: Plan) -> tuple[float, float] | None:
    """Compute the interval of a ranked risk in closed form; None if it has no such form.

    Risks are symmetric on the scale of their logarithm, AUROC on that of its log-odds.
    """
    assert measure.group_influence is not None
    try:
        influence_and_numbers = measure.group_influence(state)
    except UndefinedFigureError:
        return None
    if influence_and_numbers is None:
        return None
    influence, numbers = influence_and_numbers
    value = float(measure.compute(state))
    return grouped_interval(
        value, influence, numbers, level=plan.level, scale=SCALES.get(measure.name, "log")
    )


def half_samples(
    measures: Sequence[Measure],
    takes: Sequence[Callable[[NDArray[np.int64]], tuple[Any, ...]]],
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
        takes: For each set of predictions, a function from row indices to scores and labels, and
            weights where rows have them.
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
            batch: Any = take(rows)
            line[index] = [float(v) for v in compute_all(measures, [batch], **how)]
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
    view: str | None = None,
    pos_label: int | None = None,
    weights: Any = None,
    clusters: Any = None,
) -> Interval:
    """Compute the interval of one measure of arrays in memory.

    Calibration errors are corrected for their upward bias (see `inversion`). Means of rows and
    ranked risks have percentile bootstrap intervals. Any other measure is computed anew on
    random halves of the rows, whose spread is its standard error. With weights or clusters the
    interval is that of `evaluate`; a measure that has none then is bounded by infinity.

    Args:
        measure: The measure, as `calibrant.metrics.measure` makes it.
        preds: Logits or probabilities, as the measure takes them.
        target: The labels.
        from_logits: Whether ``preds`` are logits; False for probabilities.
        ignore_index: The label of rows to leave out.
        level: The confidence level.
        resamples: The number of resamples.
        seed: The seed of the resamples.
        view: ``"events"`` judges the probability of the positive class of two, ``"top"`` that of
            the predicted class; None means events wherever the measure's function does.
        pos_label: The positive class of two; class 1 if None.
        weights: A positive sampling or importance weight for each row (or image).
        clusters: The cluster of each row (or image), such as its patient.
    """
    plan = Plan(level, resamples, seed)
    how: dict[str, Any] = {"from_logits": from_logits, "ignore_index": ignore_index}
    if view is None and ("events" not in measure.views or measure.name in SELECTIVE):
        view = "top"
    how["positive"] = find_view(np.shape(preds), view, pos_label)
    named, name = {measure.name: measure}, measure.name
    if weights is not None or clusters is not None:
        return _unit_interval(measure, preds, target, plan, weights, clusters, how)
    if measure.kind == "calibration":
        (state,) = measure.build()
        cells = make_cell_states([measure], int(np.prod(preds.shape)), sample=True)
        compute_all([measure], [(preds, target)], extra=[state, *cells], **how)
        coupling = estimate_coupling(cells, {name: [state]})
        return calibration_interval(measure, state, plan, coupling)
    has_own_formula = measure.kind in ("selective", "other") and measure.name not in SELECTIVE
    if has_own_formula and measure.influence is not None:
        (state,) = measure.build()
        (value,) = compute_all([measure], [(preds, target)], extra=[state], **how)
        assert isinstance(state, RankState)
        closed = closed_interval(measure, float(value), state, Units(), plan)
        low, high = (closed.low, closed.high) if closed else (-np.inf, np.inf)
        return Interval(low, high, float(value))
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


def _unit_interval(
    measure: Measure,
    preds: Array,
    target: Array,
    plan: Plan,
    weights: Any,
    clusters: Any,
    how: Mapping[str, Any],
) -> Interval:
    """Compute the interval of one measure of rows with weights or clusters."""
    labels = as_numpy(target)
    weights, clusters = as_weights(weights, len(labels)), as_clusters(clusters, len(labels))
    codes = None if clusters is None else encode_clusters(clusters)
    ranks, states = RankState(), measure.build()
    named = {measure.name: measure}
    rows = make_row_states(named, classes=False)
    cells = make_cell_states([measure], int(np.prod(preds.shape)), sample=False)
    shared = share_states([ranks, *rows.values(), *cells, *states])
    batch = (preds, target, weights)
    (value,) = compute_all([measure], [batch], extra=list(shared.values()), **how)
    counted: Any = slice(None)
    if how["ignore_index"] is not None:
        counted = (labels != how["ignore_index"]).reshape(-1)
    size = int(np.prod(labels.shape[1:]))
    units = Units(
        *(None if array is None else np.repeat(array, size)[counted] for array in (weights, codes))
    )
    rank_state = shared[ranks.options()]
    cell_states: Any = [shared[cell.options()] for cell in cells]
    assert isinstance(rank_state, RankState)
    interval = unit_intervals(
        named,
        {measure.name: float(value)},
        {measure.name: [shared[state.options()] for state in states]},
        {name: shared[state.options()] for name, state in rows.items()},
        rank_state,
        plan,
        cell_states,
        units,
    ).get(measure.name, Interval(-np.inf, np.inf, None))
    estimate = float(value) if interval.estimate is None else interval.estimate
    return Interval(interval.low, interval.high, estimate)
