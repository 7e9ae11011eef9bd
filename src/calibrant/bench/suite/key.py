"""Compute the key of a run: 16 hexadecimal digits of the settings that decide its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from calibrant.bench.suite.former import key_settings
from calibrant.bench.suite.sources import list_sources
from calibrant.core.errors import InputError
from calibrant.training.config import Config

FORMAT = 1  # changing it makes every run a new run
# Settings that decide where and how a run is made, not its result.
OF_THE_MACHINE = (
    "data_folder",
    "download",
    "device",
    "devices",
    "eval_batch_size",
    "checkpoint_every",
    "compile",
)
# Settings added after the first keys, with the value that older runs had: keys leave them out at
# that value, so that older runs keep their keys.
ADDED: dict[str, Any] = {"head": None}


def key_of(config: Config, *, logits: str | tuple[str, str] | None = None) -> str:
    """Return a run's key: the same on every machine, whatever is measured."""
    settings = result_settings(key_settings(config).to_dict())
    content: dict[str, Any] = {"format": FORMAT, "settings": settings}
    if logits is not None:
        content["logits"] = logits
    elif sources := list_sources(config):  # of its plugins
        content["plugins"] = sources
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def result_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide a run's result, as its key has them."""
    return {
        name: value
        for name, value in settings.items()
        if name not in OF_THE_MACHINE and not (name in ADDED and ADDED[name] == value)
    }


def canonical_json(value: Any) -> str:
    """Return JSON that depends on the value alone."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"a run's options must be plain JSON values: {error}") from None
