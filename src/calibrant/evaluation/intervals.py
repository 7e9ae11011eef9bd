"""The interval of each figure, by the way its uncertainty arises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibrant.evaluation.bootstrap import affordable, percentiles, resample_counts, resampled
from calibrant.evaluation.inversion import Interval, invert
from calibrant.functional.blocks import Array
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.metrics.means import MeanState, RowState
from calibrant.metrics.ranked import RankState

# Errors that are simulated one set at a time take fewer of them.
_SLOW = {"sweep_ece": 100, "smooth_ece": 100}
_CELL_BUDGET = 150_000  # cells times draws


@dataclass(frozen=True)
class Plan:
    """How intervals are to be had."""

    level: float = 0.95
    resamples: int = 1000
    seed: int = 0


def calibration_interval(measure: Measure, state: State, plan: Plan) -> Interval:
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
        level=plan.level,
        resamples=max(100, min(draws, _CELL_BUDGET // number)),
        seed=plan.seed,
    )


def worst_bin_interval(cells: Tensor, level: float) -> Interval:
    """Simultaneous interval of the largest gap of a bin (Bonferroni over Wilson's intervals).

    Which bin is worst is mostly noise, so resampling it says little; every bin's gap is
    bounded instead, and with them the largest.
    """
    from calibrant.evaluation.value import wilson

    count, confidence, correct = cells[cells[:, 0] > 0].cpu().numpy().T
    mean = confidence / count
    low, high = wilson(correct / count, count, 1 - (1 - level) / len(count))
    inside = (low <= mean) & (mean <= high)
    nearest = np.where(inside, 0.0, np.minimum(np.abs(low - mean), np.abs(high - mean)))
    farthest = np.maximum(np.abs(low - mean), np.abs(high - mean))
    best = float(np.average(np.abs(correct / count - mean), weights=count))
    return Interval(float(nearest.max()), float(farthest.max()), max(best, float(nearest.max())))


def row_intervals(
    means: dict[str, Tensor],
    selective: dict[str, tuple[Measure, RankState]],
    plan: Plan,
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of means of rows and of functions of ranked rows, in one bootstrap."""
    if not means and not selective:
        return {}
    rows = {name: values.cpu().numpy() for name, values in means.items()}
    ranks = {name: state.in_order() for name, (_, state) in selective.items()}
    num_rows = len(next(iter(rows.values()))) if rows else len(next(iter(ranks.values()))[0])
    matrix = np.stack(list(rows.values()), axis=1) if rows else np.empty((num_rows, 0))
    drawn: dict[str, list[NDArray[np.float64]]] = {name: [] for name in (*rows, *ranks)}
    orders = {id(order): (order, score, loss) for order, score, loss in ranks.values()}
    for counts in resample_counts(num_rows, affordable(num_rows, plan.resamples), plan.seed):
        averages = counts.astype(np.float64) @ matrix / num_rows
        for column, name in enumerate(rows):
            drawn[name].append(averages[:, column])
        sets = {
            key: resampled(score, loss, counts[:, order.numpy()])
            for key, (order, score, loss) in orders.items()
        }
        for name, (order, _, _) in ranks.items():
            state = RankState.of(sets[id(order)])
            state.loss = selective[name][1].loss
            drawn[name].append(selective[name][0].compute(state).numpy())
    return {name: percentiles(np.concatenate(parts), plan.level) for name, parts in drawn.items()}


def recompute(
    measures: Sequence[Measure],
    takes: Sequence[Callable[[NDArray[np.int64]], tuple[Array, Array]]],
    num_rows: int,
    *,
    resamples: int,
    seed: int,
    options: Sequence[dict[str, Any]],
    tick: Callable[[], None] = lambda: None,
) -> NDArray[np.float64]:
    """(R, sets, measures): every measure computed anew on the same resampled rows of each set."""
    generator = np.random.default_rng(seed)
    values = np.empty((resamples, len(takes), len(measures)))
    for line in values:
        rows = np.sort(generator.integers(0, num_rows, size=num_rows))
        for index, (take, how) in enumerate(zip(takes, options, strict=True)):
            line[index] = [float(v) for v in compute_all(measures, [take(rows)], **how)]
        tick()
    return values


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
    rows and ranked risks have percentile intervals; anything else is computed anew on
    every resampled set.
    """
    plan = Plan(level, resamples, seed)
    how: dict[str, Any] = {"from_logits": from_logits, "ignore_index": ignore_index}
    states = measure.build()
    rows = [RowState(s.quantity) for s in states if isinstance(s, MeanState)]
    extra = [*states, *rows]
    (value,) = compute_all([measure], [(preds, target)], extra=extra, **how)
    if measure.kind == "calibration":
        return calibration_interval(measure, states[0], plan)
    estimate = float(value)
    if measure.kind == "mean":
        found = row_intervals({measure.name: rows[0].joined("rows")}, {}, plan)
    elif measure.kind == "selective" and isinstance(states[0], RankState):
        found = row_intervals({}, {measure.name: (measure, states[0])}, plan)
    else:
        draws = recompute(
            [measure],
            [lambda index: (preds[index], target[index])],
            len(preds),
            resamples=resamples,
            seed=seed,
            options=[how],
        )
        found = {measure.name: percentiles(draws[:, 0, 0], level)}
    return Interval(*found[measure.name], estimate)
