"""The options that fill a report's record, and the record itself."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from calibrant.core.errors import InputError

if TYPE_CHECKING:
    from calibrant.report.record import DataFile, Record

Title = Annotated[
    str | None,
    typer.Option(
        help="Heading of the report. Default: the names of the predictions.", metavar="TEXT"
    ),
]
ModelVersion = Annotated[
    str | None,
    typer.Option(help="Name and version of the model, for the report's record.", metavar="TEXT"),
]
ReportDate = Annotated[
    str | None,
    typer.Option(
        "--date",
        help="Date of the report, as 2026-08-21. The same files and options then give the same "
        "bytes. Default: today (UTC).",
        metavar="DATE",
        show_default=False,
    ),
]
InUse = Annotated[
    list[Path] | None,
    typer.Option(
        help="Calibrator or rule that is in use with the model, for the report's record; "
        "repeatable.",
        metavar="FILE",
    ),
]


class RecordOptions(NamedTuple):
    """What the options of the record gave."""

    title: str | None
    model_version: str | None
    date: str | None
    in_use: Sequence[Path] | None

    def check(self, report: Path | None) -> None:
        """Raise an error if the report cannot be written, or options of it are given without it."""
        for name, value in self._asdict().items():
            if report is None and value:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option} is for the report: add --report OUT.html")
        if report is not None:
            _check_report(report)

    def make_record(self, data: Sequence[tuple[str, Path | Sequence[Path] | None]]) -> Record:
        """Return the record of a report; it is shown unfolded if any option was given.

        Args:
            data: The role of each file, glob, folder or list of these, and its path.
        """
        from calibrant.report import record

        files = [file for role, path in data if path is not None for file in _describe(role, path)]
        files += [_describe_saved(path) for path in self.in_use or ()]
        return record.make_record(
            files=files,
            date=self.date,
            model_version=self.model_version,
            command=shlex.join(["calibrant", *sys.argv[1:]]),
            is_open=any(self),
        )


def _describe(role: str, path: Path | Sequence[Path]) -> list[DataFile]:
    """Return each file of a path or list of paths; a label file counts its own way."""
    from calibrant.predictions.examples import PREFIX
    from calibrant.predictions.files import SIDECARS
    from calibrant.predictions.read import find_files, read_labels
    from calibrant.report.record import DataFile, describe_file, hash_file

    root, files = find_files(path)
    described = []
    for file in files:
        if str(file).startswith(PREFIX):
            described.append(DataFile(role, str(file), "", note="comes with calibrant"))
            continue
        inside = root != file and file.is_absolute() == root.is_absolute() and root in file.parents
        name = str(file.relative_to(root)) if inside else file.name
        if role == "labels":
            described.append(DataFile(role, name, hash_file(file), len(read_labels(file))))
            continue
        described.append(describe_file(file, role=role, name=name))
        if file.suffix.lower() == ".npy" and role == "predictions":
            beside = [file.with_suffix(f".{key}.npy") for key in SIDECARS]
            described += [
                describe_file(label_file, role="labels")
                for label_file in beside
                if label_file.exists()
            ]
    return described


def _describe_saved(path: Path) -> DataFile:
    """Return a calibrator or rule with its method."""
    from calibrant.calibrators import Calibrator
    from calibrant.decisions import load
    from calibrant.report.record import DataFile, hash_file

    loaded = load(path)
    if not isinstance(loaded, Calibrator):
        return DataFile("rule", path.name, hash_file(path), note=str(loaded).partition("\n")[0])
    rows = loaded.summary_.get("rows")
    fitted = f", fitted on {rows:,} rows" if isinstance(rows, int) else ""
    return DataFile("calibrator", path.name, hash_file(path), note=f"{loaded.name}{fitted}")


def _check_report(path: Path) -> None:
    """Raise an error before the work starts if the report cannot be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the report a file name in it")
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(
            f"{path}: the report is an HTML page: end its name with .html or .htm, found "
            f"{path.suffix or 'no ending'}"
        )
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise InputError(f"{path}: the report cannot be written: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"{path}: the report cannot be written: no permission in {nearest}")
