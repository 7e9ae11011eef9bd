"""Deep ensembles: the mean of networks trained from different seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.functional.errors import InputError
from calibrant.training.recipes.base import Recipe

if TYPE_CHECKING:
    from calibrant.training.config import Config


class DeepEnsemble(Recipe):
    """The mean of the softmaxes of ``members`` runs (Lakshminarayanan et al. 2017).

    Members differ in their seed alone, and are trained by ``recipe``.
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
            raise InputError(f"an ensemble has at least 2 members, found {members!r}")
        if recipe == self.name:
            raise InputError("members of an ensemble are not ensembles")
        self.size, self.recipe, self.recipe_options = members, recipe, recipe_options or {}

    def members(self, config: Config) -> list[Config]:
        """The same settings with seeds of their own."""
        return [
            config.changed(
                seed=config.seed * self.size + number,
                recipe=self.recipe,
                recipe_options=self.recipe_options,
            )
            for number in range(self.size)
        ]
