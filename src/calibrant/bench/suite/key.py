"""The key of a run: 16 digits that depend on the settings that decide its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from calibrant.bench.suite.former import key_settings
from calibrant.bench.suite.sources import list_sources
from calibrant.core.errors import InputError
from calibrant.training.config import Config

FORMAT = 1  # of the key; another one makes every run a new run
# Settings that say where and how a run is made, not what comes out of it.
OF_THE_MACHINE = (
    "data_folder",
    "download",
    "device",
    "devices",
    "eval_batch_size",
    "checkpoint_every",
    "compile",
)
# Settings that came after the first keys, with the value that older runs had: left out of the
# key at that value, so that runs made before keep theirs.
ADDED: dict[str, Any] = {"head": None}


def key_of(config: Config, *, logits: str | tuple[str, str] | None = None) -> str:
    """The key of a run: the same on every machine, whatever is measured of it."""
    settings = result_settings(key_settings(config).to_dict())
    told: dict[str, Any] = {"format": FORMAT, "settings": settings}
    if logits is not None:
        told["logits"] = logits
    elif sources := list_sources(config):  # of plugins it is trained with, whatever its names say
        told["plugins"] = sources
    return hashlib.sha256(canonical_json(told).encode()).hexdigest()[:16]


def result_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide a run's result, as its key has them."""
    return {
        name: value
        for name, value in settings.items()
        if name not in OF_THE_MACHINE and not (name in ADDED and ADDED[name] == value)
    }


def canonical_json(value: Any) -> str:
    """JSON that depends on the value alone."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"a run's options are plain values, as JSON has them: {error}") from None
