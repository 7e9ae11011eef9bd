"""Top-label calibration error from ranked confidences: equal mass, sweep, KS, smooth.

These keep each row's confidence and correctness (5 bytes a row, 9 where some need float64),
because ranks cannot be had from sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from calibrant.functional.binning import bin_index, bin_sums, check_bins, mass_bounds
from calibrant.functional.blocks import Block
from calibrant.functional.errors import InputError
from calibrant.functional.ranking import Ranked, rank
from calibrant.metrics.base import State

Rowwise: TypeAlias = "str | Callable[[Block], Tensor]"


def _told_apart(block: Block, score: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """A score of each row, in float64 where float32 cannot tell rows apart.

    Near 1 float32 runs out of digits: half the rows of a very sure network may have a
    confidence of exactly 1, and would tie. ``of`` gives the score of probabilities (K, n).
    """
    if not block.from_logits or block.scores.dtype == torch.float64:
        return score
    sure = (block.confidence > 0.999).nonzero().squeeze(1)
    if not sure.numel():
        return score
    logits = block.scores.index_select(1 - block.class_dim, sure).movedim(block.class_dim, 0)
    score = score.to(torch.float64, copy=True)
    score[sure] = of(torch.softmax(logits.double(), 0))
    return score


def _margin(probs: Tensor) -> Tensor:
    first, second = probs.topk(2, dim=0).values
    return first - second


SCORES: dict[str, Callable[[Block], Tensor]] = {
    "msp": lambda block: _told_apart(block, block.confidence, lambda p: p.amax(0)),
    "margin": lambda block: _told_apart(block, block.margin, _margin),
    "neg_entropy": lambda block: _told_apart(
        block, -block.entropy, lambda p: -torch.special.entr(p).sum(0)
    ),
    "max_logit": lambda block: block.top_score,
}
LOSSES: dict[str, Callable[[Block], Tensor]] = {
    "zero_one": lambda block: ~block.correct,
    "cross_entropy": lambda block: block.nll,
    "brier": lambda block: block.brier,
}


def rowwise(given: Rowwise, known: dict[str, Callable[[Block], Tensor]]) -> Callable[..., Tensor]:
    """A quantity of a row by its name, or any function of a block."""
    if callable(given):
        return given
    if given not in known:
        raise InputError(f"expected one of {', '.join(known)} or a function; found {given!r}")
    return known[given]


@dataclass
class RankState(State):
    """A score and a loss of each row, kept until the end and ranked once."""

    score: Rowwise = "msp"
    loss: Rowwise = "zero_one"
    scores: list[Tensor] = field(default_factory=list, init=False, repr=False)
    losses: list[Tensor] = field(default_factory=list, init=False, repr=False)
    preset: Ranked | None = field(default=None, init=False, repr=False)
    _order: tuple[Tensor, Tensor, Tensor] | None = field(default=None, init=False, repr=False)
    _ranked: tuple[int, Ranked] | None = field(default=None, init=False, repr=False)

    kept = ("scores", "losses")

    def update(self, block: Block) -> None:
        """Take in one block of rows."""
        self.scores.append(rowwise(self.score, SCORES)(block).clone())
        self.losses.append(rowwise(self.loss, LOSSES)(block).clone())

    def ranked(self) -> Ranked:
        """Rows in ascending order of score, with their losses; sorted once for all users."""
        if self.preset is not None:
            return self.preset
        score = self.joined("scores")
        if self._ranked is None or self._ranked[0] != len(score):
            self._ranked = (len(score), rank(score, self.joined("losses")))
        return self._ranked[1]

    def in_order(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row numbers in ascending order of score, with score and loss; on the CPU, once."""
        if self._order is None or len(self._order[0]) != len(self.joined("scores")):
            score, loss = self.joined("scores").cpu(), self.joined("losses").cpu()
            order = torch.argsort(score, stable=True)
            self._order = (order, score[order], loss[order])
        return self._order

    def cumulative(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of confidence and of correctness over the first ``positions`` rows."""
        wrong, confidence = self.ranked().up_to(positions)
        return confidence, positions.to(wrong.device) - wrong

    def mass_totals(self, num_bins: int) -> Tensor:
        """(M, 3): rows, confidence, correctness of bins of equal mass; none is empty."""
        num_rows = self.ranked().num_rows
        bounds = mass_bounds(num_rows, min(check_bins(num_bins), num_rows))
        confidence, correct = self.cumulative(bounds)
        rows = bounds.to(correct).diff().expand_as(correct[..., 1:])
        return torch.stack((rows, confidence.diff(), correct.diff()), dim=-1)

    @classmethod
    def of(cls, ranked: Ranked) -> RankState:
        """A state whose rows are ranked already, possibly many resampled sets at once."""
        state = cls()
        state.preset = ranked
        return state


def label_binned_error(state: RankState, num_bins: int, order: float, binning: str) -> Tensor:
    """ECE_lb,p = (1/N Σ_i |A_b(i) − c_i|^p)^(1/p), soft-calibration eq. 7."""
    ranked = state.ranked()
    size = ranked.bounds.diff().double()
    if binning == "width":
        index = bin_index(ranked.score, num_bins)
        count = bin_sums(index, num_bins, size)
        right = count - bin_sums(index, num_bins, ranked.values.diff())
        error = (right / count.clamp_min(1))[index].sub(ranked.score).abs() ** order
        return ((size * error).sum() / size.sum()) ** (1 / order)
    count, _, correct = state.mass_totals(num_bins).unbind(-1)
    # A tie group cut by a bound lies in two bins: it is split into pieces at the bounds.
    ends = count.cumsum(0).round().long()
    bounds = torch.unique(torch.cat((ranked.bounds, ends)))
    piece = bounds.diff().double()
    score = ranked.score[torch.searchsorted(ranked.bounds, bounds[:-1], right=True) - 1]
    home = torch.searchsorted(ends, bounds[:-1], right=True)
    error = ((correct / count)[home] - score).abs() ** order
    return ((piece * error).sum() / piece.sum()) ** (1 / order)


# Cells that stand for the rows where a rank-based error is simulated many times.
FINE = 240


def from_cells(totals: Tensor) -> RankState:
    """The ranked rows of one set of cells (C, 3), each a group of rows of equal confidence."""
    count, confidence, correct = totals[totals[:, 0] > 0].unbind(-1)
    score = confidence / count

    def cumulative(each: Tensor) -> Tensor:
        return torch.cat((each.new_zeros(1), each.cumsum(0)))

    bounds = cumulative(count).round().long()
    ranked = Ranked(score, bounds, cumulative(count - correct), cumulative(confidence))
    return RankState.of(ranked)


def ks_of_cells(totals: Tensor) -> Tensor:
    """max_r |1/N Σ_{i<=r} (a_i − c_i)| over cells (..., C, 3) in order of confidence."""
    count, confidence, correct = totals.unbind(-1)
    return (correct - confidence).cumsum(-1).abs().amax(-1) / count.sum(-1)


def ks_error(state: RankState) -> Tensor:
    """The same at the ends of ties."""
    ranked = state.ranked()
    right = ranked.bounds.double() - ranked.values
    cells = torch.stack((ranked.bounds.double(), ranked.scores, right), dim=-1)
    return ks_of_cells(cells.diff(dim=-2))


def sweep_bins(state: RankState) -> int:
    """The largest number of equal-mass bins up to which their accuracies are monotone."""
    ranked = state.ranked()
    num_rows = ranked.num_rows
    wrong = ranked.values.diff() / ranked.bounds.diff()
    if not bool((wrong.diff() > 0).any()):
        return num_rows  # already monotone row by row (all right, say), so at every number
    for num_bins in range(2, num_rows + 1):
        count, _, correct = state.mass_totals(num_bins).unbind(-1)
        if bool(((correct / count).diff() < -1e-12).any()):
            return num_bins - 1
    return max(num_rows, 1)
