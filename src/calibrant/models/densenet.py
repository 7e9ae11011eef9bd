"""DenseNets in CIFAR form: every layer sees the maps of all layers before it in its block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.models.network import Network, average_places, conv1x1, conv3x3, init_weights


class Layer(nn.Module):
    """BatchNorm, ReLU and a 3x3 convolution; a bottleneck adds a 1x1 to four times the growth."""

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
        """Append this layer's maps to those so far."""
        narrowed = maps if self.narrow is None else self.narrow(maps)
        return torch.cat((maps, self.conv(F.relu(self.norm(narrowed)))), 1)


class DenseNet(Network):
    """Dense blocks with transitions between them that halve the size (Huang et al. 2017).

    Args:
        layers: Layers of each block.
        growth: Maps that a layer adds.
        num_classes: K.
        channels: Channels of the images.
        stem_width: Maps of the first convolution.
        bottleneck: Whether layers have a 1x1 bottleneck.
        compression: The share of the maps that a transition keeps.
    """

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
        init_weights(self)

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled maps."""
        return average_places(self.maps(images))


def densenet(depth: int, num_classes: int, *, channels: int = 3) -> DenseNet:
    """Build DenseNet-40 (growth 12), or 121 (growth 32) or 161 (growth 48) with bottlenecks.

    Args:
        depth: 40, 121 or 161.
        num_classes: K.
        channels: Channels of the images.
    """
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


densenet40 = partial(densenet, 40)
densenet121 = partial(densenet, 121)
densenet161 = partial(densenet, 161)
