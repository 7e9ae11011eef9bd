"""Progressive layer peeling: layers stop learning from the top down while training goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from calibrant.functional.errors import InputError
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.training.job import Job


def layers_from_top(network: nn.Module) -> list[nn.Module]:
    """Modules that have parameters of their own, last first, in the order they are registered."""
    return [
        module
        for module in reversed(list(network.modules()))
        if any(True for _ in module.parameters(recurse=False))
    ]


class LayerPeeling(Recipe):
    """PLP (Wang and Zhang 2024): a classifier not overtrained leaves features calibratable.

    From ``start`` (a share of the epochs) on, layers are frozen one after another from the
    classifier down, evenly over the epochs left, until ``share`` of the layers are. The papers
    here give no schedule: these numbers are ours. BatchNorm's statistics go on. The network is
    not compiled, whatever the settings say.
    """

    name = "plp"
    steady = False  # other layers learn in each epoch: compiling anew would take longer than it

    def __init__(self, *, start: float = 0.5, share: float = 0.5) -> None:
        super().__init__()
        if not (0 <= start < 1 and 0 < share <= 1):
            raise InputError(
                f"start lies in [0, 1) and share in (0, 1], found {start!r} and {share!r}"
            )
        self.start, self.share = start, share

    def frozen(self, epoch: int, epochs: int, layers: int) -> int:
        """How many layers, from the top, do not learn in an epoch (counted from 0)."""
        begin = self.start * epochs
        if epoch < begin:
            return 0
        passed = (epoch - begin + 1) / (epochs - begin)
        most = max(1, min(round(self.share * layers), layers - 1))
        return min(most, max(1, int(passed * most + 1e-9)))

    def before_epoch(self, job: Job) -> None:
        """Freeze what is due."""
        layers = layers_from_top(job.network)
        count = self.frozen(job.epoch, job.epochs, len(layers))
        for place, layer in enumerate(layers):
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(place >= count)
                if place < count:
                    parameter.grad = None  # or momentum and decay would go on moving it

    def after_epoch(self, job: Job) -> dict[str, float]:
        """How many layers are frozen."""
        layers = layers_from_top(job.network)
        return {"frozen_layers": float(self.frozen(job.epoch - 1, job.epochs, len(layers)))}
