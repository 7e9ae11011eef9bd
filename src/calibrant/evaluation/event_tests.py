"""Tests of the probability of an event: its total, its slope, and its places along the scale."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import UndefinedFigureError
from calibrant.evaluation.clustered import (
    calibration_test_clustered,
    has_few_clusters,
    independent_p_value,
    slope_direction,
    slope_test,
    total_test,
)
from calibrant.evaluation.groups.poisson_binomial import error_count_tails
from calibrant.evaluation.intervals import Plan, Units, closed_interval
from calibrant.evaluation.verdict import Span, calibration_test
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.registry import measure as get_measure

Floats = NDArray[np.float64]

_FEWEST = 10  # events' variance under the hypothesis: with less the slope is not tested


class EventTests(NamedTuple):
    """p-values of "the event happens with the chance that is given"."""

    total: float  # NaN where clusters are too few
    slope: float | None  # None where too few events are expected, or all chances are equal
    local: float


def run_event_tests(
    ranks: RankState,
    probability: Floats,
    happened: NDArray[np.bool_],
    units: Units,
    plan: Plan,
) -> EventTests:
    """Test the total, the slope and the places.

    Args:
        ranks: The state that holds the rows.
        probability: The probability of the event in each row.
        happened: Whether it happened.
        units: Weights and clusters of the rows.
        plan: The number of resamples and their seed.
    """
    if has_few_clusters(units.clusters):
        return EventTests(float("nan"), None, float("nan"))
    sloped = float((probability * (1 - probability)).sum()) >= _FEWEST
    sloped = sloped and float(np.ptp(probability)) > 1e-9
    if not units.plain:
        rows = (probability, happened, units.weights, units.clusters)
        drawing: dict[str, Any] = {"resamples": plan.resamples, "seed": plan.seed}
        return EventTests(
            total_test(*rows, **drawing),
            slope_test(*rows, **drawing) if sloped else None,
            calibration_test_clustered(*rows, **drawing),
        )
    total = min(1.0, 2 * min(error_count_tails(np.clip(probability, 0, 1), int(happened.sum()))))
    slope = None
    if sloped:
        slope = independent_p_value(probability, happened, slope_direction(probability))
    local = calibration_test(ranks, resamples=plan.resamples, seed=plan.seed)
    return EventTests(total, slope, local)


def find_span(name: str, ranks: RankState, units: Units, plan: Plan) -> Span | None:
    """Compute a figure of events with its interval; None if either is not defined.

    Args:
        name: The name of the metric, such as ``oe_ratio``.
        ranks: The state that holds the rows.
        units: Weights and clusters of the rows.
        plan: The level of the interval.
    """
    measure = get_measure(name)
    try:
        value = float(measure.compute(ranks))
    except UndefinedFigureError:
        return None
    if not np.isfinite(value):
        return None
    interval = closed_interval(measure, value, ranks, units, plan)
    if interval is None or not np.isfinite(interval.low + interval.high):
        return None
    return Span(value, interval.low, interval.high)
