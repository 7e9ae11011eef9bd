"""CaPE-bin: labels replaced by how often their bin was right."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant.data.augment import soft_labels
from calibrant.data.value import Images
from calibrant.functional.errors import InputError
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.data.batches import Batch
    from calibrant.training.job import Job


def bin_accuracies(confidence: Tensor, correct: Tensor, num_bins: int) -> Tensor:
    """The accuracy of each row's equal-mass bin of confidence."""
    order = torch.argsort(confidence, stable=True)
    count = len(order)
    place = torch.empty_like(order)
    place[order] = torch.arange(count, device=order.device)
    bins = place * num_bins // count
    right = torch.zeros(num_bins, dtype=torch.float64, device=bins.device)
    right.index_add_(0, bins, correct.double())
    size = torch.bincount(bins, minlength=num_bins).clamp_min(1)
    return (right / size)[bins].float()


class CaPE(Recipe):
    """Confidence trained toward empirical accuracy (CaPE-bin, Liu et al. 2022).

    For ``start`` of the epochs the usual labels; from then on every ``targets_every``-th epoch
    has targets in their place: a row's target gives the class it is predicted as the accuracy
    of its bin of confidence (equal mass, on unaugmented training rows), and spreads the rest
    over the other classes evenly. Targets are made anew for each such epoch.

    With ``targets_every=1`` they are all there is: made of predictions alone they forget the
    labels, and where rows are augmented accuracy falls with every epoch. The authors go on from
    a network stopped early, with five epochs of labels to one of targets (6).
    """

    name = "cape"
    dense = False
    soft = True

    target: Tensor  # (N,K); zeros before the first is made

    def __init__(self, *, num_bins: int = 15, start: float = 0.8, targets_every: int = 2) -> None:
        super().__init__()
        if num_bins < 1 or not 0 <= start < 1 or targets_every < 1:
            raise InputError(
                "num_bins and targets_every are at least 1 and start lies in [0, 1), found "
                f"{num_bins!r}, {targets_every!r} and {start!r}"
            )
        self.num_bins, self.start, self.targets_every = num_bins, start, targets_every
        self.register_buffer("target", torch.empty(0))

    def prepare(self, job: Job) -> None:
        """Make room for the targets, of the shape a checkpoint will have."""
        if not isinstance(job.train, Images):
            raise InputError("cape gives every training row a target: give the data as Images")
        if self._first(job) >= job.epochs:
            raise InputError(
                f"cape's targets begin after {self._first(job)} of {job.epochs} epochs, and none "
                "is left for them: train for longer, or give an earlier start"
            )
        shape = (len(job.train), job.num_classes)
        self.target = torch.zeros(shape, device=job.device)

    def after_epoch(self, job: Job) -> dict[str, float]:
        """Make the targets of the epoch to come, where it has some."""
        if not self._has_targets(job):
            return {}
        assert isinstance(job.train, Images)
        logits, labels = job.predict(job.train)
        best, predicted = torch.softmax(logits, 1).max(1)
        share = bin_accuracies(best, predicted == labels, self.num_bins)
        spread = ((1.0 - share) / (job.num_classes - 1)).unsqueeze(1)
        fresh = spread.expand(-1, job.num_classes).clone()
        self.target.copy_(fresh.scatter(1, predicted.unsqueeze(1), share.unsqueeze(1)))
        return {"cape_accuracy": float(share.mean())}

    def loss(self, job: Job, batch: Batch) -> Tensor:
        """The loss against the targets, or against the labels."""
        if not self._has_targets(job):
            return super().loss(job, batch)
        soft = soft_labels(self.target[batch.index], job.num_classes)
        return super().loss(job, replace(batch, target=soft))

    def _first(self, job: Job) -> int:
        return max(1, math.ceil(self.start * job.epochs))  # before it there is nothing to go by

    def _has_targets(self, job: Job) -> bool:
        """Whether the epoch at hand, or to come, has targets."""
        since = job.epoch - self._first(job)
        return 0 <= since < job.epochs - self._first(job) and since % self.targets_every == 0
