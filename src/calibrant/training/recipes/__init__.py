"""Training procedures of the papers by name, one a file."""

from __future__ import annotations

from typing import Any, TypeVar

from calibrant.core.registry import Registry, check_subclass
from calibrant.training.recipes.base import Pass, Recipe

__all__ = ["Pass", "Recipe", "available", "get", "register"]

R = TypeVar("R", bound=type[Recipe])
_AT = "calibrant.training.recipes"
RECIPES: Registry[type[Recipe]] = Registry(
    "recipe",
    {
        "standard": (f"{_AT}.base:Recipe", "plain training: every row once an epoch"),
        "mixup": (f"{_AT}.mixing:Mixup", "mixes pairs of images; reduces overconfidence"),
        "cutmix": (f"{_AT}.mixing:Cutmix", "pastes boxes of other images; better accuracy"),
        "mit": (f"{_AT}.mit:MIT", "mixup with the raw logits recovered; twice the passes"),
        "interleaved": (
            f"{_AT}.interleaved:Interleaved",
            "computes the secondary loss on held-out training rows",
        ),
        "mac_cal": (
            f"{_AT}.stage_two:MacCal",
            "retrains a head under masks; seconds on any network",
        ),
        "tst": (f"{_AT}.stage_two:TST", "retrains a fresh head on frozen features"),
        "vtst": (f"{_AT}.stage_two:VTST", "retrains a variational head on frozen features"),
        "plp": (
            f"{_AT}.plp:LayerPeeling",
            "freezes layers from the top down; calibrate afterwards",
        ),
        "balcal": (f"{_AT}.balcal:BalCAL", "balances a linear head against a fixed simplex one"),
        "cape": (
            f"{_AT}.cape:CaPE",
            "replaces labels by the accuracy of their bin, every second epoch",
        ),
        "deep_ensemble": (f"{_AT}.deep_ensemble:DeepEnsemble", "a baseline: the mean of networks"),
        "mc_dropout": (f"{_AT}.mc_dropout:MCDropout", "a baseline: the mean of dropout samples"),
    },
    check=check_subclass("recipe", f"{_AT}.base:Recipe"),
)


def available() -> dict[str, str]:
    """Return every recipe's name with a line on when to use it."""
    return RECIPES.available()


def register(recipe: R) -> R:
    """Register a recipe of your own under its ``name``; a class decorator.

    Args:
        recipe: A subclass of `Recipe`.
    """
    RECIPES.register(recipe)
    return recipe


def get(name: str, **options: Any) -> Recipe:
    """Make a recipe.

    Args:
        name: Its name.
        options: Its options.
    """
    recipe: Recipe = RECIPES.create(name, **options)
    return recipe
