"""Train on mixed images: mixup and cutmix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.data.augment import cutmix, mixup
from calibrant.data.batches import Batch
from calibrant.training.recipes.base import Job, Recipe


class Mixup(Recipe):
    """Mix pairs of images and their labels: λx_i + (1−λ)x_j, λ ~ Beta(α, α) (Zhang et al. 2018).

    The loss sees class probabilities.

    Args:
        alpha: α of the Beta distribution; larger values mix more. Default: 0.2 (ours: small α
            calibrates better, mac-cal, section 4.3).
    """

    name = "mixup"
    dense = False
    soft = True
    mix: ClassVar[Any] = staticmethod(mixup)

    def __init__(self, *, alpha: float = 0.2) -> None:
        super().__init__()
        if not alpha > 0:
            raise InputError(f"alpha must be above 0, found {alpha!r}")
        self.alpha = alpha

    def loss(self, job: Job, batch: Batch) -> Tensor:
        """Compute the loss of a mixed batch."""
        images, soft = self.mix(
            batch.inputs, batch.target, job.num_classes, alpha=self.alpha, generator=job.generator
        )
        return super().loss(job, replace(batch, inputs=images, target=soft))


class Cutmix(Mixup):
    """Paste a box of another image and mix labels by area (Yun et al. 2019).

    Args:
        alpha: α of the Beta distribution of the area that is kept. Default: 1.0 (Yun et al.
            2019: uniform).
    """

    name = "cutmix"
    mix = staticmethod(cutmix)

    def __init__(self, *, alpha: float = 1.0) -> None:
        super().__init__(alpha=alpha)
