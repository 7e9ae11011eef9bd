"""Temperature scaling: one number that divides every logit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, row_blocks
from calibrant.calibrators.objectives import Objective, get_objective
from calibrant.calibrators.scalar import fit_one_temperature
from calibrant.functional.newton import Root, rising_root

COLDEST, HOTTEST = 1e-2, 1e2  # bounds of T: separable or useless logits run to one of them
_NARROW = 48


class Temperature(Calibrator):
    """z ↦ z / T (Guo et al. 2017), T the exact maximum of the held-out likelihood.

    With β = 1/T the negative log-likelihood is convex: its derivative Σ (E_p[z] − z_y)
    rises with β, and Newton's method on ln β with its exact second derivative Σ Var_p(z)
    finds the root to 1e-6 in a handful of streaming passes. Where the data are separable
    (every row right), or the logits useless, T is held at a bound and a warning says so.

    ``objective`` takes another of `objectives` in place of the likelihood, with its options:
    T is then the exact minimum or fixed point of that one, or for ``"ece"`` the lowest
    point of a multi-resolution search. What the fit settled on the way is in ``facts_``.
    """

    name = "temperature"
    preserves_predictions = True

    temperature_: Tensor

    def __init__(
        self,
        *,
        objective: str = "nll",
        objective_options: dict[str, Any] | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        get_objective(objective, objective_options)  # refuses bad options now
        self.objective, self.objective_options = objective, objective_options
        self.passes_ = 0
        self.facts_: dict[str, float] = {}
        self.register_buffer("temperature_", torch.ones((), dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        if self.objective != "nll":
            chosen = get_objective(self.objective, self.objective_options)
            best = best_temperature(logits, target, chosen)
            self.facts_ = chosen.facts()
            self.temperature_ = torch.tensor(best, dtype=torch.float64).to(logits.device)
            return
        found = fit_temperature(logits, target)
        self.passes_ = found.passes
        self.temperature_ = torch.tensor(1.0 / found.value, dtype=torch.float64).to(logits.device)
        if found.at_bound:
            warnings.warn(
                f"the best temperature lies beyond {1.0 / found.value:.3g}, where it is held: "
                "every row may be right, or the logits may say nothing of the labels",
                stacklevel=3,
            )

    def _map(self, logits: Tensor) -> Tensor:
        return logits / self.temperature_.to(logits.dtype)


def best_temperature(logits: Tensor, target: Tensor, objective: Objective) -> float:
    """T by any objective, in [0.01, 100]; where other methods of this family start."""
    if objective.name == "nll":
        return 1.0 / fit_temperature(logits, target).value
    return fit_one_temperature(logits, target, objective)


def fit_temperature(logits: Tensor, target: Tensor) -> Root:
    """β = 1/T at which Σ_n (E_p[z] − z_y) = 0, p = softmax(βz)."""
    narrow = logits.shape[1] < _NARROW and logits.device.type == "cpu"
    held = None
    if narrow and logits.numel() <= 1 << 24:
        held = logits.t().contiguous()  # few classes: reducing across rows is vectorised
    true = float(logits.gather(1, target.unsqueeze(1)).double().sum())
    top = float(logits.amax(1).double().sum())

    def slope(beta: float) -> tuple[float, float]:
        first = second = 0.0
        for rows in row_blocks(logits):
            if held is not None:
                z, dim = held[:, rows], 0
            else:
                z, dim = logits[rows], 1
            z = z - z.amax(dim, keepdim=True)
            p = torch.softmax(z * beta, dim)
            p.mul_(z)
            mean = p.sum(dim)
            p.mul_(z)
            first += float(mean.double().sum())
            second += float((p.sum(dim) - mean.square()).double().sum())
        return first + top - true, max(second, 0.0)

    found = rising_root(slope, low=1.0 / HOTTEST, high=1.0 / COLDEST)
    # Every row right: colder is always better, and the search ends where digits do.
    return replace(found, at_bound=True) if top == true else found
