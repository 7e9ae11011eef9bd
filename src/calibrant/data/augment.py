"""Augment, normalise and mix whole batches of images on their device.

Nothing loops over samples, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.core.errors import InputError


@dataclass(frozen=True)
class Augment:
    """Crop padded images at random, mirror them at random, and cut out a square.

    Args:
        crop: Pixels of zero padding on each side before the crop; 0 does not crop.
        flip: Whether to mirror each image with probability one half.
        cutout: The side of the black square, in pixels; 0 cuts nothing.
    """

    crop: int = 4
    flip: bool = True
    cutout: int = 0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment uint8 images (B,C,H,W)."""
        if self.crop:
            images = random_crop(images, self.crop, generator)
        if self.flip:
            images = random_flip(images, generator)
        if self.cutout:
            images = cut_out(images, self.cutout, generator)
        return images

    def dense(
        self, images: Tensor, labels: Tensor, ignore_index: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Augment images and their (B,H,W) labels alike; label the padding ``ignore_index``."""
        # The labels are one more channel of bytes, whose 0, the fill, means "ignored".
        plane = torch.where(labels == ignore_index, 0, labels + 1).to(torch.uint8).unsqueeze(1)
        changed = self(torch.cat((images, plane), 1), generator)
        moved = changed[:, -1].long() - 1
        return changed[:, :-1], torch.where(moved < 0, ignore_index, moved)


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Shift each image by up to ``padding`` pixels each way; fill with black."""
    count, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (padding,) * 4)
    shift = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=device)
    rows = shift[0] + torch.arange(height, device=device)
    columns = shift[1] + torch.arange(width, device=device)
    image = torch.arange(count, device=device)[:, None, None]
    # Gather with channels last: the channels of a pixel are then next to each other.
    moved = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image with probability one half."""
    draw = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device)
    return torch.where(draw < 0.5, images.flip(3), images)


def cut_out(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Blacken a square at a random place, clipped at the border (DeVries and Taylor 2017)."""
    count, _, height, width = images.shape
    device = images.device
    inside = []
    for size, axis in ((height, 1), (width, 2)):
        centre = torch.randint(size, (count, 1, 1), generator=generator, device=device)
        place = torch.arange(size, device=device).reshape((1, -1, 1) if axis == 1 else (1, 1, -1))
        inside.append((place >= centre - side // 2) & (place < centre - side // 2 + side))
    return images * ~(inside[0] & inside[1]).unsqueeze(1)


class Normalise:
    """Compute (x/255 − mean)/std of uint8 images on one device.

    Args:
        mean: The mean of each channel, divided by 255.
        std: The standard deviation of each channel, divided by 255.
        device: The device of the images.
        dtype: The type of the result.
        channels_last: Whether the result is in channels-last memory format.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device | str = "cpu",
        *,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        # Create them once: creating them for every batch would wait for the device.
        factor = torch.tensor([1.0 / (255.0 * s) for s in std], dtype=torch.float32)
        offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32)
        self._factor = factor.to(device)[:, None, None]
        self._offset = offset.to(device)[:, None, None]
        self._dtype = dtype
        self._form = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise uint8 images (B,C,H,W)."""
        scaled = torch.addcmul(self._offset, images.to(torch.float32), self._factor)
        return scaled.to(dtype=self._dtype, memory_format=self._form)


def soft_labels(target: Tensor, num_classes: int) -> Tensor:
    """Convert labels to class probabilities; return probabilities unchanged."""
    return target if target.is_floating_point() else F.one_hot(target, num_classes).float()


def draw_beta(
    alpha: float, count: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draw from Beta(α, α): g₁/(g₁+g₂) of two gamma draws."""
    pair = torch._standard_gamma(
        torch.full((2, count), alpha, dtype=torch.float64, device=device), generator=generator
    ).clamp_min(1e-300)
    return pair[0] / pair.sum(0)


def mixup(
    inputs: Tensor, target: Tensor, num_classes: int, *, alpha: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mix images and labels, λx_i + (1−λ)x_j, with one λ ~ Beta(α, α) a batch (Zhang et al. 2018).

    Args:
        inputs: (N,...).
        target: Labels (N,), or class probabilities (N,K).
        num_classes: K.
        alpha: α of the Beta distribution.
        generator: Draws λ and the pairs; on the device of ``inputs``.
    """
    share = draw_beta(alpha, 1, generator, inputs.device)
    partner = torch.randperm(len(inputs), generator=generator, device=inputs.device)
    soft = soft_labels(target, num_classes)
    images = torch.lerp(inputs[partner], inputs, share.to(inputs.dtype))
    return images, torch.lerp(soft[partner], soft, share.to(soft.dtype))


def cutmix(
    inputs: Tensor, target: Tensor, num_classes: int, *, alpha: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Paste a box of another image, mix labels by area; one box a batch (Yun et al. 2019).

    See `mixup` for the options. The box covers a share 1 − λ of the image, λ ~ Beta(α, α),
    before it is clipped at the border.
    """
    if inputs.ndim != 4:
        raise InputError(f"cutmix needs images (N,C,H,W), found shape {tuple(inputs.shape)}")
    height, width = inputs.shape[2:]
    device = inputs.device
    side = (1.0 - draw_beta(alpha, 1, generator, device)).sqrt()
    inside, share = [], torch.ones((), dtype=torch.float64, device=device)
    for size, shape in ((height, (-1, 1)), (width, (1, -1))):
        centre = torch.rand(1, generator=generator, device=device, dtype=torch.float64) * size
        low = (centre - side * size / 2).floor().clamp(0, size)
        high = (centre + side * size / 2).floor().clamp(0, size)
        place = torch.arange(size, device=device)
        inside.append(((place >= low) & (place < high)).reshape(shape))
        share = share * ((high - low) / size).squeeze()
    partner = torch.randperm(len(inputs), generator=generator, device=device)
    soft = soft_labels(target, num_classes)
    images = torch.where(inside[0] & inside[1], inputs[partner], inputs)
    return images, torch.lerp(soft, soft[partner], share.to(soft.dtype))
