"""`InputError`, the one error that bad input raises, and helpers that word it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

_LONGEST_MESSAGE = 6_000  # a list of every metric takes two thousand characters
_LONGEST_ITEM = 200


class InputError(ValueError):
    """Bad input. The message says what was found and what to do, in a bounded length."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shorten(str(message), _LONGEST_MESSAGE))


class UndefinedFigureError(InputError):
    """The figure has no value on these rows, however many figures of them have one."""


def shorten(text: str, limit: int) -> str:
    """Return the text, or its start and end if it has more characters than the limit."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


def show(value: object) -> str:
    """Return how Python writes a value, in a bounded length."""
    try:
        return shorten(repr(value), _LONGEST_ITEM)
    except (ValueError, RecursionError):  # Python writes no number of over 4,300 digits
        return f"a {type(value).__name__} too long to write"


def first(items: Iterable[object], limit: int = 5) -> str:
    """Join the first few items as text: ``3, 17, 42, ...``."""
    shown: list[str] = []
    for item in items:
        if len(shown) == limit:
            shown.append("...")
            break
        shown.append(shorten(str(item), _LONGEST_ITEM))
    return ", ".join(shown)


def no_such(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Make the error for an unknown name: the nearest names, then all of them."""
    names = list(known)
    near = get_close_matches(name, names, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return InputError(f"no {kind} is called {name!r}.{hint} All: {', '.join(names)}")


def wrong_options(
    kind: str, name: str, maker: Callable[..., Any], error: TypeError, *shared: str
) -> InputError:
    """Make the error for options that ``maker`` refused with a TypeError.

    Args:
        kind: What is made, such as ``loss``.
        name: Its name.
        maker: The class or function that was called.
        error: The error that it raised.
        shared: Options that ``maker`` takes by ``**options``.
    """
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown is None:
        words = re.sub(r"^[\w.]+\(\) ", "", str(error))
        return InputError(f"{kind} {name!r}: {words}")
    parameters = inspect.signature(maker).parameters.values()
    own_options = [
        p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    options = ", ".join(dict.fromkeys((*own_options, *shared))) or "none"
    return InputError(f"{kind} {name!r} has no option {unknown[1]!r}; its options: {options}")
