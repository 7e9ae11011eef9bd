"""Two sets of predictions whose rows are swapped at random: what a difference is by chance.

Were neither set better, a row of one might as well stand in the other: the differences after
swaps are those that chance makes, whatever the metric, however biased its plug-in value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant.evaluation.bootstrap import MOST_CELLS, affordable, kept_states, resampled_values
from calibrant.evaluation.intervals import Plan
from calibrant.metrics.base import Measure, State, compute_all
from calibrant.predictions import Predictions

_MOST, _FEWER = 300, 100  # swaps, whose spread is what is asked for
_MANY_CELLS = 2_000_000  # scores of a set, above which fewer swaps are made
_ELEMENTS = 1 << 20  # counts at a time


def swapped_spread(
    sides: Sequence[tuple[Predictions, dict[str, Any]]], measures: Mapping[str, Measure], plan: Plan
) -> dict[str, float]:
    """The standard deviation of the plug-in difference of calibration errors over swaps."""
    errors = {name: one for name, one in measures.items() if one.kind == "calibration"}
    cells = max(int(np.prod(predictions.scores.shape)) for predictions, _ in sides)
    kept = kept_states(errors, classes=cells <= MOST_CELLS)
    if not kept:
        return {}
    shared: dict[tuple[Any, ...], State] = {}
    for state in kept.values():
        shared.setdefault(state.options(), state)
    rows = 0
    for predictions, options in sides:  # the rows of the second after those of the first
        counted = np.asarray(predictions.labels) != options["ignore_index"]
        rows = int(counted.sum())
        compute_all([], predictions.batches(), extra=list(shared.values()), **options)
    states = {name: shared[state.options()] for name, state in kept.items()}
    generator = np.random.default_rng(plan.seed)
    found: dict[str, list[Any]] = {name: [] for name in states}
    draws = min(affordable(2 * rows, plan.resamples), _MOST if cells < _MANY_CELLS else _FEWER)
    step = max(1, min(draws, _ELEMENTS // (2 * rows)))
    for begin in range(0, draws, step):
        stay = generator.integers(0, 2, size=(min(step, draws - begin), rows), dtype=np.int64)
        one, two = (
            resampled_values(errors, states, np.concatenate(halves, axis=1))
            for halves in ((stay, 1 - stay), (1 - stay, stay))
        )
        for name, values in found.items():
            values.append(two[name] - one[name])
    spreads = {name: float(np.concatenate(each).std()) for name, each in found.items()}
    return {name: spread for name, spread in spreads.items() if spread > 0}


def at_least(
    score: float, low: float, high: float, p_value: float, level: float
) -> tuple[float, float, float]:
    """(low, high, p-value) that show no difference where a score from swaps shows none.

    The interval is then stretched to 0 and no further: how uncertain the difference is, the
    resampled rows tell.
    """
    from scipy.special import ndtr

    p_value = max(p_value, float(2 * ndtr(-abs(score))))
    if p_value >= 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    return low, high, p_value
