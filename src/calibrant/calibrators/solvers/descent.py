"""Solvers: minima, fixed points and roots of objectives, and searches without gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from torch import Tensor

from calibrant.calibrators.solvers.objectives import Objective
from calibrant.calibrators.solvers.problem import LOG_BOUNDS, Problem, Vector
from calibrant.core.errors import InputError

Bounds: TypeAlias = "list[tuple[float, float]]"

_TIGHT, _LOOSE = 1e-6, 1e-4  # largest gradient entry sought, and largest accepted
_RESTING = 0.1  # last step in ln T at which averaged weights have come to rest
_SHARE = 0.01  # held weights are minimised to this share of the distance to the fixed point
_GAIN = 1e-11  # relative gain at which the descent of a map with corners stops
_COARSE = 41  # points over the whole range of ln T, 0.23 apart
_FINE = 12  # points on each side of a promising one, at each finer resolution
_KEPT = 3  # promising points followed at each resolution
_LEVELS = 3  # finer resolutions, down to steps of 1.3e-4 in ln T


def fit_parameters(
    problem: Problem,
    objective: Objective,
    start: Vector,
    bounds: Bounds,
    *,
    most: int = 1000,
    kinked: bool = False,
) -> Vector:
    """Find the minimum of a smooth objective, or the fixed point of a reweighted one.

    Args:
        problem: The map and the rows.
        objective: The objective to minimise.
        start: The parameters to start from.
        bounds: The lower and upper bound of each parameter.
        most: The largest number of steps. Default: 1000 (ours: fits take far fewer).
        kinked: True for a map with corners, where no gradient need vanish: the best point
            is returned, converged or not. Default: False (an unconverged fit is an error).
    """

    def value(point: Vector) -> tuple[float, Vector]:
        return problem.gradient(point, objective.loss)

    if objective.kind != "smooth":
        return _fixed_point(problem, objective, start, bounds, 20 if kinked else 200, kinked)
    if kinked:
        return _minimise(value, start, bounds, most, _GAIN)
    point, gradient_left = start, math.inf
    for _ in range(4):  # a fresh start forgets the curvature of earlier points
        point = _minimise(value, point, bounds, most)
        gradient_left = residual(point, value(point)[1], bounds)
        if gradient_left < _TIGHT:
            break
    if gradient_left > _LOOSE:
        raise InputError(
            f"the fit by {objective.name!r} did not converge in {most} steps (gradient "
            f"{gradient_left:.2g}); give more rows, or another objective"
        )
    return point


def _minimise(
    function: Callable[[Vector], tuple[float, Vector]],
    start: Vector,
    bounds: Bounds,
    most: int,
    gain: float = 1e-14,
    slope: float = 1e-8,
) -> Vector:
    from scipy.optimize import minimize

    solution = minimize(
        function,
        start,
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": most, "maxfun": 3 * most, "ftol": gain, "gtol": slope, "maxcor": 20},
    )
    best: Vector = np.asarray(solution.x, dtype=np.float64)
    if not np.isfinite(best).all() or not math.isfinite(solution.fun):
        raise InputError("the fit met a value that is not finite: check for very large logits")
    return best


def residual(point: Vector, gradient: Vector, bounds: Bounds) -> float:
    """Return the largest entry of a gradient that a step within the bounds could follow."""
    low, high = np.array(bounds).T
    return float(np.abs(np.clip(point - gradient, low, high) - point).max())


def _fixed_point(
    problem: Problem,
    objective: Objective,
    start: Vector,
    bounds: Bounds,
    most: int,
    kinked: bool,
) -> Vector:
    """Find a root of Σ w_n ∂ℓ_n: hold the weights, minimise, weigh again, until nothing moves.

    Where weighing again comes no closer, new weights are mixed with the old ones, finally as
    their average. Weights that jump where classes lose the same may have no root within
    reach: then the point where the averaged weights come to rest is returned, with a warning.
    """
    point, share, closest, moved = start, 1.0, math.inf, math.inf
    weights: Tensor | None = None
    for turn in range(15 if kinked else 60):
        fresh = objective.row_weights(problem.rows(point))
        # As shares of one: a common factor moves no root but would outweigh the penalty.
        fresh = fresh / fresh.sum().clamp_min(1e-300)
        distance = residual(point, problem.weighted_gradient(point, fresh)[1], bounds)
        if distance < _TIGHT:
            return point
        if distance >= 0.9 * closest:
            share = max(0.5 * share, 1.0 / (turn + 2))
        closest = min(distance, closest)
        weights = fresh if weights is None else (1 - share) * weights + share * fresh
        held_weights = weights

        def value(x: Vector, fixed: Tensor = held_weights) -> tuple[float, Vector]:
            return problem.weighted_gradient(x, fixed)

        if kinked:
            following = _minimise(value, point, bounds, most, _GAIN)
        else:  # no closer than new weights will move it again
            steep = max(1e-8, _SHARE * distance)
            following = _minimise(value, point, bounds, most, slope=steep)
        moved, point = float(np.abs(following - point).max()), following
    if kinked or closest < _LOOSE:
        return point
    polished = _steep_root(problem, objective, point, bounds)
    if polished is not None:
        return polished
    if moved < _RESTING:
        warnings.warn(
            f"the weights of objective {objective.name!r} jump near the solution, so that no exact "
            f"solution exists; the point at the jump was used (residual {closest:.2g})",
            stacklevel=6,
        )
        return point
    raise InputError(
        f"the fixed point of objective {objective.name!r} was not reached (residual "
        f"{closest:.2g}, last step {moved:.2g}); use objective='nll' or more rows"
    )


def _steep_root(
    problem: Problem, objective: Objective, start: Vector, bounds: Bounds
) -> Vector | None:
    """Find the root near where averaged weights rest, by Powell's hybrid; few parameters only."""
    from scipy.optimize import root

    if problem.size > 64:
        return None

    def slope(point: Vector) -> Vector:
        weights = objective.row_weights(problem.rows(point))
        return problem.weighted_gradient(point, weights / weights.sum().clamp_min(1e-300))[1]

    point: Vector = root(slope, start, method="hybr").x
    low, high = np.array(bounds).T
    inside = bool(((point >= low) & (point <= high)).all())
    return point if inside and float(np.abs(slope(point)).max()) < _LOOSE else None


def search_grid(
    function: Callable[[float], float], low: float = LOG_BOUNDS[0], high: float = LOG_BOUNDS[1]
) -> float:
    """Find the lowest point of a function with many small steps, on ever finer grids.

    Among equal values the one nearest to the middle is taken (ln T = 0 over the whole range).

    Args:
        function: The function of ln T to minimise.
        low: The lower end of the range. Default: ln 0.01 (ours: the lower bound of T).
        high: The upper end of the range. Default: ln 100 (ours: the upper bound of T).
    """
    middle = 0.5 * (low + high)
    known: dict[float, float] = {}

    def rank(place: float) -> tuple[float, float]:
        if place not in known:
            known[place] = function(place)
        return known[place], abs(place - middle)

    step = (high - low) / (_COARSE - 1)
    points = [low + step * i for i in range(_COARSE)]
    for _ in range(_LEVELS + 1):
        for point in points:
            rank(point)
        lowest = _lowest(sorted(known), rank, step)
        points = [
            min(max(centre + step * i / _FINE, low), high)
            for centre in lowest
            for i in range(-_FINE, _FINE + 1)
        ]
        step /= _FINE
    return min(known, key=rank)


def _lowest(
    points: list[float], rank: Callable[[float], tuple[float, float]], apart: float
) -> list[float]:
    """Return the best few points, no two closer than a step."""
    lowest: list[float] = []
    for point in sorted(points, key=rank):
        if all(abs(point - neighbour) > 0.99 * apart for neighbour in lowest):
            lowest.append(point)
        if len(lowest) == _KEPT:
            break
    return lowest


@dataclass(frozen=True)
class Root:
    """The point where a rising function crosses zero, or the bound it reaches first."""

    value: float
    passes: int
    at_bound: bool


def rising_root(
    function: Callable[[float], tuple[float, float]],
    *,
    low: float,
    high: float,
    start: float = 1.0,
    tolerance: float = 1e-6,
    most: int = 60,
) -> Root:
    """Find the root of a function that rises with its positive argument, by Newton's method.

    Newton runs on the logarithm of the argument. A step that leaves the bracket, or that is
    not finite, is replaced by bisection.

    Args:
        function: Value and derivative at an argument.
        low: The lower end of the bracket.
        high: The upper end of the bracket.
        start: The first argument. Default: 1.0 (ours: temperature 1).
        tolerance: The fit has converged when the next step would move the logarithm by less
            than this. Default: 1e-06 (ours: far below the error of any T).
        most: The largest number of passes. Default: 60 (ours: fits take a handful).
    """
    left, right = math.log(low), math.log(high)
    place = min(max(math.log(start), left), right)
    for passes in range(1, most + 1):
        argument = math.exp(place)
        value, slope = function(argument)
        if value == 0:
            # Flat as well as zero: the function ran out of digits before it rises.
            return Root(argument, passes, at_bound=slope == 0)
        if value < 0:
            left = place
        else:
            right = place
        step = -value / (slope * argument) if slope > 0 else math.inf
        # A long first step from far away is shortened.
        step = max(-3.0, min(3.0, step)) if math.isfinite(step) else math.inf
        following = place + step
        if not left < following < right:
            following = 0.5 * (left + right)
            at_edge = right - left < tolerance
            if at_edge:
                bound = math.log(low) == left or math.log(high) == right
                return Root(math.exp(following), passes, bound)
        elif abs(step) < tolerance:
            return Root(math.exp(following), passes, False)
        place = following
    return Root(math.exp(place), most, False)
