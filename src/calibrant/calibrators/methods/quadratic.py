"""Quadratic scaling: logistic regression on the logit of an event and its square."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.calibrators.methods.curves import LogisticCurve


class Quadratic(LogisticCurve):
    """logit q = a·x + b + c·x², x = logit p (quadratic scaling; Berta et al. 2025, binary case).

    The exact map where the logits of hits and of misses are normal with different variances
    (Berta, Holzmüller, Jordan & Bach, "Structured matrix scaling for multi-class calibration",
    arXiv:2511.03685). It need not rise. With r the root mean square of x, the ridge
    ½·ridge·((a − 1)² + b² + (c·r)²) keeps separable rows bounded; and the parabola ends where the
    scores of the fit do: beyond, x counts as the nearest of them. With more than two classes each
    is fitted against the rest, and q is then normalised.

    Args:
        ridge: The ridge of the fit. Default: 0.01 (ours: bounds separable rows and moves others
            hardly).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "quadratic"

    range_: Tensor

    def __init__(self, *, ridge: float = 0.01, from_logits: bool = True) -> None:
        super().__init__(ridge=ridge, from_logits=from_logits)
        self.register_buffer("range_", torch.zeros(0, dtype=torch.float64))

    def _fit_curves(self, odds: Tensor, hits: Tensor, times: Tensor | None) -> None:
        squares = odds.square()
        size = (squares if times is None else squares * times).mean(1, keepdim=True).sqrt()
        size = size.clamp_min(1e-12)
        features = torch.stack((odds, torch.ones_like(odds), squares / size), dim=1)
        fitted = self._fit_coefficients(features, hits, times, rising=False)
        self.coefficients_ = torch.cat((fitted[:, :2], fitted[:, 2:] / size), 1)
        self.range_ = torch.stack((odds.amin(1), odds.amax(1)), 1)

    def _map_curves(self, odds: Tensor) -> Tensor:
        low, high = self.range_.to(odds).unsqueeze(2).unbind(1)
        slope, shift, bend = self.coefficients_.to(odds).unsqueeze(2).unbind(1)
        x = torch.minimum(torch.maximum(odds, low), high)
        return slope * x + shift + bend * x.square()
