"""Platt scaling: logistic regression on the logit of an event."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.calibrators.methods.curves import LogisticCurve


class Platt(LogisticCurve):
    """logit q = a·logit p + b, a ≥ 0: logistic regression on the logit (Platt 1999).

    Strictly convex, solved exactly. The ridge ½·ridge·((a − 1)² + b²) keeps separable rows
    bounded, where Platt smooths the labels. With more than two classes each is fitted against
    the rest, and q is then normalised.

    Args:
        ridge: The ridge of the fit. Default: 0.01 (ours: bounds separable rows and moves others
            hardly).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "platt"

    def _fit_curves(self, odds: Tensor, hits: Tensor, times: Tensor | None) -> None:
        features = torch.stack((odds, torch.ones_like(odds)), dim=1)
        self.coefficients_ = self._fit_coefficients(features, hits, times, rising=True)

    def _map_curves(self, odds: Tensor) -> Tensor:
        slope, shift = self.coefficients_.to(odds).unsqueeze(2).unbind(1)
        return slope * odds + shift
