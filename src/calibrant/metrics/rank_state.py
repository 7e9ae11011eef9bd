"""The state of metrics that need ranks: a score and a loss of each row.

Ranks cannot be computed from sums, so each row's score and loss are stored: 5 bytes a row for
confidence and correctness, 9 where some rows need float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.functional.binning import check_bins, find_true, mass_bounds
from calibrant.functional.blocks import Block
from calibrant.functional.ranking import Ranked, rank
from calibrant.metrics.base import State

Rowwise: TypeAlias = "str | Callable[[Block], Tensor]"
T = TypeVar("T")


def _separate_ties(block: Block, score: Tensor, score_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Recompute in float64 the scores that float32 rounds to the same number.

    Near 1 float32 runs out of digits: half the rows of a very sure network may have a
    confidence of exactly 1, and would tie. ``score_of`` computes the score of probabilities
    (K, n).
    """
    if not block.from_logits or block.scores.dtype == torch.float64:
        return score
    sure = find_true(block.confidence > 0.999)
    if not sure.numel():
        return score
    logits = block.scores.index_select(1 - block.class_dim, sure).movedim(block.class_dim, 0)
    score = score.to(torch.float64, copy=True)
    score[sure] = score_of(torch.softmax(logits.double(), 0))
    return score


def _confidence(block: Block) -> Tensor:
    """Return the judged probability, near 1 as one less the sum of the others.

    That sum keeps its digits in float32, so no exponential is computed again.
    """
    score = block.confidence
    if not block.from_logits or block.scores.dtype == torch.float64:
        return score
    sure = find_true(score > 0.999)
    if not sure.numel():
        return score
    probs = block.probs.index_select(1 - block.class_dim, sure)
    others = probs.masked_fill_(probs > 0.5, 0.0).sum(block.class_dim)
    score = score.to(torch.float64, copy=True)
    score[sure] = 1.0 - others.double()
    return score


def _margin(probs: Tensor) -> Tensor:
    first, second = probs.topk(2, dim=0).values
    return first - second


SCORES: dict[str, Callable[[Block], Tensor]] = {
    "msp": _confidence,
    "margin": lambda block: _separate_ties(block, block.margin, _margin),
    "neg_entropy": lambda block: _separate_ties(
        block, -block.entropy, lambda p: -torch.special.entr(p).sum(0)
    ),
    "max_logit": lambda block: block.top_score,
}
LOSSES: dict[str, Callable[[Block], Tensor]] = {
    "zero_one": lambda block: ~block.correct,
    "cross_entropy": lambda block: block.nll,
    "brier": lambda block: block.brier,
}


def find_rowwise(
    name: Rowwise, known: dict[str, Callable[[Block], Tensor]]
) -> Callable[..., Tensor]:
    """Return the function of a block that a name stands for; a function is returned as it is."""
    if callable(name):
        return name
    if name not in known:
        raise InputError(f"expected one of {', '.join(known)} or a function; found {name!r}")
    return known[name]


@dataclass
class RankState(State):
    """A score and a loss of each row, stored until the end and ranked once.

    Args:
        score: A key of `SCORES`, or a function of a `Block`; larger means more confident.
        loss: A key of `LOSSES`, or a function of a `Block`.
    """

    score: Rowwise = "msp"
    loss: Rowwise = "zero_one"
    scores: list[Tensor] = field(default_factory=list, init=False, repr=False)
    losses: list[Tensor] = field(default_factory=list, init=False, repr=False)
    weights: list[Tensor] = field(default_factory=list, init=False, repr=False)
    preset: Ranked | None = field(default=None, init=False, repr=False)
    _order: tuple[Tensor, Tensor, Tensor] | None = field(default=None, init=False, repr=False)
    _ranked: tuple[int, Ranked] | None = field(default=None, init=False, repr=False)
    _kept: dict[str, tuple[int, Any]] = field(default_factory=dict, init=False, repr=False)

    lists = ("scores", "losses", "weights")
    weighted = True

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        self.append("scores", find_rowwise(self.score, SCORES)(block).clone())
        self.append("losses", find_rowwise(self.loss, LOSSES)(block).clone())
        if block.weights is not None:
            self.append("weights", block.weights)

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` computes from all rows; it is computed once for all callers."""
        number = sum(map(len, self.scores))
        if name not in self._kept or self._kept[name][0] != number:
            self._kept[name] = (number, make())
        value: T = self._kept[name][1]
        return value

    def forget(self) -> None:
        """Free what `keep` keeps."""
        self._kept.clear()

    def rank_rows(self) -> Ranked:
        """Rank the rows by ascending score, with their losses; sorts once for all callers."""
        if self.preset is not None:
            return self.preset
        score = self.concatenate("scores")
        if self._ranked is None or self._ranked[0] != len(score):
            losses, weights = self.concatenate("losses"), self.row_weights()
            weights = None if weights is None else weights.to(score.device)
            self._ranked = (len(score), rank(score, losses, weights))
        return self._ranked[1]

    def sort_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return row numbers, scores and losses by ascending score, on the CPU; sorts once."""
        if self._order is None or len(self._order[0]) != len(self.concatenate("scores")):
            score, loss = self.concatenate("scores").cpu(), self.concatenate("losses").cpu()
            order = torch.argsort(score, stable=True)
            self._order = (order, score[order], loss[order])
        return self._order

    def cumulative(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Sum confidence and correctness over the first ``positions`` rows."""
        wrong, confidence = self.rank_rows().up_to(positions)
        return confidence, positions.to(wrong) - wrong

    def mass_totals(self, num_bins: int) -> Tensor:
        """Compute rows, confidence and correctness of equal-mass bins, (M, 3); none is empty."""
        num_rows = self.rank_rows().num_rows
        bounds = mass_bounds(num_rows, min(check_bins(num_bins), num_rows))
        confidence, correct = self.cumulative(bounds)
        rows = bounds.to(correct).diff().expand_as(correct[..., 1:])
        return torch.stack((rows, confidence.diff(), correct.diff()), dim=-1)

    @classmethod
    def from_ranked(cls, ranked: Ranked) -> RankState:
        """Make a state of rows that are ranked already, possibly of many resampled sets."""
        state = cls()
        state.preset = ranked
        return state
