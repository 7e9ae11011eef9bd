"""Mixed images: mixup and cutmix."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from calibrant.data.augment import cutmix, mixup
from calibrant.functional.errors import InputError
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.data.batches import Batch
    from calibrant.training.job import Job


class Mixup(Recipe):
    """λx_i + (1−λ)x_j with labels so mixed, λ ~ Beta(α, α) (Zhang et al. 2018).

    The loss sees class probabilities. α = 0.2 by default, as calibration papers have it.
    """

    name = "mixup"
    dense = False
    soft = True

    def __init__(self, *, alpha: float = 0.2) -> None:
        super().__init__()
        if not alpha > 0:
            raise InputError(f"alpha is above 0, found {alpha!r}")
        self.alpha = alpha

    def loss(self, job: Job, batch: Batch) -> Tensor:
        """The loss of a mixed batch."""
        images, soft = mixup(
            batch.inputs, batch.target, job.num_classes, alpha=self.alpha, generator=job.generator
        )
        return super().loss(job, replace(batch, inputs=images, target=soft))


class Cutmix(Mixup):
    """A box of another image pasted in, labels mixed by area (Yun et al. 2019); α = 1."""

    name = "cutmix"

    def __init__(self, *, alpha: float = 1.0) -> None:
        super().__init__(alpha=alpha)

    def loss(self, job: Job, batch: Batch) -> Tensor:
        """The loss of a pasted batch."""
        images, soft = cutmix(
            batch.inputs, batch.target, job.num_classes, alpha=self.alpha, generator=job.generator
        )
        return Recipe.loss(self, job, replace(batch, inputs=images, target=soft))
