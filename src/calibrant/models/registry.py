"""Every network by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrant.functional.errors import InputError, no_such
from calibrant.models.deeplab import DeepLabV3
from calibrant.models.densenet import densenet
from calibrant.models.network import Network
from calibrant.models.resnet import resnet, thin_preresnet, thin_resnet, wide_resnet
from calibrant.models.small import MLP, LeNet5

# name: (its builder, of the number of classes and options; a line on what it is).
MODELS: dict[str, tuple[Callable[..., Network], str]] = {
    "resnet18": (lambda k, **o: resnet(18, k, **o), "ResNet-18, 3x3 stem"),
    "resnet34": (lambda k, **o: resnet(34, k, **o), "ResNet-34, 3x3 stem"),
    "resnet50": (lambda k, **o: resnet(50, k, **o), "ResNet-50, 3x3 stem"),
    "resnet101": (lambda k, **o: resnet(101, k, **o), "ResNet-101, 3x3 stem"),
    "resnet110": (lambda k, **o: thin_resnet(110, k, **o), "ResNet-110 of CIFAR, thin"),
    "resnet110_sd": (
        lambda k, **o: thin_resnet(110, k, **{"last_keep": 0.5, **o}),
        "ResNet-110 with stochastic depth, last block kept half the time",
    ),
    "preresnet56": (lambda k, **o: thin_preresnet(56, k, **o), "pre-activated, thin"),
    "wrn_16_4": (lambda k, **o: wide_resnet(16, 4, k, **o), "wide ResNet, 2 blocks a stage"),
    "wrn_28_10": (lambda k, **o: wide_resnet(28, 10, k, **o), "wide ResNet, 4 blocks a stage"),
    "wrn_26_10": (lambda k, **o: wide_resnet(28, 10, k, **o), "mac-cal's name for wrn_28_10"),
    "densenet40": (lambda k, **o: densenet(40, k, **o), "DenseNet, growth 12"),
    "densenet121": (lambda k, **o: densenet(121, k, **o), "DenseNet, growth 32"),
    "densenet161": (lambda k, **o: densenet(161, k, **o), "DenseNet, growth 48"),
    "lenet5": (LeNet5, "LeNet-5 for 32x32 images"),
    "mlp": (MLP, "linear layers with ReLU"),
    "deeplabv3_resnet50": (DeepLabV3, "a label for every pixel"),
}


def available() -> dict[str, str]:
    """Every network's name and what it is."""
    return {name: says for name, (_, says) in MODELS.items()}


def build(name: str, num_classes: int, **options: Any) -> Network:
    """A fresh network by name; ``channels=`` of the image, and the MLP's own options."""
    if name not in MODELS:
        raise no_such("network", name, MODELS)
    if num_classes < 2:
        raise InputError(f"a classifier has at least 2 classes, found {num_classes}")
    try:
        return MODELS[name][0](num_classes, **options)
    except TypeError as error:
        raise InputError(f"network {name!r}: {error}") from None
