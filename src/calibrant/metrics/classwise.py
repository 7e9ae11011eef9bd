"""Class-wise calibration errors: is the probability of every class calibrated?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.arrays import Array
from calibrant.functional.binning import (
    bin_index,
    bin_sums,
    check_bins,
    mass_bounds,
    nonzero_above,
)
from calibrant.functional.blocks import Block
from calibrant.functional.ranking import rank
from calibrant.metrics.base import (
    Measure,
    State,
    calibration_measure,
    check_choice,
    check_order,
    compute_one,
)
from calibrant.metrics.means import MeanState


@dataclass
class ClassBinState(State):
    """The rows, the sum of p_k and the rows of class k in each equal-width bin of p_k, for each k.

    Only probabilities above the first edge are binned; each row has fewer than num_bins of
    them, however many classes there are. The first bin is the rest of the column's total.
    """

    num_bins: int = 15
    totals: Tensor | None = field(default=None, init=False, repr=False)  # (K, M, 3)

    sums = ("totals",)
    weighted = True

    def __post_init__(self) -> None:
        self.num_bins = check_bins(self.num_bins)

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        classes, bins, rows = block.num_classes, self.num_bins, block.num_rows
        probs = block.probs
        size = classes * bins
        where = nonzero_above(probs, 1.0 / bins)
        values = probs.flatten()[where]
        owner = where % classes if block.class_dim == 1 else where // rows
        key = owner * bins + bin_index(values, bins)
        weights, weight = block.weights, None
        if weights is not None:
            weight = weights[where // classes if block.class_dim == 1 else where % rows]
        masses = values.double() if weight is None else values.double() * weight
        count = bin_sums(key, size, weight).view(classes, bins)
        mass = bin_sums(key, size, masses).view(classes, bins)
        # Summed pairwise in the precision of the block; across blocks in float64.
        if weights is None:
            total, column = float(rows), probs.sum(1 - block.class_dim).double()
        else:
            total = float(weights.sum())
            column = (probs.double() * weights.unsqueeze(block.class_dim)).sum(1 - block.class_dim)
        # Added, not set: with one bin, a probability a hair above 1 is in the count already.
        count[:, 0] += total - count.sum(1)
        mass[:, 0] += (column - mass.sum(1)).clamp_min_(0.0)
        hit = bin_sums(block.target * bins + bin_index(block.true_prob, bins), size, weights)
        self.add("totals", torch.stack((count, mass, hit.view(classes, bins)), dim=2))


@dataclass
class ProbState(State):
    """The scores and label of every row: O(N·K) memory while streaming.

    Args:
        copy: Copy the rows; without it the state holds views of the caller's arrays.
    """

    copy: bool = False
    scores: list[Tensor] = field(default_factory=list, init=False, repr=False)
    normalisers: list[Tensor] = field(default_factory=list, init=False, repr=False)
    targets: list[Tensor] = field(default_factory=list, init=False, repr=False)
    logits: bool = field(default=True, init=False, repr=False)

    lists = ("scores", "normalisers", "targets")

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        self.logits = block.from_logits
        self.scores.append(block.raw.clone() if self.copy else block.raw)
        self.normalisers.append(block.log_normaliser)
        self.targets.append(block.target.clone() if self.copy else block.target)

    def merge(self, other: ProbState) -> ProbState:
        """Add the rows of another state, which must hold the same kind of scores."""
        if self.scores and other.scores and self.logits != other.logits:
            raise InputError("cannot merge logits with probabilities")
        self.logits = other.logits if other.scores else self.logits
        return super().merge(other)

    def columns(self, first: int, last: int) -> Tensor:
        """Compute p_k of every row for classes first..last−1: (N, last − first), float64."""
        parts = [
            (rows[:, first:last].double() - normaliser.unsqueeze(1)).exp_()
            if self.logits
            else rows[:, first:last].double()
            for rows, normaliser in zip(self.scores, self.normalisers, strict=True)
        ]
        return torch.cat(parts)

    def class_columns(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each class and its probabilities, which are valid until the next class."""
        target, classes = self.concatenate("targets"), self.scores[0].shape[1]
        step = max(1, min(classes, (1 << 20) // len(target)))
        some = torch.empty(step, len(target), dtype=torch.float64, device=target.device)
        for begin in range(0, classes, step):
            last = min(begin + step, classes)
            row = 0
            for scores, normaliser in zip(self.scores, self.normalisers, strict=True):
                part = some[: last - begin, row : row + len(scores)]
                part.copy_(scores[:, begin:last].t())
                if self.logits:
                    part.sub_(normaliser.to(part.device)).exp_()
                row += len(scores)
            for offset in range(last - begin):
                yield begin + offset, some[offset]


def mass_class_totals(state: ProbState, num_bins: int) -> Tensor:
    """Compute the (K, M, 3) totals of `ClassBinState` with bins of equal mass for each class."""
    target = state.concatenate("targets")
    narrow = state.scores[0].dtype != torch.float64
    bins = min(check_bins(num_bins), len(target))
    bounds = mass_bounds(len(target), bins)
    rows = []
    for k, column in state.class_columns():
        # float32 sorts twice as fast and is exact enough for float32 scores.
        hits, mass = rank(column.float() if narrow else column, target == k).up_to(bounds)
        rows.append(torch.stack((bounds.to(mass).diff(), mass.diff(), hits.diff()), dim=1))
    return torch.stack(rows)


def class_errors(totals: Tensor, order: float) -> Tensor:
    """Compute Σ_b n_b/N |mean p_k − frequency of k|^p of each class k, without the root."""
    count, mass, hit = totals.unbind(-1)
    gap = (mass - hit).abs() / torch.where(count > 0, count, 1.0)
    return (count * gap**order).sum(-1) / count.sum(-1)


def classwise_error(totals: Tensor, order: float = 1) -> Tensor:
    """Compute the mean over classes of each class's error, rooted."""
    return (class_errors(totals, order) ** (1 / order)).mean(-1)


def marginal_error(totals: Tensor, order: float = 2, class_reduction: str = "mean") -> Tensor:
    """Compute the root of the mean (or sum) over classes of each class's error."""
    errors = class_errors(totals, order)
    total = errors.mean(-1) if class_reduction == "mean" else errors.sum(-1)
    return total ** (1 / order)


def _cells(binning: str, num_bins: int) -> tuple[Callable[[], State], Callable[[Any], Tensor]]:
    """Return the state of a binning, and the function that computes (K, M, 3) cells from it."""
    check_bins(num_bins)
    if check_choice("binning", binning, ("width", "mass")) == "width":
        return partial(ClassBinState, num_bins), lambda state: state.total("totals")
    return ProbState, lambda state: mass_class_totals(state, num_bins)


def classwise_ece_measure(
    *, num_bins: int = 15, order: float = 1, binning: str = "width"
) -> Measure:
    """Make the measure of `classwise_ece`."""
    error = partial(classwise_error, order=check_order(order))
    cells = _cells(binning, num_bins)
    return calibration_measure("classwise_ece", *cells, error, views=("top",), additive=order == 1)


def marginal_ece_measure(
    *,
    num_bins: int = 15,
    order: float = 2,
    binning: str = "width",
    class_reduction: str = "mean",
) -> Measure:
    """Make the measure of `marginal_ece`."""
    check_choice("class_reduction", class_reduction, ("mean", "sum"))
    error = partial(marginal_error, order=check_order(order), class_reduction=class_reduction)
    return calibration_measure("marginal_ece", *_cells(binning, num_bins), error, views=("top",))


def _calibration_part(totals: Tensor) -> Tensor:
    return class_errors(totals, 2.0).sum(-1)


def brier_calibration_measure(*, num_bins: int = 15) -> Measure:
    """Make the measure of `brier_calibration`."""
    cells = _cells("width", num_bins)
    return calibration_measure("brier_calibration", *cells, _calibration_part, views=("top",))


def brier_refinement_measure(*, num_bins: int = 15) -> Measure:
    """Make the measure of `brier_refinement`."""

    def compute(score: MeanState, state: ClassBinState) -> Tensor:
        return score.mean() - _calibration_part(state.total("totals"))

    states = (partial(MeanState, "brier"), partial(ClassBinState, num_bins))
    return Measure("brier_refinement", states, compute, views=("top",))


def classwise_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 1,
    binning: str = "width",
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute class-wise ECE, 1/K Σ_k (Σ_b n_b/N |mean p_k − frequency of k in b|^p)^(1/p).

    Classes without rows count: their probability should be near 0.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        order: The order p, at least 1. Default: 1 (r-aurc, eq. 12).
        binning: ``"width"``, bins of equal width, which stream; or ``"mass"``, bins of equal mass
            (cwECE^a of r-aurc), which rank every class and store all rows. Default: 'width' (ours:
            it streams).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = classwise_ece_measure(num_bins=num_bins, order=order, binning=binning)
    return compute_one(
        measure, preds, target, from_logits=from_logits, ignore_index=ignore_index, weights=weights
    )


def marginal_ece(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    order: float = 2,
    binning: str = "width",
    class_reduction: str = "mean",
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the marginal calibration error (Kumar et al. 2019), with the mean under the root.

    (mean_k Σ_b n_b/N |mean p_k − frequency of k in b|^p)^(1/p).

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        order: The order p, at least 1. Default: 2 (Kumar et al. 2019).
        binning: ``"width"`` or ``"mass"``, as in `classwise_ece`. Default: 'width' (ours: it
            streams).
        class_reduction: ``"mean"`` or ``"sum"`` over classes; the sum fits the size of table 6 of
            soft-calibration. Default: 'mean' (Kumar et al. 2019).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = marginal_ece_measure(
        num_bins=num_bins, order=order, binning=binning, class_reduction=class_reduction
    )
    return compute_one(
        measure, preds, target, from_logits=from_logits, ignore_index=ignore_index, weights=weights
    )


def brier_calibration(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the calibration part of the Brier score, Σ_k Σ_b n_b/N (mean p_k − frequency of k)².

    Recalibration could remove this part: E‖p − y‖² = E‖p − E[y|p]‖² + E‖E[y|p] − y‖²,
    calibration plus refinement. The conditional mean is estimated class by class in equal-width
    bins b of p_k. ``brier_refinement`` is the rest, so the two sum to the Brier score exactly.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = brier_calibration_measure(num_bins=num_bins)
    return compute_one(
        measure, preds, target, from_logits=from_logits, ignore_index=ignore_index, weights=weights
    )


def brier_refinement(
    preds: Array,
    target: Array,
    *,
    num_bins: int = 15,
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the refinement part of the Brier score, ``brier`` less ``brier_calibration``.

    Recalibration cannot remove this part.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        num_bins: Number of bins M. Default: 15 (Guo et al. 2017, table 1).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    measure = brier_refinement_measure(num_bins=num_bins)
    return compute_one(
        measure, preds, target, from_logits=from_logits, ignore_index=ignore_index, weights=weights
    )
