"""Pairs of data sets: one that a network was trained on, and one that it never saw."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.core.errors import InputError
from calibrant.data.corruptions.filters import to_grey
from calibrant.data.datasets import load
from calibrant.data.images import Images, Splits


@dataclass(frozen=True)
class OutOfDistribution:
    """A data set, and the test images of another in the same size and colours.

    Args:
        inside: The data set that a network is trained on. Its ``mean`` and ``std`` normalise
            both, since a network must see the other images as it would see any.
        outside: The other set's test images, with their own labels.
    """

    inside: Splits
    outside: Images


def ood(
    name_in: str,
    name_out: str,
    *,
    folder: str | os.PathLike[str] | None = None,
    download: bool = False,
    validation: float = 0.1,
    seed: int = 0,
    size: int | None = None,
) -> OutOfDistribution:
    """Load two data sets; give the second's test images the size and colours of the first.

    Classes that both sets have are not removed.

    Args:
        name_in: The set that a network is trained on, as `load` takes it.
        name_out: The set that it never saw.
        folder: The folder of the data files; else the one that CALIBRANT_DATA names.
        download: Whether to download what is missing.
        validation: Training rows to hold out; see `load`.
        seed: The seed of the draw of validation rows.
        size: The side of the images of sets in folders.
    """
    if name_in == name_out:
        raise InputError(f"a pair needs two data sets, found {name_in!r} twice")

    def load_one(name: str) -> Splits:
        chosen_size = size if ":" in name else None
        return load(
            name,
            folder=folder,
            download=download,
            validation=validation,
            seed=seed,
            size=chosen_size,
        )

    inside, outside = load_one(name_in), load_one(name_out).test
    if inside.test.is_dense or outside.is_dense:
        raise InputError("a pair needs one label an image: a dense set has one a pixel")
    _, channels, height, width = inside.test.images.shape
    images = resize(convert_channels(outside.images, channels), height, width)
    return OutOfDistribution(inside, replace(outside, images=images))


def convert_channels(images: Tensor, channels: int) -> Tensor:
    """Convert grey to equal colours, or colours to their brightness."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1).contiguous()
    if images.shape[1] == 3 and channels == 1:
        return to_grey(images.float()).round().to(torch.uint8)
    raise InputError(f"cannot convert images from {images.shape[1]} channels to {channels}")


def resize(images: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 images, smoothed where they shrink; proportions are not kept."""
    if tuple(images.shape[2:]) == (height, width):
        return images
    blocks = [
        F.interpolate(
            block.float(), (height, width), mode="bilinear", antialias=True, align_corners=False
        )
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        for block in torch.split(images, 1024)
    ]
    return torch.cat(blocks)
