"""Histogram binning: the share of hits in each bin of each class's probability."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.methods.temperature import fit_temperature
from calibrant.calibrators.solvers.one_vs_rest import log_odds, normalise_odds, search_sorted
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices
from calibrant.functional.binning import check_bins

_PAIRS = 1 << 22  # pairs from which the common edges of equal-mass bins are taken


class Histogram(Calibrator):
    """q_k ∝ the share of rows of class k among those whose p_k fell in the same bin.

    Zadrozny & Elkan (2001), one class against the rest. A bin of n rows, h of them hits, has
    the share (h + a·m)/(n + a), m = (p̄ + 1/K)/2 halfway between the bin's mean probability
    and the uniform one, so that no share is 0 or 1. A class of n_k rows mixes the log-odds of
    its own bins with those of bins over all classes, whose weight is s/(n_k + s); a class
    without rows has only the latter. Bins are right-closed.

    Args:
        num_bins: The number of bins. Default: 15 (ours: as in `calibrant.metrics.ece`).
        binning: Bins of equal ``"width"`` or equal ``"mass"``. Default: 'width' (ours: as in
            `calibrant.metrics.ece`).
        inside: ``"constant"`` is the method as published: all probabilities in a bin become
            one, which forgets the order of the many small ones of many classes. ``"shifted"``
            first divides the logits by the best temperature, then moves a bin's log-odds by
            the difference between its share and its mean probability: scaling, then binning
            (Kumar et al. 2019), the order inside a bin kept. Default: 'shifted' (ours: keeps
            the order).
        smoothing: a, the rows that m counts as. Default: 1.0 (ours: the least that keeps
            shares off 0 and 1).
        sharing: s, the rows that the bins of all classes count as. Default: 100.0 (ours: a
            class with fewer rows leans on the others).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "histogram"

    edges_: Tensor
    values_: Tensor
    common_edges_: Tensor
    common_values_: Tensor
    weights_: Tensor
    temperature_: Tensor

    def __init__(
        self,
        *,
        num_bins: int = 15,
        binning: str = "width",
        inside: str = "shifted",
        smoothing: float = 1.0,
        sharing: float = 100.0,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if binning not in ("width", "mass"):
            raise InputError(f"binning must be 'width' or 'mass', found {binning!r}")
        if inside not in ("constant", "shifted"):
            raise InputError(f"inside must be 'constant' or 'shifted', found {inside!r}")
        if not (smoothing > 0 and sharing > 0):
            raise InputError(
                f"smoothing and sharing must be positive, found {smoothing} and {sharing}"
            )
        self.num_bins, self.binning, self.inside = check_bins(num_bins), binning, inside
        self.smoothing, self.sharing = smoothing, sharing
        for name in ("edges_", "values_", "common_edges_", "common_values_", "weights_"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        self.register_buffer("temperature_", torch.ones((), dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        classes, bins = logits.shape[1], self.num_bins
        best = fit_temperature(logits, target).value if self.inside == "shifted" else 1.0
        self.temperature_ = torch.tensor(1.0 / best, dtype=torch.float64, device=logits.device)
        odds = torch.cat([self._odds(logits[rows]) for rows in row_slices(logits.shape)])
        inner = torch.arange(1, bins, dtype=odds.dtype, device=odds.device) / bins
        if self.binning == "width":
            self.edges_ = self.common_edges_ = torch.logit(inner).unsqueeze(0)
        else:
            self.edges_ = _quantiles(odds.t(), inner)
            flat = odds.reshape(1, -1)
            self.common_edges_ = _quantiles(flat[:, :: max(1, flat.shape[1] // _PAIRS)], inner)
        sums = _bin_sums(odds, target, self.edges_, bins)
        self.values_ = self._values(*sums, classes)
        if self.binning == "mass":
            sums = _bin_sums(odds, target, self.common_edges_, bins)
        count, mass, hits = (part.sum(0, keepdim=True) for part in sums)
        self.common_values_ = self._values(count, mass, hits, classes)
        counts = torch.bincount(target, minlength=classes).double()
        self.weights_ = self.sharing / (counts + self.sharing)

    def _values(self, count: Tensor, mass: Tensor, hits: Tensor, classes: int) -> Tensor:
        """Return the log-odds of the bins' smoothed shares, or their shift of the model's."""
        least = 1e-12
        centres = (torch.arange(self.num_bins, device=count.device) + 0.5).to(count) / self.num_bins
        mean = torch.where(count > 0, mass / count.clamp_min(1), centres).clamp(least, 1 - least)
        prior = 0.5 * (mean + 1.0 / classes)
        share = (hits + self.smoothing * prior) / (count + self.smoothing)
        if self.inside == "constant":
            return torch.logit(share)
        return torch.where(count > 0, torch.logit(share) - torch.logit(mean), 0.0)

    def _odds(self, logits: Tensor) -> Tensor:
        return log_odds(logits / self.temperature_.to(logits.dtype))

    def _map(self, logits: Tensor) -> Tensor:
        odds = self._odds(logits)
        own = _look_up(odds, self.edges_, self.values_)
        common = _look_up(odds, self.common_edges_, self.common_values_)
        mixed = torch.lerp(own, common, self.weights_.to(odds))
        return normalise_odds(mixed if self.inside == "constant" else odds + mixed)


def _places(odds: Tensor, edges: Tensor) -> Tensor:
    """Return the bin of each score, (K,N); edges are those of each class, or one row for all."""
    columns = odds.t().contiguous()
    rows = edges.to(odds).expand(odds.shape[1], -1).contiguous()
    return search_sorted(rows, columns)


def _look_up(odds: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    return values.to(odds).expand(odds.shape[1], -1).gather(1, _places(odds, edges)).t()


def _quantiles(scores: Tensor, shares: Tensor) -> Tensor:
    """Return (C, len(shares)) places midway between neighbours in each row of scores.

    If an edge lay on a score, rounding would decide the bin of that score.
    """
    size = scores.shape[1]
    below = (shares * size).round().long().clamp(1, size) - 1
    above = (below + 1).clamp(max=size - 1)
    ordered = (row.sort().values for row in scores)
    return torch.stack([0.5 * (row[below] + row[above]) for row in ordered])


def _bin_sums(
    odds: Tensor, target: Tensor, edges: Tensor, bins: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum rows, probability and hits in each bin of each class, (K, bins) each."""
    classes = odds.shape[1]
    size = classes * bins
    sums = [torch.zeros(size, dtype=torch.float64, device=odds.device) for _ in range(3)]
    first = bins * torch.arange(classes, device=odds.device).unsqueeze(1)
    for rows in row_slices(odds.shape):
        index = _places(odds[rows], edges) + first
        mass = odds[rows].t().sigmoid().double()
        hit = index.gather(0, target[rows].unsqueeze(0)).squeeze(0)
        sums[0] += torch.bincount(index.reshape(-1), minlength=size)
        sums[1] += torch.bincount(index.reshape(-1), mass.reshape(-1), minlength=size)
        sums[2] += torch.bincount(hit, minlength=size)
    count, mass, hits = (part.reshape(classes, bins) for part in sums)
    return count, mass, hits
