"""The record at the head of a report: what was judged, with what, by which command, and when."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from datetime import date as calendar_date
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as find_version
from pathlib import Path
from typing import NamedTuple

from calibrant._version import __version__
from calibrant.core.errors import InputError
from calibrant.predictions.read import count_rows

# What the figures depend on beside the rows.
PACKAGES = {"NumPy": "numpy", "PyTorch": "torch", "SciPy": "scipy"}
_BLOCK = 1 << 20


class DataFile(NamedTuple):
    """A file that the report depends on.

    Args:
        role: What it is: ``predictions``, ``labels``, ``groups``, ``calibrator``, ``rule``, ...
        name: Its name.
        sha256: The SHA-256 of its bytes, in hexadecimal; empty for what is no file.
        rows: The number of its rows; None where it has none.
        note: What more to say, such as the method of a calibrator.
    """

    role: str
    name: str
    sha256: str
    rows: int | None = None
    note: str = ""


class Record(NamedTuple):
    """The facts that an audit asks of a report.

    Args:
        date: The date of the report, as 2026-08-21.
        files: The files it depends on.
        model_version: The model's name and version, as given; empty if it was not.
        command: The command that made the report; empty if it was none.
        versions: The names and versions of the software.
        is_open: Whether the page shows the record unfolded.
    """

    date: str
    files: tuple[DataFile, ...] = ()
    model_version: str = ""
    command: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    is_open: bool = True

    @property
    def has_rows(self) -> bool:
        """Return whether any file has rows."""
        return any(file.rows is not None for file in self.files)


def make_record(
    *,
    files: Iterable[DataFile] = (),
    date: str | None = None,
    model_version: str | None = None,
    command: str | None = None,
    is_open: bool = True,
) -> Record:
    """Return the record of a report, with the versions of this environment.

    Args:
        files: The files that the report depends on; see :func:`describe_file`. Default: ().
        date: The date, as 2026-08-21. Default: None (today, in UTC).
        model_version: The model's name and version. Default: None (left out).
        command: The command that makes the report. Default: None (left out).
        is_open: Whether the page shows the record unfolded. Default: True.
    """
    return Record(
        _check_date(date),
        tuple(files),
        (model_version or "").strip(),
        command or "",
        list_versions(),
        is_open,
    )


def describe_file(
    path: str | os.PathLike[str], *, role: str = "predictions", name: str | None = None
) -> DataFile:
    """Return a file of rows with its SHA-256 and row count.

    Args:
        path: The file.
        role: What it is. Default: 'predictions'.
        name: What to call it. Default: None (the file's own name).
    """
    file = Path(path)
    return DataFile(role, file.name if name is None else name, hash_file(file), count_rows(file))


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total.update(block)
    return total.hexdigest()


def list_versions() -> tuple[tuple[str, str], ...]:
    """Return the names and versions of what computes the figures."""
    versions = [("calibrant", __version__), ("Python", platform.python_version())]
    for shown, package in PACKAGES.items():
        try:
            versions.append((shown, find_version(package)))
        except PackageNotFoundError:
            continue
    return tuple(versions)


def _check_date(date: str | None) -> str:
    if date is None:
        return datetime.now(timezone.utc).date().isoformat()
    try:
        return calendar_date.fromisoformat(date.strip()).isoformat()
    except ValueError:
        raise InputError(f"date must be a day such as 2026-08-21, found {date[:40]!r}") from None
