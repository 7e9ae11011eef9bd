"""Temperature scaling: one number that divides every logit."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import COSTLY, PLAIN, Calibrator, Design
from calibrant.calibrators.solvers.descent import Root, rising_root, search_grid
from calibrant.calibrators.solvers.objectives import (
    WEIGHTED,
    NegativeLogLikelihood,
    Objective,
    get_objective,
)
from calibrant.calibrators.solvers.problem import (
    COLDEST,
    HOTTEST,
    LOG_BOUNDS,
    Partition,
    Problem,
    TemperedProblem,
    Vector,
)
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices

_NARROW = 48  # classes below which logits are transposed
_GRID = 41  # points over the whole range of ln T, 0.23 apart
NLL = NegativeLogLikelihood()
_SAFE = COSTLY - 1.0  # the share of likelihood that the start of other methods may cost


class ObjectiveCalibrator(Calibrator):
    """A calibrator whose fit minimises an objective of `solvers.objectives`.

    Args:
        objective: The name of the objective.
        objective_options: The options of the objective, by name.
        from_logits: False if scores are probabilities, not logits.
    """

    def __init__(
        self, *, objective: str, objective_options: dict[str, Any] | None, from_logits: bool
    ) -> None:
        super().__init__(from_logits=from_logits)
        self.objective, self.objective_options = objective, objective_options
        self._objective()  # refuses bad options now
        self.facts_: dict[str, float] = {}

    def _objective(self) -> Objective:
        objective = get_objective(self.objective, self.objective_options)
        if objective.max_likelihood_loss is not None and not isinstance(self, Temperature):
            raise InputError(f"max_likelihood_loss bounds temperature alone, found {self.name}")
        return objective

    def _check_objective(self, logits: Tensor, design: Design = PLAIN) -> None:
        """Raise an error if the objective cannot weigh rows, or needs classes where none are."""
        if design.weights is not None and self.objective not in WEIGHTED:
            raise InputError(
                f"the objective {self.objective!r} cannot weigh rows: use one of "
                f"{', '.join(WEIGHTED)}"
            )
        if self.objective != "nll" and float(logits.amin()) == -math.inf:
            raise InputError(
                f"the objective {self.objective!r} does not take options that a row does not have "
                "(-inf): use objective='nll'"
            )


class Temperature(ObjectiveCalibrator):
    """z ↦ z / T (Guo et al. 2017), T the exact maximum of the held-out likelihood.

    With β = 1/T the negative log-likelihood is convex: its derivative Σ (E_p[z] − z_y)
    rises with β, and Newton's method on ln β with its exact second derivative Σ Var_p(z)
    finds the root to 1e-6 in a handful of streaming passes. If every prediction is correct,
    or the logits carry no information, T is held at a bound, with a warning. Under another
    objective T is its exact minimum or fixed point, or for ``"ece"`` the lowest point of a
    multi-resolution search; ``facts_`` keeps the numbers that the fit settled. The objectives
    ``"sb_ece"`` and ``"ece"`` take ``max_likelihood_loss``, a bound on the likelihood lost.

    Args:
        objective: What the fit minimises: nll, balanced, focal, label_smoothing, sb_ece, ece or
            class_scaled; see `calibrant.calibrators.solvers.objectives`. Default: 'nll' (Guo et
            al. 2017).
        objective_options: Options of the objective, by name. Default: None (the objective's
            own defaults).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "temperature"
    preserves_predictions = True
    takes_events = True
    takes_options = True
    takes_weights = True

    temperature_: Tensor

    def __init__(
        self,
        *,
        objective: str = "nll",
        objective_options: dict[str, Any] | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(
            objective=objective, objective_options=objective_options, from_logits=from_logits
        )
        self.passes_ = 0
        self.register_buffer("temperature_", torch.ones((), dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        self._check_objective(logits, design)
        if self.objective != "nll":
            objective = self._objective()
            best, binds = fit_objective(
                logits, target, objective, objective.max_likelihood_loss, design.weights
            )
            self.facts_ = objective.facts()
            if binds is not None:
                self.facts_ |= {"bound_by_likelihood": float(binds)}
            self.temperature_ = torch.tensor(best, dtype=torch.float64).to(logits.device)
            return
        root = fit_temperature(logits, target, weights=design.weights)
        self.passes_ = root.passes
        self.temperature_ = torch.tensor(1.0 / root.value, dtype=torch.float64).to(logits.device)
        if root.at_bound:
            warn_of_bound(1.0 / root.value, stacklevel=3)

    def _map(self, logits: Tensor) -> Tensor:
        return logits / self.temperature_.to(logits.dtype)


def warn_of_bound(temperature: float, *, stacklevel: int, rows: str = "") -> None:
    """Warn that the best temperature lies beyond a bound, where it is held.

    Args:
        temperature: The temperature at the bound.
        stacklevel: As of `warnings.warn`, seen from the caller.
        rows: Words that say what the temperature is best for, if not for all rows.
    """
    warnings.warn(
        f"the best temperature{rows} lies beyond {temperature:.3g}, the limit, which is used: "
        "every row may be right, or the logits may say nothing about the labels",
        stacklevel=stacklevel + 1,
    )


def best_temperature(
    logits: Tensor, target: Tensor, objective: Objective, weights: Tensor | None = None
) -> float:
    """Return T by any objective, in [0.01, 100]; other methods of this family start there."""
    if objective.name == "nll":
        return 1.0 / fit_temperature(logits, target, weights=weights).value
    most = _SAFE if objective.name == "sb_ece" else None
    return fit_objective(logits, target, objective, most, weights)[0]


def fit_temperature(logits: Tensor, target: Tensor, *, weights: Tensor | None = None) -> Root:
    """Find β = 1/T at which Σ_n w_n (E_p[z] − z_y) = 0, p = softmax(βz).

    A logit of −inf, an option that the row does not have, has probability 0 at every T.

    Args:
        logits: (N,K) logits.
        target: (N,) labels.
        weights: (N,) float64 weights. Default: None (all count the same).
    """
    narrow = logits.shape[1] < _NARROW and logits.device.type == "cpu"
    transposed = None
    if narrow and logits.numel() <= 1 << 24:
        transposed = logits.t().contiguous()  # few classes: reducing across rows is vectorised
    true_logits, highest = (
        logits.gather(1, target.unsqueeze(1)).squeeze(1).double(),
        logits.amax(1).double(),
    )
    if weights is not None:
        true_logits, highest = true_logits * weights, highest * weights
    true, top = float(true_logits.sum()), float(highest.sum())
    absent = float(logits.amin()) == -math.inf

    def slope(beta: float) -> tuple[float, float]:
        first = second = 0.0
        for rows in row_slices(logits.shape):
            if transposed is not None:
                z, dim = transposed[:, rows], 0
            else:
                z, dim = logits[rows], 1
            z = z - z.amax(dim, keepdim=True)
            p = torch.softmax(z * beta, dim)
            if absent:
                z = z.masked_fill(z == -math.inf, 0.0)  # its p is 0
            p.mul_(z)
            mean = p.sum(dim)
            p.mul_(z)
            spread = (p.sum(dim) - mean.square()).double()
            means = mean.double()
            if weights is not None:
                means, spread = means * weights[rows], spread * weights[rows]
            first += float(means.sum())
            second += float(spread.sum())
        return first + top - true, max(second, 0.0)

    root = rising_root(slope, low=1.0 / HOTTEST, high=1.0 / COLDEST)
    # If every row is right, colder is always better and the search ends where digits do.
    return replace(root, at_bound=True) if top == true else root


def temperature_problem(logits: Tensor, target: Tensor, weights: Tensor | None = None) -> Problem:
    """Return the problem of z / T, in ln T."""
    partition = Partition(logits, target, weights)
    return TemperedProblem(lambda log_t: partition.rows(-log_t), logits, target, 1)


def fit_objective(
    logits: Tensor,
    target: Tensor,
    objective: Objective,
    most: float | None = None,
    weights: Tensor | None = None,
) -> tuple[float, bool | None]:
    """Return T by an objective other than the likelihood, in [0.01, 100], after `prepare`.

    Args:
        logits: The scores.
        target: The labels.
        objective: The objective.
        most: The share by which T may raise the negative log-likelihood. Default: None (any).
        weights: (N,) float64 weights, 1 on average. Default: None (all count the same).

    Returns:
        T, and whether that bound decides it; None without one.
    """
    problem = temperature_problem(logits, target, weights)
    objective.prepare(problem)
    bounds = None if most is None else _harmless_range(problem, most)
    place = _find_place(problem, objective, bounds, logits, target)
    binds = None
    if bounds is not None and objective.max_likelihood_loss is not None:
        free = _find_place(problem, objective, None, logits, target)
        binds = not bounds[0] - 1e-6 <= free <= bounds[1] + 1e-6
        if binds:
            warnings.warn(
                f"{objective.name} is least at the temperature {math.exp(free):.3g}, which costs "
                f"more likelihood than max_likelihood_loss={most:g} allows: "
                f"{math.exp(place):.3g} is used",
                stacklevel=4,
            )
    beyond = not LOG_BOUNDS[0] + 1e-6 < place < LOG_BOUNDS[1] - 1e-6
    # If every row is right, the loss is 0 to the last digit long before the bound.
    perfect = objective.name != "label_smoothing" and bool((logits.argmax(1) == target).all())
    if beyond or perfect:
        warn_of_bound(math.exp(place), stacklevel=5, rows=f" by {objective.name}")
    return math.exp(place), binds


def _find_place(
    problem: Problem,
    objective: Objective,
    bounds: tuple[float, float] | None,
    logits: Tensor,
    target: Tensor,
) -> float:
    """Find ln T by the objective's kind, within bounds if there are any."""
    if objective.kind == "searched":
        return search_grid(
            lambda log_t: objective.value(logits / math.exp(log_t), target), *(bounds or LOG_BOUNDS)
        )
    if objective.kind == "smooth":
        return _find_minimum(problem, objective, bounds)
    return _find_root(problem, objective)


def _find_minimum(
    problem: Problem, objective: Objective, bounds: tuple[float, float] | None = None
) -> float:
    """Find the least minimum: in each of the lowest cells of a grid, the root of the slope."""
    from scipy.optimize import brentq, minimize_scalar

    def value(log_t: float) -> float:
        return problem.loss(np.array([log_t]), objective.loss)

    def slope(log_t: float) -> float:
        return float(problem.gradient(np.array([log_t]), objective.loss)[1][0])

    # A soft-binned error has many dips, about as wide as its bins are.
    size = 4 * (_GRID - 1) + 1 if objective.name == "sb_ece" else _GRID
    grid = np.linspace(*(bounds or LOG_BOUNDS), size)
    if objective.name == "sb_ece" and bounds is None:
        # And finer where it may well lie, so that no bound finds a lower one.
        grid = np.union1d(grid, np.linspace(*_harmless_range(problem, _SAFE), size))
        size = len(grid)
    values = np.array([value(log_t) for log_t in grid])
    padded = np.concatenate(([math.inf], values, [math.inf]))
    dips = [i for i in range(size) if padded[i + 1] <= min(padded[i], padded[i + 2])]
    minima: list[tuple[float, float]] = []
    for i in sorted(dips, key=lambda i: float(values[i]))[: 4 if bounds else 8]:
        left, right = float(grid[max(i - 1, 0)]), float(grid[min(i + 1, size - 1)])
        minima.append((float(values[i]), float(grid[i])))
        if slope(left) < 0 < slope(right):
            near = brentq(slope, left, right, xtol=1e-9)
        else:
            near = minimize_scalar(value, bounds=(left, right), method="bounded").x
        minima.append((value(near), float(near)))
    return min(minima, key=lambda pair: (pair[0], abs(pair[1])))[1]


def _harmless_range(problem: Problem, share: float) -> tuple[float, float]:
    """Return the ln T that raise the fit's own loss by at most a share above that at T = 1.

    A soft-binned error is small where every row is certain, whatever the labels: without this
    bound a network that is nearly always right may get T near 0. The likelihood is convex
    in 1/T, so these T form one interval, which contains 1.
    """
    from scipy.optimize import brentq

    def excess(log_t: float) -> float:
        return problem.loss(np.array([log_t]), NLL.loss) - most

    most = 0.0
    most = (1.0 + share) * excess(0.0)
    low, high = (
        end if excess(end) <= 0 else float(brentq(excess, min(end, 0.0), max(end, 0.0), xtol=1e-6))
        for end in LOG_BOUNDS
    )
    return low, high


def _find_root(problem: Problem, objective: Objective) -> float:
    """Find the root of Σ w_n ∂ℓ_n/∂ln T, w_n at the same T, nearest to that of the likelihood.

    Only roots that descent would reach count: where the sum goes from falling to rising.
    """
    from scipy.optimize import brentq

    def slope(log_t: float) -> float:
        point: Vector = np.array([log_t])
        weights = objective.row_weights(problem.rows(point))
        # As shares, because focal's weights are tiny where every row is certain.
        weights = weights / weights.sum().clamp_min(1e-300)
        return float(problem.weighted_gradient(point, weights)[1][0])

    def plain(log_t: float) -> float:
        return float(problem.gradient(np.array([log_t]), NLL.loss)[1][0])

    grid = [float(log_t) for log_t in np.linspace(*LOG_BOUNDS, _GRID)]
    slopes = [slope(log_t) for log_t in grid]
    roots = [
        float(brentq(slope, grid[i], grid[i + 1], xtol=1e-10))
        for i in range(_GRID - 1)
        if slopes[i] < 0 <= slopes[i + 1]
    ]
    if not roots:
        if all(value == 0 for value in slopes):
            return 0.0  # constant logits: no temperature changes anything
        return grid[0] if slopes[_GRID // 2] > 0 else grid[-1]
    ends = plain(grid[0]), plain(grid[-1])
    likely = grid[0] if ends[0] >= 0 else grid[-1]
    if ends[0] < 0 < ends[1]:
        likely = float(brentq(plain, grid[0], grid[-1], xtol=1e-6))
    return min(roots, key=lambda log_t: abs(log_t - likely))
