"""Dirichlet calibration: a matrix on log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.calibrators.methods.matrix import Matrix


class Dirichlet(Matrix):
    """z ↦ W ln softmax(z) + b with off-diagonal and intercept regularisation (Kull et al. 2019).

    ODIR penalises b and the off-diagonal of W and leaves the diagonal free. Here the diagonal
    is held to 1/T at a hundredth of the intercept's strength, so that separable data stay
    bounded and infinite strengths are temperature scaling. For two classes it is beta
    calibration. K² parameters: at most 2,000 classes.

    Args:
        strength: λ of `AffineCalibrator`, on the intercept; ``"auto"`` chooses it by
            cross-validation in the fit. Default: 'auto' (Kull et al. 2019, who cross-validate).
        off_diagonal: μ of `AffineCalibrator`, on the off-diagonal; ``"auto"`` chooses it by
            cross-validation in the fit. Default: 'auto' (Kull et al. 2019, who cross-validate).
        folds: The number of folds of these choices. Default: 5 (ours: more folds change
            little).
        objective: What the fit minimises; see `temperature`. Default: 'nll' (Kull et al. 2019).
        objective_options: Options of the objective, by name. Default: None (the objective's
            own defaults).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "dirichlet"
    diagonal_share = 0.01

    def _features(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, dim=1)
