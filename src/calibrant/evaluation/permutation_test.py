"""A paired permutation test: how large a difference of calibration errors is by chance.

If neither of two sets of predictions is better, each row may as well be swapped between them.
The differences after random swaps are then the differences that chance makes, for every metric
and however biased its plug-in value is. Rows of a cluster are swapped together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.evaluation.bootstrap import (
    MOST_CELLS,
    Counts,
    limit_resamples,
    make_row_states,
    resample_measures,
    share_states,
)
from calibrant.evaluation.clustered import check_weights
from calibrant.evaluation.intervals import Plan, Units
from calibrant.metrics.base import Measure, compute_all
from calibrant.predictions import Predictions

_MOST, _FEWER = 300, 100  # swaps; only their spread is needed
_MANY_CELLS = 2_000_000  # scores of a set, above which fewer swaps are made
_BLOCK_COUNTS = 1 << 20  # counts at a time


def permutation_spread(
    sides: Sequence[tuple[Predictions, dict[str, Any]]],
    measures: Mapping[str, Measure],
    plan: Plan,
    units: Units | None = None,
) -> dict[str, float]:
    """Return the standard deviation over swaps of each plug-in difference of calibration errors.

    Args:
        sides: The two sets of predictions, each with its options of `compute_all`.
        measures: The measures by name; only calibration errors are swapped.
        plan: The number of resamples, and the seed.
        units: The weights and clusters of the rows; None if rows are plain.
    """
    errors = {name: m for name, m in measures.items() if m.kind == "calibration"}
    cells = max(int(np.prod(predictions.scores.shape)) for predictions, _ in sides)
    empty = make_row_states(errors, classes=cells <= MOST_CELLS)
    if not empty:
        return {}
    shared = share_states(empty.values())
    rows = 0
    for predictions, options in sides:  # the second set's rows follow the first set's
        rows = int((np.asarray(predictions.known_labels) != options["ignore_index"]).sum())
        compute_all([], predictions.batches(), extra=list(shared.values()), **options)
    swapped = _Swaps(rows, units or Units())
    states = {name: shared[state.options()] for name, state in empty.items()}
    generator = np.random.default_rng(plan.seed)
    differences: dict[str, list[Any]] = {name: [] for name in states}
    most = _MOST if cells < _MANY_CELLS else _FEWER
    draws = min(limit_resamples(2 * rows, plan.resamples), most)
    step = max(1, min(draws, _BLOCK_COUNTS // (2 * rows)))
    for begin in range(0, draws, step):
        stay, move = swapped.draw(generator, min(step, draws - begin))
        a, b = (
            resample_measures(errors, states, _join(*halves))
            for halves in ((stay, move), (move, stay))
        )
        for name, values in differences.items():
            values.append(b[name] - a[name])
    spreads = {name: float(np.concatenate(blocks).std()) for name, blocks in differences.items()}
    return {name: spread for name, spread in spreads.items() if spread > 0}


def _join(first: Counts, second: Counts) -> Counts:
    halves: list[Any] = [first, second]
    joined: Counts = np.concatenate(halves, axis=1)
    return joined


class _Swaps:
    """Draw which rows stay in their set and which move to the other: whole clusters."""

    def __init__(self, num_rows: int, units: Units) -> None:
        self.codes = units.clusters
        self.count = num_rows if units.clusters is None else int(units.clusters.max()) + 1
        self.weights = None
        if units.weights is not None:
            self.weights = check_weights(units.weights, num_rows)

    def draw(self, generator: np.random.Generator, lines: int) -> tuple[Counts, Counts]:
        """Return the weights of the rows that stay, and of those that move, one line a swap."""
        stay = generator.integers(0, 2, size=(lines, self.count), dtype=np.int64)
        if self.codes is not None:
            stay = stay[:, self.codes]
        if self.weights is None:
            return stay, 1 - stay
        return stay * self.weights, (1 - stay) * self.weights


def apply_permutation_test(
    score: float, low: float, high: float, p_value: float, level: float, degrees: float = np.inf
) -> tuple[float, float, float]:
    """Return (low, high, p-value) that show no difference if the permutation test shows none.

    The interval is then stretched to 0 and no further: its width comes from the bootstrap.

    Args:
        score: The plug-in difference over its spread under swaps.
        low: The lower end of the bootstrap interval.
        high: The upper end of the bootstrap interval.
        p_value: The bootstrap's p-value.
        level: The confidence level.
        degrees: The degrees of freedom of the spread.
    """
    return stretch_interval(low, high, max(p_value, two_sided(score, degrees)), level)


def stretch_interval(
    low: float, high: float, p_value: float, level: float
) -> tuple[float, float, float]:
    """Return (low, high, p-value) with the interval stretched to 0 if the p-value is large."""
    if p_value >= 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    return low, high, p_value


def two_sided(score: float, degrees: float = np.inf) -> float:
    """Return the two-sided p-value of a score: normal, or Student's t of these degrees."""
    from scipy.special import ndtr, stdtr

    if np.isinf(degrees):
        return float(2 * ndtr(-abs(score)))
    return float(2 * stdtr(degrees, -abs(score)))
