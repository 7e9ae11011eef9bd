"""Pairs of data sets: one that a network knows, and one it was never shown."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.data.corruptions_weather import grey
from calibrant.data.sets import load
from calibrant.data.value import Images, Splits
from calibrant.functional.errors import InputError


@dataclass(frozen=True)
class OutOfDistribution:
    """A set, and the test images of another in its form: to be normalised with its moments."""

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
    """Two sets by name; the second's test images take the first's size and colours.

    ``inside`` is what ``load`` gives for the first, whose ``mean`` and ``std`` are for both: a
    network must see the others as it would see anything. ``size`` is for sets in folders. The
    labels of ``outside`` stay its own, and classes that both have are not taken out.
    """
    if name_in == name_out:
        raise InputError(f"a pair needs two data sets, found {name_in!r} twice")

    def one(name: str) -> Splits:
        own = size if ":" in name else None
        return load(
            name, folder=folder, download=download, validation=validation, seed=seed, size=own
        )

    inside, other = one(name_in), one(name_out).test
    if inside.test.is_dense or other.is_dense:
        raise InputError("pairs are of whole images: a dense set has a label a pixel")
    _, channels, height, width = inside.test.images.shape
    images = resized(recoloured(other.images, channels), height, width)
    return OutOfDistribution(inside, replace(other, images=images))


def recoloured(images: Tensor, channels: int) -> Tensor:
    """Grey as three equal colours, or colours as their brightness."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1).contiguous()
    if images.shape[1] == 3 and channels == 1:
        return grey(images.float()).round().to(torch.uint8)
    raise InputError(f"no way from {images.shape[1]} channels to {channels}")


def resized(images: Tensor, height: int, width: int) -> Tensor:
    """Bytes of another size, smoothed where they shrink; proportions are not kept."""
    if tuple(images.shape[2:]) == (height, width):
        return images
    pieces = [
        F.interpolate(
            piece.float(), (height, width), mode="bilinear", antialias=True, align_corners=False
        )
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        for piece in torch.split(images, 1024)
    ]
    return torch.cat(pieces)
