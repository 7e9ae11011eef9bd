"""Write files whole, and lock them.

A kill or a full disk leaves the old file, never half of a new one. A lock ends with the process
that holds it.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from calibrant.core.errors import InputError
from calibrant.core.extras import require

_STALE_SECONDS = 600
_OF_THE_DISK = {errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EROFS, getattr(errno, "EDQUOT", -1)}


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` when the block ends without an error.

    An error of the disk names ``path``, whichever library met it. What a killed process left of an
    earlier write of the same file is removed.
    """
    target = path.resolve()  # a link keeps pointing where it did
    _remove_stale(target)
    mark = f"{_name_host()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    temporary = target.with_name(f".{target.name}.{mark}.tmp")
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # safetensors makes files that only the owner can read
        _flush(temporary)
        os.replace(temporary, target)
        _flush(target.parent)
    except Exception as error:
        number = _find_errno(error)
        if number is None:
            raise
        says = os.strerror(number) if number else f"cannot be written: {error}"
        raise OSError(number, says, str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def _remove_stale(target: Path) -> None:
    """Remove temporary files of ``target`` whose process has ended.

    Only those of this host that nobody has written to for ten minutes: where hosts or containers
    share a folder and a name, another's process cannot be looked up.
    """
    if os.name != "posix":  # elsewhere a signal of 0 is no question
        return
    shape = re.compile(rf"\.{re.escape(target.name)}\.{_name_host()}-(\d+)-[0-9a-f]{{12}}\.tmp")
    with suppress(OSError):  # the write itself says what is wrong with the folder
        for name in os.listdir(target.parent):
            if (match := shape.fullmatch(name)) and not _is_running(int(match[1])):
                stale = target.with_name(name)
                with suppress(OSError):
                    if time.time() - stale.stat().st_mtime > _STALE_SECONDS:
                        stale.unlink()


def _name_host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def _find_errno(error: Exception) -> int | None:
    """Return the number of an error of the disk, 0 if it has none; None for other errors."""
    if isinstance(error, OSError) and error.errno is not None:
        number = error.errno
    elif match := re.search(r"\b(?:os error|errno|Os \{ code:) (\d+)\b", str(error)):
        number = int(match[1])  # safetensors and Arrow raise errors of their own, which say it
    else:
        is_numpy = re.fullmatch(r"\d+ requested and \d+ written", str(error))
        return 0 if isinstance(error, OSError) and is_numpy else None
    return number if number in _OF_THE_DISK else None


def check_folder(path: Path) -> None:
    """Raise an error unless the folder of a file to write exists."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist")


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file: write under another name, flush to the disk, rename, flush the folder."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # a full disk must not stay full of halves
        if error.errno is None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def flush_folder(folder: Path) -> None:
    """Flush every file in a folder, and the folder, to the disk."""
    for path in (*folder.rglob("*"), folder):
        _flush(path)


def _flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems flush no folders
            raise
    finally:
        os.close(handle)


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
