"""An honest interval for the share of rows that can be accepted at a risk.

The largest share whose *observed* risk fits is chosen on the same rows that it is judged by, and
of many shares the luckiest is taken: it is too large on average, and a resample chooses, and is
lucky, again. So resampling is not used. A share is held possible unless the rows refute it.

Let t* be the true threshold: the lowest at which the true risk is at most r. It is one fixed, if
unknown, threshold, so of the k rows above it e ~ Binomial(k, r) are wrong where the true risk
there is r, and each candidate is tested at its own threshold, without a correction for how many
candidates there are (inverting a test). A candidate is refuted by

- too many wrong rows above it: the risk there is more than r;
- too few wrong rows above it *and* above the next: then more could be accepted;
- a lower threshold at which so few rows are wrong that its risk is below r, whatever chance
  did. Here any of several may be the lucky one, so that they share the error among them
  (Bonferroni over a fixed grid of shares, as in Geifman & El-Yaniv 2017, "Selective
  classification for deep neural networks", and Angelopoulos et al. 2021, "Learn then test").

Last, of the n rows k ~ Binomial(n, C) lie above the threshold whose true share is C (Clopper
and Pearson). The errors of all parts add up to 1 − level. The proof is for losses of 0 or 1 and
scores without ties; other losses are tested by the normal limit of their means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from calibrant.metrics.ranked import RankState

Floats = NDArray[np.float64]

# Shares of the error allowed, which sum to 1.
_MANY, _FEW, _GRID, _ABOVE, _BELOW = 0.35, 0.2, 0.25, 0.1, 0.1
_RATIO = 0.65  # of one share of the grid to the next
_LEAST = 30  # rows, below which a normal limit says nothing
_MOST = 20_000  # thresholds tested; of more, so many at equal distances


def coverage_interval(state: RankState, risk: float, level: float) -> tuple[float, float]:
    """Of the largest share acceptable at a risk, by the tests above."""
    count, few, many = _tests(state, risk)
    num_rows, error = float(count[-1]), 1 - level
    # Accepting nothing is a candidate as well, and nothing speaks against accepting all.
    refuted = np.concatenate(([False], many <= _MANY * error))
    short = np.concatenate(([1.0], few, [1.0])) <= _FEW * error
    refuted |= short[:-1] & short[1:]
    # Of what lies between two candidates, as of tied rows, nothing is known but by them.
    refuted[1:-1] &= refuted[:-2] & refuted[2:]
    rows = np.concatenate(([0.0], count))
    refuted |= rows < _granted(count, few, risk, _GRID * error)
    left = rows[~refuted] if not refuted.all() else rows
    low = _exact(left[0], num_rows, _BELOW * error)
    high = 1 - _exact(num_rows - left[-1], num_rows, _ABOVE * error)
    return low, high


def _granted(count: Floats, few: Floats, risk: float, error: float) -> float:
    """The most rows of the grid whose risk is below the limit, whatever chance did; or 0."""
    num_rows = count[-1]
    shares = [num_rows]
    # Below so many rows even none wrong grants nothing.
    while 0 < risk < 1 and (1 - risk) ** (_RATIO * shares[-1]) <= error / (len(shares) + 1):
        shares.append(_RATIO * shares[-1])
    place = np.unique(np.searchsorted(count, np.ceil(shares)))
    sure = few[place] <= error / len(shares)
    return float(count[place][sure].max(initial=0.0))


def _tests(state: RankState, risk: float) -> tuple[Floats, Floats, Floats]:
    """Rows accepted at each threshold, and p-values for too few and too many losses there."""
    if state.loss != "zero_one":
        return _normal_tests(state, risk)
    from scipy.special import betainc, betaincc

    ranked = state.ranked()
    some = _some(len(ranked.score))
    count = (ranked.num_rows - ranked.bounds[:-1]).flip(-1).double().cpu().numpy()[some]
    wrong = (ranked.values[-1:] - ranked.values[:-1]).flip(-1).round().cpu().numpy()[some]
    chance = min(risk, 1.0)
    # Tails of the binomial law; none wrong is never too many, and all wrong never too few.
    most, least = np.minimum(wrong, count - 1), np.maximum(wrong, 1)
    few: Floats = np.where(wrong < count, betaincc(most + 1, count - most, chance), 1.0)
    many: Floats = np.where(wrong > 0, betainc(least, count - least + 1, chance), 1.0)
    return count, few, many


def _normal_tests(state: RankState, risk: float) -> tuple[Floats, Floats, Floats]:
    from scipy.special import ndtr

    _, score, loss = state.in_order()
    excess = loss.double().flip(0).numpy() - risk
    last = np.append(np.diff(score.flip(0).numpy()) != 0, True)  # ends of ties
    count = np.arange(1.0, len(excess) + 1)
    mean = excess.cumsum() / count
    spread = np.sqrt(np.maximum((excess**2).cumsum() / count - mean**2, 1e-300))
    scaled = np.where(count < _LEAST, 0.0, mean * np.sqrt(count) / spread)
    count, scaled = count[last], scaled[last]
    some = _some(len(count))
    return count[some], ndtr(scaled[some]), ndtr(-scaled[some])


def _some(number: int) -> NDArray[np.int64]:
    """Which thresholds are tested: all, or many of very many, the last among them."""
    return np.unique(np.linspace(0, number - 1, min(number, _MOST)).astype(np.int64))


def _exact(seen: float, num_rows: float, error: float) -> float:
    """Clopper and Pearson's lower bound of a share."""
    from scipy.special import betaincinv

    return float(betaincinv(seen, num_rows - seen + 1, error)) if seen > 0 else 0.0
