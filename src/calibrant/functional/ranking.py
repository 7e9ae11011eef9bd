"""Rows in the order of a score, with ties kept together.

Every rank-based metric reads its value from cumulative sums at the ends of groups of tied
scores. Rows tied in score share their group's mean, so no value depends on row order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import InputError, first
from calibrant.functional.binning import find_true


@dataclass(frozen=True)
class Ranked:
    """Scores in ascending order and one value per row, summed up to the end of each tie group.

    The sums may have leading dimensions: many resampled sets of the same groups at once,
    each with the same number of rows. A resampled group may be empty. A row of weight w, where
    the mean weight is 1, takes w positions.
    """

    score: Tensor  # (G,) the distinct scores, ascending, float64
    bounds: Tensor  # (..., G+1) positions 0..N at which the groups begin and end
    values: Tensor  # (..., G+1) sum of the values up to each bound, float64
    scores: Tensor  # (..., G+1) sum of the scores up to each bound, float64

    @property
    def num_rows(self) -> int:
        """Return the number of rows N, ties counted."""
        return round(float(self.bounds.reshape(-1)[-1]))

    def up_to(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of values and of scores over the first ``positions`` rows.

        Inside a tie group both sums grow linearly: each row carries its group's mean.
        """
        batch = self.bounds.shape[:-1]
        wanted = positions.to(self.bounds).expand(*batch, -1).contiguous()
        group = torch.searchsorted(self.bounds, wanted, right=True).sub_(1)
        group.clamp_max_(len(self.score) - 1)
        begin, end = self.bounds.gather(-1, group), self.bounds.gather(-1, group + 1)
        size = end - begin
        share = (wanted - begin).double() / torch.where(size > 0, size, 1).double()
        below = [total.gather(-1, group) for total in (self.values, self.scores)]
        above = [total.gather(-1, group + 1) for total in (self.values, self.scores)]
        value, score = (low + share * (high - low) for low, high in zip(below, above, strict=True))
        return value, score


def rank(score: Tensor, values: Tensor, weights: Tensor | None = None) -> Ranked:
    """Sort rows by score and gather them into groups of ties.

    Args:
        score: (N,) scores.
        values: (N,) values that are summed.
        weights: (N,) positive weights of any scale; None if rows count the same.
    """
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        bad = first((~torch.isfinite(values)).nonzero().squeeze(1).tolist())
        raise InputError(
            f"losses hold NaN or infinity, first in rows {bad}; cross-entropy is infinite where "
            "the true class has probability 0: give logits, or floor the probabilities"
        )
    if weights is None:
        ordered, carried = _sort(score, values)
    else:
        order = torch.argsort(score, stable=True)
        ordered, carried = score[order], values[order]
    if bool(ordered[-1:].isnan().any()):  # NaN sorts last
        bad = first(score.isnan().nonzero().squeeze(1).tolist())
        raise InputError(f"scores hold NaN, first in rows {bad}")
    last = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=last[:-1])
    if weights is None and bool(last.all()):  # no ties: every row is a group
        return Ranked(
            score=ordered.double(),
            bounds=torch.arange(len(ordered) + 1, device=ordered.device),
            values=_cumulative(carried),
            scores=_cumulative(ordered),
        )
    ends = find_true(last)
    zero = torch.zeros(1, dtype=torch.int64, device=ends.device)
    bounds = torch.cat((zero, ends + 1))
    if weights is not None:
        row_weights = weights[order].double()
        row_weights *= len(row_weights) / row_weights.sum()
        places = _cumulative(row_weights)[bounds]
        places[-1] = len(row_weights)  # exactly
        return Ranked(
            score=ordered[ends].double(),
            bounds=places,
            values=_cumulative(row_weights * carried)[bounds],
            scores=_cumulative(row_weights * ordered)[bounds],
        )
    return Ranked(
        score=ordered[ends].double(),
        bounds=bounds,
        values=_cumulative(carried)[bounds],
        scores=_cumulative(ordered)[bounds],
    )


def _cumulative(values: Tensor) -> Tensor:
    total = torch.empty(len(values) + 1, dtype=torch.float64, device=values.device)
    total[0] = 0.0
    torch.cumsum(values, 0, dtype=torch.float64, out=total[1:])
    return total


def _sort(score: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sort by score, carrying the values along."""
    if values.dtype == torch.bool and score.dtype in _WHOLE:
        low, high = torch.aminmax(score)
        if float(low) >= 0 and float(high) < 2:
            return _sort_packed(score, values)
    order = torch.argsort(score)
    return score[order], values[order]


def _sort_packed(score: Tensor, flag: Tensor) -> tuple[Tensor, Tensor]:
    """Sort scores in [0, 2) with a bit each, an order of magnitude faster than an argsort.

    The bits of non-negative floats sort like the floats, and below 2 the top two bits are
    free: the score moves up by one bit, the flag takes the lowest, and the integers are sorted.
    """
    whole = _WHOLE[score.dtype]
    positive = score.contiguous() + 0.0  # −0.0 becomes 0.0
    packed = positive.view(whole).bitwise_left_shift_(1).bitwise_or_(flag.to(whole))
    if packed.device.type == "cpu":
        array = packed.numpy()
        array.sort()  # in place, and vectorised, which torch's is not
        flags = torch.from_numpy((array.astype(np.uint8) & 1).view(np.bool_))  # the lowest bits
    else:
        packed = torch.sort(packed).values
        flags = packed.bitwise_and(1).bool()
    return packed.bitwise_right_shift_(1).view(score.dtype), flags


_WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}
