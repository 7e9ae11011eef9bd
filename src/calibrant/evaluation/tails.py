"""How many of many rows are wrong by chance, where each row has a chance of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_CELLS = 480  # shares of the variance: rows of a cell are as good as equally sure
_PER_LOG_ODDS, _SUREST = 8, 1e-9  # and lie within an eighth of log-odds of each other
_NORMAL = 2_500  # variance above which the normal limit, with its skewness, is as good
_REACH = 12  # standard deviations, beyond which lies less than rounding makes


def wrong_tails(chance: Floats, seen: int) -> tuple[float, float]:
    """P(W <= seen) and P(W >= seen) of W, the number of wrong rows (Poisson-binomial).

    ``chance`` is each row's of being wrong. The distribution is the inverse Fourier transform
    of Π_i (1 − q_i + q_i e^{it}) (Hong 2013, "On computing the distribution function for the
    Poisson binomial distribution"), taken modulo a number of rows that holds all of it but
    what rounding loses; above a variance of 2,500 it is the normal limit with the term of the
    skewness (Volkova 1996).
    """
    mean, variance = float(chance.sum()), float((chance * (1 - chance)).sum())
    if variance > _NORMAL:
        skewness = float((chance * (1 - chance) * (1 - 2 * chance)).sum()) / variance**1.5
        low = _normal((seen + 0.5 - mean) / variance**0.5, skewness)
        return low, _normal(-(seen - 0.5 - mean) / variance**0.5, -skewness)
    reach = int(np.ceil(_REACH * variance**0.5)) + 30
    size = 2 * reach + 1
    turn = np.exp(2j * np.pi * np.arange(size // 2 + 1) / size)
    count, cells = _cells(chance)
    factor = 1 + cells[:, None] * (turn[None] - 1)
    factor[np.abs(factor) < 1e-300] = 1e-300  # a row of chance 1/2 at half a turn
    moved = np.exp((count[:, None] * np.log(factor)).sum(0))
    mass = np.clip(np.fft.irfft(np.conj(moved), size), 0.0, None)
    # The distribution lies about its mean: places are numbers of rows modulo the size.
    number = round(mean) - reach + np.arange(size)
    mass = mass[number % size]
    return min(1.0, float(mass[number <= seen].sum())), min(1.0, float(mass[number >= seen].sum()))


def _normal(score: float, skewness: float) -> float:
    from scipy.special import ndtr

    density = float(np.exp(-(score**2) / 2)) / (2 * np.pi) ** 0.5
    return float(np.clip(ndtr(score) + skewness * (1 - score**2) * density / 6, 0.0, 1.0))


def _cells(chance: Floats) -> tuple[Floats, Floats]:
    """Rows of about the same chance gathered: how many, and their mean chance.

    A cell has at most its share of the variance, and chances whose log-odds differ by little: a
    few rows of even odds are not lost among many that are nearly certain.
    """
    if len(chance) <= _CELLS:
        return np.ones_like(chance), chance
    ordered = np.sort(chance)
    mass = np.cumsum(ordered * (1 - ordered))
    share = np.floor(_CELLS * mass / max(mass[-1], 1e-300))
    held = np.clip(ordered, _SUREST, 1 - _SUREST)
    place = np.floor(_PER_LOG_ODDS * np.log(held / (1 - held)))
    apart = (np.diff(share) != 0) | (np.diff(place) != 0)
    begin = np.concatenate(([0], np.flatnonzero(apart) + 1))
    count = np.diff(begin, append=len(chance)).astype(np.float64)
    return count, np.add.reduceat(ordered, begin) / count
