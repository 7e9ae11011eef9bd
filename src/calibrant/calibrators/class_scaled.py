"""Class-wise loss scaling: classes that lose more weigh more (class-scaling, ICML 2023)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.objectives import Objective, Rows
from calibrant.functional.errors import InputError

if TYPE_CHECKING:
    from calibrant.calibrators.descent import Problem

START = (1.0, 1.5)  # α, β (section 5.1)
FIRST_STEP = 0.02
NORMALISATIONS = ("nd", "mm", "cm")
ESTIMATES = ("printed", "corrected")


class ClassScaled(Objective):
    """Σ_i (1 + w_i) L_i over the classes present (eq. 8), w_i constant under the derivative.

    L_i is the mean cross-entropy of class i (eq. 3 prints a sum), L̄_i its normalised value
    (`nd` eq. 9 with the unbiased deviation, `mm` eq. 10, `cm` eq. 11) and
    w_i = β/(1 + exp(−L̄_i/α)) − β/2 (eq. 5). The fit is the root of Σ (1 + w_i) L_i′.

    α and β are settled once by SLSQP after the first step from T = 1 (one step of L-BFGS at
    rate 0.02: against the gradient g, of length 0.02·min(1, 1/|g|₁)·|g|), so that the
    spread of the class losses after it, as estimated, is least: √Σ (E_i − mean L¹)² with
    E_i = L⁰_i − w_i (L¹_i − L⁰_i) as eq. 6 is printed (``estimate="printed"``), or
    E_i = L⁰_i + (1 + w_i)(L¹_i − L⁰_i), the first-order prediction (``"corrected"``).
    Bounds: α in [0.1, max(0.1, ln(K)/2)], β in [1.5, 2]. ``alpha`` and ``beta`` given
    together skip this. Classes without rows are left out.
    """

    name = "class_scaled"
    kind = "reweighted"

    def __init__(
        self,
        *,
        estimate: str = "printed",
        normalisation: str = "nd",
        alpha: float | None = None,
        beta: float | None = None,
    ) -> None:
        if estimate not in ESTIMATES:
            raise InputError(f"estimate is printed or corrected, found {estimate!r}")
        if normalisation not in NORMALISATIONS:
            raise InputError(f"normalisation is nd, mm or cm, found {normalisation!r}")
        if (alpha is None) != (beta is None):
            raise InputError("give alpha and beta together, or neither")
        self.estimate, self.normalisation = estimate, normalisation
        self.fixed = alpha is not None
        self.alpha = START[0] if alpha is None else alpha
        self.beta = START[1] if beta is None else beta
        if self.alpha <= 0:
            raise InputError(f"alpha must be positive, found {self.alpha!r}")

    def prepare(self, problem: Problem) -> None:
        """Settle α and β; ``problem`` is in ln T, where at T = 1 ∂/∂ln T is ∂/∂T."""
        if self.fixed:
            return
        bounds = bounds_of(problem.num_classes)
        self.alpha, self.beta = (
            min(max(value, low), high) for value, (low, high) in zip(START, bounds, strict=True)
        )
        start = np.zeros(problem.size)
        rows = problem.rows(start)
        before, _ = class_losses(rows)
        # The paper's total is a sum over classes, where `weights` gives their mean.
        weights = self.weights(rows) * len(before)
        _, gradient = problem.weighted(start, weights)
        length = FIRST_STEP * min(1.0, 1.0 / max(float(np.abs(gradient).sum()), 1e-300))
        after, _ = class_losses(problem.rows(np.log(1.0 - length * gradient)))
        self.alpha, self.beta = settle(
            before.cpu().numpy(),
            after.cpu().numpy(),
            normalise(after, self.normalisation).cpu().numpy(),
            bounds=bounds,
            start=(self.alpha, self.beta),
            estimate=self.estimate,
        )

    def weights(self, rows: Rows) -> Tensor:
        """(1 + w_i) of each row's class, over the rows of its class and the classes present."""
        losses, index = class_losses(rows)
        scaled = 1.0 + class_weights(normalise(losses, self.normalisation), self.alpha, self.beta)
        counts = torch.bincount(index, minlength=len(losses))
        return (scaled / (counts * len(losses)))[index]

    def facts(self) -> dict[str, float]:
        """α and β."""
        return {"alpha": self.alpha, "beta": self.beta}


def bounds_of(num_classes: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of α and of β."""
    return (0.1, max(0.1, math.log(num_classes) / 2)), (1.5, 2.0)


def class_losses(rows: Rows) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of each class present, and each row's place among those classes."""
    present, index = torch.unique(rows.target, return_inverse=True)
    total = torch.zeros(len(present), dtype=torch.float64, device=rows.target.device)
    total.index_add_(0, index, -rows.log_true.detach().double())
    return total / torch.bincount(index, minlength=len(present)), index


def normalise(losses: Tensor, how: str) -> Tensor:
    """L̄ by `nd`, `mm` or `cm`; 0 where the classes do not differ."""
    if len(losses) < 2 or bool(losses.max() - losses.min() <= 1e-12 * losses.abs().max()):
        return torch.zeros_like(losses)
    reach = losses.std() if how == "nd" else losses.max() - losses.min()
    return (losses - (losses.min() if how == "mm" else losses.mean())) / reach


def class_weights(normalised: Tensor, alpha: float, beta: float) -> Tensor:
    """w_i = β/(1 + exp(−L̄_i/α)) − β/2, eq. 5."""
    return beta * torch.sigmoid(normalised / alpha) - beta / 2


def settle(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    normalised: NDArray[np.float64],
    *,
    bounds: tuple[tuple[float, float], tuple[float, float]],
    start: tuple[float, float],
    estimate: str,
) -> tuple[float, float]:
    """α and β of least estimated spread (eq. 6), by SLSQP with the exact gradient."""
    from scipy.optimize import minimize
    from scipy.special import expit

    change = after - before
    base = before if estimate == "printed" else after
    sign = -1.0 if estimate == "printed" else 1.0
    # In units of the change, which after one short step is small beside the losses.
    unit = float(np.abs(change).max()) or 1.0
    offset, change = (base - after.mean()) / unit, change / unit
    size = float(np.linalg.norm(offset)) or 1.0

    def spread(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        alpha, beta = at
        share = expit(normalised / alpha)
        gap = offset + sign * (beta * share - beta / 2) * change
        # The excess of the norm over that without weights: no digits lost beside `size`.
        norm = max(float(np.linalg.norm(gap)), 1e-300)
        excess = float(np.sum((gap - offset) * (gap + offset))) / (norm + size)
        by_alpha = sign * change * beta * share * (1 - share) * (-normalised / alpha**2)
        by_beta = sign * change * (share - 0.5)
        return excess, np.array([gap @ by_alpha, gap @ by_beta]) / norm

    found = minimize(
        spread,
        np.array(start),
        jac=True,
        bounds=bounds,
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 200},
    )
    alpha, beta = (
        float(np.clip(value, low, high)) for value, (low, high) in zip(found.x, bounds, strict=True)
    )
    return alpha, beta
