"""Read the group of every row from a file or an array, and match rows by their ids."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import as_numpy
from calibrant.predictions import Predictions
from calibrant.predictions.files import check_file, explain_read_errors
from calibrant.predictions.read import load_npy
from calibrant.predictions.tables import find_ending, open_table

MOST_GROUPS = 1_000
ENDINGS = (".csv", ".csv.gz", ".jsonl", ".parquet", ".arrow", ".feather", ".npy", ".npz")
_IDS = ("id", "ids")
_NOT_GROUPS = (*_IDS, "", "Unnamed: 0", "__index_level_0__")  # the last three: pandas' row numbers
_MISSING = ("", "nan", "nat", "<na>")  # a missing value as NumPy and pandas write it in text


class GroupValues(NamedTuple):
    """The group of every row: the groups' names in order, and an index into them for each row."""

    title: str
    names: tuple[str, ...]
    codes: NDArray[np.int64]
    warnings: tuple[str, ...] = ()  # what could not be checked


class GroupColumn(NamedTuple):
    """A column of a file: its name, its values, and the ids of its rows if it has any."""

    title: str
    values: Any  # an array from a file, or what the caller gave
    ids: NDArray[Any] | None = None
    file: Path | None = None
    lines: tuple[int, ...] | None = None  # the line of each value in a .csv


def read_groups(
    path: str | os.PathLike[str], column: str | None = None, id_column: str | None = None
) -> GroupColumn:
    """Read one value for each row from a table, or an .npy or .npz file.

    Args:
        path: The file. The first line of a .csv names its columns; its values are text.
        column: The column (or array of an .npz) that holds the groups; required if there are
            several.
        id_column: The column of ids; the one called ``id`` or ``ids``, if any, if None.
    """
    file = check_file(path, ENDINGS)
    with explain_read_errors(file):
        ending = find_ending(file)
        if ending == ".npy":
            if column is not None or id_column is not None:
                option = "--group-column (column=)" if column else "--id-column (id_column=)"
                raise InputError(f"an .npy has no columns: leave {option} out")
            return GroupColumn(file.stem, load_npy(file), file=file)
        if ending == ".csv":
            return _read_csv(file, column, id_column)
        if ending == ".npz":
            with load_npy(file) as arrays:
                title, ids = _choose_columns(list(arrays.files), column, id_column)
                return GroupColumn(title, arrays[title], arrays[ids] if ids else None, file)
        table = open_table(file)
        title, ids = _choose_columns(table.names, column, id_column)
        table.kinds.update(dict.fromkeys((title, ids or title), "text"))
        _, columns = table.columns([title, ids] if ids else [title])
        if title not in columns:
            raise InputError("the table is empty: no groups")
        return GroupColumn(title, columns[title], columns[ids] if ids else None, file)


def _read_csv(file: Path, column: str | None, id_column: str | None) -> GroupColumn:
    rows, numbers = [], []
    with file.open(encoding="utf-8-sig", newline="") as lines:
        table = csv.reader(lines)
        header = [name.strip() for name in next(table, [])]
        title, id_title = _choose_columns(header, column, id_column)
        start = table.line_num + 1
        for row in table:
            rows.append(row)
            numbers.append(start)
            start = table.line_num + 1
    while rows and not rows[-1]:  # empty lines at the end
        del rows[-1], numbers[-1]
    if len(header) == 1:
        rows = [row or [""] for row in rows]  # an empty line is a missing value
    for row, number in zip(rows, numbers, strict=True):
        if len(row) != len(header):
            raise InputError(
                f"line {number} has {len(row)} values, the first line names {len(header)} columns"
            )

    def values_of(name: str) -> NDArray[Any]:
        place = header.index(name)
        return np.array([row[place].strip() for row in rows], dtype=object)

    ids = values_of(id_title) if id_title else None
    return GroupColumn(title, values_of(title), ids, file, tuple(numbers))


def _choose_columns(
    names: list[str], column: str | None, id_column: str | None
) -> tuple[str, str | None]:
    """Return the column of groups, asked for or the only candidate, and that of ids, if any."""
    columns = first((repr(name) for name in names), 12) or "none"
    for asked in (column, id_column):
        if asked is not None and asked not in names:
            raise InputError(f"no column is called {asked!r}; found {columns}")
    if column is None:
        candidates = [name for name in names if name not in (*_NOT_GROUPS, id_column)]
        if len(candidates) != 1:
            raise InputError(
                "which column holds the groups? Name it with --group-column (column=); found "
                f"{columns}"
            )
        column = candidates[0]
    if column == id_column:
        raise InputError(f"{column!r} cannot be both the groups and the ids: name two columns")
    usual = (name for name in _IDS if name in names and name != column)
    return column, id_column or next(usual, None)


def check_groups(groups: Any, predictions: Predictions, title: str | None = None) -> GroupValues:
    """Check that there is a value for each row (or image), none missing, at least two different.

    Args:
        groups: A column of `read_groups`, a Series, or any array or sequence; checked groups are
            returned as they are.
        predictions: The predictions whose rows are grouped.
        title: What the values are; the name of the column or Series if None.
    """
    if isinstance(groups, GroupValues):
        return groups
    column = groups if isinstance(groups, GroupColumn) else GroupColumn(_get_name(groups), groups)
    values, names, warnings = _match_rows(column, predictions)
    kinds, codes = np.unique(values if values.dtype.kind in "iufb" else names, return_inverse=True)
    if len(kinds) == 1:
        raise InputError(
            f"all rows are in one group, {str(names[0])!r}: there is nothing to compare, leave "
            "groups out"
        )
    if len(kinds) > MOST_GROUPS:
        raise InputError(
            f"found {len(kinds):,} groups, at most {MOST_GROUPS:,} can be judged: is this an id or "
            "a measurement? Gather values into ranges first"
        )
    texts = {int(code): str(name) for code, name in zip(codes, names, strict=True)}
    ordered = tuple(texts[code] for code in range(len(kinds)))
    return GroupValues(title or column.title, ordered, codes.astype(np.int64), warnings)


def match_names(column: GroupColumn, predictions: Predictions) -> NDArray[Any]:
    """Return the name of each row's group; unlike `check_groups`, one group for all will do.

    Args:
        column: A column of `read_groups`.
        predictions: The predictions whose rows are grouped.
    """
    return _match_rows(column, predictions)[1]


def _match_rows(
    column: GroupColumn, predictions: Predictions
) -> tuple[NDArray[Any], NDArray[Any], tuple[str, ...]]:
    """Return each row's value, its text, and warnings; rows are matched by ids if there are any."""
    values = column.values
    values = as_numpy(values) if isinstance(values, torch.Tensor) else np.asarray(values)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim == 1 and len(values) > predictions.num_rows:
        column = _leave_out_others(column, values, predictions)
        values = column.values
    if values.shape != (predictions.num_rows,):
        raise _wrong_length(values.shape, column.file, predictions)
    names = _make_texts(values, column)
    warnings: tuple[str, ...] = ()
    if column.file is not None:
        if column.ids is not None and predictions.ids is not None:
            with explain_read_errors(column.file):
                order = _match_ids(column.ids, predictions.ids)
            values, names = values[order], names[order]
        elif column.ids is not None or predictions.ids is not None:
            side = "the groups" if column.ids is None else "the predictions"
            warnings = (
                f"ids could not be compared: {side} have none; rows were taken in the order of "
                "the file",
            )
    return values, names, warnings


def _leave_out_others(
    column: GroupColumn, values: NDArray[Any], predictions: Predictions
) -> GroupColumn:
    """Return the column without ids that the predictions do not have, if both have ids."""
    if column.file is None or column.ids is None or predictions.ids is None:
        return column
    if column.ids.shape != values.shape:
        return column
    texts = np.array([make_text(value) for value in column.ids.tolist()])
    wanted = [make_text(value) for value in predictions.ids.tolist()]
    kept = np.flatnonzero(np.isin(texts, wanted))
    if not len(kept):
        return column
    names, counts = np.unique(texts[kept], return_counts=True)
    if len(names) < len(set(wanted)):
        missing = [name for name in wanted if name not in set(names.tolist())]
        raise InputError(
            f"{column.file.name}: {len(missing):,} of {len(wanted):,} rows have no group, first "
            f"{first(missing, 2)}"
        )
    if len(set(wanted)) == len(wanted) and (counts > 1).any():
        raise InputError(
            f"{column.file.name}: some ids occur more than once "
            f"({first(names[counts > 1].tolist(), 2)}), so the group of their rows is not known"
        )
    lines = None if column.lines is None else tuple(column.lines[row] for row in kept)
    return column._replace(values=values[kept], ids=column.ids[kept], lines=lines)


def _get_name(groups: Any) -> str:
    """Return the name of a Series, or of a frame's one column, or "group" if there is none."""
    name = None if isinstance(groups, torch.Tensor) else getattr(groups, "name", None)
    columns = getattr(groups, "columns", None)
    if columns is not None and len(columns) == 1:
        name = columns[0]
    return name if isinstance(name, str) and name else "group"


def _wrong_length(
    shape: tuple[int, ...], file: Path | None, predictions: Predictions
) -> InputError:
    """Make the error for groups that do not have one value for each row."""
    rows, unit = predictions.num_rows, "images" if predictions.is_dense else "rows"
    received = f"{shape[0]:,} values" if len(shape) == 1 else f"shape {shape}"
    message = (
        f"{f'{file.name} has' if file else 'groups have'} {received}, the predictions {rows:,} "
        f"{unit}: there must be one value for each, ignored rows included"
    )
    if file is not None and file.suffix.lower() == ".csv" and shape == (rows - 1,):
        message += "; the first line of a .csv is taken as the names of its columns"
    return InputError(message)


def _make_texts(values: NDArray[Any], column: GroupColumn) -> NDArray[Any]:
    """Return each value as text; raise an error if some are missing."""
    if values.dtype.kind in "iub":
        return values.astype(str)
    items: Iterable[Any] = values.tolist()
    if values.dtype.kind in "mM":
        items = values.astype(str).tolist()
    texts = [None if item is None else make_text(item) for item in items]
    missing = [row for row, text in enumerate(texts) if text is None or text.lower() in _MISSING]
    if missing:
        where = f"first rows: {first(missing)}"
        if column.lines is not None:
            where = f"first lines: {first(column.lines[row] for row in missing)}"
        raise InputError(
            f"{column.file.name if column.file else 'groups'}: {len(missing):,} missing values "
            f"({where}): give these rows a group of their own, such as 'unknown', or leave them "
            f"out of both {'files' if column.file else 'groups and predictions'}"
        )
    return np.array(texts, dtype=object)  # not of a fixed width: one text may be very long


def make_text(value: Any) -> str:
    """Return a value as text, the same whether a file holds it as text, bytes or a number.

    Args:
        value: The value.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value).strip()


def _match_ids(group_ids: NDArray[Any], prediction_ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each row of the predictions among the groups, by equal ids."""
    if group_ids.shape != prediction_ids.shape:
        raise InputError(
            f"found ids of shape {group_ids.shape} for {len(prediction_ids):,} rows: "
            "there must be one for each"
        )
    texts = np.array([make_text(value) for value in group_ids.tolist()])
    wanted = np.array([make_text(value) for value in prediction_ids.tolist()])
    different = np.flatnonzero(texts != wanted)
    if not len(different):
        return np.arange(len(wanted))
    names, where = np.unique(texts, return_index=True)
    missing = wanted[~np.isin(wanted, names)]
    if len(missing) == len(wanted):
        some_given, some_wanted = (first(map(repr, map(str, ids)), 2) for ids in (texts, wanted))
        raise InputError(
            f"none of the ids of the groups ({some_given}) is an id of the predictions "
            f"({some_wanted}): name another column with --id-column (id_column=)"
        )
    if len(missing):
        raise InputError(
            f"groups and predictions have different ids: {len(missing):,} of {len(wanted):,} rows "
            f"have no group, first {first(missing.tolist(), 2)}"
        )
    unique, repeats = np.unique(wanted, return_counts=True)
    if twice := unique[repeats > 1].tolist():
        raise InputError(
            f"the ids of groups and predictions differ in {len(different):,} rows, first "
            f"{first(different.tolist())}, and some occur more than once ({first(twice, 2)}), so "
            "rows cannot be matched by them: bring both into the same order"
        )
    return where[np.searchsorted(names, wanted)].astype(np.int64)
