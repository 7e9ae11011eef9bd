"""Corrupt images as CIFAR-C does: 15 kinds in 5 severities, computed on the images' device.

The kinds and their constants are those of Hendrycks and Dietterich (2019) in their CIFAR form.
The images are not the published files: the random draws are ours, frost is a synthetic texture
instead of photographs, and numbers are rounded where the published ones are truncated. So
results on them compare methods with each other, but not row by row with published results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from calibrant.core.errors import InputError
from calibrant.data.batches import derive_seed
from calibrant.data.corruptions.blur import defocus_blur, glass_blur, motion_blur, zoom_blur
from calibrant.data.corruptions.digital import brightness, contrast, elastic_transform, pixelate
from calibrant.data.corruptions.jpeg import jpeg_compression
from calibrant.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise
from calibrant.data.corruptions.weather import fog, frost, snow

# Takes images in [0,1] (N,C,H,W), a severity 1..5 and a generator on their device.
Corruption = Callable[[Tensor, int, torch.Generator], Tensor]

_FUNCTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}
KINDS: tuple[str, ...] = tuple(_FUNCTIONS)
SEVERITIES = (1, 2, 3, 4, 5)
MIN_SIDE = 4  # pixels: smaller images leave blurs and warps nothing to reflect
CHUNK = 1 << 20  # numbers processed at once: a few tensors of this size fit a core's cache


def corrupt(images: Tensor, kind: str, severity: int, *, seed: int = 0) -> Tensor:
    """Corrupt uint8 images (N,C,H,W); return the same shape on the same device.

    The result depends only on the arguments and on the type of device, whose random numbers are
    used. Three channels are colours; any other number are as many grey planes. Blurs and shifts
    are in pixels, like the published constants, which were chosen for 32x32;
    ``elastic_transform`` scales with the shorter side. The severities are the published ones. A
    higher one is not always farther from the clean image: the affine part of elastic shrinks,
    frost dims what it covers, and glass blurs less where it moves pixels twice.

    Args:
        images: uint8, (N,C,H,W), at least 4 pixels a side.
        kind: One of `KINDS`.
        severity: 1 to 5.
        seed: The seed of the draws.
    """
    if kind not in _FUNCTIONS:
        raise InputError(f"no corruption is called {kind!r}. All: {', '.join(KINDS)}")
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise InputError(f"severity must be 1, 2, 3, 4 or 5, found {severity!r}")
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(
            f"images must be uint8 of shape (N,C,H,W), found {images.dtype} of shape "
            f"{tuple(images.shape)}"
        )
    if min(images.shape[2:]) < MIN_SIDE:
        raise InputError(
            f"corruptions need images of at least {MIN_SIDE} pixels a side, found "
            f"{images.shape[2]}x{images.shape[3]}"
        )
    generator = torch.Generator(images.device)
    generator.manual_seed(derive_seed(seed, KINDS.index(kind), severity))
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    rows = max(1, CHUNK // max(1, images[:1].numel()))
    with torch.no_grad(), _full_precision(images.device):
        for start in range(0, len(images), rows):
            clean = images[start : start + rows].to(torch.float32).div_(255.0)
            changed = _FUNCTIONS[kind](clean, severity, generator)
            out[start : start + rows] = changed.mul(255.0).round_().clamp_(0.0, 255.0).byte()
    return out


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Compute in full float32, whatever training uses: bf16 has no more bits than a byte."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
