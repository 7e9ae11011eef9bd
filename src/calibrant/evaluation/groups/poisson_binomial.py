"""The exact distribution of the number of wrong rows if each row has its own chance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrant.functional.statistics import skewed_normal_tail

Floats = NDArray[np.float64]

_CELLS = 480  # a cell has at most this share of the variance, so its rows are nearly equal
_PER_LOG_ODDS, _SUREST = 8, 1e-9  # and lie within an eighth of log-odds of each other
_NORMAL = 2_500  # variance above which the normal limit with its skewness is as accurate
_REACH = 12  # standard deviations; the mass beyond is less than rounding error


def error_count_tails(chance: Floats, observed: int) -> tuple[float, float]:
    """Return P(W <= observed) and P(W >= observed), W the number of wrong rows.

    W is Poisson-binomial. Its distribution is the inverse Fourier transform of
    Π_i (1 − q_i + q_i e^{it}) (Hong 2013, "On computing the distribution function for the
    Poisson binomial distribution"), modulo a number of rows that holds all of it up to rounding.
    Above a variance of 2,500 it is the normal limit with the skewness term (Volkova 1996).

    Args:
        chance: q, the chance of each row to be wrong.
        observed: The number of wrong rows observed.
    """
    mean, variance = float(chance.sum()), float((chance * (1 - chance)).sum())
    if variance > _NORMAL:
        skewness = float((chance * (1 - chance) * (1 - 2 * chance)).sum()) / variance**1.5
        low = skewed_normal_tail((observed + 0.5 - mean) / variance**0.5, skewness)
        return low, skewed_normal_tail(-(observed - 0.5 - mean) / variance**0.5, -skewness)
    reach = int(np.ceil(_REACH * variance**0.5)) + 30
    size = 2 * reach + 1
    turn = np.exp(2j * np.pi * np.arange(size // 2 + 1) / size)
    count, cells = _group_chances(chance)
    factor = 1 + cells[:, None] * (turn[None] - 1)
    factor[np.abs(factor) < 1e-300] = 1e-300  # a row of chance 1/2 at half a turn
    moved = np.exp((count[:, None] * np.log(factor)).sum(0))
    mass = np.clip(np.fft.irfft(np.conj(moved), size), 0.0, None)
    # Indices are numbers of rows modulo the size; centre them at the mean.
    number = round(mean) - reach + np.arange(size)
    mass = mass[number % size]
    return min(1.0, float(mass[number <= observed].sum())), min(
        1.0, float(mass[number >= observed].sum())
    )


def _group_chances(chance: Floats) -> tuple[Floats, Floats]:
    """Group rows of nearly equal chance into cells: return their sizes and mean chances.

    A cell has a limited share of the variance, and its chances have similar log-odds, so that
    a few rows of even odds are not lost among many that are nearly certain.
    """
    if len(chance) <= _CELLS:
        return np.ones_like(chance), chance
    ordered = np.sort(chance)
    mass = np.cumsum(ordered * (1 - ordered))
    share = np.floor(_CELLS * mass / max(mass[-1], 1e-300))
    clipped = np.clip(ordered, _SUREST, 1 - _SUREST)
    place = np.floor(_PER_LOG_ODDS * np.log(clipped / (1 - clipped)))
    apart = (np.diff(share) != 0) | (np.diff(place) != 0)
    begin = np.concatenate(([0], np.flatnonzero(apart) + 1))
    count = np.diff(begin, append=len(chance)).astype(np.float64)
    return count, np.add.reduceat(ordered, begin) / count
