"""Dirichlet kernels on the simplex, in log space and in blocks.

k(f; f_i) is the density at f of Dirichlet(f_i/h + 1): its mode is f_i. On two classes it
is the Beta kernel. ln k(f; f_i) = ⟨f_i, ln f⟩/h + c_i(h), so one matrix product serves
every bandwidth.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PAIRS = 1 << 22
_FLOOR = 1e-12
_NEVER = -1e30  # of a logarithm; finite, so that a row with no other one is no NaN


def log_constants(points: Tensor, bandwidth: float | Tensor) -> Tensor:
    """c_i(h) = ln Γ(1/h + K) − Σ_k ln Γ(f_ik/h + 1); of bandwidths (B,1,1), (B,N)."""
    alpha = points / bandwidth + 1
    return torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)


def log_points(points: Tensor) -> Tensor:
    """ln f, with exact zeros floored at 1e-12."""
    return points.clamp_min(_FLOOR).log()


def affinity(points: Tensor, logs: Tensor, rows: slice) -> Tensor:
    """⟨f_i, ln f_j⟩ for some j against every i; i = j is next to −inf (leave one out)."""
    inner = logs[rows] @ points.t()
    inner.diagonal(rows.start).fill_(_NEVER)
    return inner


def blocks(count: int, width: int) -> list[slice]:
    """Slices of ``count`` rows, so that none holds much more than 4M numbers, ``width`` a row."""
    step = max(1, _PAIRS // width)
    return [slice(begin, min(begin + step, count)) for begin in range(0, count, step)]


def loo_log_likelihood(
    points: Tensor, logs: Tensor, bandwidths: Tensor, counts: Tensor | None = None
) -> Tensor:
    """Σ_j ln(1/(N−1) Σ_{i≠j} k(f_j; f_i)) for each bandwidth, over rows in ``counts``."""
    number, classes = points.shape
    if counts is None:
        counts = torch.ones(number, dtype=torch.bool, device=points.device)
    widths = bandwidths.reshape(-1, 1, 1)
    constants = torch.cat(
        [log_constants(points[rows], widths) for rows in blocks(number, classes * len(widths))], 1
    ).where(counts, _NEVER)
    total = torch.zeros_like(bandwidths)
    for rows in blocks(number, number * len(widths)):
        scores = affinity(points, logs, rows) / widths + constants.unsqueeze(1)
        total = total + torch.logsumexp(scores, dim=2).where(counts[rows], 0).sum(1)
    kept = counts.sum()
    return total - kept * torch.log((kept - 1).clamp_min(1).to(points.dtype))


def best_bandwidth(points: Tensor, logs: Tensor, counts: Tensor | None = None) -> Tensor:
    """The bandwidth of largest leave-one-out likelihood, without waiting for the device."""
    grid = torch.cat(
        (
            torch.logspace(-5, -1, 15, dtype=points.dtype, device=points.device),
            torch.linspace(0.2, 1.0, 5, dtype=points.dtype, device=points.device),
        )
    )
    return grid.gather(0, loo_log_likelihood(points, logs, grid, counts).argmax(0, keepdim=True))[0]


def choose_bandwidth(points: Tensor, *, rows: int = 2000) -> float:
    """The bandwidth of largest leave-one-out likelihood, on at most ``rows`` rows."""
    some = points[:: max(1, -(-len(points) // rows))]
    return float(best_bandwidth(some, log_points(some)))


def conditional_means(points: Tensor, index: Tensor, size: int, bandwidth: float) -> Tensor:
    """Σ_{i≠j} k(f_j; f_i) 1[index_i = c] / Σ_{i≠j} k(f_j; f_i): (N, size)."""
    means = points.new_zeros(len(points), size)
    constants, logs = log_constants(points, bandwidth), log_points(points)
    for rows in blocks(len(points), len(points)):
        weights = torch.softmax(affinity(points, logs, rows) / bandwidth + constants, dim=1)
        means[rows] = means[rows].index_add(1, index, weights)
    return means
