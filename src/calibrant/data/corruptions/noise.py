"""Camera noise: of the sensor, of too little light, of dead and hot pixels."""

from __future__ import annotations

import torch
from torch import Tensor

# One constant a severity: the deviation σ, the photons λ, the share of values.
DEVIATION = (0.04, 0.06, 0.08, 0.09, 0.10)
PHOTONS = (500.0, 250.0, 100.0, 75.0, 50.0)
SHARE = (0.01, 0.02, 0.03, 0.05, 0.07)


def gaussian_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Add σε, ε standard normal for every pixel and channel."""
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    return images.add(noise, alpha=DEVIATION[severity - 1])


def shot_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Count photons: Poisson(λx)/λ."""
    photons = PHOTONS[severity - 1]
    return torch.poisson(images * photons, generator=generator) / photons


def impulse_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Turn a share of the values black or white, each with probability one half."""
    share = SHARE[severity - 1]
    draw = torch.rand(images.shape, generator=generator, device=images.device)
    changed = torch.where(draw < share, 0.0, images)
    return torch.where(draw < share / 2, 1.0, changed)
