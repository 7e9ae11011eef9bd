"""Intervals of calibration errors (ECE and its relatives) by inverting a test.

The plug-in estimate of a calibration error is biased upward: noise in each bin's accuracy
adds to it, so that a perfectly calibrated model shows an error above 0. Resampling adds the
same noise again, and a percentile interval can miss the truth entirely.

Here the interval comes from inverting a test. A path of possible truths runs from
"calibrated" (τ = 0) through a smooth estimate of the miscalibration (τ = 1) and beyond;
for each point on it the distribution of the *plug-in* value is simulated, and the interval
holds the true errors under which the value observed is not extreme. The middle of that
comparison, the truth under which the observed value would be the median, is the
bias-corrected estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[[Tensor], Tensor]

_POINTS = 13  # on the path of possible truths
_LIMIT, _FINE_LIMIT = 25.0, 2.0  # variances of a cell above which normal noise is drawn
_FINE_CELLS = 100
_MANY_CELLS = 300  # of a sum of absolute gaps, above which moments replace draws


@dataclass(frozen=True)
class Interval:
    """A confidence interval for the true value, and an estimate corrected for bias.

    ``estimate`` is None where nothing better than the plug-in value is known.
    """

    low: float
    high: float
    estimate: float | None


@dataclass(frozen=True)
class CellNoise:
    """How the sums of cells vary where rows have weights or come in clusters.

    ``clustered.make_cell_noise`` estimates it. One line of ``factor`` holds a cluster's deviations
    in every cell; a draw is Σ_g z_g · line g with normal z, whose covariance is the
    cluster-robust one.
    """

    factor: Floats  # (G, ...) deviations of Σ w y, the last axes those of the cells
    sizes: Floats | None  # (G, ...) deviations of Σ w; None keeps the sizes fixed
    rows: Floats  # (...) Σ w² of each cell
    clusters: Floats | None  # (...) Σ_g (Σ_{i∈g} w)² of each cell; None if clusters were merged
    degrees: float  # of freedom: clusters − 1

    def variance(self) -> Floats:
        """Return the cluster-robust variance of each cell's sum of events."""
        total: Floats = (self.factor**2).sum(0)
        return total

    def effective_rows(self, count: Floats) -> float:
        """Return (Σ w)² / Σ w², as many rows of equal weight as these are worth at most."""
        return float(count.sum() ** 2 / max(float(self.rows.sum()), 1e-300))

    def least(self, rate: Floats) -> Floats:
        """Return each cell's least variance of Σ w y, as a multiple of rate·(1 − rate).

        It is Σ w² + ρ (Σ_g W_g² − Σ w²), with the correlation ρ ≥ 0 of rows of a cluster
        estimated over all cells: a cell of few rows, or of rows that all agree, shows no
        spread of its own.
        """
        if self.clusters is None:
            return self.rows
        spread = rate * (1 - rate)
        pairs = np.maximum(self.clusters - self.rows, 0.0)
        excess = float((self.variance() - spread * self.rows).sum())
        possible = float((spread * pairs).sum())
        correlation = min(max(excess / possible, 0.0), 1.0) if possible > 0 else 0.0
        least: Floats = self.rows + correlation * pairs
        return least


def invert(
    totals: Tensor,
    statistic: Statistic,
    *,
    population: Statistic | None = None,
    coupling: float = 1.0,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    noise: CellNoise | None = None,
    additive: bool = False,
) -> Interval:
    """Compute the interval of a calibration error from the totals of its cells.

    Args:
        totals: (..., 3): rows, sum of confidence and sum of correctness of each cell (a bin,
            or a bin of a class).
        statistic: The error; maps (R, ..., 3) to (R,).
        population: The error without any correction for noise; ``statistic`` if None.
        coupling: How much more the value varies than with independent cells, as drawn here.
        level: The confidence level.
        resamples: The number of simulated sets at each point of the path.
        seed: The seed of the simulation.
        noise: How the cells vary where rows have weights (``totals`` are then weighted sums)
            or come in clusters; None draws independent rows of equal weight.
        additive: Whether ``statistic`` is proportional to Σ |confidence − correctness| over cells;
            of many cells its law then follows without draws.
    """
    cells = totals.detach().cpu().double().numpy()
    count, mean = cells[..., 0], _ratio(cells[..., 1], cells[..., 0])
    rate = _ratio(cells[..., 2], count)
    observed = float(statistic(totals.detach().cpu().double().unsqueeze(0))[0])
    draw: _Draws | _Moments
    if noise is None:
        effective = float(count.sum())
        gap = _gap(count, mean, rate)
        if additive and count.size > _MANY_CELLS:
            draw = _Moments(count, mean, statistic)
        else:
            draw = _Simulator(count, mean, statistic, resamples, seed)
    else:
        effective = noise.effective_rows(count)
        draw = _ClusterSimulator(count, mean, rate, noise, statistic, resamples, seed)
        gap = _gap(count * effective / count.sum(), mean, rate, draw.rate_variance)
    truth = population or statistic

    def along(gap: Floats) -> tuple[Interval, float]:
        """Return the interval along one path, and the share of it that probabilities allow."""

        def chance(tau: float) -> Floats:
            return np.clip(mean + tau * gap, 0.0, 1.0)

        def expected(tau: float) -> float:
            exact = np.stack((count, count * mean, count * chance(tau)), axis=-1)
            return float(truth(torch.from_numpy(exact[None]))[0])

        spread = draw.spread(chance(_solve(expected, observed)))
        # At least five rows' worth, for rows that all agree and show no spread.
        reach = observed + max(
            4.0 * coupling * chance_spread,
            4.0 * coupling * spread,
            5.0 / effective,
        )
        taus = np.linspace(0.0, _solve(expected, reach), _POINTS)
        errors = np.array([expected(tau) for tau in taus])
        marks = [draw.quantiles(chance(tau), wanted) for tau in taus]
        upper, median, lower = np.maximum.accumulate(np.stack(marks), axis=0).T
        upper, lower = (median + coupling * (mark - median) for mark in (upper, lower))
        middle = _cross(observed, median, errors, side="left")
        # A value below a calibrated model's median carries no more information than the median.
        high = _cross(max(observed, median[0]), lower, errors, side="right")
        low = _cross(observed, upper, errors, side="left")
        return Interval(low, max(high, middle), middle), float(errors[-1] / reach)

    chance_spread = draw.spread(np.clip(mean, 0.0, 1.0))
    tail = (1.0 - level) / 2.0
    wanted = (1.0 - tail, 0.5, tail)
    forward, share = along(gap)
    if share > 0.99:
        return forward
    # Confidences near 1 can be wrong in one direction only, so the opposite path is tried too.
    backward, backward_share = along(-gap)
    best = forward if share >= backward_share else backward
    return Interval(best.low, max(forward.high, backward.high), best.estimate)


def chance_level(
    totals: Tensor,
    statistic: Statistic,
    *,
    quantile: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    noise: CellNoise | None = None,
) -> float:
    """Return the plug-in value that a calibrated model with these confidences has by chance.

    Args:
        totals: (..., 3): rows, sum of confidence and sum of correctness of each cell.
        statistic: The error; maps (R, ..., 3) to (R,).
        quantile: The quantile of the simulated values to return.
        resamples: The number of simulated sets.
        seed: The seed of the simulation.
        noise: As in `invert`.
    """
    cells = totals.detach().cpu().double().numpy()
    count, mean = cells[..., 0], _ratio(cells[..., 1], cells[..., 0])
    draw: _Draws
    if noise is None:
        draw = _Simulator(count, mean, statistic, resamples, seed)
    else:
        rate = _ratio(cells[..., 2], count)
        draw = _ClusterSimulator(count, mean, rate, noise, statistic, resamples, seed)
    return float(np.quantile(draw(np.clip(mean, 0.0, 1.0)), quantile))


def _ratio(total: Floats, count: Floats) -> Floats:
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0)


def _gap(count: Floats, mean: Floats, rate: Floats, variance: Floats | None = None) -> Floats:
    """Estimate P(right) − confidence in each cell smoothly: the direction of the path.

    The estimate is a logistic recalibration of the cells (two parameters) plus each cell's
    deviation from it, shrunk by the share of that deviation that noise explains. The share is
    estimated over all bins, or, if every class has bins of its own, over the classes of a bin.
    ``variance`` is that of the rates; None for independent rows.
    """
    full = count > 0
    smooth = np.zeros_like(mean)
    smooth[full] = _logistic(count[full], mean[full], rate[full])
    noise = np.where(full, smooth * (1 - smooth) / np.maximum(count, 1e-300), 0.0)
    if variance is not None:
        noise = np.where(full, np.maximum(variance, noise), 0.0)
    rest = np.where(full, rate - smooth, 0.0)
    axis = 0 if count.ndim > 1 else None
    weight = count.sum(axis=axis, keepdims=True)
    excess = (count * (rest**2 - noise)).sum(axis=axis, keepdims=True) / np.maximum(weight, 1.0)
    signal_share = np.maximum(excess, 0.0) / (np.maximum(excess, 0.0) + noise + 1e-300)
    gap = np.where(full, smooth - mean + rest * signal_share, 0.0)
    if float(np.abs(gap).max()) < 1e-6:
        gap[full] = 1e-3
    return gap


def _logistic(count: Floats, mean: Floats, rate: Floats) -> Floats:
    """Fit logit P(right) = a + b·logit(confidence), ridge toward the identity, by Newton."""
    clipped = np.clip(mean, 1e-6, 1 - 1e-6)
    design = np.stack((np.ones_like(clipped), np.log(clipped / (1 - clipped))))
    weights = np.array([0.0, 1.0])
    for _ in range(25):
        fitted = 1 / (1 + np.exp(-np.clip(weights @ design, -30, 30)))
        slope = design @ (count * (fitted - rate)) + (weights - (0.0, 1.0))
        curve = (design * (count * fitted * (1 - fitted))) @ design.T + np.eye(2)
        step = np.linalg.solve(curve, slope)
        weights = weights - np.clip(step, -2.0, 2.0)
        if float(np.abs(step).max()) < 1e-8:
            break
    return 1 / (1 + np.exp(-np.clip(weights @ design, -30, 30)))


class _Draws:
    """A law of plug-in values that is known from draws."""

    def __call__(self, chance: Floats) -> Floats:
        """Draw plug-in values of data whose cells are right with these chances."""
        raise NotImplementedError

    def quantiles(self, chance: Floats, levels: tuple[float, ...]) -> Floats:
        """Return quantiles of the values."""
        values: Floats = np.quantile(self(chance), levels)
        return values

    def spread(self, chance: Floats) -> float:
        """Return the standard deviation of the values."""
        return float(self(chance).std())


class _Simulator(_Draws):
    """Draw plug-in values at any point of the path, always with the same row counts.

    The normal noise of large cells is drawn once, so that a quantile moves smoothly along the path.
    """

    def __init__(
        self, count: Floats, mean: Floats, statistic: Statistic, resamples: int, seed: int
    ) -> None:
        self.generator = np.random.default_rng(seed)
        self.statistic = statistic
        if count.ndim == 1:  # with one set of bins, the bin sizes vary too
            total = round(float(count.sum()))
            rows = self.generator.multinomial(total, count / count.sum(), size=resamples)
        else:
            # A cell that cuts through a tie holds a fraction of a row, which is rounded.
            whole = np.rint(count).astype(np.int64)
            rows = np.broadcast_to(whole, (resamples, *count.shape))
        self.rows = rows
        # Above this variance the normal limit is close, and far faster to draw. Statistics of
        # many cells in a row depend on sums over neighbours, which are normal sooner.
        self.limit = _FINE_LIMIT if count.ndim == 1 and len(count) >= _FINE_CELLS else _LIMIT
        self.normal = self.generator.standard_normal(rows.shape)
        self.totals = np.empty((*rows.shape, 3))
        self.totals[..., 0] = rows
        self.totals[..., 1] = rows * mean

    def __call__(self, chance: Floats) -> Floats:
        """Draw plug-in values of data whose cells are right with these chances."""
        spread = chance * (1 - chance)
        large = self.rows.mean(axis=0) * spread > self.limit
        right = self.totals[..., 2]
        if large.all():
            rows = self.totals[..., 0]
            np.multiply(np.sqrt(rows * spread), self.normal, out=right)
            right += rows * chance
        else:
            rows = self.totals[..., 0][:, large]
            noise = np.sqrt(rows * spread[large]) * self.normal[:, large]
            right[:, large] = rows * chance[large] + noise
            right[:, ~large] = self.generator.binomial(self.rows[:, ~large], chance[~large])
        values: Floats = self.statistic(torch.from_numpy(self.totals)).numpy()
        return values


class _Moments:
    """The law of a sum of |confidence − correctness| over very many cells, from its moments.

    Cells are independent binomials of fixed sizes. The mean of |X − m| is that of the binomial
    where few rows vary, else of its normal limit; the sum's quantiles are normal, with a term for
    its skewness (Cornish & Fisher 1938).
    """

    def __init__(self, count: Floats, mean: Floats, statistic: Statistic) -> None:
        full = count > 0
        self.full = full
        self.count = np.rint(count[full])
        self.claimed = self.count * mean[full]
        # What one row's worth of |confidence − correctness| adds to the value.
        off = np.stack((count, count * mean, count * mean + count), axis=-1)
        self.unit = float(statistic(torch.from_numpy(off[None]))[0]) / float(count.sum())

    def describe(self, chance: Floats) -> tuple[float, float, float]:
        """Return mean, standard deviation and skewness of the value."""
        q = chance[self.full]
        mean, second, third = _fold(self.count, q, self.claimed)
        variance = second - mean**2
        skew = third - 3 * mean * second + 2 * mean**3
        total = max(float(variance.sum()), 1e-300)
        deviation = total**0.5
        return (
            self.unit * float(mean.sum()),
            self.unit * deviation,
            float(skew.sum()) / (total * deviation),
        )

    def quantiles(self, chance: Floats, levels: tuple[float, ...]) -> Floats:
        """Return quantiles of the value."""
        from scipy.special import ndtri

        mean, deviation, skewness = self.describe(chance)
        z = ndtri(np.asarray(levels))
        values: Floats = mean + deviation * (z + skewness * (z**2 - 1) / 6)
        return values

    def spread(self, chance: Floats) -> float:
        """Return the standard deviation of the value."""
        return self.describe(chance)[1]


def _fold(count: Floats, chance: Floats, claimed: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the first three moments of |X − claimed|, X binomial.

    The mean is exact where the variance is at most 25, by E[X; X >= j] = n p P(X' >= j − 1), X'
    binomial of n − 1; the third moment is that of a folded normal.
    """
    from scipy.special import betainc, erf

    variance = count * chance * (1 - chance)
    off = count * chance - claimed
    second = variance + off**2
    sd = np.sqrt(np.maximum(variance, 1e-300))
    bell = np.sqrt(2 / np.pi) * sd * np.exp(-0.5 * (off / sd) ** 2)
    lean = erf(off / (sd * 2**0.5))
    mean = bell + off * lean
    third = (off**2 + 3 * variance) * off * lean + (off**2 + 2 * variance) * bell
    few = variance <= _LIMIT
    n, p, m = count[few], chance[few], claimed[few]
    first = np.minimum(np.floor(m) + 1, n)  # above it, no outcome lies beyond m
    rest = n - first + 1
    tail = betainc(first, rest, p)
    before = np.where(first > 1, betainc(np.maximum(first - 1, 1), rest, p), 1.0)
    mean[few] = 2 * np.maximum(n * p * before - m * tail, 0.0) + m - n * p
    return mean, np.maximum(second, mean**2), third


class _ClusterSimulator(_Draws):
    """Draw plug-in values at any point of the path with the noise of clusters and weights.

    The noise is drawn once, from a multivariate t with the clusters' degrees of freedom. At a
    point of the path each cell's noise is scaled as its binomial variance is, from the observed
    rate to the chance there. Where the clusters show less variance than their mean correlation
    implies, independent noise makes up for it.
    """

    def __init__(
        self,
        count: Floats,
        mean: Floats,
        rate: Floats,
        noise: CellNoise,
        statistic: Statistic,
        resamples: int,
        seed: int,
    ) -> None:
        generator = np.random.default_rng(seed)
        self.statistic = statistic
        lines = len(noise.factor)
        normal = generator.standard_normal((resamples, lines))
        if noise.degrees < 1000:
            scale = generator.chisquare(max(noise.degrees, 1.0), size=(resamples, 1))
            normal *= np.sqrt(max(noise.degrees, 1.0) / scale)
        flat = noise.factor.reshape(lines, -1)
        self.drawn = (normal @ flat).reshape(resamples, *count.shape)
        sizes = np.broadcast_to(count, self.drawn.shape)
        if noise.sizes is not None:
            moved = (normal @ noise.sizes.reshape(lines, -1)).reshape(self.drawn.shape)
            sizes = np.maximum(count + moved, 0.0)
        self.extra = generator.standard_normal(self.drawn.shape)
        self.robust, self.least = noise.variance(), noise.least(rate)
        self.observed_spread = rate * (1 - rate)
        self.rate_variance = _ratio(
            np.maximum(self.robust, self.least * self.observed_spread), count**2
        )
        self.totals = np.empty((*self.drawn.shape, 3))
        self.totals[..., 0] = sizes
        self.totals[..., 1] = sizes * mean

    def __call__(self, chance: Floats) -> Floats:
        """Draw plug-in values of data whose cells are right with these chances."""
        spread = chance * (1 - chance)
        ratio = _ratio(spread, self.observed_spread)
        missing = np.maximum(self.least * spread - ratio * self.robust, 0.0)
        sizes = self.totals[..., 0]
        noisy = np.sqrt(ratio) * self.drawn + np.sqrt(missing) * self.extra
        self.totals[..., 2] = np.clip(sizes * chance + noisy, 0.0, sizes)
        values: Floats = self.statistic(torch.from_numpy(self.totals)).numpy()
        return values


def _solve(expected: Callable[[float], float], error: float) -> float:
    """Return the τ whose true error is ``error``, or the last that probabilities allow.

    The true error is nearly proportional to τ, so false position (with Illinois' rule) needs few
    steps.
    """
    low, high, below = 0.0, 1.0, expected(0.0) - error
    above = expected(high) - error
    for _ in range(20):
        if above >= 0:
            break
        low, below, high = high, above, 2.0 * high
        above = expected(high) - error
    if below >= 0:
        return low + 2.0**-12
    side = 0
    for _ in range(12):
        if above <= 0 or below >= 0 or high - low <= 2e-4 * high:
            break
        middle = high - above * (high - low) / (above - below)
        value = expected(middle) - error
        if abs(value) <= 1e-3 * abs(error):
            return middle
        if value >= 0:
            high, above = middle, value
            below = below / 2 if side == 1 else below
            side = 1
        else:
            low, below = middle, value
            above = above / 2 if side == -1 else above
            side = -1
    return high


def _cross(value: float, marks: Floats, errors: Floats, side: Literal["left", "right"]) -> float:
    """Return the true error whose mark equals ``value``, the first or the last such."""
    upper = int(np.searchsorted(marks, value, side=side))
    if upper in (0, len(marks)):
        return float(errors[min(upper, len(marks) - 1)])
    width = marks[upper] - marks[upper - 1]
    share = (value - marks[upper - 1]) / width if width > 0 else 1.0
    return float(errors[upper - 1] + share * (errors[upper] - errors[upper - 1]))
