"""How strong a ridge: strengths compared by the likelihood of rows held out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.calibrators.multinomial import (
    Blocks,
    Curvature,
    Problem,
    Ridge,
    minimise,
    to_blocks,
)
from calibrant.calibrators.narrow import Evaluation, NarrowFits


@dataclass(frozen=True)
class State:
    """Strengths, each held-out fold's coefficients under them, and the loss of its rows."""

    ridge: Ridge
    coefficients: list[Tensor]
    losses: Tensor
    seen: Evaluation | None = None  # of `NarrowFits`

    @property
    def loss(self) -> float:
        """Of all rows held out."""
        return float(self.losses.sum())

    def beats(self, other: State) -> bool:
        """Better by more than chance makes of a difference of paired rows."""
        gain = other.losses - self.losses
        error = float(gain.std()) * len(gain) ** 0.5
        # Few rows leave the error itself uncertain: 1.5 errors at 50 rows, half of one at many.
        return float(gain.sum()) > (0.5 + 50 / len(gain)) * error

    def mean(self) -> Tensor:
        """The folds' coefficients, on average: where a fit on all rows starts."""
        return torch.stack(self.coefficients).mean(0)


class Search:
    """Strengths compared by the likelihood of rows held out, warm-started from the last."""

    def __init__(self, folds: list[Blocks], scale: float, visited: int, tolerance: float) -> None:
        self.tolerance = tolerance
        self.held_out = [Problem(fold, scale) for fold in folds[:visited]]
        self.fitted = [
            Problem([b for other in folds if other is not folds[i] for b in other], scale)
            for i in range(visited)
        ]

    def begin(self, ridge: Ridge, zero: Tensor) -> State:
        """The state of a first ridge; an infinite one leaves every coefficient at zero."""
        coefficients = [zero for _ in self.fitted]
        state = State(ridge, coefficients, self._losses(coefficients))
        if math.isfinite(ridge.intercept):
            return self._step(ridge, state, self._curvatures(state))
        return state

    def down(self, state: State, tries: list[Ridge]) -> State:
        """The best of some ridges, strongest first: every second one, then its neighbours."""
        curvatures = self._curvatures(state)
        best, last, at, lowest, worse = state, state, -1, state.loss, 0
        for i in range(0, len(tries), 2):
            last = self._step(tries[i], last, curvatures)
            if last.beats(best):
                best, at = last, i
            if last.loss < lowest:
                lowest, worse = last.loss, 0
            else:
                # The strongest may be too strong to move at all: look once beyond them.
                worse += 1
                if worse == (2 if at < 0 else 1):
                    break
        for i in (at - 1, at + 1):
            if at >= 0 and 0 <= i < len(tries):
                near = self._step(tries[i], best, curvatures)
                if near.beats(best) or (i < at and not best.beats(near)):
                    return near
        return best

    def _curvatures(self, state: State) -> list[Curvature]:
        return [p.curvature(c) for p, c in zip(self.fitted, state.coefficients, strict=True)]

    def _step(self, ridge: Ridge, start: State, curvatures: Sequence[Curvature]) -> State:
        found = [
            minimise(
                problem,
                ridge,
                at,
                tolerance=self.tolerance,
                most=100,
                must_converge=False,
                curvature=curvature,
            )
            for problem, at, curvature in zip(
                self.fitted, start.coefficients, curvatures, strict=True
            )
        ]
        return State(ridge, found, self._losses(found))

    def _losses(self, coefficients: list[Tensor]) -> Tensor:
        return torch.cat(
            [p.losses(c) for p, c in zip(self.held_out, coefficients, strict=True)]
        ).double()


class NarrowSearch(Search):
    """The same for the diagonals of few classes: all folds at once, by Newton's method."""

    def __init__(self, folds: list[Blocks], scale: float, visited: int, tolerance: float) -> None:
        self.tolerance, self.visited = tolerance, visited
        features = torch.cat([x for fold in folds for x, _ in fold]).t().contiguous()
        target = torch.cat([y for fold in folds for _, y in fold])
        sizes = torch.tensor([sum(len(y) for _, y in fold) for fold in folds])
        fold_of = torch.arange(len(folds)).repeat_interleave(sizes).to(target.device)
        self.out = fold_of == torch.arange(visited, device=target.device).unsqueeze(1)
        self.fits = NarrowFits(features, target, scale, (~self.out).to(features.dtype))

    def begin(self, ridge: Ridge, zero: Tensor) -> State:
        """As of `Search`."""
        state = self._state(ridge, zero.expand(self.visited, *zero.shape), None)
        return self._step(ridge, state, ()) if math.isfinite(ridge.intercept) else state

    def _curvatures(self, state: State) -> list[Curvature]:
        return []

    def _step(self, ridge: Ridge, start: State, curvatures: Sequence[Curvature]) -> State:
        found, seen = self.fits.minimise(
            ridge, torch.stack(start.coefficients), tolerance=self.tolerance, known=start.seen
        )
        return self._state(ridge, found, seen)

    def _state(self, ridge: Ridge, coefficients: Tensor, seen: Evaluation | None) -> State:
        seen = seen or self.fits.at(coefficients)
        each = list(coefficients.to(self.fits.features.dtype))
        return State(ridge, each, seen.losses[self.out].double(), seen)


def cut(features: Tensor, target: Tensor, size: float, folds: int) -> list[Blocks]:
    """Rows shuffled, scaled and cut into folds, in single precision: enough to compare by."""
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    found: list[Blocks] = []
    for fold in range(folds):
        rows = order[fold::folds].to(features.device)
        found.append(to_blocks((features[rows] / size).float(), target[rows]))
    return found
