"""Tests of the judged probability from sums of cells."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.evaluation.clustered import (
    comonotone_p_value,
    normal_p_value,
    sign_flip_test,
    slope_direction,
    smallest_p_value,
)
from calibrant.evaluation.event_tests import EventTests
from calibrant.evaluation.groups.poisson_binomial import error_count_tails
from calibrant.evaluation.intervals import Plan
from calibrant.evaluation.shards.scores import ScoreTable
from calibrant.evaluation.verdict import calibration_test
from calibrant.functional.statistics import skewed_normal_tail
from calibrant.metrics.rank_state import RankState

Floats: TypeAlias = NDArray[np.float64]

_FEWEST = 10  # events' variance under the hypothesis: with less the slope is not tested
_SPREAD_OUT = 10_000_000  # rows that are written out for the exact law of their total
_NORMAL = 2500.0  # variance of the number of events above which its law is the normal limit
_BINS = 15


def run_plain_tests(table: ScoreTable, ranks: RankState, plan: Plan) -> EventTests:
    """Test the total, the slope and the places of independent events that count the same.

    As `event_tests.run_event_tests`, with the rows of each score together.

    Args:
        table: The rows of each score.
        ranks: The same as ranks.
        plan: The number of resamples and their seed.
    """
    chance, number = table.score.clip(0.0, 1.0), table.count.sum(1)
    observed = float(table.count[:, 0].sum())
    spread = number * chance * (1 - chance)
    mean, variance = float(number @ chance), float(spread.sum())
    if variance > _NORMAL or number.sum() > _SPREAD_OUT:
        third = float((spread * (1 - 2 * chance)).sum())
        skewness, root = third / max(variance, 1e-300) ** 1.5, max(variance, 1e-300) ** 0.5
        tails = (
            skewed_normal_tail((observed + 0.5 - mean) / root, skewness),
            skewed_normal_tail(-(observed - 0.5 - mean) / root, -skewness),
        )
    else:
        tails = error_count_tails(np.repeat(chance, number.astype(np.int64)), round(observed))
    slope = None
    if variance >= _FEWEST and float(np.ptp(chance)) > 1e-9:
        direction = slope_direction(chance, number)
        total = float((direction * (table.count[:, 0] - number * chance)).sum())
        slope = normal_p_value(
            total,
            float((direction**2 * spread).sum()),
            float((direction**3 * spread * (1 - 2 * chance)).sum()),
        )
    local = calibration_test(ranks, resamples=plan.resamples, seed=plan.seed)
    return EventTests(min(1.0, 2 * min(tails)), slope, local)


def run_unit_tests(groups: Floats, plan: Plan, *, few: bool, clustered: bool) -> EventTests:
    """Test the total, the slope and the places of rows with weights or clusters.

    As the tests of `clustered`, with random groups of clusters as the units: p-values are the
    largest of those of flipping the signs of whole groups, of independent rows, and of rows that
    are equally correlated within groups.

    Args:
        groups: (G, C, 5) rows, Σ w, Σ w p, Σ w y and Σ w² of each group and cell.
        plan: The number of resamples and their seed.
        few: Whether there are too few clusters to test anything.
        clustered: Whether rows have clusters.
    """
    if few or len(groups) < 2:
        return EventTests(float("nan"), None, float("nan"))
    whole = groups.sum(0)
    rows, weight, claimed, events, squares = whole.T
    chance = np.clip(claimed / weight, 0.0, 1.0)
    spread = chance * (1 - chance)
    scale = rows.sum() / weight.sum()  # weights have mean 1
    parts = scale * (groups[..., 3] - groups[..., 2])
    heavy = scale**2 * squares
    # Σ w³, as if the weights of a cell were Σ w² / Σ w.
    third = heavy * (scale * squares / weight)
    expected = float(claimed.sum() / weight.sum())
    happened = float(np.clip(events.sum() / weight.sum(), 1 / rows.sum(), 1 - 1 / rows.sum()))
    inflation = max(1.0, expected * (1 - expected) / (happened * (1 - happened))) ** 0.5

    def bound_total() -> float:
        """Return the p-value of the total if rows of a group shared their luck, a valid one."""
        outcomes = scale * np.stack((groups[..., 3], groups[..., 1] - groups[..., 3]), axis=-1)
        some = outcomes.reshape(-1) > 1e-12 * outcomes.sum()
        happened = np.broadcast_to(np.array([True, False]), outcomes.shape).reshape(-1)
        home = np.repeat(np.arange(len(groups)), outcomes[0].size)
        claimed = np.broadcast_to(chance[:, None], outcomes.shape).reshape(-1)
        return comonotone_p_value(
            claimed[some],
            happened[some],
            outcomes.reshape(-1)[some],
            home[some],
            draws=plan.resamples,
            seed=plan.seed,
        )

    def test_sum(direction: Floats, *, is_total: bool = False) -> float:
        total = float((parts * direction).sum())
        alone = float((direction**2 * spread * heavy).sum())
        skewed = float((direction**3 * spread * (1 - 2 * chance) * third).sum())
        p_value = normal_p_value(total, alone, skewed)
        if p_value == 1.0:
            return 1.0
        if clustered:
            root = scale * groups[..., 1] * np.sqrt(spread)
            possible = float((root.sum(1) ** 2).sum() - (spread * heavy).sum())
            excess = float((parts.sum(1) ** 2).sum())
            excess -= float((heavy * spread).sum())
            correlation = min(max(excess / possible, 0.0), 1.0) if possible > 1e-12 else 0.0
            together = float(((root * direction).sum(1) ** 2).sum())
            like = (1 - correlation) * alone + correlation * together
            p_value = max(p_value, normal_p_value(total, like, skewed))
        flipped = sign_flip_test(
            (parts * direction).sum(1),
            lambda sums: np.abs(sums[:, 0]),
            draws=plan.resamples,
            seed=plan.seed,
            inflation=inflation,
        )
        if is_total and clustered and inflation > 1 and flipped > p_value:
            flipped = min(flipped, bound_total())
        return max(p_value, flipped)

    slope = None
    if float((rows * spread).sum()) >= _FEWEST and float(np.ptp(chance)) > 1e-9:
        slope = test_sum(slope_direction(chance, weight))
    number = len(chance)
    mass = np.cumsum(weight) - 0.5 * weight
    bins = np.minimum((mass / weight.sum() * min(_BINS, number)).astype(np.int64), _BINS - 1)
    begin = np.flatnonzero(np.concatenate(([True], np.diff(bins) > 0)))
    bin_mass = scale * np.add.reduceat(weight, begin)

    def statistics(sums: Floats) -> Floats:
        reach = np.abs(np.cumsum(sums, axis=1)).max(1)
        deviations = (np.add.reduceat(sums, begin, axis=1) ** 2 / bin_mass).sum(1)
        return np.stack((reach, deviations), axis=1)

    flipped = sign_flip_test(
        parts, statistics, draws=plan.resamples, seed=plan.seed, inflation=inflation
    )
    if clustered and inflation > 1:
        flipped = min(flipped, bound_total())
    generator = np.random.default_rng(plan.seed)
    drawn = generator.standard_normal((plan.resamples, number)) * np.sqrt(spread * heavy)
    sums = np.concatenate((parts.sum(0)[None], drawn))
    local = max(flipped, smallest_p_value(statistics(sums)))
    return EventTests(test_sum(np.ones(number), is_total=True), slope, local)
