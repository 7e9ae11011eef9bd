"""Batches of images that live on their device: shuffled, augmented and normalised there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.data.augment import Augment, Normalise
from calibrant.data.value import Images
from calibrant.functional.errors import InputError


@dataclass
class Batch:
    """What one step sees."""

    inputs: Tensor  # float
    target: Tensor  # int64, or class probabilities
    index: Tensor  # int64: which rows of the training set these are


class DeviceBatches:
    """An epoch's batches; they depend on (seed, epoch, rank) alone.

    So an epoch run again, after a stop, is the same to the bit. With several processes each
    takes its own part of the shuffled rows, all of one length.
    """

    def __init__(
        self,
        images: Images,
        rows: Tensor | None = None,
        *,
        batch_size: int,
        normalise: Normalise,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = False,
        drop_last: bool = False,
        augment: Augment | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size is at least 1, found {batch_size}")
        self._images, self._size = images, batch_size
        device = images.images.device
        rows = torch.arange(len(images)) if rows is None else rows
        self._rows, self._device = rows.to(device), device
        self._normalise, self._augment = normalise, augment
        self._seed, self._epoch, self._rank, self._world = seed, epoch, rank, world
        self._shuffle, self._drop_last = shuffle, drop_last

    def __len__(self) -> int:
        own = self._own()
        # A single batch that is not full is never dropped: there would be none.
        return max(own // self._size, 1) if self._drop_last else -(-own // self._size)

    def _own(self) -> int:
        return -(-len(self._rows) // self._world)

    def __iter__(self) -> Iterator[Batch]:
        order = self._rows
        if self._shuffle:
            # Drawn on the CPU: the same order on every device, and on every process.
            draw = torch.Generator().manual_seed(derived_seed(self._seed, self._epoch))
            order = order[torch.randperm(len(order), generator=draw).to(self._device)]
        if self._world > 1:
            # Padded with rows from the front, so that every process makes as many steps.
            whole = self._own() * self._world
            order = torch.cat((order, order[: whole - len(order)]))[self._rank :: self._world]
        changes = torch.Generator(self._device)
        changes.manual_seed(derived_seed(self._seed, self._epoch, 1 + self._rank))
        for step in range(len(self)):
            index = order[step * self._size : (step + 1) * self._size]
            images, labels = self._images.images[index], self._images.labels[index]
            if self._augment is not None and self._images.is_dense:
                ignored = self._images.ignore_index
                images, labels = self._augment.dense(images, labels, ignored, changes)
            elif self._augment is not None:
                images = self._augment(images, changes)
            yield Batch(self._normalise(images), labels, index)


def derived_seed(*parts: int) -> int:
    """One seed of several numbers, well spread."""
    mixed = 0x9E3779B97F4A7C15
    for part in parts:
        mixed = (mixed ^ (part + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % (1 << 64)
        mixed ^= mixed >> 29
    return mixed >> 1
