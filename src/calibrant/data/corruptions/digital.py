"""Digital changes: brightness, contrast, elastic warp, pixelation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.data.corruptions.filters import box_matrix, gaussian_blur

# One constant a severity: the value added, the contrast kept, the scale of the smaller image.
BRIGHTER = (0.05, 0.1, 0.15, 0.2, 0.3)
CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)
COARSER = (0.95, 0.9, 0.85, 0.75, 0.65)
# As shares of the shorter side: how far pixels move, the deviation of the Gaussian that makes
# neighbours move alike, and how far the three points of the affine map move.
ELASTIC = (
    (0.0, 0.0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
)


def brightness(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Raise the V of HSV: multiply every colour by V′/V; black becomes grey."""
    value = images.amax(1, keepdim=True) if images.shape[1] == 3 else images
    raised = (value + BRIGHTER[severity - 1]).clamp(max=1.0)
    return torch.where(value > 0, images * (raised / value), raised)


def contrast(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Move every channel toward its mean over the image."""
    mean = images.mean((2, 3), keepdim=True)
    return torch.lerp(mean, images, CONTRAST[severity - 1])


def pixelate(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Shrink by boxes and enlarge again; round to bytes between the steps, as Pillow does."""
    for across in (True, False):
        size = images.shape[3 if across else 2]
        small = max(1, int(size * COARSER[severity - 1]))
        for old, new in ((size, small), (small, size)):
            box = box_matrix(old, new).to(images.device)
            images = images @ box.T if across else box @ images
            images = images.mul(255.0).add_(0.5).floor_().div_(255.0)
    return images


def elastic_transform(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Apply a random affine map, then take every pixel from a place near it."""
    far, deviation, corner = (share * min(images.shape[2:]) for share in ELASTIC[severity - 1])
    warped = random_affine(images, corner, generator)
    if far == 0.0:
        return warped
    count, _, height, width = images.shape
    noise = torch.rand(count, 2, height, width, generator=generator, device=images.device)
    moves = gaussian_blur(noise * 2.0 - 1.0, deviation, truncate=3.0, border="reflect") * far
    across = moves[:, 0] + torch.arange(width, device=images.device)
    down = moves[:, 1] + torch.arange(height, device=images.device)[:, None]
    # Scale places to [-1, 1] from edge to edge: the mirror then repeats the edge pixel.
    grid = torch.stack(((2 * across + 1) / width - 1, (2 * down + 1) / height - 1), -1)
    return F.grid_sample(warped, grid, padding_mode="reflection", align_corners=False)


def random_affine(images: Tensor, corner: float, generator: torch.Generator) -> Tensor:
    """Move three points about the middle by up to ``corner`` pixels each way, and all with them."""
    count, _, height, width = images.shape
    middle = torch.tensor([width // 2, height // 2], dtype=torch.float64)
    third = max(1, min(height, width) // 3)
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    points = (middle + third * signs).to(images.device)
    draw = torch.rand(count, 3, 2, generator=generator, device=images.device)
    moved = points + (draw.double() * 2.0 - 1.0) * corner
    # Take each new pixel from the place that the inverse map, moved points to points, gives.
    ones = torch.ones(count, 3, 1, dtype=torch.float64, device=images.device)
    inverse = torch.linalg.solve(torch.cat((moved, ones), 2), points.expand(count, 3, 2))
    down, across = torch.meshgrid(
        torch.arange(height, dtype=torch.float64, device=images.device),
        torch.arange(width, dtype=torch.float64, device=images.device),
        indexing="ij",
    )
    places = torch.stack((across, down, torch.ones_like(down)), -1).reshape(1, -1, 3) @ inverse
    scale = 2.0 / places.new_tensor([width - 1, height - 1])
    grid = (places * scale - 1.0).reshape(count, height, width, 2).to(images.dtype)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=True)
