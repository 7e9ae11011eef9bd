"""A paired permutation test: how large a difference of calibration errors is by chance.

If neither of two sets of predictions is better, each row may as well be swapped between them.
The differences after random swaps are then the differences that chance makes, for every metric
and however biased its plug-in value is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.evaluation.bootstrap import (
    MOST_CELLS,
    limit_resamples,
    make_row_states,
    resample_measures,
    share_states,
)
from calibrant.evaluation.intervals import Plan
from calibrant.metrics.base import Measure, compute_all
from calibrant.predictions import Predictions

_MOST, _FEWER = 300, 100  # swaps; only their spread is needed
_MANY_CELLS = 2_000_000  # scores of a set, above which fewer swaps are made
_BLOCK_COUNTS = 1 << 20  # counts at a time


def permutation_spread(
    sides: Sequence[tuple[Predictions, dict[str, Any]]], measures: Mapping[str, Measure], plan: Plan
) -> dict[str, float]:
    """Return the standard deviation over swaps of each plug-in difference of calibration errors.

    Args:
        sides: The two sets of predictions, each with its options of `compute_all`.
        measures: The measures by name; only calibration errors are swapped.
        plan: The number of resamples, and the seed.
    """
    errors = {name: m for name, m in measures.items() if m.kind == "calibration"}
    cells = max(int(np.prod(predictions.scores.shape)) for predictions, _ in sides)
    empty = make_row_states(errors, classes=cells <= MOST_CELLS)
    if not empty:
        return {}
    shared = share_states(empty.values())
    rows = 0
    for predictions, options in sides:  # the second set's rows follow the first set's
        rows = int((np.asarray(predictions.labels) != options["ignore_index"]).sum())
        compute_all([], predictions.batches(), extra=list(shared.values()), **options)
    states = {name: shared[state.options()] for name, state in empty.items()}
    generator = np.random.default_rng(plan.seed)
    differences: dict[str, list[Any]] = {name: [] for name in states}
    most = _MOST if cells < _MANY_CELLS else _FEWER
    draws = min(limit_resamples(2 * rows, plan.resamples), most)
    step = max(1, min(draws, _BLOCK_COUNTS // (2 * rows)))
    for begin in range(0, draws, step):
        stay = generator.integers(0, 2, size=(min(step, draws - begin), rows), dtype=np.int64)
        a, b = (
            resample_measures(errors, states, np.concatenate(halves, axis=1))
            for halves in ((stay, 1 - stay), (1 - stay, stay))
        )
        for name, values in differences.items():
            values.append(b[name] - a[name])
    spreads = {name: float(np.concatenate(blocks).std()) for name, blocks in differences.items()}
    return {name: spread for name, spread in spreads.items() if spread > 0}


def apply_permutation_test(
    score: float, low: float, high: float, p_value: float, level: float
) -> tuple[float, float, float]:
    """Return (low, high, p-value) that show no difference if the permutation test shows none.

    The interval is then stretched to 0 and no further: its width comes from the bootstrap.

    Args:
        score: The plug-in difference over its spread under swaps.
        low: The lower end of the bootstrap interval.
        high: The upper end of the bootstrap interval.
        p_value: The bootstrap's p-value.
        level: The confidence level.
    """
    from scipy.special import ndtr

    p_value = max(p_value, float(2 * ndtr(-abs(score))))
    if p_value >= 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    return low, high, p_value
