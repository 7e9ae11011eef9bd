"""A blend of nested calibrators, weighed by rows that none of them was fitted on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.base import MOST_CLASSES, PLAIN, Calibrator, Design, as_pair
from calibrant.calibrators.solvers import nested_maps as maps
from calibrant.calibrators.solvers.folds import assign_folds
from calibrant.core.errors import InputError, show
from calibrant.core.threads import one_thread

# In the order of the weights; classes and events share the first three.
CLASS_PARTS = (
    *("identity", "temperature", "shape", "order", "diagonal"),
    *("matrix", "curves", "loose_matrix", "loose_curves"),
)
EVENT_PARTS = ("identity", "temperature", "shape", "curve", "line", "line_curve")
KEEPING = ("identity", "temperature", "shape", "order")  # keep every prediction
PRIOR = 3.0  # rows' worth of equal weights in the stacking; fewer where events are rare
EVIDENCE = 3.0  # nats by which held-out rows must favour the blend over leaving scores alone
_CURVE_ROWS = 10  # rows a class below which there are no curves
_LOOSE_ROWS = 2  # rows a coefficient below which a loose matrix is not worth its time
_FEW = 300  # rows below which ten folds are held out
_MOST_SCORES = 5_000_000  # numbers of the rows that measure the parts
_MOST_WORK = 6e10  # multiplications of a matrix's fits, beyond which there is no matrix
_PACE = 1e10  # multiplications a second, to foresee the fit of a matrix
_DEAR = 2e7  # multiplications of a pass of the matrix, or numbers, above which folds are few
_SMALL = 200_000  # numbers below which threads cost more than they save
_ADDED = ("order", "curves", "loose_matrix", "loose_curves")  # since version 0.2.0
_FITTED = ("base", "shape", "diagonal", "matrix", "curve", "line", "line_curve", *_ADDED)


class Measured(NamedTuple):
    """A part, or the blend, on rows it was not fitted on."""

    nll: float
    error: float  # standard error of the difference from the blend
    seconds: float  # of its fit on all rows, with those of the parts before it


@dataclass
class Fits:
    """The parameters of the parts by name, "base" of the temperature, and seconds by part."""

    of: dict[str, Tensor]
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def parts(self) -> list[str]:
        """Return the names of the parts that were fitted, in the order of the weights."""
        names = EVENT_PARTS if "curve" in self.of else CLASS_PARTS
        return [name for name in names if name in ("identity", "temperature") or name in self.of]


class Blend(Calibrator):
    """ln Σ_m w_m·q_m(z), q_m nested maps, w_m weighed by held-out rows: the choice of `calibrate`.

    Every map starts where another ends and is held to it by a ridge whose default strength needs
    no cross-validation, as those of structured matrix scaling do (Berta, Holzmüller, Jordan &
    Bach, arXiv:2511.03685):

        q_identity      softmax(z)
        q_temperature   (1 − w)·softmax(z/T) + w/K, with one row's worth of evidence for w
        q_shape         softmax((1 + θ₁ + θ₂a + θ₃a²)·u), u = ln q_temperature, a its confidence
        q_order         softmax(−(1 + θ₁ᵀφ)·A − (1 + θ₂ᵀφ)·B), A how far a class of u lies behind
                        the first, up to the second, and B how far beyond it; φ seven features of
                        the row, so that no prediction changes, as in intra-order-preserving maps
        q_diagonal      softmax(s + d∘s + b), s = ln q_shape centred
        q_matrix        softmax(s + Cᵀs + b)
        q_curves        of every class: softmax(r_k + c₁ₖ·r_k − c₂ₖ·ln(1 − p_k) + c₃ₖ·p_k + b_k), p
                        the output and r the log-output of q_matrix, or of q_diagonal without one;
                        from 10K rows on
        q_loose_matrix  q_matrix with a weak ridge, for scores that are far off; from 2K² rows on
        q_loose_curves  q_curves of q_loose_matrix
        q_curve         of events: σ(x + θᵀ(x, 1, |x|, tanh(x/2), x²)), x the log-odds of q_shape
        q_line          of events: σ(a·x + b), x the log-odds of z; no ridge to speak of, so that
                        a rare event may be shifted as far as its few rows ask
        q_line_curve    of events: q_curve, x the log-odds of q_line

    The weights maximise the likelihood of rows that no map was fitted on, with three rows' worth
    of evidence for equal weights. The blend is the identity unless those rows
    favour it by three nats: so large a ratio of likelihoods is rare where scores are right
    already. Weights and clusters count as fewer rows.

    Args:
        keep_predictions: True leaves out the maps that may change a prediction. Default: False
            (ours: likelihood decides).
        folds: The number of folds, none of which splits a cluster. Default: None (10 below 300
            rows, else 5, and 3 where a fit is dear).
        seed: The seed of the folds. Default: 0 (ours: a fit repeats exactly).
        time_budget: Seconds; parts and folds that would not fit into it are left out. Default:
            None (no limit).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "blend"
    takes_events = True
    takes_weights = True
    added_tensors: ClassVar[tuple[str, ...]] = tuple(f"{name}_" for name in _ADDED)

    base_: Tensor  # 1/T, w
    shape_: Tensor  # θ, then mean and spread of a
    order_: Tensor  # (4,8): θ₁, θ₂, means and spreads of φ
    diagonal_: Tensor  # (2,K)
    matrix_: Tensor  # (K+1,K)
    curves_: Tensor  # (4,K)
    loose_matrix_: Tensor  # (K+1,K)
    loose_curves_: Tensor  # (4,K)
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
        for name in (*_FITTED, "weights"):
            self.register_buffer(f"{name}_", torch.zeros(0, dtype=torch.float64))

    @property
    def shares_(self) -> dict[str, float]:
        """Return the weight of each part that has one."""
        pairs = zip(self._fits().parts, self.weights_.tolist(), strict=False)
        return {name: weight for name, weight in pairs if weight > 0}

    def _fits(self) -> Fits:
        buffers = {name: getattr(self, f"{name}_") for name in _FITTED}
        return Fits({name: buffer for name, buffer in buffers.items() if buffer.numel()})

    # --- fit ---------------------------------------------------------------------------

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        with one_thread() if logits.numel() < _SMALL else nullcontext():
            self._fit_blend(logits, target, design)

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        with one_thread() if odds.numel() < _SMALL else nullcontext():
            self._fit_blend(as_pair(odds), happened, design)

    def _fit_blend(self, logits: Tensor, target: Tensor, design: Design) -> None:
        started = time.perf_counter()
        self.measured_, self.num_folds_ = {}, 0
        ends = math.inf if self.time_budget is None else started + self.time_budget
        rows, classes = logits.shape
        wanted = self._list_parts(rows, classes)
        single = logits.numel() > _MOST_SCORES // 10 and logits.dtype == torch.float32
        z = (logits if single else logits.double()) - logits.mean(1, keepdim=True)
        fits = fit_parts(z, target, design.weights, wanted, ends=ends)
        spent = time.perf_counter() - started
        self._keep(fits, z)
        if self.advance_ is not None:
            self.advance_(1)
        chosen = _sample(len(target), max(2, _MOST_SCORES // classes), self.seed)
        if chosen is not None:
            z, target = z[chosen], target[chosen]
            design = Design(*(None if part is None else part[chosen] for part in design))
            spent *= len(target) / rows
        work = len(target) * classes * (classes if "matrix" in fits.of else 1)
        folds = self.folds or (10 if rows < _FEW else 3 if work > _DEAR else 5)
        self._measure_parts(z, target, design, fits, folds, ends, spent)

    def _list_parts(self, rows: int, classes: int) -> tuple[str, ...]:
        """Return the parts to fit."""
        names = EVENT_PARTS if classes == 2 else CLASS_PARTS
        if self.keep_predictions:
            return tuple(name for name in names if name in KEEPING)
        if classes == 2:
            return names
        left_out = set()
        if rows < _CURVE_ROWS * classes:
            left_out |= {"curves", "loose_curves"}
        if rows < _LOOSE_ROWS * classes**2:
            left_out |= {"loose_matrix", "loose_curves"}
        if classes > MOST_CLASSES or _matrix_work(rows, classes) > _MOST_WORK:
            left_out |= {"matrix", "loose_matrix", "loose_curves"}
        return tuple(name for name in names if name not in left_out)

    def _measure_parts(
        self,
        z: Tensor,
        target: Tensor,
        design: Design,
        fits: Fits,
        folds: int,
        ends: float,
        spent: float,
    ) -> None:
        """Fit the parts without each fold, and weigh them by the rows held out."""
        codes = None if design.clusters is None else design.clusters.cpu().numpy()
        units = len(target) if codes is None else len(np.unique(codes))
        folds = min(folds, len(target) if units == 1 else units)
        names = fits.parts
        self.weights_ = torch.eye(len(names), dtype=torch.float64)[0].to(z.device)
        if folds < 2:
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
            part = fit_parts(z[rest], target[rest], own, tuple(names), start=fits)
            labels = target[out].unsqueeze(1)
            logs = make_logs(z[out], part)
            for number, name in enumerate(names):
                losses[number, out.cpu().numpy()] = (
                    -logs[name].double().gather(1, labels).squeeze(1).cpu().numpy()
                )
            slowest = max(slowest if fold else 0.0, time.perf_counter() - begun)
            self.num_folds_ += 1
            if self.advance_ is not None:
                self.advance_(1)
        measured = np.isfinite(losses).all(0)
        if not measured.any():  # no time to measure anything
            return
        rows = None if design.weights is None else design.weights.cpu().numpy()[measured]
        codes = None if codes is None else codes[measured]
        losses = losses[:, measured]
        prior = PRIOR
        if z.shape[1] == 2:
            prior *= _balance(target.cpu().numpy()[measured], rows)
        weights, blended = weigh(losses, assigned[measured], rows, prior)
        gap = losses[0] - blended
        self.evidence_ = len(gap) * mean_of(gap, rows) / _inflation(gap, rows, codes)
        if self.evidence_ > EVIDENCE:
            self.weights_ = torch.from_numpy(weights).to(z.device)
        whole = max(fits.seconds.values())
        for name, each in zip((*names, self.name), (*losses, blended), strict=True):
            self.measured_[name] = Measured(
                mean_of(each, rows),
                error_of(each - blended, rows, codes),
                fits.seconds.get(name, whole if name == self.name else 0.0),
            )

    def _keep(self, fits: Fits, z: Tensor) -> None:
        empty = torch.zeros(0, dtype=torch.float64, device=z.device)
        for name in _FITTED:
            values = fits.of.get(name)
            setattr(self, f"{name}_", empty if values is None else values.double())

    # --- map ---------------------------------------------------------------------------

    def _map(self, logits: Tensor) -> Tensor:
        fits = self._fits()
        logs, weights = make_logs(logits, fits), self.weights_.to(logits.dtype)
        pairs = zip(fits.parts, weights.unbind(), strict=False)
        return torch.logsumexp(torch.stack([logs[name] + w.log() for name, w in pairs]), 0)


def fit_parts(
    z: Tensor,
    target: Tensor,
    weights: Tensor | None,
    wanted: tuple[str, ...],
    *,
    start: Fits | None = None,
    ends: float = math.inf,
) -> Fits:
    """Fit the parts one after the other, from those of another fit where there is one.

    Parts that would hardly be done by ``ends``, a time, are left out.
    """
    given = {} if start is None else start.of
    begun = time.perf_counter()
    fits = Fits({})

    def keep(part: str, values: Tensor, name: str | None = None) -> Tensor:
        fits.of[name or part] = values
        fits.seconds[part] = time.perf_counter() - begun
        return values

    base = keep("temperature", maps.fit_base(z, target, weights, given.get("base")), "base")
    u = maps.base_logs(z, base)
    shape = keep("shape", maps.fit_shape(u, target, weights, given.get("shape")))
    s = torch.log_softmax(maps.shape_logits(u, shape), 1)
    if "curve" in wanted:
        keep("curve", maps.fit_curve(s, target, weights, given.get("curve")))
        line = keep("line", maps.fit_line(z, target, weights, given.get("line")))
        x = maps.line_logs(z, line)
        keep("line_curve", maps.fit_curve(x, target, weights, given.get("line_curve")))
    costs = dict.fromkeys(wanted, 3 * fits.seconds["shape"])
    costs["matrix"] = costs["loose_matrix"] = _matrix_work(*z.shape) / _PACE

    def is_due(name: str) -> bool:
        if name not in wanted:
            return False
        return start is not None or time.perf_counter() + costs[name] <= ends

    if is_due("order"):
        keep("order", maps.fit_order(u, target, weights, given.get("order")))
    if not is_due("diagonal"):
        return fits
    linear = maps.LinearProblem.build(s, target, weights)
    held = keep("diagonal", linear.fit(maps.DIAGONAL, given.get("diagonal")))
    if is_due("matrix"):
        held = keep("matrix", linear.fit(maps.MATRIX, given.get("matrix")))
    for matrix, curves in (("matrix", "curves"), ("loose_matrix", "loose_curves")):
        if matrix == "loose_matrix":
            if not is_due(matrix):
                break
            held = keep(matrix, linear.fit(maps.LOOSE_MATRIX, given.get(matrix, held)))
        if not is_due(curves):
            break
        r = maps.linear_logs(s, held)
        at = given.get(curves, fits.of.get("curves"))
        keep(curves, maps.fit_curves(r, target, weights, at))
    return fits


def _matrix_work(rows: int, classes: int) -> float:
    """Return about how many multiplications the fit of a matrix takes."""
    return 60.0 * rows * classes * classes


def make_logs(z: Tensor, fits: Fits) -> dict[str, Tensor]:
    """Return the log-probabilities of every part that was fitted."""
    given = fits.of
    u = maps.base_logs(z, given["base"])
    logs = {"identity": torch.log_softmax(z, 1), "temperature": u}
    if "shape" not in given:
        return logs
    s = logs["shape"] = torch.log_softmax(maps.shape_logits(u, given["shape"]), 1)
    if "curve" in given:
        logs["curve"] = maps.curve_logs(s, given["curve"])
        logs["line"] = maps.line_logs(z, given["line"])
        logs["line_curve"] = maps.curve_logs(logs["line"], given["line_curve"])
    if "order" in given:
        logs["order"] = maps.order_logs(u, given["order"])
    for name in ("diagonal", "matrix", "loose_matrix"):
        if name in given:
            logs[name] = maps.linear_logs(s, given[name])
    for name, bases in (("curves", ("matrix", "diagonal")), ("loose_curves", ("loose_matrix",))):
        if name in given:
            base = next(logs[base] for base in bases if base in given)
            logs[name] = maps.curves_logs(base, given[name])
    return logs


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
    of three rows would leave it enough weight to be seen in the mean.
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
