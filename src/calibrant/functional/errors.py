"""The one error that bad input raises."""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used; the message says what was found and what to do."""


def first(items: Iterable[object], limit: int = 5) -> str:
    """The first few of many, as text: ``3, 17, 42, ...``."""
    shown: list[str] = []
    for item in items:
        if len(shown) == limit:
            shown.append("...")
            break
        shown.append(str(item))
    return ", ".join(shown)
