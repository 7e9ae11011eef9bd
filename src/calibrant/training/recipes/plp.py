"""Progressive layer peeling (PLP): freeze layers from the top down during training."""

from __future__ import annotations

from torch import nn

from calibrant.core.errors import InputError
from calibrant.training.recipes.base import Job, Recipe


def layers_from_top(network: nn.Module) -> list[nn.Module]:
    """Return the modules with parameters of their own, the last registered first."""
    return [
        module
        for module in reversed(list(network.modules()))
        if any(True for _ in module.parameters(recurse=False))
    ]


class LayerPeeling(Recipe):
    """Freeze layers evenly from the classifier down (PLP, Wang and Zhang 2024).

    A classifier that is not overtrained leaves features that can be calibrated. BatchNorm's
    statistics still move. The network is never compiled.

    Args:
        start: The share of the epochs before the first layer is frozen. Default: 0.5 (ours: the
            papers here give no schedule).
        share: The share of the layers that are frozen at the end. Default: 0.5 (ours: the
            papers here give no schedule).
    """

    name = "plp"
    steady = False  # other layers learn in each epoch: compiling again would take longer

    def __init__(self, *, start: float = 0.5, share: float = 0.5) -> None:
        super().__init__()
        if not (0 <= start < 1 and 0 < share <= 1):
            raise InputError(
                f"start must lie in [0, 1) and share in (0, 1], found {start!r} and {share!r}"
            )
        self.start, self.share = start, share

    def count_frozen(self, epoch: int, epochs: int, layers: int) -> int:
        """Return how many layers, from the top, are frozen in an epoch (counted from 0)."""
        first = self.start * epochs
        if epoch < first:
            return 0
        progress = (epoch - first + 1) / (epochs - first)
        most = max(1, min(round(self.share * layers), layers - 1))
        return min(most, max(1, int(progress * most + 1e-9)))

    def before_epoch(self, job: Job) -> None:
        """Freeze the layers of this epoch."""
        layers = layers_from_top(job.network)
        count = self.count_frozen(job.epoch, job.epochs, len(layers))
        for place, layer in enumerate(layers):
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(place >= count)
                if place < count:
                    parameter.grad = None  # or momentum and decay would still move it

    def after_epoch(self, job: Job) -> dict[str, float]:
        """Report the number of frozen layers."""
        layers = layers_from_top(job.network)
        return {"frozen_layers": float(self.count_frozen(job.epoch - 1, job.epochs, len(layers)))}
