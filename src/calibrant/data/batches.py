"""Batches of images: from a set that lives on the device, or from an ordinary loader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.data.augment import Augment, Normalise
from calibrant.data.images import Images


@dataclass
class Batch:
    """The rows of one training step.

    Args:
        inputs: float, (B,C,H,W) for images.
        target: Labels, int64, or class probabilities (B,K).
        index: int64, the numbers of these rows in the training set; empty if unknown.
    """

    inputs: Tensor
    target: Tensor
    index: Tensor


class DeviceBatches:
    """The batches of an epoch, shuffled, augmented and normalised on the images' device.

    They depend on seed, epoch and rank alone, so an epoch that is repeated after a stop is the
    same to the bit. With several processes each takes its own part of the shuffled rows; all
    parts have the same length.

    Args:
        images: The images, on their device.
        rows: The numbers of the rows to use; None for all.
        batch_size: Rows a batch.
        normalise: Converts the bytes to numbers.
        seed: The seed of the shuffle and of the augmentation.
        epoch: The number of the epoch.
        shuffle: Whether to shuffle the rows.
        drop_last: Whether to drop a last batch that is not full.
        augment: The augmentation; None for none.
        rank: The number of this process.
        world: The number of processes.
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
            raise InputError(f"batch_size must be at least 1, found {batch_size}")
        self._images, self._size = images, batch_size
        device = images.images.device
        rows = torch.arange(len(images)) if rows is None else rows
        self._rows, self._device = rows.to(device), device
        self._normalise, self._augment = normalise, augment
        self._seed, self._epoch, self._rank, self._world = seed, epoch, rank, world
        self._shuffle, self._drop_last = shuffle, drop_last

    def __len__(self) -> int:
        count = self._rows_per_process()
        # Keep a single batch that is not full: without it there would be none.
        return max(count // self._size, 1) if self._drop_last else -(-count // self._size)

    def _rows_per_process(self) -> int:
        return -(-len(self._rows) // self._world)

    def __iter__(self) -> Iterator[Batch]:
        order = self._rows
        if self._shuffle:
            # Draw on the CPU: the order is then the same on every device and in every process.
            shuffler = torch.Generator().manual_seed(derive_seed(self._seed, self._epoch))
            order = order[torch.randperm(len(order), generator=shuffler).to(self._device)]
        if self._world > 1:
            # Pad with rows from the front, so that every process makes the same number of steps.
            whole = self._rows_per_process() * self._world
            order = torch.cat((order, order[: whole - len(order)]))[self._rank :: self._world]
        generator = torch.Generator(self._device)
        generator.manual_seed(derive_seed(self._seed, self._epoch, 1 + self._rank))
        for step in range(len(self)):
            index = order[step * self._size : (step + 1) * self._size]
            images, labels = self._images.images[index], self._images.labels[index]
            if self._augment is not None and self._images.is_dense:
                ignored = self._images.ignore_index
                images, labels = self._augment.dense(images, labels, ignored, generator)
            elif self._augment is not None:
                images = self._augment(images, generator)
            yield Batch(self._normalise(images), labels, index)


class LoaderBatches:
    """The batches of an ordinary loader of (inputs, target) or (inputs, target, index).

    Args:
        loader: The loader.
        device: The device that batches are moved to.
        rows: Must be None: a loader does not offer a choice of rows.
    """

    def __init__(self, loader: Iterable[Any], device: torch.device, rows: Tensor | None) -> None:
        if rows is not None:
            raise InputError(
                "this recipe selects training rows, which a DataLoader does not offer: give the "
                "data as calibrant.data.Images"
            )
        self._loader, self._device = loader, device

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        for item in self._loader:
            if not isinstance(item, (list, tuple)) or len(item) not in (2, 3):
                raise InputError(
                    "a loader must give (inputs, target) or (inputs, target, index), found "
                    f"{type(item).__name__}"
                )
            inputs, target = (tensor.to(self._device, non_blocking=True) for tensor in item[:2])
            index = item[2].to(self._device) if len(item) == 3 else torch.empty(0).long()
            yield Batch(inputs, target, index)


def derive_seed(*parts: int) -> int:
    """Mix several numbers into one well-spread seed."""
    mixed = 0x9E3779B97F4A7C15
    for part in parts:
        mixed = (mixed ^ (part + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % (1 << 64)
        mixed ^= mixed >> 29
    return mixed >> 1
