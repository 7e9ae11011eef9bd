"""Calibrators judged on rows they were not fitted on, and how best to mix them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.registry import get_for_scores
from calibrant.metrics.toplabel import ece

_MOST_STEPS = 500
_STILL = 1e-5  # no weight moves by more: mixed well enough


@dataclass(frozen=True)
class HeldOut:
    """What fits on other folds make of each row."""

    losses: NDArray[np.float64]  # −ln of the probability of its label
    errors: list[float]  # ECE of each fold
    outputs: Tensor | None = None  # log-probabilities, where asked for


def fold_of(target: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """A fold for every row, the rows of each class spread over the folds."""
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(target))
    by_class = shuffled[np.argsort(target[shuffled], kind="stable")]
    assigned = np.empty(len(target), dtype=np.int64)
    assigned[by_class] = np.arange(len(target)) % folds
    return assigned


def held_out(
    name: str,
    logits: Tensor,
    target: Tensor,
    assigned: NDArray[np.int64],
    *,
    keep_outputs: bool = False,
) -> HeldOut:
    """A method on every fold of the rows, fitted on the others."""
    outputs = torch.empty_like(logits, dtype=torch.float32) if keep_outputs else None
    losses = np.empty(len(target))
    errors = []
    for fold in range(int(assigned.max()) + 1):
        test = torch.from_numpy(np.flatnonzero(assigned == fold)).to(target.device)
        rest = torch.from_numpy(np.flatnonzero(assigned != fold)).to(target.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bounds reached on a fold are no news
            made = get_for_scores(name, from_logits=True)
            mapped = made.fit(logits[rest], target[rest]).calibrate(logits[test])
        logs = torch.log_softmax(mapped.double(), dim=1)
        own = logs.gather(1, target[test].unsqueeze(1)).squeeze(1)
        losses[test.cpu().numpy()] = -own.cpu().numpy()
        errors.append(float(ece(mapped, target[test])))
        if outputs is not None:
            outputs[test] = logs.float()
    return HeldOut(losses, errors, outputs)


def stacked_weights(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights on the simplex that minimise −Σ_n ln Σ_m w_m·exp(−ℓ_mn), from (M,N) losses.

    Stacking (Wolpert 1992; Breiman 1996): of rows held out, so that a method that fits its own
    rows too well gains nothing by it. Convex; each step of expectation-maximisation, w_m ←
    the mean over rows of method m's share in the mixture, lowers it.
    """
    odds = np.exp(losses.min(0) - losses)
    weights = np.full(len(losses), 1.0 / len(losses))
    for _ in range(_MOST_STEPS):
        shares = weights[:, None] * odds
        shares /= shares.sum(0)
        after = shares.mean(1)
        moved, weights = float(np.abs(after - weights).max()), after
        if moved < _STILL:
            break
    return weights


def mixed_losses(losses: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """−ln Σ_m w_m·exp(−ℓ_mn) of every row."""
    least = losses.min(0)
    total = (weights[:, None] * np.exp(least - losses)).sum(0)
    return np.asarray(least - np.log(np.maximum(total, np.finfo(np.float64).tiny)))


def mixed_held_out(parts: list[HeldOut], target: Tensor, assigned: NDArray[np.int64]) -> HeldOut:
    """The mixture of methods on every fold, its weights those of the other folds."""
    losses = np.stack([one.losses for one in parts])
    found, errors = np.empty(losses.shape[1]), []
    for fold in range(int(assigned.max()) + 1):
        test = assigned == fold
        weights = stacked_weights(losses[:, ~test])
        found[test] = mixed_losses(losses[:, test], weights)
        outputs = [one.outputs for one in parts if one.outputs is not None]
        if len(outputs) == len(parts):
            rows = torch.from_numpy(np.flatnonzero(test)).to(target.device)
            shifts = np.log(np.maximum(weights, 1e-30)).tolist()
            logs = [z[rows] + shift for z, shift in zip(outputs, shifts, strict=True)]
            errors.append(float(ece(torch.logsumexp(torch.stack(logs), 0), target[rows])))
    return HeldOut(found, errors)
