"""One temperature by any objective: exact roots and minima, or a multi-resolution search."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from torch import Tensor

from calibrant.calibrators.base import COSTLY
from calibrant.calibrators.descent import LOG_BOUNDS, Problem, Vector
from calibrant.calibrators.objectives import Objective
from calibrant.calibrators.partition import Partition, TemperedProblem

_COARSE = 41  # points over the whole range of ln T, 0.23 apart
_FINE = 12  # points on each side of a promising one, at each finer resolution
_KEPT = 3  # promising points followed at each resolution
_LEVELS = 3  # of finer resolution, down to steps of 1.3e-4 in ln T


def temperature_problem(logits: Tensor, target: Tensor) -> Problem:
    """z / T, in ln T."""
    partition = Partition(logits, target)
    return TemperedProblem(lambda at: partition.rows(-at), logits, target, 1)


def fit_one_temperature(logits: Tensor, target: Tensor, objective: Objective) -> float:
    """T by an objective, in [0.01, 100]; `prepare` is called here."""
    if objective.kind == "searched":
        place = search(lambda at: objective.value(logits / math.exp(at), target))
    else:
        problem = temperature_problem(logits, target)
        objective.prepare(problem)
        solve = _minimum if objective.kind == "smooth" else _root
        place = solve(problem, objective)
    beyond = not LOG_BOUNDS[0] + 1e-6 < place < LOG_BOUNDS[1] - 1e-6
    # Long before the bound a loss of rows that are all right is 0 to the last digit.
    perfect = objective.name != "label_smoothing" and bool((logits.argmax(1) == target).all())
    if beyond or perfect:
        warnings.warn(
            f"the best temperature by {objective.name} lies beyond {math.exp(place):.3g}, where "
            "it is held: every row may be right, or the logits may say nothing of the labels",
            stacklevel=5,
        )
    return math.exp(place)


def search(
    function: Callable[[float], float], low: float = LOG_BOUNDS[0], high: float = LOG_BOUNDS[1]
) -> float:
    """The least of a function with many small steps: its lowest points at ever finer grids.

    Of equal values the one nearest to the middle is taken (ln T = 0 over the whole range).
    """
    middle = 0.5 * (low + high)
    known: dict[float, float] = {}

    def rank(at: float) -> tuple[float, float]:
        if at not in known:
            known[at] = function(at)
        return known[at], abs(at - middle)

    step = (high - low) / (_COARSE - 1)
    points = [low + step * i for i in range(_COARSE)]
    for _ in range(_LEVELS + 1):
        for point in points:
            rank(point)
        kept = _lowest(sorted(known), rank, step)
        points = [
            min(max(centre + step * i / _FINE, low), high)
            for centre in kept
            for i in range(-_FINE, _FINE + 1)
        ]
        step /= _FINE
    return min(known, key=rank)


def _lowest(
    points: list[float], rank: Callable[[float], tuple[float, float]], apart: float
) -> list[float]:
    """The best few points, no two closer than a step."""
    kept: list[float] = []
    for point in sorted(points, key=rank):
        if all(abs(point - other) > 0.99 * apart for other in kept):
            kept.append(point)
        if len(kept) == _KEPT:
            break
    return kept


def _minimum(problem: Problem, objective: Objective) -> float:
    """The least minimum: the lowest cells of a grid, in each the exact root of the slope."""
    from scipy.optimize import brentq, minimize_scalar

    def value(at: float) -> float:
        return problem.loss(np.array([at]), objective.loss)

    def slope(at: float) -> float:
        return float(problem.gradient(np.array([at]), objective.loss)[1][0])

    # A soft-binned error has many dips, about as wide as its bins are.
    size = 4 * (_COARSE - 1) + 1 if objective.name == "sb_ece" else _COARSE
    bounds = _fair(problem) if objective.name == "sb_ece" else LOG_BOUNDS
    grid = np.linspace(*bounds, size)
    values = np.array([value(at) for at in grid])
    padded = np.concatenate(([math.inf], values, [math.inf]))
    dips = [i for i in range(size) if padded[i + 1] <= min(padded[i], padded[i + 2])]
    found: list[tuple[float, float]] = []
    for i in sorted(dips, key=lambda i: float(values[i]))[:4]:
        left, right = float(grid[max(i - 1, 0)]), float(grid[min(i + 1, size - 1)])
        found.append((float(values[i]), float(grid[i])))
        if slope(left) < 0 < slope(right):
            near = brentq(slope, left, right, xtol=1e-9)
        else:
            near = minimize_scalar(value, bounds=(left, right), method="bounded").x
        found.append((value(near), float(near)))
    return min(found, key=lambda pair: (pair[0], abs(pair[1])))[1]


def _fair(problem: Problem) -> tuple[float, float]:
    """Where ln T does not cost the fit's own rows likelihood, or hardly any.

    A soft-binned error is small where every row is certain, whatever the labels: without this
    a network that is nearly always right would get T near 0. The loss is convex in 1/T, so
    these T are one interval, and 1 is in it.
    """
    from scipy.optimize import brentq

    def excess(at: float) -> float:
        return problem.loss(np.array([at]), lambda rows: -rows.log_true.mean()) - most

    most = 0.0
    most = COSTLY * excess(0.0)
    low, high = (
        end if excess(end) <= 0 else float(brentq(excess, min(end, 0.0), max(end, 0.0), xtol=1e-6))
        for end in LOG_BOUNDS
    )
    return low, high


def _root(problem: Problem, objective: Objective) -> float:
    """The root of Σ w_n ∂ℓ_n/∂ln T, w_n at the same T, nearest to that of the likelihood.

    Only roots that descent would come to count: where the sum goes from falling to rising.
    """
    from scipy.optimize import brentq

    def slope(at: float) -> float:
        point: Vector = np.array([at])
        weights = objective.weights(problem.rows(point))
        # As shares, because focal's weights are tiny where every row is certain.
        weights = weights / weights.sum().clamp_min(1e-300)
        return float(problem.weighted(point, weights)[1][0])

    def plain(at: float) -> float:
        return float(problem.gradient(np.array([at]), lambda rows: -rows.log_true.mean())[1][0])

    grid = [float(at) for at in np.linspace(*LOG_BOUNDS, _COARSE)]
    slopes = [slope(at) for at in grid]
    roots = [
        float(brentq(slope, grid[i], grid[i + 1], xtol=1e-10))
        for i in range(_COARSE - 1)
        if slopes[i] < 0 <= slopes[i + 1]
    ]
    if not roots:
        if all(value == 0 for value in slopes):
            return 0.0  # constant logits: no temperature changes anything
        return grid[0] if slopes[_COARSE // 2] > 0 else grid[-1]
    ends = plain(grid[0]), plain(grid[-1])
    likely = grid[0] if ends[0] >= 0 else grid[-1]
    if ends[0] < 0 < ends[1]:
        likely = float(brentq(plain, grid[0], grid[-1], xtol=1e-6))
    return min(roots, key=lambda at: abs(at - likely))
