"""File locks that end with their process, and notes about their holders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibrant.core.extras import require
from calibrant.core.files import write_file


@contextmanager
def hold_lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a file's lock; give False if another process holds it and ``wait`` is false."""
    filelock = require("filelock", extra="bench", purpose="making runs")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except filelock.Timeout:
        yield False
        return
    try:
        if isinstance(lock, filelock.SoftFileLock):  # survives a killed process
            raise OSError(f"{path.parent}: this file system has no locks; use another folder")
        yield True
    finally:
        lock.release()


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
