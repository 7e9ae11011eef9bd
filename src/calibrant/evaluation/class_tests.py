"""Tests of every class's probability: is its total right, and are its probabilities too extreme?

For class k the rows are events of chance p_k. Two statistics are tested: the total
Σ (y − p), and the slope score Σ (y − p)(x − x̄) with x = logit p. Independent rows need only sums
over cells of similar log-odds, so the tests stream; weights and clusters take another pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.evaluation.clustered import FEWEST_CLUSTERS, sign_flip_tests
from calibrant.functional.binning import bin_sums
from calibrant.functional.blocks import Block
from calibrant.functional.statistics import holm
from calibrant.metrics.base import State

Floats = NDArray[np.float64]

FEWEST_EXPECTED = 10  # events, of the hypothesis's variance: fewer make the slope test unsound
_REACH = 16.0  # log-odds beyond which all cells are one
_NARROW_CELLS, _WIDE_CELLS, _MANY_CLASSES = 64, 32, 2048
_MOST_CLUSTERS = 4096
_NEWTON_STEPS = 60
_CERTAIN = 1e-15  # a chance this close to 0 or 1 is one
_NEAR_MEAN = 0.05  # of a saddlepoint: nearer the mean its formula divides 0 by 0


class ClassTests(NamedTuple):
    """The tests of every class: (K,) arrays; p-values are NaN where nothing was tested."""

    expected: Floats  # mean probability
    observed: Floats  # frequency
    expected_rows: Floats  # unweighted
    total: Floats  # p-value of the total
    slope: Floats  # p-value of the slope score
    leaning: Floats  # the slope score: below 0 where probabilities are too extreme
    adjusted: Floats  # (2, K): both, corrected for their number

    @property
    def p_value(self) -> float:
        """Return the smallest corrected p-value; 1 if nothing was tested."""
        return 1.0 if np.isnan(self.adjusted).all() else float(np.nanmin(self.adjusted))

    def find_off(self, alpha: float) -> list[tuple[int, str]]:
        """Return the classes that are off with their fault; wrong totals first, worst first."""
        p_total, p_slope = np.where(np.isnan(self.adjusted), 1.0, self.adjusted)
        gap = self.expected - self.observed
        faults = []
        for k in np.lexsort((-np.abs(gap), p_total >= alpha)):
            if p_total[k] < alpha:
                faults.append((int(k), "too high" if gap[k] > 0 else "too low"))
            elif p_slope[k] < alpha:
                faults.append((int(k), "too extreme" if self.leaning[k] < 0 else "too timid"))
        return faults

    def count_few(self) -> int:
        """Return how many classes have fewer expected rows than a sound statement needs."""
        return int((self.expected_rows < FEWEST_EXPECTED).sum())


@dataclass
class ClassOddsState(State):
    """The rows, the sum of p_k and the rows of class k in each cell of log-odds of p_k."""

    totals: Tensor | None = field(default=None, init=False, repr=False)  # (K, C, 3)

    sums = ("totals",)

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        classes = block.num_classes
        cells = _NARROW_CELLS if classes <= _MANY_CLASSES else _WIDE_CELLS
        probs = block.probs
        place = find_cells(probs, cells)
        owner = torch.arange(classes, device=probs.device) * cells
        size = classes * cells
        key = (place + owner.unsqueeze(1 - block.class_dim)).flatten()
        parts = (
            bin_sums(key, size),
            bin_sums(key, size, probs.flatten().double()),
            bin_sums(block.target * cells + find_cells(block.true_prob, cells), size),
        )
        self.add("totals", torch.stack([part.view(classes, cells) for part in parts], dim=2))


def _log_odds(probs: Tensor) -> Tensor:
    """Compute logit p, within `_REACH` of 0."""
    return torch.special.logit(probs, eps=1e-9).clamp_(-_REACH, _REACH)


def find_cells(probs: Tensor, cells: int) -> Tensor:
    """Return the cell of log-odds of each probability."""
    scale = cells / (2 * _REACH)
    return ((_log_odds(probs) + _REACH) * scale).long().clamp_(0, cells - 1)


def run_class_tests(state: ClassOddsState) -> ClassTests:
    """Test every class of independent rows, corrected by Holm for the number of tests.

    Args:
        state: The filled state.
    """
    cells = state.total("totals").cpu().double().numpy()
    count, mass, hit = np.moveaxis(cells, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        chance = np.clip(np.nan_to_num(mass / count), 0.0, 1.0)
    variance = count * chance * (1 - chance)
    width = cells.shape[1]
    place = np.broadcast_to((np.arange(width) + 0.5) * 2 * _REACH / width - _REACH, count.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = np.nan_to_num((variance * place).sum(1) / variance.sum(1))
    direction = np.where(variance > 0, place - centre[:, None], 0.0)
    total = _test_total(count, chance, hit.sum(1))
    score = (direction * (hit - mass)).sum(1)
    scale = np.maximum(np.abs(direction).max(1), 1e-9)
    slope = _test_sum(count, chance, direction / scale[:, None], score / scale)
    slope = np.where(variance.sum(1) >= FEWEST_EXPECTED, slope, np.nan)
    rows = max(float(count[0].sum()), 1.0)
    return ClassTests(
        expected=mass.sum(1) / rows,
        observed=hit.sum(1) / rows,
        expected_rows=mass.sum(1),
        total=total,
        slope=slope,
        leaning=score,
        adjusted=_adjust(np.stack((total, slope))),
    )


def _adjust(p_values: Floats) -> Floats:
    """Correct p-values for their number by Holm's rule; NaN stays NaN."""
    flat = [None if np.isnan(p) else float(p) for p in p_values.ravel()]
    adjusted = np.array([np.nan if p is None else p for p in holm(flat)], dtype=np.float64)
    return adjusted.reshape(p_values.shape)


# Saddlepoint approximations (Lugannani & Rice 1980; Daniels 1987): their relative error stays
# small far in the tails, where a correction for 2K tests needs them.


def _test_total(count: Floats, chance: Floats, events: Floats) -> Floats:
    """Return two-sided p-values of the numbers of events, (K,), with continuity correction.

    Only the tail on the side of what was seen can be below a half.
    """
    excess = events - (count * chance).sum(1)
    side = np.where(excess[:, None] < 0, 1 - chance, chance)  # else count what did not happen
    tail = _upper_tail(count, side, np.ones_like(count), np.abs(excess) - 0.5, lattice=True)
    return np.minimum(1.0, 2 * tail)


def _test_sum(count: Floats, chance: Floats, direction: Floats, score: Floats) -> Floats:
    """Return two-sided p-values of Σ d (Y − n p) of binomial cells, (K,)."""
    turned = direction * np.where(score[:, None] < 0, -1.0, 1.0)
    tail = _upper_tail(count, chance, turned, np.abs(score), lattice=False)
    return np.minimum(1.0, 2 * tail)


def _upper_tail(
    count: Floats, chance: Floats, direction: Floats, level: Floats, *, lattice: bool
) -> Floats:
    """Return P(Σ_c d_c (Y_c − n_c p_c) >= level), Y_c binomial, for every line.

    The cumulant generating function is K(t) = Σ n [ln(1 − p + p e^{td}) − t p d]; t solves
    K'(t) = level by Newton's method in a shrinking bracket.
    """
    odd = _log(chance) - _log(1 - chance)
    # A cell whose chance is 0 or 1 is certain: it adds nothing to what is possible.
    open_ = (chance > _CERTAIN) & (chance < 1 - _CERTAIN)
    most = np.where(open_, direction * (1 - chance), 0.0)
    least = np.where(open_, -direction * chance, 0.0)
    ceiling = (count * np.maximum(most, least)).sum(1)
    floor = (count * np.minimum(most, least)).sum(1)
    inside = (level < ceiling - 1e-9) & (level > floor + 1e-9)
    target = np.where(inside, level, 0.0)[:, None]
    t = np.zeros((len(count), 1))
    low, high = np.full_like(t, -60.0), np.full_like(t, 60.0)
    for _ in range(_NEWTON_STEPS):
        tilted = 1 / (1 + np.exp(-np.clip(odd + t * direction, -500, 500)))
        first = (count * direction * (tilted - chance)).sum(1, keepdims=True) - target
        second = (count * direction**2 * tilted * (1 - tilted)).sum(1, keepdims=True)
        low, high = np.where(first < 0, t, low), np.where(first < 0, high, t)
        step = t - first / np.maximum(second, 1e-300)
        moved = np.where((step > low) & (step < high), step, (low + high) / 2)
        if np.abs(moved - t).max(initial=0.0) < 1e-8:
            break
        t = moved
    return np.where(
        inside,
        _lugannani_rice(count, chance, direction, t[:, 0], target[:, 0], lattice=lattice),
        np.where(level > 0, 0.0, 1.0),
    )


def _lugannani_rice(
    count: Floats, chance: Floats, direction: Floats, t: Floats, level: Floats, *, lattice: bool
) -> Floats:
    """Return the tail at a level strictly inside the support, given its saddlepoint t."""
    turn = t[:, None] * direction
    shift = np.logaddexp(_log(1 - chance), _log(chance) + turn)
    cumulant = (count * (shift - turn * chance)).sum(1)
    odd = _log(chance) - _log(1 - chance)
    tilted = 1 / (1 + np.exp(-np.clip(odd + turn, -500, 500)))
    spread = (count * direction**2 * tilted * (1 - tilted)).sum(1)
    second = (count * chance * (1 - chance) * direction**2).sum(1)
    third = (count * chance * (1 - chance) * (1 - 2 * chance) * direction**3).sum(1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        w = np.sign(t) * np.sqrt(np.maximum(2 * (t * level - cumulant), 0.0))
        u = (2 * np.sinh(t / 2) if lattice else t) * np.sqrt(spread)
        tail = _ndtr(-w) + _density(w) * (1 / u - 1 / w)
        score, skewness = level / np.sqrt(second), third / second**1.5
        near = _ndtr(-score) - skewness * (1 - score**2) * _density(score) / 6
    tail = np.where((np.abs(w) < _NEAR_MEAN) | ~np.isfinite(tail), near, tail)
    return np.clip(np.nan_to_num(tail, nan=1.0), 0.0, 1.0)


def _ndtr(z: Floats) -> Floats:
    """Compute the normal distribution function; torch's, as importing scipy's takes longer."""
    values: Floats = torch.special.ndtr(torch.from_numpy(np.asarray(z, dtype=np.float64))).numpy()
    return values


def _density(z: Floats) -> Floats:
    density: Floats = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return density


def _log(values: Floats) -> Floats:
    return np.log(np.maximum(values, 1e-300))


# Weights and clusters


def run_unit_class_tests(
    blocks: Iterable[Block],
    weights: Floats | None,
    clusters: NDArray[np.int64] | None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> ClassTests:
    """Test every class of rows with weights or clusters.

    The p-value is the largest of three: that of flipping the signs of whole clusters (with maxT's
    correction), and, by the normal limit with its skewness (with Holm's), those of independent
    rows and of rows that are equally correlated within clusters. The last one is needed where
    the scores of few clusters are skewed (see `clustered.slope_test`).

    Args:
        blocks: The rows, in blocks.
        weights: The weight of each row; None if all count the same.
        clusters: The cluster of each row; None if rows are independent.
        resamples: The number of patterns of signs.
        seed: The seed of the draws.
    """
    merged, number = _merge(weights, clusters, seed)
    # (4, G, K): Σ w (y − p), Σ w (y − p) x, Σ w s and Σ w s x of each cluster, s² = p (1 − p)
    parts: Tensor | None = None
    moments: Tensor | None = None  # (11, K)
    mass: Tensor | None = None
    start = 0
    for block in blocks:
        rows = slice(start, start + block.num_rows)
        start += block.num_rows
        probs = block.probs.double().cpu()
        probs = probs if block.class_dim == 1 else probs.t()
        weight = torch.ones(len(probs), dtype=torch.float64)
        if weights is not None:
            weight = torch.from_numpy(weights[rows])
        place = _log_odds(probs)
        hit = torch.zeros_like(probs).scatter_(1, block.target.cpu().unsqueeze(1), 1.0)
        residual = (hit - probs) * weight.unsqueeze(1)
        if parts is None:
            parts = probs.new_zeros(4 if clusters is not None else 2, number, probs.shape[1])
            moments, mass = probs.new_zeros(11, probs.shape[1]), probs.new_zeros(4, probs.shape[1])
        assert moments is not None
        assert mass is not None
        home = torch.from_numpy(merged[rows])
        parts[0].index_add_(0, home, residual)
        parts[1].index_add_(0, home, residual * place)
        spread = probs * (1 - probs)
        if clusters is not None:
            root = spread.sqrt() * weight.unsqueeze(1)
            parts[2].index_add_(0, home, root)
            parts[3].index_add_(0, home, root * place)
        sums = (probs, hit, spread, spread * place)
        mass += torch.stack([weight @ part for part in sums])
        moments[:10] += _sum_moments(spread, probs, place, weight)
        moments[10] += residual.square().sum(0)
    assert parts is not None
    assert moments is not None
    assert mass is not None
    return _conclude_units(
        parts.numpy(), moments.numpy(), mass.numpy(), weights, start, clusters, resamples, seed
    )


def _sum_moments(spread: Tensor, probs: Tensor, place: Tensor, weight: Tensor) -> Tensor:
    """Sum w^a p (1 − p) (1 − 2p)^(a − 2) x^j for variances (a = 2) and third moments (a = 3)."""
    second, third = spread, spread * (1 - 2 * probs)
    lines = [weight.square() @ (second * place**j) for j in range(3)]
    lines += [weight.pow(3) @ (third * place**j) for j in range(4)]
    lines += [second.sum(0), (second * place).sum(0), probs.sum(0)]
    return torch.stack(lines)


def _merge(
    weights: Floats | None, clusters: NDArray[np.int64] | None, seed: int
) -> tuple[NDArray[np.int64], int]:
    """Return the cluster of each row, merged at random to at most 4,096, and their number."""
    if clusters is None:
        assert weights is not None
        clusters = np.arange(len(weights))
    number = int(clusters.max(initial=-1)) + 1
    if number <= _MOST_CLUSTERS:
        return clusters, number
    generator = np.random.default_rng(seed)
    moved = generator.permutation(number) * _MOST_CLUSTERS // number
    return moved[clusters].astype(np.int64), _MOST_CLUSTERS


def _conclude_units(
    parts: Floats,
    moments: Floats,
    mass: Floats,
    weights: Floats | None,
    num_rows: int,
    clusters: NDArray[np.int64] | None,
    resamples: int,
    seed: int,
) -> ClassTests:
    expected, observed, spread, leaning = mass
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = np.nan_to_num(leaning / spread)
    totals, slopes = parts[0], parts[1] - centre * parts[0]
    scores = np.stack((totals.sum(0), slopes.sum(0)))
    variance = np.stack((moments[0], moments[2] - 2 * centre * moments[1] + centre**2 * moments[0]))
    third = np.stack(
        (
            moments[3],
            moments[6]
            - 3 * centre * moments[5]
            + 3 * centre**2 * moments[4]
            - centre**3 * moments[3],
        )
    )
    independent = _normal_p_values(scores, variance, third)
    if clusters is not None:
        like = _add_correlation(variance, parts, centre, moments[10])
        independent = np.maximum(independent, _normal_p_values(scores, like, third))
    enough = moments[7] >= FEWEST_EXPECTED
    independent[:, ~enough] = np.nan  # the normal limit needs a variance of its own
    tested = ~np.isnan(independent)
    p_values, adjusted = independent.copy(), _adjust(independent)
    few = clusters is not None and len(np.unique(clusters)) < FEWEST_CLUSTERS
    if few:
        p_values[:], adjusted[:] = np.nan, np.nan
    elif tested.any():
        sums = np.stack((totals, slopes), axis=1)[:, tested]
        flipped, corrected = sign_flip_tests(sums, draws=resamples, seed=seed)
        p_values[tested] = np.maximum(p_values[tested], flipped)
        adjusted[tested] = np.maximum(adjusted[tested], corrected)
    whole = max(float(num_rows if weights is None else weights.sum()), 1e-300)
    return ClassTests(
        expected=expected / whole,
        observed=observed / whole,
        expected_rows=moments[9],
        total=p_values[0],
        slope=p_values[1],
        leaning=slopes.sum(0),
        adjusted=adjusted,
    )


def _add_correlation(variance: Floats, parts: Floats, centre: Floats, squares: Floats) -> Floats:
    """Compute the variances of both sums if rows of a cluster are equally correlated, (2, K).

    The correlation of a class is at least 0, and estimated by moments of its residuals.

    Args:
        variance: (2, K) the variances for independent rows.
        parts: (4, G, K) the sums of each cluster, see `run_unit_class_tests`.
        centre: (K,) the mean log-odds that slopes turn about.
        squares: (K,) Σ w² (y − p)².
    """
    residual, _, root, leaning = parts
    together = np.stack(((root**2).sum(0), ((leaning - centre * root) ** 2).sum(0)))
    excess, possible = (residual**2).sum(0) - squares, together[0] - variance[0]
    correlation = np.divide(excess, possible, out=np.zeros_like(excess), where=possible > 1e-12)
    share = np.clip(correlation, 0.0, 1.0)
    added: Floats = (1 - share) * variance + share * together
    return added


def _normal_p_values(score: Floats, variance: Floats, third: Floats) -> Floats:
    """Return two-sided p-values by the normal limit with its skewness term."""
    with np.errstate(invalid="ignore", divide="ignore"):
        z, skewness = score / np.sqrt(variance), third / variance**1.5
        bend = skewness * (1 - z**2) * _density(z) / 6
        lower, upper = _ndtr(z) + bend, _ndtr(-z) - bend
    smaller = np.minimum(np.clip(lower, 0, 1), np.clip(upper, 0, 1))
    return np.where(variance > 0, np.minimum(1.0, 2 * smaller), 1.0)
