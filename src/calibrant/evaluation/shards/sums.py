"""Sums over each piece of the shards; everything else follows from them.

All sums merge by addition. A piece is summed row group by row group, and pieces merge in their
order, so that the sums do not depend on who makes them.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.core.threads import one_thread
from calibrant.evaluation.shards.keyed import KeyedSums, draw_rows, encode_keys, mix
from calibrant.evaluation.shards.scores import ScoreCells, ScoreRuns
from calibrant.functional.arrays import as_numpy
from calibrant.functional.blocks import Block, blocks
from calibrant.metrics.base import State
from calibrant.metrics.rank_state import SCORES, find_rowwise
from calibrant.predictions.shards import Chunk, Piece, Reading, read_piece

Floats: TypeAlias = NDArray[np.float64]

GROUPS = 128  # random groups of clusters (or of weighted rows) that show how cells vary
MOST_CLUSTERS = 1 << 20  # of more, clusters are joined at random
# Of each row: 1, the judged probability, whether it came true, their difference, and what else
# is averaged.
FIRST_MOMENTS = ("one", "confidence", "correct", "gap")
_OCTAVES, _PARTS = 24, 32  # cells of the groups: 32 for each factor of two of p or 1 − p


@dataclass
class MomentState(State):
    """Moments of quantities of rows: Σ w x, Σ w² x x', Σ w³ x³ and Σ w⁴."""

    quantities: tuple[str, ...] = FIRST_MOMENTS
    first: Tensor | None = field(default=None, init=False, repr=False)  # (q,)
    second: Tensor | None = field(default=None, init=False, repr=False)  # (q, q)
    third: Tensor | None = field(default=None, init=False, repr=False)  # (q,)
    fourth: Tensor | None = field(default=None, init=False, repr=False)  # ()

    sums = ("first", "second", "third", "fourth")
    weighted = True

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        self.add_rows(self.rows_of(block), block.weights)

    def rows_of(self, block: Block) -> Tensor:
        """Return the quantities of the rows of a block, (n, q)."""
        p, y = block.confidence.double(), block.correct.double()
        parts = [torch.ones_like(p), p, y, p - y]
        parts += [getattr(block, name).double() for name in self.quantities[len(parts) :]]
        return torch.stack(parts, dim=1)

    def add_rows(self, rows: Tensor, weights: Tensor | None) -> None:
        """Add rows (n, q) with their weights."""
        heavy = rows if weights is None else rows * weights.unsqueeze(1)
        self.add("first", heavy.sum(0))
        self.add("second", heavy.t() @ heavy)
        self.add("third", heavy.pow(3).sum(0))
        fourth = float(len(rows)) if weights is None else float(weights.pow(4).sum())
        self.add("fourth", torch.tensor(fourth, dtype=torch.float64))


@dataclass
class UnitSums:
    """Sums of rows with weights or clusters, which show how figures vary.

    Args:
        num_bins: The number of equal-width bins, whose edges are edges of cells too.
        clustered: Whether rows have clusters; else each row is a unit of its own.
        seed: The seed of the random groups.
    """

    num_bins: int
    clustered: bool
    seed: int
    clusters: KeyedSums = field(default_factory=KeyedSums)  # (G, q+1): Σ w x, and Σ w²
    cells: KeyedSums = field(default_factory=KeyedSums)  # (groups × cells, 5)

    def edges(self) -> Floats:
        """Return the inner edges of the cells."""
        return unit_edges(self.num_bins)

    def update(self, rows: Floats, weights: Floats | None, keys: NDArray[np.uint64]) -> None:
        """Add rows.

        Args:
            rows: (n, q) quantities of `MomentState`.
            weights: (n,) weights, or None.
            keys: (n,) the cluster's key, or a random number for each row.
        """
        row_weights = np.ones(len(rows)) if weights is None else weights
        if self.clustered:
            self.clusters.add(keys, np.column_stack((rows * row_weights[:, None], row_weights**2)))
        group = (mix(keys, self.seed + 1) % np.uint64(GROUPS)).astype(np.int64)
        p, y = rows[:, 1], rows[:, 2]
        edges = self.edges()
        cell = np.searchsorted(edges, p, side="left")
        sums = np.stack(
            (np.ones(len(p)), row_weights, row_weights * p, row_weights * y, row_weights**2), axis=1
        )
        self.cells.add(group * (len(edges) + 1) + cell, sums)

    def merge(self, other: UnitSums) -> None:
        """Add the sums of other rows."""
        self.clusters.merge(other.clusters)
        self.cells.merge(other.cells)
        self.join_clusters()

    def join_clusters(self) -> None:
        """Join clusters at random if there are very many, which leaves them independent."""
        keys, sums = self.clusters.whole()
        if len(keys) > MOST_CLUSTERS:
            self.clusters = KeyedSums()
            self.clusters.add(keys % np.uint64(MOST_CLUSTERS), sums)

    def table(self) -> Floats:
        """Return (groups, cells, 5): rows, Σ w, Σ w p, Σ w y and Σ w² of each cell."""
        keys, sums = self.cells.whole()
        size = len(self.edges()) + 1
        flat = np.zeros((GROUPS * size, 5))
        flat[keys] = sums
        whole = flat.reshape(GROUPS, size, 5)
        return whole[whole[..., 0].sum(1) > 0][:, whole[..., 0].sum(0) > 0]


def unit_edges(num_bins: int) -> Floats:
    """Return edges of cells: 32 for each factor of two of p and of 1 − p, and of all bins."""
    steps = np.arange(1, _OCTAVES * _PARTS + 1)
    low = np.exp2(-1.0 - steps / _PARTS)
    bins = np.arange(1, num_bins) / num_bins
    return np.unique(np.concatenate((low, [0.5], 1.0 - low, bins)))


@dataclass
class RowSample:
    """A random sample of rows: those with the smallest random numbers.

    Args:
        most: The number of rows.
        seed: The seed of the numbers.
    """

    most: int
    seed: int
    drawn: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    scores: NDArray[Any] | None = None
    labels: NDArray[Any] | None = None

    def update(self, start: int, scores: NDArray[Any], labels: NDArray[Any], counted: Any) -> None:
        """Add consecutive rows.

        Args:
            start: The number of the first row.
            scores: (n, K) scores.
            labels: (n,) labels.
            counted: (n,) whether the row counts.
        """
        drawn = draw_rows(start, len(labels), self.seed)
        bound = self.drawn[-1] if len(self.drawn) == self.most else None
        chosen = np.flatnonzero(counted if bound is None else counted & (drawn < bound))
        if len(chosen) > self.most:
            chosen = chosen[np.argpartition(drawn[chosen], self.most)[: self.most]]
        if len(chosen):
            self._join(drawn[chosen], scores[chosen], labels[chosen])

    def merge(self, other: RowSample) -> None:
        """Add the sample of other rows."""
        if other.scores is not None and other.labels is not None:
            self._join(other.drawn, other.scores, other.labels)

    def _join(self, drawn: Any, scores: NDArray[Any], labels: NDArray[Any]) -> None:
        if self.scores is not None and self.labels is not None:
            drawn = np.concatenate((self.drawn, drawn))
            scores = np.concatenate((self.scores, scores))
            labels = np.concatenate((self.labels, labels))
        order = np.argsort(drawn, kind="stable")[: self.most]
        self.drawn, self.scores, self.labels = drawn[order], scores[order], labels[order]


@dataclass
class Sums:
    """The sums of some rows.

    Args:
        states: States that merge by addition.
        moments: The moments of quantities of rows.
        scores: The judged probabilities by size.
        units: The sums of clusters and groups; None if rows are plain.
        sample: A random sample of rows, if one is needed.
    """

    states: list[State]
    moments: MomentState
    scores: ScoreRuns | ScoreCells
    units: UnitSums | None = None
    sample: RowSample | None = None
    num_rows: int = 0  # that count
    num_ignored: int = 0
    num_dropped: int = 0  # without a label
    has_positive: bool = False

    def merge(self, other: Sums) -> None:
        """Add the sums of other rows."""
        for mine, theirs in zip(self.states, other.states, strict=True):
            mine.merge(theirs)
        self.moments.merge(other.moments)
        self.scores.merge(other.scores)  # type: ignore[arg-type]
        if self.units is not None and other.units is not None:
            self.units.merge(other.units)
        if self.sample is not None and other.sample is not None:
            self.sample.merge(other.sample)
        self.num_rows += other.num_rows
        self.num_ignored += other.num_ignored
        self.num_dropped += other.num_dropped
        self.has_positive |= other.has_positive


@dataclass(frozen=True)
class Job:
    """The sums to compute of each piece, as sent to every worker.

    Args:
        reading: How rows are read.
        empty: Sums of no rows.
        looks: What the first rows looked like, which all rows must.
        options: Options of `functional.blocks.blocks`.
        seed: The seed of random numbers of rows.
    """

    reading: Reading
    empty: Sums
    looks: dict[str, Any]
    options: dict[str, Any]
    seed: int

    def run(self, piece: Piece) -> Sums:
        """Sum the rows of a piece, row group by row group."""
        total = deepcopy(self.empty)
        with one_thread():
            for group in read_piece(piece, self.reading):
                part = deepcopy(self.empty)
                for chunk in group:
                    self._add(part, chunk, piece)
                part.scores.sort()
                total.merge(part)
            total.scores.sort()
        return total

    def _add(self, sums: Sums, chunk: Chunk, piece: Piece) -> None:
        predictions = chunk.predictions
        looks = describe(chunk)
        if looks != self.looks:
            name = next(name for name in looks if looks[name] != self.looks[name])
            raise InputError(
                f"{piece.path} has another {name.replace('_', ' ')} than the first rows: "
                f"{str(looks[name])[:60]!r}, {str(self.looks[name])[:60]!r}"
            )
        sums.num_dropped += chunk.num_rows - len(predictions)
        sums.has_positive |= chunk.has_positive
        labels = as_numpy(predictions.known_labels)
        counted = np.ones(len(labels), dtype=bool)
        if predictions.ignore_index is not None:
            counted = labels != predictions.ignore_index
        sums.num_ignored += int((~counted).sum())
        keys = None
        if sums.units is not None:
            if predictions.clusters is not None:
                keys = encode_keys(np.asarray(predictions.clusters))[counted]
            else:
                keys = draw_rows(chunk.start, len(labels), self.seed)[counted]
        scores = predictions.array
        if sums.sample is not None:
            sums.sample.update(chunk.start, as_numpy(scores), labels, counted)
        start = 0
        for block in blocks(
            scores, predictions.known_labels, weights=predictions.weights, **self.options
        ):
            rows_here = slice(start, start + block.num_rows)
            start += block.num_rows
            for state in sums.states:
                state.update(block)
            rows = sums.moments.rows_of(block)
            sums.moments.add_rows(rows, block.weights)
            score = find_rowwise("msp", SCORES)(block).double().clamp(0.0, 1.0).numpy()
            weights = None if block.weights is None else block.weights.numpy()
            sums.scores.add(score, (~block.correct).numpy(), weights)
            if sums.units is not None and keys is not None:
                sums.units.update(rows.numpy(), weights, keys[rows_here])
        sums.num_rows += start


def describe(chunk: Chunk) -> dict[str, Any]:
    """Return what must be the same for all rows."""
    predictions = chunk.predictions
    return {
        "kind_of_scores": "logits" if predictions.is_logits else "probs",
        "task": predictions.task,
        "event": predictions.event,
        "number_of_classes": predictions.num_classes,
        "shape_of_scores": len(predictions.scores.shape),
        "class_names": predictions.class_names,
        "ignore_index": predictions.ignore_index,
        "column_of_weights": predictions.weights is not None,
        "column_of_clusters": predictions.clusters is not None,
    }
