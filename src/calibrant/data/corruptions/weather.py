"""Weather: snow, frost on a window pane, fog."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.data.corruptions.blur import blur_along
from calibrant.data.corruptions.filters import to_grey, zoom

# For each severity: mean and deviation of the noise, its enlargement, the threshold of flakes,
# the length and the deviation of their fall, and the share of the image's colour that stays.
SNOW = (
    (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
)
# The weights of the image and of the frost.
FROST = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
# The thickness of the fog, and the factor by which its detail fades from scale to scale.
FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
ICE = (0.80, 0.90, 1.0)  # frost is bluish


def snow(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Pale an image and add flakes: noise above a threshold, falling, and the same rotated."""
    mean, deviation, enlarged, threshold, length, spread, kept = SNOW[severity - 1]
    count, _, height, width = images.shape
    device = images.device
    noise = torch.randn(count, 1, height, width, generator=generator, device=device)
    flakes = zoom(noise * deviation + mean, enlarged)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0.0, 1.0)
    turn = torch.rand(count, generator=generator, device=device)
    falling = blur_along(flakes, -(math.pi / 4) - turn * (math.pi / 2), length, spread)
    paled = torch.maximum(images, to_grey(images) * 1.5 + 0.5)
    return torch.lerp(paled, images, kept) + falling + falling.flip(2, 3)


def frost(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Compute a·x + b·ice, with a synthetic texture; the published files use photographs."""
    image_weight, ice_weight = FROST[severity - 1]
    count, channels, height, width = images.shape
    texture = crystals(count, height, width, generator)
    if channels == 3:
        texture = texture * images.new_tensor(ICE)[:, None, None]
    return image_weight * images + ice_weight * texture


def crystals(count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Make textures (N,1,H,W) in [0,1]: ridges of noise at four scales, and needles 60° apart."""
    device = generator.device
    ridges = torch.zeros(count, 1, height, width, device=device)
    for octave in range(4):
        sides = [max(2, min(size, 3 << octave)) for size in (height, width)]
        coarse = torch.rand(count, 1, *sides, generator=generator, device=device)
        smooth = F.interpolate(coarse, (height, width), mode="bilinear", align_corners=True)
        # A crease where the noise crosses its middle looks like the edge of a plate of ice.
        ridges += (1.0 - (2.0 * smooth - 1.0).abs()).square() * 0.5**octave
    ridges /= 2.0 - 0.5**3
    seeds = torch.rand(count, 1, height, width, generator=generator, device=device)
    seeds = (seeds > 0.97).float()
    turn = torch.rand(count, generator=generator, device=device) * math.pi
    needles = torch.zeros_like(ridges)
    for sixth in range(6):
        needles += blur_along(seeds, turn + sixth * (math.pi / 3), 4, 3.0)
    return (0.7 * ridges + 1.1 * needles).clamp_(0.0, 1.0)


def fog(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Compute (x + b·plasma)·m/(m + b), with m the largest value of the image."""
    thickness, decay = FOG[severity - 1]
    count, _, height, width = images.shape
    cloud = plasma(count, max(height, width), decay, generator)[:, None, :height, :width]
    brightest = images.amax((1, 2, 3), keepdim=True)
    return (images + thickness * cloud) * (brightest / (brightest + thickness))


def plasma(count: int, size: int, decay: float, generator: torch.Generator) -> Tensor:
    """Make height maps (N,S,S) in [0,1] by the diamond-square algorithm on a torus.

    S is the smallest power of two ≥ size. The noise of a scale is uniform on ±w²; w starts at
    100 and is divided by ``decay`` from scale to scale.
    """
    device = generator.device
    side = 1 << max(1, (size - 1).bit_length())
    heights = torch.zeros(count, side, side, device=device)
    step, wobble = side, 100.0

    def displace(total: Tensor) -> Tensor:
        noise = torch.rand(total.shape, generator=generator, device=device)
        return total / 4 + (2.0 * noise - 1.0) * wobble**2

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        heights[:, half::step, half::step] = displace(pairs + pairs.roll(-1, 2))
        centres = heights[:, half::step, half::step]
        above = centres + centres.roll(1, 1) + corners + corners.roll(-1, 2)
        beside = centres + centres.roll(1, 2) + corners + corners.roll(-1, 1)
        heights[:, ::step, half::step] = displace(above)
        heights[:, half::step, ::step] = displace(beside)
        step, wobble = half, wobble / decay
    heights -= heights.amin((1, 2), keepdim=True)
    return heights / heights.amax((1, 2), keepdim=True)
