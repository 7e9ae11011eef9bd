"""Ridge-penalised multinomial regression on logits, and the choice of the ridge's strength.

Vector, matrix and Dirichlet scaling solve this problem. `minimise` solves it by L-BFGS for any
number of classes, `NarrowFits` by Newton's method for few, several fits at once; `Search` and
`NarrowSearch` compare strengths by the likelihood of held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.solvers.folds import assign_folds
from calibrant.core.errors import InputError


class RowBlock(NamedTuple):
    """Some rows: features, labels, and weights and clusters where there are any."""

    x: Tensor
    target: Tensor
    weights: Tensor | None = None
    clusters: Tensor | None = None


Blocks = list[RowBlock]

MOST_NARROW = 32  # classes; beyond, (2K)² curvatures cost more than the gradients they save
WEAKEST = 1e-3  # weakest ridge for Newton: below it a curvature may be singular in float32
_MEMORY = 12  # pairs L-BFGS remembers
_BLOCK = 1 << 19
_NARROW_BLOCK = 1 << 16  # numbers; the cache holds several times as many


class Penalty(Protocol):
    """Strengths of the penalty ½ Σ λ c²."""

    def weights(self, like: Tensor) -> Tensor:
        """Return the strength of each coefficient, in the shape of the coefficients given."""


@dataclass(frozen=True)
class Ridge:
    """Strengths of the penalty ½ Σ λ c²; an infinite one holds its coefficients at zero."""

    intercept: float
    diagonal: float
    off_diagonal: float = math.inf

    def weights(self, like: Tensor) -> Tensor:
        """Return the strength of each coefficient, in the shape of the coefficients given."""
        weights = torch.empty_like(like)
        if is_diagonal(like):
            weights[0], weights[1] = self.diagonal, self.intercept
        else:
            weights.fill_(self.off_diagonal)
            weights[:-1].fill_diagonal_(self.diagonal)
            weights[-1] = self.intercept
        return weights


def is_diagonal(coefficients: Tensor) -> bool:
    """Tell (2,K) coefficients, diagonal above intercept, from (K+1,K), matrix above intercept."""
    return coefficients.shape[0] == 2


def to_blocks(features: Tensor, target: Tensor, *design: Tensor | None) -> Blocks:
    """Cut rows into blocks small enough for the cache, large enough for a matrix product.

    ``design`` is the rows' weights and clusters, each None where there are none.
    """
    step = max(64, _BLOCK // features.shape[1])
    parts = [slice(i, i + step) for i in range(0, len(target), step)]
    return [
        RowBlock(features[p], target[p], *(None if d is None else d[p] for d in design))
        for p in parts
    ]


class Curvature(NamedTuple):
    """Parts of the Hessian at c = 0 without the ridge, w_ni = p_ni (1 − p_ni)."""

    diagonal: Tensor  # Σ_n w_ni x_nj², and Σ_n w_ni for the intercept
    crossed: Tensor  # Σ_n w_ni x_nj: each coefficient with its class's intercept


class ConvexProblem(Protocol):
    """A penalised loss, convex in coefficients whose last row are intercepts."""

    @property
    def num_rows(self) -> int:
        """Return the number of rows of data."""

    def value_and_gradient(self, coefficients: Tensor, ridge: Tensor) -> tuple[float, Tensor]:
        """Return the penalised loss and its gradient."""

    def curvature(self, like: Tensor) -> Curvature:
        """Return the curvature at c = 0, in the shape of the coefficients given."""


@dataclass(frozen=True)
class RidgeProblem:
    """f(c) = Σ_n w_n CE(s·x_n + c(x_n), y_n) + ½ Σ λ c², convex in the coefficients c.

    c(x) = d∘x + b with coefficients (2,K), or Cᵀx + b with (K+1,K); c = 0 is the starting
    map x ↦ s·x, which an infinite ridge keeps.
    """

    blocks: Blocks
    scale: float

    @property
    def num_rows(self) -> int:
        """Return the number of rows in all blocks."""
        return sum(len(block.target) for block in self.blocks)

    def outputs(self, x: Tensor, coefficients: Tensor) -> Tensor:
        """Return the logits of a block of features."""
        if is_diagonal(coefficients):
            return torch.addcmul(coefficients[1], x, coefficients[0] + self.scale)
        matrix = coefficients[:-1].clone()
        matrix.diagonal().add_(self.scale)
        return torch.addmm(coefficients[-1], x, matrix)

    def losses(self, coefficients: Tensor) -> Tensor:
        """Return the cross-entropy of every row, times its weight, without the penalty."""
        parts = []
        for x, target, weights, _ in self.blocks:
            out = self.outputs(x, coefficients)
            losses = torch.nn.functional.cross_entropy(out, target, reduction="none")
            parts.append(losses if weights is None else losses * weights.to(losses.dtype))
        return torch.cat(parts)

    def value_and_gradient(self, coefficients: Tensor, ridge: Tensor) -> tuple[float, Tensor]:
        """Return f and ∂f/∂c = λc + Σ_n w_n (p_n − onehot(y_n)) xₙᵀ."""
        # 0 · ∞ is not a number: coefficients held at zero pay no penalty.
        gradient = torch.where(torch.isinf(ridge), 0.0, ridge) * coefficients
        total = 0.5 * float((gradient * coefficients).sum(dtype=torch.float64))
        for x, target, weights, _ in self.blocks:
            out = self.outputs(x, coefficients)
            labels = target.unsqueeze(1)
            normaliser = torch.logsumexp(out, 1, keepdim=True)
            losses = normaliser - out.gather(1, labels)
            residual = out.sub_(normaliser).exp_()
            residual.scatter_add_(1, labels, torch.full_like(normaliser, -1.0))
            if weights is not None:
                row_weights = weights.to(out.dtype).unsqueeze(1)
                losses, residual = losses * row_weights, residual.mul_(row_weights)
            total += float(losses.sum(dtype=torch.float64))
            gradient[-1] += residual.sum(0)
            if is_diagonal(coefficients):
                gradient[0] += residual.mul_(x).sum(0)
            else:
                gradient[:-1].addmm_(x.t(), residual)
        return total, gradient

    def curvature(self, like: Tensor) -> Curvature:
        """Return the curvature, in the shape of the coefficients given."""
        diagonal, crossed = torch.zeros_like(like), torch.zeros_like(like[:-1])
        for x, _, weights, _ in self.blocks:
            p = torch.softmax(x * self.scale, 1)
            weight = p.mul_(1.0 - p)
            if weights is not None:
                weight.mul_(weights.to(p.dtype).unsqueeze(1))
            diagonal[-1] += weight.sum(0)
            if is_diagonal(like):
                product = weight.mul_(x)
                crossed[0] += product.sum(0)
                diagonal[0] += product.mul_(x).sum(0)
            else:
                crossed.addmm_(x.t(), weight)
                diagonal[:-1].addmm_(x.square().t(), weight)
        return Curvature(diagonal, crossed)


class Preconditioner:
    """An inverse of the Hessian as if each coefficient shared rows with its intercept alone.

    Features that are not centred, such as log-probabilities, move a class's logits as its
    intercept does, so the intercept is eliminated from each pair (the Schur complement). An
    infinite ridge gives 0: the coefficients it holds do not move.
    """

    def __init__(self, curvature: Curvature, ridge: Tensor) -> None:
        whole = curvature.diagonal + ridge
        whole.clamp_min_(torch.finfo(whole.dtype).tiny ** 0.5)
        self._shift = curvature.crossed / whole[-1]
        rest = torch.maximum(whole[:-1] - curvature.crossed * self._shift, 1e-6 * whole[:-1])
        self._inverse = torch.cat((rest, whole[-1:])).reciprocal_()

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the inverse times a gradient."""
        product = gradient.clone()
        product[:-1].addcmul_(self._shift, gradient[-1], value=-1.0)
        product *= self._inverse
        product[-1] -= (self._shift * product[:-1]).sum(0)
        return product


def minimise(
    problem: ConvexProblem,
    ridge: Penalty,
    start: Tensor,
    *,
    tolerance: float,
    most: int,
    must_converge: bool = True,
    curvature: Curvature | None = None,
) -> Tensor:
    """Find the coefficients of least penalised loss, by L-BFGS on exact gradients.

    A `Preconditioner` starts each direction, so that logits of any scale and ridges of any
    strength look alike.

    Args:
        problem: The rows and the starting map.
        ridge: The penalty.
        start: The coefficients to start from.
        tolerance: The fit has converged when the decrease that a full step promises is below
            this many nats a row, or when precision allows no more.
        most: The largest number of steps.
        must_converge: False returns the last point, converged or not. Default: True (a fit
            that has not converged is an error).
        curvature: The problem's curvature, if known. Default: None (computed here).
    """
    weights = ridge.weights(start)
    if bool(torch.isinf(weights).all()):
        return start  # nothing is free to move
    inverse = Preconditioner(curvature or problem.curvature(start), weights)
    rows, precision = problem.num_rows, torch.finfo(start.dtype).eps
    point = start
    value, gradient = problem.value_and_gradient(point, weights)
    pairs: list[tuple[Tensor, Tensor, float]] = []
    for _ in range(most):
        direction = _direction(gradient, inverse, pairs)
        promise = -_dot(gradient, direction)
        if not promise > tolerance * rows:
            return point
        step, slack = 1.0, 4.0 * precision * abs(value)
        while True:
            trial = point + step * direction
            next_value, next_gradient = problem.value_and_gradient(trial, weights)
            if next_value <= value - 1e-4 * step * promise + slack:
                break
            step *= 0.3
            if step < 1e-10:
                break
        if not math.isfinite(next_value) or step < 1e-10:
            if promise <= 1e-4 * rows:
                return point  # rounding hides what little is left
            break
        change, turn = trial - point, next_gradient - gradient
        curved = _dot(change, turn)
        if curved > 0:
            pairs = [*pairs[1 - _MEMORY :], (change, turn, curved)]
        point, value, gradient = trial, next_value, next_gradient
    if must_converge:
        raise InputError(
            f"the fit did not converge in {most:,} steps; give a larger strength (such as 10), "
            "divide very large logits by a constant, or use temperature"
        )
    return point


def _direction(
    gradient: Tensor, inverse: Preconditioner, pairs: list[tuple[Tensor, Tensor, float]]
) -> Tensor:
    """Run the two-loop recursion (Nocedal & Wright, algorithm 7.4) from a preconditioner."""
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


class Evaluation(NamedTuple):
    """F fits at their coefficients: the losses of rows, gradients and Hessians."""

    losses: Tensor  # (F,N), of all rows, kept or not
    gradient: Tensor  # (F,2K), of the loss of the rows kept
    hessian: Tensor  # (F,2K,2K)


class NarrowFits:
    """F ridge fits c(x) = d∘x + b of `RidgeProblem`, each on its own choice of rows.

    Rows lie along the last axis, where sums over them and over few classes are both fast. With
    p = softmax(s·x + c(x)) and q = p∘x of every row, the Hessian in (d, b) is

        [diag(Σ q∘x), diag(Σ q); diag(Σ q), diag(Σ p)] − Σ (q, p)(q, p)ᵀ

    and as p sums to one over classes, Σ q and Σ p are sums of rows of the second part. Taken
    from there, they leave shifts of all logits together free to the last digit.

    Args:
        features: (K,N) features.
        target: (N,) labels.
        scale: s, the factor of the starting map.
        keep: (F,N), the weight of each row in each fit, 0 for rows left out. Default: None (one
            fit of all rows, which count the same).
    """

    def __init__(
        self, features: Tensor, target: Tensor, scale: float, keep: Tensor | None = None
    ) -> None:
        self.features, self.target, self.scale = features, target, scale
        self.keep = keep
        self.weighted = keep is not None and bool(((keep != 0) & (keep != 1)).any())
        self._root = keep.sqrt() if keep is not None and self.weighted else keep
        row_masks = features.new_ones(1, len(target)) if keep is None else keep
        self.rows = row_masks.sum(1).double()
        hot = torch.zeros_like(features).scatter_(0, target.unsqueeze(0), 1.0)
        # The labels' part of every gradient does not depend on the coefficients.
        self._labels = torch.cat(
            (row_masks @ (hot * features).t(), row_masks @ hot.t()), 1
        ).double()

    def at(self, coefficients: Tensor) -> Evaluation:
        """Return losses, gradient and Hessian at (F,2,K) coefficients, without the ridge."""
        count, classes = coefficients.shape[0], self.features.shape[0]
        columns = coefficients.to(self.features.dtype).unsqueeze(-1)
        slope, shift = columns[:, 0] + self.scale, columns[:, 1]
        losses = []
        products = self._labels.new_zeros(count, 2 * classes, 2 * classes)
        squares = self._labels.new_zeros(count, classes)
        width = max(256, _NARROW_BLOCK // (count * classes))
        for begin in range(0, len(self.target), width):
            rows = slice(begin, begin + width)
            x, y = self.features[:, rows], self.target[rows]
            logs = torch.log_softmax(torch.addcmul(shift, x, slope), dim=1)
            losses.append(logs.gather(1, y.expand(count, 1, len(y))).squeeze(1).neg_())
            parts = logs.new_empty(count, 2 * classes, len(y))
            q, p = parts[:, :classes], parts[:, classes:]
            torch.exp(logs, out=p)
            # With √w p and √w q the products hold w once, as p sums to one.
            if self._root is not None:
                p.mul_(self._root[:, None, rows])
            torch.mul(p, x, out=q)
            products += parts @ parts.transpose(1, 2)
            torch.mul(q, x, out=logs)
            if self.weighted and self._root is not None:
                logs.mul_(self._root[:, None, rows])
            squares += logs.sum(2)
        crossed, plain = products[:, :classes, classes:], products[:, classes:, classes:]
        first, mass = crossed.sum(2), plain.sum(2)
        hessian = products.neg()
        for part, diagonal in (
            (hessian[:, :classes, :classes], squares),
            (hessian[:, :classes, classes:], first),
            (hessian[:, classes:, :classes], first),
            (hessian[:, classes:, classes:], mass),
        ):
            part.diagonal(dim1=1, dim2=2).add_(diagonal)
        gradient = torch.cat((first, mass), 1) - self._labels
        return Evaluation(torch.cat(losses, 1), gradient, hessian)

    def minimise(
        self,
        ridge: Ridge,
        start: Tensor,
        *,
        tolerance: float,
        most: int = 100,
        known: Evaluation | None = None,
    ) -> tuple[Tensor, Evaluation]:
        """Find the (F,2,K) coefficients of least penalised loss, and the evaluation there.

        Args:
            ridge: The penalty.
            start: The coefficients from which damped Newton starts.
            tolerance: The fits have converged when every step promises less than this many
                nats a row, or when precision allows no more.
            most: The largest number of steps. Default: 100 (ours: Newton takes a handful).
            known: The evaluation at ``start``, if known. Default: None (computed here).
        """
        weights = ridge.weights(start[0]).double().flatten()
        point, evaluation = start.double(), known or self.at(start)
        value = self._value(point, evaluation, weights)
        precision = torch.finfo(self.features.dtype).eps
        for _ in range(most):
            flat = point.flatten(1)
            gradient = evaluation.gradient + weights * flat
            curved = evaluation.hessian + torch.diag(weights)
            step = -torch.linalg.solve(curved, gradient.unsqueeze(2)).squeeze(2)
            promise = -(gradient * step).sum(1)
            if not bool((promise > tolerance * self.rows).any()):
                return point, evaluation
            slack = 4.0 * precision * value.abs()
            share = torch.ones_like(promise)
            while True:
                trial = (flat + share.unsqueeze(1) * step).view_as(point)
                then = self.at(trial)
                lower = self._value(trial, then, weights)
                good = lower <= value - 1e-4 * share * promise + slack
                if bool(good.all()):
                    break
                share = torch.where(good, share, 0.3 * share)
                if float(share.min()) < 1e-10:
                    if bool((promise <= 1e-4 * self.rows).all()):
                        return point, evaluation  # rounding hides what little is left
                    raise InputError(
                        "the fit did not converge; give a larger strength (such as 10), divide "
                        "very large logits by a constant, or use temperature"
                    )
            point, evaluation, value = trial, then, lower
        return point, evaluation

    def _value(self, coefficients: Tensor, evaluation: Evaluation, weights: Tensor) -> Tensor:
        losses = evaluation.losses if self.keep is None else evaluation.losses * self.keep
        penalty = 0.5 * (weights * coefficients.flatten(1).square()).sum(1)
        return losses.sum(1, dtype=torch.float64) + penalty


@dataclass(frozen=True)
class SearchState:
    """A ridge, the coefficients of each held-out fold under it, and the losses of its rows."""

    ridge: Ridge
    coefficients: list[Tensor]
    losses: Tensor
    seen: Evaluation | None = None  # of `NarrowFits`
    clusters: Tensor | None = None  # of the rows of the losses

    @property
    def loss(self) -> float:
        """Return the loss of all held-out rows."""
        return float(self.losses.sum())

    def beats(self, rival: SearchState) -> bool:
        """Return whether this state is better by more than chance would make paired rows differ."""
        gain = rival.losses - self.losses
        if self.clusters is not None:  # whole clusters differ by chance, not rows
            codes = torch.unique(self.clusters, return_inverse=True)[1]
            gain = gain.new_zeros(int(codes.max()) + 1).index_add_(0, codes, gain)
        error = float(gain.std()) * len(gain) ** 0.5
        # Few rows leave the error itself uncertain: 1.5 errors at 50 rows, half of one at many.
        return float(gain.sum()) > (0.5 + 50 / len(gain)) * error

    def mean(self) -> Tensor:
        """Return the mean coefficients of the folds, where a fit on all rows starts."""
        return torch.stack(self.coefficients).mean(0)


class Search:
    """Compare strengths by the likelihood of held-out rows, each fit started from the last.

    Args:
        folds: The blocks of each fold.
        scale: s, the factor of the starting map.
        visited: The number of folds that are held out in turn.
        tolerance: Nats a row, as of `minimise`.
    """

    def __init__(self, folds: list[Blocks], scale: float, visited: int, tolerance: float) -> None:
        self.tolerance = tolerance
        self.held_out = [RidgeProblem(fold, scale) for fold in folds[:visited]]
        self.fitted = [
            RidgeProblem([b for fold in folds if fold is not folds[i] for b in fold], scale)
            for i in range(visited)
        ]
        self.clusters = _join([block.clusters for fold in folds[:visited] for block in fold])

    def begin(self, ridge: Ridge, zero: Tensor) -> SearchState:
        """Return the state of a first ridge; an infinite one leaves every coefficient at zero."""
        coefficients = [zero for _ in self.fitted]
        losses = self._losses(coefficients)
        state = SearchState(ridge, coefficients, losses, clusters=self.clusters)
        if math.isfinite(ridge.intercept):
            return self._step(ridge, state, self._curvatures(state))
        return state

    def down(self, state: SearchState, tries: list[Ridge]) -> SearchState:
        """Return the best ridge, strongest first: try every second one, then its neighbours."""
        curvatures = self._curvatures(state)
        best, last, best_index, lowest, worse = state, state, -1, state.loss, 0
        for i in range(0, len(tries), 2):
            last = self._step(tries[i], last, curvatures)
            if last.beats(best):
                best, best_index = last, i
            if last.loss < lowest:
                lowest, worse = last.loss, 0
            else:
                # The strongest may be too strong to move anything: try one more.
                worse += 1
                if worse == (2 if best_index < 0 else 1):
                    break
        for i in (best_index - 1, best_index + 1):
            if best_index >= 0 and 0 <= i < len(tries):
                near = self._step(tries[i], best, curvatures)
                if near.beats(best) or (i < best_index and not best.beats(near)):
                    return near
        return best

    def _curvatures(self, state: SearchState) -> list[Curvature]:
        return [p.curvature(c) for p, c in zip(self.fitted, state.coefficients, strict=True)]

    def _step(
        self, ridge: Ridge, start: SearchState, curvatures: Sequence[Curvature]
    ) -> SearchState:
        fitted = [
            minimise(
                problem,
                ridge,
                begin,
                tolerance=self.tolerance,
                most=100,
                must_converge=False,
                curvature=curvature,
            )
            for problem, begin, curvature in zip(
                self.fitted, start.coefficients, curvatures, strict=True
            )
        ]
        return SearchState(ridge, fitted, self._losses(fitted), clusters=self.clusters)

    def _losses(self, coefficients: list[Tensor]) -> Tensor:
        return torch.cat(
            [p.losses(c) for p, c in zip(self.held_out, coefficients, strict=True)]
        ).double()


class NarrowSearch(Search):
    """`Search` for the diagonals of few classes: all folds at once, by Newton's method."""

    def __init__(self, folds: list[Blocks], scale: float, visited: int, tolerance: float) -> None:
        self.tolerance, self.visited = tolerance, visited
        blocks = [block for fold in folds for block in fold]
        features = torch.cat([block.x for block in blocks]).t().contiguous()
        target = torch.cat([block.target for block in blocks])
        self.weights = _join([block.weights for block in blocks])
        self.clusters = _join([block.clusters for fold in folds[:visited] for block in fold])
        sizes = torch.tensor([sum(len(block.target) for block in fold) for fold in folds])
        fold_of = torch.arange(len(folds)).repeat_interleave(sizes).to(target.device)
        self.out = fold_of == torch.arange(visited, device=target.device).unsqueeze(1)
        keep = (~self.out).to(features.dtype)
        if self.weights is not None:
            keep = keep * self.weights.to(features.dtype)
        self.fits = NarrowFits(features, target, scale, keep)

    def begin(self, ridge: Ridge, zero: Tensor) -> SearchState:
        """Return the state of a first ridge, as `Search.begin` does."""
        state = self._state(ridge, zero.expand(self.visited, *zero.shape), None)
        return self._step(ridge, state, ()) if math.isfinite(ridge.intercept) else state

    def _curvatures(self, state: SearchState) -> list[Curvature]:
        return []

    def _step(
        self, ridge: Ridge, start: SearchState, curvatures: Sequence[Curvature]
    ) -> SearchState:
        fitted, evaluation = self.fits.minimise(
            ridge, torch.stack(start.coefficients), tolerance=self.tolerance, known=start.seen
        )
        return self._state(ridge, fitted, evaluation)

    def _state(
        self, ridge: Ridge, coefficients: Tensor, evaluation: Evaluation | None
    ) -> SearchState:
        evaluation = evaluation or self.fits.at(coefficients)
        as_list = list(coefficients.to(self.fits.features.dtype))
        losses = evaluation.losses[self.out].double()
        if self.weights is not None:
            losses = losses * self.weights.expand_as(self.out)[self.out]
        return SearchState(ridge, as_list, losses, evaluation, self.clusters)


def cut_folds(
    features: Tensor,
    target: Tensor,
    size: float,
    folds: int,
    weights: Tensor | None = None,
    clusters: Tensor | None = None,
) -> list[Blocks]:
    """Shuffle and scale rows and cut them into folds, in single precision.

    Clusters are never split; too few of them give fewer folds.
    """
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    assigned = torch.arange(len(target)) % folds
    if clusters is not None:
        names = clusters[order.to(clusters.device)].cpu().numpy()
        folds = min(folds, len(np.unique(names)))
        assigned = torch.from_numpy(assign_folds(np.zeros(len(names), np.int64), folds, 0, names))
    parts: list[Blocks] = []
    for fold in range(folds):
        rows = order[assigned == fold].to(features.device)
        design = (None if part is None else part[rows] for part in (weights, clusters))
        parts.append(to_blocks((features[rows] / size).float(), target[rows], *design))
    return parts


def _join(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if known else None
