"""Fitting by any objective: streamed gradients, minima, fixed points and searches."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.base import row_blocks
from calibrant.calibrators.objectives import Objective, Rows, rows_after
from calibrant.functional.errors import InputError

Vector: TypeAlias = "NDArray[np.float64]"
Bounds: TypeAlias = "list[tuple[float, float]]"
Map: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # of logits and parameters

COLDEST, HOTTEST = 1e-2, 1e2  # bounds of T
LOG_BOUNDS = (math.log(COLDEST), math.log(HOTTEST))
_ELEMENTS = 1 << 21  # of a block: its graph is held while it is differentiated
_TIGHT, _LOOSE = 1e-6, 1e-4  # largest gradient entry sought, and accepted
_RESTING = 0.1  # last step in ln T of averaged weights
_SHARE = 0.01  # of the distance to a fixed point, to which held weights are minimised
_GAIN = 1e-11  # relative gain at which a map with corners is left


class Problem:
    """A map of logits with parameters, and the rows it is fitted on, all in float64.

    Gradients take two streaming passes: the first finds each row's numbers and the
    derivative of the loss in them, the second pulls that back through the map, block by
    block, so that a loss that couples all rows needs no more memory than one that does not.
    """

    def __init__(
        self,
        map: Map,
        logits: Tensor,
        target: Tensor,
        size: int,
        penalty: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._map, self._logits, self._target = map, logits, target
        self.size, self._penalty = size, penalty
        self.num_classes = logits.shape[1]
        self._blocks = list(row_blocks(logits, _ELEMENTS))
        self.passes = 0

    def _tensor(self, at: Vector) -> Tensor:
        return torch.from_numpy(np.array(at, dtype=np.float64)).to(self._logits.device)

    def _block(self, which: slice, parameters: Tensor) -> Rows:
        mapped = self._map(self._logits[which].double(), parameters)
        return rows_after(mapped, self._target[which])

    def rows(self, at: Vector) -> Rows:
        """Each row's numbers at these parameters."""
        self.passes += 1
        parameters = self._tensor(at)
        with torch.no_grad():
            parts = [self._block(which, parameters) for which in self._blocks]
        return Rows(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def loss(self, at: Vector, loss: Callable[[Rows], Tensor]) -> float:
        """The value alone."""
        return float(loss(self.rows(at)))

    def gradient(self, at: Vector, loss: Callable[[Rows], Tensor]) -> tuple[float, Vector]:
        """Value and gradient of a loss of all rows, and of the penalty."""
        parameters = self._tensor(at).requires_grad_()
        with torch.enable_grad():
            if len(self._blocks) == 1:
                self.passes += 1
                total = loss(self._block(self._blocks[0], parameters))
                total.backward()  # type: ignore[no-untyped-call]
            else:
                rows = self.rows(at)
                floats = tuple(column.requires_grad_() for column in rows[:3])
                total = loss(Rows(floats[0], floats[1], floats[2], rows.correct, rows.target))
                slopes = torch.autograd.grad(total, floats, allow_unused=True)
                used = [i for i, slope in enumerate(slopes) if slope is not None]
                self.passes += 1
                for which in self._blocks:
                    block = self._block(which, parameters)
                    torch.autograd.backward(
                        [block[i] for i in used], [slopes[i][which] for i in used]
                    )
            if self._penalty is not None:
                extra = self._penalty(parameters)
                extra.backward()  # type: ignore[no-untyped-call]
                total = total + extra
        found = parameters.grad
        slope = np.zeros(self.size) if found is None else found.cpu().numpy()
        return float(total.detach()), slope

    def weighted(self, at: Vector, weights: Tensor) -> tuple[float, Vector]:
        """Value and gradient of Σ_n w_n (−ln p_y)."""
        return self.gradient(at, lambda rows: -(weights * rows.log_true).sum())


def fit_parameters(
    problem: Problem,
    objective: Objective,
    start: Vector,
    bounds: Bounds,
    *,
    most: int = 1000,
    kinked: bool = False,
) -> Vector:
    """The minimum of a smooth objective, or the fixed point of a reweighted one.

    ``kinked`` says that the map has corners, where no gradient need vanish: then the best
    point found is given, where otherwise one that has not converged is an error.
    """

    def value(at: Vector) -> tuple[float, Vector]:
        return problem.gradient(at, objective.loss)

    if objective.kind != "smooth":
        return _fixed_point(problem, objective, start, bounds, 20 if kinked else 200, kinked)
    if kinked:
        return _minimise(value, start, bounds, most, _GAIN)
    found, left = start, math.inf
    for _ in range(4):  # a fresh start forgets the curvature of where it came from
        found = _minimise(value, found, bounds, most)
        left = residual(found, value(found)[1], bounds)
        if left < _TIGHT:
            break
    if left > _LOOSE:
        raise InputError(
            f"the fit by {objective.name!r} did not converge in {most} steps (gradient "
            f"{left:.2g}); give more rows, or another objective"
        )
    return found


def _minimise(
    function: Callable[[Vector], tuple[float, Vector]],
    start: Vector,
    bounds: Bounds,
    most: int,
    gain: float = 1e-14,
    slope: float = 1e-8,
) -> Vector:
    from scipy.optimize import minimize

    found = minimize(
        function,
        start,
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": most, "maxfun": 3 * most, "ftol": gain, "gtol": slope, "maxcor": 20},
    )
    best: Vector = np.asarray(found.x, dtype=np.float64)
    if not np.isfinite(best).all() or not math.isfinite(found.fun):
        raise InputError("the fit met a value that is not finite; are the logits very large?")
    return best


def residual(at: Vector, gradient: Vector, bounds: Bounds) -> float:
    """The largest entry of a gradient that a step within the bounds could follow."""
    low, high = np.array(bounds).T
    return float(np.abs(np.clip(at - gradient, low, high) - at).max())


def _fixed_point(
    problem: Problem,
    objective: Objective,
    start: Vector,
    bounds: Bounds,
    most: int,
    kinked: bool,
) -> Vector:
    """Hold the weights, minimise, weigh again: a point that stays is a root of Σ w_n ∂ℓ_n.

    Where weighing again does not come closer, new weights are mixed with the old ones, in
    the end as their average. Weights that jump, or nearly, where classes lose the same may
    have no root within reach: the point at which the averaged weights come to rest is then
    taken, with a warning.
    """
    at, share, closest, moved = start, 1.0, math.inf, math.inf
    weights: Tensor | None = None
    for turn in range(15 if kinked else 60):
        fresh = objective.weights(problem.rows(at))
        # As shares of one: a common factor moves no root, but would outweigh the penalty.
        fresh = fresh / fresh.sum().clamp_min(1e-300)
        distance = residual(at, problem.weighted(at, fresh)[1], bounds)
        if distance < _TIGHT:
            return at
        if distance >= 0.9 * closest:
            share = max(0.5 * share, 1.0 / (turn + 2))
        closest = min(distance, closest)
        weights = fresh if weights is None else (1 - share) * weights + share * fresh
        held = weights

        def value(x: Vector, held: Tensor = held) -> tuple[float, Vector]:
            return problem.weighted(x, held)

        if kinked:
            following = _minimise(value, at, bounds, most, _GAIN)
        else:  # no closer than new weights will move it again
            steep = max(1e-8, _SHARE * distance)
            following = _minimise(value, at, bounds, most, slope=steep)
        moved, at = float(np.abs(following - at).max()), following
    if kinked or closest < _LOOSE:
        return at
    polished = _steep_root(problem, objective, at, bounds)
    if polished is not None:
        return polished
    if moved < _RESTING:
        warnings.warn(
            f"the weights of objective {objective.name!r} jump where the fit comes to rest: no "
            f"root was found there, and the point between was taken (residual {closest:.2g})",
            stacklevel=6,
        )
        return at
    raise InputError(
        f"the fixed point of objective {objective.name!r} was not reached (residual "
        f"{closest:.2g}, last step {moved:.2g}); use objective='nll', or more rows"
    )


def _steep_root(
    problem: Problem, objective: Objective, start: Vector, bounds: Bounds
) -> Vector | None:
    """The root near where averaged weights rest, by Powell's hybrid; few parameters only."""
    from scipy.optimize import root

    if problem.size > 64:
        return None

    def slope(at: Vector) -> Vector:
        weights = objective.weights(problem.rows(at))
        return problem.weighted(at, weights / weights.sum().clamp_min(1e-300))[1]

    found: Vector = root(slope, start, method="hybr").x
    low, high = np.array(bounds).T
    inside = bool(((found >= low) & (found <= high)).all())
    return found if inside and float(np.abs(slope(found)).max()) < _LOOSE else None
