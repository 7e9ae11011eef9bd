"""Estimate the work of an epoch: training images times multiply-adds per image."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from calibrant.data.splits import long_tail_counts
from calibrant.models import available, build

SETTINGS = (
    "data",
    "long_tail",
    "validation",
    "model",
    "model_options",
)  # the work depends on these


class Shape(NamedTuple):
    """Hold a data set's number of images without test images, classes, and image size."""

    images: int
    classes: int
    size: tuple[int, int, int]
    own: bool = False  # whether it has its own validation rows, which are not counted


SHAPES = {
    "digits": Shape(1_258, 10, (1, 8, 8)),
    "cifar10": Shape(50_000, 10, (3, 32, 32)),
    "cifar100": Shape(50_000, 100, (3, 32, 32)),
    "svhn": Shape(73_257, 10, (3, 32, 32)),
    "tiny_imagenet": Shape(100_000, 200, (3, 64, 64)),
    "camvid": Shape(367, 11, (3, 180, 240), own=True),
}


def count_images(settings: Mapping[str, Any]) -> int | None:
    """Count the images that a run trains on (see `calibrant.data.load`); None: unknown data."""
    shape = SHAPES.get(settings["data"])
    if shape is None or shape.own:
        return None if shape is None else shape.images
    total, held_out = shape.images, settings["validation"]
    if (ratio := settings["long_tail"]) is not None:
        counts = long_tail_counts(total // shape.classes, shape.classes, ratio)
        total, held_out = sum(counts), 0.5
    return total - (round(held_out * total) if held_out < 1 else int(held_out))


def estimate_work(settings: Mapping[str, Any]) -> int | None:
    """Estimate the multiply-adds of one forward pass over a run's training images.

    Return None for unknown data or networks. The time of an epoch is only roughly proportional:
    deep and thin networks and small batches use a GPU less fully.
    """
    images = count_images(settings)
    model = settings["model"]
    if images is None or model not in available():
        return None
    options = json.dumps(settings["model_options"], sort_keys=True)
    each = _count_multiply_adds(settings["model"], settings["data"], options)
    return None if each is None else images * each


@lru_cache(maxsize=256)
def _count_multiply_adds(model: str, data: str, options: str) -> int | None:
    """Count the multiply-adds of one image on the meta device, which needs no weights."""
    from torch.utils.flop_counter import FlopCounterMode

    size = SHAPES[data].size
    sizes = {"inputs": math.prod(size)} if model == "mlp" else {"channels": size[0]}
    try:
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            network = build(model, SHAPES[data].classes, **sizes | json.loads(options))
            network.eval()(torch.empty(1, *size))
    except (RuntimeError, TypeError):  # the network does not take images of that size
        return None
    return int(counter.get_total_flops()) // 2
