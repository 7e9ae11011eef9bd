"""CaPE-bin: replace labels by the accuracy of their bin."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.data.augment import soft_labels
from calibrant.data.batches import Batch
from calibrant.data.images import Images
from calibrant.training.recipes.base import Job, Recipe


def bin_accuracies(confidence: Tensor, correct: Tensor, num_bins: int) -> Tensor:
    """Return the accuracy of each row's equal-mass bin of confidence."""
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
    """Train confidence toward empirical accuracy (CaPE-bin, Liu et al. 2022).

    The first epochs use labels; after them every ``targets_every``-th epoch uses targets. The
    target of a row gives its predicted class the accuracy of its bin of confidence (equal mass,
    on unaugmented training rows) and spreads the rest evenly over the other classes. Targets are
    computed again for each such epoch.

    Args:
        num_bins: Bins of confidence. Default: 15 (ours: as many as the papers' ECE).
        start: The share of the epochs that use labels alone. Default: 0.8 (ours: the authors
            start from a network that was stopped early).
        targets_every: Use targets in one of this many epochs, labels in the others. With 1, every
            epoch uses targets; targets come from predictions and forget the labels, so that with
            augmentation accuracy falls in every epoch. Default: 2 (ours: few epochs are left; the
            authors use 6).
    """

    name = "cape"
    dense = False
    soft = True

    target: Tensor  # (N,K); zeros before the first targets

    def __init__(self, *, num_bins: int = 15, start: float = 0.8, targets_every: int = 2) -> None:
        super().__init__()
        if num_bins < 1 or not 0 <= start < 1 or targets_every < 1:
            raise InputError(
                "num_bins and targets_every must be at least 1 and start in [0, 1), found "
                f"{num_bins!r}, {targets_every!r} and {start!r}"
            )
        self.num_bins, self.start, self.targets_every = num_bins, start, targets_every
        self.register_buffer("target", torch.empty(0))

    def prepare(self, job: Job) -> None:
        """Allocate the targets, in the shape of a checkpoint."""
        if not isinstance(job.train, Images):
            raise InputError("cape keeps a target for every training row: give the data as Images")
        if self._first_epoch(job) >= job.epochs:
            raise InputError(
                f"cape's targets start after {self._first_epoch(job)} of {job.epochs} epochs, and "
                "no epoch is left for them: train longer, or give an earlier start"
            )
        shape = (len(job.train), job.num_classes)
        self.target = torch.zeros(shape, device=job.device)

    def after_epoch(self, job: Job) -> dict[str, float]:
        """Compute the targets of the next epoch, if it uses them."""
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
        """Compute the loss against the targets, or against the labels."""
        if not self._has_targets(job):
            return super().loss(job, batch)
        soft = soft_labels(self.target[batch.index], job.num_classes)
        return super().loss(job, replace(batch, target=soft))

    def _first_epoch(self, job: Job) -> int:
        return max(1, math.ceil(self.start * job.epochs))  # targets need one epoch of training

    def _has_targets(self, job: Job) -> bool:
        """Return whether the current epoch, or the next one between epochs, uses targets."""
        since = job.epoch - self._first_epoch(job)
        return 0 <= since < job.epochs - self._first_epoch(job) and since % self.targets_every == 0
