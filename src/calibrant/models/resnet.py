"""Residual networks: wide ones with ImageNet's blocks, and the thin deep ones of CIFAR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.models.network import (
    Network,
    StochasticDepth,
    conv1x1,
    conv3x3,
    pooled,
    start,
)


class Basic(nn.Module):
    """Two 3x3 convolutions."""

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
        """The block."""
        branch = F.relu(self.norm1(self.conv1(maps)))
        branch = self.depth(self.norm2(self.conv2(branch)))
        return F.relu(branch + self.shortcut(maps))


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1 to four times the width."""

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
        """The block."""
        branch = F.relu(self.norm1(self.conv1(maps)))
        branch = F.relu(self.norm2(self.conv2(branch)))
        branch = self.depth(self.norm3(self.conv3(branch)))
        return F.relu(branch + self.shortcut(maps))


class PreActivated(nn.Module):
    """BatchNorm and ReLU before each of two 3x3 convolutions (He et al. 2016b)."""

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
        """The block; where the shape changes, the shortcut sees the activated maps too."""
        active = F.relu(self.norm1(maps))
        kept = maps if self.shortcut is None else self.shortcut(active)
        branch = self.conv1(active)
        return kept + self.depth(self.conv2(F.relu(self.norm2(branch))))


class Padded(nn.Module):
    """The shortcut without parameters: every other place, zeros for the new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, maps: Tensor) -> Tensor:
        """The padded maps (option A of He et al. 2016a)."""
        kept = maps[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


def make_shortcut(kind: str, inputs: int, outputs: int, stride: int) -> nn.Module:
    """The identity where the shape stays; else a projection, or padding."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if kind == "padded":
        return Padded(inputs, outputs, stride)
    return nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))


Block: TypeAlias = "type[Basic] | type[Bottleneck] | type[PreActivated]"
RESNETS: dict[int, tuple[Block, tuple[int, ...]]] = {
    18: (Basic, (2, 2, 2, 2)),
    34: (Basic, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}


class ResNet(Network):
    """Stages of residual blocks on a 3x3 stem (CIFAR) or ImageNet's 7x7 one.

    ``last_keep`` below 1 is stochastic depth: the l-th of L blocks is kept with probability
    1 − l/L·(1 − last_keep). ``dilations`` replace strides by dilation, for dense prediction.
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
        self.stem = _stem(stem, channels, width, normalised=not preactivated)
        stages, done, total = [], 0, sum(blocks)
        inputs, before = width, 1
        strides = strides or [1] + [2] * (len(blocks) - 1)
        for index, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            dilation = dilations[index] if dilations else 1
            layers: list[nn.Module] = []
            for place in range(count):
                done += 1
                stride = strides[index] if place == 0 else 1
                keep = 1.0 - done / total * (1.0 - last_keep)
                # The first block of a dilated stage still has the stage before's dilation.
                spread = before if place == 0 else dilation
                layers.append(block(inputs, width, stride, spread, shortcut, keep))
                inputs = width * block.expansion
            before = dilation
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.last = (
            nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU()) if preactivated else nn.Identity()
        )
        self.classifier = nn.Linear(inputs, num_classes)
        start(self)

    def maps(self, images: Tensor) -> Tensor:
        """The last stage's maps."""
        found: Tensor = self.last(self.stages(self.stem(images)))
        return found

    def features(self, images: Tensor) -> Tensor:
        """The pooled maps."""
        return pooled(self.maps(images))


def _stem(kind: str, channels: int, width: int, normalised: bool) -> nn.Module:
    if kind == "imagenet":
        return nn.Sequential(
            nn.Conv2d(channels, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
    first = conv3x3(channels, width)
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU()) if normalised else first


def resnet(depth: int, num_classes: int, *, channels: int = 3) -> ResNet:
    """ResNet-18, 34, 50 or 101 with a 3x3 stem."""
    kind, blocks = RESNETS[depth]
    return ResNet(kind, blocks, (64, 128, 256, 512), num_classes, channels=channels)


def thin_resnet(
    depth: int, num_classes: int, *, channels: int = 3, last_keep: float = 1.0
) -> ResNet:
    """CIFAR's 6n+2 layers of widths 16, 32, 64, with padded shortcuts (He et al. 2016a)."""
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
    """The same of pre-activated blocks (He et al. 2016b)."""
    blocks = [(depth - 2) // 6] * 3
    return ResNet(PreActivated, blocks, (16, 32, 64), num_classes, channels=channels)


def wide_resnet(depth: int, factor: int, num_classes: int, *, channels: int = 3) -> ResNet:
    """WRN-depth-factor: 6n+4 layers of pre-activated blocks (Zagoruyko and Komodakis 2016)."""
    return ResNet(
        PreActivated,
        [(depth - 4) // 6] * 3,
        (16 * factor, 32 * factor, 64 * factor),
        num_classes,
        channels=channels,
        stem_width=16,
    )
