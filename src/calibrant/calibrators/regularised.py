"""Affine maps by objectives other than the likelihood, under the same ridge toward temperature."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators import multinomial
from calibrant.calibrators.base import row_blocks
from calibrant.calibrators.descent import Problem, fit_parameters
from calibrant.calibrators.multinomial import Ridge, is_diagonal
from calibrant.calibrators.objectives import Objective
from calibrant.calibrators.scalar import search
from calibrant.calibrators.temperature import best_temperature


def fit_affine(
    features: Tensor, target: Tensor, size: float, objective: Objective, ridge: Ridge, like: Tensor
) -> tuple[float, Tensor]:
    """s and the coefficients c of x ↦ s·x + c(x), x = f(z)/size, in the shape of ``like``.

    s/size is 1/T of the objective's own best temperature, and c the minimum (or the fixed
    point of a reweighted objective, whose weights are shares of one) of

        objective(rows) + (1/2N) Σ λ c²

    which for the likelihood is what `multinomial.minimise` solves. Starts at c = 0.
    """
    scale = size / best_temperature(features, target, objective)
    rows, shape = len(target), like.shape
    blocks = multinomial.to_blocks(features / size, target)
    curvature = multinomial.Problem(blocks, scale).curvature(like.to(features.dtype)).diagonal
    strengths = ridge.weights(like.double())
    held = torch.isinf(strengths)
    strengths = strengths.masked_fill(held, 0.0)
    # In units in which the likelihood's second derivatives are 1; what is held has none.
    units = (rows / (curvature.double() + strengths).clamp_min(1e-6 * rows)).sqrt()
    units = units.masked_fill(held, 0.0)
    if bool(held.all()):
        return scale, like

    def coefficients(at: Tensor) -> Tensor:
        return at.view(shape) * units

    def map(f: Tensor, at: Tensor) -> Tensor:
        c, x = coefficients(at), f / size
        if is_diagonal(c):
            return torch.addcmul(c[1], x, c[0] + scale)
        return torch.addmm(torch.addcmul(c[-1], x, torch.full_like(c[-1], scale)), x, c[:-1])

    def penalty(at: Tensor) -> Tensor:
        return 0.5 * (strengths * coefficients(at).square()).sum() / rows

    problem = Problem(map, features, target, like.numel(), penalty)
    bounds = [(-math.inf, math.inf)] * problem.size
    # SB-ECE jumps where a prediction changes.
    kinked = objective.name == "sb_ece"
    found = fit_parameters(problem, objective, np.zeros(problem.size), bounds, kinked=kinked)
    return scale, coefficients(torch.from_numpy(found).to(features.device))


def search_temperature(
    features: Tensor, target: Tensor, affine: Tensor, objective: Objective
) -> float:
    """The one temperature after an affine map, (2,K) or (K+1,K), that a search finds best."""
    fitted = affine.to(features.dtype)
    parts = []
    for which in row_blocks(features):
        x = features[which]
        out = x * fitted[0] + fitted[1] if is_diagonal(affine) else x @ fitted[:-1] + fitted[-1]
        parts.append(out)
    mapped = torch.cat(parts)
    return math.exp(search(lambda at: objective.value(mapped / math.exp(at), target)))
