"""Blurs: defocus, frosted glass, a moving camera, a zooming camera."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.data.corruptions.filters import gaussian_blur, zoom_matrix

# For each severity: the radius of the disk, and the deviation of the Gaussian on its edge.
DISK = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
# The deviation of the Gaussian, and how often pixels are moved.
GLASS = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
# The pixels that the camera moves, and the deviation of the half Gaussian along the way.
MOTION = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
# The end of the zooms 1.00, 1.01, ...; in floating point the first two ends are included.
ZOOMS = (1.06, 1.11, 1.16, 1.21, 1.26)
NEGLIGIBLE = 1e-5  # a weight too small to change a byte


def defocus_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Convolve with a disk of soft edge; outside, mirror about the edge pixels."""
    kernel = disk(*DISK[severity - 1])
    reach = kernel.shape[0] // 2
    height, width = images.shape[2:]
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    out = torch.zeros_like(images)
    # Add shifted images: with so few weights this is faster than a convolution of planes.
    for down, right in kernel.nonzero().tolist():
        shifted = padded[:, :, down : down + height, right : right + width]
        out.add_(shifted, alpha=float(kernel[down, right]))
    return out


@lru_cache(maxsize=8)
def disk(radius: float, softness: float) -> Tensor:
    """Return the disk of a radius, blurred by a 3x3 Gaussian; it sums to one."""
    reach = int(radius) + 1
    place = np.arange(-reach, reach + 1)
    inside = (place[:, None] ** 2 + place**2 <= radius**2).astype(np.float64)
    side = np.exp(-0.5 * (np.arange(-1, 2) / softness) ** 2)
    side /= side.sum()
    soft = np.zeros_like(inside)
    for down, right in np.argwhere(inside) - reach:
        corner = (slice(reach + down - 1, reach + down + 2), slice(reach + right - 1, None))
        soft[corner][:, :3] += np.outer(side, side)
    return torch.from_numpy(soft / inside.sum()).to(torch.float32)


def glass_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Blur, move pixels by up to one place, and blur again.

    A pixel takes its own colour or that of its left, upper or upper left neighbour. The
    published program was meant to swap the two, but overwrote one before reading it, so the
    published files hold copies. These images do too.
    """
    sigma, times = GLASS[severity - 1]
    count, _, height, width = images.shape
    blurred = gaussian_blur(images, sigma, truncate=4.0, border="nearest")
    moved = blurred.mul(255.0).round_().div_(255.0)
    row = torch.arange(height, device=images.device)[:, None]
    column = torch.arange(width, device=images.device)
    movable = (row > 1) & (column > 1)  # the first two rows and columns stay
    for _ in range(times):
        draw = torch.randint(4, (count, height, width), generator=generator, device=images.device)
        source = row * width + column - torch.where(movable, draw % 2 + draw // 2 * width, 0)
        index = source.flatten(1).unsqueeze(1).expand(-1, images.shape[1], -1)
        moved = moved.flatten(2).gather(2, index).reshape(images.shape)
    return gaussian_blur(moved, sigma, truncate=4.0, border="nearest")


def motion_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Blur each image along a random direction, at most 45° from horizontal."""
    draw = torch.rand(len(images), generator=generator, device=images.device)
    return blur_along(images, (draw - 0.5) * (math.pi / 2), *MOTION[severity - 1])


def blur_along(images: Tensor, angle: Tensor, radius: int, sigma: float) -> Tensor:
    """Compute Σ_i k_i x(p + i·(cos θ, sin θ)), i = 0..2r, with k half a Gaussian.

    Outside lie the edge pixels. Places are rounded to whole pixels, as ImageMagick does.

    Args:
        images: (N,C,H,W).
        angle: θ of each image, (N,).
        radius: r, in pixels.
        sigma: The deviation of the Gaussian, in pixels.
    """
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    weights = weights[weights > NEGLIGIBLE]
    reach = len(weights) - 1
    height, width = images.shape[2:]
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    image = torch.arange(len(images), device=images.device)
    out = torch.zeros_like(images)
    for step, weight in enumerate(weights / weights.sum()):
        right = (step * angle.cos() - 0.5).ceil().long() + reach
        down = (step * angle.sin() - 0.5).ceil().long() + reach
        out.add_(windows[image, :, down, right], alpha=float(weight))
    return out


def zoom_blur(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Average an image and its enlargements by 1.00, 1.01, ..."""
    height, width = images.shape[2:]
    factors = np.arange(1.0, ZOOMS[severity - 1], 0.01).tolist()
    # Small images have few different enlargements: compute each once and count it.
    zooms: dict[tuple[bytes, bytes], tuple[Tensor, Tensor, int]] = {}
    for factor in factors:
        rows, columns = (zoom_matrix(size, factor) for size in (height, width))
        key = (rows.numpy().tobytes(), columns.numpy().tobytes())
        times = zooms[key][2] if key in zooms else 0
        zooms[key] = (rows, columns, times + 1)
    out = images.clone()
    for rows, columns, times in zooms.values():
        out.add_(rows.to(images.device) @ (images @ columns.T.to(images.device)), alpha=times)
    return out / (len(factors) + 1)
