"""Ridge-penalised multinomial regression on logits: the problem vector and matrix scaling solve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.functional.errors import InputError

Blocks = list[tuple[Tensor, Tensor]]

_MEMORY = 12  # pairs L-BFGS remembers
_BLOCK = 1 << 19


@dataclass(frozen=True)
class Ridge:
    """Strengths of the penalty ½ Σ λ c²; an infinite one holds its coefficients at zero."""

    intercept: float
    diagonal: float
    off_diagonal: float = math.inf

    def weights(self, like: Tensor) -> Tensor:
        """One strength a coefficient, in the shape of the coefficients given."""
        found = torch.empty_like(like)
        if is_diagonal(like):
            found[0], found[1] = self.diagonal, self.intercept
        else:
            found.fill_(self.off_diagonal)
            found[:-1].fill_diagonal_(self.diagonal)
            found[-1] = self.intercept
        return found


def is_diagonal(coefficients: Tensor) -> bool:
    """Coefficients are (2,K), diagonal above intercept, or (K+1,K), matrix above intercept."""
    return coefficients.shape[0] == 2


def to_blocks(features: Tensor, target: Tensor) -> Blocks:
    """Row blocks small enough for the cache, large enough for a matrix product."""
    step = max(64, _BLOCK // features.shape[1])
    starts = range(0, len(target), step)
    return [(features[i : i + step], target[i : i + step]) for i in starts]


class Curvature(NamedTuple):
    """Parts of the Hessian at c = 0 without the ridge, w_ni = p_ni (1 − p_ni)."""

    diagonal: Tensor  # Σ_n w_ni x_nj², and Σ_n w_ni for the intercept
    crossed: Tensor  # Σ_n w_ni x_nj: each coefficient with its class's intercept


@dataclass(frozen=True)
class Problem:
    """f(c) = Σ_n CE(s·x_n + c(x_n), y_n) + ½ Σ λ c², convex in the coefficients c.

    c(x) = d∘x + b with coefficients (2,K), or Cᵀx + b with (K+1,K); c = 0 is the starting
    map x ↦ s·x, which an infinite ridge keeps.
    """

    blocks: Blocks
    scale: float

    @property
    def num_rows(self) -> int:
        """Rows in all blocks."""
        return sum(len(target) for _, target in self.blocks)

    def outputs(self, x: Tensor, coefficients: Tensor) -> Tensor:
        """Logits out for a block of features."""
        if is_diagonal(coefficients):
            return torch.addcmul(coefficients[1], x, coefficients[0] + self.scale)
        matrix = coefficients[:-1].clone()
        matrix.diagonal().add_(self.scale)
        return torch.addmm(coefficients[-1], x, matrix)

    def losses(self, coefficients: Tensor) -> Tensor:
        """CE of every row, without the penalty."""
        return torch.cat(
            [
                torch.nn.functional.cross_entropy(
                    self.outputs(x, coefficients), target, reduction="none"
                )
                for x, target in self.blocks
            ]
        )

    def value_and_gradient(self, coefficients: Tensor, ridge: Tensor) -> tuple[float, Tensor]:
        """f and ∂f/∂c = λc + Σ_n (p_n − onehot(y_n)) xₙᵀ."""
        # 0 · ∞ is not a number: coefficients held at zero have no penalty to pay.
        gradient = torch.where(torch.isinf(ridge), 0.0, ridge) * coefficients
        total = 0.5 * float((gradient * coefficients).sum(dtype=torch.float64))
        for x, target in self.blocks:
            out = self.outputs(x, coefficients)
            at = target.unsqueeze(1)
            normaliser = torch.logsumexp(out, 1, keepdim=True)
            total += float((normaliser - out.gather(1, at)).sum(dtype=torch.float64))
            residual = out.sub_(normaliser).exp_()
            residual.scatter_add_(1, at, torch.full_like(normaliser, -1.0))
            gradient[-1] += residual.sum(0)
            if is_diagonal(coefficients):
                gradient[0] += residual.mul_(x).sum(0)
            else:
                gradient[:-1].addmm_(x.t(), residual)
        return total, gradient

    def curvature(self, like: Tensor) -> Curvature:
        """In the shape of the coefficients given."""
        found, crossed = torch.zeros_like(like), torch.zeros_like(like[:-1])
        for x, _ in self.blocks:
            p = torch.softmax(x * self.scale, 1)
            weight = p.mul_(1.0 - p)
            found[-1] += weight.sum(0)
            if is_diagonal(like):
                product = weight.mul_(x)
                crossed[0] += product.sum(0)
                found[0] += product.mul_(x).sum(0)
            else:
                crossed.addmm_(x.t(), weight)
                found[:-1].addmm_(x.square().t(), weight)
        return Curvature(found, crossed)


class Preconditioner:
    """An inverse of the Hessian as if each coefficient shared rows with its intercept alone.

    Features that are not centred, as log-probabilities are not, move a class's logits as
    its intercept does: the intercept is eliminated from each pair (the Schur complement).
    An infinite ridge gives 0, so that what it holds stays where it is.
    """

    def __init__(self, curvature: Curvature, ridge: Tensor) -> None:
        whole = curvature.diagonal + ridge
        whole.clamp_min_(torch.finfo(whole.dtype).tiny ** 0.5)
        self._shift = curvature.crossed / whole[-1]
        rest = torch.maximum(whole[:-1] - curvature.crossed * self._shift, 1e-6 * whole[:-1])
        self._inverse = torch.cat((rest, whole[-1:])).reciprocal_()

    def __call__(self, gradient: Tensor) -> Tensor:
        """The inverse times a gradient."""
        found = gradient.clone()
        found[:-1].addcmul_(self._shift, gradient[-1], value=-1.0)
        found *= self._inverse
        found[-1] -= (self._shift * found[:-1]).sum(0)
        return found


def minimise(
    problem: Problem,
    ridge: Ridge,
    start: Tensor,
    *,
    tolerance: float,
    most: int,
    must_converge: bool = True,
    curvature: Curvature | None = None,
) -> Tensor:
    """The coefficients of least penalised loss, by L-BFGS on exact gradients.

    A `Preconditioner` starts each direction, so that logits of any scale and ridges of any
    strength look alike. Converged when the decrease a full step promises
    is below ``tolerance`` nats a row, or when the numbers' precision allows no more.
    """
    weights = ridge.weights(start)
    if bool(torch.isinf(weights).all()):
        return start  # nothing is free to move
    inverse = Preconditioner(curvature or problem.curvature(start), weights)
    rows, precision = problem.num_rows, torch.finfo(start.dtype).eps
    here = start
    value, gradient = problem.value_and_gradient(here, weights)
    pairs: list[tuple[Tensor, Tensor, float]] = []
    for _ in range(most):
        direction = _direction(gradient, inverse, pairs)
        promise = -_dot(gradient, direction)
        if not promise > tolerance * rows:
            return here
        step, slack = 1.0, 4.0 * precision * abs(value)
        while True:
            there = here + step * direction
            next_value, next_gradient = problem.value_and_gradient(there, weights)
            if next_value <= value - 1e-4 * step * promise + slack:
                break
            step *= 0.3
            if step < 1e-10:
                break
        if not math.isfinite(next_value) or step < 1e-10:
            if promise <= 1e-4 * rows:
                return here  # rounding hides what little is left
            break
        change, turn = there - here, next_gradient - gradient
        curved = _dot(change, turn)
        if curved > 0:
            pairs = [*pairs[1 - _MEMORY :], (change, turn, curved)]
        here, value, gradient = there, next_value, next_gradient
    if must_converge:
        raise InputError(
            f"the fit did not converge in {most:,} steps; give a larger strength (such as 10), "
            "divide logits of extreme size by a constant, or use temperature"
        )
    return here


def _direction(
    gradient: Tensor, inverse: Preconditioner, pairs: list[tuple[Tensor, Tensor, float]]
) -> Tensor:
    """The two-loop recursion (Nocedal & Wright, algorithm 7.4) from a preconditioner."""
    direction = gradient.neg()
    amounts: list[float] = []
    for change, turn, curved in reversed(pairs):
        amounts.append(_dot(change, direction) / curved)
        direction.sub_(turn, alpha=amounts[-1])
    direction = inverse(direction)
    if pairs:
        _, turn, curved = pairs[-1]
        direction *= curved / _dot(inverse(turn), turn)
    for (change, turn, curved), amount in zip(pairs, reversed(amounts), strict=True):
        direction.add_(change, alpha=amount - _dot(turn, direction) / curved)
    return direction


def _dot(left: Tensor, right: Tensor) -> float:
    return float((left * right).sum(dtype=torch.float64))
