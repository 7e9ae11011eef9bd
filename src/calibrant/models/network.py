"""The base of the networks here: features, then a linear classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """``forward`` is ``classifier(features(x))``, which MaC-Cal, TST and others take apart."""

    classifier: nn.Module

    def features(self, images: Tensor) -> Tensor:
        """Return the inputs of the classifier."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def conv3x3(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Conv2d:
    """Create a 3x3 convolution that keeps the size, apart from its stride."""
    return nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """Create a 1x1 convolution."""
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


def average_places(maps: Tensor) -> Tensor:
    """Average over places: (N,C,H,W) to (N,C)."""
    return maps.mean((2, 3))


def init_weights(network: nn.Module) -> None:
    """Initialise convolutions by He et al.'s normal (fan out); BatchNorm stays the identity."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class StochasticDepth(nn.Module):
    """Keep a branch with a probability in training, and scale it by that in use.

    Huang et al. 2016: one draw a batch. The branch is computed and multiplied by the draw, so
    that nothing waits for the device and every parameter has a gradient on every process.

    Args:
        keep: The probability of keeping the branch.
    """

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, branch: Tensor) -> Tensor:
        """Return 0 or the branch in training, its expectation in use."""
        if self.keep == 1.0:
            return branch
        if not self.training:
            return branch * self.keep
        return branch * (torch.rand((), device=branch.device) < self.keep).to(branch.dtype)

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"keep={self.keep:g}"
