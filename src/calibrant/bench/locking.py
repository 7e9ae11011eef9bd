"""Exclusive hold of a run, by a lock the kernel frees when its process ends, however it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[BinaryIO | None]:
    """Hold the lock of a file, or None where another process does and we do not ``wait``.

    The file stays when the lock is freed: were it deleted, two processes could each hold the
    lock of a file of that name.
    """
    file = _take(path, wait=wait)
    try:
        yield file
    finally:
        if file is not None:
            file.close()


def is_held(path: Path) -> bool:
    """Whether some process holds the lock of a file."""
    if not path.is_file():
        return False
    with locked(path) as file:
        return file is None


def _take(path: Path, *, wait: bool) -> BinaryIO | None:
    try:
        import fcntl
    except ImportError:
        raise OSError("runs are held by flock, which this system does not have") from None

    path.parent.mkdir(parents=True, exist_ok=True)
    # Not inherited by programs started meanwhile, which would hold it after our death.
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    return file


def read_note(path: Path) -> dict[str, Any]:
    """What the holder of a lock wrote into its file; nothing of one half written."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_note(file: BinaryIO, note: dict[str, Any]) -> None:
    """Say in the file of a lock we hold who we are and how far we are."""
    file.seek(0)
    file.write(json.dumps(note).encode())
    file.truncate()
    file.flush()
