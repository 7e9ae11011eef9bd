"""Name the source of registered methods in keys and results.

A run that trains with a registered method has the SHA-256 of its source in its key. Figures of
registered calibrators and metrics are named with it: ``half(source=s1a2b3c4d)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from calibrant.calibrators.registry import CALIBRATORS
from calibrant.core.errors import InputError
from calibrant.core.method_text import parse_terms
from calibrant.core.registry import SOURCE
from calibrant.data.datasets import DATASETS
from calibrant.losses.registry import LOSSES
from calibrant.metrics.registry import METRICS
from calibrant.models.registry import MODELS
from calibrant.training.config import Config
from calibrant.training.recipes import RECIPES


def source_of(name: str) -> str | None:
    """Return the name of a calibrator's or metric's source; None for a built-in one."""
    digest = CALIBRATORS.digest_of(name) or METRICS.digest_of(name)
    return None if digest is None else f"s{digest[:8]}"


def drop_source(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without the source; raise an error if another source is loaded."""
    source = source_of(name)
    if source is None:
        return options
    if options.get(SOURCE, source) != source:
        raise InputError(
            f"{name} has the source {options[SOURCE]} here, but the plugin's source is {source} "
            f"now: write {name} alone"
        )
    return {key: value for key, value in options.items() if key != SOURCE}


def list_sources(config: Config) -> list[str]:
    """Return the digests of the registered methods that a training uses."""
    digests = [MODELS.digest_of(config.model), DATASETS.digest_of(config.data)]
    digests += map(RECIPES.digest_of, _list_recipes(config.recipe, config.recipe_options))
    with suppress(InputError):  # raised again where the loss is made
        digests += [LOSSES.digest_of(term.name) for term in parse_terms(config.loss)]
    return sorted({digest for digest in digests if digest is not None})


def _list_recipes(name: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Name a recipe, and the recipe that trains its members."""
    yield name
    inner, inner_options = options.get("recipe"), options.get("recipe_options")
    if isinstance(inner, str):
        yield from _list_recipes(inner, inner_options if isinstance(inner_options, Mapping) else {})
