"""NAME=VALUE flags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from calibrant.functional.errors import InputError


def pairs(texts: Iterable[str] | None, flag: str) -> dict[str, Any]:
    """Names and values of a flag given once or more; a value is read as YAML."""
    import yaml

    found: dict[str, Any] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{flag} takes NAME=VALUE, found {text!r}")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"{flag} {name}: the value is not YAML: {value!r}") from None
    return found
