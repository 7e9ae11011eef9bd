"""Isotonic regression: the best rising map of each class's probability."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Calibrator, Design
from calibrant.calibrators.solvers.one_vs_rest import (
    interpolate,
    log_odds,
    normalise_odds,
    stack_padded,
)
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices

Floats = NDArray[np.float64]
FORMS = ("one_vs_rest", "m2b")
_TILT = 1e-3  # slope added to every map
_ROUNDING = 1e-12  # shares of weights that differ by less differ by rounding alone
_APART = 4e-6  # more than the rounding error of a largest log-probability in float32


class Runs(NamedTuple):
    """Scores in ascending order, merged into runs that isotonic regression never splits."""

    hits: Floats
    size: Floats
    total: Floats  # sum of the scores


class Isotonic(Calibrator):
    """q_k ∝ f_k(p_k), f rising (Zadrozny & Elkan 2002), never 0 and never 1.

    Pool-adjacent-violators gives blocks of h hits among n. Each is smoothed to
    (h + a·m)/(n + a), where m is 1/2 in the common map and the common map's mean in that of
    a class, and blocks are pooled again where that broke the order. The map is the broken
    line, in log-odds, through the blocks' mean log-odds (centred isotonic regression, Oron &
    Flournoy 2017) with a slope of 1e-3 added, so that no two scores become equal.

    Events have one map of their own, fitted as the common map is but not mirrored at 0.5. Weights
    average 1, so that a and s count as rows of mean weight.

    Args:
        form: ``"m2b"`` (multiclass to binary; Zhang et al. 2020, IRM) fits one map to the N·K
            pairs (p_nk, 1[y_n = k]) of all classes; it rises strictly, so it keeps every
            prediction. ``"one_vs_rest"`` fits a map for each class and mixes its log-odds with
            those of the common map, whose weight is s/(n_k + s) for a class of n_k rows.
            Default: 'one_vs_rest' (Zadrozny & Elkan 2002).
        smoothing: a, the rows that m counts as. Default: 1.0 (ours: the least that keeps
            shares off 0 and 1).
        sharing: s, the rows that the common map counts as. Default: 100.0 (ours: a class with
            fewer rows leans on the others).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "isotonic"
    takes_events = True
    takes_weights = True

    common_knots_: Tensor
    common_values_: Tensor
    knots_: Tensor
    values_: Tensor
    weights_: Tensor

    def __init__(
        self,
        *,
        form: str = "one_vs_rest",
        smoothing: float = 1.0,
        sharing: float = 100.0,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if form not in FORMS:
            raise InputError(f"form must be {' or '.join(map(repr, FORMS))}, found {form!r}")
        if not (smoothing > 0 and sharing > 0):
            raise InputError(
                f"smoothing and sharing must be positive, found {smoothing} and {sharing}"
            )
        self.form, self.smoothing, self.sharing = form, smoothing, sharing
        for name in ("common_knots_", "common_values_", "knots_", "values_", "weights_"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))

    @property
    def preserves_predictions(self) -> bool:  # type: ignore[override]
        """Return whether no prediction ever changes: true of one curve for all classes."""
        return self.form == "m2b"

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        column, y = odds.cpu().numpy(), happened.cpu().numpy() == 1
        weights = None if design.weights is None else design.weights.cpu().numpy()
        runs = make_runs(column, count_hits(column, y, weights), weights)
        blocks, means, _ = pool_and_smooth(runs, self.smoothing, 0.5, apart=_ROUNDING)
        self.common_knots_, self.common_values_ = (
            stack_padded([torch.from_numpy(part)]).to(odds.device) for part in (blocks, means)
        )

    def _map_events(self, odds: Tensor) -> Tensor:
        knots, values = self.common_knots_.to(odds), self.common_values_.to(odds)
        return interpolate(odds.unsqueeze(0), knots, values).squeeze(0) + _TILT * odds

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        def keep(rows: list[Floats]) -> Tensor:
            return stack_padded([torch.from_numpy(row) for row in rows]).to(logits.device)

        weights = None if design.weights is None else design.weights.cpu().numpy()
        runs = common_runs(logits, target, weights)
        apart = 0.0 if weights is None else _ROUNDING
        blocks, means, _ = pool_and_smooth(runs, self.smoothing, 0.5, apart=apart)
        self.common_knots_, self.common_values_ = keep([blocks]), keep([means])
        if self.form == "m2b":
            return
        columns = torch.cat([log_odds(logits[rows]) for rows in row_slices(logits.shape)]).t()
        labels = target.cpu().numpy()
        parts = []
        for k, column in enumerate(columns.contiguous().cpu().numpy()):
            parts.append(make_runs(column, count_hits(column, labels == k, weights), weights))
        runs = Runs(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        classes = np.repeat(np.arange(len(parts)), [len(part.size) for part in parts])
        filled = np.where(runs.size > 0, runs.size, 1.0)
        common = np.interp(runs.total / filled, blocks, means)
        prior = 1.0 / (1.0 + np.exp(-common))
        knots, values, owner = pool_and_smooth(runs, self.smoothing, prior, classes, apart)
        ends = np.cumsum(np.bincount(owner, minlength=len(parts)))[:-1]
        self.knots_, self.values_ = keep(np.split(knots, ends)), keep(np.split(values, ends))
        counts = torch.bincount(target, design.weights, logits.shape[1]).double()
        self.weights_ = self.sharing / (counts + self.sharing)

    def _map(self, logits: Tensor) -> Tensor:
        odds = log_odds(logits)
        flat = odds.reshape(1, -1)
        common = interpolate(flat, self.common_knots_.to(odds), self.common_values_.to(odds))
        common = common.reshape(odds.shape)
        if self.form == "one_vs_rest":
            by_class = interpolate(
                odds.t().contiguous(), self.knots_.to(odds), self.values_.to(odds)
            ).t()
            common = torch.lerp(by_class, common, self.weights_.to(odds))
        mapped = normalise_odds(common + _TILT * odds)
        if self.form == "one_vs_rest":
            return mapped
        # With one rising curve only rounding could let another class reach the prediction.
        best = mapped.amax(dim=1, keepdim=True)
        first = logits == logits.amax(dim=1, keepdim=True)
        return torch.where(first, best, torch.minimum(mapped, best - _APART))


def common_runs(logits: Tensor, target: Tensor, weights: Floats | None = None) -> Runs:
    """Make runs of the N·K pairs of all classes, in streaming passes."""
    true = [
        log_odds(logits[rows]).gather(1, target[rows].unsqueeze(1)).squeeze(1)
        for rows in row_slices(logits.shape)
    ]
    column = torch.cat(true).cpu().numpy()
    hits = count_hits(column, np.ones(len(column), dtype=bool), weights)
    size, total = np.zeros(2 * len(hits[0]) + 1), np.zeros(2 * len(hits[0]) + 1)
    for rows in row_slices(logits.shape):
        repeated = None if weights is None else np.repeat(weights[rows], logits.shape[1])
        part = make_runs(log_odds(logits[rows]).cpu().numpy().ravel(), hits, repeated)
        size += part.size
        total += part.total
    return Runs(part.hits, size, total)


def count_hits(
    scores: NDArray[Any], hit: NDArray[np.bool_], weights: Floats | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distinct scores of hits, ascending, and the number, or weight, of each."""
    if weights is None:
        places, times = np.unique(scores[hit], return_counts=True)
        return places, times
    places, index = np.unique(scores[hit], return_inverse=True)
    return places, np.bincount(index.reshape(-1), weights[hit], len(places))


def make_runs(
    scores: NDArray[Any],
    hits: tuple[NDArray[Any], NDArray[Any]],
    weights: Floats | None = None,
) -> Runs:
    """Merge the scores between one hit and the next: they are misses and share a block.

    In isotonic regression y_i ≥ y_(i+1) implies that both have one fitted value, so a run
    of misses can be fitted as one point of its weight: at most 2·hits + 1 points are left.
    Run 2i + 1 holds the scores equal to the i-th hit's, run 2i those just below it.
    """
    places, times = hits
    size = 2 * len(places) + 1
    above = np.searchsorted(places, scores, side="right")
    index = 2 * above
    if len(places):
        index -= (places[np.maximum(above - 1, 0)] == scores) & (above > 0)
    count: Floats = np.bincount(index, weights, minlength=size).astype(np.float64)
    masses = scores if weights is None else scores * weights
    total: Floats = np.bincount(index, weights=masses, minlength=size).astype(np.float64)
    hit_counts = np.zeros(size)
    hit_counts[1::2] = times
    return Runs(hit_counts, count, total)


def pool_and_smooth(
    runs: Runs,
    smoothing: float,
    prior: Floats | float,
    group: NDArray[Any] | int = 0,
    apart: float = 0.0,
) -> tuple[Floats, Floats, NDArray[Any]]:
    """Return each block's mean log-odds, the log-odds of its smoothed share, and its group.

    Args:
        runs: The runs of all groups.
        smoothing: The rows that the prior counts as.
        prior: The prior share, of all runs or of each.
        group: The group of each run. Default: 0 (all are one).
        apart: Shares closer than this are one block. Default: 0.0 (only equal ones).
    """
    filled = runs.size > 0
    owner = np.broadcast_to(np.asarray(group), runs.size.shape)[filled]
    guess = (prior * runs.size)[filled]
    hits, size, total = (part[filled] for part in runs)
    starts = _block_starts(hits / size, size, owner, apart)
    hits, size, total, guess = (np.add.reduceat(a, starts) for a in (hits, size, total, guess))
    owner = owner[starts]
    # A second round pools blocks that smoothing put out of order.
    hits, weight = hits + smoothing * guess / size, size + smoothing
    starts = _block_starts(hits / weight, weight, owner, apart)
    hits, weight, size, total = (np.add.reduceat(a, starts) for a in (hits, weight, size, total))
    return total / size, np.log(hits) - np.log(weight - hits), owner[starts]


def _block_starts(
    values: Floats, weights: Floats, group: NDArray[Any], apart: float
) -> NDArray[np.intp]:
    """Return where blocks of equal fitted value begin; a step of 2 keeps groups apart."""
    from sklearn.isotonic import isotonic_regression

    fitted = isotonic_regression(values + 2.0 * group, sample_weight=weights)
    return np.flatnonzero(np.abs(np.diff(fitted, prepend=-1.0)) > apart)
