"""Compute the power of paired tests, correlations and shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from calibrant.bench.tables.statistics import FEWEST, LEVEL, mean_of
from calibrant.functional.statistics import wilson as wilson_interval

POWER = 0.8
MOST = 1000  # seeds; an effect that needs more is out of reach


def compute_power(effect: float, deviation: float, count: int, *, level: float = LEVEL) -> float:
    """Compute the power of the two-sided paired t-test for ``effect``, by the noncentral t."""
    from scipy.stats import nct, t

    if count < 2:
        return 0.0
    if deviation == 0:
        return 1.0 if effect else level
    shift = abs(effect) / deviation * math.sqrt(count)
    edge = float(t.ppf(1 - level / 2, count - 1))
    # Above 4.5 the far tail is below 1e-8, and scipy's series sometimes returns NaN.
    far = float(nct.cdf(-edge, count - 1, shift)) if shift < 4.5 else 0.0
    return float(nct.sf(edge, count - 1, min(shift, 40.0))) + far


def compute_detectable(
    deviation: float, count: int, *, power: float = POWER, level: float = LEVEL
) -> float | None:
    """Compute the smallest effect that ``count`` pairs detect with the given power.

    Return None if there are too few pairs for a test.
    """
    if count < FEWEST:
        return None
    return _solve_shift(count, power, level) * deviation / math.sqrt(count)


@lru_cache(maxsize=1024)
def _solve_shift(count: int, power: float, level: float) -> float:
    """Solve for the effect, in standard errors, that ``count`` pairs detect with this power."""
    from scipy.optimize import brentq

    def lacking(shift: float) -> float:
        return compute_power(shift, math.sqrt(count), count, level=level) - power

    return float(brentq(lacking, 1e-9, 40.0))


def count_seeds_needed(
    effect: float, deviation: float, *, power: float = POWER, level: float = LEVEL
) -> int | None:
    """Find the fewest pairs that detect ``effect`` with the given power; None if over 1,000."""
    if deviation == 0:
        return FEWEST if effect else None
    low, high = FEWEST - 1, FEWEST
    while compute_power(effect, deviation, high, level=level) < power:
        low, high = high, 2 * high
        if low > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = compute_power(effect, deviation, middle, level=level) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high if high <= MOST else None


def compute_fisher_z(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Compute Fisher's z of Pearson's correlation, atanh r, and its variance 1/(n−3).

    Return NaN and infinity for fewer than four points or a constant column.
    """
    r = _pearson(first, second)
    if len(first) < 4 or not math.isfinite(r):
        return math.nan, math.inf
    return _fisher(r), 1 / (len(first) - 3)


def compare_correlations(
    first: Sequence[float], second: Sequence[float], common: Sequence[float]
) -> tuple[float, float]:
    """Compare the correlations of ``first`` and ``second`` with ``common``: z₁ − z₂, variance.

    Both correlations use ``common`` and the same rows, so the variance follows Meng, Rosenthal &
    Rubin (1992, "Comparing correlated correlation coefficients"):
    2 (1 − r₁₂) h / (n−3), h = (1 − f r̄²)/(1 − r̄²), f = min(1, (1 − r₁₂)/(2 (1 − r̄²))).
    """
    first_r, second_r = _pearson(first, common), _pearson(second, common)
    between = _pearson(first, second)
    if len(common) < 4 or not all(map(math.isfinite, (first_r, second_r, between))):
        return math.nan, math.inf
    square = min((first_r**2 + second_r**2) / 2, 1 - 1e-12)
    share = min(1.0, (1 - between) / (2 * (1 - square)))
    factor = (1 - share * square) / (1 - square)
    return _fisher(first_r) - _fisher(second_r), 2 * max(1 - between, 1e-12) * factor / (
        len(common) - 3
    )


def combine_estimates(estimates: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Average estimates with weights 1/variance; return the mean and its variance."""
    weights = [1 / variance for _, variance in estimates if math.isfinite(variance)]
    if not weights:
        return math.nan, math.inf
    values = [value for value, variance in estimates if math.isfinite(variance)]
    total = math.fsum(weights)
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total, 1 / total


def wilson(wins: int, count: int) -> tuple[float, float]:
    """Compute Wilson's 95% interval of a share."""
    low, high = wilson_interval(np.array(wins / count), np.array(float(count)), 1 - LEVEL)
    return float(low), float(high)


@lru_cache(maxsize=256)
def compute_detectable_share(count: int, *, power: float = POWER) -> float | None:
    """Compute the share that ``count`` comparisons find above half 4 times out of 5.

    Return None if there are too few comparisons.

    >>> round(compute_detectable_share(20), 2)
    0.8
    """
    from scipy.optimize import brentq
    from scipy.stats import binom

    enough = next((wins for wins in range(count + 1) if wilson(wins, count)[0] > 0.5), None)
    if enough is None:
        return None
    return float(brentq(lambda share: binom.sf(enough - 1, count, share) - power, 0.5, 1.0))


def _pearson(first: Sequence[float], second: Sequence[float]) -> float:
    if len(first) < 2:
        return math.nan
    mean = mean_of(first).mean, mean_of(second).mean
    pairs = list(zip(first, second, strict=True))
    product = math.fsum((a - mean[0]) * (b - mean[1]) for a, b in pairs)
    squares = [math.fsum((pair[side] - mean[side]) ** 2 for pair in pairs) for side in (0, 1)]
    return product / math.sqrt(squares[0] * squares[1]) if min(squares) > 0 else math.nan


def _fisher(r: float) -> float:
    return math.atanh(min(max(r, -1 + 1e-12), 1 - 1e-12)) if math.isfinite(r) else math.nan


def normal_quantile(share: float) -> float:
    """Compute the standard normal quantile."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)
