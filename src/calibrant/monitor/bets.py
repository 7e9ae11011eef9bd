"""Sequential tests by betting: log sums that merge, mixtures, and confidence sequences.

A test watches numbers x in [low, high] and the hypothesis "given all before, E[x] is at most m".
A gambler who stakes the share λ of the fortune on each number has

    W_λ = Π (1 + λ (x_i − m)),   0 ≤ λ < 1/(m − low),

a nonnegative supermartingale under the hypothesis: by Ville's inequality it ever reaches 1/α with
probability at most α, however often one looks. λ is not known beforehand, nor is the time from
which on the hypothesis is false; a mixture over both is a supermartingale too:

    E = Σ_s w_s · mean_λ (W_λ of everything from batch s on),   w_1 = 1/2 + 1/4, w_s = 1/(2 s(s+1)),

where W_λ is 1 until batch s.

Only Σ log(1 + λ (x_i − m)) of each batch is needed, for a fixed grid of λ.

Arnold, Henzi and Ziegel, Sequentially valid tests for forecast calibration (2023), section 3;
Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting (2024), section 4;
Howard, Ramdas, McAuliffe and Sekhon, Time-uniform, nonparametric, nonasymptotic confidence
sequences (2021), theorem 4.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Stakes as shares of the largest allowed one. A factor of 2 between them costs at most 6% of the
# best rate of growth; the smallest is best where E[x] exceeds m by about 1% of m − low.
STAKES: Floats = np.asarray(0.95 * 2.0 ** -np.arange(8), dtype=np.float64)
_PRODUCT = 8  # factors multiplied before a logarithm: they lie in (0.05, 100) or so
_BLOCK = 1 << 12  # a block of all stakes stays in the cache
_FEWEST_NORMAL = 200
_LARGEST_CORRECTION = 0.25


def stakes_at(bound: float, low: float) -> Floats:
    """Return the grid of λ for the hypothesis E[x] ≤ bound, where x ≥ low."""
    return np.asarray(STAKES / max(bound - low, 1e-9))


def log_sums(values: Floats, bound: float, low: float) -> Floats:
    """Return Σ log(1 + λ (x − bound)) over the values, for each λ of the grid.

    Args:
        values: The numbers x, at least ``low``.
        bound: m of the hypothesis E[x] ≤ m.
        low: The least possible x.
    """
    stakes = stakes_at(bound, low)[:, None]
    sums = np.zeros(len(stakes))
    for start in range(0, len(values), _BLOCK):
        factors = stakes * (values[start : start + _BLOCK] - bound)
        factors += 1.0
        # One logarithm for several factors is several times faster than one for each.
        whole = factors.shape[1] // _PRODUCT * _PRODUCT
        products = factors[:, :whole].reshape(len(stakes), _PRODUCT, -1).prod(1)
        sums += np.log(products).sum(1) + np.log(factors[:, whole:]).sum(1)
    return sums


class Fortune(NamedTuple):
    """The logarithm of the mixture after each batch, and where its evidence starts."""

    log_value: Floats  # (T,)
    start: NDArray[np.int64]  # (T,): the batch from which on most evidence counts


def mix(sums: Floats) -> Fortune:
    """Return the mixture over stakes and start times after each batch.

    Args:
        sums: The log sums of each batch in the order in which they were learned, shape (T, L).
    """
    count = len(sums)
    total = np.vstack([np.zeros((1, sums.shape[1])), np.cumsum(sums, axis=0)])
    starts = np.arange(1, count + 1)
    weights = 0.5 / (starts * (starts + 1.0))
    if count:
        weights[0] += 0.5
    log_weights = np.log(weights)
    values, firsts = np.empty(count), np.empty(count, dtype=np.int64)
    for end in range(1, count + 1):
        parts = log_mean_exp(total[end] - total[:end]) + log_weights[:end]
        firsts[end - 1] = int(np.argmax(parts))
        waiting = math.log(0.5 / (end + 1))  # the share of starts still to come, not yet staked
        values[end - 1] = np.logaddexp(np.logaddexp.reduce(parts), waiting)
    return Fortune(values, firsts)


def log_mean_exp(values: Floats) -> Floats:
    """Return log of the mean of exp over the last axis."""
    top = values.max(-1, keepdims=True)
    means = np.log(np.exp(values - top).mean(-1)) + top[..., 0]
    return np.asarray(means)


def upper_bound(values: Floats, alpha: float, low: float, high: float) -> float:
    """Return a bound that the mean of independent values exceeds with probability about alpha.

    The bound is the smaller of two. One is exact: the largest m for which bets against "the mean is
    m" do not win 1/alpha (Waudby-Smith and Ramdas 2024, theorem 3), with the stakes used everywhere
    here. The other is normal with a correction for skewness, m = x̄ + s/√n (z + γ(2z² + 1)/(6√n))
    (Johnson, Modified t tests for asymmetrical populations, 1978); it is used for at least 200
    values, if the correction is small beside z.

    Args:
        values: Independent numbers in [low, high].
        alpha: The probability of an error.
        low: The least possible number.
        high: The largest possible number.
    """
    if not len(values):
        return high
    bound = _betting_bound(values, alpha, low, high)
    deviation = float(values.std(ddof=1)) if len(values) >= _FEWEST_NORMAL else 0.0
    if deviation <= 1e-6 * (high - low):
        return bound
    z = NormalDist().inv_cdf(1 - alpha)
    skewness = float((((values - values.mean()) / deviation) ** 3).mean())
    root = math.sqrt(len(values))
    correction = skewness * (2 * z * z + 1) / (6 * root)
    if abs(correction) > _LARGEST_CORRECTION * z:
        return bound
    return min(bound, float(values.mean()) + deviation / root * (z + max(correction, 0.0)))


def _betting_bound(values: Floats, alpha: float, low: float, high: float) -> float:
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > len(values) // 2:
        distinct, counts = values, np.ones(len(values), dtype=np.int64)
    wanted = math.log(1 / alpha)

    def fortune(mean: float) -> float:
        stakes = STAKES / (high - mean)
        sums = np.array([counts @ np.log1p(stake * (mean - distinct)) for stake in stakes])
        return float(log_mean_exp(sums))

    inside, outside = float(values.mean()), high
    while outside - inside > 1e-5 * (high - low):
        middle = (inside + outside) / 2
        if fortune(middle) >= wanted:
            outside = middle
        else:
            inside = middle
    return outside


def rate_upper_bound(successes: int, trials: int, alpha: float) -> float:
    """Return the one-sided Clopper-Pearson bound of a rate."""
    from scipy.stats import beta

    if successes >= trials:
        return 1.0
    return float(beta.ppf(1 - alpha, successes + 1, trials - successes))


def confidence_sequence(
    counts: Floats,
    sums: Floats,
    squares: Floats,
    *,
    alpha: float,
    low: float,
    high: float,
    start: float,
) -> tuple[Floats, Floats]:
    """Return intervals of the running mean that all hold at once with probability 1 − alpha.

    exp(λ Σ (x − E x) − ψ(λ) V), with ψ(λ) = (−log(1 − cλ) − cλ)/c², c = high − low and
    V = Σ (x − x̂)², is a supermartingale if x̂ was known before x (Howard et al. 2021, theorem 4).
    Here x̂ is the mean of all batches before, so that sums of each batch suffice. The interval is
    of the average of the conditional means E[x_i | all before], and a mixture over λ gives it.

    Args:
        counts: The number of values of each batch, in order, shape (T,).
        sums: Σ x of each batch.
        squares: Σ x² of each batch.
        alpha: The probability that any interval errs.
        low: The least possible x.
        high: The largest possible x.
        start: x̂ of the first batch, such as the mean of the baseline.
    """
    total, added = np.cumsum(counts), np.cumsum(sums)
    before = np.concatenate([[0.0], total[:-1]])
    guess = np.where(before > 0, np.concatenate([[0.0], added[:-1]]) / np.maximum(before, 1), start)
    spread = np.cumsum(np.maximum(squares - 2 * guess * sums + counts * guess**2, 0.0))
    width = high - low
    rates = 0.9 / width * 2.0 ** -np.arange(12)
    cost = (-np.log1p(-width * rates) - width * rates) / width**2
    wanted = math.log(2 / alpha)
    inside, outside = np.zeros(len(total)), np.full(len(total), np.inf)
    # Of one λ alone, less a twelfth: an upper limit of where the mixture reaches 2/alpha.
    for rate, price in zip(rates, cost, strict=True):
        outside = np.minimum(outside, (wanted + math.log(len(rates)) + price * spread) / rate)
    for _ in range(50):
        middle = (inside + outside) / 2
        reached = log_mean_exp(np.outer(middle, rates) - np.outer(spread, cost)) >= wanted
        outside, inside = np.where(reached, middle, outside), np.where(reached, inside, middle)
    means, half = added / np.maximum(total, 1), outside / np.maximum(total, 1)
    return np.maximum(means - half, low), np.minimum(means + half, high)
