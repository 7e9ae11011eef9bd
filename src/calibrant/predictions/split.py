"""Choose the rows of a seeded, stratified split."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.core.errors import InputError


def split_rows(
    num_rows: int, fraction: float, *, seed: int, strata: npt.NDArray[Any] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split row numbers into two disjoint, ascending sets.

    The first has ``round(fraction · N)`` rows. With strata, each stratum of n rows gives it
    ``floor`` or ``ceil`` of ``fraction · n`` (largest remainders first, ties by the seed).

    Args:
        num_rows: The number of rows N.
        fraction: The share of rows in the first set, or their number if it is whole.
        seed: The seed of the draw.
        strata: The stratum of each row, such as its label; None for a plain draw.
    """
    count, share = _count_rows(num_rows, fraction)
    generator = np.random.default_rng(seed)
    order = generator.permutation(num_rows)
    chosen = np.zeros(num_rows, dtype=bool)
    if strata is None:
        chosen[order[:count]] = True
    else:
        _, members, sizes = np.unique(strata, return_inverse=True, return_counts=True)
        quota = _quotas(sizes, count, share, generator)
        shuffled = members.reshape(-1)[order]
        by_stratum = np.argsort(shuffled, kind="stable")
        starts = np.cumsum(sizes) - sizes
        grouped = shuffled[by_stratum]
        rank = np.arange(num_rows) - starts[grouped]
        chosen[order[by_stratum[rank < quota[grouped]]]] = True
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def split_clusters(
    codes: npt.NDArray[np.int64], fraction: float, *, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split row numbers into two disjoint, ascending sets that share no cluster.

    Clusters are drawn in a random order until the first set has ``fraction · N`` rows, or as near
    as whole clusters come to that.

    Args:
        codes: The number of each row's cluster, 0 to G−1.
        fraction: The share of rows in the first set, or their number if it is whole.
        seed: The seed of the draw.
    """
    count, _ = _count_rows(len(codes), fraction)
    sizes = np.bincount(codes)
    if len(sizes) < 2:
        raise InputError("all rows are one cluster, which is never split: there is nothing to draw")
    order = np.random.default_rng(seed).permutation(len(sizes))
    taken = np.cumsum(sizes[order])
    number = int(np.argmin(np.abs(taken - count))) + 1
    chosen = np.isin(codes, order[: min(number, len(sizes) - 1)])
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def _count_rows(num_rows: int, fraction: float) -> tuple[int, float]:
    """Return how many rows the first set takes, and their share."""
    if isinstance(fraction, (int, np.integer)) and not isinstance(fraction, bool) and fraction >= 1:
        if fraction >= num_rows:
            raise InputError(
                f"too few rows: a part of {fraction} rows and a rest need at least "
                f"{fraction + 1}, found {num_rows}"
            )
        return int(fraction), int(fraction) / num_rows
    if not isinstance(fraction, (float, np.floating)) or not 0 < fraction < 1:
        raise InputError(
            f"fraction must be between 0 and 1 (or a whole number of rows), found {fraction!r}"
        )
    count = int(np.floor(num_rows * float(fraction) + 0.5))
    if not 0 < count < num_rows:
        raise InputError(f"too few rows: {num_rows} rows split at {fraction} leave one part empty")
    return count, float(fraction)


def _quotas(
    sizes: npt.NDArray[np.int64], count: int, share: float, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Compute the rows of each stratum in the first set; they add up to ``count``."""
    exact = np.round(sizes * share, 9)  # 0.29 · 100 is 28.999999999999996
    quota = np.floor(exact).astype(np.int64)
    by_remainder = np.lexsort((generator.random(len(sizes)), quota - exact))
    quota[by_remainder[: count - int(quota.sum())]] += 1
    return quota
