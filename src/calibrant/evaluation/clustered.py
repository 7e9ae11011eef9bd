"""Standard errors, intervals and tests for rows that have weights or come in clusters.

Rows of one cluster (a patient, a document, a video) are alike, so that the clusters are the
independent units, not the rows. Weights are sampling or importance weights, free of scale.

==========================  ===================================================================
smooth figures              influence contributions summed within clusters, CR2, t(G − 1)
                            (`influence_interval`)
tests                       signs of whole clusters are flipped (`sign_flip_test`); of totals
                            and slopes also the law of equally correlated rows
ECE-like errors             the inversion with noise that has the clusters' covariance
                            (`make_cell_noise`, `inversion.invert`)
proportions                 Korn & Graubard (`proportion_interval`)
ranked risks                delete-a-group jackknife (`leave_out_weights`, `jackknife_interval`)
==========================  ===================================================================

Every function takes ``weights`` (None: all equal) and ``clusters``, integer codes (None: each
row is a cluster of its own). Under ten clusters nothing can be tested (`FEWEST_CLUSTERS`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core.errors import InputError, first
from calibrant.evaluation.groups.poisson_binomial import error_count_tails
from calibrant.evaluation.inversion import CellNoise
from calibrant.functional.statistics import korn_graubard, skewed_normal_tail
from calibrant.metrics.event_statistics import (
    EPS,
    check_rows,
    oe_ratio_influence,
    oe_ratio_value,
    offset_at_rate,
)

Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]
Statistic: TypeAlias = Callable[[Floats], Floats]
Scale: TypeAlias = Literal["identity", "log", "logit"]

FEWEST_CLUSTERS = 10  # with fewer nothing is tested
_MOST_CLUSTERS = 4096  # of more, clusters are merged at random before signs are flipped
_MOST_NUMBERS = 1 << 24  # of the matrix of clusters and cells
_SIGNS_AT_ONCE = 1 << 22
_CELLS = 480  # of the calibration test: rows of a cell are nearly equally confident
_BINS = 15
_FEW_OF_A_KIND = 10  # events, or rows without: fewer make a normal limit unsound
_MOST_DRAWN = 5000  # clusters of which comonotone sums are drawn
_CLIP = 1e-12  # probabilities this close to 0 or 1 are moved before a logit


# Clusters and weights


def encode_clusters(clusters: ArrayLike) -> Codes:
    """Return codes 0..G−1 for cluster names, which may be numbers or text.

    >>> encode_clusters(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    codes: Codes = np.unique(np.asarray(clusters), return_inverse=True)[1]
    return codes.reshape(-1).astype(np.int64)


def count_clusters(clusters: Codes | None, num_rows: int) -> int:
    """Return the number of independent units: clusters, or rows without clusters."""
    return num_rows if clusters is None else len(np.unique(clusters))


def has_few_clusters(clusters: Codes | None) -> bool:
    """Return whether there are too few clusters to test anything (under ten)."""
    return clusters is not None and len(np.unique(clusters)) < FEWEST_CLUSTERS


def _bin_sums(index: Codes, values: Floats, size: int) -> Floats:
    return np.bincount(index, values, size).astype(np.float64, copy=False)


class _Rows(NamedTuple):
    """The weights (mean 1) and the cluster of every row; None makes each row a cluster."""

    weights: Floats
    codes: Codes | None
    num_clusters: int

    def sum(self, values: Floats) -> Floats:
        """Sum weight·value within clusters."""
        return self.add(self.weights * values)

    def add(self, values: Floats) -> Floats:
        """Sum values within clusters."""
        if self.codes is None:
            return values
        return _bin_sums(self.codes, values, self.num_clusters)

    def shares(self) -> Floats:
        """Return h_g = W_g / W, each cluster's share of the total weight."""
        return self.add(self.weights) / self.weights.sum()

    def merge(self, most: int, seed: int) -> tuple[Codes, int]:
        """Merge clusters at random until at most ``most`` are left; return codes and number."""
        number = self.num_clusters
        if number <= most:
            return np.arange(number) if self.codes is None else self.codes, number
        place = np.random.default_rng(seed).permutation(number) * most // number
        return place if self.codes is None else place[self.codes], most


def _read_rows(num_rows: int, weights: ArrayLike | None, clusters: ArrayLike | None) -> _Rows:
    row_weights = check_weights(weights, num_rows)
    if clusters is None:
        return _Rows(row_weights, None, num_rows)
    names = np.asarray(clusters)
    if names.shape != (num_rows,):
        raise InputError(
            f"clusters must hold one value for each of the {num_rows:,} rows, found shape "
            f"{names.shape}"
        )
    codes = encode_clusters(names)
    return _Rows(row_weights, codes, int(codes.max(initial=-1)) + 1)


def check_weights(weights: ArrayLike | None, num_rows: int) -> Floats:
    """Return the weights with mean 1; all 1 if None. Raise unless all are finite and positive."""
    if weights is None:
        return np.ones(num_rows)
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (num_rows,):
        raise InputError(
            f"weights must hold one number for each of the {num_rows:,} rows, found shape "
            f"{values.shape}"
        )
    bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(bad):
        raise InputError(
            f"weights must be finite and positive, found {values[bad[0]]!r}, first in rows "
            f"{first(bad.tolist())}; leave rows of weight 0 out"
        )
    return values / values.mean()


# Smooth figures


@dataclass(frozen=True)
class RobustInterval:
    """A figure with its cluster-robust standard error and its interval.

    ``standard_error`` is that of ``value`` itself, whatever scale the interval was made on.
    """

    value: float
    low: float
    high: float
    standard_error: float
    num_clusters: int
    degrees: float  # of freedom

    def p_value(self, null: float = 0.0) -> float:
        """Return the two-sided p-value of "the true value is ``null``" by Student's t."""
        from scipy.special import stdtr

        distance = abs(self.value - null)
        if distance == 0 or not self.standard_error < np.inf:
            return 1.0
        if self.standard_error == 0:
            return 0.0
        return float(2 * stdtr(self.degrees, -distance / self.standard_error))


def influence_interval(
    value: float,
    influence: Floats,
    *,
    clusters: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    level: float = 0.95,
    scale: Scale = "identity",
    heavy_tails: bool = False,
) -> RobustInterval:
    """Compute the interval of a smooth figure from the influence of each row.

    A smooth figure θ is nearly a weighted mean: θ̂ − θ ≈ Σ_i w_i ψ_i / W with influences ψ that
    sum to 0. Contributions of a cluster are summed, u_g = Σ_{i∈g} w_i ψ_i / W, and

        variance = Σ_g u_g² / (1 − h_g),  h_g = W_g / W,

    the CR2 estimate of Bell & McCaffrey (2002, "Bias reduction in standard errors for linear
    regression with multi-stage samples"; Cameron & Miller 2015, section VI.B) for a ratio mean:
    the leverage of cluster g is its share of the total weight, and dividing by √(1 − h_g) undoes
    that a residual shrinks by the cluster's own pull on the mean. It is unbiased for
    independent rows whose variance is 1/w. The interval is Student's with G − 1 degrees of
    freedom where all clusters weigh the same, fewer where they differ (`_count_degrees`).
    Without clusters each row is a cluster.

    Args:
        value: θ̂, the figure.
        influence: (N,) ψ, the influence of each row.
        clusters: The cluster of each row; None makes each row a cluster.
        weights: The weight of each row; None for equal weights.
        level: The confidence level.
        scale: Where the interval is symmetric: on the scale of the value, of its logarithm
            (ratios) or of its log-odds (shares).
        heavy_tails: Whether fewer degrees of freedom count where a few clusters contribute most
            of the variance, as they do to slopes and precisions (`_count_spread`). Default:
            False (the classical interval of a mean).

    >>> rows = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    >>> found = influence_interval(rows.mean(), rows - rows.mean(), clusters=[0, 0, 1, 1, 2, 2])
    >>> round(found.standard_error, 4), found.degrees
    (0.1667, 2.0)
    """
    psi = np.asarray(influence, dtype=np.float64)
    number = len(psi)
    if weights is None and clusters is None and number > 1:  # the same, without a pass a term
        error = np.sqrt(float(psi @ psi) / (number * (number - 1)))
        return student_interval(value, error, number, float(number - 1), level, scale)
    rows = _read_rows(number, weights, clusters)
    parts = rows.sum(psi) / rows.weights.sum() * correct_leverage(rows.shares())
    degrees = _count_degrees(rows, psi)
    if heavy_tails and clusters is not None:
        degrees = min(degrees, _count_spread(parts))
    return _robust_interval(value, parts, degrees, level, scale)


def grouped_interval(
    value: float, influence: Floats, numbers: Floats, *, level: float = 0.95, scale: Scale
) -> tuple[float, float]:
    """Compute `influence_interval` of independent rows of which many have the same influence.

    Args:
        value: The figure.
        influence: (M,) ψ of each group of rows.
        numbers: (M,) the rows of each group.
        level: The confidence level.
        scale: Where the interval is symmetric, as in `influence_interval`.
    """
    number = round(float(numbers.sum()))
    error = float(np.sqrt(numbers @ influence**2 / (number * (number - 1))))
    interval = student_interval(value, error, number, float(number - 1), level, scale)
    return interval.low, interval.high


def _count_degrees(rows: _Rows, psi: Floats) -> float:
    """Count the degrees of freedom of a variance of clusters: G − 1 if all weigh the same.

    Satterthwaite's: (Σ_g v_g)² / Σ_g v_g² · (G − 1)/G, v_g being proportional to the variance of a
    cluster's contribution, Σ_{i∈g} w_i² + ρ (W_g² − Σ_{i∈g} w_i²) with the correlation ρ of the
    influences of a cluster's rows. A few clusters that outweigh the rest count for few.
    """
    number = rows.num_clusters
    single = rows.add(rows.weights**2)
    if rows.codes is None:
        return float((number - 1) / number * single.sum() ** 2 / (single @ single))
    pairs = rows.add(rows.weights) ** 2 - single
    alone = float((rows.weights * psi) @ (rows.weights * psi))
    together = float((rows.sum(psi) ** 2).sum())
    spread = float(rows.weights @ psi**2) / float(rows.weights.sum()) * float(pairs.sum())
    correlation = min(max((together - alone) / spread, 0.0), 1.0) if spread > 0 else 0.0
    expected = single + correlation * pairs
    share = expected / expected.sum()
    return max(1.0, float((number - 1) / number / (share**2).sum())) if number > 1 else 0.0


def _count_spread(parts: Floats) -> float:
    """Count the degrees of freedom that match how uncertain Σ_g u_g² is, by its fourth moments.

    A variance with d degrees of freedom has a squared coefficient of variation of 2/d, and that
    of a sum of G squares is estimated as Σ_g u_g⁴ / (Σ_g u_g²)² − 1/G. Contributions with normal
    tails give G; slopes and precisions, to which a few clusters contribute most, fewer.
    """
    squares = parts**2
    total = float(squares.sum())
    if total <= 0:
        return np.inf
    varies = float(squares @ squares) / total**2 - 1.0 / len(parts)
    return max(1.0, 2.0 / varies) if varies > 0 else np.inf


def correct_leverage(share: Floats) -> Floats:
    """Compute 1/√(1 − h); a cluster that is everything says nothing of the spread."""
    return 1.0 / np.sqrt(np.maximum(1.0 - share, 1e-12))


def _robust_interval(
    value: float, parts: Floats, degrees: float, level: float, scale: Scale = "identity"
) -> RobustInterval:
    """Make the interval of a figure from clusters' corrected contributions."""
    if len(parts) < 2:
        return RobustInterval(value, -np.inf, np.inf, np.inf, len(parts), 0.0)
    error = float(np.sqrt(float(parts @ parts)))
    return student_interval(value, error, len(parts), degrees, level, scale)


def student_interval(
    value: float, error: float, number: int, degrees: float, level: float, scale: Scale
) -> RobustInterval:
    """Make Student's interval of a figure from its standard error."""
    from scipy.special import stdtrit

    half = float(stdtrit(degrees, 0.5 + level / 2)) * error
    low, high = value - half, value + half
    if scale == "log" and value > 0:
        low, high = (value * np.exp(sign * half / value) for sign in (-1, 1))
    elif scale == "logit" and 0 < value < 1:
        place, width = np.log(value / (1 - value)), half / (value * (1 - value))
        low, high = (1 / (1 + np.exp(-(place + sign * width))) for sign in (-1, 1))
    return RobustInterval(value, float(low), float(high), error, number, degrees)


def mean_influence(values: Floats, weights: ArrayLike | None = None) -> tuple[float, Floats]:
    """Return the weighted mean and the influences x − mean.

    Args:
        values: (N,) a quantity of each row: its negative log-likelihood, its Brier score, its
            correctness, its gap.
        weights: The weight of each row.
    """
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if weights is not None:
        mean = float(np.average(array, weights=check_weights(weights, len(array))))
    return mean, array - mean


# Proportions


def proportion_interval(
    happened: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    level: float = 0.95,
) -> RobustInterval:
    """Compute Korn & Graubard's interval of a weighted proportion (accuracy, rate of events).

    It is sound for few events, where `influence_interval` is not (see
    `statistics.korn_graubard`). Where all rows agree nothing shows how alike the rows of a
    cluster are: each cluster then counts as one row.

    Args:
        happened: (N,) booleans, or 0 and 1.
        weights: The weight of each row.
        clusters: The cluster of each row.
        level: The confidence level.
    """
    event = np.asarray(happened, dtype=np.float64)
    rate, influence = mean_influence(event, weights)
    interval = influence_interval(rate, influence, clusters=clusters, weights=weights, level=level)
    rows = _read_rows(len(event), weights, clusters)
    count = float(len(event))
    if float(np.ptp(event)) == 0:
        rate = float(event[0])  # exactly
        count = 1.0 / float((rows.shares() ** 2).sum())
    low, high = korn_graubard(rate, interval.standard_error**2, count, interval.degrees, level)
    return RobustInterval(
        rate, low, high, interval.standard_error, interval.num_clusters, interval.degrees
    )


def gap_interval(
    probability: Floats,
    happened: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    level: float = 0.95,
) -> RobustInterval:
    """Compute the interval of mean probability − rate of events.

    It holds both the interval that is symmetric around the gap and the one that is symmetric in
    the logarithm of observed over expected of the rarer outcome: few observed events make their
    own variance look small. With fewer than ten events, or ten rows without, it is widened to
    Korn & Graubard's interval of the rate.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: The weight of each row.
        clusters: The cluster of each row.
        level: The confidence level.
    """
    chance, event = np.asarray(probability, dtype=np.float64), np.asarray(happened, dtype=bool)
    how: dict[str, Any] = {"weights": weights, "clusters": clusters, "level": level}
    gap, influence = mean_influence(chance - event, weights)
    interval = influence_interval(gap, influence, **how)
    low, high = max(interval.low, -1.0), min(interval.high, 1.0)
    events = int(event.sum())
    if 0 < events < len(event):
        common = 2 * events > len(event)
        outcome, claimed = (~event, 1 - chance) if common else (event, chance)
        mean, _ = mean_influence(claimed, weights)
        if mean > 0:
            ratio = influence_interval(
                oe_ratio_value(claimed, outcome, weights),
                oe_ratio_influence(claimed, outcome, weights),
                scale="log",
                **how,
            )
            signed = -mean if common else mean
            ends = [signed * (1 - end) for end in (ratio.low, ratio.high)]
            low, high = min(low, *ends), max(high, *ends)
    if has_few_events(event):
        rate = proportion_interval(event, **how)
        mean = gap + rate.value
        low, high = min(low, mean - rate.high), max(high, mean - rate.low)
    low, high = max(low, -1.0), min(high, 1.0)
    return RobustInterval(
        gap, low, high, interval.standard_error, interval.num_clusters, interval.degrees
    )


def ratio_interval(
    probability: Floats,
    happened: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    level: float = 0.95,
) -> RobustInterval:
    """Compute the interval of observed over expected events, symmetric in its logarithm.

    With fewer than ten events it is widened to Korn & Graubard's interval of their rate, over the
    mean probability.

    Args:
        probability: (N,) probabilities, not all 0.
        happened: (N,) whether the event happened.
        weights: The weight of each row.
        clusters: The cluster of each row.
        level: The confidence level.
    """
    how: dict[str, Any] = {"weights": weights, "clusters": clusters, "level": level}
    ratio = oe_ratio_value(probability, happened, weights)
    influence = oe_ratio_influence(probability, happened, weights)
    interval = influence_interval(ratio, influence, scale="log", **how)
    if not has_few_events(happened):
        return interval
    rate = proportion_interval(happened, **how)
    mean, _ = mean_influence(probability, weights)
    return replace(
        interval, low=min(interval.low, rate.low / mean), high=max(interval.high, rate.high / mean)
    )


def offset_interval(
    probability: Floats,
    happened: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    level: float = 0.95,
    eps: float = EPS,
) -> tuple[float, float]:
    """Compute an interval of calibration in the large that is sound for few events.

    The offset rises with the rate of events alone, so its ends belong to those of Korn &
    Graubard's interval of the rate. An end is infinite where all rows have one outcome.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: The weight of each row.
        clusters: The cluster of each row.
        level: The confidence level.
        eps: Probabilities are moved to [eps, 1 − eps].
    """
    rate = proportion_interval(happened, weights=weights, clusters=clusters, level=level)
    rows = check_rows(probability, np.asarray(happened, dtype=np.float64), weights)
    low, high = (offset_at_rate(rows, end, eps=eps) for end in (rate.low, rate.high))
    return low, high


def has_few_events(happened: ArrayLike) -> bool:
    """Return whether events, or rows without, are too few for a normal limit (under ten)."""
    event = np.asarray(happened, dtype=bool)
    return min(int(event.sum()), int((~event).sum())) < _FEW_OF_A_KIND


# Tests by flipping the signs of whole clusters


def sign_flip_test(
    contributions: Floats,
    statistic: Statistic,
    *,
    draws: int = 1000,
    seed: int = 0,
    inflation: float = 1.0,
) -> float:
    """Return the p-value of "clusters' contributions have mean 0" by flipping their signs.

    If a cluster's contribution (its sums of y − p over cells) is as likely as its opposite,
    every pattern of signs is equally likely, however rows depend on each other within clusters.
    The p-value is (1 + number of drawn values at least as large) / (draws + 1). If there are no
    more than ``draws`` patterns, all of them are compared instead. Where several statistics are
    given, the smallest of their p-values is compared with its own distribution over the draws,
    so that several raise no more false alarms than one. Contributions need not be symmetric
    where there are many clusters, as in every limit theorem.

    More than 4,096 clusters are first merged at random: flipping the merged ones is a subgroup
    of the flips, so the test stays as valid (Hemerik & Goeman 2018, "Exact testing with random
    permutations").

    Args:
        contributions: (G,) or (G, M), one line for each cluster.
        statistic: Maps (R, M) sums over clusters to (R,) values, or to (R, S) of S statistics;
            larger is more extreme.
        draws: The number of patterns of signs.
        seed: The seed of the draws.
        inflation: Factor of the drawn sums, where the observed contributions are known to
            vary less than under the hypothesis.
    """
    parts = np.asarray(contributions, dtype=np.float64)
    parts = merge_clusters(parts[:, None] if parts.ndim == 1 else parts, seed=seed)
    if len(parts) < 2:
        return 1.0
    values = [statistic(parts.sum(0)[None])]
    signs = _draw_signs(len(parts), draws, seed)
    values += [statistic(inflation * (block @ parts)) for block in signs]
    return smallest_p_value(np.concatenate(values))


def sign_flip_tests(
    contributions: Floats, *, draws: int = 1000, seed: int = 0, inflation: ArrayLike = 1.0
) -> tuple[Floats, Floats]:
    """Test many sums at once, each two-sided; return p-values, and adjusted p-values.

    The adjusted p-values control the chance of any false alarm (Westfall & Young 1993, maxT,
    single step): each studentised sum is compared with the largest of all in every draw, which
    accounts for how they depend on each other. Their resolution does not suffer from the
    number of tests, as Holm's correction of drawn p-values would.

    Args:
        contributions: (G, T), each cluster's contribution to each of T sums.
        draws: The number of patterns of signs.
        seed: The seed of the draws.
        inflation: As in `sign_flip_test`; (T,) if it differs between the sums.
    """
    parts = merge_clusters(np.asarray(contributions, dtype=np.float64), seed=seed)
    spread = np.sqrt((parts**2).sum(0))  # the same under every pattern of signs
    parts = parts / np.where(spread > 0, spread, 1.0)
    observed = np.abs(parts.sum(0)) / np.asarray(inflation, dtype=np.float64)
    larger, exceeded, total = np.ones_like(observed), np.ones_like(observed), 1
    for block in _draw_signs(len(parts), draws, seed):
        drawn = np.abs(block @ parts)
        larger += (drawn >= observed - 1e-12).sum(0)
        exceeded += (drawn.max(1)[:, None] >= observed - 1e-12).sum(0)
        total += len(block)
    return larger / total, exceeded / total


def merge_clusters(contributions: Floats, *, most: int = _MOST_CLUSTERS, seed: int = 0) -> Floats:
    """Merge clusters at random until at most ``most`` are left; merged clusters add up."""
    if len(contributions) <= most:
        return contributions
    order = np.random.default_rng(seed).permutation(len(contributions))
    begin = np.arange(most) * len(order) // most
    merged: Floats = np.add.reduceat(contributions[order], begin, axis=0)
    return merged


def _draw_signs(number: int, draws: int, seed: int) -> Any:
    """Yield patterns of ±1 in blocks (lines, number): all of them if there are few enough."""
    if number < 60 and 2**number <= draws:
        patterns = np.arange(1, 2**number)[:, None] >> np.arange(number)  # 0 is the observed
        yield 1.0 - 2.0 * (patterns & 1)
        return
    generator = np.random.default_rng(seed)
    step = max(1, _SIGNS_AT_ONCE // number)
    for begin in range(0, draws, step):
        lines = min(step, draws - begin)
        bits = generator.integers(0, 256, size=(lines, -(-number // 8)), dtype=np.uint8)
        yield 1.0 - 2.0 * np.unpackbits(bits, axis=1, count=number).astype(np.float64)


def smallest_p_value(values: Floats) -> float:
    """Return the p-value of the first line among lines of one or several statistics.

    With several, the smallest of their p-values is compared with that of every other line.

    Args:
        values: (R + 1,) or (R + 1, S), the observed line first.
    """
    lines = values[:, None] if values.ndim == 1 else values
    tolerance = 1e-12 * np.abs(lines).max(0, initial=1e-300)
    ordered = np.sort(lines, axis=0)
    extreme = [
        len(lines) - np.searchsorted(ordered[:, k], lines[:, k] - tolerance[k])
        for k in range(lines.shape[1])
    ]
    smallest = np.min(extreme, axis=0)
    return float((smallest <= smallest[0]).mean())


def total_test(
    probability: Floats,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> float:
    """Return the p-value of "as many events as the probabilities say", Σ w (y − p) = 0.

    It is the largest of three p-values: that of flipping the signs of whole clusters; that of
    independent rows, whose sum has a known distribution (Poisson-binomial); and, with clusters,
    that of rows equally correlated within them (`_exchangeable_p_value`). Clusters of like rows
    only spread the sum further, so the second costs no power. Flipped signs alone would see too
    little spread where fewer events happened than expected. So the drawn sums are
    multiplied by the square root of p̄(1 − p̄) / (ȳ(1 − ȳ)), mean probability and rate, if that
    exceeds 1: the variance is that of the hypothesis. Where far fewer events happened than
    expected, that factor would hide any fault, so the p-value of flips is never above that of
    `comonotone_p_value`, which is valid however alike the rows of a cluster are.

    Args:
        probability: (N,) probabilities of the event.
        happened: (N,) whether the event happened.
        weights: The weight of each row.
        clusters: The cluster of each row.
        resamples: The number of patterns of signs.
        seed: The seed of the draws.
    """
    chance, event = np.asarray(probability, dtype=np.float64), np.asarray(happened, dtype=bool)
    return _linear_test(chance, event, None, weights, clusters, resamples, seed)


def slope_test(
    probability: Floats,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    clip: float = _CLIP,
) -> float:
    """Return the p-value of "the recalibration slope is 1" by its score Σ w (y − p)(x − x̄).

    x = logit p, and x̄ is its mean with the weights w p(1 − p), so that the score ignores a shift
    of all log-odds. Otherwise as `total_test`. 1 where all probabilities are equal.

    Args:
        probability: (N,) probabilities of the event.
        happened: (N,) whether the event happened.
        weights: The weight of each row.
        clusters: The cluster of each row.
        resamples: The number of patterns of signs.
        seed: The seed of the draws.
        clip: Probabilities closer to 0 or 1 than this are moved to it for the logit.
    """
    chance, event = np.asarray(probability, dtype=np.float64), np.asarray(happened, dtype=bool)
    leaning = slope_direction(chance, weights, clip=clip)
    return _linear_test(chance, event, leaning, weights, clusters, resamples, seed)


def slope_direction(
    probability: Floats, weights: ArrayLike | None = None, *, clip: float = _CLIP
) -> Floats:
    """Return x − x̄, x = logit p, the direction of the slope score (see `slope_test`)."""
    inner = np.clip(probability, clip, 1 - clip)
    place: Floats = np.log(inner) - np.log1p(-inner)
    spread = check_weights(weights, len(inner)) * inner * (1 - inner)
    return place - float((spread * place).sum() / spread.sum())


def _linear_test(
    chance: Floats,
    event: NDArray[np.bool_],
    direction: Floats | None,
    weights: ArrayLike | None,
    clusters: ArrayLike | None,
    resamples: int,
    seed: int,
) -> float:
    """Test Σ w d (y − p) = 0 by flips, and by the law of its rows: the largest p-value.

    Flips alone raise too many alarms where the clusters' scores are skewed and few: the spread
    that they show rises and falls with the sum. So the law of rows that are equally correlated
    within clusters is tried too, beside that of independent rows.
    """
    rows = _read_rows(len(chance), weights, clusters)
    if direction is None:
        independent = independent_total_test(chance, event, weights)
    else:
        independent = independent_p_value(chance, event, rows.weights * direction)
    if independent == 1.0:
        return 1.0
    leaning = np.ones_like(chance) if direction is None else direction
    if clusters is not None:
        independent = max(independent, _exchangeable_p_value(rows, chance, event, leaning))
    parts = rows.sum(leaning * (event - chance))
    inflation = find_inflation(chance, event, rows.weights)
    flipped = sign_flip_test(
        parts,
        lambda sums: np.abs(sums[:, 0]),
        draws=resamples,
        seed=seed,
        inflation=inflation,
    )
    if direction is None and inflation > 1 and flipped > independent:
        flipped = min(flipped, _comonotone_p_value(rows, chance, event, resamples, seed))
    return max(independent, flipped)


def independent_total_test(
    chance: Floats, event: NDArray[np.bool_], weights: ArrayLike | None = None
) -> float:
    """Return the p-value of `total_test` for independent rows: exact where rows weigh the same.

    Args:
        chance: (N,) probabilities of the event.
        event: (N,) whether the event happened.
        weights: The weight of each row.
    """
    if weights is not None:
        return independent_p_value(chance, event, check_weights(weights, len(chance)))
    tails = error_count_tails(np.clip(chance, 0, 1), int(event.sum()))
    return min(1.0, 2 * min(tails))


def comonotone_p_value(
    probability: Floats,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    draws: int = 1000,
    seed: int = 0,
) -> float:
    """Return the p-value of Σ w (y − p) if all rows of a cluster shared their luck.

    That is, y = [u < p] with one uniform u for each cluster. Nothing spreads the sum further (the
    comonotone sum is the largest in convex order; Dhaene et al. 2002), so a sum that even this
    does not explain is too large for any likeness of rows. With at most 5,000 clusters the sums
    are drawn; of more, the p-value is that of the normal limit with its skewness, and 1 where
    few clusters outweigh the rest.

    Args:
        probability: (N,) probabilities of the event.
        happened: (N,) whether the event happened.
        weights: The weight of each row.
        clusters: The cluster of each row; None makes each row a cluster.
        draws: The number of sums that are drawn.
        seed: The seed of the draws.
    """
    chance, event = np.asarray(probability, dtype=np.float64), np.asarray(happened, dtype=bool)
    rows = _read_rows(len(chance), weights, clusters)
    return _comonotone_p_value(rows, chance, event, draws, seed)


def _comonotone_p_value(
    rows: _Rows, chance: Floats, event: NDArray[np.bool_], draws: int, seed: int
) -> float:
    chance = np.clip(chance, 0.0, 1.0)
    total = float((rows.weights * (event - chance)).sum())
    codes = np.arange(len(chance)) if rows.codes is None else rows.codes
    order = np.lexsort((chance, codes))
    home, place, weight = codes[order], chance[order], rows.weights[order]
    first = np.searchsorted(home, np.arange(rows.num_clusters + 1))  # of each cluster, and the end
    # Rows of a cluster by rising chance: those from row k on happen if u lies below chance k.
    above = np.append(np.cumsum(weight[::-1])[::-1], 0.0)  # the weight from row k on, all clusters
    mean = rows.sum(chance)
    if rows.num_clusters <= _MOST_DRAWN:
        generator = np.random.default_rng(seed)
        keys = 2.0 * home + place
        reach, base = np.arange(rows.num_clusters), above[first[1:]]
        observed = abs(total) * (1 - 1e-12)
        larger = 1
        for _ in range(draws):
            begin = np.searchsorted(keys, 2.0 * reach + generator.random(len(reach)), side="right")
            larger += abs(float((above[begin] - base - mean).sum())) >= observed
        return larger / (draws + 1)
    before = np.where(np.arange(len(place)) == first[home], 0.0, np.roll(place, 1))
    value = above[:-1] - above[first[home + 1]] - mean[home]  # where u lies between the two
    last = place[first[1:] - 1]
    second, third = (
        float(((place - before) * value**power).sum() + ((1 - last) * (-mean) ** power).sum())
        for power in (2, 3)
    )
    widest = float(np.abs(rows.add(rows.weights)).max())
    if second < _FEW_OF_A_KIND * widest**2:
        return 1.0
    return normal_p_value(total, second, third)


def find_inflation(
    chance: Floats, event: NDArray[np.bool_], weights: ArrayLike | None = None
) -> float:
    """Return how much more sums vary if the probabilities are right than the events show; >= 1."""
    row_weights = None if weights is None else np.asarray(weights, dtype=np.float64)
    expected, rate = (float(np.average(rows, weights=row_weights)) for rows in (chance, event))
    least = 1.0 / len(event)  # one row; no event at all shows no spread
    rate = min(max(rate, least), 1 - least) if len(event) > 1 else 0.5
    return float(np.sqrt(max(1.0, expected * (1 - expected) / (rate * (1 - rate)))))


def _exchangeable_p_value(
    rows: _Rows, chance: Floats, event: NDArray[np.bool_], direction: Floats
) -> float:
    """Return the two-sided p-value of Σ w d (y − p) for rows equally correlated in clusters.

    With s² = p (1 − p) and a correlation ρ >= 0, estimated by moments, the variance is
    (1 − ρ) Σ w² d² s² + ρ Σ_g (Σ_{i∈g} w d s)². The p-value is that of the normal limit with the
    skewness of the rows.
    """
    spread = chance * (1 - chance)
    root, residual = np.sqrt(spread), event - chance
    squares = rows.weights**2
    excess = float((rows.sum(residual) ** 2).sum() - (squares * residual**2).sum())
    possible = float((rows.sum(root) ** 2).sum() - (squares * spread).sum())
    correlation = min(max(excess / possible, 0.0), 1.0) if possible > 1e-12 else 0.0
    factor = rows.weights * direction
    alone = float((factor**2 * spread).sum())
    together = float((rows.sum(direction * root) ** 2).sum())
    variance = (1 - correlation) * alone + correlation * together
    total = float((factor * residual).sum())
    third = float((factor**3 * spread * (1 - 2 * chance)).sum())
    return normal_p_value(total, variance, third)


def independent_p_value(chance: Floats, event: NDArray[np.bool_], factor: Floats) -> float:
    """Return the two-sided p-value of Σ f (y − p) for independent rows.

    It is that of the normal limit with the skewness term.
    """
    spread = chance * (1 - chance)
    variance = float((factor**2 * spread).sum())
    total = float((factor * (event - chance)).sum())
    third = float((factor**3 * spread * (1 - 2 * chance)).sum())
    return normal_p_value(total, variance, third)


def normal_p_value(total: float, variance: float, third: float) -> float:
    """Return the two-sided p-value of a sum of mean 0, given its second and third moments."""
    if variance <= 0:
        return 1.0 if abs(total) < 1e-12 else 0.0
    skewness, score = third / variance**1.5, total / variance**0.5
    below = skewed_normal_tail(score, skewness)
    return min(1.0, 2 * min(below, skewed_normal_tail(-score, -skewness)))


def calibration_test_clustered(
    probability: Floats,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> float:
    """Return the p-value of "a row of probability p is an event with chance p".

    The statistics are those of `verdict.calibration_test`: the KS error over 480 cells of equal
    weight, and the squared error of 15 bins; their smaller p-value is compared with its own
    distribution. Their distribution comes from flipping the signs of whole clusters' residual
    sums. As in `total_test`, the p-value of independent rows is computed too, and the larger
    one is returned.

    Args:
        probability: (N,) probabilities.
        happened: (N,) whether the event happened.
        weights: The weight of each row.
        clusters: The cluster of each row.
        resamples: The number of patterns of signs.
        seed: The seed of the draws.
    """
    chance, event = np.asarray(probability, dtype=np.float64), np.asarray(happened, dtype=bool)
    rows = _read_rows(len(chance), weights, clusters)
    home = find_mass_cells(chance, rows.weights, _CELLS)
    number = int(home.max(initial=0)) + 1
    mass = np.bincount(home, rows.weights, number)
    bins = np.arange(number) * min(_BINS, number) // number
    begin = np.searchsorted(bins, np.arange(bins[-1] + 1))
    bin_mass = np.add.reduceat(mass, begin)

    def statistics(sums: Floats) -> Floats:
        reach = np.abs(np.cumsum(sums, axis=1)).max(1)
        squares = (np.add.reduceat(sums, begin, axis=1) ** 2 / bin_mass).sum(1)
        return np.stack((reach, squares), axis=1)

    codes, units = rows.merge(_MOST_CLUSTERS, seed)
    residual = rows.weights * (event - chance)
    parts = _bin_sums(codes * number + home, residual, units * number).reshape(units, number)
    inflation = find_inflation(chance, event, rows.weights)
    flipped = sign_flip_test(parts, statistics, draws=resamples, seed=seed, inflation=inflation)
    if inflation > 1:  # as in `total_test`: a total that no likeness of rows explains
        flipped = min(flipped, _comonotone_p_value(rows, chance, event, resamples, seed))
    generator = np.random.default_rng(seed)
    if weights is None:
        count = np.bincount(home, minlength=number)
        mean = np.clip(np.bincount(home, chance, number) / count, 0.0, 1.0)
        drawn = generator.binomial(count, mean, size=(resamples, number)) - count * mean
    else:
        spread = np.bincount(home, rows.weights**2 * chance * (1 - chance), number)
        drawn = generator.standard_normal((resamples, number)) * np.sqrt(spread)
    sums = np.concatenate((parts.sum(0)[None], drawn))
    return max(flipped, smallest_p_value(statistics(sums)))


def find_mass_cells(score: Floats, weights: Floats, num_cells: int) -> Codes:
    """Return the cell 0..M−1 of each row: cells of nearly equal weight, by ascending score.

    Tied rows share a cell, that of their middle; no cell is empty.
    """
    order = np.argsort(score, kind="stable")
    ordered = score[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
    upper = np.cumsum(weights[order])[ends]
    middle = 0.5 * (upper + np.concatenate(([0.0], upper[:-1])))
    cell = np.minimum((middle / upper[-1] * num_cells).astype(np.int64), num_cells - 1)
    cell = np.cumsum(np.concatenate(([0], np.diff(cell) > 0)))
    home = np.empty(len(score), dtype=np.int64)
    home[order] = np.repeat(cell, np.diff(ends, prepend=-1))
    return home


# The noise of cells, for ECE-like errors


def make_cell_noise(
    home: Codes,
    residual: Floats,
    shape: tuple[int, ...],
    *,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    seed: int = 0,
) -> CellNoise:
    """Estimate how the sums of cells vary over clusters, for `inversion.invert`.

    A line of the factor holds one cluster's deviations: Σ w (y − p − gap of the cell), divided
    by √(1 − h) with h the cluster's share of the cell (CR2). The sum of the lines' outer
    products is the cluster-robust covariance of the cells' sums of events.

    Args:
        home: (N,) the cell of each row, an index into the flattened cells; (N, K) if each
            row has one in each of K classes.
        residual: y − p, in the shape of ``home``.
        shape: The shape of the cells, that of ``totals`` in `invert` without its last axis.
        weights: The weight of each row, on the scale of ``totals``; None for 1 each.
        clusters: The cluster of each row.
        seed: The seed of merging very many clusters.
    """
    size = int(np.prod(shape))
    row_weights = np.ones(len(home)) if weights is None else np.asarray(weights, dtype=np.float64)
    rows = _read_rows(len(home), weights, clusters)
    most = max(256, min(_MOST_CLUSTERS, _MOST_NUMBERS // size))
    codes, units = rows.merge(most, seed)
    columns = 1 if home.ndim == 1 else home.shape[1]
    cell = home.reshape(-1)
    repeated, unit = np.repeat(row_weights, columns), np.repeat(codes, columns)
    place = unit * size + cell
    mass = _bin_sums(place, repeated, units * size).reshape(units, size)
    sums = _bin_sums(place, repeated * residual.reshape(-1), units * size).reshape(units, size)
    return noise_of_sums(
        mass,
        sums,
        _bin_sums(cell, repeated**2, size),
        shape,
        degrees=float(rows.num_clusters - 1),
        merged=units < rows.num_clusters,
        varying=home.ndim == 1,
    )


def noise_of_sums(
    mass: Floats,
    sums: Floats,
    squares: Floats,
    shape: tuple[int, ...],
    *,
    degrees: float,
    merged: bool,
    varying: bool,
) -> CellNoise:
    """Make the noise of cells from the sums of every cluster; see `make_cell_noise`.

    Args:
        mass: (G, C) Σ w of each cluster and cell.
        sums: (G, C) Σ w (y − p).
        squares: (C,) Σ w² of each cell.
        shape: The shape of the cells.
        degrees: Degrees of freedom, clusters less one.
        merged: Whether clusters were merged.
        varying: Whether the sizes of cells vary: a row lies in one of them.
    """
    total = mass.sum(0)
    gap = np.divide(sums.sum(0), total, out=np.zeros_like(total), where=total > 0)
    share = np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)
    factor = (sums - gap * mass) * correct_leverage(np.minimum(share, 0.99))
    sizes = None
    if varying:
        heavy = mass.sum(1, keepdims=True)
        sizes = (mass - total * heavy / heavy.sum()) / np.sqrt(
            np.maximum(1 - heavy / heavy.sum(), 1e-2)
        )
    return CellNoise(
        factor=factor.reshape(-1, *shape),
        sizes=None if sizes is None else sizes.reshape(-1, *shape),
        rows=squares.reshape(shape),
        clusters=None if merged else (mass**2).sum(0).reshape(shape),
        degrees=degrees,
    )


# Jackknife, for figures without an influence function


def leave_out_weights(
    num_rows: int,
    *,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    most: int = 100,
    seed: int = 0,
) -> Floats:
    """Return (G, N) weights, in line g without cluster g, each line scaled to sum to N.

    More than ``most`` clusters are merged at random: the delete-a-group jackknife.

    Args:
        num_rows: N, the number of rows.
        weights: The weight of each row.
        clusters: The cluster of each row.
        most: The most groups of clusters.
        seed: The seed of merging clusters.
    """
    rows = _read_rows(num_rows, weights, clusters)
    codes, units = rows.merge(most, seed)
    left_weights = rows.weights * (codes != np.arange(units)[:, None])
    return left_weights * (num_rows / left_weights.sum(1, keepdims=True))


def jackknife_interval(
    value: float, left_out: Floats, *, level: float = 0.95, scale: Scale = "identity"
) -> RobustInterval:
    """Compute the interval of a smooth figure from its values without each cluster.

    The variance is (G − 1)/G Σ_g (θ_(g) − mean)², and the interval Student's with G − 1 degrees
    of freedom (Efron & Stein 1981: the variance is not too small on average).

    Args:
        value: The figure of all rows.
        left_out: (G,) its values under `leave_out_weights`.
        level: The confidence level.
        scale: As in `influence_interval`.
    """
    number = len(left_out)
    parts = (left_out - left_out.mean()) * np.sqrt((number - 1) / number)
    return _robust_interval(value, parts, float(number - 1), level, scale)


# Pairs of sets


class PairedDifference(NamedTuple):
    """b − a of one figure, with its interval and p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def paired_interval(
    value_a: float,
    influence_a: Floats,
    value_b: float,
    influence_b: Floats,
    *,
    clusters: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    level: float = 0.95,
) -> PairedDifference:
    """Compute the interval of b − a for two sets of predictions of the same rows.

    The influence of a row on the difference is the difference of its influences, so what the
    sets share in a row cancels out. The rest is `influence_interval`.

    Args:
        value_a: The figure of set a.
        influence_a: (N,) the influence of each row on it.
        value_b: The figure of set b.
        influence_b: (N,) the influence of each row on it.
        clusters: The cluster of each row.
        weights: The weight of each row.
        level: The confidence level.
    """
    interval = influence_interval(
        value_b - value_a,
        np.asarray(influence_b) - np.asarray(influence_a),
        clusters=clusters,
        weights=weights,
        level=level,
    )
    return PairedDifference(interval.value, interval.low, interval.high, interval.p_value())


def swap_test(
    difference: Floats,
    *,
    clusters: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    draws: int = 1000,
    seed: int = 0,
) -> float:
    """Return the p-value of "neither set is better" for a mean of rows, by swapping clusters.

    Swapping the sets in a cluster flips the sign of its sum of differences.

    Args:
        difference: (N,) each row's value in set b less that in set a.
        clusters: The cluster of each row.
        weights: The weight of each row.
        draws: The number of patterns of swaps.
        seed: The seed of the draws.
    """
    rows = _read_rows(len(difference), weights, clusters)
    parts = rows.sum(np.asarray(difference, dtype=np.float64))
    return sign_flip_test(parts, lambda sums: np.abs(sums[:, 0]), draws=draws, seed=seed)
