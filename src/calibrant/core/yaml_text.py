"""Read YAML of bounded size and depth, with errors for whatever a file may hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from calibrant.core.errors import InputError, shorten
from calibrant.core.extras import require

_LARGEST = 1 << 24  # bytes
_MOST = 1 << 22  # characters of all values, each alias written out
_DEEPEST = 60


def decode_text(content: bytes, where: str) -> str:
    """Decode a text file in UTF-8."""
    if len(content) > _LARGEST:
        raise InputError(f"{where}: has {len(content):,} bytes; {_LARGEST:,} are allowed")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: is not text in UTF-8 (byte {error.start:,})") from None


def parse_yaml(
    text: str, where: str, *, extra: str, check: Callable[[Any], None] | None = None
) -> Any:
    """Return the plain values of a YAML text.

    Args:
        text: The text.
        where: What to call the text in errors.
        extra: The extra of calibrant that installs PyYAML.
        check: Called with the tree of nodes before values are made. Default: None.
    """
    yaml = require("yaml", extra=extra, purpose="reading YAML")
    _check_brackets(text, where)
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is not None:
            _measure(root, {}, 0, where)
        if check is not None:
            check(root)
        return yaml.safe_load(text)
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"{where}: its values are nested too deeply") from None
    # A damaged number or date raises errors of many kinds.
    except (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
        words = shorten(" ".join(str(error).split()) or type(error).__name__, 300)
        raise InputError(f"{where}: not YAML: {words}") from None


def _check_brackets(text: str, where: str) -> None:
    """Raise an error for too many open brackets, for which PyYAML takes quadratic time."""
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", text):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > 10 * _DEEPEST:
            raise InputError(f"{where}: its values are nested more than {_DEEPEST} deep")


def _measure(node: Any, known: dict[int, int], depth: int, where: str) -> int:
    """Return the characters below a node, each alias written out; raise if they are too many."""
    if id(node) in known:
        size = known[id(node)]
        if size < 0:
            raise InputError(f"{where}: a value holds itself")
        return size
    if depth > _DEEPEST:
        raise InputError(f"{where}: its values are nested more than {_DEEPEST} deep")
    if isinstance(node.value, str):
        size = 1 + len(node.value)
    else:
        known[id(node)], size = -1, 1
        for entry in node.value:
            for child in entry if isinstance(entry, tuple) else (entry,):
                size += _measure(child, known, depth + 1, where)
    if size > _MOST:
        raise InputError(f"{where}: with its aliases written out it has over {_MOST:,} characters")
    known[id(node)] = size
    return size
