"""What vector, matrix and Dirichlet scaling share: a ridge toward temperature, and its strength."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.multinomial import (
    Problem,
    Ridge,
    is_diagonal,
    minimise,
    to_blocks,
)
from calibrant.calibrators.narrow import MOST_CLASSES, WEAKEST, NarrowFits
from calibrant.calibrators.objectives import get_objective
from calibrant.calibrators.regularised import fit_affine, search_temperature
from calibrant.calibrators.strengths import NarrowSearch, Search, cut
from calibrant.calibrators.temperature import fit_temperature
from calibrant.functional.errors import InputError

Strength = float | str

_LEVELS = 11  # half decades, from 1,000 (more for more than 100 classes) down
_LOOSE = 1e-5  # nats a row: where candidates are compared
_LOOSE_DEAR = 1e-4  # the same where a matrix is dear to fit
_TIGHT = 1e-9
_TIGHT_SINGLE = 1e-7
_CHEAP = 5e9  # multiplications of one pass through all rows, in double precision
_CHEAP_FOLDS = 2e9  # the same for a matrix, times folds that are held out (else _CHEAP)


class AffineCalibrator(Calibrator):
    """An affine map of logits, held to the best temperature by a ridge.

    With u = f(z)/T the logits at the best temperature and s their root mean square, fit

        Σ_n CE(u + C·u/s + b, y) + ½ λ (Σ_i b_i² + ω Σ_i C_ii²) + ½ μ Σ_(i≠j) C_ij²

    so that strengths have no unit: 1/√λ is how many nats a coefficient is expected to move
    a logit by. ``"auto"`` chooses them by cross-validated likelihood in this fit, first
    λ with μ infinite and then μ, each from infinity (temperature itself) down in decades
    while that helps by more than half a standard error of the paired rows (more for few
    rows), then half a decade to either side. Folds are drawn without stratification:
    stratified ones make class frequencies look better known than they are. Where passes are
    dear, fewer of the folds are held out. As the data term is a sum, a given ridge matters
    less the more rows there are.

    ``objective`` takes another of `objectives` in place of the likelihood, with its options:
    T is then that objective's, and the map the minimum (or fixed point) of its value beside
    the same penalty over N, strengths being chosen by the likelihood still. ``"ece"`` has no
    gradient: the map is then that of the likelihood, divided by one temperature searched for.
    What the fit settled on the way is in ``facts_``.
    """

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
        super().__init__(from_logits=from_logits)
        get_objective(objective, objective_options)  # refuses bad options now
        self.objective, self.objective_options = objective, objective_options
        self.facts_: dict[str, float] = {}
        self._given = (check_strength("strength", strength), check_strength("off", off_diagonal))
        if folds < 2:
            raise InputError(f"folds must be at least 2, found {folds}")
        self.folds = folds
        self.register_buffer("strengths_", torch.empty(0, dtype=torch.float64))

    def _features(self, logits: Tensor) -> Tensor:
        """f(z), of which temperature must make the same probabilities as of z."""
        return logits - logits.mean(1, keepdim=True)

    def _solve(self, logits: Tensor, target: Tensor) -> Tensor:
        """(2,K) or (K+1,K): what multiplies f(z), above what is added to it."""
        features = self._features(logits)
        found = fit_temperature(features, target)
        if found.at_bound:
            warnings.warn(
                f"the best temperature lies beyond {1.0 / found.value:.3g}, where it is held: "
                "every row may be right, or the logits may say nothing of the labels",
                stacklevel=5,
            )
        size = float(torch.linalg.vector_norm(features, dtype=torch.float64))
        size = size / features.numel() ** 0.5 or 1.0
        rows, classes = features.shape
        cost = rows * classes * max(classes if self.full else 0, 150)
        scale = found.value * size
        coefficients = features.new_zeros((classes + 1 if self.full else 2, classes))
        ridge = self._ridge(*(math.inf if given is None else given for given in self._given))
        if None in self._given and rows >= 2 * self.folds:
            visited = int((_CHEAP_FOLDS if self.full else _CHEAP) / cost)
            visited = max(1, min(self.folds, visited))
            loose = _LOOSE_DEAR if self.full and visited < self.folds else _LOOSE
            folds = cut(features, target, size, self.folds)
            narrow = classes <= MOST_CLASSES and (self._given[0] or WEAKEST) >= WEAKEST
            kind = NarrowSearch if narrow else Search
            first = kind(folds, scale, visited, loose)
            search = Search(folds, scale, visited, loose) if self.full else first
            ridge, coefficients = self._choose(first, search, ridge, coefficients.float())
            del first, search, folds  # a copy of the rows
        objective = get_objective(self.objective, self.objective_options)
        if objective.name == "nll" or objective.kind == "searched":
            single = features.dtype == torch.float32 and cost > _CHEAP
            best = _final(features, target, size, scale, ridge, coefficients, single=single)
        else:
            zero = torch.zeros_like(coefficients, dtype=torch.float64)
            scale, best = fit_affine(features, target, size, objective, ridge, zero)
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
        """The strengths left to the data, and the mean of the folds' coefficients there.

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
        # Off-diagonals may help where diagonals alone do not; those then stay near zero.
        base = self._ridge(min(chosen.intercept, top) if strength is None else strength, math.inf)
        if off_diagonal is None:
            tries = [replace(base, off_diagonal=level) for level in levels]
            state = search.down(state, tries)
            return state.ridge, state.mean()
        return replace(base, off_diagonal=off_diagonal), state.mean()


def _final(
    features: Tensor,
    target: Tensor,
    size: float,
    scale: float,
    ridge: Ridge,
    start: Tensor,
    *,
    single: bool,
) -> Tensor:
    """The coefficients of least penalised likelihood on all rows."""
    diagonal = is_diagonal(start) or math.isinf(ridge.off_diagonal)
    narrow = diagonal and len(start[0]) <= MOST_CLASSES and ridge.intercept >= WEAKEST
    if narrow and math.isfinite(ridge.intercept) and not single:
        rows = features.t().double().contiguous() / size
        begin = start if is_diagonal(start) else _narrow(start)
        found, _ = NarrowFits(rows, target, scale).minimise(
            ridge, begin.double().unsqueeze(0), tolerance=_TIGHT
        )
        return found[0] if is_diagonal(start) else _widen(found[0])
    dtype = torch.float32 if single else torch.float64
    blocks = [(x.to(dtype) / size, y) for x, y in to_blocks(features, target)]
    return minimise(
        Problem(blocks, scale),
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
    """A strength as a number, or None for "auto"."""
    if value == "auto":
        return None
    if isinstance(value, (str, bool)) or not value > 0:
        raise InputError(f"{name} must be 'auto' or a positive number, found {value!r}")
    return float(value)
