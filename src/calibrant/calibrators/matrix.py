"""Matrix scaling: every logit of every class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators.affine import AffineCalibrator, Strength
from calibrant.calibrators.base import refuse_many_classes


class Matrix(AffineCalibrator):
    """z ↦ W(z − z̄) + b (Guo et al. 2017), a ridge holding W to I/T and b to 0.

    z̄ is the row's mean logit: softmax does not see it, so neither does the fit. ``strength``
    is λ of `AffineCalibrator`, on intercept and diagonal, ``off_diagonal`` its μ: numbers, or
    "auto" for cross-validation inside the fit, where infinity, which is vector and then
    temperature scaling, is always a candidate. ``objective`` is told there too. K²
    parameters: at most 2,000 classes.
    """

    name = "matrix"
    full = True

    weight_: Tensor
    intercept_: Tensor

    def __init__(
        self,
        *,
        strength: Strength = "auto",
        off_diagonal: Strength = "auto",
        folds: int = 5,
        objective: str = "nll",
        objective_options: dict[str, Any] | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(
            strength=strength,
            off_diagonal=off_diagonal,
            folds=folds,
            objective=objective,
            objective_options=objective_options,
            from_logits=from_logits,
        )
        self.strength, self.off_diagonal = strength, off_diagonal
        self.register_buffer("weight_", torch.empty(0, dtype=torch.float64))
        self.register_buffer("intercept_", torch.empty(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        refuse_many_classes(self.name, logits.shape[1], "vector, temperature or isotonic")
        found = self._solve(logits, target)
        self.weight_, self.intercept_ = found[:-1].t().contiguous(), found[-1].clone()

    def _map(self, logits: Tensor) -> Tensor:
        weight, intercept = self.weight_.to(logits.dtype), self.intercept_.to(logits.dtype)
        return torch.nn.functional.linear(self._features(logits), weight, intercept)
