"""File locks that end with their process, and notes about their holders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrant.core.files import hold_lock, write_file


def is_held(path: Path) -> bool:
    """Return whether a process holds a file's lock."""
    if not path.is_file():
        return False
    with hold_lock(path) as ours:
        return not ours


def read_note(path: Path) -> dict[str, Any]:
    """Read the note of a lock's last holder; empty if there is none."""
    for file in (_note(path), path):  # earlier versions wrote into the lock itself
        try:
            note = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        return note if isinstance(note, dict) else {}
    return {}


def write_note(path: Path, note: dict[str, Any]) -> None:
    """Write who holds a lock, and its progress; only for the holder."""
    write_file(_note(path), json.dumps(note).encode())


def _note(path: Path) -> Path:
    return path.with_suffix(".json")
