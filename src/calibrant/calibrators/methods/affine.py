"""Affine maps: a ridge toward temperature, shared by vector, matrix and Dirichlet scaling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Design
from calibrant.calibrators.methods.temperature import (
    ObjectiveCalibrator,
    best_temperature,
    fit_temperature,
    warn_of_bound,
)
from calibrant.calibrators.solvers.descent import fit_parameters, search_grid
from calibrant.calibrators.solvers.multinomial import (
    MOST_NARROW,
    WEAKEST,
    NarrowFits,
    NarrowSearch,
    Ridge,
    RidgeProblem,
    Search,
    cut_folds,
    is_diagonal,
    minimise,
    to_blocks,
)
from calibrant.calibrators.solvers.objectives import Objective
from calibrant.calibrators.solvers.problem import Problem
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices

Strength = float | str

_LEVELS = 11  # half decades, from 1,000 (more for more than 100 classes) down
_LOOSE = 1e-5  # nats a row: tolerance of the fits that are compared
_LOOSE_DEAR = 1e-4  # the same where a matrix is expensive to fit
_TIGHT = 1e-9
_TIGHT_SINGLE = 1e-7
_CHEAP = 5e9  # multiplications of a pass through all rows up to which it is in float64
_CHEAP_FOLDS = 2e9  # the same for a matrix, times the folds held out (else _CHEAP)


class AffineCalibrator(ObjectiveCalibrator):
    """An affine map of logits, held to the best temperature by a ridge.

    With u = f(z)/T the logits at the best temperature and s their root mean square, fit

        Σ_n CE(u + C·u/s + b, y) + ½ λ (Σ_i b_i² + ω Σ_i C_ii²) + ½ μ Σ_(i≠j) C_ij²

    so that strengths have no unit: 1/√λ is how many nats a coefficient is expected to move
    a logit. ``"auto"`` chooses them by cross-validated likelihood in this fit, first λ with μ
    infinite and then μ, each from infinity (temperature itself) down in decades while that
    helps by more than half a standard error of the paired rows (more for few rows), then
    half a decade to either side. Folds are drawn without stratification, because stratified
    folds make class frequencies look better known than they are. Where passes are expensive,
    fewer folds are held out. The data term is a sum, so a given ridge matters less with more
    rows; weights average 1 in it. Folds never split clusters, and errors are then those of whole
    clusters.

    Under another objective than the likelihood, T is that objective's, and the map is the
    minimum (or fixed point) of its value plus the same penalty over N; strengths are still
    chosen by the likelihood. The objective ``"ece"`` has no gradient: the map is then that of
    the likelihood, divided by one temperature found by a search. ``facts_`` keeps the numbers
    that the fit settled.

    Args:
        strength: λ, or ``"auto"``.
        off_diagonal: μ, or ``"auto"``.
        folds: The number of folds of the choice.
        objective: What the fit minimises; see `temperature`.
        objective_options: Options of the objective, by name.
        from_logits: False if scores are probabilities, not logits.
    """

    takes_events = True
    takes_weights = True
    diagonal_share = 1.0  # ω
    full = False

    strengths_: Tensor

    def __init__(
        self,
        *,
        strength: Strength,
        off_diagonal: Strength,
        folds: int,
        objective: str,
        objective_options: dict[str, Any] | None,
        from_logits: bool,
    ) -> None:
        super().__init__(
            objective=objective, objective_options=objective_options, from_logits=from_logits
        )
        self._given = (check_strength("strength", strength), check_strength("off", off_diagonal))
        if folds < 2:
            raise InputError(f"folds must be at least 2, found {folds}")
        self.folds = folds
        self.register_buffer("strengths_", torch.empty(0, dtype=torch.float64))

    def _features(self, logits: Tensor) -> Tensor:
        """Return f(z); at any temperature it must give the same probabilities as z."""
        return logits - logits.mean(1, keepdim=True)

    def _solve(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> Tensor:
        """Return (2,K) or (K+1,K) coefficients: the factors of f(z) above the intercept."""
        self._check_objective(logits, design)
        features, weights = self._features(logits), design.weights
        root = fit_temperature(features, target, weights=weights)
        if root.at_bound:
            warn_of_bound(1.0 / root.value, stacklevel=5)
        size = float(torch.linalg.vector_norm(features, dtype=torch.float64))
        if weights is not None:
            squares = features.double().square().sum(1)
            size = float((weights * squares).sum()) ** 0.5
        size = size / features.numel() ** 0.5 or 1.0
        rows, classes = features.shape
        cost = rows * classes * max(classes if self.full else 0, 150)
        scale = root.value * size
        coefficients = features.new_zeros((classes + 1 if self.full else 2, classes))
        ridge = self._ridge(
            *(math.inf if strength is None else strength for strength in self._given)
        )
        units = rows if design.clusters is None else len(torch.unique(design.clusters))
        if None in self._given and rows >= 2 * self.folds and units >= 2:
            visited = int((_CHEAP_FOLDS if self.full else _CHEAP) / cost)
            visited = max(1, min(self.folds, visited, units))
            loose = _LOOSE_DEAR if self.full and visited < self.folds else _LOOSE
            folds = cut_folds(features, target, size, self.folds, *design)
            narrow = classes <= MOST_NARROW and (self._given[0] or WEAKEST) >= WEAKEST
            kind = NarrowSearch if narrow else Search
            first = kind(folds, scale, visited, loose)
            search = Search(folds, scale, visited, loose) if self.full else first
            ridge, coefficients = self._choose(first, search, ridge, coefficients.float())
            del first, search, folds  # a copy of the rows
        objective = self._objective()
        if objective.name == "nll" or objective.kind == "searched":
            single = features.dtype == torch.float32 and cost > _CHEAP
            best = _fit_all_rows(
                features, target, size, scale, ridge, coefficients, weights, single=single
            )
        else:
            zero = torch.zeros_like(coefficients, dtype=torch.float64)
            scale, best = fit_affine(features, target, size, objective, ridge, zero, weights)
        self.facts_ = objective.facts()
        strengths = [ridge.intercept, ridge.off_diagonal] if self.full else [ridge.intercept]
        self.strengths_ = torch.tensor(strengths, dtype=torch.float64, device=logits.device)
        best = best.double()
        multiplier = best[:-1] if self.full else best[:1]
        if self.full:
            multiplier.diagonal().add_(scale)
        else:
            multiplier += scale
        multiplier /= size
        if objective.kind == "searched":
            best /= search_temperature(features, target, best, objective)
        return best

    def _ridge(self, strength: float, off_diagonal: float) -> Ridge:
        return Ridge(strength, strength * self.diagonal_share, off_diagonal)

    def _choose(
        self, first: Search, search: Search, ridge: Ridge, zero: Tensor
    ) -> tuple[Ridge, Tensor]:
        """Choose the strengths that are "auto"; return them with the folds' mean coefficients.

        Diagonals are searched first, by a search of their own where that is faster.
        """
        strength, off_diagonal = self._given
        top = 1000.0 * max(1.0, zero.shape[1] / 100)
        levels = [top * 10 ** (-0.5 * i) for i in range(_LEVELS)]
        narrow = zero[:2] if self.full else zero
        state = first.begin(replace(ridge, off_diagonal=math.inf), narrow)
        if strength is None:
            tries = [self._ridge(level, math.inf) for level in levels]
            state = first.down(state, tries)
        if not self.full:
            return state.ridge, state.mean()
        chosen = state.ridge
        state = replace(state, coefficients=[_widen(c) for c in state.coefficients])
        # Off-diagonals may help where diagonals alone do not; diagonals then stay near zero.
        base = self._ridge(min(chosen.intercept, top) if strength is None else strength, math.inf)
        if off_diagonal is None:
            tries = [replace(base, off_diagonal=level) for level in levels]
            state = search.down(state, tries)
            return state.ridge, state.mean()
        return replace(base, off_diagonal=off_diagonal), state.mean()


def _fit_all_rows(
    features: Tensor,
    target: Tensor,
    size: float,
    scale: float,
    ridge: Ridge,
    start: Tensor,
    weights: Tensor | None = None,
    *,
    single: bool,
) -> Tensor:
    """Find the coefficients of least penalised loss on all rows."""
    diagonal = is_diagonal(start) or math.isinf(ridge.off_diagonal)
    narrow = diagonal and len(start[0]) <= MOST_NARROW and ridge.intercept >= WEAKEST
    if narrow and math.isfinite(ridge.intercept) and not single:
        rows = features.t().double().contiguous() / size
        begin = start if is_diagonal(start) else _narrow(start)
        keep = None if weights is None else weights.unsqueeze(0)
        fitted, _ = NarrowFits(rows, target, scale, keep).minimise(
            ridge, begin.double().unsqueeze(0), tolerance=_TIGHT
        )
        return fitted[0] if is_diagonal(start) else _widen(fitted[0])
    dtype = torch.float32 if single else torch.float64
    blocks = [b._replace(x=b.x.to(dtype) / size) for b in to_blocks(features, target, weights)]
    return minimise(
        RidgeProblem(blocks, scale),
        ridge,
        start.to(dtype),
        tolerance=_TIGHT_SINGLE if single else _TIGHT,
        most=3000,
    )


def _narrow(wide: Tensor) -> Tensor:
    return torch.stack((wide[:-1].diagonal(), wide[-1]))


def _widen(narrow: Tensor) -> Tensor:
    return torch.cat((torch.diag(narrow[0]), narrow[1:]))


def check_strength(name: str, value: Strength) -> float | None:
    """Return a strength as a number, or None for "auto"."""
    if value == "auto":
        return None
    if isinstance(value, (str, bool)) or not value > 0:
        raise InputError(f"{name} must be 'auto' or a positive number, found {value!r}")
    return float(value)


def fit_affine(
    features: Tensor,
    target: Tensor,
    size: float,
    objective: Objective,
    ridge: Ridge,
    like: Tensor,
    weights: Tensor | None = None,
) -> tuple[float, Tensor]:
    """Fit s and the coefficients c of x ↦ s·x + c(x), x = f(z)/size, in the shape of ``like``.

    For objectives other than the likelihood. s/size is 1/T of the objective's own best
    temperature, and c the minimum (or the fixed point of a reweighted objective, whose
    weights are shares of one) of

        objective(rows) + (1/2N) Σ λ c²

    which for the likelihood is what `multinomial.minimise` solves. Starts at c = 0.
    """
    scale = size / best_temperature(features, target, objective, weights)
    rows, shape = len(target), like.shape
    blocks = to_blocks(features / size, target, weights)
    curvature = RidgeProblem(blocks, scale).curvature(like.to(features.dtype)).diagonal
    strengths = ridge.weights(like.double())
    fixed = torch.isinf(strengths)
    strengths = strengths.masked_fill(fixed, 0.0)
    # In units in which the second derivatives of the likelihood are 1; held ones have none.
    units = (rows / (curvature.double() + strengths).clamp_min(1e-6 * rows)).sqrt()
    units = units.masked_fill(fixed, 0.0)
    if bool(fixed.all()):
        return scale, like

    def coefficients(parameters: Tensor) -> Tensor:
        return parameters.view(shape) * units

    def map(f: Tensor, parameters: Tensor) -> Tensor:
        c, x = coefficients(parameters), f / size
        if is_diagonal(c):
            return torch.addcmul(c[1], x, c[0] + scale)
        return torch.addmm(torch.addcmul(c[-1], x, torch.full_like(c[-1], scale)), x, c[:-1])

    def penalty(parameters: Tensor) -> Tensor:
        return 0.5 * (strengths * coefficients(parameters).square()).sum() / rows

    problem = Problem(map, features, target, like.numel(), penalty, weights)
    bounds = [(-math.inf, math.inf)] * problem.size
    # SB-ECE jumps where a prediction changes.
    kinked = objective.name == "sb_ece"
    best = fit_parameters(problem, objective, np.zeros(problem.size), bounds, kinked=kinked)
    return scale, coefficients(torch.from_numpy(best).to(features.device))


def search_temperature(
    features: Tensor, target: Tensor, affine: Tensor, objective: Objective
) -> float:
    """Search for the best single temperature after an affine map, (2,K) or (K+1,K)."""
    fitted = affine.to(features.dtype)
    parts = []
    for rows in row_slices(features.shape):
        x = features[rows]
        out = x * fitted[0] + fitted[1] if is_diagonal(affine) else x @ fitted[:-1] + fitted[-1]
        parts.append(out)
    mapped = torch.cat(parts)
    return math.exp(
        search_grid(
            lambda log_temperature: objective.value(mapped / math.exp(log_temperature), target)
        )
    )
