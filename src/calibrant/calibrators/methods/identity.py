"""The calibrator that leaves logits alone."""

from __future__ import annotations

from torch import Tensor

from calibrant.calibrators.base import PLAIN, Calibrator, Design


class Identity(Calibrator):
    """z ↦ z: what every other method has to beat.

    Args:
        from_logits: False if scores are probabilities, not logits. Default: True (ours: logits
            keep digits that probabilities lose).
    """

    name = "identity"
    preserves_predictions = True
    takes_events = True
    takes_options = True
    takes_weights = True

    def _fit(self, logits: Tensor, target: Tensor, design: Design = PLAIN) -> None:
        pass

    def _map(self, logits: Tensor) -> Tensor:
        return logits
