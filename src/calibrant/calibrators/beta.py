"""Beta calibration: three numbers a class, the strong one for binary problems."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from calibrant.calibrators.base import Calibrator, row_blocks
from calibrant.calibrators.one_vs_rest import log_odds, log_sigmoid, minimise, normalised
from calibrant.functional.errors import InputError

_ELEMENTS = 1 << 18  # of a block of classes: its features stay near the processor
_PAIRS = 1 << 21  # of which the common map is fitted: evenly spaced rows where there are more


class Beta(Calibrator):
    """logit q_k = a_k ln p_k − b_k ln(1 − p_k) + c_k with a, b ≥ 0; q is then normalised.

    Kull et al. (2017), each class against the rest: the exact map when the scores of hits
    and of misses have beta distributions; a = b = 1, c = 0 leaves the class alone. First the
    pairs of all classes are fitted with a penalty of ridge/2·|θ − (1, 1, 0)|². Each class
    then starts from that common θ₀ and pays ½(θ − θ₀)ᵀP(θ − θ₀), P = (s/n)·H + ridge·I, H
    the class's own Hessian at θ₀ and n the fewer of its hits and misses: as if s more hits
    had been seen that agree with the common map. Both problems are strictly convex and are
    solved exactly. A class without rows stays near the common map. For two classes both
    maps say the same.
    """

    name = "beta"

    coefficients_: Tensor

    def __init__(
        self, *, ridge: float = 0.1, sharing: float = 20.0, from_logits: bool = True
    ) -> None:
        super().__init__(from_logits=from_logits)
        if not (ridge > 0 and sharing >= 0):
            raise InputError(
                f"ridge must be positive and sharing not negative, found {ridge} and {sharing}"
            )
        self.ridge, self.sharing = ridge, sharing
        self.register_buffer("coefficients_", torch.zeros(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        rows, classes = logits.shape
        odds = torch.cat([log_odds(logits[part]) for part in row_blocks(logits)])
        every = torch.arange(classes, device=odds.device)
        alone = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, device=odds.device)
        # Three numbers need no more pairs than this.
        some = slice(None, None, max(1, odds.numel() // _PAIRS))
        hits = (target[some].unsqueeze(1) == every).double()
        pairs = odds[some].double().reshape(1, -1), hits.reshape(1, -1)
        common = fit_beta(*pairs, alone, ridge=self.ridge, sharing=0.0)[0]
        step = max(1, _ELEMENTS // rows)
        found = []
        for k in range(0, classes, step):
            block = odds[:, k : k + step].t().double().contiguous()
            hits = (every[k : k + step].unsqueeze(1) == target).double()
            found.append(fit_beta(block, hits, common, ridge=self.ridge, sharing=self.sharing))
        self.coefficients_ = torch.cat(found)

    def _map(self, logits: Tensor) -> Tensor:
        odds = log_odds(logits)
        a, b, c = self.coefficients_.to(odds).unbind(1)
        return normalised(a * log_sigmoid(odds) - b * log_sigmoid(-odds) + c)


def fit_beta(odds: Tensor, hits: Tensor, centre: Tensor, *, ridge: float, sharing: float) -> Tensor:
    """(C,3) coefficients of C penalised regressions on (C,N) log-odds and 0/1 hits."""
    features = torch.stack((log_sigmoid(odds), -log_sigmoid(-odds), torch.ones_like(odds)), dim=1)
    linear = (features * hits.unsqueeze(1)).sum(2)
    start = centre.expand(len(odds), 3)

    def likelihood(theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        score = torch.bmm(theta.unsqueeze(1), features).squeeze(1)
        q = score.sigmoid()
        value = softplus(score).sum(1) - (theta * linear).sum(1)
        gradient = torch.bmm(features, q.unsqueeze(2)).squeeze(2) - linear
        weighted = features * (q * (1.0 - q)).unsqueeze(1)
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
