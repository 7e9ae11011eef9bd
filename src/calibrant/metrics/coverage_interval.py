"""An interval of the largest share of rows that can be accepted at a risk.

`coverage_at_risk` picks the largest share whose *observed* risk fits on the same rows that it is
measured on. The pick favours lucky shares, so it is too large on average, and the bootstrap
repeats the bias. This interval inverts a test instead: it holds every share that the rows do not
refute.

Let t* be the true threshold: the lowest at which the true risk is at most r. It is fixed though
unknown. So of the k rows above it e ~ Binomial(k, r) are wrong where the true risk there is r,
and each candidate is tested at its own threshold, without a correction for the number of
candidates. A candidate is refuted by

- too many wrong rows above it: the risk there is more than r;
- too few wrong rows above it *and* above the next: then more could be accepted;
- a lower threshold with so few wrong rows that its risk must be below r. Here any of several
  thresholds may be the lucky one, so they share the error (Bonferroni over a fixed grid of
  shares, as in Geifman & El-Yaniv 2017, "Selective classification for deep neural networks",
  and Angelopoulos et al. 2021, "Learn then test").

Finally, of the n rows k ~ Binomial(n, C) lie above the threshold whose true share is C (Clopper
and Pearson). The errors of all parts add up to 1 − level. The proof holds for losses of 0 or 1
and scores without ties; other losses are tested by the normal limit of their means.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrant.metrics.rank_state import RankState

Floats = NDArray[np.float64]

# How the parts share the allowed error; they sum to 1.
_MANY, _FEW, _GRID, _ABOVE, _BELOW = 0.35, 0.2, 0.25, 0.1, 0.1
_RATIO = 0.65  # between neighbouring shares of the grid
_LEAST = 30  # rows that a normal limit needs
_MOST = 20_000  # thresholds tested; of more, this many at equal distances


def coverage_interval(state: RankState, risk: float, level: float) -> tuple[float, float]:
    """Compute the interval of `coverage_at_risk`.

    Args:
        state: The ranked rows.
        risk: The largest mean loss allowed.
        level: The confidence level, such as 0.95.
    """
    count, few, many = _test_thresholds(state, risk)
    num_rows, error = float(count[-1]), 1 - level
    # Accepting nothing is a candidate too; after accepting all there is no next threshold.
    refuted = np.concatenate(([False], many <= _MANY * error))
    short = np.concatenate(([1.0], few, [1.0])) <= _FEW * error
    refuted |= short[:-1] & short[1:]
    # Shares between two candidates, as in a tie, are untested: keep a possible share's neighbours.
    refuted[1:-1] &= refuted[:-2] & refuted[2:]
    rows = np.concatenate(([0.0], count))
    refuted |= rows < _find_granted(count, few, risk, _GRID * error)
    possible = rows[~refuted] if not refuted.all() else rows
    low = _lower_bound(possible[0], num_rows, _BELOW * error)
    high = 1 - _lower_bound(num_rows - possible[-1], num_rows, _ABOVE * error)
    return low, high


def _find_granted(count: Floats, few: Floats, risk: float, error: float) -> float:
    """Find the most rows of the grid whose risk must be below the limit; 0 if none."""
    num_rows = count[-1]
    shares = [num_rows]
    # With fewer rows even zero errors prove nothing.
    while 0 < risk < 1 and (1 - risk) ** (_RATIO * shares[-1]) <= error / (len(shares) + 1):
        shares.append(_RATIO * shares[-1])
    place = np.unique(np.searchsorted(count, np.ceil(shares)))
    sure = few[place] <= error / len(shares)
    return float(count[place][sure].max(initial=0.0))


def _test_thresholds(state: RankState, risk: float) -> tuple[Floats, Floats, Floats]:
    """Compute the rows accepted at each threshold, and p-values of too few and too many losses."""
    if state.loss != "zero_one":
        return _test_by_normal_limit(state, risk)
    from scipy.special import betainc, betaincc

    ranked = state.rank_rows()
    some = _choose_thresholds(len(ranked.score))
    count = (ranked.num_rows - ranked.bounds[:-1]).flip(-1).double().cpu().numpy()[some]
    wrong = (ranked.values[-1:] - ranked.values[:-1]).flip(-1).round().cpu().numpy()[some]
    chance = min(risk, 1.0)
    # Binomial tails: zero errors are never too many, all wrong never too few.
    most, least = np.minimum(wrong, count - 1), np.maximum(wrong, 1)
    few: Floats = np.where(wrong < count, betaincc(most + 1, count - most, chance), 1.0)
    many: Floats = np.where(wrong > 0, betainc(least, count - least + 1, chance), 1.0)
    return count, few, many


def _test_by_normal_limit(state: RankState, risk: float) -> tuple[Floats, Floats, Floats]:
    from scipy.special import ndtr

    _, score, loss = state.sort_rows()
    excess = loss.double().flip(0).numpy() - risk
    last = np.append(np.diff(score.flip(0).numpy()) != 0, True)  # ends of ties
    count = np.arange(1.0, len(excess) + 1)
    mean = excess.cumsum() / count
    spread = np.sqrt(np.maximum((excess**2).cumsum() / count - mean**2, 1e-300))
    scaled = np.where(count < _LEAST, 0.0, mean * np.sqrt(count) / spread)
    count, scaled = count[last], scaled[last]
    some = _choose_thresholds(len(count))
    return count[some], ndtr(scaled[some]), ndtr(-scaled[some])


def _choose_thresholds(number: int) -> NDArray[np.int64]:
    """Choose the thresholds to test: all, or `_MOST` of more, with the last among them."""
    return np.unique(np.linspace(0, number - 1, min(number, _MOST)).astype(np.int64))


def _lower_bound(count: float, num_rows: float, error: float) -> float:
    """Compute Clopper and Pearson's lower bound of the share ``count / num_rows``."""
    from scipy.special import betaincinv

    return float(betaincinv(count, num_rows - count + 1, error)) if count > 0 else 0.0
