"""Statistics that several rooms report: Holm's correction, and intervals of proportions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for their number by Holm's step-down rule (1979); None stays None.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    adjusted: list[float | None] = [None] * len(p_values)
    tested = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for rank, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        adjusted[place] = largest
    return adjusted


def wilson(rate: Floats, count: Floats, level: float) -> tuple[Floats, Floats]:
    """Compute Wilson's score interval of a proportion: sound for few rows, and near 0 and 1.

    Args:
        rate: The observed proportions.
        count: The number of rows behind each proportion; NaN bounds where it is 0.
        level: The confidence level, such as 0.95.
    """
    from scipy.special import ndtri

    z2 = float(ndtri(0.5 + level / 2)) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = (rate + z2 / (2 * count)) / (1 + z2 / count)
        half = np.sqrt(z2 * rate * (1 - rate) / count + (z2 / (2 * count)) ** 2) / (1 + z2 / count)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def korn_graubard(
    rate: float, variance: float, num_rows: float, degrees: float, level: float
) -> tuple[float, float]:
    """Compute Korn & Graubard's interval of a proportion of weighted or clustered rows (1998).

    The effective number of rows n* = p(1 − p)/variance is multiplied by (t_{n−1}/t_d)², the squared
    ratio of Student's quantiles with n − 1 and with the design's degrees of freedom, and is
    at most n. With x = n* p the ends are Clopper and Pearson's, quantiles of Beta(x, n* − x + 1)
    and of Beta(x + 1, n* − x) ("Confidence intervals for proportions with small expected number
    of positive counts estimated from survey data", Survey Methodology 24). Where the proportion
    is 0 or 1 the variance says nothing, and n* = n.

    Args:
        rate: The weighted proportion p.
        variance: The estimated variance of the proportion, clusters and weights included.
        num_rows: n, the number of rows.
        degrees: d, the degrees of freedom of the variance: clusters − 1.
        level: The confidence level, such as 0.95.

    >>> [round(end, 4) for end in korn_graubard(0.1, 0.0009, 100, 99, 0.95)]  # independent rows
    [0.049, 0.1762]
    """
    from scipy.special import betaincinv, stdtrit

    if num_rows <= 1 or degrees < 1:
        return 0.0, 1.0
    tail = (1 - level) / 2
    effective = num_rows
    if 0 < rate < 1 and variance > 0:
        ratio = float(stdtrit(num_rows - 1, 1 - tail) / stdtrit(degrees, 1 - tail))
        effective = min(num_rows, rate * (1 - rate) / variance * ratio**2)
    events, others = effective * rate, effective * (1 - rate)
    low = float(betaincinv(events, others + 1, tail)) if rate > 0 else 0.0
    high = float(betaincinv(events + 1, others, 1 - tail)) if rate < 1 else 1.0
    return low, high


def skewed_normal_tail(score: float, skewness: float) -> float:
    """Compute P(Z <= score) of the normal limit with its first skewness term (Volkova 1996).

    Args:
        score: The standardised value.
        skewness: The third central moment over the standard deviation cubed.
    """
    from scipy.special import ndtr

    density = float(np.exp(-(score**2) / 2)) / (2 * np.pi) ** 0.5
    return float(np.clip(ndtr(score) + skewness * (1 - score**2) * density / 6, 0.0, 1.0))
