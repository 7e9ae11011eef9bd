"""Dirichlet kernels on the simplex, in log space and in blocks.

k(f; f_i) is the density at f of Dirichlet(f_i/h + 1), whose mode is f_i. With two classes it
is the Beta kernel. ln k(f; f_i) = ⟨f_i, ln f⟩/h + c_i(h), so one matrix product serves
every bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from calibrant.functional.arrays import row_slices

_PAIRS = 1 << 22  # numbers that a block of pairs may hold
_FLOOR = 1e-12
_NEVER = -1e30  # the logarithm of 0; finite, so that a single row gives no NaN


def log_constants(points: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Compute c_i(h) = ln Γ(1/h + K) − Σ_k ln Γ(f_ik/h + 1); (B,N) for bandwidths of (B,1,1)."""
    alpha = points / bandwidth + 1
    return torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)


def log_points(points: Tensor) -> Tensor:
    """Compute ln f, with exact zeros floored at 1e-12."""
    return points.clamp_min(_FLOOR).log()


def affinity(points: Tensor, logs: Tensor, rows: slice) -> Tensor:
    """Compute ⟨f_i, ln f_j⟩ for rows j against every i; next to −inf for i = j (leave one out)."""
    inner = logs[rows] @ points.t()
    inner.diagonal(rows.start).fill_(_NEVER)
    return inner


def pair_slices(count: int, width: int) -> Iterator[slice]:
    """Cut ``count`` rows of ``width`` numbers into slices that hold about four million."""
    return row_slices((count, width), _PAIRS)


def loo_log_likelihood(
    points: Tensor, logs: Tensor, bandwidths: Tensor, counts: Tensor | None = None
) -> Tensor:
    """Compute Σ_j ln(1/(N−1) Σ_{i≠j} k(f_j; f_i)) for each bandwidth, over rows in ``counts``."""
    number, classes = points.shape
    if counts is None:
        counts = torch.ones(number, dtype=torch.bool, device=points.device)
    widths = bandwidths.reshape(-1, 1, 1)
    constants = torch.cat(
        [
            log_constants(points[rows], widths)
            for rows in pair_slices(number, classes * len(widths))
        ],
        1,
    ).where(counts, _NEVER)
    total = torch.zeros_like(bandwidths)
    for rows in pair_slices(number, number * len(widths)):
        scores = affinity(points, logs, rows) / widths + constants.unsqueeze(1)
        total = total + torch.logsumexp(scores, dim=2).where(counts[rows], 0).sum(1)
    counted = counts.sum()
    return total - counted * torch.log((counted - 1).clamp_min(1).to(points.dtype))


def best_bandwidth(points: Tensor, logs: Tensor, counts: Tensor | None = None) -> Tensor:
    """Return the bandwidth of largest leave-one-out likelihood, without waiting for the device."""
    grid = torch.cat(
        (
            torch.logspace(-5, -1, 15, dtype=points.dtype, device=points.device),
            torch.linspace(0.2, 1.0, 5, dtype=points.dtype, device=points.device),
        )
    )
    return grid.gather(0, loo_log_likelihood(points, logs, grid, counts).argmax(0, keepdim=True))[0]


def choose_bandwidth(points: Tensor, *, rows: int = 2000) -> float:
    """Return the bandwidth of largest leave-one-out likelihood, on at most ``rows`` rows."""
    sample = points[:: max(1, -(-len(points) // rows))]
    return float(best_bandwidth(sample, log_points(sample)))


def conditional_means(points: Tensor, index: Tensor, size: int, bandwidth: float) -> Tensor:
    """Compute Σ_{i≠j} k(f_j; f_i) 1[index_i = c] / Σ_{i≠j} k(f_j; f_i): (N, size)."""
    means = points.new_zeros(len(points), size)
    constants, logs = log_constants(points, bandwidth), log_points(points)
    for rows in pair_slices(len(points), len(points)):
        weights = torch.softmax(affinity(points, logs, rows) / bandwidth + constants, dim=1)
        means[rows] = means[rows].index_add(1, index, weights)
    return means
