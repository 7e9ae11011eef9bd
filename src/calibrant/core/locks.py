"""A file lock that ends with the process that holds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.core.extras import require


@contextmanager
def hold_lock(path: Path, *, wait: bool = False, purpose: str = "making runs") -> Iterator[bool]:
    """Hold a file's lock; give False if another process holds it and ``wait`` is false.

    Args:
        path: The file of the lock; missing folders are made.
        wait: Wait until the lock is free.
        purpose: What needs the lock, for the error where filelock is not installed.
    """
    filelock = require("filelock", extra="bench", purpose=purpose)
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
