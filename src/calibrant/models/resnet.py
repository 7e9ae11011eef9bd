"""Residual networks: those of ImageNet with a small stem, and the thin and wide ones of CIFAR."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.core.errors import no_such
from calibrant.models.network import (
    Network,
    StochasticDepth,
    average_places,
    conv1x1,
    conv3x3,
    init_weights,
)


class Basic(nn.Module):
    """A residual block of two 3x3 convolutions."""

    expansion = 1

    def __init__(
        self, inputs: int, width: int, stride: int, dilation: int, shortcut: str, keep: float
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, width, stride, dilation)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = make_shortcut(shortcut, inputs, width, stride)
        self.depth = StochasticDepth(keep)

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the block."""
        branch = F.relu(self.norm1(self.conv1(maps)))
        branch = self.depth(self.norm2(self.conv2(branch)))
        return F.relu(branch + self.shortcut(maps))


class Bottleneck(nn.Module):
    """A residual block: 1x1, 3x3 with the stride, 1x1 to four times the width."""

    expansion = 4

    def __init__(
        self, inputs: int, width: int, stride: int, dilation: int, shortcut: str, keep: float
    ) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1, self.norm1 = conv1x1(inputs, width), nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride, dilation)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = conv1x1(width, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = make_shortcut(shortcut, inputs, outputs, stride)
        self.depth = StochasticDepth(keep)

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the block."""
        branch = F.relu(self.norm1(self.conv1(maps)))
        branch = F.relu(self.norm2(self.conv2(branch)))
        branch = self.depth(self.norm3(self.conv3(branch)))
        return F.relu(branch + self.shortcut(maps))


class PreActivated(nn.Module):
    """A pre-activated block: BatchNorm and ReLU before each 3x3 convolution (He et al. 2016b)."""

    expansion = 1

    def __init__(
        self, inputs: int, width: int, stride: int, dilation: int, shortcut: str, keep: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, width, stride, dilation)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        changes = stride != 1 or inputs != width
        self.shortcut = conv1x1(inputs, width, stride) if changes else None
        self.depth = StochasticDepth(keep)

    def forward(self, maps: Tensor) -> Tensor:
        """Apply the block; where the shape changes, the shortcut sees the activated maps."""
        active = F.relu(self.norm1(maps))
        shortcut = maps if self.shortcut is None else self.shortcut(active)
        branch = self.conv1(active)
        return shortcut + self.depth(self.conv2(F.relu(self.norm2(branch))))


class Padded(nn.Module):
    """A shortcut without parameters: every ``stride``-th place, zeros for the new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, maps: Tensor) -> Tensor:
        """Subsample and pad the maps (option A of He et al. 2016a)."""
        kept = maps[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


def make_shortcut(kind: str, inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the identity if the shape stays; else a projection, or padding."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if kind == "padded":
        return Padded(inputs, outputs, stride)
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


STEMS = ("cifar", "imagenet")
Block: TypeAlias = "type[Basic] | type[Bottleneck] | type[PreActivated]"
RESNETS: dict[int, tuple[Block, tuple[int, ...]]] = {
    18: (Basic, (2, 2, 2, 2)),
    34: (Basic, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}


class ResNet(Network):
    """Stages of residual blocks after a stem.

    Args:
        block: The kind of block.
        blocks: Blocks of each stage.
        widths: The width of each stage.
        num_classes: K.
        channels: Channels of the images.
        stem_width: Maps of the stem; None takes the first width.
        stem: ``cifar`` (3x3) or ``imagenet`` (7x7 and pooling).
        shortcut: ``projection`` or ``padded``, where the shape changes.
        last_keep: Below 1, stochastic depth: the l-th of L blocks is kept with probability
            1 − l/L·(1 − last_keep).
        strides: The stride of each stage; None for 1, then 2.
        dilations: The dilation of each stage, in place of strides, for dense prediction.
    """

    def __init__(
        self,
        block: Block,
        blocks: Sequence[int],
        widths: Sequence[int],
        num_classes: int,
        *,
        channels: int = 3,
        stem_width: int | None = None,
        stem: str = "cifar",
        shortcut: str = "projection",
        last_keep: float = 1.0,
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        width = stem_width or widths[0]
        preactivated = block is PreActivated
        self.stem = _make_stem(stem, channels, width, normalised=not preactivated)
        stages, number, total = [], 0, sum(blocks)
        inputs, previous = width, 1
        strides = strides or [1] + [2] * (len(blocks) - 1)
        for index, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            dilation = dilations[index] if dilations else 1
            layers: list[nn.Module] = []
            for place in range(count):
                number += 1
                stride = strides[index] if place == 0 else 1
                keep = 1.0 - number / total * (1.0 - last_keep)
                # The first block of a dilated stage keeps the dilation of the stage before.
                spread = previous if place == 0 else dilation
                layers.append(block(inputs, width, stride, spread, shortcut, keep))
                inputs = width * block.expansion
            previous = dilation
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.last = (
            nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU()) if preactivated else nn.Identity()
        )
        self.classifier = nn.Linear(inputs, num_classes)
        init_weights(self)

    def maps(self, images: Tensor) -> Tensor:
        """Return the maps of the last stage."""
        maps: Tensor = self.last(self.stages(self.stem(images)))
        return maps

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled maps."""
        return average_places(self.maps(images))


def _make_stem(kind: str, channels: int, width: int, normalised: bool) -> nn.Module:
    if kind not in STEMS:
        raise no_such("stem", kind, STEMS)
    if kind == "imagenet":
        return nn.Sequential(
            nn.Conv2d(channels, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
    first = conv3x3(channels, width)
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU()) if normalised else first


def resnet(depth: int, num_classes: int, *, channels: int = 3, stem: str = "cifar") -> ResNet:
    """Build ResNet-18, 34, 50, 101 or 152.

    Args:
        depth: 18, 34, 50, 101 or 152.
        num_classes: K.
        channels: Channels of the images.
        stem: ``cifar`` (3x3) for small images, or ``imagenet`` (7x7 and pooling), as pretrained
            weights have it. Default: 'cifar' (the papers' networks for CIFAR).
    """
    kind, blocks = RESNETS[depth]
    return ResNet(kind, blocks, (64, 128, 256, 512), num_classes, channels=channels, stem=stem)


def thin_resnet(
    depth: int, num_classes: int, *, channels: int = 3, last_keep: float = 1.0
) -> ResNet:
    """Build CIFAR's ResNet of 6n+2 layers, widths 16, 32, 64, padded shortcuts (He et al. 2016a).

    Args:
        depth: 6n+2.
        num_classes: K.
        channels: Channels of the images.
        last_keep: The probability of keeping the last block; see `ResNet`.
    """
    return ResNet(
        Basic,
        [(depth - 2) // 6] * 3,
        (16, 32, 64),
        num_classes,
        channels=channels,
        shortcut="padded",
        last_keep=last_keep,
    )


def thin_preresnet(depth: int, num_classes: int, *, channels: int = 3) -> ResNet:
    """Build CIFAR's ResNet of 6n+2 layers with pre-activated blocks (He et al. 2016b).

    Args:
        depth: 6n+2.
        num_classes: K.
        channels: Channels of the images.
    """
    blocks = [(depth - 2) // 6] * 3
    return ResNet(PreActivated, blocks, (16, 32, 64), num_classes, channels=channels)


def wide_resnet(depth: int, factor: int, num_classes: int, *, channels: int = 3) -> ResNet:
    """Build WRN-depth-factor, of pre-activated blocks (Zagoruyko and Komodakis 2016).

    Args:
        depth: 6n+4.
        factor: The factor of the widths 16, 32, 64.
        num_classes: K.
        channels: Channels of the images.
    """
    return ResNet(
        PreActivated,
        [(depth - 4) // 6] * 3,
        (16 * factor, 32 * factor, 64 * factor),
        num_classes,
        channels=channels,
        stem_width=16,
    )


resnet18 = partial(resnet, 18)
resnet34 = partial(resnet, 34)
resnet50 = partial(resnet, 50)
resnet101 = partial(resnet, 101)
resnet152 = partial(resnet, 152)
resnet110 = partial(thin_resnet, 110)
resnet110_sd = partial(thin_resnet, 110, last_keep=0.5)
preresnet56 = partial(thin_preresnet, 56)
wrn_16_4 = partial(wide_resnet, 16, 4)
wrn_28_10 = partial(wide_resnet, 28, 10)
# Of class-scaling's logits (NN_calibration): 32 without the shortcuts' convolutions, so 34 here.
wrn_32_10 = partial(wide_resnet, 34, 10)
