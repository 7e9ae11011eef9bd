"""Readers of tables: parquet, arrow and csv, with columns logit_k or prob_k, label and id."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.functional.errors import InputError, first
from calibrant.predictions.contents import Contents, notes_from_text
from calibrant.predictions.sources import FileScores
from calibrant.predictions.table_files import TableFile, open_table

_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # what pandas calls row numbers it writes
_COLUMN = re.compile(r"(logit|prob)(?:_(0|[1-9]\d*))?")
_KIND = {"logit": "logits", "prob": "probs"}
_EXPECTED = (
    "expected logit_0, logit_1, ... or prob_0, prob_1, ... (or one column logit or prob for a "
    "binary score), label, and optionally id"
)


def read_table(path: Path) -> Contents:
    """The scores stay in the file; labels and ids, which are small beside them, are read."""
    table = open_table(path)
    kind, columns, is_binary = score_columns(table.names)
    small = [name for name in ("label", "id") if name in table.names]
    num_rows, read = table.columns(small or columns[:1])
    if num_rows == 0:
        raise InputError("the table is empty: 0 rows")
    notes = notes_from_text(table.notes)
    return Contents(
        scores=TableScores(table, columns, num_rows, is_binary=is_binary),
        kind=kind,
        labels=read["label"] if "label" in small else None,
        class_names=notes.get("class_names"),
        ids=read["id"] if "id" in small else None,
        ignore_index=notes.get("ignore_index"),
    )


def score_columns(names: Sequence[str]) -> tuple[str, list[str], bool]:
    """The kind, the score columns in class order, and whether it is one binary column."""
    found = f"found columns {first((repr(name) for name in names), 12)}; {_EXPECTED}"
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"columns given more than once: {first(twice)}")
    matches = {name: _COLUMN.fullmatch(name) for name in names}
    scores = {name: match for name, match in matches.items() if match}
    kinds = sorted({match[1] for match in scores.values()})
    if len(kinds) == 2:
        raise InputError("both logits and probs are given: keep the columns to be judged")
    if not kinds:
        raise InputError(f"no columns of logits or probabilities: {found}")
    known = ("label", "id", *_INDEX)
    unknown = [name for name in names if name not in scores and name not in known]
    if unknown:
        shown = first(repr(name) for name in unknown)
        raise InputError(f"unknown columns {shown}: rename or drop them; {found}")
    stem = kinds[0]
    if stem in scores:
        if len(scores) > 1:
            raise InputError(f"column {stem!r} (binary) beside {stem}_k: keep one form; {found}")
        return _KIND[stem], [stem], True
    present = {int(match[2]) for match in scores.values()}
    missing = [f"{stem}_{k}" for k in range(max(present) + 1) if k not in present]
    if missing:
        raise InputError(
            f"columns missing between {stem}_0 and {stem}_{max(present)}: {first(missing)}"
        )
    return _KIND[stem], [f"{stem}_{k}" for k in range(len(present))], False


class TableScores(FileScores):
    """The score columns of a table, a chunk of rows at a time."""

    def __init__(
        self, table: TableFile, columns: list[str], num_rows: int, *, is_binary: bool
    ) -> None:
        shape = (num_rows,) if is_binary else (num_rows, len(columns))
        types = [table.dtype_of(name) for name in columns]
        wrong = [
            f"{name} ({dtype})"
            for name, dtype in zip(columns, types, strict=True)
            if dtype.kind not in "iuf"
        ]
        if wrong:
            raise InputError(f"columns of scores must be numbers, found {first(wrong)}")
        dtype = np.result_type(*types)
        super().__init__(table.path, shape, dtype if dtype.kind == "f" else np.dtype(np.float64))
        self._table, self._columns, self._is_binary = table, columns, is_binary

    def _chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        for batch in self._table.batches(self._columns, rows):
            chunk = np.empty((len(self._columns), batch.num_rows), dtype=self.dtype)
            for row, name in zip(chunk, self._columns, strict=True):
                row[:] = batch.column(name).to_numpy(zero_copy_only=False)
            yield chunk[0] if self._is_binary else np.ascontiguousarray(chunk.T)
