"""Class probabilities as targets: losses that do not take them are told from the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from calibrant.functional.errors import InputError
from calibrant.losses import Composed

if TYPE_CHECKING:
    from calibrant.training.recipes.base import Recipe


def check_targets(recipe: Recipe, loss: nn.Module) -> None:
    """An error where a recipe gives what a part of the loss says that it does not take."""
    for part in _parts(loss) if recipe.soft else ():
        if not getattr(part, "soft_targets", True):
            raise InputError(
                f"{recipe.name} gives class probabilities (N, K) as target, and {_name(part)} "
                "takes labels alone (soft_targets = False): use another recipe, or another loss"
            )


def told(error: Exception, loss: nn.Module) -> InputError | None:
    """What to say where a loss of one's own failed with class probabilities; None of others."""
    own = [one for one in _parts(loss) if not type(one).__module__.startswith("calibrant.")]
    if not own or isinstance(error, (InputError, torch.cuda.OutOfMemoryError)):
        return None
    names = " and ".join(map(_name, own))
    return InputError(
        f"{names}: the target was class probabilities (N, K), as recipes that mix give, not labels "
        f"(N,), and it failed with {type(error).__name__}: {error}. Let it take both, as in "
        "`hard = target.argmax(1) if target.is_floating_point() else target`, or say "
        "soft_targets = False in its class"
    )


def _parts(loss: nn.Module) -> list[nn.Module]:
    return [loss.primary, *loss.secondaries] if isinstance(loss, Composed) else [loss]


def _name(part: nn.Module) -> str:
    return str(getattr(part, "name", type(part).__name__))
