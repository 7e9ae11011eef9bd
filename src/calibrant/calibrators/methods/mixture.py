"""A mixture of calibrators, and stacking: what held-out rows say of each method and mixture."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from calibrant.calibrators.base import PLAIN, Calibrator, Design
from calibrant.calibrators.registry import get, get_for_scores, kind_of
from calibrant.calibrators.solvers.folds import assign_folds
from calibrant.calibrators.solvers.one_vs_rest import log_sigmoid
from calibrant.core.errors import InputError
from calibrant.metrics.base import compute_all
from calibrant.metrics.toplabel import ece_measure

LEAST = 1e-9  # the least weight: keeps its logarithm finite
_MOST_STEPS = 500
_STILL = 1e-5  # the weights have converged when none moves by more


class Mixture(Calibrator):
    """ln Σ_m w_m·softmax(f_m(z)), f_m calibrators by name and w on the simplex.

    The weights maximise the likelihood of rows that no f_m was fitted on (`stack_weights`),
    or are given. Each f_m is then fitted on all rows. If every member keeps all predictions,
    so does the mixture: each part is largest at the same class.

    Args:
        members: The names of the calibrators. Default: ('temperature', 'beta', 'vector',
            'matrix') (ours: simple methods that differ in what they can fit).
        weights: w, one weight for each member, summing to 1; None chooses them by stacking.
            Default: None (Wolpert 1992; Breiman 1996).
        folds: The number of folds of stacking. Default: 5 (ours: more folds change little).
        seed: The seed of the folds. Default: 0 (ours: a fit repeats exactly).
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "mixture"

    weights_: Tensor

    def __init__(
        self,
        *,
        members: Sequence[str] = ("temperature", "beta", "vector", "matrix"),
        weights: Sequence[float] | None = None,
        folds: int = 5,
        seed: int = 0,
        from_logits: bool = True,
    ) -> None:
        super().__init__(from_logits=from_logits)
        self.members = tuple(members)
        if not self.members or len(set(self.members)) < len(self.members):
            raise InputError(f"members must be one or more different names, found {list(members)}")
        for name in self.members:
            kind = kind_of(name)
            if name == self.name or kind.takes_features or kind.dense_only:
                raise InputError(f"{name} cannot be part of a mixture")
        self.weights = None if weights is None else tuple(weights)
        if self.weights is not None:
            if len(self.weights) != len(self.members):
                raise InputError(
                    f"{len(self.members)} members need as many weights, found {len(self.weights)}"
                )
            if not (min(self.weights) >= 0 and abs(sum(self.weights) - 1) < 1e-6):
                raise InputError(
                    f"weights must not be negative and must sum to 1, found {list(self.weights)}"
                )
        if folds < 2:
            raise InputError(f"folds must be at least 2, found {folds}")
        self.folds, self.seed = folds, seed
        self.parts = nn.ModuleDict({name: get(name) for name in self.members})
        parts = [cast(Calibrator, part) for part in self.parts.values()]
        self.preserves_predictions = all(part.preserves_predictions for part in parts)
        self.takes_events = all(part.takes_events for part in parts)
        self.takes_weights = all(part.takes_weights for part in parts)
        self.register_buffer("weights_", torch.zeros(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        self._fit_parts(logits, target, design, "classes")

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        self._fit_parts(odds, happened, design, "events")

    def _fit_parts(self, scores: Tensor, target: Tensor, design: Design, task: str) -> None:
        """Fit the weights, unless they are given, and each part on all rows."""
        weights = self.weights or self._stack(scores, target, design, task)
        for part in self.parts.values():
            cast(Calibrator, part).fit(
                scores, target, weights=design.weights, clusters=design.clusters, task=task
            )
        shares = torch.tensor(weights, dtype=torch.float64, device=scores.device).clamp_min(LEAST)
        self.weights_ = shares / shares.sum()

    def _stack(self, scores: Tensor, target: Tensor, design: Design, task: str) -> Sequence[float]:
        codes = None if design.clusters is None else design.clusters.cpu().numpy()
        folds = min(self.folds, len(target) if codes is None else len(np.unique(codes)))
        if folds < 2 or len(self.members) == 1:
            return [1.0 / len(self.members)] * len(self.members)
        assigned = assign_folds(target.cpu().numpy(), folds, self.seed, codes)
        losses = [
            hold_out(name, scores, target, assigned, design=design, task=task).losses
            for name in self.members
        ]
        row_weights = None if design.weights is None else design.weights.cpu().numpy()
        return list(stack_weights(np.stack(losses), row_weights).tolist())

    def _map_events(self, odds: Tensor) -> Tensor:
        logs = self.weights_.log().to(odds.dtype)
        mapped = torch.stack([cast(Calibrator, p)._map_events(odds) for p in self.parts.values()])
        return torch.logsumexp(log_sigmoid(mapped) + logs.unsqueeze(1), 0) - torch.logsumexp(
            log_sigmoid(-mapped) + logs.unsqueeze(1), 0
        )

    def _map(self, logits: Tensor) -> Tensor:
        logs = self.weights_.log().to(logits.dtype)
        mixed: Tensor | None = None
        for i, part in enumerate(self.parts.values()):
            share = torch.log_softmax(cast(Calibrator, part)._map(logits), dim=1) + logs[i]
            mixed = share if mixed is None else torch.logaddexp(mixed, share)
        assert mixed is not None
        return mixed


@dataclass(frozen=True)
class HeldOut:
    """Each row by a method that was fitted on the other folds."""

    losses: NDArray[np.float64]  # −ln of the probability of the row's label
    errors: list[float]  # ECE of each fold
    outputs: Tensor | None = None  # log-probabilities, if asked for


def hold_out(
    name: str,
    logits: Tensor,
    target: Tensor,
    assigned: NDArray[np.int64],
    *,
    keep_outputs: bool = False,
    design: Design = PLAIN,
    task: str = "classes",
    absent: bool = False,
) -> HeldOut:
    """Fit a method on all folds but one and apply it to that one, for every fold.

    Args:
        name: The calibrator's name.
        logits: (N,K) logits, or (N,) of events.
        target: (N,) labels.
        assigned: (N,), the fold of each row.
        keep_outputs: True keeps the log-probabilities. Default: False (they take as much memory
            as the logits).
        design: The rows' weights and clusters. Default: `PLAIN` (none).
        task: ``"classes"`` or ``"events"``. Default: 'classes'.
        absent: True lets logits of −inf stand for absent options. Default: False.
    """
    outputs = torch.empty_like(logits, dtype=torch.float32) if keep_outputs else None
    losses = np.empty(len(target))
    errors = []
    for fold in range(int(assigned.max()) + 1):
        test = torch.from_numpy(np.flatnonzero(assigned == fold)).to(target.device)
        rest = torch.from_numpy(np.flatnonzero(assigned != fold)).to(target.device)
        weights, clusters = (None if part is None else part[rest] for part in design)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the final fit repeats what matters
            calibrator = get_for_scores(name, from_logits=True)
            calibrator.fit(
                logits[rest],
                target[rest],
                weights=weights,
                clusters=clusters,
                task=task,
                absent=absent,
            )
            mapped = calibrator.calibrate(logits[test])
        labels = target[test]
        if task == "events":
            exact = mapped.double()
            true_logs = labels * exact - torch.nn.functional.softplus(exact)
        else:
            logs = torch.log_softmax(mapped.double(), dim=1)
            true_logs = logs.gather(1, labels.unsqueeze(1)).squeeze(1)
            if outputs is not None:
                outputs[test] = logs.float()
        losses[test.cpu().numpy()] = -true_logs.cpu().numpy()
        test_weights = None if design.weights is None else design.weights[test]
        errors.append(measure_ece(mapped, labels, test_weights, task=task, absent=absent))
    return HeldOut(losses, errors, outputs)


def measure_ece(
    logits: Tensor,
    target: Tensor,
    weights: Tensor | None = None,
    *,
    task: str = "classes",
    absent: bool = False,
) -> float:
    """Return the ECE of the predicted class, or of the event."""
    positive = 1 if task == "events" else None
    (error,) = compute_all(
        [ece_measure()], [(logits, target, weights)], positive=positive, absent=absent
    )
    return float(error)


def stack_weights(
    losses: NDArray[np.float64], row_weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the weights on the simplex that minimise −Σ_n ln Σ_m w_m·exp(−ℓ_mn), ℓ (M,N).

    Stacking (Wolpert 1992; Breiman 1996): the losses are those of held-out rows, so a method
    that overfits its own rows gains nothing. The problem is convex; each step of
    expectation-maximisation sets w_m to the mean share of method m in the mixture.

    Args:
        losses: (M,N) losses of M methods.
        row_weights: (N,) weights of the rows. Default: None (all count the same).
    """
    odds = np.exp(losses.min(0) - losses)
    weights = np.full(len(losses), 1.0 / len(losses))
    for _ in range(_MOST_STEPS):
        shares = weights[:, None] * odds
        shares /= shares.sum(0)
        after = shares.mean(1) if row_weights is None else np.average(shares, 1, row_weights)
        moved, weights = float(np.abs(after - weights).max()), after
        if moved < _STILL:
            break
    return weights


def mix_losses(losses: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return −ln Σ_m w_m·exp(−ℓ_mn) of every row."""
    least = losses.min(0)
    total = (weights[:, None] * np.exp(least - losses)).sum(0)
    return np.asarray(least - np.log(np.maximum(total, np.finfo(np.float64).tiny)))


def mix_held_out(
    parts: list[HeldOut],
    target: Tensor,
    assigned: NDArray[np.int64],
    row_weights: Tensor | None = None,
) -> HeldOut:
    """Mix methods on every fold, with the weights of the other folds."""
    all_weights = None if row_weights is None else row_weights.cpu().numpy()
    losses = np.stack([part.losses for part in parts])
    mixed, errors = np.empty(losses.shape[1]), []
    for fold in range(int(assigned.max()) + 1):
        test = assigned == fold
        weights = stack_weights(
            losses[:, ~test], None if all_weights is None else all_weights[~test]
        )
        mixed[test] = mix_losses(losses[:, test], weights)
        outputs = [part.outputs for part in parts if part.outputs is not None]
        if len(outputs) == len(parts):
            rows = torch.from_numpy(np.flatnonzero(test)).to(target.device)
            shifts = np.log(np.maximum(weights, 1e-30)).tolist()
            logs = [z[rows] + shift for z, shift in zip(outputs, shifts, strict=True)]
            mixture = torch.logsumexp(torch.stack(logs), 0)
            test_weights = None if row_weights is None else row_weights[rows]
            errors.append(measure_ece(mixture, target[rows], test_weights))
    return HeldOut(mixed, errors)
