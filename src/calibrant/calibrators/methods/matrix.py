"""Matrix scaling: every logit of every class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Design, refuse_many_classes
from calibrant.calibrators.methods.affine import AffineCalibrator, Strength


class Matrix(AffineCalibrator):
    """z ↦ W(z − z̄) + b (Guo et al. 2017), a ridge holding W to I/T and b to 0.

    z̄ is the row's mean logit: softmax does not see it, so neither does the fit. K² parameters:
    at most 2,000 classes.

    Args:
        strength: λ of `AffineCalibrator`, on intercept and diagonal; ``"auto"`` chooses it by
            cross-validation in the fit, where infinity, which is temperature scaling, is a
            candidate. Default: 'auto' (docs/decisions.md).
        off_diagonal: μ of `AffineCalibrator`, on the off-diagonal; ``"auto"`` chooses it by
            cross-validation in the fit, where infinity, which is vector scaling, is a
            candidate. Default: 'auto' (docs/decisions.md).
        folds: The number of folds of these choices. Default: 5 (ours: more folds change
            little).
        objective: What the fit minimises; see `temperature`. Default: 'nll' (Guo et al. 2017).
        objective_options: Options of the objective, by name. Default: None (the objective's
            own defaults).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
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

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        refuse_many_classes(self.name, logits.shape[1], "vector, temperature or isotonic")
        solved = self._solve(logits, target, design)
        self.weight_, self.intercept_ = solved[:-1].t().contiguous(), solved[-1].clone()

    def _map(self, logits: Tensor) -> Tensor:
        weight, intercept = self.weight_.to(logits.dtype), self.intercept_.to(logits.dtype)
        return torch.nn.functional.linear(self._features(logits), weight, intercept)
