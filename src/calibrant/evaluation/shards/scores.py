"""The judged probabilities of all rows by size: exactly, or in narrow cells.

Up to 10^8 rows each piece sorts its own rows and the runs are merged (`ScoreRuns`): figures that
need ranks are exact. With more rows the probabilities are counted in fixed cells (`ScoreCells`),
2^-13 as wide as their distance to 0 or 1. Both give a `ScoreTable`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.evaluation.shards.keyed import KeyedSums
from calibrant.functional.ranking import Ranked
from calibrant.metrics.rank_state import RankState

Floats: TypeAlias = NDArray[np.float64]

EXACT_ROWS = 100_000_000  # of more rows, scores are counted in cells
COARSE = 1 << 18  # cells of equal weight that stand for more: of influences and fits
_MANTISSA = 13  # bits of a cell's place within a factor of two
_LEAST = 2.0**-64  # a probability this near to 0 or 1 shares its cell with those nearer
_SIDES = 1 << 30  # the keys of cells above 1/2 begin here


@dataclass(frozen=True)
class ScoreTable:
    """The rows of each score, ascending: their number and weight by outcome."""

    score: Floats  # (G,) the score, or the weighted mean of a cell's scores
    count: Floats  # (G, 2) rows that were right, and wrong ones; of events, happened or not
    weight: Floats  # (G, 2) the same as sums of weights; the counts if all rows count the same
    widest: Floats | None = None  # (G,) the width of the cells; None if scores are exact
    weighted: bool = False

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return round(float(self.count.sum()))

    def rank(self) -> Ranked:
        """Return the rows in the order of their scores; weights are scaled to mean 1."""
        scale = self.num_rows / float(self.weight.sum()) if self.weighted else 1.0
        masses = self.weight.sum(1)
        masses *= scale
        bounds = _cumulative(masses)
        if self.weighted:
            bounds[-1] = self.num_rows
        else:
            bounds = bounds.astype(np.int64)  # sums of whole numbers are exact
        masses *= self.score
        scores = _cumulative(masses)
        np.multiply(self.weight[:, 1], scale, out=masses)
        return Ranked(
            score=torch.from_numpy(self.score),
            bounds=torch.from_numpy(bounds),
            values=torch.from_numpy(_cumulative(masses)),
            scores=torch.from_numpy(scores),
        )

    def coarsen(self, most: int = COARSE) -> ScoreTable:
        """Join neighbours until at most ``most`` scores of nearly equal weight are left."""
        if len(self.score) <= most:
            return self
        mass = self.weight.sum(1)
        middle = np.cumsum(mass) - 0.5 * mass
        place = np.minimum((middle / mass.sum() * most).astype(np.int64), most - 1)
        begins = np.flatnonzero(np.concatenate(([True], np.diff(place) > 0)))
        count, weight = (np.add.reduceat(values, begins) for values in (self.count, self.weight))
        score = np.add.reduceat(mass * self.score, begins) / weight.sum(1)
        return ScoreTable(score, count, weight, weighted=self.weighted)

    def order_cells(self, *, best: bool) -> ScoreTable:
        """Return cells whose right rows all score above their wrong rows, or all below."""
        places = np.argsort([1, 0] if best else [0, 1])
        split = np.stack([np.zeros_like(self.count)] * 2, axis=1)
        weight = split.copy()
        for outcome, place in enumerate(places):
            split[:, place, outcome] = self.count[:, outcome]
            weight[:, place, outcome] = self.weight[:, outcome]
        return ScoreTable(
            np.repeat(self.score, 2),
            split.reshape(-1, 2),
            weight.reshape(-1, 2),
            weighted=self.weighted,
        ).drop_empty()

    def drop_empty(self) -> ScoreTable:
        """Return the scores that have rows."""
        full = self.count.sum(1) > 0
        if full.all():
            return self
        widest = None if self.widest is None else self.widest[full]
        return ScoreTable(
            self.score[full], self.count[full], self.weight[full], widest, self.weighted
        )

    def make_state(self, entries: ScoreTable | None = None) -> RankState:
        """Make the state of metrics that need ranks.

        Its rows are entries, one for each score and outcome, whose weight is that of their rows.

        Args:
            entries: The table that the rows come from, if not this one.
        """
        table = entries or self
        state = RankState.from_ranked(self.rank())
        full = table.weight > 0
        outcome = np.broadcast_to(np.array([False, True]), full.shape)[full]
        state.scores.append(torch.from_numpy(np.repeat(table.score, 2).reshape(-1, 2)[full]))
        state.losses.append(torch.from_numpy(outcome.copy()))
        state.weights.append(torch.from_numpy(table.weight[full]))
        return state


def _cumulative(values: Floats) -> Floats:
    total = np.zeros(len(values) + 1)
    np.cumsum(values, out=total[1:])
    return total


@dataclass
class ScoreRuns:
    """Every row's score and outcome, as sorted runs of 8 bytes a row (16 with weights)."""

    weighted: bool = False
    runs: list[NDArray[np.int64]] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    counts: list[NDArray[np.int64] | None] = field(default_factory=list)

    def add(self, score: Floats, wrong: NDArray[np.bool_], weights: Floats | None) -> None:
        """Add rows.

        Args:
            score: (n,) scores, not negative and below 2.
            wrong: (n,) whether the row was wrong; of events, whether it did not happen.
            weights: (n,) weights, or None.
        """
        # The bits of numbers that are not negative sort as they do; below 2 the top two are free.
        key = ((score + 0.0).view(np.int64) << 1) | wrong
        if weights is not None:
            self.weights.append(weights)
        self.runs.append(key)
        self.counts.append(None)

    def sort(self) -> None:
        """Join all runs into one, and equal rows of no weight into one with a count."""
        if not self.runs:
            return
        counted = any(count is not None for count in self.counts)
        lengths = [len(run) for run in self.runs]
        key = np.concatenate(self.runs)
        self.runs = []
        if self.weighted:
            order = np.argsort(key, kind="stable")
            self.runs, self.counts = [key[order]], [None]
            self.weights = [np.concatenate(self.weights)[order]]
            return
        if not counted:
            key.sort()
            begins = _find_begins(key)
            if 2 * len(begins) > len(key):
                self.runs, self.counts = [key], [None]
                return
            count = np.diff(begins, append=len(key))
            self.runs, self.counts = [key[begins]], [count]
            return
        ones = [
            np.ones(length, dtype=np.int64) if count is None else count
            for length, count in zip(lengths, self.counts, strict=True)
        ]
        order = np.argsort(key, kind="stable")
        key, count = key[order], np.concatenate(ones)[order]
        begins = _find_begins(key)
        self.runs, self.counts = [key[begins]], [np.add.reduceat(count, begins)]

    def merge(self, other: ScoreRuns) -> None:
        """Add the rows of another."""
        self.runs += other.runs
        self.weights += other.weights
        self.counts += other.counts

    def table(self) -> ScoreTable:
        """Return the rows of each score; the runs are given up for it."""
        self.sort()
        (key,), (count,) = self.runs, self.counts
        self.runs, self.counts = [], []
        wrong = (key & 1).astype(bool)
        key >>= 1  # in place: at 10^8 rows every array counts
        begins = _find_begins(key)
        score = key[begins].view(np.float64)
        del key
        counts = np.empty((len(begins), 2))
        if count is None:
            counts[:, 1] = np.add.reduceat(wrong, begins, dtype=np.int64)
            counts[:, 0] = np.diff(begins, append=len(wrong))
        else:
            counts[:, 1] = np.add.reduceat(count * wrong, begins)
            counts[:, 0] = np.add.reduceat(count, begins)
        counts[:, 0] -= counts[:, 1]
        weight = counts
        if self.weighted:
            (row_weights,) = self.weights
            self.weights = []
            weight = np.empty_like(counts)
            weight[:, 1] = np.add.reduceat(row_weights * wrong, begins)
            weight[:, 0] = np.add.reduceat(row_weights * ~wrong, begins)
        return ScoreTable(score, counts, weight, weighted=self.weighted)


def _find_begins(key: NDArray[np.int64]) -> NDArray[np.int64]:
    new = np.empty(len(key), dtype=bool)
    new[:1] = True
    np.not_equal(key[1:], key[:-1], out=new[1:])
    return np.flatnonzero(new)


@dataclass
class ScoreCells:
    """Rows, weight and weighted score of each cell and outcome."""

    weighted: bool = False
    cells: KeyedSums = field(default_factory=KeyedSums)

    def add(self, score: Floats, wrong: NDArray[np.bool_], weights: Floats | None) -> None:
        """Add rows; see `ScoreRuns.add`."""
        key = (find_cells(score) << 1) | wrong
        row_weights = np.ones_like(score) if weights is None else weights
        self.cells.add(
            key, np.stack((np.ones_like(score), row_weights, row_weights * score), axis=1)
        )

    def sort(self) -> None:
        """Join the sums of equal cells."""
        self.cells.whole()

    def merge(self, other: ScoreCells) -> None:
        """Add the rows of another."""
        self.cells.merge(other.cells)

    def table(self) -> ScoreTable:
        """Return the rows of each cell."""
        key, sums = self.cells.whole()
        cell = key >> 1
        begins = _find_begins(cell)
        place = np.cumsum(np.diff(cell, prepend=-1) != 0) - 1
        wrong = key & 1
        parts = np.zeros((3, len(begins), 2))
        parts[:, place, wrong] = sums.T
        count, weight, total = parts
        score = total.sum(1) / weight.sum(1)
        return ScoreTable(score, count, weight, cell_width(score), self.weighted)


def find_cells(score: Floats) -> NDArray[np.int64]:
    """Return the cell of each probability: 2^13 of equal width for each factor of two.

    The factor is that of the distance to 0, or to 1 if that is nearer.

    Args:
        score: (n,) probabilities.
    """
    above = score > 0.5
    near = np.where(above, 1.0 - score, score)
    near = np.clip(near, _LEAST, None).astype(np.float32)
    cell = (near.view(np.int32) >> (23 - _MANTISSA)).astype(np.int64)
    return np.where(above, 2 * _SIDES - cell, cell)


def cell_width(score: Floats) -> Floats:
    """Return the width of the cell of each probability."""
    near = np.clip(np.minimum(score, 1.0 - score), _LEAST, None)
    width: Floats = np.exp2(np.floor(np.log2(near)) - _MANTISSA)
    return width


Scores: TypeAlias = ScoreRuns | ScoreCells
