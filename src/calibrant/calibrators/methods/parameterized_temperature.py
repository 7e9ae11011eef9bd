"""Parameterized temperature scaling: a small network gives each row its temperature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Design
from calibrant.calibrators.methods.temperature import ObjectiveCalibrator, best_temperature
from calibrant.calibrators.solvers.descent import fit_parameters, search_grid
from calibrant.calibrators.solvers.objectives import Objective, get_objective
from calibrant.calibrators.solvers.problem import (
    COLDEST,
    HOTTEST,
    Partition,
    Rows,
    TemperedProblem,
    Vector,
)
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices

TOP = 10  # logits the network sees
WIDTHS = (2, 2, 2, 2, 1)
_STEPS = 60


class ParameterizedTemperature(ObjectiveCalibrator):
    """z ↦ z / T(z), T(z) = softplus(network(top-10 logits, sorted)) (PTS, Tomani et al. 2022).

    The network is 10-2-2-2-2-1 with ReLU (class-scaling eq. 14 and its code; positive by
    softplus here), on all logits where there are fewer than ten, with T in [0.01, 100]. One
    positive number divides a row, so no prediction changes. The network starts as the single
    fitted temperature, its last weights 0, and is never worse than it on the rows of the fit.
    The objective ``"ece"`` has no gradient: T(z) is then that of the likelihood times one
    number found by a search.

    Args:
        weight_decay: The factor of |weights|²/2, added to the summed loss over standardised
            logits; biases are free. It draws the network to the single temperature. Default:
            3.0 (ours: class-scaling's code has 0.002 beside the mean loss, biases included).
        restarts: The number of seeded starts of the inner layers; the best fit is kept.
            Default: 2 (ours: one start may die at a ReLU).
        seed: The seed of these starts. Default: 0 (ours: a fit repeats exactly).
        objective: What the fit minimises; see `temperature`. Default: 'nll' (Tomani et al. 2022).
        objective_options: Options of the objective, by name. Default: None (the objective's
            own defaults).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "parameterized_temperature"
    preserves_predictions = True
    takes_events = True
    takes_weights = True

    network_: Tensor
    scale_: Tensor

    def __init__(
        self,
        *,
        weight_decay: float = 3.0,
        restarts: int = 2,
        seed: int = 0,
        objective: str = "nll",
        objective_options: dict[str, Any] | None = None,
        from_logits: bool = True,
    ) -> None:
        super().__init__(
            objective=objective, objective_options=objective_options, from_logits=from_logits
        )
        if weight_decay < 0 or restarts < 1:
            raise InputError(
                f"weight_decay must not be negative and restarts must be at least 1, found "
                f"{weight_decay!r} and {restarts!r}"
            )
        self.weight_decay, self.restarts, self.seed = weight_decay, restarts, seed
        self.register_buffer("network_", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("scale_", torch.ones((), dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        self._check_objective(logits, design)
        objective, weights = self._objective(), design.weights
        searched = objective.kind == "searched"
        smooth = get_objective("nll") if searched else objective
        start = best_temperature(logits, target, smooth, weights)
        self.facts_ = smooth.facts()
        inputs = torch.cat([_top(logits[rows]) for rows in row_slices(logits.shape)]).double()
        mean, deviation = inputs.mean(0), inputs.std(0, correction=0)
        deviation = deviation.where(deviation > 1e-6, torch.ones_like(deviation))
        scaled = (inputs - mean) / deviation
        network = self._network(logits, target, scaled, smooth, start, weights)
        self.network_ = _absorb(torch.from_numpy(network).to(logits.device), mean, deviation)
        self.scale_ = torch.ones((), dtype=torch.float64, device=logits.device)
        if searched:
            scaled = torch.cat([self._map(logits[rows]) for rows in row_slices(logits.shape)])
            best = search_grid(
                lambda log_factor: objective.value(scaled / math.exp(log_factor), target)
            )
            self.scale_ = self.scale_ * math.exp(best)

    def _network(
        self,
        logits: Tensor,
        target: Tensor,
        inputs: Tensor,
        objective: Objective,
        start: float,
        row_weights: Tensor | None,
    ) -> Vector:
        """Fit the parameters of the best network on standardised inputs."""
        width = inputs.shape[1]
        weights = torch.from_numpy(_mark_weights(width)).to(logits.device)
        # The last layer is fitted in units of the temperature, where its decay has a meaning.
        unit = np.ones(_size(width))
        unit[-1 - WIDTHS[-2] :] = max(start, 1.0)
        units = torch.from_numpy(unit).to(logits.device)
        decay = self.weight_decay

        partition = Partition(logits, target, row_weights)

        def rows(point: Tensor) -> Rows:
            return partition.rows(-temperatures(inputs, point * units).log())

        def penalty(point: Tensor) -> Tensor:
            return 0.5 * decay * point[weights].square().sum() / len(target)

        problem = TemperedProblem(rows, logits, target, len(unit), penalty)
        bounds = [(-50.0, 50.0)] * problem.size
        best = _start(width, start, None) / unit
        least = problem.loss(best, objective.loss) if objective.kind == "smooth" else math.inf
        for turn in range(self.restarts):
            point = _start(width, start, np.random.default_rng((self.seed, turn))) / unit
            # Full decay from the start would pull a network to 0 before it learns anything.
            for share in (0.1, 1.0):
                decay = share * self.weight_decay
                point = fit_parameters(problem, objective, point, bounds, most=_STEPS, kinked=True)
            if objective.kind == "reweighted":
                return point * unit  # a fixed point has no value to compare by
            value = problem.gradient(point, objective.loss)[0]  # with its penalty
            if value < least:
                best, least = point, value
        return best * unit

    def _map(self, logits: Tensor) -> Tensor:
        inputs = _top(logits)
        temperature = temperatures(inputs, self.network_.to(logits.dtype)) * self.scale_.to(
            logits.dtype
        )
        return logits / temperature.unsqueeze(1)


def _top(logits: Tensor) -> Tensor:
    return logits.topk(min(TOP, logits.shape[1]), dim=1).values


def _shapes(width: int) -> list[tuple[int, int]]:
    return list(zip(WIDTHS, (width, *WIDTHS[:-1]), strict=True))


def _size(width: int) -> int:
    return sum(out * (into + 1) for out, into in _shapes(width))


def _mark_weights(width: int) -> Any:
    """Mark the parameters that are weights; the others are biases."""
    parts = [(np.ones(out * into, bool), np.zeros(out, bool)) for out, into in _shapes(width)]
    return np.concatenate([array for pair in parts for array in pair])


def _start(width: int, temperature: float, random: np.random.Generator | None) -> Vector:
    """Return parameters of a network with last weights 0, whose output is the temperature."""
    parts: list[Vector] = []
    for layer, (out, into) in enumerate(_shapes(width)):
        weight = np.zeros(out * into)
        if random is not None:
            weight = random.normal(0.0, math.sqrt(1.0 / into), out * into)
        # Only the first layer has signs: negative values would die at the next ReLU.
        parts += [weight if layer == 0 else np.abs(weight), np.full(out, 0.5)]
    parts[-2] = np.zeros(WIDTHS[-2])
    parts[-1] = np.array([temperature + math.log(-math.expm1(-temperature))])
    return np.concatenate(parts)


def temperatures(inputs: Tensor, parameters: Tensor) -> Tensor:
    """Return softplus of the network at (N,10) inputs, in [0.01, 100]."""
    place, hidden = 0, inputs
    shapes = _shapes(inputs.shape[1])
    for layer, (out, into) in enumerate(shapes):
        weight = parameters[place : place + out * into].view(out, into)
        bias = parameters[place + out * into : place + out * (into + 1)]
        place += out * (into + 1)
        hidden = hidden @ weight.t() + bias
        if layer < len(shapes) - 1:
            hidden = torch.relu(hidden)
    return torch.nn.functional.softplus(hidden.squeeze(1)).clamp(COLDEST, HOTTEST)


def _absorb(parameters: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the same network for plain logits: its first layer absorbs the standardisation."""
    width, out = len(mean), WIDTHS[0]
    weight = parameters[: out * width].view(out, width) / deviation
    bias = parameters[out * width : out * (width + 1)] - weight @ mean
    return torch.cat((weight.reshape(-1), bias, parameters[out * (width + 1) :]))
