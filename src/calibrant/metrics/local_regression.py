"""Local regression (loess) of outcomes on probabilities, over cells of rows.

The curve at x is the weighted least-squares polynomial of the rows near x, with tricube weights
(1 − (d/h)³)³ of their distance d, where h is the distance within which the nearest ``span`` of
all rows lie (Cleveland & Devlin 1988). Rows are given as cells, so that the cost depends on the
number of cells and not of rows, and many simulated sets of the same cells are smoothed by a few
matrix products.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError

Floats: TypeAlias = NDArray[np.float64]

_TINY = 1e-8  # a spread below this, in units of h, does not determine a coefficient


def smooth_outcomes(
    x: Floats, count: Floats, outcomes: Floats, *, span: float = 0.75, degree: int = 2
) -> Floats:
    """Compute the loess curve at the place of every cell: (..., C), within [0, 1].

    A coefficient that the rows near a place do not determine (fewer distinct places than
    coefficients) is left out there. Where the nearest ``span`` of the rows are all at one place,
    the curve is the mean of that place.

    Args:
        x: (C,) places of the cells.
        count: (..., C) rows, or the sum of the weights, of each cell.
        outcomes: (..., C) sum of the outcomes of each cell.
        span: The share of the rows that a fit reaches, in (0, 1].
        degree: The degree of the polynomial: 0, 1 or 2.
    """
    if not 0 < span <= 1:
        raise InputError(f"span must lie in (0, 1], found {span!r}")
    if degree not in (0, 1, 2):
        raise InputError(f"degree must be 0, 1 or 2, found {degree!r}")
    reach = find_reach(x, count.reshape(-1, len(x)).sum(0), span)
    curve = np.empty_like(np.broadcast_to(outcomes, np.broadcast_shapes(count.shape)))
    step = max(1, (1 << 21) // len(x))  # places whose kernel fits in the cache
    for begin in range(0, len(x), step):
        part = slice(begin, begin + step)
        curve[..., part] = _fit_places(x, count, outcomes, x[part], reach[part], degree)
    return np.clip(curve, 0.0, 1.0)


def find_reach(x: Floats, count: Floats, span: float) -> Floats:
    """Return, for each place, the distance within which the nearest ``span`` of all rows lie."""
    order = np.argsort(x)
    place, total = x[order], np.concatenate(([0.0], np.cumsum(count[order])))
    wanted = span * total[-1] * (1 - 1e-12)
    low, high = np.zeros_like(x), np.full_like(x, place[-1] - place[0])
    # Bisection on the distance; the answer is the distance of some cell, found at the end.
    for _ in range(64):
        middle = 0.5 * (low + high)
        left = np.searchsorted(place, x - middle, side="left")
        right = np.searchsorted(place, x + middle, side="right")
        enough = total[right] - total[left] >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return high


def _fit_places(
    x: Floats, count: Floats, outcomes: Floats, places: Floats, reach: Floats, degree: int
) -> Floats:
    """Fit the polynomial at some places and return its values there, (..., places)."""
    away = x[:, None] - places[None, :]
    at_once = reach <= 1e-15  # the nearest rows are all at the place itself
    u = away / np.where(at_once, 1.0, reach)
    kernel = np.maximum(1.0 - np.abs(u * u * u), 0.0)
    kernel *= kernel * kernel
    kernel = np.where(at_once, np.abs(away) <= 1e-15, kernel)
    weight = count @ kernel
    mean = (outcomes @ kernel) / _positive(weight)
    if degree == 0:
        return mean
    power = kernel * u
    first = (count @ power) / _positive(weight)
    cross = (outcomes @ power) / _positive(weight) - first * mean
    power = power * u
    second = (count @ power) / _positive(weight)
    spread = second - first**2
    linear = spread > _TINY
    slope = np.where(linear, cross / np.where(linear, spread, 1.0), 0.0)
    curve = mean - slope * first
    if degree == 1:
        return curve
    # The quadratic part orthogonal to the linear one: q(u) = u² − E u² − tilt (u − E u).
    bent = (outcomes @ power) / _positive(weight)
    power = power * u
    skew = (count @ power) / _positive(weight) - first * second
    power = power * u
    tilt = np.where(linear, skew / np.where(linear, spread, 1.0), 0.0)
    norm = (count @ power) / _positive(weight) - second**2 - tilt * skew
    determined = linear & (norm > _TINY)
    bend = (bent - second * mean - tilt * cross) / np.where(determined, norm, 1.0)
    return curve + np.where(determined, bend * (tilt * first - second), 0.0)


def _positive(weight: Floats) -> Floats:
    return np.where(weight > 0, weight, 1.0)
