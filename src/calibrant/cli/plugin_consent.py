"""Ask before the plugins of a suite run: they are code, and the suite may be from elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from calibrant.core.errors import InputError, shorten
from calibrant.core.files import write_file
from calibrant.core.plugins import Approve, Plugin


def make_approval(allowed: bool) -> Approve:
    """Return what decides whether the plugins of a suite run.

    Plugins that were allowed before run again as long as their source is the same.

    Args:
        allowed: Whether the user gave ``--allow-plugins``.
    """

    def approve(plugins: Sequence[Plugin]) -> None:
        known = _read_known()
        new = [plugin for plugin in plugins if plugin.digest not in known]
        if not new:
            return
        if not allowed and not _ask(new):
            raise InputError(
                f"the suite names plugins, which are code and would run with your rights: "
                f"{_describe(new)}. Read them; --allow-plugins runs and remembers them"
            )
        _remember(known | {plugin.digest for plugin in new})

    return approve


def _describe(plugins: Sequence[Plugin]) -> str:
    return ", ".join(
        f"{shorten(plugin.path, 200)} (SHA-256 {plugin.digest[:12]})" for plugin in plugins
    )


def _ask(plugins: Sequence[Plugin]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    question = f"The suite names plugins, which are code: {_describe(plugins)}. Run them?"
    return typer.confirm(question, default=False, err=True)


def _find_record() -> Path:
    """Return the file of the user's that holds the digests of allowed plugins."""
    return Path(typer.get_app_dir("calibrant")) / "allowed-plugins.txt"


def _read_known() -> set[str]:
    try:
        return set(_find_record().read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()


def _remember(digests: set[str]) -> None:
    path = _find_record()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, "".join(f"{digest}\n" for digest in sorted(digests)).encode())
    except OSError:
        return  # a home that cannot be written to: the user is asked again
