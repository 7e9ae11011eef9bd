"""A mixture of calibrators: where no single one is best, their probabilities are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.cross_fit import fold_of, held_out, stacked_weights
from calibrant.calibrators.registry import get, kind_of
from calibrant.functional.errors import InputError

LEAST = 1e-9  # of a weight: keeps its logarithm finite


class Mixture(Calibrator):
    """ln Σ_m w_m·softmax(f_m(z)), f_m calibrators by name and w on the simplex.

    Weights are those of stacking: they maximise the likelihood of rows that no f_m was fitted
    on, in ``folds`` folds (`cross_fit.stacked_weights`), or are given. Each f_m is then fitted
    on all rows. Where every member keeps all predictions, so does the mixture: each part is
    largest at the same class.
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
            raise InputError(f"members are one or more different names, found {list(members)}")
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
        self.preserves_predictions = all(
            cast(Calibrator, part).preserves_predictions for part in self.parts.values()
        )
        self.register_buffer("weights_", torch.zeros(0, dtype=torch.float64))

    def _fit(self, logits: Tensor, target: Tensor) -> None:
        weights = self._stacked(logits, target) if self.weights is None else self.weights
        for part in self.parts.values():
            cast(Calibrator, part).fit(logits, target)
        found = torch.tensor(weights, dtype=torch.float64, device=logits.device).clamp_min(LEAST)
        self.weights_ = found / found.sum()

    def _stacked(self, logits: Tensor, target: Tensor) -> Sequence[float]:
        folds = min(self.folds, len(target))
        if folds < 2 or len(self.members) == 1:
            return [1.0 / len(self.members)] * len(self.members)
        assigned = fold_of(target.cpu().numpy(), folds, self.seed)
        each = [held_out(name, logits, target, assigned).losses for name in self.members]
        return list(stacked_weights(np.stack(each)).tolist())

    def _map(self, logits: Tensor) -> Tensor:
        logs = self.weights_.log().to(logits.dtype)
        found: Tensor | None = None
        for i, part in enumerate(self.parts.values()):
            one = torch.log_softmax(cast(Calibrator, part)._map(logits), dim=1) + logs[i]
            found = one if found is None else torch.logaddexp(found, one)
        assert found is not None
        return found
