"""The one error that bad input raises."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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


def no_such(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name nobody has: what is near it, and all there are."""
    names = list(known)
    near = get_close_matches(name, names, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return InputError(f"no {kind} is called {name!r}.{hint} All: {', '.join(names)}")
