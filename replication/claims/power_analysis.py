"""Power of paired tests, correlations and shares: what a number of runs can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from calibrant.bench.tables.statistics import FEWEST, LEVEL, mean_of
from calibrant.functional.statistics import wilson as wilson_interval

POWER = 0.8
MOST = 1000  # seeds: beyond this an effect is called out of reach


def power_of(effect: float, deviation: float, count: int, *, level: float = LEVEL) -> float:
    """The chance that the two-sided paired t-test sees ``effect``, by the noncentral t."""
    from scipy.stats import nct, t

    if count < 2:
        return 0.0
    if deviation == 0:
        return 1.0 if effect else level
    shift = abs(effect) / deviation * math.sqrt(count)
    edge = float(t.ppf(1 - level / 2, count - 1))
    # From here on the far tail is below 1e-8, and scipy's series for it ends in NaN at times.
    far = float(nct.cdf(-edge, count - 1, shift)) if shift < 4.5 else 0.0
    return float(nct.sf(edge, count - 1, min(shift, 40.0))) + far


def detectable(
    deviation: float, count: int, *, power: float = POWER, level: float = LEVEL
) -> float | None:
    """The smallest effect that ``count`` pairs of this spread show with the given power.

    None where so few pairs are not tested.
    """
    if count < FEWEST:
        return None
    return _shift(count, power, level) * deviation / math.sqrt(count)


@lru_cache(maxsize=1024)
def _shift(count: int, power: float, level: float) -> float:
    """The effect, in standard errors, that so many pairs show with this power."""
    from scipy.optimize import brentq

    def lacking(shift: float) -> float:
        return power_of(shift, math.sqrt(count), count, level=level) - power

    return float(brentq(lacking, 1e-9, 40.0))


def seeds_needed(
    effect: float, deviation: float, *, power: float = POWER, level: float = LEVEL
) -> int | None:
    """The fewest pairs that show ``effect`` with the given power; None when over 1,000."""
    if deviation == 0:
        return FEWEST if effect else None
    low, high = FEWEST - 1, FEWEST
    while power_of(effect, deviation, high, level=level) < power:
        low, high = high, 2 * high
        if low > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        enough = power_of(effect, deviation, middle, level=level) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high if high <= MOST else None


def correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Fisher's z of Pearson's correlation, atanh r, and its variance 1/(n−3).

    Fewer than four points, or one value throughout, have none: NaN and infinity.
    """
    r = _pearson(first, second)
    if len(first) < 4 or not math.isfinite(r):
        return math.nan, math.inf
    return _fisher(r), 1 / (len(first) - 3)


def correlation_difference(
    first: Sequence[float], second: Sequence[float], common: Sequence[float]
) -> tuple[float, float]:
    """How much closer ``first`` goes with ``common`` than ``second`` does: z₁ − z₂, variance.

    The correlations share ``common`` and the rows, so the variance is that of Meng,
    Rosenthal & Rubin (1992, "Comparing correlated correlation coefficients"):
    2 (1 − r₁₂) h / (n−3), h = (1 − f r̄²)/(1 − r̄²), f = min(1, (1 − r₁₂)/(2 (1 − r̄²))).
    """
    one, two = _pearson(first, common), _pearson(second, common)
    between = _pearson(first, second)
    if len(common) < 4 or not all(map(math.isfinite, (one, two, between))):
        return math.nan, math.inf
    square = min((one**2 + two**2) / 2, 1 - 1e-12)
    share = min(1.0, (1 - between) / (2 * (1 - square)))
    factor = (1 - share * square) / (1 - square)
    return _fisher(one) - _fisher(two), 2 * max(1 - between, 1e-12) * factor / (len(common) - 3)


def combined(estimates: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of estimates weighted by 1/variance, and its variance."""
    weights = [1 / variance for _, variance in estimates if math.isfinite(variance)]
    if not weights:
        return math.nan, math.inf
    values = [value for value, variance in estimates if math.isfinite(variance)]
    total = math.fsum(weights)
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total, 1 / total


def wilson(wins: int, count: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    low, high = wilson_interval(np.array(wins / count), np.array(float(count)), 1 - LEVEL)
    return float(low), float(high)


@lru_cache(maxsize=256)
def detectable_share(count: int, *, power: float = POWER) -> float | None:
    """The share that so many comparisons show to be above a half, 4 times of 5; None: too few.

    >>> round(detectable_share(20), 2)
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
    """The standard normal's quantile."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)
