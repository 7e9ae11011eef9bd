"""Out-of-distribution detection: does confidence separate in-distribution rows from others?

Labels are 1 for in-distribution rows, the positive class, and 0 for others. Scores are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.arrays import Array
from calibrant.functional.blocks import Block
from calibrant.metrics.base import Measure, compute_one
from calibrant.metrics.rank_state import SCORES, RankState, Rowwise, find_rowwise
from calibrant.metrics.selective import compute_auroc


@dataclass
class OodState(RankState):
    """A score of each row, and whether the row is in distribution (stored as its loss)."""

    num_labels: ClassVar[int | None] = 2
    weighted: ClassVar[bool] = False

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        self.scores.append(find_rowwise(self.score, SCORES)(block).clone())
        self.losses.append(block.target == 1)

    def check_both_kinds(self) -> None:
        """Raise unless there are rows of both kinds."""
        inside = float(self.rank_rows().values[-1])
        if inside in (0.0, float(self.rank_rows().num_rows)):
            raise InputError(
                f"found {int(inside)} in-distribution rows of {self.rank_rows().num_rows}; both "
                "kinds are needed (label 1: in distribution, 0: out)"
            )


def ood_auroc_measure(*, score: Rowwise = "msp") -> Measure:
    """Make the measure of `ood_auroc`."""

    def compute(state: OodState) -> Tensor:
        state.check_both_kinds()
        return compute_auroc(state.rank_rows().values, state.rank_rows())

    return Measure("ood_auroc", (partial(OodState, score),), compute, "higher", views=("top",))


def fpr95_measure(*, score: Rowwise = "msp") -> Measure:
    """Make the measure of `fpr95`."""

    def compute(state: OodState) -> Tensor:
        state.check_both_kinds()
        ranked = state.rank_rows()
        inside = ranked.values[-1] - ranked.values[:-1]  # accepted at each distinct score
        total = (ranked.num_rows - ranked.bounds[:-1]).double()
        enough = (inside >= 0.95 * ranked.values[-1] - 1e-9).nonzero().squeeze(1).max()
        outside = ranked.num_rows - ranked.values[-1]
        return (total[enough] - inside[enough]) / outside

    return Measure("fpr95", (partial(OodState, score),), compute, views=("top",))


def ood_auroc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Compute the AUROC of a score that separates in-distribution rows from others.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: 1 for in-distribution rows and 0 for others.
        score: ``"msp"`` (the largest probability), ``"margin"``, ``"neg_entropy"``,
            ``"max_logit"`` or a function of a `Block`; larger means in distribution. Default: 'msp'
            (Hendrycks & Gimpel 2017).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
    """
    measure = ood_auroc_measure(score=score)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)


def fpr95(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """Compute the share of out-of-distribution rows that a threshold accepts.

    The threshold is the largest that accepts 95% of in-distribution rows.

    Args:
        preds: Scores of shape (N,K), (N,) (binary) or (N,K,...) (dense).
        target: 1 for in-distribution rows and 0 for others.
        score: ``"msp"`` (the largest probability), ``"margin"``, ``"neg_entropy"``,
            ``"max_logit"`` or a function of a `Block`; larger means in distribution. Default: 'msp'
            (Hendrycks & Gimpel 2017).
        from_logits: Whether ``preds`` are logits; False for probabilities. Default: True (ours:
            networks give logits).
        ignore_index: The label of rows to leave out. Default: None (ours: every row counts).
    """
    measure = fpr95_measure(score=score)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)
