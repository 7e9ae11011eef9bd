"""Losses as text, with an option changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from calibrant.functional.errors import InputError
from calibrant.losses.registry import SECONDARY, Term, terms


def spelled(parts: list[Term]) -> str:
    """The text of parts, as `terms` reads it."""
    return "+".join(
        f"{'' if weight is None else f'{weight!r}*'}{name}{_options(options)}"
        for weight, name, options in parts
    )


def has_term(text: str, names: Collection[str]) -> bool:
    """Whether one of the names is a part of the loss."""
    return any(name in names for _, name, _ in terms(text))


def with_option(text: str, names: Collection[str], option: str, value: Any) -> str:
    """The loss with an option of the parts named changed; ``beta`` is a part's weight.

    >>> with_option("focal+s_avuc", ["s_avuc"], "threshold", 0.25)
    'focal+s_avuc(threshold=0.25)'
    >>> with_option("s_avuc(threshold=0.25)", ["s_avuc"], "beta", 3.0)
    '3.0*s_avuc(threshold=0.25)'
    """
    if not has_term(text, names):
        raise InputError(f"{text!r} has no part {', '.join(names)}")
    return spelled([_changed(one, names, option, value) for one in terms(text)])


def _changed(term: Term, names: Collection[str], option: str, value: Any) -> Term:
    weight, name, options = term
    if name not in names:
        return term
    if option != "beta":
        return weight, name, {**options, option: value}
    if name not in SECONDARY:
        raise InputError(f"{name} is a primary loss, and has no weight beta")
    return float(value), name, options


def _options(options: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{key}={value!r}' for key, value in options.items())})" if options else ""
