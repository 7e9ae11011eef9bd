"""Networks by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, overload

from calibrant.core.errors import InputError
from calibrant.core.registry import Registry
from calibrant.models.network import Network
from calibrant.models.weights import load_weights

F = TypeVar("F", bound=Callable[..., Any])
_AT = "calibrant.models"
MODELS: Registry[Callable[..., Network]] = Registry(
    "network",
    {
        "resnet18": (f"{_AT}.resnet:resnet18", "ResNet-18, 3x3 stem"),
        "resnet34": (f"{_AT}.resnet:resnet34", "ResNet-34, 3x3 stem"),
        "resnet50": (f"{_AT}.resnet:resnet50", "ResNet-50, 3x3 stem"),
        "resnet101": (f"{_AT}.resnet:resnet101", "ResNet-101, 3x3 stem"),
        "resnet152": (f"{_AT}.resnet:resnet152", "ResNet-152, 3x3 stem"),
        "resnet110": (f"{_AT}.resnet:resnet110", "ResNet-110 for CIFAR, thin"),
        "resnet110_sd": (
            f"{_AT}.resnet:resnet110_sd",
            "ResNet-110 with stochastic depth: the last block is kept half the time",
        ),
        "preresnet56": (f"{_AT}.resnet:preresnet56", "pre-activated, thin"),
        "wrn_16_4": (f"{_AT}.resnet:wrn_16_4", "wide ResNet, 2 blocks a stage"),
        "wrn_28_10": (f"{_AT}.resnet:wrn_28_10", "wide ResNet, 4 blocks a stage"),
        "wrn_26_10": (f"{_AT}.resnet:wrn_28_10", "mac-cal's name for wrn_28_10"),
        "wrn_32_10": (f"{_AT}.resnet:wrn_32_10", "wide ResNet, 5 blocks a stage"),
        "densenet40": (f"{_AT}.densenet:densenet40", "DenseNet, growth 12"),
        "densenet121": (f"{_AT}.densenet:densenet121", "DenseNet, growth 32"),
        "densenet161": (f"{_AT}.densenet:densenet161", "DenseNet, growth 48"),
        "lenet5": (f"{_AT}.small:LeNet5", "LeNet-5 for 32x32 images"),
        "mlp": (f"{_AT}.small:MLP", "linear layers with ReLU"),
        "deeplabv3_resnet50": (f"{_AT}.deeplab:DeepLabV3", "a label for every pixel"),
    },
)


def available() -> dict[str, str]:
    """Return every network's name and what it is."""
    return MODELS.available()


@overload
def register(build: F) -> F: ...
@overload
def register(*, name: str | None = ..., summary: str = ...) -> Callable[[F], F]: ...


def register(build: Any = None, *, name: str | None = None, summary: str = "") -> Any:
    """Register a network of your own; a decorator, with or without options.

    Args:
        build: ``build(num_classes, *, channels, **options)``, which returns a fresh network.
        name: Its name; the function's own by default.
        summary: A line on what it is; the first line of its docstring by default.
    """

    def add(maker: F) -> F:
        MODELS.register(maker, name=name, summary=summary or None)
        return maker

    return add if build is None else add(build)


def build(
    name: str, num_classes: int, *, weights: str | os.PathLike[str] | None = None, **options: Any
) -> Network:
    """Build a network, fresh or from pretrained weights.

    Args:
        name: Its name.
        num_classes: The number of classes.
        weights: A file of pretrained weights, as `calibrant.models.load_weights` reads it.
            Default: None, fresh weights.
        options: ``channels`` of the images, and the network's own options.
    """
    builder = MODELS.load(name)
    if num_classes < 2:
        raise InputError(f"a classifier has at least 2 classes, found {num_classes}")
    try:
        network = builder(num_classes, **options)
    except TypeError as error:
        raise InputError(f"network {name!r}: {error}") from None
    if weights is not None:
        load_weights(network, weights)
    return network
