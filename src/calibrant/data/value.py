"""Labelled images as one value, and the three parts of a data set."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant.functional.errors import InputError


@dataclass(frozen=True)
class Images:
    """Images as bytes, with a label each, or one a pixel (dense)."""

    images: Tensor  # uint8, (N,C,H,W)
    labels: Tensor  # int64, (N,) or (N,H,W)
    class_names: tuple[str, ...]
    name: str = "images"
    ignore_index: int = -100

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise InputError(
                f"images are bytes of shape (N,C,H,W), found {self.images.dtype} of shape "
                f"{tuple(self.images.shape)}"
            )
        rows = (len(self.images),)
        if tuple(self.labels.shape) not in (rows, rows + tuple(self.images.shape[2:])):
            raise InputError(
                f"{rows[0]} images want labels of shape {rows} or one a pixel, found "
                f"{tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_classes(self) -> int:
        """How many classes have a name."""
        return len(self.class_names)

    @property
    def is_dense(self) -> bool:
        """Whether every pixel has a label."""
        return self.labels.ndim == 3

    def take(self, rows: Tensor) -> Images:
        """Some of the rows."""
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def to(self, device: torch.device | str) -> Images:
        """The same on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class Splits:
    """What a run trains on, chooses on, and is judged on."""

    train: Images
    validation: Images
    test: Images
    mean: tuple[float, ...]  # of the training images' channels, as shares of 255
    std: tuple[float, ...]


def moments(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, as shares of 255, from exact counts."""
    mean, std = [], []
    levels = torch.arange(256, dtype=torch.float64)
    for channel in range(images.shape[1]):
        counts = torch.zeros(256, dtype=torch.float64)
        for part in torch.split(images[:, channel], 4096):  # as int64 it is eight times as large
            counts += torch.bincount(part.reshape(-1).long(), minlength=256).cpu()
        share = counts / counts.sum()
        average = float((share * levels).sum())
        mean.append(average / 255.0)
        std.append(max(float((share * (levels - average) ** 2).sum().sqrt()), 1e-6) / 255.0)
    return tuple(mean), tuple(std)
