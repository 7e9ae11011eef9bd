"""Dirichlet calibration: a matrix on log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.calibrators.matrix import Matrix


class Dirichlet(Matrix):
    """z ↦ W ln softmax(z) + b with off-diagonal and intercept regularisation (Kull et al. 2019).

    ODIR penalises b and the off-diagonal of W and leaves the diagonal free. Here the diagonal
    is held to 1/T at a hundredth of the intercept's strength, so that separable data stay
    bounded and infinite strengths are temperature scaling. For two classes it is beta
    calibration. Strengths, in the units of `AffineCalibrator`, are chosen as the paper does,
    by cross-validation, and ``objective`` is told there too. K² parameters: at most 2,000 classes.
    """

    name = "dirichlet"
    diagonal_share = 0.01

    def _features(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, dim=1)
