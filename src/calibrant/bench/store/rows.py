"""A result is a row: which run, which part of it, after which calibrator, which figure."""

from __future__ import annotations

import json
import math
import platform
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, TypedDict

from calibrant._version import __version__
from calibrant.bench.suite.spec import Spec
from calibrant.training.config import Config

# Columns and their Arrow types.
SCHEMA = {
    "key": "string",
    "data": "string",
    "model": "string",
    "loss": "string",
    "recipe": "string",
    "recipe_options": "string",  # JSON
    "long_tail": "float64",  # NaN: none
    "epochs": "int64",
    "seed": "int64",
    "config": "string",  # JSON, every setting
    "part": "string",  # train, validation, test, test:fog:3, ood:cifar100, validation@12, run
    "calibrator": "string",  # none, or as the suite writes it
    "metric": "string",
    "value": "float64",
    "seconds": "float64",  # of fitting the calibrator; NaN: nothing was fitted
    "rows": "int64",
    "version": "string",
    "machine": "string",
    "written": "string",  # UTC, to the microsecond, so that text order is time order
}


class Row(TypedDict):
    """One figure of one run."""

    key: str
    data: str
    model: str
    loss: str
    recipe: str
    recipe_options: str
    long_tail: float
    epochs: int
    seed: int
    config: str
    part: str
    calibrator: str
    metric: str
    value: float
    seconds: float
    rows: int
    version: str
    machine: str
    written: str


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
    """A row of a run, its settings and the time filled in."""
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
    """The time, UTC, as rows write it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def machine(config: Config) -> str:
    """What the run was made on: the GPU's name, or the kind of processor."""
    return _machine(config.device)


@lru_cache
def _machine(device: str) -> str:
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU {platform.machine()}"


def _settings(spec: Spec) -> str:
    found: dict[str, Any] = spec.config.to_dict()
    found.pop("data_folder")  # of the machine, and nobody else's business
    if spec.logits is not None:
        found["logits"] = spec.logits
    return json.dumps(found, sort_keys=True)
