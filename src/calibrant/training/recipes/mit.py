"""MIT: mixup in training, with the logits of the raw images recovered from two mixed passes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.data.augment import beta_draws
from calibrant.functional.errors import InputError
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.data.batches import Batch
    from calibrant.training.job import Job

MOST_DRAWS = 10_000


def two_shares(
    alpha: float, margin: float, generator: torch.Generator, *, single_draw: bool = False
) -> tuple[float, float]:
    """λ1 > λ2 at least ``margin`` apart: the larger and the smaller of two Beta(α, α) draws.

    Drawn again until they are; ``single_draw`` takes λ2 = 1 − λ1 of one draw.
    """
    for _ in range(MOST_DRAWS):
        first, second = beta_draws(alpha, 2, generator, generator.device).tolist()
        second = 1.0 - first if single_draw else second
        high, low = max(first, second), min(first, second)
        if high - low >= margin:
            return high, low
    raise InputError(
        f"no draw of Beta({alpha:g}, {alpha:g}) was {margin:g} apart in {MOST_DRAWS:,}: lower "
        "alpha or margin"
    )


def unmix(first: Tensor, second: Tensor, high: float, low: float) -> tuple[Tensor, Tensor]:
    """u, v of first = λ1·u + (1−λ1)·v and second = λ2·u + (1−λ2)·v."""
    gap = high - low
    left = ((1.0 - low) * first - (1.0 - high) * second) / gap
    right = (high * second - low * first) / gap
    return left, right


class MIT(Recipe):
    """Two passes over images mixed with λ1 and λ2; the raw logits by solving for them.

    methods.md: λ1 and λ2 of two independent draws, at least ``margin`` apart; both raw
    images' losses averaged (Wang et al. 2023). ``single_draw`` takes λ2 = 1 − λ1.
    """

    name = "mit"

    def __init__(
        self, *, alpha: float = 1.0, margin: float = 0.5, single_draw: bool = False
    ) -> None:
        super().__init__()
        if not (alpha > 0 and 0 < margin < 1):
            raise InputError(
                f"alpha is above 0 and margin in (0, 1), found {alpha!r} and {margin!r}"
            )
        self.alpha, self.margin, self.single_draw = alpha, margin, single_draw

    def loss(self, job: Job, batch: Batch) -> Tensor:
        """The mean loss of both raw images of each pair."""
        high, low = two_shares(self.alpha, self.margin, job.draws, single_draw=self.single_draw)
        other = torch.randperm(len(batch.inputs), generator=job.generator, device=job.device)
        turned = batch.inputs[other]
        mixed = [job.model(torch.lerp(turned, batch.inputs, share)) for share in (high, low)]
        left, right = unmix(mixed[0], mixed[1], high, low)
        index = batch.index[other] if len(batch.index) else batch.index
        partner = replace(batch, target=batch.target[other], index=index)
        return 0.5 * (self.of_logits(job, left, batch) + self.of_logits(job, right, partner))
