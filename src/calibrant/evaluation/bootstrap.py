"""Bootstrap over rows, many resampled sets at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.ranking import Ranked

_ELEMENTS = 1 << 21  # counts drawn at a time
_BUDGET = 20_000_000  # rows drawn in all before fewer resamples are taken


def affordable(num_rows: int, resamples: int) -> int:
    """As many resamples as asked for, fewer (but 100) where rows are very many."""
    return min(resamples, max(100, _BUDGET // max(num_rows, 1)))


def resample_counts(num_rows: int, resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each row is drawn: blocks of (some, N), each line summing to N."""
    generator = np.random.default_rng(seed)
    step = max(1, min(resamples, _ELEMENTS // num_rows))
    for begin in range(0, resamples, step):
        lines = min(step, resamples - begin)
        drawn = generator.integers(0, num_rows, size=(lines, num_rows), dtype=np.int64)
        drawn += np.arange(lines, dtype=np.int64)[:, None] * num_rows
        flat = np.bincount(drawn.ravel(), minlength=lines * num_rows)
        yield flat.reshape(lines, num_rows)


def resampled(score: Tensor, values: Tensor, counts: NDArray[np.int64]) -> Ranked:
    """Ranked sums of resampled sets. Rows must already be in ascending order of score."""
    times = torch.from_numpy(counts)
    ends = torch.ones_like(score, dtype=torch.bool)
    torch.ne(score[1:], score[:-1], out=ends[:-1])
    last = ends.nonzero().squeeze(1)

    def sums(each: Tensor) -> Tensor:
        total = each.cumsum(1)[:, last]
        return torch.cat((total.new_zeros(len(counts), 1), total), dim=1)

    return Ranked(
        score=score[last].double(),
        bounds=sums(times),
        values=sums(times * values.double()),
        scores=sums(times * score.double()),
    )


def percentiles(values: NDArray[np.float64], level: float) -> tuple[float, float]:
    """The central ``level`` of resampled values."""
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(values, (tail, 1.0 - tail))
    return float(low), float(high)
