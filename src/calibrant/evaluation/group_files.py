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

from calibrant.evaluation.group_ids import as_text, places, uncompared
from calibrant.functional.errors import InputError, first
from calibrant.functional.rows import as_numpy
from calibrant.predictions import Predictions
from calibrant.predictions.archives import load_npy
from calibrant.predictions.reading import existing_file
from calibrant.predictions.sources import reading
from calibrant.predictions.table_files import open_table

MOST_GROUPS = 1_000
ENDINGS = (".csv", ".parquet", ".arrow", ".feather", ".npy", ".npz")
_IDS = ("id", "ids")
_NOT_GROUPS = (*_IDS, "", "Unnamed: 0", "__index_level_0__")  # and row numbers of pandas
_MISSING = ("", "nan", "nat", "<na>")  # as NumPy and pandas write a missing value among texts


class GroupValues(NamedTuple):
    """The groups' names in order, which of them each row is in, and what they are groups by."""

    title: str
    names: tuple[str, ...]
    codes: NDArray[np.int64]
    doubts: tuple[str, ...] = ()  # what could not be checked, in words


class GroupColumn(NamedTuple):
    """A column read from a file: its name, its values, and the ids of its rows if it has any."""

    title: str
    values: Any  # an array from a file, or whatever was given
    ids: NDArray[Any] | None = None
    file: Path | None = None
    lines: tuple[int, ...] | None = None  # where the values are in a .csv


def read_groups(
    path: str | os.PathLike[str], column: str | None = None, id_column: str | None = None
) -> GroupColumn:
    """One value a row from a .csv, .parquet, .arrow, .feather, .npy or .npz file.

    ``column`` names the column (or array of an .npz) where there are several. A .csv begins
    with the names of its columns, and its values are text. ``id_column`` is the column of ids;
    if left out, one called ``id`` or ``ids`` is, where there is one.
    """
    file = existing_file(path, ENDINGS)
    with reading(file):
        ending = file.suffix.lower()
        if ending == ".npy":
            if column is not None or id_column is not None:
                option = "--group-column (column=)" if column else "--id-column (id_column=)"
                raise InputError(f"an .npy has no columns: leave {option} out")
            return GroupColumn(file.stem, load_npy(file), file=file)
        if ending == ".csv":
            return _from_csv(file, column, id_column)
        if ending == ".npz":
            with load_npy(file) as held:
                title, named = _chosen(list(held.files), column, id_column)
                return GroupColumn(title, held[title], held[named] if named else None, file)
        table = open_table(file)
        title, named = _chosen(table.names, column, id_column)
        _, read = table.columns([title, named] if named else [title])
        if title not in read:
            raise InputError("the table is empty: no groups")
        return GroupColumn(title, read[title], read[named] if named else None, file)


def _from_csv(file: Path, column: str | None, id_column: str | None) -> GroupColumn:
    kept, numbers = [], []
    with file.open(encoding="utf-8-sig", newline="") as lines:
        table = csv.reader(lines)
        header = [name.strip() for name in next(table, [])]
        title, named = _chosen(header, column, id_column)
        start = table.line_num + 1
        for line in table:
            kept.append(line)
            numbers.append(start)
            start = table.line_num + 1
    while kept and not kept[-1]:  # empty lines at the end
        del kept[-1], numbers[-1]
    if len(header) == 1:
        kept = [line or [""] for line in kept]  # an empty line is a missing value
    for line, number in zip(kept, numbers, strict=True):
        if len(line) != len(header):
            raise InputError(
                f"line {number} has {len(line)} values, the first line names {len(header)} columns"
            )

    def values_of(name: str) -> NDArray[Any]:
        place = header.index(name)
        return np.array([line[place].strip() for line in kept], dtype=object)

    ids = values_of(named) if named else None
    return GroupColumn(title, values_of(title), ids, file, tuple(numbers))


def _chosen(names: list[str], column: str | None, id_column: str | None) -> tuple[str, str | None]:
    """The column asked for, or the only one that can be meant; and that of the ids, if any."""
    found = first((repr(name) for name in names), 12) or "none"
    for asked in (column, id_column):
        if asked is not None and asked not in names:
            raise InputError(f"no column is called {asked!r}; found {found}")
    if column is None:
        aside = (*_NOT_GROUPS, id_column)
        possible = [name for name in names if name not in aside]
        if len(possible) != 1:
            raise InputError(
                "which column holds the groups? Name it with --group-column (column=); found "
                f"{found}"
            )
        column = possible[0]
    if column == id_column:
        raise InputError(f"{column!r} cannot be both the groups and the ids: name two columns")
    usual = (name for name in _IDS if name in names and name != column)
    return column, id_column or next(usual, None)


def as_groups(groups: Any, predictions: Predictions, title: str | None = None) -> GroupValues:
    """Checked: one value for each row (or image), none missing, at least two different ones.

    ``title`` is what they are groups by; if left out, the name of the column or Series.
    """
    column = groups if isinstance(groups, GroupColumn) else GroupColumn(_name_of(groups), groups)
    given = column.values
    given = as_numpy(given) if isinstance(given, torch.Tensor) else np.asarray(given)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (predictions.num_rows,):
        raise _wrong_length(given.shape, column.file, predictions)
    names = _texts(given, column)
    doubts: tuple[str, ...] = ()
    if column.file is not None:
        doubts = uncompared(column.ids, predictions.ids)
        if column.ids is not None and predictions.ids is not None:
            with reading(column.file):
                order = places(column.ids, predictions.ids)
            given, names = given[order], names[order]
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
    named = tuple(texts[code] for code in range(len(kinds)))
    return GroupValues(title or column.title, named, codes.astype(np.int64), doubts)


def _name_of(groups: Any) -> str:
    """The name of a pandas (or other) Series, or a word for groups that have none."""
    name = None if isinstance(groups, torch.Tensor) else getattr(groups, "name", None)
    return name if isinstance(name, str) and name else "group"


def _wrong_length(
    shape: tuple[int, ...], file: Path | None, predictions: Predictions
) -> InputError:
    """What to say where there is not one value for each row; it names the file if there is one."""
    rows, what = predictions.num_rows, "images" if predictions.is_dense else "rows"
    found = f"{shape[0]:,} values" if len(shape) == 1 else f"shape {shape}"
    told = f"{file.name} has" if file else "groups have"
    told += f" {found}, the predictions {rows:,} {what}: there must be one value for each, "
    told += "rows to be ignored included"
    if file is not None and file.suffix.lower() == ".csv" and shape == (rows - 1,):
        told += "; the first line of a .csv is taken as the names of its columns"
    return InputError(told)


def _texts(given: NDArray[Any], column: GroupColumn) -> NDArray[Any]:
    """Each value as text; an error where some are missing."""
    if given.dtype.kind in "iub":
        return given.astype(str)
    values: Iterable[Any] = given.tolist()
    if given.dtype.kind in "mM":
        values = given.astype(str).tolist()
    texts = [_text(value) for value in values]
    missing = [row for row, text in enumerate(texts) if text is None]
    if missing:
        where = f"first rows: {first(missing)}"
        if column.lines is not None:
            where = f"first lines: {first(column.lines[row] for row in missing)}"
        raise InputError(
            f"{column.file.name if column.file else 'groups'}: {len(missing):,} missing values "
            f"({where}): give these rows a group of their own, such as 'unknown', or leave them "
            f"out of both {'files' if column.file else 'groups and predictions'}"
        )
    return np.array(texts, dtype=object)  # of their own length each: one may be very long


def _text(value: Any) -> str | None:
    """A value as text, None where it is missing."""
    text = as_text(value)
    return None if value is None or text.lower() in _MISSING else text
