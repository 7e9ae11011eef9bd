"""Spline recalibration: the confidence's hit rate as the slope of a fitted curve."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Calibrator, Design
from calibrant.calibrators.methods.temperature import fit_temperature
from calibrant.calibrators.solvers.one_vs_rest import interpolate, log_odds, log_sigmoid
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices

_TABLE = 512  # places at which the fitted slope is stored
_ROWS_PER_KNOT = 10
_FEW = 50  # with fewer rows of other labels, the temperature is that of all rows


class Spline(Calibrator):
    """γ(c) = dH/dt: the slope of the share of hits against the share of rows.

    Gupta et al. (2021). Rows in ascending order of their r-th largest probability give the
    curve H(t) = (hits among the first tN rows)/N, to which a natural cubic spline through
    H(0) = 0 is fitted by least squares; its maximal distance from the curve of the scores
    is the KS error. Its slope at a row's place is the row's calibrated score. Rows of equal
    score share their hits. Slopes are held within (½/(N+1), 1 − ½/(N+1)), so that no score
    becomes 0 or 1.

    The largest classes of a row get their calibrated scores; the others keep their proportions
    in softmax(z/T) and share the rest (the paper calibrates the scores alone). T is the best
    temperature among those others, on rows whose label is one of them.

    Events are ranked by their probability, not by the largest of two. With weights t is the share
    of the weight; there, and for events, the curve is a broken line and the squares are integrated
    over it.

    Args:
        num_knots: The number of knots; at most one for ten rows. Default: 6 (Gupta et al. 2021).
        top: How many of a row's largest classes are calibrated. Default: 1 (Gupta et al. 2021).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "spline"
    takes_events = True
    takes_weights = True

    knots_: Tensor
    values_: Tensor
    temperature_: Tensor

    def __init__(self, *, num_knots: int = 6, top: int = 1, from_logits: bool = True) -> None:
        super().__init__(from_logits=from_logits)
        if num_knots < 2 or top < 1:
            raise InputError(
                f"num_knots must be at least 2 and top at least 1, found {num_knots} and {top}"
            )
        self.num_knots, self.top = num_knots, top
        self.register_buffer("knots_", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("values_", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("temperature_", torch.ones((), dtype=torch.float64))

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        y = happened.double()
        weights = torch.ones_like(y) if design.weights is None else design.weights
        knots, slopes = fit_slope(odds.double(), y, self.num_knots, weights)
        self.knots_, self.values_ = knots.unsqueeze(0), slopes.logit().unsqueeze(0)

    def _map_events(self, odds: Tensor) -> Tensor:
        knots, values = self.knots_.to(odds), self.values_.to(odds)
        return interpolate(odds.unsqueeze(0), knots, values).squeeze(0)

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        top = min(self.top, logits.shape[1] - 1)
        parts = [log_odds(logits[rows]).topk(top, dim=1) for rows in row_slices(logits.shape)]
        scores, classes = (torch.cat(column) for column in zip(*parts, strict=True))
        hits = (classes == target.unsqueeze(1)).double()
        weights = design.weights
        curves = [
            fit_slope(scores[:, r].double(), hits[:, r], self.num_knots, weights)
            for r in range(top)
        ]
        best = rest_temperature(logits, target, classes, weights)
        self.temperature_ = torch.tensor(best, dtype=torch.float64, device=logits.device)
        self.knots_ = torch.stack([knots for knots, _ in curves])
        self.values_ = torch.stack([slopes.logit() for _, slopes in curves])

    def _map(self, logits: Tensor) -> Tensor:
        top = self.knots_.shape[0]
        scores, classes = log_odds(logits).topk(top, dim=1)
        odds = interpolate(
            scores.t().contiguous(), self.knots_.to(scores), self.values_.to(scores)
        ).t()
        rest_mass = log_sigmoid(-odds)  # with one score, 1 − γ without cancellation
        if top > 1:
            rest_mass = (1.0 - odds.sigmoid().sum(dim=1, keepdim=True)).clamp_min(1e-6).log()
        rest = (logits / self.temperature_.to(logits)).scatter(1, classes, -torch.inf)
        shared = torch.log_softmax(rest, dim=1) + rest_mass
        mixed = shared.scatter(1, classes, log_sigmoid(odds))
        return torch.log_softmax(mixed, dim=1)


def fit_slope(
    scores: Tensor, hits: Tensor, num_knots: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return scores at evenly spaced ranks, and the fitted curve's slope there."""
    if weights is not None:
        return _fit_weighted_slope(scores, hits, num_knots, weights)
    ordered, order = scores.sort(stable=True)
    rows = len(scores)
    steps = (ordered[1:] != ordered[:-1]).long()
    group = torch.cat((steps.new_zeros(1), steps.cumsum(0)))
    size = torch.bincount(group).double()
    rate = torch.zeros_like(size).index_add_(0, group, hits[order]) / size
    curve = rate[group].cumsum(0) / rows
    place = torch.arange(1, rows + 1, device=scores.device).double() / rows
    knots = min(num_knots, max(2, rows // _ROWS_PER_KNOT))
    basis, _ = natural_basis(place, knots)
    # On the CPU, whose solver accepts a matrix of deficient rank.
    solved = torch.linalg.lstsq(basis.cpu(), curve.cpu().unsqueeze(1), driver="gelsd")
    weights = solved.solution.to(basis)
    table_size = min(rows, _TABLE) if rows > 1 else 2
    places = (torch.arange(table_size, device=scores.device).double() + 0.5) / table_size
    index = (places * rows).long().clamp(max=rows - 1)
    # Rows with the same score share the slope at the middle of their ranks.
    first = size.cumsum(0) - size
    middle = (first + 0.5 * size)[group[index]] / rows
    _, slopes = natural_basis(middle, knots)
    least = 0.5 / (rows + 1)
    return ordered[index], (slopes @ weights).squeeze(1).clamp(least, 1 - least)


def _fit_weighted_slope(
    scores: Tensor, hits: Tensor, num_knots: int, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Do `fit_slope` with t the share of the weight and the squares integrated over t."""
    values, group = torch.unique(scores, return_inverse=True)
    size = torch.zeros_like(values).index_add_(0, group, weights)
    rate = torch.zeros_like(values).index_add_(0, group, weights * hits)
    total, rows = size.sum(), len(scores)
    ends = torch.cat((size.new_zeros(1), size.cumsum(0))) / total
    curve = torch.cat((size.new_zeros(1), rate.cumsum(0))) / total
    knots = min(num_knots, max(2, rows // _ROWS_PER_KNOT))
    # Between these places curve and splines are polynomials, of degree 1 and 3: three points of
    # Gauss's rule integrate their products without error, and four the products of splines.
    inner = torch.linspace(0, 1, knots, dtype=ends.dtype, device=ends.device)
    cuts = torch.unique(torch.cat((ends, inner)).clamp(0.0, 1.0))
    nodes, shares = (torch.from_numpy(part).to(ends) for part in np.polynomial.legendre.leggauss(4))
    wide = cuts.diff().unsqueeze(1)
    t = (cuts[:-1].unsqueeze(1) + 0.5 * wide * (nodes + 1.0)).reshape(-1)
    masses = (0.5 * wide * shares).reshape(-1, 1)
    basis, _ = natural_basis(t, knots)
    height = interpolate(t.unsqueeze(0), ends.unsqueeze(0), curve.unsqueeze(0)).t()
    gram, moment = basis.t() @ (masses * basis), basis.t() @ (masses * height)
    solution = torch.linalg.lstsq(gram.cpu(), moment.cpu(), driver="gelsd").solution.to(basis)
    table_size = min(len(values), _TABLE) if len(values) > 1 else 2
    places = (torch.arange(table_size, device=ends.device).double() + 0.5) / table_size
    index = (torch.searchsorted(ends, places) - 1).clamp(0, len(values) - 1)
    _, slopes = natural_basis(0.5 * (ends[index] + ends[index + 1]), knots)
    least = 0.5 / (rows + 1)
    return values[index], (slopes @ solution).squeeze(1).clamp(least, 1 - least)


def rest_temperature(
    logits: Tensor, target: Tensor, classes: Tensor, weights: Tensor | None = None
) -> float:
    """Fit the temperature of the classes left when ``classes``, (N, top), are taken away."""
    missed = (classes != target.unsqueeze(1)).all(dim=1)
    num_rest = logits.shape[1] - classes.shape[1]
    if num_rest == 1:
        return 1.0
    if int(missed.sum()) < _FEW:
        return 1.0 / fit_temperature(logits, target, weights=weights).value
    taken, labels = classes[missed], target[missed]
    weights = None if weights is None else weights[missed]
    others = torch.ones_like(logits[missed], dtype=torch.bool).scatter(1, taken, False)
    labels = labels - (taken < labels.unsqueeze(1)).sum(dim=1)
    rest = logits[missed][others].reshape(-1, num_rest)
    return 1.0 / fit_temperature(rest, labels, weights=weights).value


def natural_basis(t: Tensor, num_knots: int) -> tuple[Tensor, Tensor]:
    """Return natural cubic splines on [0, 1], 0 at 0, and their slopes, (N, num_knots − 1).

    t, and d_k(t) − d_(m−1)(t) with d_k(t) = ((t−ξ_k)₊³ − (t−ξ_m)₊³)/(ξ_m − ξ_k), ξ even
    (Hastie et al., Elements of Statistical Learning, eq. 5.4–5.5).
    """
    knots = torch.linspace(0, 1, num_knots, dtype=t.dtype, device=t.device)
    beyond = (t.unsqueeze(1) - knots).clamp_min(0.0)
    wide = 1.0 - knots[:-1]
    cubes = (beyond[:, :-1] ** 3 - beyond[:, -1:] ** 3) / wide
    squares = 3.0 * (beyond[:, :-1] ** 2 - beyond[:, -1:] ** 2) / wide
    curves = cubes[:, :-1] - cubes[:, -1:]
    slopes = squares[:, :-1] - squares[:, -1:]
    constant = torch.ones_like(t).unsqueeze(1)
    return torch.cat((t.unsqueeze(1), curves), 1), torch.cat((constant, slopes), 1)
