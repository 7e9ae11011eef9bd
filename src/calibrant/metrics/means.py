"""Means over rows: accuracy, negative log-likelihood, Brier score, entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant.functional.arrays import Array
from calibrant.functional.binning import bin_sums, find_true
from calibrant.functional.blocks import Block
from calibrant.metrics.base import Measure, State, compute_one


def _sum(values: Tensor) -> Tensor:
    """Sum numbers in float64, or count what is true."""
    if values.dtype == torch.bool:
        return torch.count_nonzero(values)
    return values.double().sum()


@dataclass
class MeanState(State):
    """The weight and the sum of one quantity of all rows, and how many rows are infinite."""

    quantity: str  # an attribute of Block
    totals: Tensor | None = field(default=None, init=False, repr=False)

    sums = ("totals",)
    weighted = True

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        values = getattr(block, self.quantity)
        count, total, infinite = float(values.numel()), float(_sum(values)), 0
        if not math.isfinite(total):
            infinite = int(torch.isinf(values).sum())
        if block.weights is not None:
            count, total = (
                float(terms.sum()) for terms in (block.weights, block.weights * values.double())
            )
        sums = torch.tensor((count, total, infinite), dtype=torch.float64, device=values.device)
        self.add("totals", sums)

    def mean(self) -> Tensor:
        """Return the mean over all rows."""
        count, total, _ = self.total("totals")
        return total / count

    def infinite(self) -> int:
        """Return how many rows are infinite."""
        return int(self.total("totals")[2])


@dataclass
class RowState(State):
    """One quantity of every row, stored for a bootstrap over rows."""

    quantity: str
    rows: list[Tensor] = field(default_factory=list, init=False, repr=False)
    weights: list[Tensor] = field(default_factory=list, init=False, repr=False)

    lists = ("rows", "weights")
    weighted = True

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        self.append("rows", getattr(block, self.quantity).double())
        if block.weights is not None:
            self.append("weights", block.weights)


@dataclass
class PredictedState(State):
    """The number, or weight, of the rows predicted as each class."""

    totals: Tensor | None = field(default=None, init=False, repr=False)  # (K,)

    sums = ("totals",)
    weighted = True

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        if block.weights is not None:
            self.add("totals", bin_sums(block.predicted, block.num_classes, block.weights))
            return
        wrong = block.predicted[find_true(~block.right)]
        self.add("totals", block.class_outcomes[:, 1] + bin_sums(wrong, block.num_classes))


@dataclass
class ClassMeanState(State):
    """The count and the sum of one quantity over the rows of each true class."""

    quantity: str
    totals: Tensor | None = field(default=None, init=False, repr=False)  # (K, 2)

    sums = ("totals",)
    weighted = True

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        if block.weights is None:
            counts = block.class_outcomes.sum(1)
            if self.quantity == "right":
                self.add("totals", torch.stack((counts, block.class_outcomes[:, 1]), dim=1))
                return
            values = getattr(block, self.quantity).double()
        else:
            counts = bin_sums(block.target, block.num_classes, block.weights)
            values = getattr(block, self.quantity).double() * block.weights
        totals = bin_sums(block.target, block.num_classes, values)
        self.add("totals", torch.stack((counts, totals), dim=1))

    def means(self) -> Tensor:
        """Return the mean of each class; NaN where the class is absent."""
        counts, totals = self.total("totals").unbind(1)
        return totals / counts


def accuracy_measure() -> Measure:
    """Make the measure of `accuracy`."""
    return Measure("accuracy", (partial(MeanState, "right"),), MeanState.mean, "higher", "mean")


def nll_measure() -> Measure:
    """Make the measure of `nll`."""
    return Measure("nll", (partial(MeanState, "nll"),), MeanState.mean, kind="mean")


def brier_measure() -> Measure:
    """Make the measure of `brier`."""
    return Measure("brier", (partial(MeanState, "brier"),), MeanState.mean, kind="mean")


def mean_entropy_measure() -> Measure:
    """Make the measure of `mean_entropy`."""
    return Measure(
        "mean_entropy", (partial(MeanState, "entropy"),), MeanState.mean, "neither", "mean"
    )


def classwise_nll_std_measure() -> Measure:
    """Make the measure of `classwise_nll_std`."""

    def compute(state: ClassMeanState) -> Tensor:
        means = state.means()
        present = means[~means.isnan()]
        if bool(present.isinf().any()):
            return present.amax()
        return present.std() if len(present) > 1 else torch.zeros_like(means[0])

    return Measure("classwise_nll_std", (partial(ClassMeanState, "nll"),), compute, views=("top",))


def accuracy(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the share of rows whose largest score is the true class.

    Ties go to the first class.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).

    >>> import torch
    >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0])).item()
    0.5
    """
    return compute_one(
        accuracy_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        weights=weights,
    )


def nll(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the negative log-likelihood, the mean of −ln p_y in nats.

    Infinite where probabilities are given and some p_y is exactly 0.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        nll_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        weights=weights,
    )


def brier(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    view: str | None = None,
    pos_label: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the Brier score: the mean of Σ_k (p_k − 1[k=y])², or of (p − y)² for events.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        view: ``"events"`` judges the probability of the positive class, ``"top"`` that of the
            predicted class. Default: None (ours: events for (N,) scores and two classes).
        pos_label: The positive class of two. Default: None (ours: class 1).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        brier_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        view=view,
        pos_label=pos_label,
        weights=weights,
    )


def mean_entropy(
    preds: Array,
    target: Array | None = None,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the mean entropy −Σ_k p_k ln p_k of the predicted distributions, in nats.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Labels, needed only to find the rows to ignore. Default: None (ours: entropy needs
            no labels).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        mean_entropy_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        weights=weights,
    )


def classwise_nll_std(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the unbiased standard deviation, over the classes present, of their mean −ln p_y.

    The class-scaling paper says that it tracks ECE. Zero where fewer than two classes are
    present, infinite where some p_y is exactly 0.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: Integer labels of shape (N,) or (N,...).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
        weights: A positive sampling or importance weight for each row, free of scale; not a number
            of repetitions. Default: None (ours: rows count the same).
    """
    return compute_one(
        classwise_nll_std_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        weights=weights,
    )
