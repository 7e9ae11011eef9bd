"""Venn-Abers prediction: two isotonic fits for every score, exact and computed in advance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.methods.curves import CurveCalibrator
from calibrant.calibrators.solvers.one_vs_rest import log_odds, search_sorted
from calibrant.functional.arrays import Array, to_tensor

Floats = NDArray[np.float64]


class VennAbers(CurveCalibrator):
    """logit q = ln p₁ − ln(1 − p₀): inductive Venn-Abers prediction (Vovk & Petej 2014).

    For a score s, p₁ is the value at s of the isotonic regression of the fitted rows with a row
    (s, happened) added, and p₀ that with (s, did not happen) added. Whichever is true, one of the
    two is a calibrated probability. They are merged as q = p₁/(1 − p₀ + p₁), the minimax choice
    for the log-likelihood, which is never 0 and never 1. Both are step functions of s: all their
    values are computed in the fit, in O(n log n) (Vovk, Petej & Fedorova 2015, section 3).

    With weights the added row counts as a row of mean weight, and the guarantee, which rests on
    exchangeable rows, is lost. With more than two classes each is fitted against the rest, and q
    is then normalised.

    Args:
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "venn_abers"

    knots_: Tensor
    lower_: Tensor
    upper_: Tensor

    def __init__(self, *, from_logits: bool = True) -> None:
        super().__init__(from_logits=from_logits)
        for name in ("knots_", "lower_", "upper_"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))

    def predict_interval(self, logits: Array) -> tuple[Any, Any]:
        """Return p₀ and p₁ of each score: NumPy or torch, as given.

        The pair is a *multiprobability*, not a confidence interval: one of the two is calibrated,
        p₁ if the event happens and p₀ if it does not. Their distance says how much one row moves
        the fit there. Shape (N,) for events and two classes (of the second class), (N,K) for more
        classes (each against the rest).

        Args:
            logits: The scores, as `predict_proba` takes them.
        """
        self.calibrate(logits)  # checks shape and values
        with torch.no_grad():
            scores = self._to_scores(to_tensor(logits).to(self.knots_.device))
            if scores.ndim == 1:
                odds = scores.unsqueeze(0)
            elif scores.shape[1] == 2:
                odds = (scores[:, 1] - scores[:, 0]).unsqueeze(0)
            else:
                odds = log_odds(scores).t().contiguous()
            lower, upper = (
                part.squeeze(0) if part.shape[0] == 1 else part.t() for part in self._look_up(odds)
            )
        if isinstance(logits, Tensor):
            return lower, upper
        return lower.cpu().numpy(), upper.cpu().numpy()

    def _fit_curves(self, odds: Tensor, hits: Tensor, times: Tensor | None) -> None:
        weights = torch.ones_like(hits) if times is None else times
        steps = [
            compute_steps(s, y, w)
            for s, y, w in zip(
                odds.cpu().numpy(), hits.cpu().numpy(), weights.cpu().numpy(), strict=True
            )
        ]
        most = max(len(step.knots) for step in steps)

        def stack(rows: list[Floats], size: int, fill: float | None) -> Tensor:
            filled = [
                np.concatenate((row, np.full(size - len(row), row[-1] if fill is None else fill)))
                for row in rows
            ]
            return torch.from_numpy(np.stack(filled)).to(odds.device)

        self.knots_ = stack([step.knots for step in steps], most, np.inf)
        self.lower_ = stack([step.lower for step in steps], most + 1, None)
        self.upper_ = stack([step.upper for step in steps], most + 1, None)

    def _look_up(self, odds: Tensor) -> tuple[Tensor, Tensor]:
        """Return p₀ and p₁ of (C,N) log-odds."""
        x, knots = odds.double(), self.knots_.double()
        above, reached = search_sorted(knots, x), search_sorted(knots, x, right=True)
        return self.lower_.double().gather(1, reached), self.upper_.double().gather(1, above)

    def _map_curves(self, odds: Tensor) -> Tensor:
        lower, upper = self._look_up(odds)
        return (upper.log() - torch.log1p(-lower)).to(odds.dtype)


class Steps(NamedTuple):
    """p₀ and p₁ as step functions of the score.

    p₁ is ``upper[j]`` for a score above j knots; p₀ is ``lower[j]`` for one that reaches j knots.
    """

    knots: Floats  # (k,), ascending
    lower: Floats  # (k + 1,)
    upper: Floats  # (k + 1,)


def compute_steps(scores: Floats, hits: Floats, weights: Floats) -> Steps:
    """Return the steps of p₀ and p₁ of rows in any order; the added row has weight 1."""
    knots, place = np.unique(scores, return_inverse=True)
    place = place.reshape(-1)
    size: Floats = np.bincount(place, weights=weights).astype(np.float64)
    happened: Floats = np.bincount(place, weights=weights * hits).astype(np.float64)
    # A score between two knots counts for p₁ as the next one, and for p₀ as the one before.
    upper = np.append(_raised_fits(size, happened), 1.0)
    lower = np.append(0.0, 1.0 - _raised_fits(size[::-1], (size - happened)[::-1])[::-1])
    moves = np.flatnonzero((np.diff(upper) != 0) | (np.diff(lower) != 0))
    corners = np.append(0, moves + 1)
    return Steps(knots[moves], lower[corners], upper[corners])


def _raised_fits(size: Floats, happened: Floats) -> Floats:
    """Return, for each score, its isotonic fit after a row of weight 1 that happened joins it.

    Isotonic regression is the slope of the greatest convex minorant of the cumulative sums
    P_j = (rows, happened). The row adds a step (1, 1) to the chain; it starts before the first
    score and changes places with one score after the other. The corners of the minorant to its
    right are a stack, on which each point is put and from which it is taken at most twice.
    """
    count = len(size)
    x = np.concatenate(((-1.0, 0.0), np.cumsum(size))).tolist()  # P_(−1), P_0, ..., P_k
    y = np.concatenate(((-1.0, 0.0), np.cumsum(happened))).tolist()
    stack_x: list[float] = []
    stack_y: list[float] = []
    for px, py in zip(reversed(x), reversed(y), strict=True):
        _push(stack_x, stack_y, px, py)
    fitted = [0.0] * count
    for i in range(count):
        top_x, top_y = stack_x[-1], stack_y[-1]
        run, rise = stack_x[-2] - top_x, stack_y[-2] - top_y
        fitted[i] = rise / run
        px, py = x[i] + x[i + 2] - x[i + 1], y[i] + y[i + 2] - y[i + 1]
        x[i + 1], y[i + 1] = px, py
        if (py - top_y) * run < rise * (px - top_x):  # below the line: a new corner
            stack_x.pop()
            stack_y.pop()
            _push(stack_x, stack_y, px, py)
    return np.clip(np.array(fitted), 0.0, 1.0)


def _push(stack_x: list[float], stack_y: list[float], px: float, py: float) -> None:
    """Push a point to the left of all others, and drop corners that are above it."""
    while len(stack_x) > 1:
        ax, ay, bx, by = stack_x[-1], stack_y[-1], stack_x[-2], stack_y[-2]
        if (ax - px) * (by - py) > (ay - py) * (bx - px):  # a turn to the left
            break
        stack_x.pop()
        stack_y.pop()
    stack_x.append(px)
    stack_y.append(py)
