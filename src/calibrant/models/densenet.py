"""DenseNets in CIFAR form: every layer sees the maps of all before it in its block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.models.network import Network, conv1x1, conv3x3, pooled, start


class Layer(nn.Module):
    """BatchNorm, ReLU, 3x3; with a bottleneck, 1x1 to four times the growth first."""

    def __init__(self, inputs: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        self.narrow: nn.Module | None = None
        if bottleneck:
            self.narrow = nn.Sequential(
                nn.BatchNorm2d(inputs), nn.ReLU(), conv1x1(inputs, 4 * growth)
            )
            inputs = 4 * growth
        self.norm, self.conv = nn.BatchNorm2d(inputs), conv3x3(inputs, growth)

    def forward(self, maps: Tensor) -> Tensor:
        """The maps so far, and this layer's."""
        seen = maps if self.narrow is None else self.narrow(maps)
        return torch.cat((maps, self.conv(F.relu(self.norm(seen)))), 1)


class DenseNet(Network):
    """Dense blocks with halving transitions between (Huang et al. 2017)."""

    def __init__(
        self,
        layers: Sequence[int],
        growth: int,
        num_classes: int,
        *,
        channels: int = 3,
        stem_width: int,
        bottleneck: bool,
        compression: float,
    ) -> None:
        super().__init__()
        width = stem_width
        parts: list[nn.Module] = [conv3x3(channels, width)]
        for index, count in enumerate(layers):
            if index:
                narrow = int(width * compression)
                parts += [nn.BatchNorm2d(width), nn.ReLU(), conv1x1(width, narrow)]
                parts += [nn.AvgPool2d(2)]
                width = narrow
            for _ in range(count):
                parts.append(Layer(width, growth, bottleneck))
                width += growth
        self.maps = nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU())
        self.classifier = nn.Linear(width, num_classes)
        start(self)

    def features(self, images: Tensor) -> Tensor:
        """The pooled maps."""
        return pooled(self.maps(images))


def densenet(depth: int, num_classes: int, *, channels: int = 3) -> DenseNet:
    """DenseNet-40 (growth 12, plain), 121 (growth 32) or 161 (growth 48), bottlenecked."""
    if depth == 40:
        return DenseNet(
            (12, 12, 12),
            12,
            num_classes,
            channels=channels,
            stem_width=16,
            bottleneck=False,
            compression=1.0,
        )
    growth, layers = {121: (32, (6, 12, 24, 16)), 161: (48, (6, 12, 36, 24))}[depth]
    return DenseNet(
        layers,
        growth,
        num_classes,
        channels=channels,
        stem_width=2 * growth,
        bottleneck=True,
        compression=0.5,
    )
