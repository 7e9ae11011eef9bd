"""The one error that bad input raises."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any


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


def wrong_options(
    what: str, name: str, maker: Callable[..., Any], error: TypeError, *shared: str
) -> InputError:
    """What to say where a maker's options were refused; ``shared`` are those of its **options."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unknown is None:
        words = re.sub(r"^[\w.]+\(\) ", "", str(error))
        return InputError(f"{what} {name!r}: {words}")
    own = inspect.signature(maker).parameters.values()
    named = [one.name for one in own if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
    told = ", ".join(dict.fromkeys((*named, *shared))) or "none"
    return InputError(f"{what} {name!r} has no option {unknown[1]!r}; its options: {told}")
