"""Procedures of the papers, one a file, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from calibrant.functional.errors import no_such, wrong_options
from calibrant.training.recipes.base import Pass, Recipe

__all__ = ["Pass", "Recipe", "available", "get"]

# name: (module, class, a line on when to use it). Modules are imported when asked for.
RECIPES: dict[str, tuple[str, str, str]] = {
    "standard": ("base", "Recipe", "the usual way: every row once an epoch"),
    "mixup": ("mixing", "Mixup", "pairs of images mixed; curbs overconfidence"),
    "cutmix": ("mixing", "Cutmix", "boxes of other images pasted in; better accuracy"),
    "mit": ("mit", "MIT", "mixup with the raw logits recovered; twice the passes"),
    "interleaved": ("interleaved", "Interleaved", "a secondary loss on rows of its own"),
    "mac_cal": ("stage_two", "MacCal", "a head retrained under masks; seconds on any network"),
    "tst": ("stage_two", "TST", "a fresh head on frozen features"),
    "vtst": ("stage_two", "VTST", "a variational head on frozen features"),
    "plp": ("plp", "LayerPeeling", "layers frozen from the top down; for calibrating afterwards"),
    "balcal": ("balcal", "BalCAL", "a linear head balanced against a fixed simplex one"),
    "cape": ("cape", "CaPE", "labels replaced by the accuracy of their bin, every second epoch"),
    "deep_ensemble": ("ensemble", "DeepEnsemble", "a yardstick: the mean of several networks"),
    "mc_dropout": ("dropout", "MCDropout", "a yardstick: the mean of answers with dropout on"),
}


def available() -> dict[str, str]:
    """Every recipe's name and a line on when to use it."""
    return {name: says for name, (_, _, says) in RECIPES.items()}


def get(name: str, **options: Any) -> Recipe:
    """A recipe by name, with its options."""
    if name not in RECIPES:
        raise no_such("recipe", name, RECIPES)
    module, class_name, _ = RECIPES[name]
    kind = getattr(import_module(f"calibrant.training.recipes.{module}"), class_name)
    try:
        made: Recipe = kind(**options)
    except TypeError as error:
        raise wrong_options("recipe", name, kind, error) from None
    return made
