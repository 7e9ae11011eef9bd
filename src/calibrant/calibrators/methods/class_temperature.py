"""Class-based temperature scaling: one temperature for each class."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Design
from calibrant.calibrators.methods.temperature import ObjectiveCalibrator, best_temperature
from calibrant.calibrators.solvers.descent import fit_parameters, search_grid
from calibrant.calibrators.solvers.objectives import get_objective
from calibrant.calibrators.solvers.problem import LOG_BOUNDS, Problem
from calibrant.core.errors import InputError


class ClassTemperature(ObjectiveCalibrator):
    """z_k ↦ z_k / T_k (CTS, Frenkel & Goldberger 2021; class-scaling eq. 15).

    May change predictions. The likelihood is convex in 1/T_k. The penalty
    K·Σ_k (ln T_k − ln T)² / (2·spread²), added to the summed loss, draws each ln T_k toward
    the single fitted temperature T, more strongly with more classes, so that a class with few
    rows stays near T. Every T_k lies in [0.01, 100]. The objective ``"ece"`` has no gradient:
    T_k are then those of the likelihood times one number found by a search.

    Args:
        spread: How far ln T_k may lie from ln T; None is the method as published, where only
            classes without rows are held at T. Default: 1.0 (ours: without a penalty, 100
            classes of 50 rows do worse than one temperature).
        objective: What the fit minimises; see `temperature`. Default: 'nll' (class-scaling,
            eq. 15).
        objective_options: Options of the objective, by name. Default: None (the objective's
            own defaults).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "class_temperature"
    takes_weights = True

    temperatures_: Tensor

    def __init__(
        self,
        *,
        spread: float | None = 1.0,
        objective: str = "nll",
        objective_options: dict[str, Any] | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(
            objective=objective, objective_options=objective_options, from_logits=from_logits
        )
        if spread is not None and not spread > 0:
            raise InputError(f"spread must be positive or None, found {spread!r}")
        self.spread = spread
        self.register_buffer("temperatures_", torch.zeros(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        self._check_objective(logits, design)
        objective, weights = self._objective(), design.weights
        searched = objective.kind == "searched"
        smooth = get_objective("nll") if searched else objective
        shared = math.log(best_temperature(logits, target, smooth, weights))
        classes = logits.shape[1]

        def penalty(logs: Tensor) -> Tensor:
            assert self.spread is not None
            return (logs - shared).square().sum() * classes / (2 * self.spread**2 * len(target))

        def map(z: Tensor, logs: Tensor) -> Tensor:
            return z * (-logs).exp()

        smooth.prepare(Problem(map, logits, target, classes))
        extra = penalty if self.spread else None
        problem = Problem(map, logits, target, classes, extra, weights)
        bounds = [LOG_BOUNDS] * classes
        if self.spread is None:
            rows = torch.bincount(target, minlength=classes).tolist()
            bounds = [LOG_BOUNDS if count else (shared, shared) for count in rows]
        # SB-ECE jumps where a prediction changes.
        kinked = smooth.name == "sb_ece"
        fitted = fit_parameters(problem, smooth, np.full(classes, shared), bounds, kinked=kinked)
        temperatures = torch.from_numpy(fitted).to(logits.device).exp()
        if searched:
            scaled = logits / temperatures.to(logits.dtype)
            best = search_grid(
                lambda log_factor: objective.value(scaled / math.exp(log_factor), target)
            )
            temperatures = temperatures * math.exp(best)
        self.facts_ = smooth.facts()
        self.temperatures_ = temperatures

    def _map(self, logits: Tensor) -> Tensor:
        return logits / self.temperatures_.to(logits.dtype)
