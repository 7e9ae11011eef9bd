"""Dirichlet kernels on the simplex, in log space and in blocks.

k(f; f_i) is the density at f of Dirichlet(f_i/h + 1): its mode is f_i. On two classes it
is the Beta kernel. ln k(f; f_i) = ⟨f_i, ln f⟩/h + c_i(h), so one matrix product serves
every bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_PAIRS = 1 << 22
_FLOOR = 1e-12


def log_constants(points: Tensor, bandwidth: float) -> Tensor:
    """c_i(h) = ln Γ(1/h + K) − Σ_k ln Γ(f_ik/h + 1)."""
    alpha = points / bandwidth + 1
    return torch.lgamma(alpha.sum(1)) - torch.lgamma(alpha).sum(1)


def log_points(points: Tensor) -> Tensor:
    """ln f, with exact zeros floored at 1e-12."""
    return points.clamp_min(_FLOOR).log()


def affinities(points: Tensor, logs: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """⟨f_i, ln f_j⟩ for blocks of j against every i; i = j is −inf (leave one out)."""
    step = max(1, _PAIRS // len(points))
    for begin in range(0, len(points), step):
        rows = slice(begin, min(begin + step, len(points)))
        inner = logs[rows] @ points.t()
        own = torch.arange(rows.start, rows.stop, device=points.device)
        inner[own - begin, own] = -torch.inf
        yield rows, inner


def loo_log_likelihood(points: Tensor, bandwidths: Tensor) -> Tensor:
    """Σ_j ln(1/(N−1) Σ_{i≠j} k(f_j; f_i)) for each bandwidth."""
    constants = [log_constants(points, float(h)) for h in bandwidths]
    total = torch.zeros(len(bandwidths), dtype=points.dtype, device=points.device)
    for _, inner in affinities(points, log_points(points)):
        for index, h in enumerate(bandwidths):
            total[index] += torch.logsumexp(inner / h + constants[index], dim=1).sum()
    count = len(points)
    return total - count * torch.log(torch.tensor(count - 1.0, dtype=points.dtype))


def choose_bandwidth(points: Tensor, *, rows: int = 2000) -> float:
    """The bandwidth of largest leave-one-out likelihood, on at most ``rows`` rows."""
    some = points[:: max(1, -(-len(points) // rows))]
    grid = torch.cat((torch.logspace(-5, -1, 15), torch.linspace(0.2, 1.0, 5)))
    return float(grid[loo_log_likelihood(some, grid.to(points)).argmax()])


def conditional_means(points: Tensor, index: Tensor, size: int, bandwidth: float) -> Tensor:
    """Σ_{i≠j} k(f_j; f_i) 1[index_i = c] / Σ_{i≠j} k(f_j; f_i): (N, size)."""
    means = points.new_zeros(len(points), size)
    constants = log_constants(points, bandwidth)
    for rows, inner in affinities(points, log_points(points)):
        weights = torch.softmax(inner / bandwidth + constants, dim=1)
        means[rows] = means[rows].index_add(1, index, weights)
    return means
