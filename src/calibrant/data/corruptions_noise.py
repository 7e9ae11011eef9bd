"""Noise of a camera: of its sensor, of too little light, of dead and hot pixels."""

from __future__ import annotations

import torch
from torch import Tensor

DEVIATION = (0.04, 0.06, 0.08, 0.09, 0.10)
PHOTONS = (500.0, 250.0, 100.0, 75.0, 50.0)
SHARE = (0.01, 0.02, 0.03, 0.05, 0.07)


def gaussian_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """x + σε, ε standard normal for every pixel and channel."""
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    return images.add(noise, alpha=DEVIATION[severity - 1])


def shot_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Poisson(λx)/λ: photons counted."""
    photons = PHOTONS[severity - 1]
    return torch.poisson(images * photons, generator=generator) / photons


def impulse_noise(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """A share of the pixels' channels black or white, each with one half."""
    share = SHARE[severity - 1]
    draw = torch.rand(images.shape, generator=generator, device=images.device)
    changed = torch.where(draw < share, 0.0, images)
    return torch.where(draw < share / 2, 1.0, changed)
