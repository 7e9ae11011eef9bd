"""The rows of a store: run, part, calibrator, metric and value."""

from __future__ import annotations

import json
import math
import platform
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypedDict, get_type_hints

from calibrant._version import __version__
from calibrant.bench.suite.spec import Spec
from calibrant.training.config import Config


class Row(TypedDict):
    """A figure of a run."""

    key: str
    data: str
    model: str
    loss: str
    recipe: str
    recipe_options: str  # JSON
    long_tail: float  # NaN: none
    epochs: int
    seed: int
    config: str  # JSON, every setting
    part: str  # train, validation, test, test:fog:3, ood:cifar100, validation@12, run
    calibrator: str  # none, or as the suite writes it
    metric: str
    value: float
    seconds: float  # of fitting the calibrator; NaN: nothing was fitted
    rows: int
    version: str
    machine: str
    written: str  # UTC, to the microsecond, so that text order is time order


ARROW = {str: "string", float: "float64", int: "int64"}
# Columns and their Arrow types.
SCHEMA = {name: ARROW[kind] for name, kind in get_type_hints(Row).items()}


def make_row(
    spec: Spec,
    *,
    part: str,
    metric: str,
    value: float,
    calibrator: str = "none",
    seconds: float = math.nan,
    rows: int = 0,
) -> Row:
    """Make a row of a run, with its settings and the time."""
    config = spec.config
    return Row(
        key=spec.key,
        data=config.data,
        model=config.model,
        loss=config.loss,
        recipe=config.recipe,
        recipe_options=json.dumps(config.recipe_options, sort_keys=True),
        long_tail=math.nan if config.long_tail is None else config.long_tail,
        epochs=config.epochs,
        seed=config.seed,
        config=_settings(spec),
        part=part,
        calibrator=calibrator,
        metric=metric,
        value=float(value),
        seconds=float(seconds),
        rows=int(rows),
        version=__version__,
        machine=machine(config),
        written=now(),
    )


def now() -> str:
    """Return the time, UTC, as rows have it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def machine(config: Config) -> str:
    """Return the name of the GPU, or the kind of processor."""
    return _machine(config.device)


@lru_cache
def _machine(device: str) -> str:
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU {platform.machine()}"


def _settings(spec: Spec) -> str:
    settings: dict[str, Any] = spec.config.to_dict()
    settings.pop("data_folder")  # private to the machine
    if spec.logits is not None:
        settings["logits"] = spec.logits
    return json.dumps(settings, sort_keys=True)
