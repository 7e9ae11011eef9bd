"""Vector scaling: a factor and a shift for every class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Design
from calibrant.calibrators.methods.affine import AffineCalibrator, Strength


class Vector(AffineCalibrator):
    """z ↦ a∘(z − z̄) + b (Guo et al. 2017), a ridge holding a to 1/T and b to 0.

    z̄ is the row's mean logit: softmax does not see it, so neither does the fit. 2K parameters:
    any number of classes.

    Args:
        strength: λ of `AffineCalibrator`; ``"auto"`` chooses it by cross-validation in the
            fit, infinity is temperature scaling. Default: 'auto' (docs/decisions.md).
        folds: The number of folds of that choice. Default: 5 (ours: more folds change little).
        objective: What the fit minimises; see `temperature`. Default: 'nll' (Guo et al. 2017).
        objective_options: Options of the objective, by name. Default: None (the objective's
            own defaults).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "vector"

    scale_: Tensor
    intercept_: Tensor

    def __init__(
        self,
        *,
        strength: Strength = "auto",
        folds: int = 5,
        objective: str = "nll",
        objective_options: dict[str, Any] | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(
            strength=strength,
            off_diagonal=float("inf"),
            folds=folds,
            objective=objective,
            objective_options=objective_options,
            from_logits=from_logits,
        )
        self.strength = strength
        self.register_buffer("scale_", torch.empty(0, dtype=torch.float64))
        self.register_buffer("intercept_", torch.empty(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        self.scale_, self.intercept_ = self._solve(logits, target, design).unbind(0)

    def _map(self, logits: Tensor) -> Tensor:
        scale, intercept = self.scale_.to(logits.dtype), self.intercept_.to(logits.dtype)
        return self._features(logits) * scale + intercept
