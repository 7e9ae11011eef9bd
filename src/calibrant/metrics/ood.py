"""Telling in-distribution rows from others by confidence; in-distribution is positive.

Labels here are 1 for in-distribution rows and 0 for others. Scores are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from calibrant.functional.blocks import Array, Block
from calibrant.functional.errors import InputError
from calibrant.metrics.base import Measure, compute_one
from calibrant.metrics.ranked import SCORES, RankState, Rowwise, rowwise
from calibrant.metrics.selective import separation


@dataclass
class OodState(RankState):
    """A score of each row and whether it is in distribution (kept as the row's value)."""

    num_labels: ClassVar[int | None] = 2

    def update(self, block: Block) -> None:
        """Take in one block of rows."""
        self.scores.append(rowwise(self.score, SCORES)(block).clone())
        self.losses.append(block.target == 1)

    def both_sides(self) -> None:
        """Raise unless rows of both kinds were seen."""
        inside = float(self.ranked().values[-1])
        if inside in (0.0, float(self.ranked().num_rows)):
            raise InputError(
                f"found {int(inside)} in-distribution rows of {self.ranked().num_rows}; both "
                "kinds are needed (label 1: in distribution, 0: out)"
            )


def ood_auroc_measure(*, score: Rowwise = "msp") -> Measure:
    """AUROC of in- against out-of-distribution."""

    def compute(state: OodState) -> Tensor:
        state.both_sides()
        return separation(state.ranked().values, state.ranked())

    return Measure("ood_auroc", (partial(OodState, score),), compute, "higher")


def fpr95_measure(*, score: Rowwise = "msp") -> Measure:
    """Share of out-of-distribution rows accepted when 95% of the others are."""

    def compute(state: OodState) -> Tensor:
        state.both_sides()
        ranked = state.ranked()
        inside = ranked.values[-1] - ranked.values[:-1]  # accepted at each distinct score
        total = (ranked.num_rows - ranked.bounds[:-1]).double()
        enough = (inside >= 0.95 * ranked.values[-1] - 1e-9).nonzero().squeeze(1).max()
        outside = ranked.num_rows - ranked.values[-1]
        return (total[enough] - inside[enough]) / outside

    return Measure("fpr95", (partial(OodState, score),), compute)


def ood_auroc(
    preds: Array,
    target: Array,
    *,
    score: Rowwise = "msp",
    from_logits: bool = True,
    ignore_index: int | None = None,
) -> Any:
    """AUROC of a score (``msp``, ``neg_entropy``, ``max_logit``) for in-distribution rows.

    ``target`` is 1 for in-distribution rows and 0 for others.
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
    """False-positive rate at the largest threshold that accepts 95% of in-distribution rows.

    ``target`` is 1 for in-distribution rows and 0 for others.
    """
    measure = fpr95_measure(score=score)
    return compute_one(measure, preds, target, from_logits=from_logits, ignore_index=ignore_index)
