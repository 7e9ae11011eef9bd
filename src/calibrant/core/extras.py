"""Import optional libraries; a missing one raises an error that names the pip command."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from calibrant.core.errors import InputError


class MissingExtra(InputError, ImportError):
    """A library of an extra is not installed."""


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import an optional library, and return it.

    Args:
        module: The module to import.
        extra: The extra of calibrant that installs it.
        purpose: What needs it, as the start of the message: ``training``.
    """
    try:
        return import_module(module)
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the library is there, and broken
        name = module.partition(".")[0]
        raise MissingExtra(f"{purpose} needs {name}: pip install 'calibrant[{extra}]'") from None
