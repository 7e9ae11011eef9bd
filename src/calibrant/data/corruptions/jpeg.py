"""The loss of JPEG without its files: halve the detail of colours, round 8x8 cosines."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

QUALITY = (80, 65, 58, 50, 40)
# The example quantisation tables of the standard (ITU-T T.81, annex K), by rows.
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *(((99,) * 8,) * 4),
)
# RGB to luminance and chrominance (YCbCr), and back (JFIF).
TO_YCC = (
    (0.299, 0.587, 0.114),
    (-0.168735892, -0.331264108, 0.5),
    (0.5, -0.418687589, -0.081312411),
)
TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136286, -0.714136286), (1.0, 1.772, 0.0))


def jpeg_compression(images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Compress and read again at a quality of 80 to 40."""
    return jpeg(images * 255.0, QUALITY[severity - 1]) / 255.0


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Return images 0..255 (N,C,H,W) as a baseline JPEG of a quality stores them.

    Three channels are colours: their chrominance is stored at half the size each way (4:2:0)
    and enlarged smoothly, as libjpeg does by default. Any other planes are grey.
    """
    if images.shape[1] != 3:
        return _quantise(images, quantisation_table(quality, chrominance=False)).clamp_(0.0, 255.0)
    height, width = images.shape[2:]
    shift = images.new_tensor([0.0, 128.0, 128.0])[:, None, None]
    converted = (_mix(images, TO_YCC) + shift).round_()
    luminance = _quantise(converted[:, :1], quantisation_table(quality, chrominance=False))
    small = _quantise(_halve(converted[:, 1:]), quantisation_table(quality, chrominance=True))
    small = small[:, :, : (height + 1) // 2, : (width + 1) // 2]
    colour = _double(small)[:, :, :height, :width]
    return _mix(torch.cat((luminance, colour), 1) - shift, TO_RGB).round_().clamp_(0.0, 255.0)


@lru_cache(maxsize=32)
def quantisation_table(quality: int, *, chrominance: bool) -> Tensor:
    """Return the divisors of the 64 cosines at a quality of 1 to 100; the tables are for 50."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    base = torch.tensor(CHROMINANCE if chrominance else LUMINANCE)
    return ((base * scale + 50) // 100).clamp(1, 255).flatten().float()


@lru_cache(maxsize=1)
def _transform() -> Tensor:
    """Return the 64x64 matrix of the orthonormal cosine transform of an 8x8 block."""
    place = torch.arange(8, dtype=torch.float64)
    line = torch.cos((2 * place + 1) * place[:, None] * (math.pi / 16)) / 2
    line[0] /= math.sqrt(2)
    return torch.kron(line, line).float()


def _quantise(planes: Tensor, divisors: Tensor) -> Tensor:
    """Round the cosines of every 8x8 block to multiples of their divisors; return whole bytes."""
    height, width = planes.shape[2:]
    padded = F.pad(planes, (0, -width % 8, 0, -height % 8), mode="replicate") - 128.0
    count, channels, high, wide = padded.shape
    blocks = padded.reshape(count * channels, high // 8, 8, wide // 8, 8).transpose(2, 3)
    transform, divisors = _transform().to(planes.device), divisors.to(planes.device)
    # libjpeg keeps cosines to an eighth and rounds a half away from zero; do so, for equal ties.
    cosines = (blocks.reshape(-1, 64) @ transform.T).mul_(8.0).round_().div_(8.0 * divisors)
    kept = cosines.abs().add_(0.5).floor_().copysign_(cosines).mul_(divisors)
    back = (kept @ transform).add_(128.0).round_().clamp_(0.0, 255.0)
    lines = back.reshape(count * channels, high // 8, wide // 8, 8, 8).transpose(2, 3)
    return lines.reshape(padded.shape)[:, :, :height, :width]


def _halve(planes: Tensor) -> Tensor:
    """Average 2x2 pixels; round a half down and up in turn from column to column."""
    height, width = planes.shape[2:]
    even = F.pad(planes, (0, -width % 16, 0, height % 2), mode="replicate")
    total = F.avg_pool2d(even, 2, divisor_override=1)
    bias = 1.0 + torch.arange(total.shape[3], device=planes.device) % 2
    return ((total + bias) / 4).floor_()


def _double(planes: Tensor) -> Tensor:
    """Double the size: ¾ of the nearer and ¼ of the farther pixel each way; repeat the edge."""
    count, channels, height, width = planes.shape
    padded = F.pad(planes, (1, 1, 1, 1), mode="replicate")
    out = planes.new_empty(count, channels, height, 2, width, 2)
    for low in (0, 1):
        rows = 3 * padded[:, :, 1:-1] + padded[:, :, 2 * low : 2 * low + height]
        for right in (0, 1):
            both = 3 * rows[..., 1:-1] + rows[..., 2 * right : 2 * right + width]
            out[:, :, :, low, :, right] = ((both + (8 - right)) / 16).floor_()
    return out.reshape(count, channels, 2 * height, 2 * width)


def _mix(images: Tensor, weights: tuple[tuple[float, ...], ...]) -> Tensor:
    return torch.einsum("dc,nchw->ndhw", images.new_tensor(weights), images)
