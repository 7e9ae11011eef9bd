"""Ensemble temperature scaling: a tempered softmax mixed with the untouched and the uniform."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.descent import LOG_BOUNDS, Problem, Vector, fit_parameters
from calibrant.calibrators.objectives import Objective, Rows, get_objective
from calibrant.calibrators.partition import Partition, TemperedProblem
from calibrant.calibrators.temperature import best_temperature
from calibrant.functional.errors import InputError

LEAST = 1e-9  # of a weight: keeps every logarithm finite, and bounds every loss
FLATTEST = 0.999  # of the uniform's weight: beyond, rounding would tie what differs


class EnsembleTemperature(Calibrator):
    """ln(w1·softmax(z/T) + w2·softmax(z) + w3/K), w on the simplex (ETS, Zhang et al. 2020).

    Each part rises with the logit, so no prediction changes (logits closer than rounding may
    tie). The uniform part bounds the loss of a row that is certain and wrong. T is fitted
    first, alone; then T and w together, never worse by the objective; ``joint=False`` holds
    T at the first stage, as the authors do. Under ``objective="ece"``, which has no
    gradient, T and then w are searched for.

    ``space="logits"`` is eq. 13 of class-scaling, which mixes logits: w1·z/T + w2·z + w3/K is
    z times (w1/T + w2), exactly a temperature, whose weights the data cannot tell apart. By
    convention w2 = w3 = 0 there, and the fit is that of `temperature`.
    """

    name = "ensemble_temperature"
    preserves_predictions = True

    temperature_: Tensor
    weights_: Tensor

    def __init__(
        self,
        *,
        space: str = "probs",
        joint: bool = True,
        objective: str = "nll",
        objective_options: dict[str, Any] | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        if space not in ("probs", "logits"):
            raise InputError(f"space is probs or logits, found {space!r}")
        get_objective(objective, objective_options)  # refuses bad options now
        self.space, self.joint = space, joint
        self.objective, self.objective_options = objective, objective_options
        self.facts_: dict[str, float] = {}
        self.register_buffer("temperature_", torch.ones((), dtype=torch.float64))
        self.register_buffer("weights_", torch.tensor((1.0, 0.0, 0.0), dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        objective = get_objective(self.objective, self.objective_options)
        first = math.log(best_temperature(logits, target, objective))
        self.facts_ = objective.facts()
        if self.space == "logits":
            found = np.array([first, 0.0, 0.0])
        elif objective.kind == "searched":
            found = _searched(logits, target, objective, first)
        else:
            found = _fitted(logits, target, objective, first, joint=self.joint)
        at = torch.from_numpy(found)
        self.temperature_ = at[0].exp().to(logits.device)
        self.weights_ = weights_of(at[1:]).to(logits.device)

    def _map(self, logits: Tensor) -> Tensor:
        temperature = self.temperature_.to(logits.dtype)
        if self.space == "logits":
            return logits / temperature
        return mixed(logits, temperature, self.weights_.to(logits.dtype))


def mixed(logits: Tensor, temperature: Tensor, weights: Tensor) -> Tensor:
    """ln(w1·softmax(z/T) + w2·softmax(z) + w3/K)."""
    logs = weights.log()
    sharp = torch.log_softmax(logits / temperature, dim=1) + logs[0]
    plain = torch.log_softmax(logits, dim=1) + logs[1]
    flat = logs[2] - math.log(logits.shape[1])
    return torch.logaddexp(torch.logaddexp(sharp, plain), flat)


def weights_of(shares: Tensor) -> Tensor:
    """w from two shares in [0, 1]: of the untouched in what the uniform leaves, and w3."""
    rest = 1.0 - shares[1]
    return torch.stack((rest * (1.0 - shares[0]), rest * shares[0], shares[1]))


def _fitted(
    logits: Tensor, target: Tensor, objective: Objective, first: float, *, joint: bool
) -> Vector:
    make = _problems(logits, target, objective)
    if _alone_is_best(make(lambda shares: shares), objective, first):
        return np.array([first, LEAST, LEAST])
    problem = make(torch.exp)
    # In logarithms: near 0 a weight's effect on rows that are certain and wrong is a cliff.
    lowest = math.log(LEAST)
    shares = [(lowest, math.log1p(-LEAST)), (lowest, math.log(FLATTEST))]
    bounds = [LOG_BOUNDS if joint else (first, first), *shares]
    start = np.array([first, math.log(0.1), math.log(0.02)])
    found = fit_parameters(problem, objective, start, bounds, kinked=objective.name == "sb_ece")
    if objective.kind == "smooth":
        alone = np.array([first, lowest, lowest])
        if problem.loss(alone, objective.loss) <= problem.loss(found, objective.loss) + 1e-9:
            found = alone
    return np.array([found[0], *np.exp(found[1:])])


def _problems(
    logits: Tensor, target: Tensor, objective: Objective
) -> Callable[[Callable[[Tensor], Tensor]], Problem]:
    """Problems in ln T and what some function makes shares of."""
    if objective.name == "label_smoothing":  # needs the mixture of every class
        return lambda shares: Problem(
            lambda z, at: mixed(z, at[0].exp(), weights_of(shares(at[1:]))), logits, target, 3
        )
    partition = Partition(logits, target)
    untouched = partition.rows(torch.zeros(1, dtype=torch.float64, device=logits.device))
    flat = math.log(logits.shape[1])

    def make(shares: Callable[[Tensor], Tensor]) -> Problem:
        def rows(at: Tensor) -> Rows:
            # The mixture rises with the logit: its largest is that of the largest logit.
            sharp, weights = partition.rows(-at[:1]), weights_of(shares(at[1:]))
            logs = weights.log()
            true = torch.logaddexp(logs[0] + sharp.log_true, logs[1] + untouched.log_true)
            best = weights[0] * sharp.confidence + weights[1] * untouched.confidence
            return sharp._replace(
                log_true=torch.logaddexp(true, logs[2] - flat),
                confidence=best + weights[2] / logits.shape[1],
            )

        return TemperedProblem(rows, logits, target, 3)

    return make


def _alone_is_best(problem: Problem, objective: Objective, first: float) -> bool:
    """Whether neither other part lowers the loss at first: then T alone is an optimum."""
    if objective.name == "sb_ece":  # many optima: this one may not be the least
        return False
    at = np.array([first, LEAST, LEAST])
    if objective.kind == "smooth":
        slope = problem.gradient(at, objective.loss)[1]
    else:
        weights = objective.weights(problem.rows(at))
        slope = problem.weighted(at, weights / weights.sum().clamp_min(1e-300))[1]
    return bool((slope[1:] >= 0).all())


def _searched(logits: Tensor, target: Tensor, objective: Objective, first: float) -> Vector:
    """The lowest weights of ever finer grids over the simplex, T held."""

    exact = logits.double()  # in float32 a nearly uniform mixture ties classes

    def value(plain: float, uniform: float) -> float:
        at = torch.tensor([first, plain, uniform], dtype=torch.float64).to(logits.device)
        return objective.value(mixed(exact, at[0].exp(), weights_of(at[1:])), target)

    centre, reach = (0.5, 0.5), 0.5
    best, least = (LEAST, LEAST), value(LEAST, LEAST)
    for _ in range(4):
        axes = [
            sorted({min(max(middle + reach * i / 4, LEAST), most) for i in range(-4, 5)})
            for middle, most in zip(centre, (1 - LEAST, FLATTEST), strict=True)
        ]
        for plain, uniform in itertools.product(*axes):
            found = value(plain, uniform)
            if found < least:
                best, least = (plain, uniform), found
        centre, reach = best, reach / 4
    return np.array([first, *best])
