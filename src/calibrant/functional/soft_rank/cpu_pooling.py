"""Pool the soft rank's blocks on the CPU, by SciPy's compiled pooling of adjacent violators.

All rows are pooled in one call, laid end to end; places in the result count within a row.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Places: TypeAlias = NDArray[np.intp]


def pool_on_cpu(values: Tensor, strength: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute soft ranks of (rows, n) values, the sorting order, and each sorted place's block.

    Only the gaps between neighbours matter, and a gap of n places or more always parts two
    blocks: gaps are cut there, which keeps the largest values from swamping the smallest
    steps, and rows are set that far apart.
    """
    from scipy.optimize import isotonic_regression

    array = values.detach().numpy()
    rows, n = array.shape
    order = array.argsort(axis=1)
    at = _end_to_end(order)
    ordered = array.reshape(-1)[at].astype(np.float64).reshape(rows, n)
    scaled = np.zeros((rows, n))
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = ordered[:, 1:] - ordered[:, :-1]
        gaps /= strength
    np.fmax(gaps, 0.0, out=gaps)  # NaN: infinities that are equal, a tie
    np.minimum(gaps, n, out=gaps)
    gaps.cumsum(axis=1, out=scaled[:, 1:])
    shifted = scaled - np.arange(1.0, n + 1)
    if rows > 1:
        widths = scaled[:, -1] + n
        shifted += (widths.cumsum() - widths)[:, None]
    bounds: Places = isotonic_regression(shifted.reshape(-1)).blocks

    starts, sizes = bounds[:-1], bounds[1:] - bounds[:-1]
    first = (starts % n).repeat(sizes)
    last = ((bounds[1:] - 1) % n).repeat(sizes)
    # Within a block the values are measured from its first, so nothing large is subtracted.
    flat = scaled.reshape(-1)
    inside = flat - flat[starts].repeat(sizes)
    inside -= (np.add.reduceat(inside, starts) / sizes).repeat(sizes)
    inside += (first + last + 2) / 2.0
    broken = np.isnan(ordered[:, -1])  # NaN sorts last
    if broken.any():
        inside.reshape(rows, n)[broken] = np.nan
    ranks = np.empty(rows * n, array.dtype)
    ranks[at] = inside
    return (
        torch.from_numpy(ranks.reshape(rows, n)),
        torch.from_numpy(order),
        torch.from_numpy(first.reshape(rows, n)),
        torch.from_numpy(last.reshape(rows, n)),
    )


def centre_on_cpu(
    grad: Tensor, order: Tensor, first: Tensor, last: Tensor, strength: float
) -> Tensor:
    """Compute (grad − its mean over each block) / strength."""
    array, begins, ends = grad.detach().numpy(), first.numpy(), last.numpy()
    at = _end_to_end(order.numpy())
    centred = array.reshape(-1)[at].astype(np.float64)
    starts = np.flatnonzero(begins == np.arange(begins.shape[1]))
    sizes = ends.reshape(-1)[starts] - begins.reshape(-1)[starts] + 1
    centred -= (np.add.reduceat(centred, starts) / sizes).repeat(sizes)
    centred /= strength
    result = np.empty(at.size, array.dtype)
    result[at] = centred
    return torch.from_numpy(result.reshape(array.shape))


def _end_to_end(order: Places) -> Places:
    """Turn places within rows into places in all rows laid end to end."""
    rows, n = order.shape
    if rows > 1:
        order = order + np.arange(0, rows * n, n)[:, None]
    return order.reshape(-1)
