"""How much work an epoch of a run is: its training images, and the multiply-adds of each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from calibrant.data.splits import long_tail_counts
from calibrant.models import available, build

SETTINGS = ("data", "long_tail", "validation", "model", "model_options")  # it goes by these


class Shape(NamedTuple):
    """A data set: its images without those for testing, classes, channels, height and width."""

    images: int
    classes: int
    size: tuple[int, int, int]
    own: bool = False  # whether it has validation rows of its own, which are not counted


SHAPES = {
    "digits": Shape(1_258, 10, (1, 8, 8)),
    "cifar10": Shape(50_000, 10, (3, 32, 32)),
    "cifar100": Shape(50_000, 100, (3, 32, 32)),
    "camvid": Shape(367, 11, (3, 180, 240), own=True),
}


def images_of(settings: Mapping[str, Any]) -> int | None:
    """How many images a run trains on (see `calibrant.data.load`); None for unknown data."""
    shape = SHAPES.get(settings["data"])
    if shape is None or shape.own:
        return None if shape is None else shape.images
    total, held_out = shape.images, settings["validation"]
    if (ratio := settings["long_tail"]) is not None:
        counts = long_tail_counts(total // shape.classes, shape.classes, ratio)
        total, held_out = sum(counts), 0.5
    return total - (round(held_out * total) if held_out < 1 else int(held_out))


def work_of(settings: Mapping[str, Any]) -> int | None:
    """Multiply-adds of a run's network over its training images, once, without gradients.

    None where the data or the network is not one of ours. What an epoch takes goes with it only
    roughly: deep and thin networks and small batches keep a card less busy.
    """
    images = images_of(settings)
    model = settings["model"]
    if images is None or model not in available():
        return None
    options = json.dumps(settings["model_options"], sort_keys=True)
    each = _multiply_adds(settings["model"], settings["data"], options)
    return None if each is None else images * each


@lru_cache(maxsize=256)
def _multiply_adds(model: str, data: str, options: str) -> int | None:
    """Of one image, on the meta device: shapes alone, no weights."""
    from torch.utils.flop_counter import FlopCounterMode

    size = SHAPES[data].size
    told = {"inputs": math.prod(size)} if model == "mlp" else {"channels": size[0]}
    try:
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            network = build(model, SHAPES[data].classes, **told | json.loads(options))
            network.eval()(torch.empty(1, *size))
    except (RuntimeError, TypeError):  # not a network for images of that size
        return None
    return int(counter.get_total_flops()) // 2
