"""Bootstrap over rows, with many resampled sets computed at once.

The number of times a resampled set holds each row defines the set, so a block of sets is a
matrix of counts. Where rows have weights or come in clusters, whole clusters are drawn, and a
count is a weight (`resample_clusters`). A mean is then a matrix product, a ranked quantity a
cumulative sum, and the cells of class-wise bins a sparse product. Measures without such a form
are computed set by set (``intervals.half_samples``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.binning import bin_index, edges
from calibrant.functional.blocks import Block
from calibrant.functional.ranking import Ranked
from calibrant.metrics.base import Measure, State
from calibrant.metrics.classwise import ClassBinState
from calibrant.metrics.means import MeanState, RowState
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.toplabel import BinState

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64] | Floats

_BLOCK_COUNTS = 1 << 20  # counts drawn at a time
_MOST_ROWS_DRAWN = 20_000_000  # over all resamples; above it, fewer resamples are drawn
MOST_CELLS = 20_000_000  # scores above which the cell of every score is not kept
SAMPLED_CELLS = 1_000_000  # scores whose cells show the coupling well enough
_GOLDEN, _MASK = 2654435761, (1 << 32) - 1  # Knuth's multiplicative hash


def limit_resamples(num_rows: int, resamples: int) -> int:
    """Return ``resamples``, or fewer (at least 100) where there are very many rows."""
    return min(resamples, max(100, _MOST_ROWS_DRAWN // max(num_rows, 1)))


def resample_counts(num_rows: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield how often each row is drawn, in blocks of shape (sets, N); each line sums to N."""
    generator = np.random.default_rng(seed)
    step = max(1, min(resamples, _BLOCK_COUNTS // num_rows))
    for begin in range(0, resamples, step):
        lines = min(step, resamples - begin)
        drawn = generator.integers(0, num_rows, size=(lines, num_rows), dtype=np.int64)
        drawn += np.arange(lines, dtype=np.int64)[:, None] * num_rows
        flat = np.bincount(drawn.ravel(), minlength=lines * num_rows)
        yield flat.reshape(lines, num_rows)


def resample_clusters(
    clusters: NDArray[np.int64], weights: Floats | None, resamples: int, seed: int
) -> Iterator[Floats]:
    """Yield the weight of each row in sets of clusters drawn with replacement; lines sum to N.

    Args:
        clusters: The number of each row's cluster, 0 to G−1.
        weights: The weight of each row; None if rows count the same.
        resamples: The number of sets.
        seed: The seed of the draws.
    """
    num_rows = len(clusters)
    step = max(1, _BLOCK_COUNTS // num_rows)
    for counts in resample_counts(int(clusters.max()) + 1, resamples, seed):
        for begin in range(0, len(counts), step):
            drawn = counts[begin : begin + step, clusters].astype(np.float64)
            if weights is not None:
                drawn *= weights
            yield drawn * (num_rows / drawn.sum(1, keepdims=True))


def percentile_interval(values: Floats, level: float) -> tuple[float, float]:
    """Return the interval that holds the central ``level`` of resampled values."""
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(values, (tail, 1.0 - tail))
    return float(low), float(high)


def mean_interval(rows: Floats, level: float) -> tuple[float, float]:
    """Return the interval of a mean that the bias-corrected, accelerated bootstrap converges to.

    The ABC interval of DiCiccio & Efron (1992, "More accurate confidence intervals in exponential
    families"), which needs no resamples: with t Student's quantile, s the standard error and
    a = Σ(x − x̄)³ / (6 (Σ(x − x̄)²)^(3/2)) the acceleration, the ends are

        x̄ + s w / (1 − a w)²,  w = a ± t,

    so that the longer tail of skewed rows gets the longer side.

    Args:
        rows: (N,) finite values, N >= 2.
        level: The confidence level.
    """
    mean = float(rows.mean())
    off = rows - mean
    squares = float(off @ off)
    if squares == 0.0:
        return mean, mean
    cubes = float(np.einsum("i,i,i->", off, off, off))
    return moment_interval(len(rows), mean, squares, cubes, level)


def moment_interval(
    number: int, mean: float, squares: float, cubes: float, level: float
) -> tuple[float, float]:
    """Return the interval of `mean_interval` from sums over the rows.

    Args:
        number: N, at least 2.
        mean: x̄.
        squares: Σ (x − x̄)², not 0.
        cubes: Σ (x − x̄)³.
        level: The confidence level.
    """
    from scipy.special import stdtrit

    error = (squares / number / (number - 1)) ** 0.5
    pull = cubes / (6 * squares**1.5)
    reach = float(stdtrit(number - 1, 0.5 + level / 2))
    places = np.clip(pull + np.array((-reach, reach)), *_turning(pull))
    low, high = mean + error * places / (1 - pull * places) ** 2
    return float(low), float(high)


def _turning(pull: float) -> tuple[float, float]:
    """Return the places between which w / (1 − a w)² grows, with room to its pole."""
    if abs(pull) < 1e-6:
        return -np.inf, np.inf
    turn, stop = -1 / pull, 0.5 / pull
    return (turn, stop) if pull > 0 else (stop, turn)


@dataclass
class ClassCellState(State):
    """The cell (class and bin) of every probability of every row, or of a sample of the rows.

    Args:
        num_bins: The number of bins of a class.
        every: Keep one of so many rows, chosen by a hash of its position.
    """

    num_bins: int = 15
    every: int = 1
    seen: int = field(default=0, init=False, repr=False)
    cells: list[Tensor] = field(default_factory=list, init=False, repr=False)
    probs: list[Tensor] = field(default_factory=list, init=False, repr=False)
    targets: list[Tensor] = field(default_factory=list, init=False, repr=False)

    lists = ("cells", "probs", "targets")

    def update(self, block: Block) -> None:
        """Add one block of rows."""
        probs = block.probs if block.class_dim == 1 else block.probs.t()
        target = block.target
        if self.every > 1:
            place = torch.arange(self.seen, self.seen + block.num_rows)
            self.seen += block.num_rows
            chosen = ((place * _GOLDEN & _MASK) * self.every <= _MASK).nonzero().squeeze(1)
            if not chosen.numel():
                return
            chosen = chosen.to(probs.device)
            probs, target = probs[chosen], target[chosen]
        probs = probs.contiguous().cpu()
        index = bin_index(probs.flatten(), self.num_bins).view_as(probs)
        self.cells.append((index + torch.arange(block.num_classes) * self.num_bins).int())
        self.probs.append(probs.clone())
        self.targets.append(target.cpu())

    def totals(self, counts: Counts) -> Tensor:
        """Return (R, K, M, 3), the totals of R resampled sets (see ClassBinState for one set)."""
        from scipy.sparse import csr_matrix

        cells, probs = self.concatenate("cells").numpy(), self.concatenate("probs").double().numpy()
        target = self.concatenate("targets").numpy()
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

    def residuals(self) -> tuple[NDArray[np.int64], Floats]:
        """Return (N, K) the cell of each score, an index into (K, M), and y − p."""
        cells, probs = self.concatenate("cells").long(), self.concatenate("probs").double()
        target = self.concatenate("targets").unsqueeze(1)
        ones = torch.ones(len(probs), 1, dtype=torch.float64)
        return cells.numpy(), (-probs).scatter_add(1, target, ones).numpy()

    def coupling(self, totals: Tensor) -> float:
        """Return how much more a class-wise error varies than if its cells were independent.

        A row has one label, so a label that one class's cell lacks appears in another's. If
        both gaps have the same sign, their noise adds up instead of averaging out. The spread
        of Σ_k sign(gap of the cell of p_k)·(p_k − y_k) over rows measures by how much.

        Args:
            totals: (K, M, 3): rows, mass and hits of each cell, of all rows (see ClassBinState).
        """
        if not self.cells:
            return 1.0
        cells, probs = self.concatenate("cells"), self.concatenate("probs").double()
        rows, mass, hits = totals.cpu().double().flatten(0, 1).unbind(1)
        sign = (mass - hits).sign()[cells.flatten()].view_as(probs)
        surplus = (sign * probs).sum(1)
        surplus -= sign.gather(1, self.concatenate("targets").unsqueeze(1)).squeeze(1)
        rate = hits / rows.clamp_min(1.0)
        apart = float((rows * rate * (1 - rate)).sum()) / float(rows.sum()) * probs.shape[1]
        if not apart > 0 or len(surplus) < 2:
            return 1.0
        return float((surplus.var(correction=0) / apart).sqrt())


def make_row_states(measures: Mapping[str, Measure], *, classes: bool) -> dict[str, State]:
    """Return, for each measure that has a fast form, a state that keeps the rows it resamples.

    Args:
        measures: The measures by name.
        classes: Include measures of class-wise bins, whose states keep a cell per score.
    """
    states: dict[str, State] = {}
    for name, measure in measures.items():
        state = measure.build()[0]
        if measure.kind == "mean" and isinstance(state, MeanState):
            states[name] = RowState(state.quantity)
        elif measure.kind == "selective" and isinstance(state, RankState):
            states[name] = state
        elif measure.kind == "calibration" and isinstance(state, BinState | RankState):
            states[name] = RankState()
        elif measure.kind == "calibration" and isinstance(state, ClassBinState) and classes:
            states[name] = ClassCellState(state.num_bins)
    return states


def share_states(states: Iterable[State]) -> dict[tuple[Any, ...], State]:
    """Return one state for all that have the same options, by those options."""
    shared: dict[tuple[Any, ...], State] = {}
    for state in states:
        shared.setdefault(state.options(), state)
    return shared


def resample_measures(
    measures: Mapping[str, Measure], states: Mapping[str, State], counts: Counts
) -> dict[str, Floats]:
    """Return each measure's values, one for each resampled set of the rows in its state."""
    sets: dict[int, Any] = {}  # a state that several measures share is resampled once
    values: dict[str, Floats] = {}
    for name, state in states.items():
        measure = measures[name]
        if isinstance(state, RowState):
            values[name] = _means(counts, state.concatenate("rows").cpu().numpy())
            continue
        if id(state) not in sets:
            sets[id(state)] = _resampled_set(state, counts)
        if measure.kind == "selective":
            resampled = measure.compute(sets[id(state)])
        else:
            assert measure.error is not None
            resampled = measure.error(_cells(measure, sets[id(state)]))
        values[name] = resampled.numpy()
    return values


def _means(counts: Counts, rows: Floats) -> Floats:
    """Return the mean of each resampled set; infinite if the set holds an infinite row."""
    infinite = np.isinf(rows)
    means: Floats = counts @ np.where(infinite, 0.0, rows) / counts.shape[1]
    if infinite.any():
        means[(counts[:, infinite] > 0).any(axis=1)] = np.inf
    return means


def _resampled_set(state: State, counts: Counts) -> RankState | Tensor:
    if isinstance(state, ClassCellState):
        return state.totals(counts)
    assert isinstance(state, RankState)
    order, score, loss = state.sort_rows()
    resampled = RankState.from_ranked(_rank_resamples(score, loss, counts[:, order.numpy()]))
    resampled.loss = state.loss
    return resampled


def _cells(measure: Measure, resampled: RankState | Tensor) -> Tensor:
    """Return the cells of a calibration error for all resampled sets."""
    if isinstance(resampled, Tensor):
        return resampled
    state = measure.build()[0]
    if not isinstance(state, BinState):
        assert measure.cells is not None
        return measure.cells(resampled)
    # The rows are sorted, so each equal-width bin is a range of them.
    ranked = resampled.rank_rows()
    inner = edges(state.num_bins)[1:]
    inner[-1] = torch.inf
    last = torch.searchsorted(ranked.score, inner, right=True)
    last = torch.cat((last.new_zeros(1), last))
    right = ranked.bounds.double() - ranked.values
    sums = (ranked.bounds.double(), ranked.scores, right)
    return torch.stack([cumulative[:, last].diff() for cumulative in sums], dim=-1)


def _rank_resamples(score: Tensor, values: Tensor, counts: Counts) -> Ranked:
    """Return the ranked sums of resampled sets; rows must be in ascending order of score."""
    times = torch.from_numpy(counts)
    ends = torch.ones_like(score, dtype=torch.bool)
    torch.ne(score[1:], score[:-1], out=ends[:-1])
    last = ends.nonzero().squeeze(1)

    def sums(values: Tensor) -> Tensor:
        total = values.cumsum(1)
        if len(last) < len(score):
            total = total[:, last]
        return torch.cat((total.new_zeros(len(counts), 1), total), dim=1)

    return Ranked(
        score=score[last].double(),
        bounds=sums(times),
        values=sums(times * values.double()),
        scores=sums(times * score.double()),
    )
