"""The maps that a blend weighs: each refines another, held to it by a ridge of default strength.

Every map is a pair of functions over float tensors: ``fit_NAME`` returns its parameters from rows,
``NAME_logs`` or ``NAME_logits`` applies them. A ridge of 8 on a change that moves logits by about
one nat expects changes of 1/√8 nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.solvers.multinomial import (
    Blocks,
    Curvature,
    Ridge,
    RidgeProblem,
    minimise,
    to_blocks,
)
from calibrant.calibrators.solvers.one_vs_rest import log_sigmoid

STRENGTH = 8.0  # ridge of shape, order, diagonal, curves and curve: 1/√8 nats expected
LINE = 0.1  # ridge of a line: bounds separable rows, and lets a rare event shift far
MATRIX = Ridge(STRENGTH, STRENGTH, 50.0)
DIAGONAL = Ridge(STRENGTH, STRENGTH)
LOOSE_MATRIX = Ridge(0.3, 0.3, 1.0)  # where rows ask for more
SHARED = 1.0  # ridge of what the curves of all classes share
LOOSE, TIGHT = 1e-6, 1e-8  # nats a row at which a fit ends, and one of few parameters
_LEAST_SLOPE = 0.05
_FARTHEST = 4.0  # spreads beyond which a feature of a row counts as no farther
Newton = tuple[float, NDArray[np.float64], NDArray[np.float64]]  # value, gradient, curvature


# --- temperature and shape ----------------------------------------------------------------


def base_logs(z: Tensor, base: Tensor) -> Tensor:
    """Return ln((1 − w)·softmax(z/T) + w/K) of (N,K) logits; ``base`` is 1/T and w."""
    slope, share = base.to(z.dtype)
    logs = torch.log_softmax(z * slope, 1) + torch.log1p(-share)
    return torch.logaddexp(logs, (share / z.shape[1]).log().expand_as(logs))


def fit_base(
    z: Tensor, target: Tensor, weights: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    """Return 1/T and w of greatest likelihood, one row's worth of evidence being for w.

    The penalty −ln w leaves w near 1/(N + 1) where the rows ask for no more (Laplace).
    """
    rows, classes = z.shape
    total = float(rows) if weights is None else float(weights.sum())
    at = target.unsqueeze(1)
    own = z.gather(1, at).squeeze(1).double()

    def seen(place: NDArray[np.float64]) -> Newton:
        slope, share = math.exp(place[0]), 1.0 / (1.0 + math.exp(-place[1]))
        logs = torch.log_softmax(z * slope, 1)
        p = logs.gather(1, at).squeeze(1).double().exp()
        weighted = logs.exp_().mul_(z)
        mean = weighted.sum(1).double()
        spread = weighted.mul_(z).sum(1).double() - mean.square()
        q = (1.0 - share) * p + share / classes
        uniform = share / classes / q  # the probability that the uniform part made the label
        by_slope = (uniform - 1.0) * (own - mean) * slope
        bend = (1.0 - uniform) * spread * slope**2 + by_slope
        bend -= uniform / (1.0 - uniform).clamp_min(1e-12) * by_slope.square()
        parts = torch.stack(
            (
                -q.log(),
                by_slope,
                share - uniform,
                bend,
                -uniform * by_slope,
                share * (1.0 - share) - uniform * (1.0 - uniform),
            )
        )
        sums = (parts.sum(1) if weights is None else parts @ weights).tolist()
        gradient = np.array([sums[1], sums[2] - (1.0 - share)])
        curvature = np.array([[sums[3], sums[4]], [sums[4], sums[5] + share * (1.0 - share)]])
        return sums[0] - math.log(share), gradient, curvature

    few = -math.log(total + 1)
    if start is None:
        starts = [(0.0, few), (-1.0, few)]
    else:
        slope, share = start.tolist()
        starts = [(math.log(slope), math.log(share / (1.0 - share)))]
    low, high = np.array([-5.0, few - 7.0]), np.array([3.0, 3.0])
    found = [_descend(seen, np.array(place), low, high, total) for place in starts]
    best = min(found)[1]
    values = [math.exp(best[0]), 1.0 / (1.0 + math.exp(-best[1]))]
    return torch.tensor(values, dtype=torch.float64, device=z.device)


def _descend(
    seen: Callable[[NDArray[np.float64]], Newton],
    place: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    rows: float,
) -> tuple[float, list[float]]:
    """Return the least value near a place, and where: Newton, curvatures taken as positive."""
    value, gradient, curvature = seen(place)
    for _ in range(40):
        sizes, axes = np.linalg.eigh(curvature)
        step = -axes @ ((axes.T @ gradient) / np.maximum(np.abs(sizes), 1e-6 * rows))
        step *= min(1.0, 1.5 / float(np.abs(step).max() + 1e-300))
        step = np.clip(place + step, low, high) - place
        promise = -float(gradient @ step)
        if not promise > 1e-7 * rows:
            break
        length = 1.0
        while True:
            after = seen(place + length * step)
            if after[0] <= value - 1e-4 * length * promise:
                break
            length *= 0.3
            if length < 1e-6:
                return value, place.tolist()
        place, (value, gradient, curvature) = place + length * step, after
    return value, place.tolist()


def _confidence(u: Tensor) -> Tensor:
    """Return −ln(1 − p) of the top probability, which the uniform part of u bounds."""
    return -torch.log1p(-u.amax(1).exp().clamp(max=1.0 - 1e-7))


def shape_logits(u: Tensor, shape: Tensor) -> Tensor:
    """Return (1 + θ₁ + θ₂a + θ₃a²)·u, a the standardised confidence of the row."""
    theta = shape.to(u.dtype)
    a = (_confidence(u) - theta[3]) / theta[4]
    slope = 1.0 + theta[0] + theta[1] * a + theta[2] * a.square()
    return u * slope.clamp_min(_LEAST_SLOPE).unsqueeze(1)


def fit_shape(
    u: Tensor, target: Tensor, weights: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    """Return θ of least penalised loss, and the mean and spread of the confidence."""
    a = _confidence(u)
    mean, spread = float(a.mean()), max(float(a.std(correction=0)), 1e-3)
    if start is not None:
        mean, spread = start[3:].tolist()
    a = ((a - mean) / spread).double()
    powers = torch.stack((torch.ones_like(a), a, a.square()), 1)
    centred = u - u.mean(1, keepdim=True)
    size = float(centred.double().square().mean().sqrt()) or 1.0
    own = centred.gather(1, target.unsqueeze(1)).squeeze(1).double()
    w = torch.ones_like(a) if weights is None else weights
    strength = STRENGTH * size**2
    theta = torch.zeros(3, dtype=torch.float64, device=u.device)
    if start is not None:
        theta = start[:3].clone()

    def at(theta: Tensor) -> tuple[float, Tensor, Tensor]:
        slope = 1.0 + powers @ theta
        logits = centred * slope.to(u.dtype).unsqueeze(1)
        total = torch.logsumexp(logits, 1)
        p = (logits - total.unsqueeze(1)).exp_()
        weighted = p.mul_(centred)
        first = weighted.sum(1).double()
        second = weighted.mul_(centred).sum(1).double()
        value = float((w * (total.double() - slope * own)).sum())
        gradient = powers.t() @ (w * (first - own))
        curvature = (powers * (w * (second - first.square())).unsqueeze(1)).t() @ powers
        value += 0.5 * strength * float(theta.square().sum())
        eye = torch.eye(3, dtype=torch.float64, device=u.device)
        return value, gradient + strength * theta, curvature + (strength + 1e-9) * eye

    theta = _newton(at, theta, len(target))
    return torch.cat((theta, theta.new_tensor([mean, spread])))


def _newton(
    at: Callable[[Tensor], tuple[float, Tensor, Tensor]], theta: Tensor, rows: int
) -> Tensor:
    """Return the minimum of a convex function of few parameters, by damped Newton steps."""
    value, gradient, curvature = at(theta)
    for _ in range(30):
        step = -torch.linalg.solve(curvature, gradient)
        promise = -float(gradient @ step)
        if not promise > 1e-8 * rows:
            break
        length = 1.0
        while True:
            trial = theta + length * step
            after = at(trial)
            if after[0] <= value - 1e-4 * length * promise + 1e-9 * abs(value):
                break
            length *= 0.3
            if length < 1e-8:
                return theta
        theta, (value, gradient, curvature) = trial, after
    return theta


# --- order: gaps between classes, stretched by what the row looks like -------------------


def row_features(u: Tensor) -> Tensor:
    """Return (N,7) features of rows of log-probabilities, which no order of classes changes.

    With p₁ ≥ p₂ ≥ p₃ the largest probabilities and a = −ln(1 − p₁): a, a², ln(p₁/p₂), entropy,
    p₁, ln(p₂/p₃), a·ln(p₁/p₂).
    """
    first, second, third = u.topk(3, dim=1).values.unbind(1)
    a, gap = _confidence(u), first - second
    entropy = -(u.exp() * u).sum(1)
    columns = (a, a.square(), gap, entropy, first.exp(), second - third, a * gap)
    return torch.stack(columns, 1).double()


def _standardise(features: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """Return standardised features, bounded, after a column of ones."""
    scaled = ((features - mean) / spread).clamp(-_FARTHEST, _FARTHEST)
    return torch.cat((torch.ones_like(scaled[:, :1]), scaled), 1)


def _cut_gaps(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return how far classes lie behind the first: up to the second, and beyond it."""
    gaps = u.amax(1, keepdim=True) - u
    second = u.topk(2, dim=1).values
    near = torch.minimum(gaps, second[:, :1] - second[:, 1:])
    return near, gaps - near


def order_logs(u: Tensor, order: Tensor) -> Tensor:
    """Return ln softmax(−(1 + θ₁ᵀφ)·A − (1 + θ₂ᵀφ)·B), which keeps the order of classes.

    A and B are the gaps of `_cut_gaps`, φ the standardised `row_features`; ``order`` holds θ₁, θ₂,
    means and spreads.
    """
    features = _standardise(row_features(u), order[2, 1:].double(), order[3, 1:].double())
    near, far = _cut_gaps(u)
    first, second = (1.0 + features @ order[:2].double().t()).clamp_min(_LEAST_SLOPE).unbind(1)
    out = near * first.to(u.dtype).unsqueeze(1) + far * second.to(u.dtype).unsqueeze(1)
    return torch.log_softmax(-out, 1)


def fit_order(
    u: Tensor, target: Tensor, weights: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    """Return θ of least penalised loss, with the features' means and spreads: (4,8)."""
    features = row_features(u)
    mean, spread = features.mean(0), features.std(0, correction=0).clamp_min(1e-3)
    if start is not None:
        mean, spread = start[2, 1:], start[3, 1:]
    features = _standardise(features, mean, spread)
    count = features.shape[1]
    near, far = _cut_gaps(u)
    at_label = target.unsqueeze(1)
    own_near, own_far = (part.gather(1, at_label).squeeze(1).double() for part in (near, far))
    w = features.new_ones(len(target)) if weights is None else weights
    sizes = [float(part.double().square().mean()) or 1.0 for part in (near, far)]
    ridge = STRENGTH * torch.tensor(sizes, dtype=w.dtype, device=w.device)
    ridge = ridge.repeat_interleave(count)
    theta = w.new_zeros(2 * count) if start is None else start[:2].reshape(-1).clone()

    def at(theta: Tensor) -> tuple[float, Tensor, Tensor]:
        slopes = 1.0 + features @ theta.reshape(2, count).t()
        first, second = slopes.to(u.dtype).unsqueeze(2).unbind(1)
        logits = -(near * first + far * second)
        total = torch.logsumexp(logits, 1)
        p = (logits - total.unsqueeze(1)).exp_()
        by_near, by_far = p * near, p.mul_(far)
        mean_near, mean_far = by_near.sum(1).double(), by_far.sum(1).double()
        spreads = (
            (by_near * near).sum(1).double() - mean_near.square(),
            by_near.mul_(far).sum(1).double() - mean_near * mean_far,
            by_far.mul_(far).sum(1).double() - mean_far.square(),
        )
        losses = total.double() + slopes[:, 0] * own_near + slopes[:, 1] * own_far
        gradient = torch.cat(
            (features.t() @ (w * (own_near - mean_near)), features.t() @ (w * (own_far - mean_far)))
        )
        parts = [(features * (w * spread).unsqueeze(1)).t() @ features for spread in spreads]
        curvature = torch.cat(
            (torch.cat((parts[0], parts[1]), 1), torch.cat((parts[1], parts[2]), 1))
        )
        value = float(w @ losses) + 0.5 * float(ridge @ theta.square())
        return value, gradient + ridge * theta, curvature + torch.diag(ridge + 1e-9)

    theta = _newton(at, theta, len(target)).reshape(2, count)
    scale = [torch.cat((part.new_zeros(1), part)) for part in (mean, spread)]
    return torch.cat((theta, torch.stack(scale)))


# --- diagonal and matrix -----------------------------------------------------------------


def linear_logs(s: Tensor, linear: Tensor) -> Tensor:
    """Return ln softmax(s + d∘s + b) or ln softmax(s + Cᵀs + b), s centred log-probabilities."""
    centred, c = s - s.mean(1, keepdim=True), linear.to(s.dtype)
    if c.shape[0] == 2:
        return torch.log_softmax(torch.addcmul(c[1], centred, 1.0 + c[0]), 1)
    return torch.log_softmax(centred + torch.addmm(c[-1], centred, c[:-1]), 1)


@dataclass(frozen=True)
class LinearProblem:
    """The fits of `linear_logs` to the same rows, whose logits are brought to size one."""

    problem: RidgeProblem
    num_classes: int

    @classmethod
    def build(cls, s: Tensor, target: Tensor, weights: Tensor | None) -> LinearProblem:
        """Centre and scale the rows."""
        centred = s - s.mean(1, keepdim=True)
        size = float(centred.double().square().mean().sqrt()) or 1.0
        problem = RidgeProblem(to_blocks(centred / size, target, weights), size)
        return cls(problem, s.shape[1])

    def fit(self, ridge: Ridge, start: Tensor | None = None, tolerance: float = LOOSE) -> Tensor:
        """Return the coefficients of least penalised loss: (2,K), or (K+1,K) for a matrix."""
        x, size = self.problem.blocks[0].x, self.problem.scale
        rows = 2 if math.isinf(ridge.off_diagonal) else self.num_classes + 1
        at = x.new_zeros(rows, self.num_classes) if start is None else start.to(x.dtype).clone()
        at[:-1] *= size
        found = minimise(
            self.problem, ridge, at, tolerance=tolerance, most=200, must_converge=False
        ).clone()
        found[:-1] /= size
        return found


# --- curves of every class ---------------------------------------------------------------


def _curve_features(s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the functions of log-probabilities that curves are made of."""
    p = s.exp()
    return s - s.mean(1, keepdim=True), -torch.log1p(-p.clamp(max=1.0 - 1e-7)), p


def curves_logs(s: Tensor, curves: Tensor) -> Tensor:
    """Return ln softmax(s_k + c₁ₖ·(s_k − s̄) − c₂ₖ·ln(1 − p_k) + c₃ₖ·p_k + b_k), p = exp(s)."""
    c = curves.to(s.dtype)
    out = s + c[-1]
    for coefficients, values in zip(c[:-1], _curve_features(s), strict=True):
        out = torch.addcmul(out, values, coefficients)
    return torch.log_softmax(out, 1)


@dataclass(frozen=True)
class SharedRidge:
    """Penalty ½ Σ λ c²: the last column is what all classes share, without an intercept."""

    own: float
    shared: float

    def weights(self, like: Tensor) -> Tensor:
        """Return the strength of each coefficient, in the shape of the coefficients given."""
        weights = torch.full_like(like, self.own)
        weights[:, -1] = self.shared
        weights[-1, -1] = math.inf  # an intercept of all classes changes nothing
        return weights


@dataclass(frozen=True)
class CurveProblem:
    """f(c) = Σ_n w_n CE(s_n + Σ_j (c_j + c_j,shared)∘f_j(s_n) + b, y_n) + ½ Σ λ c².

    Coefficients are (J+1,K+1): a row for each function and one of intercepts, a column for each
    class and one that all classes share.
    """

    blocks: Blocks  # x is (N,K) log-probabilities
    functions: list[tuple[Tensor, ...]]  # of each block, brought to size one

    @property
    def num_rows(self) -> int:
        """Return the number of rows in all blocks."""
        return sum(len(block.target) for block in self.blocks)

    def value_and_gradient(self, coefficients: Tensor, ridge: Tensor) -> tuple[float, Tensor]:
        """Return f and its gradient."""
        gradient = torch.where(torch.isinf(ridge), 0.0, ridge) * coefficients
        total = 0.5 * float((gradient * coefficients).sum(dtype=torch.float64))
        together = coefficients[:, :-1] + coefficients[:, -1:]
        for block, functions in zip(self.blocks, self.functions, strict=True):
            out = block.x + together[-1]
            for values, c in zip(functions, together[:-1], strict=True):
                out.addcmul_(values, c)
            at = block.target.unsqueeze(1)
            normaliser = torch.logsumexp(out, 1, keepdim=True)
            losses = normaliser - out.gather(1, at)
            residual = out.sub_(normaliser).exp_()
            residual.scatter_add_(1, at, torch.full_like(normaliser, -1.0))
            if block.weights is not None:
                each = block.weights.to(out.dtype).unsqueeze(1)
                losses, residual = losses * each, residual.mul_(each)
            total += float(losses.sum(dtype=torch.float64))
            product = torch.empty_like(residual)
            sums = [torch.mul(residual, values, out=product).sum(0) for values in functions]
            own = torch.stack((*sums, residual.sum(0)))
            gradient[:, :-1] += own
            gradient[:-1, -1] += own[:-1].sum(1)
        return total, gradient

    def curvature(self, like: Tensor) -> Curvature:
        """Return the curvature at c = 0, in the shape of the coefficients given."""
        diagonal, crossed = torch.zeros_like(like), torch.zeros_like(like[:-1])
        for (x, _, weights, _), functions in zip(self.blocks, self.functions, strict=True):
            p = x.exp()
            each = torch.ones_like(p[:, :1])
            each = each if weights is None else weights.to(p.dtype).unsqueeze(1)
            weight = p * (1.0 - p) * each
            diagonal[-1, :-1] += weight.sum(0)
            for j, values in enumerate(functions):
                crossed[j, :-1] += (weight * values).sum(0)
                diagonal[j, :-1] += (weight * values.square()).sum(0)
                mean = (p * values).sum(1, keepdim=True)
                spread = (p * values.square()).sum(1, keepdim=True) - mean.square()
                diagonal[j, -1] += (each * spread).sum()
        return Curvature(diagonal, crossed)


def fit_curves(
    s: Tensor,
    target: Tensor,
    weights: Tensor | None = None,
    start: Tensor | None = None,
    *,
    tolerance: float = LOOSE,
) -> Tensor:
    """Return the coefficients of `curves_logs` of least penalised loss: (4,K)."""
    sizes = [float(part.double().square().mean().sqrt()) or 1.0 for part in _curve_features(s)]
    blocks = to_blocks(s, target, weights)
    functions = [
        tuple(part / size for part, size in zip(_curve_features(block.x), sizes, strict=True))
        for block in blocks
    ]
    scale = s.new_tensor([*sizes, 1.0]).unsqueeze(1)
    at = s.new_zeros(len(sizes) + 1, s.shape[1] + 1)
    if start is not None:  # the penalty is least where what is shared holds its due part
        given = start.to(s.dtype) * scale
        at[:-1, -1] = given[:-1].sum(1) / (s.shape[1] + SHARED / STRENGTH)
        at[:, :-1] = given - at[:, -1:]
    problem = CurveProblem(blocks, functions)
    ridge = SharedRidge(STRENGTH, SHARED)
    found = minimise(problem, ridge, at, tolerance=tolerance, most=100, must_converge=False)
    return (found[:, :-1] + found[:, -1:]) / scale


# --- events: curve and line ---------------------------------------------------------------


def event_functions(x: Tensor) -> Tensor:
    """Return the functions of the log-odds that a curve is made of."""
    return torch.stack((x, torch.ones_like(x), x.abs(), torch.tanh(0.5 * x), x.square()), 1)


def curve_logs(s: Tensor, curve: Tensor) -> Tensor:
    """Return (N,2) log-probabilities of an event whose log-odds follow a curve."""
    x, given = s[:, 1] - s[:, 0], curve.to(s.dtype)
    odds = x + event_functions(x) @ given[:5]
    return torch.stack((log_sigmoid(-odds), log_sigmoid(odds)), 1)


def fit_curve(
    s: Tensor, target: Tensor, weights: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    """Return θ of least penalised loss: each function has the strength of its size."""
    x = (s[:, 1] - s[:, 0]).double()
    functions = event_functions(x)
    sizes = functions.square().mean(0).sqrt().clamp_min(1e-6)
    features, y = functions / sizes, target.double()
    w = torch.ones_like(x) if weights is None else weights

    def at(theta: Tensor) -> tuple[float, Tensor, Tensor]:
        odds = x + features @ theta
        p = odds.sigmoid()
        value = float((w * (torch.nn.functional.softplus(odds) - y * odds)).sum())
        value += 0.5 * STRENGTH * float(theta.square().sum())
        gradient = features.t() @ (w * (p - y)) + STRENGTH * theta
        curvature = (features * (w * p * (1.0 - p)).unsqueeze(1)).t() @ features
        return value, gradient, curvature + STRENGTH * torch.eye(5, dtype=x.dtype, device=x.device)

    begin = torch.zeros(5, dtype=x.dtype, device=x.device) if start is None else start * sizes
    return _newton(at, begin, len(target)) / sizes


def line_logs(z: Tensor, line: Tensor) -> Tensor:
    """Return (N,2) log-probabilities of an event whose log-odds are a line in those of z."""
    slope, shift = line.to(z.dtype)
    odds = slope * (z[:, 1] - z[:, 0]) + shift
    return torch.stack((log_sigmoid(-odds), log_sigmoid(odds)), 1)


def fit_line(
    z: Tensor, target: Tensor, weights: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    """Return slope and shift of least loss + ½·LINE·((a − 1)²·x̄² + b²), x̄² the mean of x²."""
    x = (z[:, 1] - z[:, 0]).double()
    size = float(x.square().mean().sqrt()) or 1.0
    features = torch.stack((x / size, torch.ones_like(x)), 1)
    y = target.double()
    w = torch.ones_like(x) if weights is None else weights
    centre = x.new_tensor([size, 0.0])
    eye = torch.eye(2, dtype=x.dtype, device=x.device)

    def at(theta: Tensor) -> tuple[float, Tensor, Tensor]:
        odds = features @ theta
        p = odds.sigmoid()
        value = float((w * (torch.nn.functional.softplus(odds) - y * odds)).sum())
        value += 0.5 * LINE * float((theta - centre).square().sum())
        gradient = features.t() @ (w * (p - y)) + LINE * (theta - centre)
        curvature = (features * (w * p * (1.0 - p)).unsqueeze(1)).t() @ features
        return value, gradient, curvature + LINE * eye

    begin = centre if start is None else start * x.new_tensor([size, 1.0])
    slope, shift = (_newton(at, begin, len(x)) / x.new_tensor([size, 1.0])).tolist()
    if slope < 0.0:  # the score points the wrong way: only how often events happen is known
        events = float(w @ y)
        slope, shift = 0.0, math.log((events + 0.5) / (float(w.sum()) - events + 0.5))
    return x.new_tensor([slope, shift])
