"""Curves of an evaluation, computed apart from their drawing.

The judged rows are pooled into cells by ascending probability (`pool_rows`), and every curve is
computed from the cells: the isotonic reliability curve with its band (`prepare_corp`), the curve
of the smooth calibration error (`prepare_kernel`), the decision curve (`prepare_decision`) and
the distributions of the probabilities (`prepare_distribution`). Up to about two thousand distinct
probabilities have a cell each, so that nothing is lost; beyond, neighbours share one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrant.core.errors import InputError
from calibrant.metrics.event_statistics import Groups, check_rows, decision_table, isotonic_curve
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.toplabel import share_on_grid, smooth_calibration_error

if TYPE_CHECKING:
    import pandas as pd

Floats: TypeAlias = NDArray[np.float64]
Scale: TypeAlias = Literal["linear", "log"]

FINE = (1000, 1024)  # cells of equally many rows, and of equal width
COARSE = (256, 256)  # the same where sums are kept for every cluster
MOST_CLUSTERS = 200  # sums that are kept; more clusters are joined at random
FEWEST_CLUSTERS = 10  # fewer say too little about chance
RARE = 0.05  # a mean probability or frequency below this is read on a log scale
GRID = 4096  # places of the kernel curve, as of the metric
_THRESHOLDS = 100  # of the decision curve, as in `decision_table`


class Cells(NamedTuple):
    """Rows pooled by probability, ascending; a cell holds whole groups of equal probability."""

    rows: Floats  # (C,)
    weight: Floats  # (C,) sum of the weights; the rows, if all count the same
    squares: Floats  # (C,) sum of the squared weights
    probability: Floats  # (C,) weighted mean
    frequency: Floats  # (C,) weighted share of events
    excess: Floats | None = None  # (G, C) weighted events − expected ones, of each cluster

    @property
    def mean_probability(self) -> float:
        """Return the weighted mean probability of all rows."""
        return float(self.weight @ self.probability / self.weight.sum())

    @property
    def mean_frequency(self) -> float:
        """Return the weighted share of events among all rows."""
        return float(self.weight @ self.frequency / self.weight.sum())


def pool_rows(
    probability: ArrayLike,
    happened: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: ArrayLike | None = None,
    *,
    seed: int = 0,
) -> Cells:
    """Pool rows into at most some two thousand cells by probability.

    Cells are cut where cells of equally many rows are, where cells of equal width are, and at the
    thresholds of the decision curve, which therefore loses nothing. Rows of equal probability
    stay together. With clusters there are at most some six hundred cells, and sums for each
    cluster; more than 200 clusters are joined at random, which leaves them independent.

    Args:
        probability: (N,) probabilities in [0, 1].
        happened: (N,) whether the event happened.
        weights: (N,) weights. Default: None (ours: rows count the same).
        clusters: (N,) the cluster of each row. Default: None (ours: rows are independent).
        seed: The seed that joins clusters. Default: 0 (ours).
    """
    p, y, _ = check_rows(probability, happened, weights)
    w = np.ones_like(p) if weights is None else np.asarray(weights, dtype=np.float64)
    order = np.argsort(p)
    score = p[order]
    begins = np.flatnonzero(np.concatenate(([True], score[1:] != score[:-1])))
    parts = (np.ones_like(w), w, w * w, w * p, w * y)
    bounds = np.append(begins, len(p))
    sums = [np.concatenate(([0.0], np.cumsum(quantity[order])))[bounds] for quantity in parts]
    rate = float(sums[4][-1] / sums[1][-1])
    ends = _find_ends(score[begins], sums[0], rate, COARSE if clusters is not None else FINE)
    cells, first = _make_cells(score[begins], ends, *(cumulative[ends] for cumulative in sums))
    if clusters is None:
        return cells
    codes = np.unique(np.asarray(clusters), return_inverse=True)[1].reshape(-1)
    return cells._replace(excess=_sum_clusters(first, p, w * (y - p), codes, seed))


def pool_state(state: RankState, clusters: NDArray[np.int64] | None = None) -> Cells:
    """Pool the rows of a state, which are sorted already unless they have weights.

    Args:
        state: The judged probability of each row, and whether it came true.
        clusters: (N,) the number of each row's cluster, from 0. Default: None (ours: rows
            are independent).
    """
    weights = state.row_weights()
    if weights is not None:
        return pool_rows(*_judged_rows(state), weights.double().cpu().numpy(), clusters)
    ranked = state.rank_rows()
    rows, wrong, total = (
        tensor.cpu().numpy() for tensor in (ranked.bounds, ranked.values, ranked.scores)
    )
    score, number = ranked.score.cpu().numpy(), float(rows[-1])
    rate = (number - float(wrong[-1])) / number
    ends = _find_ends(score, rows, rate, COARSE if clusters is not None else FINE)
    count = rows[ends]
    cells, first = _make_cells(score, ends, count, count, count, total[ends], count - wrong[ends])
    if clusters is None:
        return cells
    p, y = _judged_rows(state)
    return cells._replace(excess=_sum_clusters(first, p, y - p, clusters, 0))


def _judged_rows(state: RankState) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the judged probability of each row, and whether it came true."""
    p = state.concatenate("scores").double().clamp(0.0, 1.0)
    return p.cpu().numpy(), (~state.concatenate("losses")).cpu().numpy()


def _find_ends(
    score: Floats, rows: NDArray[Any], rate: float, size: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the groups of equal probability at which cells begin, and the number of groups.

    Args:
        score: (G,) the probability of each group, ascending.
        rows: (G+1,) the rows up to each group.
        rate: The share of events.
        size: The number of equal-mass and of equal-width cells.
    """
    by_mass, by_width = size
    if len(score) <= by_mass + by_width:
        return np.arange(len(score) + 1)
    # The thresholds of `decision_table`, from which on rows are treated.
    thresholds = np.linspace(0.0, max(0.05, min(0.99, 4 * rate)), _THRESHOLDS)
    # Of the type of the sums: searchsorted would convert all of them.
    ranks = np.ceil(np.arange(1, by_mass) / by_mass * rows[-1]).astype(rows.dtype)
    places = (
        [0, len(score)],
        np.searchsorted(rows[1:], ranks),
        np.searchsorted(score, np.arange(1, by_width) / by_width, side="right"),
        np.searchsorted(score, thresholds, side="left"),
    )
    return np.unique(np.concatenate(places))


def _make_cells(
    score: Floats, ends: NDArray[np.int64], *sums: NDArray[Any]
) -> tuple[Cells, Floats]:
    """Make cells from sums up to their ends; return them and the least probability of each.

    The sums are of rows, weights, squared weights, weighted probability and weighted events.
    """
    first, last = (np.clip(score[places], 0.0, 1.0) for places in (ends[:-1], ends[1:] - 1))
    rows, weight, squares, total, events = (
        np.diff(cumulative).astype(np.float64) for cumulative in sums
    )
    # The mean is clipped to be exactly the probability where there is only one.
    mean, rate = np.clip(total / weight, first, last), np.clip(events / weight, 0.0, 1.0)
    return Cells(rows, weight, squares, mean, rate), first


def _sum_clusters(
    first: Floats, p: Floats, excess: Floats, clusters: NDArray[np.int64], seed: int
) -> Floats:
    """Sum events − expected ones over the rows of each cluster in each cell, (G, C)."""
    used = np.bincount(clusters) > 0  # ignored rows may have left a number unused
    codes, number = (np.cumsum(used) - 1)[clusters], int(used.sum())
    if number > MOST_CLUSTERS:
        # Every joint cluster gets as many clusters as any other, or one more.
        home = np.random.default_rng(seed).permutation(number) % MOST_CLUSTERS
        codes, number = home[codes], MOST_CLUSTERS
    cell = np.searchsorted(first, p, side="right") - 1
    size = len(first)
    sums: Floats = np.bincount(codes * size + cell, excess, number * size).astype(np.float64)
    return sums.reshape(number, size)


# ------------------------------------------------------------------ reliability


class CorpCurve(NamedTuple):
    """The isotonic reliability curve at every cell, and what a calibrated model would show."""

    probability: Floats  # (C,) ascending
    frequency: Floats  # (C,) the isotonic regression of the events on the probability
    low: Floats  # (C,) the band; NaN with too few clusters
    high: Floats
    level: float
    resamples: int


def prepare_corp(
    cells: Cells, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> CorpCurve:
    """Compute CORP's reliability curve with its consistency band (Dimitriadis et al. 2021).

    The curve is the isotonic regression of what happened on the probability, which needs neither
    bins nor a bandwidth. The band holds, at each probability by itself, ``level`` of the curves
    of a calibrated model: events are drawn with the given probabilities, and each draw gets an
    isotonic curve of its own. With weights a cell's draws have the mean and the variance of its
    weighted sum. With clusters, whose rows are alike, the signs of whole clusters' differences
    between events and expected events are flipped instead.

    Args:
        cells: The pooled rows, from `pool_rows`.
        level: The share of a calibrated model's curves that the band holds. Default: 0.95 (ours).
        resamples: The number of draws. Default: 1000 (ours: the ends vary by about a tenth of
            the band's half-width).
        seed: The seed of the draws. Default: 0 (ours).
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie in (0, 1), found {level!r}")
    if resamples < 20:
        raise InputError(f"a band needs at least 20 resamples, found {resamples!r}")
    p, weight = cells.probability, cells.weight
    curve = isotonic_curve(Groups(p, weight, weight * cells.frequency))
    low, high = np.full_like(p, np.nan), np.full_like(p, np.nan)
    if cells.excess is None or len(cells.excess) >= FEWEST_CLUSTERS:
        drawn = _draw_events(cells, resamples, seed)
        curves = np.stack([isotonic_curve(Groups(p, weight, events)) for events in drawn])
        low, high = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return CorpCurve(p, curve, low, high, level, resamples)


def _draw_events(cells: Cells, resamples: int, seed: int) -> Floats:
    """Draw the weighted events of each cell under calibration, (resamples, C)."""
    generator = np.random.default_rng(seed)
    expected = cells.weight * cells.probability
    if cells.excess is not None:
        signs = generator.choice([-1.0, 1.0], size=(resamples, len(cells.excess)))
        flipped: Floats = expected + signs @ cells.excess
        return flipped
    rows = np.rint(cells.rows).astype(np.int64)
    events = generator.binomial(rows, cells.probability, size=(resamples, len(rows)))
    # Σ w² p (1 − p) is the variance of the weighted sum: that of n rows of the weight √(Σw²/n).
    heft = np.sqrt(cells.squares / cells.rows)
    drawn: Floats = expected + heft * (events - cells.rows * cells.probability)
    return drawn


def prepare_bins(
    cells: Cells,
    *,
    num_bins: int = 15,
    scale: Scale | None = None,
    floor: float | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Compute mean probability and frequency of bins, with the band of a calibrated model.

    Returns a table with columns ``low``, ``high``, ``count``, ``probability``, ``frequency``,
    ``band_low`` and ``band_high``, of the bins that hold rows. The band is drawn as that of
    `prepare_corp`.

    Args:
        cells: The pooled rows, from `pool_rows`.
        num_bins: The number of bins. Default: 15 (Guo et al. 2017).
        scale: Bins of equal width (``"linear"``), or of equal width on a log scale, the first
            holding everything below (``"log"``). Default: None (ours: log where events are rare).
        floor: Where a log scale begins. Default: None (ours: that of `find_floor`).
        level: The share of a calibrated model's frequencies that the band holds. Default: 0.95
            (ours).
        resamples: The number of draws. Default: 1000 (ours, as `prepare_corp`).
        seed: The seed of the draws. Default: 0 (ours).
    """
    import pandas as pd

    if num_bins < 1:
        raise InputError(f"num_bins must be at least 1, found {num_bins!r}")
    if choose_scale(cells, scale) == "log":
        edges = np.logspace(np.log10(floor or find_floor(cells)), 0.0, num_bins + 1)
    else:
        edges = np.linspace(0.0, 1.0, num_bins + 1)
    home = np.clip(np.searchsorted(edges, cells.probability, side="left") - 1, 0, num_bins - 1)
    edges[0] = 0.0
    used, home = np.unique(home, return_inverse=True)

    def total(values: Floats) -> Floats:
        return np.bincount(home, values, len(used)).astype(np.float64)

    weight = total(cells.weight)
    low, high = np.full_like(weight, np.nan), np.full_like(weight, np.nan)
    if cells.excess is None or len(cells.excess) >= FEWEST_CLUSTERS:
        drawn = (
            np.stack([total(events) for events in _draw_events(cells, resamples, seed)]) / weight
        )
        ends = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
        low, high = np.clip(ends, 0.0, 1.0)
    return pd.DataFrame(
        {
            "low": edges[used],
            "high": edges[used + 1],
            "count": np.rint(total(cells.rows)).astype(np.int64),
            "probability": total(cells.weight * cells.probability) / weight,
            "frequency": total(cells.weight * cells.frequency) / weight,
            "band_low": low,
            "band_high": high,
        }
    )


class KernelCurve(NamedTuple):
    """The reliability curve of the smooth calibration error, on a grid over [0, 1]."""

    probability: Floats  # (GRID,) ascending
    frequency: Floats  # (GRID,) probability + smoothed (event − probability)
    density: Floats  # (GRID,) smoothed share of rows; its mean is 1
    bandwidth: float  # the kernel's standard deviation
    error: float  # the mean of |frequency − probability| over the density: smooth ECE


def prepare_kernel(cells: Cells) -> KernelCurve:
    """Compute the curve whose distance from the diagonal is the smooth ECE.

    With the metric's Gaussian kernel K, reflected at 0 and 1, whose bandwidth equals the error
    (Błasiok & Nakkiran 2023): t + Σ w K(t, p)(y − p) / Σ w K(t, p). The mean of its distance
    from the diagonal, weighted by the smoothed density of the probabilities, is the metric.

    Args:
        cells: The pooled rows, from `pool_rows`.
    """
    from scipy.fft import dct, idct

    share = cells.weight / cells.weight.sum()
    residual = share * (cells.probability - cells.frequency)
    # The bandwidth is the fixed point smECE_σ = σ, so that the error is the bandwidth too.
    width = float(smooth_calibration_error(cells.probability, residual, count=GRID))
    damping = np.exp(-0.5 * (width * np.pi * np.arange(GRID)) ** 2)

    def smooth(mass: Floats) -> Floats:
        grid = share_on_grid(cells.probability, mass, GRID)
        smoothed: Floats = idct(dct(grid, type=2, norm="ortho") * damping, type=2, norm="ortho")
        return smoothed

    place = (np.arange(GRID) + 0.5) / GRID
    mass, gap = np.maximum(smooth(share), 0.0), smooth(residual)
    has_mass = mass > 1e-9 / GRID
    frequency = place - np.where(has_mass, gap / np.where(has_mass, mass, 1.0), 0.0)
    return KernelCurve(place, frequency, GRID * mass, width, float(np.abs(gap).sum()))


def find_supported(curve: KernelCurve, cells: Cells, scale: Scale) -> NDArray[np.bool_]:
    """Return where a kernel curve says something: where the kernel reaches some ten rows.

    On a log scale also from one bandwidth on: below, the kernel is wider than the way to 0.

    Args:
        curve: The curve.
        cells: The pooled rows that it is computed from.
        scale: The scale it is drawn on.
    """
    reached = curve.density * curve.bandwidth * np.sqrt(2 * np.pi) * float(cells.rows.sum())
    enough = reached >= min(10.0, 0.1 * float(reached.max()))
    return enough & (curve.probability >= curve.bandwidth) if scale == "log" else enough


def choose_scale(cells: Cells, scale: Scale | None = None) -> Scale:
    """Return the scale of the probability axis: log where events are rare, unless one is given.

    Args:
        cells: The pooled rows, from `pool_rows`.
        scale: ``"linear"`` or ``"log"``. Default: None (ours: log where the mean probability or
            the frequency is below 5%).
    """
    if scale is not None:
        if scale not in ("linear", "log"):
            raise InputError(f'scale must be "linear", "log" or None, found {scale!r}')
        return scale
    means = [cells.mean_probability, cells.mean_frequency]
    return "log" if min(mean for mean in [*means, 1.0] if mean > 0) < RARE else "linear"


def find_floor(cells: Cells) -> float:
    """Return where a log axis begins: a power of ten below which lie at most 5% of the rows.

    At least 1e-6, at most 0.01, and below the frequency of the events.
    """
    share = np.cumsum(cells.weight) / cells.weight.sum()
    least = float(cells.probability[min(int(np.searchsorted(share, 0.05)), len(share) - 1)])
    least = min(least, cells.mean_frequency or least)
    return float(10.0 ** np.clip(np.floor(np.log10(max(least, 1e-12)) + 1e-9), -6, -2))


# ------------------------------------------------------------------ events


class Distribution(NamedTuple):
    """The shares of events, and of all other rows, in bins of probability."""

    edges: Floats  # (B+1,); on a log scale the first bin holds everything below
    events: Floats  # (B,) shares of the events, which sum to 1; all 0 if there are none
    others: Floats  # (B,) the same of the rows without the event


def prepare_distribution(
    cells: Cells, *, scale: Scale | None = None, floor: float | None = None
) -> Distribution:
    """Compute the distributions of the probability among events and among other rows.

    Args:
        cells: The pooled rows, from `pool_rows`.
        scale: Bins of equal width (``"linear"``), or eight to a factor of ten (``"log"``).
            Default: None (ours: log where events are rare).
        floor: Where a log scale begins. Default: None (ours: that of `find_floor`).
    """
    if choose_scale(cells, scale) == "log":
        low = floor or find_floor(cells)
        edges = np.logspace(np.log10(low), 0.0, 8 * round(-np.log10(low)) + 1)
    else:
        edges = np.linspace(0.0, 1.0, 33)  # edges of cells too
    number = len(edges) - 1
    home = np.clip(np.searchsorted(edges, cells.probability, side="left") - 1, 0, number - 1)

    def shares(mass: Floats) -> Floats:
        total = np.bincount(home, mass, number)
        return total / max(float(total.sum()), 1e-300)

    events = cells.weight * cells.frequency
    return Distribution(edges, shares(events), shares(cells.weight - events))


def prepare_decision(cells: Cells) -> pd.DataFrame:
    """Compute the net benefit of treating by the model, of treating all and of treating none.

    Args:
        cells: The pooled rows, from `pool_rows`; their columns are those of `decision_curve`.
    """
    return decision_table(cells.probability, cells.frequency, cells.weight)
