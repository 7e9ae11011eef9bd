"""Recipes as text, ``mixup(alpha=0.4)``: the same as the name, and its options beside it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from calibrant.functional.errors import InputError

WORDS = {"true": True, "false": False, "null": None}  # as YAML has them


def whole(recipe: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and options of a recipe that may have some in its text, and some beside it.

    The recipe of an ensemble's members, an option called ``recipe``, may be such a text too.

    >>> whole("mixup(alpha=0.4)", {})
    ('mixup', {'alpha': 0.4})
    >>> whole("deep_ensemble(members=3, recipe=mixup(alpha=0.4))", {})
    ('deep_ensemble', {'members': 3, 'recipe': 'mixup', 'recipe_options': {'alpha': 0.4}})
    """
    name, own = _read(recipe) if "(" in recipe else (recipe, {})
    for key in own:
        if key in options:
            raise InputError(
                f"the option {key} is given twice, in {recipe!r} and in recipe_options "
                f"({options[key]!r}): leave one out"
            )
    found = {**own, **options}
    inner = found.get("recipe")
    if not isinstance(inner, str) or "(" not in inner:
        return name, found
    beside = found.get("recipe_options") or {}
    if not isinstance(beside, Mapping):
        raise InputError(f"recipe_options is a mapping of options, found {beside!r}")
    found["recipe"], its = whole(inner, beside)
    found |= {"recipe_options": its} if its else {}
    return name, found


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """The text's name and options: plain values, or bare words, which are text."""
    try:
        found = ast.parse(text.strip(), mode="eval").body
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and not found.args:
            names = [one.arg for one in found.keywords]
            if all(names) and len(set(names)) == len(names):
                return found.func.id, {str(one.arg): _value(one) for one in found.keywords}
    except (SyntaxError, ValueError):
        pass
    raise InputError(
        f"a recipe is written name(option=value, ...), each option once, found {text!r}"
    )


def _value(option: ast.keyword) -> Any:
    if isinstance(option.value, ast.Name):
        return WORDS.get(option.value.id, option.value.id)
    if option.arg == "recipe" and isinstance(option.value, ast.Call):
        return ast.unparse(option.value)  # of the members: read by `whole`
    return ast.literal_eval(option.value)
