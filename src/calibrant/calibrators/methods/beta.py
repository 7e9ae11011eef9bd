"""Beta calibration: three numbers for each class, strongest on binary problems."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.solvers.one_vs_rest import (
    log_odds,
    log_sigmoid,
    minimise,
    normalise_odds,
)
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices

_SHARING, _SHARING_OF_TWO = 20.0, 5.0
_ELEMENTS = 1 << 18  # of a block of classes, whose features stay in the cache
_PAIRS = 1 << 17  # pairs beyond which the common map gathers them in cells
_CELLS = 1 << 16  # cells on each side of 0
_FINE = 2000.0  # cells to a unit of asinh: 0.0005 wide at log-odds 0, 0.005 at −10


class Beta(Calibrator):
    """logit q_k = a_k ln p_k − b_k ln(1 − p_k) + c_k with a, b ≥ 0; q is then normalised.

    Kull et al. (2017), each class against the rest: the exact map when the scores of hits
    and of misses have beta distributions; a = b = 1, c = 0 leaves the class alone. First the
    pairs of all classes are fitted with a penalty of ridge/2·|θ − (1, 1, 0)|². Each class
    then starts from that common θ₀ and pays ½(θ − θ₀)ᵀP(θ − θ₀), P = (s/n)·H + ridge·I, H
    the class's own Hessian at θ₀ and n the smaller of its hits and misses: as if s more hits
    had agreed with the common map. Both problems are strictly convex and are solved exactly
    (with very many pairs, misses whose log-odds agree to three digits are merged at their
    mean, which moves no coefficient by 1e-5). A class without rows stays near the common map.

    Args:
        ridge: The ridge of both fits. Default: 0.1 (ours: bounds separable classes and moves
            others hardly).
        sharing: s, the hits that the common map counts as; None is 20, or 5 for two classes,
            where the common map is a temperature and knows no shift between them. Default: None
            (ours: a class of few hits leans on the others).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "beta"

    coefficients_: Tensor

    def __init__(
        self, *, ridge: float = 0.1, sharing: float | None = None, from_logits: bool = True
    ) -> None:
        super().__init__(from_logits=from_logits)
        if not (ridge > 0 and (sharing is None or sharing >= 0)):
            raise InputError(
                f"ridge must be positive and sharing not negative, found {ridge} and {sharing}"
            )
        self.ridge, self.sharing = ridge, sharing
        self.register_buffer("coefficients_", torch.zeros(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        rows, classes = logits.shape
        odds = torch.cat([log_odds(logits[part]) for part in row_slices(logits.shape)])
        every = torch.arange(classes, device=odds.device)
        alone = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, device=odds.device)
        places, pair_hits, times = common_pairs(odds, target)
        common = fit_beta(places, pair_hits, alone, ridge=self.ridge, sharing=0.0, times=times)[0]
        sharing = self.sharing
        if sharing is None:
            sharing = _SHARING if classes > 2 else _SHARING_OF_TWO
        step = max(1, _ELEMENTS // rows)
        fitted = []
        for k in range(0, classes, step):
            block = odds[:, k : k + step].t().double().contiguous()
            hits = (every[k : k + step].unsqueeze(1) == target).double()
            fitted.append(fit_beta(block, hits, common, ridge=self.ridge, sharing=sharing))
        self.coefficients_ = torch.cat(fitted)

    def _map(self, logits: Tensor) -> Tensor:
        odds = log_odds(logits)
        a, b, c = self.coefficients_.to(odds).unbind(1)
        return normalise_odds(a * log_sigmoid(odds) - b * log_sigmoid(-odds) + c)


def common_pairs(odds: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (1,M) log-odds of the pairs of all classes, their hits, and how many each counts."""
    true = odds.gather(1, target.unsqueeze(1)).double().t()
    if odds.numel() <= _PAIRS:
        every = torch.arange(odds.shape[1], device=odds.device)
        hits = (target.unsqueeze(1) == every).double().reshape(1, -1)
        return odds.double().reshape(1, -1), hits, torch.ones_like(hits)
    counts, totals = (true.new_zeros(2 * _CELLS) for _ in range(2))
    for part in row_slices(odds.shape):
        block = odds[part].reshape(-1)
        cell = block.asinh().mul_(_FINE).round_().clamp_(-_CELLS, _CELLS - 1).long() + _CELLS
        counts += torch.bincount(cell, minlength=2 * _CELLS)
        totals += torch.bincount(cell, block.double(), 2 * _CELLS)
    cell = true[0].to(odds.dtype).asinh().mul_(_FINE).round_().clamp_(-_CELLS, _CELLS - 1).long()
    counts -= torch.bincount(cell + _CELLS, minlength=2 * _CELLS)
    totals -= torch.bincount(cell + _CELLS, true[0], 2 * _CELLS)
    filled = counts > 0
    means = (totals[filled] / counts[filled]).unsqueeze(0)
    hits = torch.cat((torch.ones_like(true), torch.zeros_like(means)), 1)
    times = torch.cat((torch.ones_like(true), counts[filled].unsqueeze(0)), 1)
    return torch.cat((true, means), 1), hits, times


def fit_beta(
    odds: Tensor,
    hits: Tensor,
    centre: Tensor,
    *,
    ridge: float,
    sharing: float,
    times: Tensor | None = None,
) -> Tensor:
    """Fit C penalised regressions on (C,N) log-odds and 0/1 hits; return (C,3) coefficients.

    Args:
        odds: (C,N) log-odds.
        hits: (C,N), 1 for a hit.
        centre: (3,), the coefficients that the penalty draws to.
        ridge: The ridge of the penalty.
        sharing: The hits that the centre counts as.
        times: (C,N), how often each pair counts. Default: None (once).
    """
    features = torch.stack((log_sigmoid(odds), -log_sigmoid(-odds), torch.ones_like(odds)), dim=1)
    linear = (features * hits.unsqueeze(1)).sum(2)
    start = centre.expand(len(odds), 3)

    def likelihood(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        score = torch.bmm(theta.unsqueeze(1), features).squeeze(1)
        q = score.sigmoid()
        loss, spread = softplus(score), q * (1.0 - q)
        if times is not None:
            loss, q, spread = loss * times, q * times, spread * times
        value = loss.sum(1) - (theta * linear).sum(1)
        gradient = torch.bmm(features, q.unsqueeze(2)).squeeze(2) - linear
        weighted = features * spread.unsqueeze(1)
        return value, gradient, torch.bmm(weighted, features.transpose(1, 2))

    count = hits.sum(1)
    fewer = torch.minimum(count, odds.shape[1] - count).clamp_min(1.0)
    penalty = (sharing / fewer).reshape(-1, 1, 1) * likelihood(start)[2]
    penalty = penalty + ridge * torch.eye(3, dtype=odds.dtype, device=odds.device)

    def loss(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, gradient, curvature = likelihood(theta)
        away = theta - start
        pull = torch.bmm(penalty, away.unsqueeze(2)).squeeze(2)
        return value + 0.5 * (away * pull).sum(1), gradient + pull, curvature + penalty

    bounds = torch.tensor([0.0, 0.0, -torch.inf], dtype=odds.dtype, device=odds.device)
    return minimise(loss, start, bounds.expand_as(start), name="beta")
