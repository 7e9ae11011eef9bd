"""Class-based temperature scaling: one temperature for each class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.descent import LOG_BOUNDS, Problem, fit_parameters
from calibrant.calibrators.objectives import get_objective
from calibrant.calibrators.scalar import search
from calibrant.calibrators.temperature import best_temperature
from calibrant.functional.errors import InputError


class ClassTemperature(Calibrator):
    """z_k ↦ z_k / T_k (CTS, Frenkel & Goldberger 2021; class-scaling eq. 15).

    May change predictions. The likelihood is convex in 1/T_k. Each ln T_k is drawn toward
    the one fitted temperature T by K·Σ_k (ln T_k − ln T)² / (2·spread²) beside the summed
    loss, more so the more classes there are: a class of few rows stays near T, and
    ``spread=None`` is the method as published, where only classes without any row are held
    at T (unpenalised, 100 classes of 50 rows lose to the one temperature). Every
    T_k lies in [0.01, 100]. Under ``objective="ece"``, which has no gradient, T_k are those
    of the likelihood times one number searched for.
    """

    name = "class_temperature"

    temperatures_: Tensor

    def __init__(
        self,
        *,
        spread: float | None = 1.0,
        objective: str = "nll",
        objective_options: dict[str, Any] | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if spread is not None and not spread > 0:
            raise InputError(f"spread must be positive, or None, found {spread!r}")
        get_objective(objective, objective_options)  # refuses bad options now
        self.spread = spread
        self.objective, self.objective_options = objective, objective_options
        self.facts_: dict[str, float] = {}
        self.register_buffer("temperatures_", torch.zeros(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        objective = get_objective(self.objective, self.objective_options)
        searched = objective.kind == "searched"
        smooth = get_objective("nll") if searched else objective
        shared = math.log(best_temperature(logits, target, smooth))
        classes = logits.shape[1]

        def penalty(at: Tensor) -> Tensor:
            assert self.spread is not None
            return (at - shared).square().sum() * classes / (2 * self.spread**2 * len(target))

        def map(z: Tensor, at: Tensor) -> Tensor:
            return z * (-at).exp()

        smooth.prepare(Problem(map, logits, target, classes))
        problem = Problem(map, logits, target, classes, penalty if self.spread else None)
        bounds = [LOG_BOUNDS] * classes
        if self.spread is None:
            rows = torch.bincount(target, minlength=classes).tolist()
            bounds = [LOG_BOUNDS if count else (shared, shared) for count in rows]
        # SB-ECE jumps where a prediction changes.
        kinked = smooth.name == "sb_ece"
        found = fit_parameters(problem, smooth, np.full(classes, shared), bounds, kinked=kinked)
        each = torch.from_numpy(found).to(logits.device).exp()
        if searched:
            given = logits / each.to(logits.dtype)
            each = each * math.exp(search(lambda at: objective.value(given / math.exp(at), target)))
        self.facts_ = smooth.facts()
        self.temperatures_ = each

    def _map(self, logits: Tensor) -> Tensor:
        return logits / self.temperatures_.to(logits.dtype)
