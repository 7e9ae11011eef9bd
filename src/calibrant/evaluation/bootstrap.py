"""Bootstrap over rows, many resampled sets at once.

A resampled set is known by how often it holds each row, so a block of sets is a matrix of
counts: means are a matrix product, ranked quantities cumulative sums, and class-wise cells
a sparse product. Nothing is computed set by set but what has no such form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.binning import bin_index, bin_sums, edges
from calibrant.functional.blocks import Block
from calibrant.functional.ranking import Ranked
from calibrant.metrics.base import Measure, State
from calibrant.metrics.binned import BinState
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import MeanState, RowState
from calibrant.metrics.ranked import RankState

Counts: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_ELEMENTS = 1 << 20  # counts drawn at a time
_BUDGET = 20_000_000  # rows drawn in all before fewer resamples are taken
MOST_CELLS = 20_000_000  # scores above which the cells of all rows are not kept


def affordable(num_rows: int, resamples: int) -> int:
    """As many resamples as asked for, fewer (but 100) where rows are very many."""
    return min(resamples, max(100, _BUDGET // max(num_rows, 1)))


def resample_counts(num_rows: int, resamples: int, seed: int) -> Iterator[Counts]:
    """How often each row is drawn: blocks of (some, N), each line summing to N."""
    generator = np.random.default_rng(seed)
    step = max(1, min(resamples, _ELEMENTS // num_rows))
    for begin in range(0, resamples, step):
        lines = min(step, resamples - begin)
        drawn = generator.integers(0, num_rows, size=(lines, num_rows), dtype=np.int64)
        drawn += np.arange(lines, dtype=np.int64)[:, None] * num_rows
        flat = np.bincount(drawn.ravel(), minlength=lines * num_rows)
        yield flat.reshape(lines, num_rows)


def percentiles(values: Floats, level: float) -> tuple[float, float]:
    """The central ``level`` of resampled values."""
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(values, (tail, 1.0 - tail))
    return float(low), float(high)


@dataclass
class ClassCellState(State):
    """The cell (class and bin) of every probability of every row, kept."""

    num_bins: int = 15
    cells: list[Tensor] = field(default_factory=list, init=False, repr=False)
    probs: list[Tensor] = field(default_factory=list, init=False, repr=False)
    targets: list[Tensor] = field(default_factory=list, init=False, repr=False)

    kept = ("cells", "probs", "targets")

    def update(self, block: Block) -> None:
        """Take in one block of rows."""
        probs = (block.probs if block.class_dim == 1 else block.probs.t()).contiguous().cpu()
        index = bin_index(probs.flatten(), self.num_bins).view_as(probs)
        self.cells.append((index + torch.arange(block.num_classes) * self.num_bins).int())
        self.probs.append(probs.clone())
        self.targets.append(block.target.cpu())

    def totals(self, counts: Counts) -> Tensor:
        """(R, K, M, 3) of resampled sets, as ClassBinState holds for one."""
        from scipy.sparse import csr_matrix

        cells, probs = self.joined("cells").numpy(), self.joined("probs").double().numpy()
        target = self.joined("targets").numpy()
        rows, classes = cells.shape
        starts = np.arange(rows + 1) * classes
        hits = np.zeros_like(probs)
        hits[np.arange(rows), target] = 1.0
        shape = (rows, classes * self.num_bins)
        weights = counts.T.astype(np.float64)
        sums = [
            csr_matrix((data.ravel(), cells.ravel(), starts), shape=shape).T @ weights
            for data in (np.ones_like(probs), probs, hits)
        ]
        stacked = np.stack(sums, axis=-1).swapaxes(0, 1)
        return torch.from_numpy(stacked.reshape(len(counts), classes, self.num_bins, 3))

    def coupling(self) -> float:
        """How much more a class-wise error varies than if its cells were independent.

        A row has one label: what is missing from one class's cell turns up in another's.
        Where both gaps point the same way, their noise adds up instead of averaging out.
        The spread of Σ_k sign(gap of the cell of p_k)·(p_k − y_k) over rows tells by how
        much.
        """
        cells, probs = self.joined("cells").long(), self.joined("probs").double()
        classes = cells.shape[1]
        surplus = probs.scatter_add(
            1, self.joined("targets").unsqueeze(1), -torch.ones(len(probs), 1, dtype=torch.float64)
        )
        size = classes * self.num_bins
        gap = bin_sums(cells.flatten(), size, surplus.flatten())
        rows = bin_sums(cells.flatten(), size)
        hits = bin_sums(cells.flatten(), size, (probs - surplus).flatten())
        rate = hits / rows.clamp_min(1.0)
        together = (gap.sign()[cells] * surplus).sum(1).var(correction=0) * len(probs)
        apart = (rows * rate * (1 - rate)).sum()
        return float((together / apart).sqrt()) if float(apart) > 0 else 1.0


def kept_states(measures: Mapping[str, Measure], *, classes: bool) -> dict[str, State]:
    """For each measure, the rows that a bootstrap of it needs, where it has a fast form."""
    needed: dict[str, State] = {}
    for name, one in measures.items():
        state = one.build()[0]
        if one.kind == "mean" and isinstance(state, MeanState):
            needed[name] = RowState(state.quantity)
        elif one.kind == "selective" and isinstance(state, RankState):
            needed[name] = state
        elif one.kind == "calibration" and isinstance(state, BinState | RankState):
            needed[name] = RankState()
        elif one.kind == "calibration" and isinstance(state, ClassBinState) and classes:
            needed[name] = ClassCellState(state.num_bins)
    return needed


def resampled_values(
    measures: Mapping[str, Measure], kept: Mapping[str, State], counts: Counts
) -> dict[str, Floats]:
    """The measures, by name, of resampled sets of the rows kept."""
    sets: dict[int, Any] = {}  # what several measures share is resampled once
    values: dict[str, Floats] = {}
    for name, state in kept.items():
        one = measures[name]
        if isinstance(state, RowState):
            values[name] = _means(counts, state.joined("rows").cpu().numpy())
            continue
        if id(state) not in sets:
            sets[id(state)] = _resampled_set(state, counts)
        if one.kind == "selective":
            found = one.compute(sets[id(state)])
        else:
            assert one.error is not None
            found = one.error(_cells(one, sets[id(state)]))
        values[name] = found.numpy()
    return values


def _means(counts: Counts, rows: Floats) -> Floats:
    """The mean of each resampled set; infinite where it holds an infinite row."""
    infinite = np.isinf(rows)
    means: Floats = counts @ np.where(infinite, 0.0, rows) / counts.shape[1]
    if infinite.any():
        means[(counts[:, infinite] > 0).any(axis=1)] = np.inf
    return means


def _resampled_set(state: State, counts: Counts) -> RankState | Tensor:
    if isinstance(state, ClassCellState):
        return state.totals(counts)
    assert isinstance(state, RankState)
    order, score, loss = state.in_order()
    found = RankState.of(_ranked(score, loss, counts[:, order.numpy()]))
    found.loss = state.loss
    return found


def _cells(one: Measure, found: RankState | Tensor) -> Tensor:
    """The cells of a calibration error, of many resampled sets."""
    if isinstance(found, Tensor):
        return found
    state = one.build()[0]
    if not isinstance(state, BinState):
        assert one.cells is not None
        return one.cells(found)
    # Sorted rows fall into equal-width bins as ranges.
    ranked = found.ranked()
    inner = edges(state.num_bins)[1:]
    inner[-1] = torch.inf
    last = torch.searchsorted(ranked.score, inner, right=True)
    last = torch.cat((last.new_zeros(1), last))
    right = ranked.bounds.double() - ranked.values
    sums = (ranked.bounds.double(), ranked.scores, right)
    return torch.stack([each[:, last].diff() for each in sums], dim=-1)


def _ranked(score: Tensor, values: Tensor, counts: Counts) -> Ranked:
    """Ranked sums of resampled sets. Rows must already be in ascending order of score."""
    times = torch.from_numpy(counts)
    ends = torch.ones_like(score, dtype=torch.bool)
    torch.ne(score[1:], score[:-1], out=ends[:-1])
    last = ends.nonzero().squeeze(1)

    def sums(each: Tensor) -> Tensor:
        total = each.cumsum(1)
        if len(last) < len(score):
            total = total[:, last]
        return torch.cat((total.new_zeros(len(counts), 1), total), dim=1)

    return Ranked(
        score=score[last].double(),
        bounds=sums(times),
        values=sums(times * values.double()),
        scores=sums(times * score.double()),
    )
