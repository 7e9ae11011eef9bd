"""MIT: mixup in training, with the logits of the raw images recovered from two mixed passes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.data.augment import draw_beta
from calibrant.data.batches import Batch
from calibrant.training.recipes.base import Job, Recipe

MAX_DRAWS = 10_000


def draw_shares(
    alpha: float, margin: float, generator: torch.Generator, *, single_draw: bool = False
) -> tuple[float, float]:
    """Draw λ1 > λ2, the larger and the smaller of two Beta(α, α) draws, ``margin`` apart.

    Args:
        alpha: α.
        margin: The smallest λ1 − λ2; draws that are closer are repeated.
        generator: Random numbers on the CPU.
        single_draw: Whether to take λ2 = 1 − λ1 of one draw.
    """
    for _ in range(MAX_DRAWS):
        first, second = draw_beta(alpha, 2, generator, generator.device).tolist()
        second = 1.0 - first if single_draw else second
        high, low = max(first, second), min(first, second)
        if high - low >= margin:
            return high, low
    raise InputError(
        f"no draw of Beta({alpha:g}, {alpha:g}) was {margin:g} apart in {MAX_DRAWS:,}: lower "
        "alpha or margin"
    )


def unmix(first: Tensor, second: Tensor, high: float, low: float) -> tuple[Tensor, Tensor]:
    """Solve first = λ1·u + (1−λ1)·v and second = λ2·u + (1−λ2)·v for u and v."""
    gap = high - low
    left = ((1.0 - low) * first - (1.0 - high) * second) / gap
    right = (high * second - low * first) / gap
    return left, right


class MIT(Recipe):
    """Mix images with λ1 and λ2 in two passes; solve for the raw logits (Wang et al. 2023).

    λ1 and λ2 are two independent draws, at least ``margin`` apart; the losses of both raw
    images are averaged (docs/decisions.md).

    Args:
        alpha: α of Beta(α, α). Default: 1.0 (ours: uniform; the papers here give no value).
        margin: The smallest λ1 − λ2; a small gap amplifies noise. Default: 0.5 (docs/decisions.md).
        single_draw: Whether to take λ2 = 1 − λ1 of one draw. Default: False (docs/decisions.md).
    """

    name = "mit"

    def __init__(
        self, *, alpha: float = 1.0, margin: float = 0.5, single_draw: bool = False
    ) -> None:
        super().__init__()
        if not (alpha > 0 and 0 < margin < 1):
            raise InputError(
                f"alpha must be above 0 and margin in (0, 1), found {alpha!r} and {margin!r}"
            )
        self.alpha, self.margin, self.single_draw = alpha, margin, single_draw

    def loss(self, job: Job, batch: Batch) -> Tensor:
        """Compute the mean loss of both raw images of each pair."""
        high, low = draw_shares(self.alpha, self.margin, job.draws, single_draw=self.single_draw)
        order = torch.randperm(len(batch.inputs), generator=job.generator, device=job.device)
        partners = batch.inputs[order]
        mixed = [job.model(torch.lerp(partners, batch.inputs, share)) for share in (high, low)]
        left, right = unmix(mixed[0], mixed[1], high, low)
        index = batch.index[order] if len(batch.index) else batch.index
        partner = replace(batch, target=batch.target[order], index=index)
        return 0.5 * (self.of_logits(job, left, batch) + self.of_logits(job, right, partner))
