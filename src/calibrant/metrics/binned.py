"""Top-label calibration error over equal-width bins: streams with three sums a bin."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from calibrant.functional.binning import bin_index, bin_sums, check_bins
from calibrant.functional.blocks import Block
from calibrant.functional.errors import InputError
from calibrant.metrics.base import State


@dataclass
class BinState(State):
    """Rows, sum of confidence and sum of correctness in each equal-width bin."""

    num_bins: int = 15
    totals: Tensor | None = field(default=None, init=False, repr=False)  # (M, 3)

    sums = ("totals",)

    def __post_init__(self) -> None:
        self.num_bins = check_bins(self.num_bins)

    def update(self, block: Block) -> None:
        """Take in one block of rows."""
        index = bin_index(block.confidence, self.num_bins)
        confidence = bin_sums(index, self.num_bins, block.confidence.double())
        # One count over (bin, right or wrong) gives both the rows and the right ones.
        by_outcome = bin_sums(index * 2 + block.correct, 2 * self.num_bins).view(-1, 2)
        self.add("totals", torch.stack((by_outcome.sum(1), confidence, by_outcome[:, 1]), dim=1))


def check_order(order: float) -> float:
    """The order p of a calibration error, at least 1 and finite."""
    if not 1 <= order < float("inf"):
        raise InputError(
            f"order must be a finite number of at least 1, found {order!r}; mce is the largest gap"
        )
    return float(order)


def gaps(totals: Tensor) -> tuple[Tensor, Tensor]:
    """Share of rows S_j/N and |A_j − C_j| of each bin; empty bins have a gap of 0.

    ``totals`` is (..., M, 3): rows, confidence and correctness of each bin, for one data
    set or for many resampled ones at once.
    """
    count, confidence, correct = totals.unbind(-1)
    gap = (correct - confidence).abs() / count.clamp_min(1.0)
    return count / count.sum(-1, keepdim=True), gap


def binned_error(totals: Tensor, order: float = 1.0) -> Tensor:
    """ECE_bin,p = (Σ_j S_j/N |A_j − C_j|^p)^(1/p), soft-calibration eq. 6."""
    share, gap = gaps(totals)
    if order == 1:
        return (share * gap).sum(-1)
    if order == float("inf"):
        return gap.amax(-1)
    return (share * gap**order).sum(-1) ** (1.0 / order)


def debiased_error(totals: Tensor, order: float) -> Tensor:
    """Binned calibration error less an estimate of its upward bias.

    Order 2 (Kumar et al. 2019): each bin's squared gap less the variance of its accuracy,
    A(1−A)/(n−1), unbiased for the squared error. Order 1: each bin's |gap| less how much
    |Normal(gap, variance)| exceeds it on average, 2|g| − E|Normal(g, s²)|. Bins of one row
    have no variance and count as they are; a negative total is reported as 0.
    """
    count, _, correct = totals.unbind(-1)
    share, gap = gaps(totals)
    mean = correct / count.clamp_min(1.0)
    variance = torch.where(
        count > 1, mean * (1 - mean) / (count - 1).clamp_min(1.0), torch.zeros_like(mean)
    )
    if order == 2:
        return (share * (gap**2 - variance)).sum(-1).clamp_min(0.0).sqrt()
    if order != 1:
        raise InputError(f"debiased_ece has order 1 or 2, found {order!r}")
    return (share * (2 * gap - folded_normal_mean(gap, variance.sqrt()))).sum(-1).clamp_min(0.0)


def chance_error(totals: Tensor) -> Tensor:
    """The ECE that perfect calibration shows on average: Σ_j E|Binomial(n_j, C_j)/n_j − C_j| n_j/N.

    De Moivre's closed form of a binomial's mean deviation, with ν = ⌊nC⌋ + 1:
    E|X − nC| = 2 ν (n over ν) C^ν (1 − C)^(n − ν + 1). Rows of a bin count as equally sure.
    """
    count, confidence, _ = totals.double().unbind(-1)
    chance = (confidence / count.clamp_min(1.0)).clamp(0.0, 1.0)
    number = (count * chance).floor() + 1
    other = (count - number).clamp_min(0.0)
    ways = torch.lgamma(count + 1) - torch.lgamma(number) - torch.lgamma(other + 1)
    log = ways + torch.special.xlogy(number, chance) + torch.special.xlogy(other + 1, 1 - chance)
    sure = (count == 0) | (number > count)
    deviation = torch.where(sure, torch.zeros_like(log), 2 * log.exp())
    return deviation.sum(-1) / count.sum(-1)


def folded_normal_mean(mean: Tensor, deviation: Tensor) -> Tensor:
    """E|X| for X ~ Normal(mean, deviation²)."""
    safe = deviation.clamp_min(1e-300)
    ratio = mean / safe
    spread = safe * (2 / torch.pi) ** 0.5 * torch.exp(-0.5 * ratio**2)
    folded = spread + mean * torch.special.erf(ratio / 2**0.5)
    return torch.where(deviation > 0, folded, mean.abs())
