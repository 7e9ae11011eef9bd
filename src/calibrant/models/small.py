"""Small networks: LeNet-5 and a multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.models.network import Network


class LeNet5(Network):
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling, for 32x32 images.

    Args:
        num_classes: K.
        channels: Channels of the images.
    """

    def __init__(self, num_classes: int, *, channels: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(84, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Return the last hidden layer."""
        hidden: Tensor = self.body(images)
        return hidden


class MLP(Network):
    """Linear layers with ReLU, on flattened inputs of any shape.

    Args:
        num_classes: K.
        inputs: Numbers in one input.
        hidden: The width of each hidden layer.
        dropout: The dropout rate after each hidden layer; 0 adds none.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        inputs: int = 64,
        hidden: Sequence[int] = (128, 128),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
            inputs = width
        self.body = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Return the last hidden layer."""
        hidden: Tensor = self.body(images)
        return hidden
