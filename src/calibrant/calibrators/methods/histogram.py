"""Histogram binning: the share of hits in each bin of each class's probability."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Calibrator, Design, as_pair
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

    Events have bins of their own probability alone, m = (p̄ + 1/2)/2. Weights average 1, so that a
    and s count as rows of mean weight; bins of equal mass then hold equal weight.

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
    takes_events = True
    takes_weights = True

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

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        best = 1.0
        if self.inside == "shifted":
            best = fit_temperature(as_pair(odds), happened, weights=design.weights).value
        self.temperature_ = torch.tensor(1.0 / best, dtype=torch.float64, device=odds.device)
        scaled = (odds / self.temperature_.to(odds.dtype)).unsqueeze(1)
        self.edges_ = self._cut(scaled.t(), design.weights)
        # As one class, whose hits are the rows that happened.
        sums = _bin_sums(scaled, 1 - happened, self.edges_, self.num_bins, design.weights)
        self.values_ = self._values(*sums, 2)

    def _map_events(self, odds: Tensor) -> Tensor:
        scaled = (odds / self.temperature_.to(odds.dtype)).unsqueeze(1)
        shift = _look_up(scaled, self.edges_, self.values_)
        return (shift if self.inside == "constant" else scaled + shift).squeeze(1)

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        classes, bins, weights = logits.shape[1], self.num_bins, design.weights
        shifted = self.inside == "shifted"
        best = fit_temperature(logits, target, weights=weights).value if shifted else 1.0
        self.temperature_ = torch.tensor(1.0 / best, dtype=torch.float64, device=logits.device)
        odds = torch.cat([self._odds(logits[rows]) for rows in row_slices(logits.shape)])
        self.edges_ = self.common_edges_ = self._cut(odds.t(), weights)
        if self.binning == "mass":
            step = max(1, odds.numel() // _PAIRS)
            flat = odds.reshape(1, -1)[:, ::step]
            repeated = None if weights is None else weights.repeat_interleave(classes)[::step]
            self.common_edges_ = self._cut(flat, repeated)
        sums = _bin_sums(odds, target, self.edges_, bins, weights)
        self.values_ = self._values(*sums, classes)
        if self.binning == "mass":
            sums = _bin_sums(odds, target, self.common_edges_, bins, weights)
        count, mass, hits = (part.sum(0, keepdim=True) for part in sums)
        self.common_values_ = self._values(count, mass, hits, classes)
        counts = torch.bincount(target, weights, classes).double()
        self.weights_ = self.sharing / (counts + self.sharing)

    def _cut(self, scores: Tensor, weights: Tensor | None) -> Tensor:
        """Return the inner edges of the bins of each row of scores; one row if all are alike."""
        inner = torch.arange(1, self.num_bins, dtype=scores.dtype, device=scores.device)
        inner = inner / self.num_bins
        if self.binning == "width":
            return torch.logit(inner).unsqueeze(0)
        return _quantiles(scores, inner, weights)

    def _values(self, count: Tensor, mass: Tensor, hits: Tensor, classes: int) -> Tensor:
        """Return the log-odds of the bins' smoothed shares, or their shift of the model's."""
        least = 1e-12
        centres = (torch.arange(self.num_bins, device=count.device) + 0.5).to(count) / self.num_bins
        mean = torch.where(count > 0, mass / torch.where(count > 0, count, 1.0), centres).clamp(
            least, 1 - least
        )
        prior = 0.5 * (mean + 1.0 / classes)
        share = (hits + self.smoothing * prior) / (count + self.smoothing)
        if self.inside == "constant":
            return torch.logit(share)
        return torch.where(count > 0, torch.logit(share) - torch.logit(mean), 0.0)

    def _odds(self, logits: Tensor) -> Tensor:
        return log_odds(logits / self.temperature_.to(logits.dtype))

    def _map(self, logits: Tensor) -> Tensor:
        odds = self._odds(logits)
        by_class = _look_up(odds, self.edges_, self.values_)
        common = _look_up(odds, self.common_edges_, self.common_values_)
        mixed = torch.lerp(by_class, common, self.weights_.to(odds))
        return normalise_odds(mixed if self.inside == "constant" else odds + mixed)


def _places(odds: Tensor, edges: Tensor) -> Tensor:
    """Return the bin of each score, (K,N); edges are those of each class, or one row for all."""
    columns = odds.t().contiguous()
    rows = edges.to(odds).expand(odds.shape[1], -1).contiguous()
    return search_sorted(rows, columns)


def _look_up(odds: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    return values.to(odds).expand(odds.shape[1], -1).gather(1, _places(odds, edges)).t()


def _quantiles(scores: Tensor, shares: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return (C, len(shares)) places midway between neighbours in each row of scores.

    If an edge lay on a score, rounding would decide the bin of that score.
    """
    size = scores.shape[1]
    if weights is not None:
        cuts = []
        for row in scores:
            ordered, order = row.sort()
            reached = weights[order].cumsum(0)
            reached = reached / reached[-1]
            # The edge lies after the row whose share of the weight comes nearest.
            below = torch.searchsorted(reached, shares.double()).clamp(max=size - 1)
            before = (below - 1).clamp(min=0)
            nearer = (shares - reached[before]).abs() < (reached[below] - shares).abs()
            below = torch.where(nearer & (below > 0), before, below)
            cuts.append(0.5 * (ordered[below] + ordered[(below + 1).clamp(max=size - 1)]))
        return torch.stack(cuts)
    below = (shares * size).round().long().clamp(1, size) - 1
    above = (below + 1).clamp(max=size - 1)
    ordered = (row.sort().values for row in scores)
    return torch.stack([0.5 * (row[below] + row[above]) for row in ordered])


def _bin_sums(
    odds: Tensor, target: Tensor, edges: Tensor, bins: int, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum rows, probability and hits in each bin of each class, (K, bins) each.

    A label beyond the last class is a hit of none.
    """
    classes = odds.shape[1]
    size = classes * bins
    sums = [torch.zeros(size, dtype=torch.float64, device=odds.device) for _ in range(3)]
    first = bins * torch.arange(classes, device=odds.device).unsqueeze(1)
    for rows in row_slices(odds.shape):
        index = _places(odds[rows], edges) + first
        mass = odds[rows].t().sigmoid().double()
        has_class = target[rows] < classes
        labels = target[rows][has_class]
        hit = index[:, has_class].gather(0, labels.unsqueeze(0)).squeeze(0)
        repeated = row_weights = None
        if weights is not None:
            repeated = weights[rows].expand_as(mass).reshape(-1)
            row_weights = weights[rows][has_class]
            mass = mass * weights[rows]
        sums[0] += torch.bincount(index.reshape(-1), repeated, minlength=size)
        sums[1] += torch.bincount(index.reshape(-1), mass.reshape(-1), minlength=size)
        sums[2] += torch.bincount(hit, row_weights, minlength=size)
    count, mass, hits = (part.reshape(classes, bins) for part in sums)
    return count, mass, hits
