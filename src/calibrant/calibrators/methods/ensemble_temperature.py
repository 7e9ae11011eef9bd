"""Ensemble temperature scaling: a tempered softmax mixed with the untouched and the uniform."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Design
from calibrant.calibrators.methods.temperature import ObjectiveCalibrator, best_temperature
from calibrant.calibrators.solvers.descent import fit_parameters
from calibrant.calibrators.solvers.objectives import Objective
from calibrant.calibrators.solvers.problem import (
    LOG_BOUNDS,
    Partition,
    Problem,
    Rows,
    TemperedProblem,
    Vector,
)
from calibrant.core.errors import InputError

LEAST = 1e-9  # the least weight: keeps every logarithm finite and bounds every loss
FLATTEST = 0.999  # the largest weight of the uniform: beyond, rounding would tie classes


class EnsembleTemperature(ObjectiveCalibrator):
    """ln(w1·softmax(z/T) + w2·softmax(z) + w3/K), w on the simplex (ETS, Zhang et al. 2020).

    Each part rises with the logit, so no prediction changes (logits closer than rounding may
    tie). The uniform part bounds the loss of a row that is certain and wrong. T is fitted
    first, alone; then T and w are fitted together, never worse by the objective. The
    objective ``"ece"`` has no gradient: T and then w are found by a search. K is the number of
    options that the row has: a logit of −inf stays one.

    Args:
        space: ``"probs"`` mixes probabilities. ``"logits"`` is eq. 13 of class-scaling, which
            mixes logits: w1·z/T + w2·z + w3/K is z times (w1/T + w2), exactly a temperature,
            whose weights the data cannot tell apart; by convention w2 = w3 = 0, and the fit
            is that of `temperature`. Default: 'probs' (Zhang et al. 2020).
        joint: False holds T at the first stage, as the authors do. Default: True (ours: a
            joint fit is never worse by the objective).
        objective: What the fit minimises; see `temperature`. Default: 'nll' (Zhang et al. 2020).
        objective_options: Options of the objective, by name. Default: None (the objective's
            own defaults).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "ensemble_temperature"
    preserves_predictions = True
    takes_events = True
    takes_options = True
    takes_weights = True

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
        super().__init__(
            objective=objective, objective_options=objective_options, from_logits=from_logits
        )
        if space not in ("probs", "logits"):
            raise InputError(f"space is probs or logits, found {space!r}")
        self.space, self.joint = space, joint
        self.register_buffer("temperature_", torch.ones((), dtype=torch.float64))
        self.register_buffer("weights_", torch.tensor((1.0, 0.0, 0.0), dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        self._check_objective(logits, design)
        objective, weights = self._objective(), design.weights
        first = math.log(best_temperature(logits, target, objective, weights))
        self.facts_ = objective.facts()
        if self.space == "logits":
            best = np.array([first, 0.0, 0.0])
        elif objective.kind == "searched":
            best = _search_weights(logits, target, objective, first)
        else:
            best = _fit_weights(logits, target, objective, first, weights, joint=self.joint)
        point = torch.from_numpy(best)
        self.temperature_ = point[0].exp().to(logits.device)
        self.weights_ = weights_of(point[1:]).to(logits.device)

    def _map(self, logits: Tensor) -> Tensor:
        temperature = self.temperature_.to(logits.dtype)
        if self.space == "logits":
            return logits / temperature
        return mix(logits, temperature, self.weights_.to(logits.dtype))


def mix(logits: Tensor, temperature: Tensor, weights: Tensor) -> Tensor:
    """Return ln(w1·softmax(z/T) + w2·softmax(z) + w3/K)."""
    logs = weights.log()
    sharp = torch.log_softmax(logits / temperature, dim=1) + logs[0]
    plain = torch.log_softmax(logits, dim=1) + logs[1]
    flat = logs[2] - math.log(logits.shape[1])
    absent = logits == -math.inf
    # The factor is exactly 1, and changes no bit, where no option is absent.
    share = (~absent).to(logits.dtype).mean(dim=1, keepdim=True)
    mixed = torch.logaddexp(torch.logaddexp(sharp, plain), flat - share.log())
    return torch.where(absent, -math.inf, mixed)


def weights_of(shares: Tensor) -> Tensor:
    """Return w from two shares in [0, 1]: w2 / (w1 + w2), and w3."""
    rest = 1.0 - shares[1]
    return torch.stack((rest * (1.0 - shares[0]), rest * shares[0], shares[1]))


def _fit_weights(
    logits: Tensor,
    target: Tensor,
    objective: Objective,
    first: float,
    row_weights: Tensor | None = None,
    *,
    joint: bool,
) -> Vector:
    """Fit ln T and the weights, unless T alone is an optimum."""
    make = _problem_maker(logits, target, objective, row_weights)
    if _alone_is_best(make(lambda shares: shares), objective, first):
        return np.array([first, LEAST, LEAST])
    problem = make(torch.exp)
    # In logarithms: near 0, the effect of a weight on rows that are certain and wrong is a cliff.
    lowest = math.log(LEAST)
    shares = [(lowest, math.log1p(-LEAST)), (lowest, math.log(FLATTEST))]
    bounds = [LOG_BOUNDS if joint else (first, first), *shares]
    start = np.array([first, math.log(0.1), math.log(0.02)])
    best = fit_parameters(problem, objective, start, bounds, kinked=objective.name == "sb_ece")
    if objective.kind == "smooth":
        alone = np.array([first, lowest, lowest])
        if problem.loss(alone, objective.loss) <= problem.loss(best, objective.loss) + 1e-9:
            best = alone
    return np.array([best[0], *np.exp(best[1:])])


def _problem_maker(
    logits: Tensor, target: Tensor, objective: Objective, row_weights: Tensor | None = None
) -> Callable[[Callable[[Tensor], Tensor]], Problem]:
    """Return a maker of problems in ln T and the arguments of a function that gives shares."""
    if objective.name == "label_smoothing":  # needs the mixture of every class
        return lambda shares: Problem(
            lambda z, point: mix(z, point[0].exp(), weights_of(shares(point[1:]))),
            logits,
            target,
            3,
            weights=row_weights,
        )
    partition = Partition(logits, target, row_weights)
    untouched = partition.rows(torch.zeros(1, dtype=torch.float64, device=logits.device))
    size: float | Tensor = logits.shape[1]
    flat: float | Tensor = math.log(logits.shape[1])
    if float(logits.amin()) == -math.inf:
        size = (logits > -math.inf).sum(1).double()
        flat = size.log()

    def make(shares: Callable[[Tensor], Tensor]) -> Problem:
        def rows(point: Tensor) -> Rows:
            # The mixture rises with the logit, so its largest part is that of the largest logit.
            sharp, weights = partition.rows(-point[:1]), weights_of(shares(point[1:]))
            logs = weights.log()
            true = torch.logaddexp(logs[0] + sharp.log_true, logs[1] + untouched.log_true)
            best = weights[0] * sharp.confidence + weights[1] * untouched.confidence
            return sharp._replace(
                log_true=torch.logaddexp(true, logs[2] - flat),
                confidence=best + weights[2] / size,
            )

        return TemperedProblem(rows, logits, target, 3)

    return make


def _alone_is_best(problem: Problem, objective: Objective, first: float) -> bool:
    """Return whether neither other part lowers the loss at first: T alone is an optimum."""
    if objective.name == "sb_ece":  # many optima: this one need not be the least
        return False
    corner = np.array([first, LEAST, LEAST])
    if objective.kind == "smooth":
        slope = problem.gradient(corner, objective.loss)[1]
    else:
        weights = objective.row_weights(problem.rows(corner))
        slope = problem.weighted_gradient(corner, weights / weights.sum().clamp_min(1e-300))[1]
    return bool((slope[1:] >= 0).all())


def _search_weights(logits: Tensor, target: Tensor, objective: Objective, first: float) -> Vector:
    """Search ever finer grids over the simplex for the lowest weights, T held."""

    exact = logits.double()  # in float32 a nearly uniform mixture ties classes

    def value(plain: float, uniform: float) -> float:
        point = torch.tensor([first, plain, uniform], dtype=torch.float64).to(logits.device)
        return objective.value(mix(exact, point[0].exp(), weights_of(point[1:])), target)

    centre, reach = (0.5, 0.5), 0.5
    best, least = (LEAST, LEAST), value(LEAST, LEAST)
    for _ in range(4):
        axes = [
            sorted({min(max(middle + reach * i / 4, LEAST), most) for i in range(-4, 5)})
            for middle, most in zip(centre, (1 - LEAST, FLATTEST), strict=True)
        ]
        for plain, uniform in itertools.product(*axes):
            error = value(plain, uniform)
            if error < least:
                best, least = (plain, uniform), error
        centre, reach = best, reach / 4
    return np.array([first, *best])
