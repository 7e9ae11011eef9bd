"""Estimate the shares of classes among rows without labels, if nothing else changed.

Under label shift the rows of each class are as they were in the source, p_t(x|y) = p_s(x|y), and
only the shares p(y) differ. Then p_t(y|x) ∝ p_s(y|x)·π_t,y/π_s,y. Everything here is over float64
arrays of NumPy: calibrated logits, labels, and a weight for each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.calibrators.methods.prior_shift import LARGEST_MISFIT, LEVEL

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]

RIDGE = 1.0  # on slope and intercepts: as much as a prior of standard deviation 1
PRIOR_ROWS = 1.0  # rows at the source's shares that EM adds, so that no class becomes impossible
SURE_LEVEL = 0.01  # of the fit test, below which a large misfit is refused
_MOST_STEPS = 200
_STEPS_OF_START = 20  # with the Hessian of the start, before a fit finds its own
_LEAST_SLOPE = 1e-3  # below it the scores say nothing, or the opposite of what they should
_BINS_OF_CLASS = {2: 6, 3: 5, 4: 4, 5: 4}  # the most score bins of a predicted class; else 3
_FEWEST_IN_BIN = 20  # rows of the smaller sample
_DOUBT = 5.0  # rows of a class that may lie in any bin: false alarms are then rare with few rows
_WORK = 200_000_000  # rows x classes x resamples
_FEWEST_RESAMPLES = 100


class Correction(NamedTuple):
    """Slope and intercepts that correct calibrated logits, and what the fit needs again.

    Args:
        slope: a.
        intercept: (K,) b.
        inverse: (K+1, K+1) the inverse of the Hessian at the fit.
    """

    slope: float
    intercept: Floats
    inverse: Floats


def softmax(logits: Floats) -> Floats:
    """Return the softmax of each row."""
    raised = np.exp(logits - logits.max(1)[:, None])
    # A product with ones is several times faster than a sum over a short axis.
    return np.asarray(raised / (raised @ np.ones(raised.shape[1]))[:, None])


def fit_correction(
    logits: Floats, labels: Codes, weights: Floats, start: Correction | None = None
) -> Correction:
    """Fit softmax(a·z + b), bias-corrected temperature scaling, by maximum likelihood.

    Alexandari, Kundaje and Shrikumar (2020), section 3.1, with a ridge ½((a − 1)² + |b|²), which
    keeps classes of few rows in bounds. Newton's method; given a start, with its Hessian.

    Args:
        logits: (N,K) calibrated logits.
        labels: (N,) labels.
        weights: (N,) weights, in rows.
        start: A fit on like rows, to begin from. Default: None (a = 1, b = 0).
    """
    width = logits.shape[1]
    ones = np.ones(width)
    centred = logits - (logits @ ones / width)[:, None]
    top = centred.max(1)
    hits = np.bincount(labels, weights, width)
    aligned = float(weights @ centred[np.arange(len(labels)), labels])

    def raise_rows(point: Floats, exact: bool) -> tuple[Floats, Floats, Floats]:
        """Return shifted exponentials of the rows' logits, their sums, and the shifts."""
        mapped = (1 + point[0]) * centred + point[1:]
        # The largest logit costs more than its bound, which does near the optimum.
        shift = mapped.max(1) if exact else (1 + point[0]) * top + point[1:].max()
        raised = np.exp(mapped - shift[:, None])
        return raised, raised @ ones, shift

    def find_loss(point: Floats) -> float:
        _, sums, shift = raise_rows(point, True)
        reward = (1 + point[0]) * aligned + float(hits @ point[1:])
        return float(weights @ (np.log(sums) + shift)) - reward + RIDGE / 2 * float(point @ point)

    begun = Correction(1.0, np.zeros(width), np.eye(width + 1)) if start is None else start
    point: Floats = np.concatenate(([begun.slope - 1], begun.intercept))
    inverse = begun.inverse
    for step in range(_MOST_STEPS):
        exact = start is None or step >= _STEPS_OF_START  # the start's Hessian did not do
        raised, sums, _ = raise_rows(point, exact)
        row_weights = weights / sums
        slope = float(np.einsum("i,ij,ij->", row_weights, raised, centred)) - aligned
        gradient = np.concatenate(([slope], row_weights @ raised - hits)) + RIDGE * point
        if exact:
            hessian = _find_hessian(centred, raised / sums[:, None], weights)
            inverse = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
        move: Floats = inverse @ gradient
        size = float(np.abs(move).max())
        length, loss = 1.0, find_loss(point) if exact else 0.0
        while exact and length > 1e-6 and not find_loss(point - length * move) <= loss + 1e-12:
            length /= 2
        point = point - length * move
        if size < (1e-9 if start is None else 1e-4):
            break
    return Correction(max(1 + float(point[0]), _LEAST_SLOPE), point[1:], inverse)


def _find_hessian(centred: Floats, probs: Floats, weights: Floats) -> Floats:
    """Return the Hessian of the penalised likelihood by slope and intercepts."""
    weighted = probs * weights[:, None]
    mean = (probs * centred).sum(1, keepdims=True)
    width = probs.shape[1]
    hessian = np.empty((width + 1, width + 1))
    hessian[0, 0] = float((weighted * centred * (centred - mean)).sum())
    hessian[0, 1:] = hessian[1:, 0] = (weighted * (centred - mean)).sum(0)
    hessian[1:, 1:] = np.diag(weighted.sum(0)) - weighted.T @ probs
    hessian[np.diag_indices(width + 1)] += RIDGE
    return hessian


def apply_correction(logits: Floats, correction: Correction) -> Floats:
    """Return the corrected probabilities of rows.

    Args:
        logits: (N,K) calibrated logits.
        correction: The fit of `fit_correction`.
    """
    return softmax(correction.slope * logits + correction.intercept)


def estimate_em(
    probs: Floats,
    source: Floats,
    weights: Floats,
    *,
    start: Floats | None = None,
    prior_rows: float = PRIOR_ROWS,
    tolerance: float = 1e-9,
) -> Floats:
    """Return the shares of classes among new rows, by expectation and maximisation.

    Iterates π_k ← mean over rows of p_k·(π_k/π_s,k), normalised in each row (Saerens, Latinne and
    Decaestecker 2002, eqs. 4.2 and 4.3), with ``prior_rows`` rows at the source's shares added, to
    the fixed point. Steps are extrapolated (SQUAREM: Varadhan and Roland 2008, scheme S3).

    Args:
        probs: (M,K) probabilities of the new rows, calibrated on the source.
        source: (K,) shares in the source.
        weights: (M,) weights, in rows.
        start: Shares to begin from. Default: None (those of the source).
        prior_rows: How many rows at the source's shares are added. Default: 1 (ours: no class
            becomes impossible, and the estimate hardly moves).
        tolerance: The total change of an iteration at which to stop. Default: 1e-9.
    """
    ratio = probs / source
    total = float(weights.sum()) + prior_rows

    def iterate(shares: Floats) -> Floats:
        mixed = ratio @ shares
        return np.asarray((shares * ((weights / mixed) @ ratio) + prior_rows * source) / total)

    shares: Floats = source if start is None else start
    for _ in range(5 * _MOST_STEPS):
        first = iterate(shares)
        change = first - shares
        if float(np.abs(change).sum()) < tolerance:
            return first
        second = iterate(first)
        curve = second - first - change
        size = float(curve @ curve)
        length = -np.sqrt(float(change @ change) / size) if size > 0 else -1.0
        candidate = shares - 2 * length * change + length**2 * curve
        # Far extrapolations may leave the simplex; two plain steps never do.
        shares = iterate(candidate) if candidate.min() > 0 else second
    return shares


def predict_evenly(probs: Floats, source: Floats) -> Codes:
    """Return the class that each row would have if all classes had the same share.

    Args:
        probs: (N,K) probabilities.
        source: (K,) the shares that they hold for.
    """
    return np.asarray((probs / source).argmax(1), dtype=np.int64)


def tabulate(cells: Codes, labels: Codes, weights: Floats, num_cells: int, width: int) -> Floats:
    """Return the share of each cell among the rows of each class, (cells, K).

    Args:
        cells: (N,) the cell of each row.
        labels: (N,) the class of each row.
        weights: (N,) weights.
        num_cells: The number of cells.
        width: K.
    """
    counts = np.bincount(cells * width + labels, weights, num_cells * width)
    table = counts.reshape(num_cells, width).astype(np.float64)
    return np.asarray(table / table.sum(0))


def estimate_bbse(confusion: Floats, predicted: Floats) -> Floats:
    """Return the shares of classes by black box shift estimation.

    Solves C·π = μ (Lipton, Wang and Smola 2018, proposition 2, by class shares instead of their
    ratios); negative shares become 0.

    Args:
        confusion: (K,K) C, the share of each prediction among the rows of each class.
        predicted: (K,) μ, the share of each prediction among the new rows.
    """
    shares = np.linalg.lstsq(confusion, predicted, rcond=None)[0].clip(min=0)
    total = float(shares.sum())
    return np.asarray(shares / total if total > 0 else np.full(len(shares), 1 / len(shares)))


class Fit(NamedTuple):
    """The test of whether label shift explains the scores of new rows.

    Args:
        p_value: The p-value of the hypothesis that it does; None if there are too few rows to test.
        num_bins: The number of score bins.
        misfit: The total variation that label shift leaves, less what chance adds.
    """

    p_value: float | None
    num_bins: int
    misfit: float | None

    @property
    def is_off(self) -> bool:
        """Return whether the hypothesis is rejected at 5%."""
        return self.p_value is not None and self.p_value < LEVEL

    @property
    def is_refused(self) -> bool:
        """Return whether the misfit is too large, and not by chance.

        A misfit that chance made is large where rows are few, so this takes a p-value below 1%.
        """
        sure = self.p_value is not None and self.p_value < SURE_LEVEL
        return sure and self.misfit is not None and self.misfit > LARGEST_MISFIT


class Rows(NamedTuple):
    """Rows of the source, with labels, or new ones.

    Args:
        logits: (N,K) calibrated logits.
        weights: (N,) weights, 1 on average.
        clusters: (N,) the number of each row's cluster; None if rows are independent.
        labels: (N,) labels; empty for new rows.
    """

    logits: Floats
    weights: Floats
    clusters: Codes | None
    labels: Codes

    @property
    def num_units(self) -> int:
        """Return the number of independent units: rows, or clusters."""
        return len(self.weights) if self.clusters is None else int(self.clusters.max()) + 1


def test_fit(
    source: Rows, target: Rows, source_probs: Floats, target_probs: Floats, shares: Floats
) -> Fit:
    """Test whether some shares of classes explain how the new rows' scores are distributed.

    Score bins are more than classes: each predicted class (as if classes were even) is cut at
    quantiles of its log-odds. Under label shift the share of bin m among new rows is Σ_k π_k·A_mk,
    A_mk its share among source rows of class k. With h = μ − A·π, the least hᵀΣ⁻¹h over π, Σ the
    covariance of h by clusters of both samples, is chi-squared with bins − classes degrees of
    freedom (Hansen 1982, "Large sample properties of generalized method of moments estimators").

    Args:
        source: The source rows.
        target: The new rows.
        source_probs: (N,K) corrected probabilities of the source rows.
        target_probs: (M,K) those of the new rows.
        shares: (K,) the estimated shares of the new rows, for Σ.
    """
    from scipy.special import chdtrc

    width = len(shares)
    base = source_probs.T @ source.weights / source.weights.sum()
    cells_s, cells_t, number = _cut_scores(source, target, source_probs, target_probs, base)
    if number <= width:
        return Fit(None, number, None)
    table = tabulate(cells_s, source.labels, source.weights, number, width)
    observed = np.bincount(cells_t, target.weights, number) / target.weights.sum()
    class_sums = np.bincount(source.labels, source.weights, width)
    covariance = _cluster_covariance(
        (source.weights / class_sums[source.labels] * shares[source.labels]),
        cells_s,
        table.T[source.labels],
        source.clusters,
    )
    covariance += _cluster_covariance(
        target.weights / target.weights.sum(), cells_t, observed[None], target.clusters
    )
    covariance += _doubt_few_rows(table, class_sums.astype(np.float64), shares)
    # One bin follows from the others, and one share.
    weight = np.linalg.pinv(covariance[:-1, :-1], rcond=1e-10, hermitian=True)
    slopes = (table[:, :-1] - table[:, -1:])[:-1]
    response = (observed - table[:, -1])[:-1]
    gain = np.linalg.pinv(slopes.T @ weight @ slopes, hermitian=True) @ slopes.T @ weight
    left = response - slopes @ (gain @ response)
    statistic = float(left @ weight @ left)
    degrees = number - width
    p_value = float(chdtrc(degrees, statistic))
    residual = np.append(left, -left.sum())
    total = 0.5 * float(np.abs(residual).sum())
    # What chance leaves: normal, with the residuals' covariance.
    keep = np.eye(number - 1) - slopes @ gain
    spread = keep @ covariance[:-1, :-1] @ keep.T
    full = np.vstack((np.eye(number - 1), -np.ones(number - 1)))
    deviations = np.sqrt(np.einsum("ij,jk,ik->i", full, spread, full).clip(min=0))
    chance = 0.5 * float(np.sqrt(2 / np.pi) * deviations.sum())
    return Fit(p_value, number, max(0.0, total**2 - chance**2) ** 0.5)


def _doubt_few_rows(table: Floats, counts: Floats, shares: Floats) -> Floats:
    """Return the covariance that a class's few rows hide, because they miss most of its bins.

    A class's distribution over bins is that of its rows and of five more, which are drawn from the
    bins of all classes. With few rows the first is too certain; with many the second is nothing.

    Args:
        table: (bins, K) the share of each bin among the source rows of each class.
        counts: (K,) the source rows of each class.
        shares: (K,) the estimated shares of the new rows.
    """
    mixed = table @ shares
    size = float((shares**2 * _DOUBT / (counts * (counts + _DOUBT))).sum())
    return np.asarray(size * (np.diag(mixed) - np.outer(mixed, mixed)))


def _cut_scores(
    source: Rows, target: Rows, source_probs: Floats, target_probs: Floats, base: Floats
) -> tuple[Codes, Codes, int]:
    """Return the score bin of each row of both samples, and the number of bins."""
    width = len(base)
    predicted = [predict_evenly(probs, base) for probs in (source_probs, target_probs)]
    odds = []
    for probs, classes in zip((source_probs, target_probs), predicted, strict=True):
        even = np.log(np.clip(probs / base, 1e-300, None))
        top = np.take_along_axis(even, classes[:, None], 1)[:, 0]
        np.put_along_axis(even, classes[:, None], -np.inf, 1)
        odds.append(top - np.logaddexp.reduce(even, axis=1))
    most = _BINS_OF_CLASS.get(width, 3)
    # With few clusters the covariance of many bins would be singular.
    allowed = max(width, min(source.num_units, target.num_units) // 5)
    most = max(1, min(most, allowed // width))
    cells = [np.zeros(len(sample), dtype=np.int64) for sample in predicted]
    number = 0
    for k in range(width):
        inside = [classes == k for classes in predicted]
        fewest = min(int(rows.sum()) for rows in inside)
        if not any(bool(rows.any()) for rows in inside):
            continue
        pieces = int(min(most, max(1, fewest // _FEWEST_IN_BIN)))
        joint = np.concatenate([o[i] for o, i in zip(odds, inside, strict=True)])
        share = np.concatenate([np.full(int(i.sum()), 1 / len(i)) for i in inside])
        order = np.argsort(joint, kind="stable")
        rank = (share[order].cumsum() - share[order] / 2) / share.sum()
        cuts = np.interp(np.arange(1, pieces) / pieces, rank, joint[order])
        cuts = np.unique(cuts)
        for place in (0, 1):
            own_odds = odds[place][inside[place]]
            cells[place][inside[place]] = number + np.searchsorted(cuts, own_odds, side="right")
        number += len(cuts) + 1
    # A bin without source rows has no share to compare with.
    is_used = np.bincount(cells[0], minlength=number) + np.bincount(cells[1], minlength=number) > 0
    codes = is_used.cumsum() - 1
    return codes[cells[0]], codes[cells[1]], int(is_used.sum())


def _cluster_covariance(
    sizes: Floats, cells: Codes, means: Floats, clusters: Codes | None
) -> Floats:
    """Return Σ_c s_c·s_cᵀ, s_c the sum over a cluster's rows of size·(e_cell − mean)."""
    rows = len(sizes)
    number = means.shape[1]
    influence = np.broadcast_to(-means, (rows, number)) * sizes[:, None]
    influence[np.arange(rows), cells] += sizes
    if clusters is not None:
        sums = np.zeros((int(clusters.max()) + 1, number))
        np.add.at(sums, clusters, influence)
        influence = sums
    return np.asarray(influence.T @ influence)


def limit_resamples(source: Rows, target: Rows, resamples: int) -> int:
    """Return ``resamples``, or fewer (at least 100) where there are many rows and classes.

    Args:
        source: The source rows.
        target: The new rows.
        resamples: The number asked for.
    """
    size = source.logits.size + target.logits.size
    return min(resamples, max(_FEWEST_RESAMPLES, _WORK // size))


def resample_shares(
    source: Rows, target: Rows, correction: Correction, shares: Floats, resamples: int, seed: int
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the weights of source rows and the estimated shares in resamples of both samples.

    Each unit, a row or a cluster, gets an exponential weight (the Bayesian bootstrap: Rubin 1981),
    so that no class ever vanishes. Both fits are repeated: correction and shares.

    Args:
        source: The source rows.
        target: The new rows.
        correction: The fit on all source rows.
        shares: The estimate on all rows.
        resamples: The number of resamples.
        seed: The seed of the draws.
    """
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        weights = [draw_weights(rows, rng) for rows in (source, target)]
        refit = fit_correction(source.logits, source.labels, weights[0], correction)
        base = weights[0] @ apply_correction(source.logits, refit) / weights[0].sum()
        probs = apply_correction(target.logits, refit)
        drawn = estimate_em(probs, base, weights[1], start=shares, tolerance=1e-5)
        yield weights[0], drawn


def bound_shares(
    shares: Floats, draws: Floats, num_units: int, level: float, seed: int
) -> tuple[Floats, Floats]:
    """Return the ends of an interval of each share.

    Each end is the further one of the percentile and the normal interval: percentiles alone hold
    small shares too rarely. The upper percentile is that of draws with Gamma(½) rows added, so that
    a class which seems to be absent keeps an upper bound, as Jeffreys' interval has.

    Args:
        shares: (K,) the estimate.
        draws: (R,K) the estimate in resamples.
        num_units: The number of new rows, or of their clusters.
        level: The confidence level.
        seed: The seed of the added rows.
    """
    from scipy.special import ndtri

    tail = (1 - level) / 2
    reach = float(-ndtri(tail)) * draws.std(0, ddof=1)
    added = np.random.default_rng(seed).gamma(0.5, size=draws.shape) / num_units
    low = np.minimum(np.quantile(draws, tail, axis=0), shares - reach)
    high = np.maximum(np.quantile(draws + added, 1 - tail, axis=0), shares + reach)
    return low.clip(min=0), high.clip(max=1)


def draw_weights(rows: Rows, rng: np.random.Generator) -> Floats:
    """Return the weights of rows in a resample of their units, 1 on average.

    Args:
        rows: The rows.
        rng: The generator.
    """
    drawn = rng.standard_exponential(rows.num_units)
    weights = rows.weights * (drawn if rows.clusters is None else drawn[rows.clusters])
    return np.asarray(weights * (len(weights) / weights.sum()))
