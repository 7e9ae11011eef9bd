"""The group of every row: from an array, or from a column of a file."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.functional.errors import InputError, first
from calibrant.functional.rows import as_numpy
from calibrant.predictions import Predictions
from calibrant.predictions.archives import load_npy
from calibrant.predictions.reading import existing_file
from calibrant.predictions.sources import reading
from calibrant.predictions.table_files import open_table

MOST_GROUPS = 1_000
ENDINGS = (".csv", ".parquet", ".arrow", ".feather", ".npy", ".npz")
_NOT_GROUPS = ("id", "", "Unnamed: 0", "__index_level_0__")  # ids, and row numbers pandas writes
_MISSING = ("", "nan", "nat", "<na>")  # as NumPy and pandas write a missing value among texts


class GroupValues(NamedTuple):
    """The groups' names in order, which of them each row is in, and what they are groups by."""

    title: str
    names: tuple[str, ...]
    codes: NDArray[np.int64]


class GroupColumn(NamedTuple):
    """A column read from a file: its name, its values, and the ids of its rows if it has any."""

    title: str
    values: NDArray[Any]
    ids: NDArray[Any] | None = None


def read_groups(path: str | os.PathLike[str], column: str | None = None) -> GroupColumn:
    """One value a row from a .csv, .parquet, .arrow, .feather, .npy or .npz file.

    ``column`` names the column (or array of an .npz) where there are several. A .csv begins
    with the names of its columns, and its values are text. A column ``id`` is taken as ids.
    """
    file = existing_file(path, ENDINGS)
    with reading(file):
        ending = file.suffix.lower()
        if ending == ".npy":
            if column is not None:
                raise InputError("an .npy has no columns: leave --group-column (column=) out")
            return GroupColumn(file.stem, load_npy(file))
        if ending == ".csv":
            return _from_csv(file, column)
        if ending == ".npz":
            with load_npy(file) as held:
                names = list(held.files)
                title = _chosen(names, column)
                return GroupColumn(title, held[title], held["ids"] if "ids" in names else None)
        table = open_table(file)
        title = _chosen(table.names, column)
        with_ids = "id" in table.names and title != "id"
        _, read = table.columns([title, "id"] if with_ids else [title])
        if title not in read:
            raise InputError("the table is empty: no groups")
        return GroupColumn(title, read[title], read.get("id"))


def _from_csv(file: Path, column: str | None) -> GroupColumn:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        table = csv.reader(lines)
        header = [name.strip() for name in next(table, [])]
        title = _chosen(header, column)
        place = header.index(title)
        # A line without a value of one column is a missing value; csv leaves out empty lines.
        kept = [line or [""] for line in table]
    for number, line in enumerate(kept, start=2):
        if len(line) != len(header):
            raise InputError(
                f"line {number} has {len(line)} values, the first line names {len(header)} columns"
            )
    values = np.array([line[place].strip() for line in kept], dtype=object)
    if "id" not in header or title == "id":
        return GroupColumn(title, values)
    ids = np.array([line[header.index("id")] for line in kept], dtype=object)
    return GroupColumn(title, values, ids)


def _chosen(names: list[str], column: str | None) -> str:
    """The column asked for, or the only one that can be meant."""
    found = first((repr(name) for name in names), 12) or "none"
    if column is not None:
        if column not in names:
            raise InputError(f"no column is called {column!r}; found {found}")
        return column
    possible = [name for name in names if name not in _NOT_GROUPS and name != "ids"]
    if len(possible) != 1:
        raise InputError(
            f"which column holds the groups? Name it with --group-column; found {found}"
        )
    return possible[0]


def as_groups(groups: Any, predictions: Predictions, title: str) -> GroupValues:
    """Checked: one value for each row (or image), none missing, at least two different ones."""
    ids = None
    if isinstance(groups, GroupColumn):
        title, groups, ids = groups
    given = as_numpy(groups) if isinstance(groups, torch.Tensor) else np.asarray(groups)
    rows = predictions.num_rows
    what = "images" if predictions.is_dense else "rows"
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (rows,):
        one_less = given.shape == (rows - 1,)
        raise InputError(
            f"groups need one value for each of the {rows:,} {what}, rows to be ignored included; "
            f"found shape {given.shape}"
            + ("; the first line of a .csv is taken as the names of its columns" * one_less)
        )
    _check_ids(ids, predictions)
    names = _texts(given)
    kinds, codes = np.unique(given if given.dtype.kind in "iufb" else names, return_inverse=True)
    if len(kinds) == 1:
        raise InputError(
            f"all rows are in one group, {str(names[0])!r}: there is nothing to tell apart, leave "
            "groups out"
        )
    if len(kinds) > MOST_GROUPS:
        raise InputError(
            f"found {len(kinds):,} groups, at most {MOST_GROUPS:,} can be judged: is this an id or "
            "a measurement? Gather values into ranges first"
        )
    texts = {int(code): str(name) for code, name in zip(codes, names, strict=True)}
    return GroupValues(
        title, tuple(texts[code] for code in range(len(kinds))), codes.astype(np.int64)
    )


def doubts_of_groups(groups: GroupValues | None, predictions: Predictions) -> tuple[str, ...]:
    """A warning where each group has one label: by true class even calibrated rows are off."""
    if groups is None or predictions.is_dense:
        return ()
    labels = as_numpy(predictions.labels).astype(np.int64)
    pairs = len(np.unique(groups.codes * (labels.max() + 1 - labels.min()) + labels))
    if pairs > len(groups.names) or len(labels) < 2 * len(groups.names):
        return ()
    return (
        "all rows of a group have the same label: calibrated confidences hold for groups known "
        "beforehand, and not for those of one true class; take the predicted class instead",
    )


def _texts(given: NDArray[Any]) -> NDArray[Any]:
    """Each value as text; an error where some are missing."""
    if given.dtype.kind in "iub":
        return given.astype(str)
    values: Iterable[Any] = given.tolist()
    if given.dtype.kind in "mM":
        values = given.astype(str).tolist()
    texts = [_text(value) for value in values]
    missing = [row for row, text in enumerate(texts) if text is None]
    if missing:
        raise InputError(
            f"groups have {len(missing):,} missing values (first rows: {first(missing)}): give "
            "these rows a group of their own, such as 'unknown', or leave them out of both files"
        )
    return np.array(texts)


def _text(value: Any) -> str | None:
    """A value as text, None where it is missing."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = str(value).strip()
    if value is None or text.lower() in _MISSING:
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else text


def _check_ids(ids: NDArray[Any] | None, predictions: Predictions) -> None:
    """An error where both have ids and they differ: the rows are then not the same."""
    if ids is None or predictions.ids is None:
        return
    theirs = np.asarray(predictions.ids).astype(str)
    wrong = np.flatnonzero(np.asarray(ids).astype(str) != theirs)
    if len(wrong):
        raise InputError(
            f"the ids of the groups are not those of the predictions in {len(wrong):,} rows, first "
            f"{first(wrong.tolist())}: bring both into the same order"
        )
