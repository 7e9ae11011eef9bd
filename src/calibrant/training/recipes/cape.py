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

    For ``start`` of the epochs the usual labels; then, refreshed after each epoch, a row's
    target gives the class it is predicted as the accuracy of its bin of confidence (equal
    mass, on unaugmented training rows), and spreads the rest over the other classes evenly.
    Every ``labels_every``-th epoch of these, the last among them, is one of labels again (0:
    none is), as the authors' training alternates: targets made of predictions alone forget the
    labels, and where rows are augmented accuracy falls with every epoch of them.
    """

    name = "cape"
    dense = False

    target: Tensor  # (N,K); empty while the labels are used

    def __init__(self, *, num_bins: int = 15, start: float = 0.8, labels_every: int = 2) -> None:
        super().__init__()
        if num_bins < 1 or not 0 <= start <= 1:
            raise InputError(
                f"num_bins is at least 1 and start lies in [0, 1], found {num_bins!r} and {start!r}"
            )
        if labels_every < 0 or labels_every == 1:
            raise InputError(
                f"labels_every is 0 (never) or at least 2, found {labels_every!r}; 1 is training "
                "on labels alone, which is the recipe standard"
            )
        self.num_bins, self.start, self.labels_every = num_bins, start, labels_every
        self.register_buffer("target", torch.empty(0))

    def prepare(self, job: Job) -> None:
        """Make room for the targets, of the shape a checkpoint will have."""
        if not isinstance(job.train, Images):
            raise InputError("cape gives every training row a target: give the data as Images")
        shape = (len(job.train), job.num_classes)
        self.target = torch.zeros(shape, device=job.device)

    def after_epoch(self, job: Job) -> dict[str, float]:
        """Refresh the targets."""
        if job.epoch < self.start * job.epochs:
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
        """The loss against the targets as they are now, or against the labels."""
        if self._on_labels(job.epoch, job.epochs):
            return super().loss(job, batch)
        soft = soft_labels(self.target[batch.index], job.num_classes)
        return super().loss(job, replace(batch, target=soft))

    def _on_labels(self, epoch: int, epochs: int) -> bool:
        first = max(1, math.ceil(self.start * epochs))  # before it there is nothing to go by
        if epoch < first or not self.labels_every:
            return epoch < first
        return (epochs - 1 - epoch) % self.labels_every == 0
