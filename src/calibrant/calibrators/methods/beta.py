"""Beta calibration: three numbers for each class, strongest on binary problems."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Calibrator, Design
from calibrant.calibrators.solvers.one_vs_rest import (
    fit_logistic,
    log_odds,
    log_sigmoid,
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

    Events have one map, with the ridge alone: nothing ties what it does at p to what it does at
    1 − p. Weights average 1, so that the ridge counts as before.

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
    takes_events = True
    takes_weights = True

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

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        rows, classes = logits.shape
        odds = torch.cat([log_odds(logits[part]) for part in row_slices(logits.shape)])
        every = torch.arange(classes, device=odds.device)
        alone = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, device=odds.device)
        weights = design.weights
        places, pair_hits, times = common_pairs(odds, target, weights)
        common = fit_beta(places, pair_hits, alone, ridge=self.ridge, sharing=0.0, times=times)[0]
        sharing = self.sharing
        if sharing is None:
            sharing = _SHARING if classes > 2 else _SHARING_OF_TWO
        step = max(1, _ELEMENTS // rows)
        fitted = []
        for k in range(0, classes, step):
            block = odds[:, k : k + step].t().double().contiguous()
            hits = (every[k : k + step].unsqueeze(1) == target).double()
            hit_weights = None if weights is None else weights.expand_as(hits)
            fitted.append(
                fit_beta(block, hits, common, ridge=self.ridge, sharing=sharing, times=hit_weights)
            )
        self.coefficients_ = torch.cat(fitted)

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        alone = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, device=odds.device)
        times = None if design.weights is None else design.weights.unsqueeze(0)
        place, hits = odds.double().unsqueeze(0), happened.double().unsqueeze(0)
        self.coefficients_ = fit_beta(
            place, hits, alone, ridge=self.ridge, sharing=0.0, times=times
        )

    def _map_events(self, odds: Tensor) -> Tensor:
        a, b, c = self.coefficients_.to(odds)[0].unbind()
        return a * log_sigmoid(odds) - b * log_sigmoid(-odds) + c

    def _map(self, logits: Tensor) -> Tensor:
        odds = log_odds(logits)
        a, b, c = self.coefficients_.to(odds).unbind(1)
        return normalise_odds(a * log_sigmoid(odds) - b * log_sigmoid(-odds) + c)


def common_pairs(
    odds: Tensor, target: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (1,M) log-odds of the pairs of all classes, their hits, and how many each counts."""
    true = odds.gather(1, target.unsqueeze(1)).double().t()
    if odds.numel() <= _PAIRS:
        every = torch.arange(odds.shape[1], device=odds.device)
        hits = (target.unsqueeze(1) == every).double().reshape(1, -1)
        times = torch.ones_like(hits)
        if weights is not None:
            times = weights.repeat_interleave(odds.shape[1]).unsqueeze(0)
        return odds.double().reshape(1, -1), hits, times
    counts, totals = (true.new_zeros(2 * _CELLS) for _ in range(2))
    row_weights = torch.ones_like(true[0]) if weights is None else weights
    for part in row_slices(odds.shape):
        block = odds[part].reshape(-1)
        cell = block.asinh().mul_(_FINE).round_().clamp_(-_CELLS, _CELLS - 1).long() + _CELLS
        if weights is None:
            counts += torch.bincount(cell, minlength=2 * _CELLS)
            totals += torch.bincount(cell, block.double(), 2 * _CELLS)
            continue
        repeated = weights[part].repeat_interleave(odds.shape[1])
        counts += torch.bincount(cell, repeated, 2 * _CELLS)
        totals += torch.bincount(cell, repeated * block.double(), 2 * _CELLS)
    cell = true[0].to(odds.dtype).asinh().mul_(_FINE).round_().clamp_(-_CELLS, _CELLS - 1).long()
    counts -= torch.bincount(cell + _CELLS, row_weights, 2 * _CELLS)
    totals -= torch.bincount(cell + _CELLS, row_weights * true[0], 2 * _CELLS)
    filled = counts > (0 if weights is None else 1e-9)
    means = (totals[filled] / counts[filled]).unsqueeze(0)
    hits = torch.cat((torch.ones_like(true), torch.zeros_like(means)), 1)
    times = torch.cat((row_weights.unsqueeze(0), counts[filled].unsqueeze(0)), 1)
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
    bounds = torch.tensor([0.0, 0.0, -torch.inf], dtype=odds.dtype, device=odds.device)
    return fit_logistic(
        features, hits, centre, bounds, ridge=ridge, sharing=sharing, times=times, name="beta"
    )
