"""Deep ensembles: the mean of networks trained from different seeds."""

from __future__ import annotations

from typing import Any

from calibrant.core.errors import InputError
from calibrant.training.config import Config
from calibrant.training.recipes.base import Recipe


class DeepEnsemble(Recipe):
    """Average the softmaxes of several runs (Lakshminarayanan et al. 2017).

    Members differ in their seed alone.

    Args:
        members: The number of runs. Default: 5 (Lakshminarayanan et al. 2017).
        recipe: The recipe of each member. Default: 'standard' (Lakshminarayanan et al. 2017).
        recipe_options: Options of that recipe. Default: None (ours: the recipe's own defaults).
    """

    name = "deep_ensemble"
    together = "mean"

    def __init__(
        self,
        *,
        members: int = 5,
        recipe: str = "standard",
        recipe_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if members < 2:
            raise InputError(f"an ensemble needs at least 2 members, found {members!r}")
        if recipe == self.name:
            raise InputError("members of an ensemble must not be ensembles: choose another recipe")
        self.size, self.recipe, self.recipe_options = members, recipe, recipe_options or {}

    def members(self, config: Config) -> list[Config]:
        """Return the same settings with a different seed for each member."""
        return [
            config.changed(
                seed=config.seed * self.size + number,
                recipe=self.recipe,
                recipe_options=self.recipe_options,
            )
            for number in range(self.size)
        ]
