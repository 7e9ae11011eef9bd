"""Labelled images as one value, and the three parts of a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant.core.errors import InputError

IGNORE_INDEX = -100  # the label of a pixel without a class, as in torch.nn.CrossEntropyLoss


@dataclass(frozen=True)
class Images:
    """Images as bytes, with one label an image, or one a pixel (dense).

    Args:
        images: uint8, (N,C,H,W).
        labels: int64, (N,), or (N,H,W) if dense.
        class_names: One name a class, in the order of the labels.
        name: The name of the data set, for messages and tables.
        ignore_index: The label of pixels without a class.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    name: str = "images"
    ignore_index: int = IGNORE_INDEX

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise InputError(
                f"images must be uint8 of shape (N,C,H,W), found {self.images.dtype} of shape "
                f"{tuple(self.images.shape)}"
            )
        rows = (len(self.images),)
        if tuple(self.labels.shape) not in (rows, rows + tuple(self.images.shape[2:])):
            raise InputError(
                f"{rows[0]} images need labels of shape {rows}, or one label a pixel, found "
                f"{tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.class_names)

    @property
    def is_dense(self) -> bool:
        """Return whether every pixel has a label."""
        return self.labels.ndim == 3

    def take(self, rows: Tensor) -> Images:
        """Select rows by number."""
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def to(self, device: torch.device | str) -> Images:
        """Move images and labels to a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class Splits:
    """The rows a run trains on, chooses on and is evaluated on.

    Args:
        train: Training rows.
        validation: Validation rows; may be empty.
        test: Test rows.
        mean: The mean of each channel of the training images, divided by 255.
        std: The standard deviation of each channel of the training images, divided by 255.
    """

    train: Images
    validation: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]


def moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation of each channel, divided by 255, from exact counts."""
    mean, std = [], []
    levels = torch.arange(256, dtype=torch.float64)
    for channel in range(images.shape[1]):
        counts = torch.zeros(256, dtype=torch.float64)
        for block in torch.split(images[:, channel], 4096):  # int64 takes eight times the memory
            counts += torch.bincount(block.reshape(-1).long(), minlength=256).cpu()
        share = counts / counts.sum()
        average = float((share * levels).sum())
        mean.append(average / 255.0)
        std.append(max(float((share * (levels - average) ** 2).sum().sqrt()), 1e-6) / 255.0)
    return tuple(mean), tuple(std)
