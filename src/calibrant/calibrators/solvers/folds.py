"""Folds of a cross-validation: spread over classes, and never splitting a cluster."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import InputError


def assign_folds(
    target: NDArray[np.int64],
    folds: int,
    seed: int,
    clusters: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return a fold for every row, the rows of each class spread over the folds.

    Args:
        target: (N,) labels.
        folds: The number of folds.
        seed: The seed of the draw.
        clusters: (N,) the number of each row's cluster, which is never split: whole clusters are
            spread instead, alike in their mean label and their size. Default: None (rows are
            independent).
    """
    generator = np.random.default_rng(seed)
    if clusters is not None:
        return _assign_clusters(target, folds, clusters, generator)
    shuffled = generator.permutation(len(target))
    by_class = shuffled[np.argsort(target[shuffled], kind="stable")]
    assigned = np.empty(len(target), dtype=np.int64)
    assigned[by_class] = np.arange(len(target)) % folds
    return assigned


def _assign_clusters(
    target: NDArray[np.int64],
    folds: int,
    clusters: NDArray[np.int64],
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    _, codes, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    codes = codes.reshape(-1)
    count = len(sizes)
    if count < 2:
        raise InputError("all rows are one cluster, which is never split: there are no folds")
    mean = np.bincount(codes, weights=target, minlength=count) / sizes
    level = np.round(4 * (mean - mean.min()) / max(float(np.ptp(mean)), 1e-12))
    order = np.lexsort((generator.random(count), -sizes, level))
    fold_of = np.empty(count, dtype=np.int64)
    # Back and forth, so that no fold gets the larger of every round.
    turn = np.arange(count) % (2 * folds)
    fold_of[order] = np.minimum(turn, 2 * folds - 1 - turn)
    assigned: NDArray[np.int64] = fold_of[codes]
    return assigned
