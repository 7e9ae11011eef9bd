"""DeepLabV3 on a dilated ResNet-50, for one label a pixel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.models.network import Network, conv1x1, conv3x3, init_weights
from calibrant.models.resnet import Bottleneck, ResNet


class Pyramid(nn.Module):
    """Atrous spatial pyramid pooling: one view of the maps at each rate, and one of the whole.

    Args:
        inputs: Channels of the maps.
        width: Channels of each view and of the result.
        rates: The dilation of each view.
    """

    def __init__(self, inputs: int, width: int, rates: Sequence[int]) -> None:
        super().__init__()
        views = [conv1x1(inputs, width)]
        views += [nn.Conv2d(inputs, width, 3, 1, rate, rate, bias=False) for rate in rates]
        self.views = nn.ModuleList(_add_norm(view, width) for view in views)
        self.whole = _add_norm(conv1x1(inputs, width), width)
        self.merge = _add_norm(conv1x1(width * (len(views) + 1), width), width)
        self.dropout = nn.Dropout(0.5)

    def forward(self, maps: Tensor) -> Tensor:
        """Merge the views."""
        whole = self.whole(maps.mean((2, 3), keepdim=True)).expand(-1, -1, *maps.shape[2:])
        merged: Tensor = self.merge(torch.cat([view(maps) for view in self.views] + [whole], 1))
        dropped: Tensor = self.dropout(merged)
        return dropped


class DeepLabV3(Network):
    """DeepLabV3 (Chen et al. 2017): output stride 8, rates 12, 24, 36, logits at image size.

    Args:
        num_classes: K.
        channels: Channels of the images.
    """

    def __init__(self, num_classes: int, *, channels: int = 3) -> None:
        super().__init__()
        body = ResNet(
            Bottleneck,
            (3, 4, 6, 3),
            (64, 128, 256, 512),
            num_classes,
            channels=channels,
            stem="imagenet",
            strides=(1, 2, 1, 1),
            dilations=(1, 1, 2, 4),
        )
        del body.classifier
        self.body = body
        self.pyramid = Pyramid(2048, 256, (12, 24, 36))
        self.refine = _add_norm(conv3x3(256, 256), 256)
        self.classifier = nn.Conv2d(256, num_classes, 1)
        init_weights(self.pyramid)
        init_weights(self.refine)

    def features(self, images: Tensor) -> Tensor:
        """Return maps (N,256,h,w) at an eighth of the size."""
        maps: Tensor = self.refine(self.pyramid(self.body.maps(images)))
        return maps

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N,K,H,W)."""
        logits = self.classifier(self.features(images))
        return F.interpolate(logits, images.shape[2:], mode="bilinear", align_corners=False)


def _add_norm(layer: nn.Module, width: int) -> nn.Sequential:
    return nn.Sequential(layer, nn.BatchNorm2d(width), nn.ReLU())
