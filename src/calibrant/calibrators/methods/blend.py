"""A blend of nested calibrators, weighed by rows that none of them was fitted on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.base import MOST_CLASSES, PLAIN, Calibrator, Design, as_pair
from calibrant.calibrators.solvers.folds import assign_folds
from calibrant.calibrators.solvers.multinomial import Ridge, RidgeProblem, minimise, to_blocks
from calibrant.calibrators.solvers.one_vs_rest import log_sigmoid
from calibrant.core.errors import InputError, show
from calibrant.core.threads import one_thread

# Each part refines the one before it; events have a curve where classes have the last two.
CLASS_PARTS = ("identity", "temperature", "shape", "diagonal", "matrix")
EVENT_PARTS = ("identity", "temperature", "shape", "curve", "line", "line_curve")
KEEPING = 3  # the first parts, which keep every prediction
STRENGTH = 8.0  # ridge of shape, diagonal, intercepts and curve: 1/√8 nats expected
LINE = 0.1  # ridge of a line: bounds separable rows, and lets a rare event shift far
OFF_DIAGONAL = 50.0  # the same of what mixes classes
PRIOR = 10.0  # rows' worth of equal weights in the stacking; fewer where events are rare
EVIDENCE = 3.0  # nats by which held-out rows must favour the blend over leaving scores alone
_FEW = 300  # rows below which ten folds are held out
_MOST_SCORES = 5_000_000  # numbers of the rows that measure the parts, and fit all but the matrix
_MOST_WORK = 6e10  # multiplications of a matrix's fits, beyond which there is no matrix
_DEAR = 2e7  # multiplications of a pass of the matrix, or numbers, above which folds are few
_SMALL = 200_000  # numbers below which threads cost more than they save
FITTED = ("base", "shape", "diagonal", "matrix", "curve", "line", "line_curve")
_LOOSE, _TIGHT = 1e-6, 1e-8


class Measured(NamedTuple):
    """A part, or the blend, on rows it was not fitted on."""

    nll: float
    error: float  # standard error of the difference from the blend
    seconds: float  # of its fit on all rows, with those of the parts before it


@dataclass
class Fits:
    """What the parts' fits found, in the order in which they were made."""

    base: Tensor  # 1/T and w
    shape: Tensor | None = None
    diagonal: Tensor | None = None
    matrix: Tensor | None = None
    curve: Tensor | None = None
    line: Tensor | None = None
    line_curve: Tensor | None = None
    seconds: dict[str, float] = field(default_factory=dict)


class Blend(Calibrator):
    """ln Σ_m w_m·q_m(z), q_m nested maps, w_m weighed by held-out rows: the choice of `calibrate`.

    Every map starts where the one before it ends and is held to it by a ridge whose default
    strengths need no cross-validation, as those of structured matrix scaling do (Berta,
    Holzmüller, Jordan & Bach, arXiv:2511.03685):

        q_identity     softmax(z)
        q_temperature  (1 − w)·softmax(z/T) + w/K, with one row's worth of evidence for w
        q_shape        softmax((1 + θ₁ + θ₂a + θ₃a²)·u), u = ln q_temperature, a its confidence
        q_diagonal     softmax(s + d∘s + b), s = ln q_shape centred
        q_matrix       softmax(s + Cᵀs + b)
        q_curve        of events: σ(x + θᵀ(x, 1, |x|, tanh(x/2), x²)), x the log-odds of q_shape
        q_line         of events: σ(a·x + b), x the log-odds of z; no ridge to speak of, so that a
                       rare event may be shifted as far as its few rows ask
        q_line_curve   of events: q_curve, x the log-odds of q_line

    The weights maximise the likelihood of rows that no map was fitted on, with ten rows' worth of
    evidence for equal weights. The blend is the identity unless those rows favour it by three nats:
    so large a ratio of likelihoods is rare where scores are right already. Weights and clusters
    count as fewer rows.

    Args:
        keep_predictions: True leaves out the maps that may change a prediction. Default: False
            (ours: likelihood decides).
        folds: The number of folds, none of which splits a cluster. Default: None (10 below 300
            rows, else 5, and 3 where a fit is dear).
        seed: The seed of the folds. Default: 0 (ours: a fit repeats exactly).
        time_budget: Seconds; the matrix and further folds are left out where they would not fit
            into it. Default: None (no limit).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "blend"
    takes_events = True
    takes_weights = True

    base_: Tensor  # 1/T, w
    shape_: Tensor  # θ, then mean and spread of a
    diagonal_: Tensor  # (2,K)
    matrix_: Tensor  # (K+1,K)
    curve_: Tensor  # θ
    line_: Tensor  # a, b
    line_curve_: Tensor  # θ
    weights_: Tensor

    def __init__(
        self,
        *,
        keep_predictions: bool = False,
        folds: int | None = None,
        seed: int = 0,
        time_budget: float | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if folds is not None and not (2 <= folds < 1 << 31 and int(folds) == folds):
            raise InputError(f"folds must be a whole number of at least 2, found {show(folds)}")
        self.keep_predictions, self.seed = keep_predictions, seed
        self.folds = None if folds is None else int(folds)
        self.time_budget = time_budget
        self.preserves_predictions = keep_predictions
        self.measured_: dict[str, Measured] = {}  # by the last fit
        self.num_folds_ = 0
        self.evidence_ = 0.0  # nats by which held-out rows favour the blend over the identity
        self.advance_: Callable[[int], None] | None = None  # of a progress bar
        for name in (*FITTED, "weights"):
            self.register_buffer(f"{name}_", torch.zeros(0, dtype=torch.float64))

    @property
    def shares_(self) -> dict[str, float]:
        """Return the weight of each part that has one."""
        names = EVENT_PARTS if len(self.curve_) else CLASS_PARTS
        return {
            name: weight
            for name, weight in zip(names, self.weights_.tolist(), strict=False)
            if weight > 0
        }

    # --- fit ---------------------------------------------------------------------------

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        with one_thread() if logits.numel() < _SMALL else nullcontext():
            self._fit_blend(logits, target, design, curved=logits.shape[1] == 2)

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        with one_thread() if odds.numel() < _SMALL else nullcontext():
            self._fit_blend(as_pair(odds), happened, design, curved=True)

    def _fit_blend(self, logits: Tensor, target: Tensor, design: Design, *, curved: bool) -> None:
        started = time.perf_counter()
        self.measured_, self.num_folds_ = {}, 0
        ends = math.inf if self.time_budget is None else started + self.time_budget
        rows, classes = logits.shape
        cost = float(rows) * classes * classes
        stages = KEEPING if self.keep_predictions else len(EVENT_PARTS if curved else CLASS_PARTS)
        if not curved and (classes > MOST_CLASSES or 60 * cost > _MOST_WORK):
            stages = min(stages, len(CLASS_PARTS) - 1)
        single = logits.numel() > _MOST_SCORES // 10 and logits.dtype == torch.float32
        z = (logits if single else logits.double()) - logits.mean(1, keepdim=True)
        fits = self._fit_parts(z, target, design.weights, stages, curved, None, ends)
        spent = time.perf_counter() - started
        self._keep(fits, z)
        if self.advance_ is not None:
            self.advance_(1)
        chosen = _sample(len(target), max(2, _MOST_SCORES // classes), self.seed)
        if chosen is not None:
            z, target = z[chosen], target[chosen]
            design = Design(*(None if part is None else part[chosen] for part in design))
            spent *= len(target) / rows
        work = len(target) * classes * (1 if fits.matrix is None else classes)
        dear = work > _DEAR
        folds = self.folds or (10 if rows < _FEW else 3 if dear else 5)
        self._measure_parts(z, target, design, stages, curved, fits, folds, ends, spent)

    def _measure_parts(
        self,
        z: Tensor,
        target: Tensor,
        design: Design,
        stages: int,
        curved: bool,
        fits: Fits,
        folds: int,
        ends: float,
        spent: float,
    ) -> None:
        """Fit the parts without each fold, and weigh them by the rows held out."""
        codes = None if design.clusters is None else design.clusters.cpu().numpy()
        units = len(target) if codes is None else len(np.unique(codes))
        folds = min(folds, len(target) if units == 1 else units)
        names = (EVENT_PARTS if curved else CLASS_PARTS)[: self._count(fits)]
        if folds < 2:
            self.weights_ = torch.eye(len(names), dtype=torch.float64)[0].to(z.device)
            return
        assigned = assign_folds(target.cpu().numpy(), folds, self.seed, codes)
        losses = np.full((len(names), len(target)), np.nan)
        slowest = spent
        for fold in range(folds):
            begun = time.perf_counter()
            if begun + slowest > ends:
                break
            out = torch.from_numpy(np.flatnonzero(assigned == fold)).to(z.device)
            rest = torch.from_numpy(np.flatnonzero(assigned != fold)).to(z.device)
            own = None if design.weights is None else design.weights[rest]
            part = self._fit_parts(z[rest], target[rest], own, stages, curved, fits, math.inf)
            labels = target[out].unsqueeze(1)
            logs = self._logs(z[out], part, curved)
            for number in range(len(names)):
                losses[number, out.cpu().numpy()] = (
                    -logs[number].double().gather(1, labels).squeeze(1).cpu().numpy()
                )
            slowest = max(slowest if fold else 0.0, time.perf_counter() - begun)
            self.num_folds_ += 1
            if self.advance_ is not None:
                self.advance_(1)
        seen = np.isfinite(losses).all(0)
        if not seen.any():  # no time to measure anything
            self.weights_ = torch.eye(len(names), dtype=torch.float64)[0].to(z.device)
            return
        rows = None if design.weights is None else design.weights.cpu().numpy()[seen]
        codes = None if codes is None else codes[seen]
        losses = losses[:, seen]
        prior = PRIOR * _balance(target.cpu().numpy()[seen], rows) if curved else PRIOR
        weights, blended = weigh(losses, assigned[seen], rows, prior)
        gap = losses[0] - blended
        self.evidence_ = len(gap) * mean_of(gap, rows) / _inflation(gap, rows, codes)
        if not self.evidence_ > EVIDENCE:
            weights = np.eye(len(names))[0]
        self.weights_ = torch.from_numpy(weights).to(z.device)
        spent = sum(fits.seconds.values())
        for name, each in zip((*names, self.name), (*losses, blended), strict=True):
            self.measured_[name] = Measured(
                mean_of(each, rows),
                error_of(each - blended, rows, codes),
                fits.seconds.get(name, spent if name == self.name else 0.0),
            )

    def _count(self, fits: Fits) -> int:
        last = (
            (fits.base, fits.shape, fits.curve, fits.line, fits.line_curve)
            if len(self.curve_)
            else (fits.base, fits.shape, fits.diagonal, fits.matrix)
        )
        return 1 + sum(part is not None for part in last)

    def _keep(self, fits: Fits, z: Tensor) -> None:
        empty = torch.zeros(0, dtype=torch.float64, device=z.device)
        for name in FITTED:
            values = getattr(fits, name)
            setattr(self, f"{name}_", empty if values is None else values.double())

    def _fit_parts(
        self,
        z: Tensor,
        target: Tensor,
        weights: Tensor | None,
        stages: int,
        curved: bool,
        start: Fits | None,
        ends: float,
    ) -> Fits:
        """Fit the parts one after the other, from those of another fit where there is one."""
        tolerance = _TIGHT if start is None else _LOOSE
        begun = time.perf_counter()
        fits = Fits(fit_base(z, target, weights, None if start is None else start.base))

        def clock(name: str) -> None:
            fits.seconds[name] = time.perf_counter() - begun

        clock("temperature")
        u = base_logs(z, fits.base)
        fits.shape = fit_shape(u, target, weights, None if start is None else start.shape)
        clock("shape")
        if stages <= KEEPING:
            return fits
        s = torch.log_softmax(shape_logits(u, fits.shape), 1)
        if curved:
            fits.curve = fit_curve(s, target, weights, None if start is None else start.curve)
            clock("curve")
            fits.line = fit_line(z, target, weights, None if start is None else start.line)
            clock("line")
            s = line_logs(z, fits.line)
            at = None if start is None else start.line_curve
            fits.line_curve = fit_curve(s, target, weights, at)
            clock("line_curve")
            return fits
        centred = s - s.mean(1, keepdim=True)
        size = float(centred.double().square().mean().sqrt()) or 1.0
        blocks = to_blocks(centred / size, target, weights)
        problem = RidgeProblem(blocks, size)
        classes = z.shape[1]
        for name, rows in (("diagonal", 2), ("matrix", classes + 1))[: stages - KEEPING]:
            if start is not None and getattr(start, name) is None:
                break
            if start is None and time.perf_counter() + 3 * fits.seconds["shape"] > ends:
                break
            ridge = Ridge(STRENGTH, STRENGTH, OFF_DIAGONAL if rows > 2 else math.inf)
            given = None if start is None else getattr(start, name)
            at = z.new_zeros(rows, classes) if given is None else given.to(z.dtype).clone()
            if given is not None:
                at[:-1] *= size
            found = minimise(
                problem, ridge, at, tolerance=tolerance, most=200, must_converge=False
            ).clone()
            found[:-1] /= size
            setattr(fits, name, found)
            clock(name)
        return fits

    # --- map ---------------------------------------------------------------------------

    def _logs(self, z: Tensor, fits: Fits, curved: bool) -> list[Tensor]:
        """Return the log-probabilities of every part that was fitted."""
        u = base_logs(z, fits.base)
        logs = [torch.log_softmax(z, 1), u]
        if fits.shape is None:
            return logs
        s = torch.log_softmax(shape_logits(u, fits.shape), 1)
        logs.append(s)
        if curved and fits.curve is not None:
            logs.append(curve_logs(s, fits.curve))
            if fits.line is not None and fits.line_curve is not None:
                logs.append(line_logs(z, fits.line))
                logs.append(curve_logs(logs[-1], fits.line_curve))
        centred = s - s.mean(1, keepdim=True)
        if fits.diagonal is not None:
            d = fits.diagonal.to(z.dtype)
            logs.append(torch.log_softmax(torch.addcmul(d[1], centred, 1.0 + d[0]), 1))
        if fits.matrix is not None:
            m = fits.matrix.to(z.dtype)
            logs.append(torch.log_softmax(centred + torch.addmm(m[-1], centred, m[:-1]), 1))
        return logs

    def _map(self, logits: Tensor) -> Tensor:
        buffers = {name: getattr(self, f"{name}_") for name in FITTED}
        fits = Fits(**{name: buffer for name, buffer in buffers.items() if buffer.numel()})
        logs = self._logs(logits, fits, curved=fits.curve is not None)
        weights = self.weights_.to(logits.dtype)
        parts = [log + weights[i].log() for i, log in enumerate(logs) if i < len(weights)]
        return torch.logsumexp(torch.stack(parts), 0)


# --- the parts -------------------------------------------------------------------------


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


Newton = tuple[float, NDArray[np.float64], NDArray[np.float64]]  # value, gradient, curvature


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


_LEAST_SLOPE = 0.05


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


def _curves(x: Tensor) -> Tensor:
    """Return the functions of the log-odds that a curve is made of."""
    return torch.stack((x, torch.ones_like(x), x.abs(), torch.tanh(0.5 * x), x.square()), 1)


def curve_logs(s: Tensor, curve: Tensor) -> Tensor:
    """Return (N,2) log-probabilities of an event whose log-odds follow a curve."""
    x, given = s[:, 1] - s[:, 0], curve.to(s.dtype)
    odds = x + _curves(x) @ given[:5]
    return torch.stack((log_sigmoid(-odds), log_sigmoid(odds)), 1)


def fit_curve(
    s: Tensor, target: Tensor, weights: Tensor | None = None, start: Tensor | None = None
) -> Tensor:
    """Return θ of least penalised loss: each function has the strength of its size."""
    x = (s[:, 1] - s[:, 0]).double()
    functions = _curves(x)
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


# --- weights ---------------------------------------------------------------------------


def weigh(
    losses: NDArray[np.float64],
    assigned: NDArray[np.int64],
    rows: NDArray[np.float64] | None = None,
    prior: float = PRIOR,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the parts' weights, and each row's loss by the weights of the other folds."""
    blended = np.empty(losses.shape[1])
    for fold in np.unique(assigned):
        out = assigned == fold
        others = _stack(losses[:, ~out], None if rows is None else rows[~out], prior)
        blended[out] = _mix(losses[:, out], others)
    return _stack(losses, rows, prior), blended


def _balance(target: NDArray[np.int64], rows: NDArray[np.float64] | None) -> float:
    """Return 4·p·(1 − p), p the share of events: what a row tells beside a row at p = ½.

    Where events are rare, a map that says far too much costs little a row, and equal weights
    of ten rows would leave it enough weight to be seen in the mean.
    """
    share = mean_of(np.asarray(target == 1, dtype=np.float64), rows)
    return max(4.0 * share * (1.0 - share), 1e-3)


def _stack(
    losses: NDArray[np.float64], rows: NDArray[np.float64] | None, prior: float = PRIOR
) -> NDArray[np.float64]:
    """Return weights on the simplex of greatest penalised likelihood, by Newton's method.

    `mixture.stack_weights` with a prior of c rows' worth of equal weights: minimise
    −Σ_n r_n ln Σ_m w_m e_mn − (c/M) Σ_m ln w_m + (Σ_n r_n + c) Σ_m w_m, whose minimum sums to one.
    """
    count = len(losses)
    each = np.ones(losses.shape[1]) if rows is None else rows
    odds, ends = np.exp(losses.min(0) - losses), prior / count
    total = float(each.sum()) + prior

    def value(weights: NDArray[np.float64]) -> float:
        return float(total * weights.sum() - ends * np.log(weights).sum()) - float(
            each @ np.log(weights @ odds)
        )

    weights = np.full(count, 1.0 / count)
    here = value(weights)
    for _ in range(100):
        shares = odds / (weights @ odds)
        gradient = total - shares @ each - ends / weights
        curvature = (shares * each) @ shares.T + np.diag(ends / weights**2)
        step = -np.linalg.solve(curvature, gradient)
        promise = -float(gradient @ step)
        if promise < 1e-9 * total:
            break
        inside = np.min(-weights[step < 0] / step[step < 0], initial=np.inf)
        length = min(1.0, 0.9 * float(inside))
        while (there := value(weights + length * step)) > here - 1e-4 * length * promise:
            length *= 0.5
            if length < 1e-9:
                return np.asarray(weights / weights.sum())
        weights, here = weights + length * step, there
    return np.asarray(weights / weights.sum())


def _mix(losses: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    least = losses.min(0)
    return np.asarray(least - np.log(weights @ np.exp(least - losses)))


def mean_of(values: NDArray[np.float64], rows: NDArray[np.float64] | None) -> float:
    """Return the weighted mean."""
    return float(np.average(values, weights=rows))


def error_of(
    gaps: NDArray[np.float64],
    rows: NDArray[np.float64] | None = None,
    clusters: NDArray[np.int64] | None = None,
) -> float:
    """Return the standard error of the mean gap: of whole clusters, where there are any."""
    if rows is None and clusters is None:
        return float(gaps.std(ddof=1) / len(gaps) ** 0.5)
    shares = np.full(len(gaps), 1.0 / len(gaps)) if rows is None else rows / rows.sum()
    parts = shares * (gaps - shares @ gaps)
    if clusters is not None:
        parts = np.bincount(np.unique(clusters, return_inverse=True)[1].reshape(-1), parts)
    return float(np.sqrt(np.square(parts).sum() * len(parts) / max(1, len(parts) - 1)))


def _inflation(
    gaps: NDArray[np.float64], rows: NDArray[np.float64] | None, clusters: NDArray[np.int64] | None
) -> float:
    """Return how many rows count as one, from weights and clusters: at least 1."""
    if rows is None and clusters is None:
        return 1.0
    plain = max(error_of(gaps), 1e-300)
    return max(1.0, (error_of(gaps, rows, clusters) / plain) ** 2)


def _sample(rows: int, most: int, seed: int) -> Tensor | None:
    if rows <= most:
        return None
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(rows, generator=generator)[:most].sort().values
