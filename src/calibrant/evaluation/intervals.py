"""The interval of each figure, by the way its uncertainty arises."""

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
    affordable,
    kept_states,
    percentiles,
    resample_counts,
    resampled_values,
)
from calibrant.evaluation.inversion import Interval, invert
from calibrant.functional.blocks import Array
from calibrant.functional.proportions import wilson
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import MeanState, RowState

# Errors that are costly to simulate take fewer draws.
_SLOW = {"sweep_ece": 100, "smooth_ece": 200}
_CELL_BUDGET = 150_000  # cells times draws


@dataclass(frozen=True)
class Plan:
    """How intervals are to be had."""

    level: float = 0.95
    resamples: int = 1000
    seed: int = 0


def calibration_interval(
    measure: Measure, state: State, plan: Plan, coupling: float = 1.0
) -> Interval:
    """Interval of a calibration error, corrected for its upward bias."""
    if measure.name == "mce":
        return worst_bin_interval(measure.cells(state), plan.level)  # type: ignore[misc]
    assert measure.cells is not None
    assert measure.error is not None
    cells = measure.cells(state)
    number = cells[..., 0].numel()
    draws = min(plan.resamples, _SLOW.get(measure.name, plan.resamples))
    return invert(
        cells,
        measure.error,
        population=measure.population,
        coupling=coupling if cells.ndim == 3 else 1.0,
        level=plan.level,
        resamples=max(100, min(draws, _CELL_BUDGET // number)),
        seed=plan.seed,
    )


def cell_states(measures: Iterable[Measure], size: int) -> list[ClassCellState]:
    """What tells how a class-wise error's cells vary together, where it fits in memory."""
    binned = (s for one in measures if one.kind == "calibration" for s in one.build())
    numbers = [s.num_bins for s in binned if isinstance(s, ClassBinState)]
    return [ClassCellState(numbers[0])] if numbers and size <= MOST_CELLS else []


def coupling_of(rows: Sequence[ClassCellState]) -> float:
    """The coupling that the rows show, or 1 where none were kept."""
    return max(1.0, rows[0].coupling()) if rows else 1.0


def worst_bin_interval(cells: Tensor, level: float) -> Interval:
    """Simultaneous interval of the largest gap of a bin (Bonferroni over Wilson's intervals).

    Which bin is worst is mostly noise, so resampling it says little; every bin's gap is
    bounded instead, and with them the largest.
    """
    count, confidence, correct = cells[cells[:, 0] > 0].cpu().numpy().T
    mean = confidence / count
    low, high = wilson(correct / count, count, 1 - (1 - level) / len(count))
    inside = (low <= mean) & (mean <= high)
    nearest = np.where(inside, 0.0, np.minimum(np.abs(low - mean), np.abs(high - mean)))
    farthest = np.maximum(np.abs(low - mean), np.abs(high - mean))
    return Interval(float(nearest.max()), float(farthest.max()), None)


def row_intervals(
    measures: Mapping[str, Measure], kept: Mapping[str, State], num_rows: int, plan: Plan
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of means of rows and of ranked rows, in one bootstrap.

    Accuracy is a proportion and has Wilson's interval: no resample of rows that are all
    right holds a wrong one. A measure may have a way of its own. What no resample changes, as
    a risk without errors, has none, and a single row has none.
    """
    if num_rows < 2:
        return {}
    proportions = {
        name: state.joined("rows").mean().item()
        for name, state in kept.items()
        if isinstance(state, RowState) and state.quantity == "correct"
    }
    own = {name: one.interval for name, one in measures.items() if name in kept and one.interval}
    known = {name: way(kept[name], plan.level) for name, way in own.items()}
    kept = {name: state for name, state in kept.items() if name not in {**proportions, **known}}
    drawn: dict[str, list[NDArray[np.float64]]] = {name: [] for name in kept}
    for counts in resample_counts(num_rows, affordable(num_rows, plan.resamples), plan.seed):
        for name, values in resampled_values(measures, kept, counts).items():
            drawn[name].append(values)
    found = {name: percentiles(np.concatenate(each), plan.level) for name, each in drawn.items()}
    found = {  # a hair's breadth is a rounding error
        name: (low, high)
        for name, (low, high) in found.items()
        if high - low > 1e-12 * max(abs(low), abs(high))
    }
    found.update(known)
    for name, rate in proportions.items():
        low, high = wilson(np.array([rate]), np.array([float(num_rows)]), plan.level)
        found[name] = (float(low[0]), float(high[0]))
    return found


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
    """(draws, sets, measures): measures computed anew on the same random half of each set.

    For what has no faster form. The spread over halves is the standard error of the whole
    (delete-half jackknife), and unlike a bootstrap it repeats no row: leave-one-out
    estimates are ruined by a row's own copy.
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
    """A value and the spread of its resampled copies, as an interval."""
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
    """The interval of one measure of arrays in memory.

    Calibration errors are corrected for their upward bias (see ``inversion``); means of
    rows and ranked risks have percentile bootstrap intervals; anything else is computed
    anew on random halves of the rows, whose spread is its standard error.
    """
    plan = Plan(level, resamples, seed)
    how: dict[str, Any] = {"from_logits": from_logits, "ignore_index": ignore_index}
    one, name = {measure.name: measure}, measure.name
    if measure.kind == "calibration":
        (state,) = measure.build()
        rows = cell_states([measure], int(np.prod(preds.shape)))
        compute_all([measure], [(preds, target)], extra=[state, *rows], **how)
        return calibration_interval(measure, state, plan, coupling_of(rows))
    kept = kept_states(one, classes=False)
    count = MeanState("correct") if measure.build()[0].num_labels is None else None
    extra = [*kept.values(), *([count] if count else [])]
    (value,) = compute_all([measure], [(preds, target)], extra=extra, **how)
    if len(preds) < 2:
        found = (-np.inf, np.inf)  # one row says nothing of its spread
    elif kept and count:
        known = row_intervals(one, kept, int(count.total("totals")[0]), plan)
        found = known.get(name, (-np.inf, np.inf))
    else:
        take = [lambda index: (preds[index], target[index])]
        halves = half_samples(
            [measure], take, len(preds), draws=min(200, resamples), seed=seed, options=[how]
        )
        found = normal_interval(float(value), halves[:, 0, 0], level)
    return Interval(*found, float(value))
