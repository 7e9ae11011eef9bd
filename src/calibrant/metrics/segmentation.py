"""Mean intersection over union, for dense prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from calibrant.functional.arrays import Array
from calibrant.functional.binning import bin_sums
from calibrant.functional.blocks import Block
from calibrant.metrics.base import Measure, State, compute_one


@dataclass
class ConfusionState(State):
    """The number of rows of each true class (first axis) predicted as each class (second)."""

    totals: Tensor | None = field(default=None, init=False, repr=False)  # (K, K)

    sums = ("totals",)
    weighted = True

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        classes = block.num_classes
        index = block.target * classes + block.predicted
        pairs = bin_sums(index, classes * classes, block.weights)
        self.add("totals", pairs.view(classes, classes))


def miou_measure() -> Measure:
    """Make the measure of `miou`."""

    def compute(state: ConfusionState) -> Tensor:
        table = state.total("totals")
        union = table.sum(0) + table.sum(1) - table.diagonal()
        return (table.diagonal() / union)[union > 0].mean()

    return Measure("miou", (ConfusionState,), compute, "higher", views=("top",))


def miou(
    preds: Array,
    target: Array,
    *,
    from_logits: bool = True,
    ignore_index: int | None = None,
    weights: Array | None = None,
) -> Any:
    """Compute the mean of TP / (TP + FP + FN) over the classes found in labels or predictions.

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
        miou_measure(),
        preds,
        target,
        from_logits=from_logits,
        ignore_index=ignore_index,
        weights=weights,
    )
