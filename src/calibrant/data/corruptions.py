"""CIFAR-C-style corruptions of images: 15 kinds in 5 severities, made on the images' device.

The kinds and their constants are those of Hendrycks and Dietterich (2019) in their CIFAR form.
The pictures are not the published files: the draws are ours, frost is a made texture and not
photographs, and numbers are rounded where the published ones are cut off. So figures on them
compare methods with each other, and not with figures on the published files row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from calibrant.data.batches import derived_seed
from calibrant.data.corruptions_blur import defocus_blur, glass_blur, motion_blur, zoom_blur
from calibrant.data.corruptions_digital import brightness, contrast, elastic_transform, pixelate
from calibrant.data.corruptions_jpeg import jpeg_compression
from calibrant.data.corruptions_noise import gaussian_noise, impulse_noise, shot_noise
from calibrant.data.corruptions_weather import fog, frost, snow
from calibrant.functional.errors import InputError

# Of images as numbers in [0,1] (N,C,H,W), a severity 1..5 and a generator on their device.
Corruption = Callable[[Tensor, int, torch.Generator], Tensor]

_KINDS: dict[str, Corruption] = {
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
KINDS: tuple[str, ...] = tuple(_KINDS)
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 4  # pixels a side: below it blurs and warps have nothing to reflect
CHUNK = 1 << 20  # numbers worked on at once: a few of such tensors stay in a core's cache


def corrupt(images: Tensor, kind: str, severity: int, *, seed: int = 0) -> Tensor:
    """Bytes (N,C,H,W), corrupted: the same shape, on the same device.

    The result depends on the images, the kind, the severity, the seed and the kind of device
    (its random numbers) alone. Three channels are colours; any other number of them are as
    many grey planes. Blurs and shifts are in pixels, as the published constants are, which
    were chosen for 32x32; ``elastic_transform`` scales with the shorter side. A severity is the
    published one, and not always farther from the clean image than the one before: the affine
    part of elastic shrinks, frost dims what it covers, glass blurs less where it moves twice.
    """
    if kind not in _KINDS:
        raise InputError(f"no corruption is called {kind!r}. All: {', '.join(KINDS)}")
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise InputError(f"a severity is one of 1, 2, 3, 4, 5, found {severity!r}")
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(
            f"images are bytes of shape (N,C,H,W), found {images.dtype} of shape "
            f"{tuple(images.shape)}"
        )
    if min(images.shape[2:]) < SMALLEST:
        raise InputError(
            f"corruptions want images of {SMALLEST} pixels a side or more, found "
            f"{images.shape[2]}x{images.shape[3]}"
        )
    generator = torch.Generator(images.device)
    generator.manual_seed(derived_seed(seed, KINDS.index(kind), severity))
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    rows = max(1, CHUNK // max(1, images[:1].numel()))
    with torch.no_grad(), _exact(images.device):
        for start in range(0, len(images), rows):
            clean = images[start : start + rows].to(torch.float32).div_(255.0)
            changed = _KINDS[kind](clean, severity, generator)
            out[start : start + rows] = changed.mul(255.0).round_().clamp_(0.0, 255.0).byte()
    return out


@contextmanager
def _exact(device: torch.device) -> Iterator[None]:
    """Whole single precision, whatever is set for training: a byte is 8 bits, bf16 has 8."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
