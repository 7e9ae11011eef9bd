"""Changes made to whole batches of images on their device, with one generator's draws.

Nothing loops over samples, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant.functional.errors import InputError


@dataclass(frozen=True)
class Augment:
    """Random crops of padded images, mirror images, and a square cut out."""

    crop: int = 4  # pixels of zero padding each side
    flip: bool = True
    cutout: int = 0  # side of the square

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """(B,C,H,W) bytes, changed."""
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
        """Images and their (B,H,W) labels, changed alike; pixels that come from nowhere ignored."""
        # Labels travel as one more channel of bytes, whose 0, the fill, is "ignored".
        plane = torch.where(labels == ignore_index, 0, labels + 1).to(torch.uint8).unsqueeze(1)
        changed = self(torch.cat((images, plane), 1), generator)
        found = changed[:, -1].long() - 1
        return changed[:, :-1], torch.where(found < 0, ignore_index, found)


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Each image shifted by up to ``padding`` pixels each way, black where nothing is."""
    count, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (padding,) * 4)
    shift = torch.randint(2 * padding + 1, (2, count, 1), generator=generator, device=device)
    rows = shift[0] + torch.arange(height, device=device)
    columns = shift[1] + torch.arange(width, device=device)
    each = torch.arange(count, device=device)[:, None, None]
    # Channels last while gathering: a pixel's channels then travel together.
    moved = padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image mirrored with probability one half."""
    draw = torch.rand(len(images), 1, 1, 1, generator=generator, device=images.device)
    return torch.where(draw < 0.5, images.flip(3), images)


def cut_out(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """A black square at a random place, cut off at the border (DeVries and Taylor 2017)."""
    count, _, height, width = images.shape
    device = images.device
    inside = []
    for size, axis in ((height, 1), (width, 2)):
        centre = torch.randint(size, (count, 1, 1), generator=generator, device=device)
        place = torch.arange(size, device=device).reshape((1, -1, 1) if axis == 1 else (1, 1, -1))
        inside.append((place >= centre - side // 2) & (place < centre - side // 2 + side))
    return images * ~(inside[0] & inside[1]).unsqueeze(1)


class Normalise:
    """(x/255 − mean)/std of bytes, on one device."""

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device | str = "cpu",
        *,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        # Made once: making them for every batch would wait for the device.
        factor = torch.tensor([1.0 / (255.0 * s) for s in std], dtype=torch.float32)
        offset = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=torch.float32)
        self._factor = factor.to(device)[:, None, None]
        self._offset = offset.to(device)[:, None, None]
        self._dtype = dtype
        self._form = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        """(B,C,H,W) bytes to numbers."""
        scaled = torch.addcmul(self._offset, images.to(torch.float32), self._factor)
        return scaled.to(dtype=self._dtype, memory_format=self._form)


def soft_labels(target: Tensor, num_classes: int) -> Tensor:
    """Class probabilities of labels; soft ones as they are."""
    return target if target.is_floating_point() else F.one_hot(target, num_classes).float()


def beta_draws(
    alpha: float, count: int, generator: torch.Generator, device: torch.device | str
) -> Tensor:
    """Draws of Beta(α, α) from a generator, as a share of two gamma draws."""
    pair = torch._standard_gamma(
        torch.full((2, count), alpha, dtype=torch.float64, device=device), generator=generator
    ).clamp_min(1e-300)
    return pair[0] / pair.sum(0)


def mixup(
    inputs: Tensor, target: Tensor, num_classes: int, *, alpha: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """λx_i + (1−λ)x_j with its labels so mixed, one λ ~ Beta(α, α) a batch (Zhang et al. 2018)."""
    share = beta_draws(alpha, 1, generator, inputs.device)
    other = torch.randperm(len(inputs), generator=generator, device=inputs.device)
    soft = soft_labels(target, num_classes)
    images = torch.lerp(inputs[other], inputs, share.to(inputs.dtype))
    return images, torch.lerp(soft[other], soft, share.to(soft.dtype))


def cutmix(
    inputs: Tensor, target: Tensor, num_classes: int, *, alpha: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """A box of another image pasted in, labels mixed by area (Yun et al. 2019); one box a batch."""
    if inputs.ndim != 4:
        raise InputError(f"cutmix takes images (N,C,H,W), found shape {tuple(inputs.shape)}")
    height, width = inputs.shape[2:]
    device = inputs.device
    side = (1.0 - beta_draws(alpha, 1, generator, device)).sqrt()
    inside, share = [], torch.ones((), dtype=torch.float64, device=device)
    for size, shape in ((height, (-1, 1)), (width, (1, -1))):
        centre = torch.rand(1, generator=generator, device=device, dtype=torch.float64) * size
        low = (centre - side * size / 2).floor().clamp(0, size)
        high = (centre + side * size / 2).floor().clamp(0, size)
        place = torch.arange(size, device=device)
        inside.append(((place >= low) & (place < high)).reshape(shape))
        share = share * ((high - low) / size).squeeze()
    other = torch.randperm(len(inputs), generator=generator, device=device)
    soft = soft_labels(target, num_classes)
    images = torch.where(inside[0] & inside[1], inputs[other], inputs)
    return images, torch.lerp(soft, soft[other], share.to(soft.dtype))
