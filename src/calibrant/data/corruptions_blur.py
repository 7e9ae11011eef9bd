"""Blurs: out of focus, through frosted glass, of a moving camera, of a camera zooming in."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.data.corruptions_linear import gaussian_blur, zoom_matrix

# The radius of the disk, and the deviation of the Gaussian that softens its edge.
DISK = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
# The Gaussian's deviation, and how often pixels are moved.
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
# How far the camera moves in pixels, and the deviation of the half Gaussian along the way.
MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
# Zooms of 1.00, 1.01, ...: where they end (as floating numbers: the first two ends belong).
ZOOMS = (1.06, 1.11, 1.16, 1.21, 1.26)
NEGLIGIBLE = 1e-5  # a share of the light that no byte can show


def defocus_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """The convolution with a disk of soft edge; mirrored about the edge pixels outside."""
    kernel = disk(*DISK[severity - 1])
    reach = kernel.shape[0] // 2
    height, width = images.shape[2:]
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    out = torch.zeros_like(images)
    # A sum of shifted images: for so few weights faster than a convolution of single planes.
    for down, right in kernel.nonzero().tolist():
        shifted = padded[:, :, down : down + height, right : right + width]
        out.add_(shifted, alpha=float(kernel[down, right]))
    return out


@lru_cache(maxsize=8)
def disk(radius: float, softness: float) -> Tensor:
    """The pixels within the radius, blurred by a 3x3 Gaussian; they sum to one."""
    reach = int(radius) + 1
    place = np.arange(-reach, reach + 1)
    inside = (place[:, None] ** 2 + place**2 <= radius**2).astype(np.float64)
    side = np.exp(-0.5 * (np.arange(-1, 2) / softness) ** 2)
    side /= side.sum()
    soft = np.zeros_like(inside)
    for down, right in np.argwhere(inside) - reach:
        here = (slice(reach + down - 1, reach + down + 2), slice(reach + right - 1, None))
        soft[here][:, :3] += np.outer(side, side)
    return torch.from_numpy(soft / inside.sum()).to(torch.float32)


def glass_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """A Gaussian blur, pixels moved by up to one place, and the blur again.

    A pixel takes the colour of itself, of its left, its upper or its upper left neighbour.
    The published files were meant to swap the two; their program overwrote one with the other
    before it was read, so that they hold copies, and so do these.
    """
    sigma, times = GLASS[severity - 1]
    count, _, height, width = images.shape
    blurred = gaussian_blur(images, sigma, truncate=4.0, border="nearest")
    moved = blurred.mul(255.0).round_().div_(255.0)
    row = torch.arange(height, device=images.device)[:, None]
    column = torch.arange(width, device=images.device)
    free = (row > 1) & (column > 1)  # the first two rows and columns stay
    for _ in range(times):
        draw = torch.randint(4, (count, height, width), generator=generator, device=images.device)
        source = row * width + column - torch.where(free, draw % 2 + draw // 2 * width, 0)
        index = source.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)
        moved = moved.flatten(2).gather(2, index).reshape(images.shape)
    return gaussian_blur(moved, sigma, truncate=4.0, border="nearest")


def motion_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Each image blurred along a line of its own, at most 45° from level."""
    draw = torch.rand(len(images), generator=generator, device=images.device)
    return along(images, (draw - 0.5) * (math.pi / 2), *MOTION[severity - 1])


def along(images: Tensor, angle: Tensor, radius: int, sigma: float) -> Tensor:
    """Σ_i k_i x(p + i·(cos θ, sin θ)), i = 0..2r, k half a Gaussian; the edge pixels outside.

    Places are rounded to whole pixels, as ImageMagick does.
    """
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    weights = weights[weights > NEGLIGIBLE]
    reach = len(weights) - 1
    height, width = images.shape[2:]
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    each = torch.arange(len(images), device=images.device)
    out = torch.zeros_like(images)
    for step, weight in enumerate(weights / weights.sum()):
        right = (step * angle.cos() - 0.5).ceil().long() + reach
        down = (step * angle.sin() - 0.5).ceil().long() + reach
        out.add_(windows[each, :, down, right], alpha=float(weight))
    return out


def zoom_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """The mean of an image and of its enlargements by 1.00, 1.01, ..."""
    height, width = images.shape[2:]
    factors = np.arange(1.0, ZOOMS[severity - 1], 0.01).tolist()
    # Small images have few different enlargements: each is made once.
    seen: dict[tuple[bytes, bytes], tuple[Tensor, Tensor, int]] = {}
    for factor in factors:
        rows, columns = (zoom_matrix(size, factor) for size in (height, width))
        key = (rows.numpy().tobytes(), columns.numpy().tobytes())
        times = seen[key][2] if key in seen else 0
        seen[key] = (rows, columns, times + 1)
    out = images.clone()
    for rows, columns, times in seen.values():
        out.add_(rows.to(images.device) @ (images @ columns.T.to(images.device)), alpha=times)
    return out / (len(factors) + 1)
