"""Calibrators that map each log-odds by a curve of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.calibrators.base import PLAIN, Calibrator, Design, as_pair
from calibrant.calibrators.solvers.one_vs_rest import fit_logistic, log_odds, normalise_odds
from calibrant.core.errors import InputError
from calibrant.functional.arrays import row_slices


class CurveCalibrator(Calibrator):
    """A curve of its own for the log-odds of an event, or of each class against the rest.

    Subclasses give ``_fit_curves(odds, hits, times)`` and ``_map_curves(odds)`` for (C,N)
    log-odds. Two classes have one curve, that of the second.

    Args:
        from_logits: False if scores are probabilities, not logits.
    """

    takes_events = True
    takes_weights = True

    def _fit_curves(self, odds: Tensor, hits: Tensor, times: Tensor | None) -> None:
        """Fit one curve for each line; every subclass has its own."""
        raise NotImplementedError

    def _map_curves(self, odds: Tensor) -> Tensor:
        """Map each line by its curve; every subclass has its own."""
        raise NotImplementedError

    def _fit_events(self, odds: Tensor, happened: Tensor, design: Design) -> None:
        times = None if design.weights is None else design.weights.unsqueeze(0)
        self._fit_curves(odds.double().unsqueeze(0), happened.double().unsqueeze(0), times)

    def _map_events(self, odds: Tensor) -> Tensor:
        return self._map_curves(odds.unsqueeze(0)).squeeze(0)

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        if logits.shape[1] == 2:
            self._fit_events(logits[:, 1] - logits[:, 0], target, design)
            return
        odds = torch.cat([log_odds(logits[rows]) for rows in row_slices(logits.shape)])
        every = torch.arange(logits.shape[1], device=logits.device).unsqueeze(1)
        hits = (every == target).double()
        times = None if design.weights is None else design.weights.expand_as(hits)
        self._fit_curves(odds.t().double().contiguous(), hits, times)

    def _map(self, logits: Tensor) -> Tensor:
        if logits.shape[1] == 2:
            return as_pair(self._map_events(logits[:, 1] - logits[:, 0]))
        return normalise_odds(self._map_curves(log_odds(logits).t().contiguous()).t())


class LogisticCurve(CurveCalibrator):
    """A curve that is a logistic regression on functions of the log-odds.

    Args:
        ridge: The ridge of the fit.
        from_logits: False if scores are probabilities, not logits.
    """

    coefficients_: Tensor  # (C, number of functions)

    def __init__(self, *, ridge: float = 0.01, from_logits: bool = True) -> None:
        super().__init__(from_logits=from_logits)
        if not ridge > 0:
            raise InputError(f"ridge must be positive, found {ridge!r}")
        self.ridge = float(ridge)
        self.register_buffer("coefficients_", torch.zeros(0, dtype=torch.float64))

    def _fit_coefficients(
        self, features: Tensor, hits: Tensor, times: Tensor | None, *, rising: bool
    ) -> Tensor:
        """Fit (C,F,N) features, the first the log-odds, near the map that changes nothing."""
        centre = features.new_zeros(features.shape[1])
        centre[0] = 1.0
        lower = torch.full_like(centre, -torch.inf)
        lower[0] = 0.0 if rising else -torch.inf
        return fit_logistic(
            features, hits, centre, lower, ridge=self.ridge, times=times, name=self.name
        )
