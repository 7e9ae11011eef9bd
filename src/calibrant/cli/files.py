"""Files that commands read and write: predictions in, reports out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from calibrant.cli.console import make_console
from calibrant.functional.errors import InputError

if TYPE_CHECKING:
    from calibrant.evaluation import Evaluation
    from calibrant.predictions import Predictions

KINDS: dict[bool | None, Literal["logits", "probs"]] = {True: "logits", False: "probs"}


def read(
    file: Path,
    logits: bool | None,
    labels: Path | None,
    ignore_index: int | None,
    *,
    quiet: bool = False,
) -> Predictions:
    """Predictions of a file, as the options say."""
    from calibrant.predictions import Predictions

    with _waiting(f"reading {file}", quiet=quiet):
        return Predictions.read(
            file, labels=labels, kind=KINDS.get(logits), ignore_index=ignore_index
        )


@contextmanager
def _waiting(doing: str, *, quiet: bool) -> Iterator[None]:
    """Say what is being done, on a terminal, while it is being done."""
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield


def check_report(path: Path) -> None:
    """Fail before the work, where it can be known that the report has no place to go."""
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


def write_report(evaluation: Evaluation, predictions: Predictions, path: Path) -> None:
    """The report on an evaluation, or an error that says why it could not be written."""
    from calibrant.report import write

    try:
        write(evaluation, path, predictions=predictions)
    except OSError as error:
        told = error.strerror or error
        raise InputError(f"{path}: the report cannot be written: {told}") from error


def show_report(path: Path, *, stderr: bool = False) -> None:
    """Say where a report is."""
    make_console(stderr=stderr).print(f"\nreport: {path}", soft_wrap=True)
