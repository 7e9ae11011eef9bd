"""Choosing the reader by a file's ending, and putting the pieces of one or two files together."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrant.functional.errors import InputError, first
from calibrant.predictions.archives import (
    load_npy,
    load_pt,
    read_npy,
    read_npz,
    read_pt,
    read_safetensors,
)
from calibrant.predictions.contents import Contents, agreed_kind
from calibrant.predictions.sources import FileScores, reading
from calibrant.predictions.table_files import open_table
from calibrant.predictions.tables import read_table

ARROW_ENDINGS = (".arrow", ".feather")
TABLE_ENDINGS = (".parquet", *ARROW_ENDINGS, ".csv")
ENDINGS = (".npz", ".npy", ".safetensors", ".pt", *TABLE_ENDINGS)
LABEL_ENDINGS = (".npy", ".npz", ".csv", ".txt", ".parquet", *ARROW_ENDINGS, ".pt", ".safetensors")
# Above this, scores stay in the file and are read in chunks.
LAZY_BYTES = 1 << 30


def existing_file(path: str | os.PathLike[str], endings: tuple[str, ...]) -> Path:
    """The path, if there is a file of a known ending there."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{file}: is a directory, expected a file ({', '.join(endings)})")
    if not file.exists():
        raise InputError(f"{file}: no such file")
    if file.suffix.lower() not in endings:
        raise InputError(
            f"{file}: unsupported ending {file.suffix or '(none)'!r}, "
            f"expected one of {', '.join(endings)}"
        )
    return file


def read_contents(path: Path, *, labels: Any, kind: str | None, lazy: bool | None) -> Contents:
    """What the file holds, its kind agreed and its labels found."""
    contents = _open(path, lazy)
    contents.kind = agreed_kind(contents.kind, kind)
    if labels is not None:
        # Labels that merely lie beside an .npy are a convenience; those inside a file are a claim.
        if contents.labels is not None and path.suffix.lower() != ".npy":
            raise InputError("the file holds labels, and labels= gives others: leave one out")
        is_path = isinstance(labels, (str, os.PathLike))
        contents.labels = read_labels(labels) if is_path else labels
    if contents.labels is None:
        raise InputError(
            "no labels found: put them in the file under 'label' (a column) or 'labels' (a key), "
            "or name a file of them with labels="
        )
    return contents


def labels_to_stand_in(path: Path) -> NDArray[np.int64] | None:
    """Zeros of the shape that labels would have; None of a file that holds labels."""
    with reading(existing_file(path, ENDINGS)):
        contents = _open(path, None)
    if contents.labels is not None:
        return None
    shape = tuple(contents.scores.shape)
    return np.zeros((*shape[:1], *shape[2:]), dtype=np.int64)


def _open(path: Path, lazy: bool | None) -> Contents:
    ending = path.suffix.lower()
    large = path.stat().st_size > LAZY_BYTES if lazy is None else lazy
    if ending == ".npz":
        if lazy:
            raise InputError("an .npz is read whole: write .npy or .parquet to stream")
        return read_npz(path)
    if ending == ".npy":
        return read_npy(path, lazy=large)
    if ending == ".safetensors":
        return read_safetensors(path)
    if ending == ".pt":
        return read_pt(path, lazy=large)
    contents = read_table(path)
    if isinstance(contents.scores, FileScores):
        # A table may be compressed: what counts is its size once read.
        size = int(np.prod(contents.scores.shape)) * contents.scores.dtype.itemsize
        if not (size > LAZY_BYTES if lazy is None else lazy):
            contents.scores = contents.scores.load()
    return contents


def read_labels(path: str | os.PathLike[str]) -> Any:
    """Labels from a file of their own."""
    file = existing_file(path, LABEL_ENDINGS)
    with reading(file):
        ending = file.suffix.lower()
        if ending in (".npy", ".npz"):
            return _single(load_npy(file))
        if ending == ".pt":
            return _single(load_pt(file))
        if ending == ".safetensors":
            from safetensors.torch import load_file

            return _single(load_file(file))
        if ending == ".txt" or (ending == ".csv" and not _has_header(file)):
            return _read_lines(file)
        return _read_column(file)


def _single(held: Any) -> Any:
    """An array itself, or of several by name the one called labels, or the only one."""
    if not hasattr(held, "keys"):
        return held
    names = list(held.keys())
    for name in ("labels", "label"):
        if name in names:
            return held[name]
    if len(names) != 1:
        raise InputError(f"expected an array 'labels', found {first(map(repr, names)) or 'none'}")
    return held[names[0]]


def _has_header(file: Path) -> bool:
    with file.open(encoding="utf-8-sig") as lines:
        return not _is_number(lines.readline())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_lines(file: Path) -> Any:
    """One whole number a line."""
    labels: list[int] = []
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.strip()
            if not text:
                continue
            try:
                labels.append(int(text))
            except ValueError:
                raise InputError(
                    f"line {number} is {text[:40]!r}, expected one whole number a line"
                ) from None
    if not labels:
        raise InputError("the file is empty: no labels")
    return np.array(labels, dtype=np.int64)


def _read_column(file: Path) -> Any:
    """The column ``label`` (or ``labels``, or the only one) of a table."""
    table = open_table(file)
    named = [name for name in ("label", "labels") if name in table.names] or table.names
    if len(named) != 1:
        found = first((repr(name) for name in table.names), 12)
        raise InputError(f"expected a column 'label', found {found}")
    _, read = table.columns(named)
    if not read:
        raise InputError("the table is empty: no labels")
    return read[named[0]]
