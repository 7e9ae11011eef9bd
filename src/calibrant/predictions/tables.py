"""Tables of predictions (parquet, arrow, csv, jsonl, data frames), read in batches of rows."""

from __future__ import annotations

import gzip
import json
import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from calibrant.core.errors import InputError, first
from calibrant.core.extras import require
from calibrant.functional.arrays import as_numpy, rows_per_block
from calibrant.predictions.columns import (
    Column,
    ColumnNames,
    RoundedSums,
    choose_columns,
    make_contents,
    normalise_rows,
)
from calibrant.predictions.files import (
    OUTCOMES,
    Contents,
    FileScores,
    explain_read_errors,
    format_notes,
    iterate_scores,
    parse_notes,
)
from calibrant.predictions.limits import (
    MOST_COLUMNS,
    BoundedGzip,
    check_arrow,
    check_parquet,
)

TABLE_ENDINGS = (".parquet", ".arrow", ".feather", ".csv", ".csv.gz", ".jsonl")
TEXT_ENDINGS = (".csv", ".csv.gz", ".jsonl")
# Small: there may be a thousand columns, each with a buffer.
_COLUMN_BUFFER_BYTES = 1 << 16
# The parser holds about thirty blocks; each must hold a whole line.
_CSV_BLOCK_BYTES = 1 << 20
_CSV_VALUE_BYTES = 256  # several lines, since each batch costs time for each column
_MOST_HEADER = 1 << 26  # characters; a hundred thousand columns take two million
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
# A batch becomes a row group; each column of a group costs a hundred bytes of footer.
_BATCH_VALUES = 1 << 22
_LEAST_ROWS = 10_000
_BATCH_ROWS = 1 << 20
_NO_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def read_table(table: TableFile, options: ColumnNames, *, largest: int) -> Contents:
    """Read the small columns; leave the scores in the file if they are large.

    Args:
        table: The table.
        options: The columns that the caller names.
        largest: Scores of more bytes than this in memory stay in the file.
    """
    notes = parse_notes(table.notes)
    chosen = choose_columns(table.names, options, notes, table.partitions)
    for names, kind in (
        (chosen.scores, "number"),
        ([chosen.weight], "number"),
        ([chosen.cluster, chosen.id, *chosen.extra], "text"),
    ):
        table.kinds.update({name: kind for name in names if name is not None})
    num_rows, read = table.read(chosen.small or chosen.scores[:1])
    if num_rows == 0:
        raise InputError("the table is empty: 0 rows")
    counts = None if chosen.num_options is None else read[chosen.num_options].values
    scores = TableScores(
        table,
        chosen.scores,
        num_rows,
        is_binary=chosen.is_one_column and chosen.task != "multilabel",
        absent=None if counts is None else (counts, -np.inf if chosen.kind == "logits" else 0.0),
    )
    # A table may be compressed, so its size in memory decides.
    size = math.prod(scores.shape) * scores.dtype.itemsize
    stays = table.may_stay and size > largest
    stored: FileScores | npt.NDArray[Any] = scores if stays else scores.load()
    is_plain = chosen.task == "classes" and not chosen.is_one_column
    if table.is_text and chosen.kind != "logits" and is_plain:
        sums = RoundedSums()
        for chunk in iterate_scores(stored):
            sums.update(as_numpy(chunk))
        if sums.explains(len(chosen.scores) if counts is None else int(counts.max())):
            scores.is_rounded = stays
            stored = stored if isinstance(stored, FileScores) else normalise_rows(stored)
    return make_contents(chosen, stored, read, options, notes)


class TableScores(FileScores):
    """The score columns of a table."""

    def __init__(
        self,
        table: TableFile,
        columns: list[str],
        num_rows: int,
        *,
        is_binary: bool,
        absent: tuple[npt.NDArray[Any], float] | None = None,
    ) -> None:
        shape = (num_rows,) if is_binary else (num_rows, len(columns))
        types = [table.dtype_of(name) for name in columns]
        wrong = [
            f"{name} ({dtype})"
            for name, dtype in zip(columns, types, strict=True)
            if dtype.kind not in "iuf"
        ]
        if wrong:
            raise InputError(f"score columns must be numbers, found {first(wrong)}")
        dtype = np.result_type(*types)
        super().__init__(table.path, shape, dtype if dtype.kind == "f" else np.dtype(np.float64))
        self._table, self._columns, self._is_binary = table, columns, is_binary
        self._absent = absent
        self.is_rounded = False  # whether rows are divided by their sums

    def _chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        start = 0
        for batch in self._table.batches(self._columns, rows):
            chunk = np.empty((len(self._columns), batch.num_rows), dtype=self.dtype)
            for row, name in zip(chunk, self._columns, strict=True):
                row[:] = batch.columns[name].to_numpy(zero_copy_only=False)
            scores = chunk[0] if self._is_binary else np.ascontiguousarray(chunk.T)
            if self._absent is not None:
                counts, fill = self._absent
                row_counts = counts[start : start + len(scores), None]
                empty = (np.arange(scores.shape[1]) >= row_counts) & np.isnan(scores)
                scores[empty] = fill
            start += len(scores)
            yield normalise_rows(scores) if self.is_rounded else scores


def find_ending(path: Path) -> str:
    """Return the ending that chooses the format: ``.csv.gz`` for compressed CSV."""
    name = path.name.lower()
    return ".csv.gz" if name.endswith(".csv.gz") else path.suffix.lower()


def open_table(path: Path) -> TableFile:
    """Open a table; the ending chooses the format."""
    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)")
    ending = find_ending(path)
    if ending == ".parquet":
        return ParquetFile(path)
    if ending == ".jsonl":
        return open_json_lines(path)
    return CsvFile(path) if ending in (".csv", ".csv.gz") else ArrowFile(path)


class Batch:
    """Columns of some rows by name; one pass makes what lookups by name would make for each."""

    def __init__(self, columns: Mapping[str, Any], num_rows: int) -> None:
        self.columns, self.num_rows = columns, num_rows

    @classmethod
    def from_arrow(cls, batch: Any) -> Batch:
        """Take a record batch of pyarrow."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        return cls(columns, batch.num_rows)

    def slice(self, start: int, rows: int) -> Batch:
        """Return some rows."""
        if start == 0 and self.num_rows <= rows:
            return self
        columns = {name: column.slice(start, rows) for name, column in self.columns.items()}
        return Batch(columns, min(rows, self.num_rows - start))


class TableFile(ABC):
    """Named, typed columns, read in batches of rows."""

    path: Path
    names: list[str]
    kinds: dict[str, str]  # what a column of text holds ("number" or "text"); others are labels
    is_text = False  # whether its numbers are printed
    may_stay = True  # whether scores can stay in the file
    partitions: Mapping[str, Any] = {}  # values that the folder's names give to every row

    @property
    def notes(self) -> bytes | None:
        """Return the JSON notes in the metadata; None if there are none."""
        return None

    @abstractmethod
    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return NumPy's dtype of a column; ``object`` where NumPy has none."""

    @abstractmethod
    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """Yield batches of these columns with at most ``rows`` rows."""

    @abstractmethod
    def read(self, names: Sequence[str]) -> tuple[int, dict[str, Column]]:
        """Read whole columns; return the number of rows and the columns by name."""

    def columns(self, names: Sequence[str]) -> tuple[int, dict[str, npt.NDArray[Any]]]:
        """Read whole columns that have no missing values."""
        num_rows, read = self.read(names)
        for name, column in read.items():
            if column.missing is not None and column.missing.any():
                rows = first(np.flatnonzero(column.missing).tolist())
                raise InputError(f"column {name!r} has missing values (first rows: {rows})")
        return num_rows, {name: column.values for name, column in read.items()}


class ArrowTable(TableFile):
    """A file that pyarrow reads in record batches."""

    def __init__(self, path: Path, schema: Any) -> None:
        self.path, self._schema = path, schema
        self.names, self.kinds = list(schema.names), {}

    @property
    def notes(self) -> bytes | None:
        """Return the JSON notes in the metadata; None if there are none."""
        metadata = self._schema.metadata or {}
        return metadata.get(b"calibrant")

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return NumPy's dtype of a column; ``object`` where NumPy has none."""
        try:
            dtype: np.dtype[Any] = np.dtype(self._schema.field(name).type.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            return np.dtype(object)
        return dtype

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """Yield batches of these columns with at most ``rows`` rows."""
        for batch in self._batches(list(names), rows):
            whole = Batch.from_arrow(batch)
            for start in range(0, batch.num_rows, rows):
                yield whole.slice(start, rows)

    def read(self, names: Sequence[str]) -> tuple[int, dict[str, Column]]:
        """Read whole columns; return the number of rows and the columns by name."""
        return _read_batches(names, self.batches(names, _BATCH_ROWS))

    @abstractmethod
    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        """Yield record batches of these columns, of any size."""


def _read_batches(names: Sequence[str], batches: Iterable[Batch]) -> tuple[int, dict[str, Column]]:
    """Join the columns of batches; return the number of rows and the columns by name."""
    parts: dict[str, list[Column]] = {name: [] for name in names}
    num_rows = 0
    for batch in batches:
        for name in names:
            parts[name].append(_take_column(batch.columns[name]))
        num_rows += batch.num_rows
    return num_rows, {name: join_columns(part, name) for name, part in parts.items() if part}


def _take_column(column: Any) -> Column:
    """Return the values of an Arrow array, and where they are missing."""
    import pyarrow

    types = pyarrow.types
    kind = column.type
    if types.is_dictionary(kind):
        return _take_dictionary(column)
    if types.is_null(kind):
        raise InputError("a required column holds no value at all")
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not (types.is_primitive(kind) or types.is_decimal(kind) or any(is_(kind) for is_ in texts)):
        raise InputError(f"a required column holds {str(kind)[:60]}, not numbers or text")
    if not column.null_count:
        return Column(np.array(column.to_numpy(zero_copy_only=False)))
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if types.is_integer(kind) or types.is_boolean(kind):
        # As floating-point numbers with NaN, large whole numbers would change.
        column = column.fill_null(pyarrow.scalar(0).cast(kind))
    return Column(np.array(column.to_numpy(zero_copy_only=False)), missing)


def _take_dictionary(column: Any) -> Column:
    """Return the values of an Arrow array of places in a list of different values.

    As objects: one long text that many rows share is held once.
    """
    values = _take_column(column.dictionary)
    if values.values.dtype.kind not in "OSU":
        return _take_column(column.dictionary_decode())
    places = column.indices
    missing = places.is_null().to_numpy(zero_copy_only=False)
    if len(values.values) == 0:
        return Column(np.full(len(column), None, dtype=object), missing)
    rows = places.fill_null(0).to_numpy(zero_copy_only=False)
    if values.missing is not None:
        missing = missing | values.missing[rows]
    return Column(values.values[rows], missing if missing.any() else None)


def join_columns(parts: Sequence[Column], name: str) -> Column:
    """Join the parts of a column; raise if some are text and others numbers."""
    if len(parts) == 1:
        return parts[0]
    kinds = {"text" if part.values.dtype.kind in "OSU" else "numbers" for part in parts}
    if len(kinds) > 1:
        raise InputError(f"column {name!r} holds text in some files and numbers in others")
    values = np.concatenate([part.values for part in parts])
    if all(part.missing is None for part in parts):
        return Column(values)
    masks = [
        np.zeros(len(part.values), dtype=bool) if part.missing is None else part.missing
        for part in parts
    ]
    return Column(values, np.concatenate(masks))


class TableSet(TableFile):
    """Several tables with the same columns, read one after the other as one."""

    def __init__(self, path: Path, tables: Sequence[TableFile]) -> None:
        self.path, self._tables = path, tables
        self.kinds = {}
        partitions = sorted({key for table in tables for key in table.partitions})
        self.names = list(tables[0].names)
        self.names += [key for key in partitions if key not in self.names]
        self.partitions = dict.fromkeys(partitions)
        self.is_text = any(table.is_text for table in tables)
        self.may_stay = all(table.may_stay for table in tables)

    @property
    def notes(self) -> bytes | None:
        """Return the notes of the first table, which all must share."""
        notes = {table.notes for table in self._tables}
        if len(notes) > 1:
            parsed = [parse_notes(note) for note in notes]
            if any(notes != parsed[0] for notes in parsed):
                raise InputError(
                    "the files have different class names, tasks or events in their metadata: "
                    "evaluate them one by one"
                )
        return self._tables[0].notes

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return a dtype that holds the column of every table."""
        self._check([name])
        types = {table.dtype_of(name) for table in self._tables}
        wrong = [dtype for dtype in types if dtype.kind not in "iufb"]
        return wrong[0] if wrong else np.result_type(*types)

    def _check(self, names: Sequence[str]) -> None:
        for table in self._tables:
            present = {*table.names, *table.partitions}
            missing = [name for name in names if name not in present]
            if missing:
                raise InputError(
                    f"{table.path} has no column {missing[0]!r}, {self._tables[0].path.name} does: "
                    f"found {first(map(repr, table.names), 12)}"
                )

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """Yield batches of the tables in turn."""
        import pyarrow

        self._check(names)
        for table in self._tables:
            table.kinds.update(self.kinds)
            present = set(table.names)
            own_names = [name for name in names if name in present]
            # A table of no column has no batches.
            with explain_read_errors(table.path):
                for batch in table.batches(own_names or table.names[:1], rows):
                    columns = dict(batch.columns)
                    for name in names:
                        if name not in present:
                            value = table.partitions[name]
                            columns[name] = pyarrow.repeat(value, batch.num_rows)
                    yield Batch(columns, batch.num_rows)

    def read(self, names: Sequence[str]) -> tuple[int, dict[str, Column]]:
        """Read whole columns of every table."""
        self._check(names)
        total, parts = 0, {name: list[Column]() for name in names}
        for table in self._tables:
            table.kinds.update(self.kinds)
            present = set(table.names)
            own_names = [name for name in names if name in present]
            with explain_read_errors(table.path):
                num_rows, read = table.read(own_names or table.names[:1])
            total += num_rows
            for name in names if num_rows else ():
                if name in present:
                    parts[name].append(read[name])
                    continue
                value = table.partitions[name]
                values = np.full(num_rows, 0 if value is None else value)
                missing = np.full(num_rows, True) if value is None else None
                parts[name].append(Column(values, missing))
        return total, {name: join_columns(part, name) for name, part in parts.items() if part}


def open_tables(path: Path, files: Sequence[Path]) -> TableFile:
    """Open several tables as one; ``key=value`` in the names of folders becomes a column.

    Args:
        path: What the caller gave, such as a folder.
        files: The files, in the order of their rows.
    """
    tables = []
    for file in files:
        with explain_read_errors(file):
            tables.append(open_table(file))
    folders = [find_partitions(file, path) for file in files]
    for key in sorted({key for keys in folders for key in keys}):
        values = [keys.get(key) for keys in folders]
        whole = all(value is None or _WHOLE_NUMBER.fullmatch(value) for value in values)
        for keys in folders:
            value = keys.get(key)
            keys[key] = int(value) if whole and value is not None else value  # type: ignore[assignment]
    for table, partitions in zip(tables, folders, strict=True):
        table.partitions = partitions
    return TableSet(path, tables)


def find_partitions(file: Path, root: Path) -> dict[str, str | None]:
    """Return the ``key=value`` pairs in the names of folders between the root and a file."""
    try:
        parts = file.relative_to(root).parts[:-1]
    except ValueError:
        parts = file.parts[:-1]
    pairs = [part.partition("=") for part in parts if part.count("=") == 1]
    return {
        key: None if value == _NO_PARTITION else unquote(value)
        for key, sign, value in pairs
        if sign and key
    }


class MemoryTable(TableFile):
    """Columns in memory: of a data frame, or of JSON lines."""

    may_stay = False

    def __init__(
        self, path: Path, columns: Mapping[str, Callable[[], Column]], *, is_text: bool = False
    ) -> None:
        self.path, self._columns, self.is_text = path, columns, is_text
        self.names, self.kinds = list(columns), {}
        self._read: dict[str, Column] = {}

    def _get(self, name: str) -> Column:
        if name not in self._read:
            self._read[name] = self._columns[name]()
        return self._read[name]

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a column."""
        dtype = self._get(name).values.dtype
        return dtype if dtype.kind in "iufb" else np.dtype(object)

    def read(self, names: Sequence[str]) -> tuple[int, dict[str, Column]]:
        """Return whole columns."""
        columns = {name: self._get(name) for name in names}
        sizes = {name: column.values.shape for name, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise InputError(f"columns have different lengths: {first(sizes.items())}")
        return len(next(iter(columns.values())).values), columns

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Batch]:
        """Yield batches of the columns, with NaN for missing numbers."""
        columns = {name: _Numbers(self._get(name)) for name in names}
        whole = Batch(columns, len(next(iter(columns.values())).values))
        for start in range(0, whole.num_rows, rows):
            yield whole.slice(start, rows)


class _Numbers:
    """A column of numbers with the two methods of an Arrow array that reading scores needs."""

    def __init__(self, column: Column) -> None:
        self.values = column.values
        if column.missing is not None and column.missing.any():
            self.values = column.values.astype(np.float64)
            self.values[column.missing] = np.nan

    def slice(self, start: int, rows: int) -> _Numbers:
        """Return some rows."""
        return _Numbers(Column(self.values[start : start + rows]))

    def to_numpy(self, *, zero_copy_only: bool) -> npt.NDArray[Any]:
        """Return the values."""
        return self.values


def open_json_lines(path: Path) -> TableFile:
    """Open a file with one JSON object a line; lists of scores become columns."""
    return MemoryTable(path, _gather_columns(read_json_lines(path)), is_text=True)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line."""
    records = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                words = " ".join(str(error).split())[:120]
                raise InputError(f"line {number} is no JSON ({words}): {line[:60]!r}") from error
            if not isinstance(record, dict):
                raise InputError(f"line {number} is no JSON object {{...}}: {line[:60].strip()!r}")
            records.append(record)
    if not records:
        raise InputError("the file is empty: no lines")
    return records


def _gather_columns(records: list[dict[str, Any]]) -> dict[str, Callable[[], Column]]:
    """Return the columns of records; ``logits`` and ``probs`` may be lists, one score a class."""
    names = dict.fromkeys(name for record in records for name in record)
    columns: dict[str, Callable[[], Column]] = {}
    for name in names:
        stem = {"logits": "logit", "probs": "prob"}.get(name)
        values = [] if stem is None else [record.get(name) for record in records]
        if stem is not None and any(isinstance(value, list) for value in values):
            columns.update(_spread_lists(values, name, stem))
        else:
            columns[name] = partial(_make_column, records, name)
    return columns


def _spread_lists(values: list[Any], name: str, stem: str) -> dict[str, Callable[[], Column]]:
    """Return a column for each place of the lists; lists of different length are options."""
    wrong = [n for n, value in enumerate(values) if not isinstance(value, list) or not value]
    if wrong:
        raise InputError(
            f"{name!r} must be a list of scores in every row; not so in {first(wrong)}"
        )
    counts = np.array([len(value) for value in values])
    if int(counts.max()) * len(values) > 100 * int(counts.sum()) + 10_000_000:
        raise InputError(
            f"{name!r} has lists of 1 to {counts.max():,} scores: lengths differ too much"
        )
    try:
        flat = np.array([number for value in values for number in value], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name!r} must be lists of numbers") from error
    padded = np.full((len(values), max(2, int(counts.max()))), np.nan)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = flat
    columns: dict[str, Callable[[], Column]] = {}
    columns |= {f"{stem}_{k}": partial(Column, padded[:, k]) for k in range(padded.shape[1])}
    if counts.min() < counts.max():
        columns["num_options"] = partial(Column, counts)
    return columns


def _make_column(records: list[dict[str, Any]], name: str) -> Column:
    """Return the values of one key of JSON objects."""
    values = [record.get(name) for record in records]
    missing = np.array([value is None for value in values])
    known = [value for value in values if value is not None]
    if all(type(value) is bool for value in known):
        filled = np.array([bool(value) for value in values])
    elif all(type(value) is int and -(2**63) <= value < 2**63 for value in known):
        filled = np.array([0 if value is None else value for value in values], dtype=np.int64)
    elif all(type(value) in (int, float) for value in known):
        filled = np.array([np.nan if value is None else float(value) for value in values])
    else:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in known]
        filled = np.full(len(values), None, dtype=object)
        filled[~missing] = np.array(texts, dtype=object)
    return Column(filled, missing if missing.any() else None)


def open_frame(frame: Any) -> MemoryTable:
    """Open a data frame of pandas, polars or another library with ``to_numpy``."""
    columns = getattr(frame, "columns", None)
    if columns is None or not hasattr(frame, "__getitem__"):
        raise InputError(
            f"from_frame takes a data frame of pandas or polars, found {type(frame).__name__}"
        )
    names = list(columns)
    texts = [str(name) for name in names]
    twice = [name for name, count in Counter(texts).items() if count > 1]
    if twice:
        raise InputError(f"columns found more than once: {first(map(repr, twice))}")
    return MemoryTable(
        Path("data frame"),
        {text: partial(_take_series, frame, name) for text, name in zip(texts, names, strict=True)},
    )


def _take_series(frame: Any, name: Any) -> Column:
    series = frame[name]
    missing = None
    is_missing = getattr(series, "isna", None) or getattr(series, "is_null", None)
    if is_missing is not None:
        missing = np.asarray(is_missing(), dtype=bool)
    values = np.asarray(series.to_numpy())
    if values.dtype.kind == "O" and missing is not None:
        # pandas' nullable numbers are objects with NA.
        known = values[~missing].tolist()
        kinds = {type(value) for value in known}
        if kinds == {int} and all(-(2**63) <= value < 2**63 for value in known):
            values = np.where(missing, 0, values).astype(np.int64)
        elif kinds and kinds <= {int, float}:
            values = np.where(missing, np.nan, values).astype(np.float64)
        elif kinds and kinds <= {bool, np.bool_}:
            values = np.where(missing, False, values).astype(bool)
    return Column(values, missing if missing is not None and missing.any() else None)


class ParquetFile(ArrowTable):
    """A parquet file, read by row group."""

    def __init__(self, path: Path) -> None:
        self._texts: list[str] | None = None
        with self._open(path) as file:
            super().__init__(path, file.schema_arrow)
        import pyarrow

        types = pyarrow.types
        kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        self._texts = [
            entry.name for entry in self._schema if any(is_(entry.type) for is_ in kinds)
        ]

    def _open(self, path: Path) -> Any:
        pyarrow_parquet = require("pyarrow.parquet", extra="tables", purpose="reading Parquet")
        # pre_buffer, the default of later versions, reads the whole file into memory. Texts stay
        # places in a list of different texts: one long text can stand in every row.
        return pyarrow_parquet.ParquetFile(
            path,
            buffer_size=_COLUMN_BUFFER_BYTES,
            pre_buffer=False,
            read_dictionary=self._texts or None,
        )

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        with self._open(self.path) as file:
            check_parquet(file.metadata, names, self.path.stat().st_size)
            yield from file.iter_batches(batch_size=rows, columns=names)


class ArrowFile(ArrowTable):
    """Arrow's file format (feather) or stream format, memory-mapped."""

    def __init__(self, path: Path) -> None:
        pyarrow = require("pyarrow", extra="tables", purpose="reading Arrow files")
        with pyarrow.memory_map(str(path)) as file:
            self._is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            with memoryview(file.read_buffer()) as content:
                check_arrow(content, is_stream=self._is_stream)
            file.seek(0)
            super().__init__(path, self._open(file).schema)

    def _open(self, file: Any, names: Sequence[str] | None = None) -> Any:
        from pyarrow import ipc

        fields = None
        if names is not None:
            places = {name: place for place, name in enumerate(self.names)}
            fields = sorted(places[name] for name in names)
        options = ipc.IpcReadOptions(included_fields=fields)
        return (ipc.open_stream if self._is_stream else ipc.open_file)(file, options=options)

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        import pyarrow

        with pyarrow.memory_map(str(self.path)) as file:
            reader = self._open(file, names)
            if self._is_stream:
                batches = iter(reader)
            else:
                batches = map(reader.get_batch, range(reader.num_record_batches))
            try:
                for batch in batches:
                    # Offsets and lengths in a damaged file may point outside of it.
                    batch.validate(full=True)
                    yield batch
            except pyarrow.ArrowMemoryError as error:
                raise InputError(
                    f"a block of the file asks for more memory than there is ({error}): damaged, "
                    "or written with too many rows in a block"
                ) from error


class CsvFile(ArrowTable):
    """A csv, compressed or not, read in blocks of bytes; what a column holds decides its type."""

    is_text = True

    def __init__(self, path: Path) -> None:
        pyarrow = require("pyarrow", extra="tables", purpose="reading CSV")
        self._is_compressed = find_ending(path) == ".csv.gz"
        self.path, self.kinds = path, {}
        self.names = self._read_header()
        self._schema = pyarrow.schema([])

    def _read_header(self) -> list[str]:
        """Read the names of the columns: the parser would hide a name given twice."""
        import csv

        opener = gzip.open if self._is_compressed else open
        with opener(self.path, "rt", encoding="utf-8-sig", newline="") as file:
            start = file.read(_MOST_HEADER)
        csv.field_size_limit(max(csv.field_size_limit(), _MOST_HEADER))
        lines = iter(start.splitlines(keepends=True))
        header = next(csv.reader(lines), [])
        if len(header) > MOST_COLUMNS:
            raise InputError(f"the table has more than {MOST_COLUMNS:,} columns")
        if len(start) == _MOST_HEADER and next(lines, None) is None:
            raise InputError(f"the first line is longer than {_MOST_HEADER:,} characters")
        return header

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return float64: scores are read as such."""
        return np.dtype(np.float64)

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        import pyarrow

        return self._parse(names, dict.fromkeys(names, pyarrow.float64()))

    def _parse(self, names: list[str], types: dict[str, Any]) -> Iterator[Any]:
        import pyarrow
        from pyarrow import csv

        block = max(_CSV_BLOCK_BYTES, _CSV_VALUE_BYTES * len(self.names))
        has_text = any(kind == pyarrow.string() for kind in types.values())
        source: Any = self.path
        with ExitStack() as stack:
            if self._is_compressed:
                source = stack.enter_context(BoundedGzip(self.path))
            try:
                yield from csv.open_csv(
                    source,
                    read_options=csv.ReadOptions(block_size=block),
                    # Only text can hold a line break, and the option is slow.
                    parse_options=csv.ParseOptions(
                        newlines_in_values=has_text or self._may_break_lines()
                    ),
                    convert_options=csv.ConvertOptions(column_types=types, include_columns=names),
                )
            except pyarrow.ArrowInvalid as error:
                if "conversion error" not in str(error):
                    raise
                raise InputError(f"scores and weights must be numbers: {error}") from error

    def _may_break_lines(self) -> bool:
        """Return whether columns may hold text, which may hold line breaks."""
        numbers = re.compile(
            r"(logit|prob|label)(_\d+)?|happened|correct|confidence|probability|weight|num_options"
        )
        return any(
            numbers.fullmatch(name) is None and self.kinds.get(name) != "number"
            for name in self.names
        )

    def read(self, names: Sequence[str]) -> tuple[int, dict[str, Column]]:
        """Read whole columns: numbers, text, or the narrowest type that holds a label."""
        import pyarrow

        ladder = [pyarrow.int64(), pyarrow.float64(), pyarrow.string()]
        fixed = {"number": pyarrow.float64(), "text": pyarrow.string()}
        labels = [name for name in names if self.kinds.get(name) not in fixed]
        for label_type in ladder:
            types = {name: fixed.get(self.kinds.get(name, ""), label_type) for name in names}
            try:
                num_rows, read = self._read_as(list(names), types)
                break
            except InputError:
                if label_type == ladder[-1] or not labels:
                    raise
        for name, column in read.items():
            if column.values.dtype.kind == "O":
                read[name] = _read_whole_numbers(column, is_text=self.kinds.get(name) == "text")
        return num_rows, read

    def _read_as(self, names: list[str], types: dict[str, Any]) -> tuple[int, dict[str, Column]]:
        return _read_batches(names, map(Batch.from_arrow, self._parse(names, types)))


def _read_whole_numbers(column: Column, *, is_text: bool) -> Column:
    """Return text as whole numbers if every value is written as one; empty text is missing."""
    values = column.values
    if is_text and all(map(_WHOLE_NUMBER.fullmatch, values)):
        return Column(values.astype(np.int64))
    missing = np.array([not text.strip() for text in values.tolist()])
    return Column(values, missing if missing.any() else None)


def write_table(contents: Contents, path: Path, ending: str) -> None:
    """Write columns of scores, labels or outcomes, and what else there is for each row."""
    pyarrow = require("pyarrow", extra="tables", purpose="writing tables")
    small = _small_columns(contents)
    names = [*_name_score_columns(contents), *small]
    notes = {"class_names": contents.class_names, "ignore_index": contents.ignore_index}
    if contents.task != "classes":
        notes = {"class_names": contents.class_names, "task": contents.task}
        notes["event"] = contents.event
    metadata = {b"calibrant": format_notes(notes).encode()}
    writer, schema = None, None
    with ExitStack() as stack:
        for columns in _column_batches(contents, small, widen=ending in TEXT_ENDINGS):
            arrays = [pyarrow.array(column) for column in columns]
            if writer is None:
                fields = [(name, array.type) for name, array in zip(names, arrays, strict=True)]
                schema = pyarrow.schema(fields, metadata=metadata)
                writer = stack.enter_context(_open_writer(path, schema, ending, stack))
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def list_columns(contents: Contents) -> dict[str, npt.NDArray[Any]]:
    """Return the columns that a table of the contents has, by name."""
    stored = contents.scores
    scores = as_numpy(stored.load() if isinstance(stored, FileScores) else stored)
    columns = [scores] if scores.ndim == 1 else list(scores.T)
    named = dict(zip(_name_score_columns(contents), columns, strict=True))
    return {**named, **_small_columns(contents)}


def outcome_name(contents: Contents) -> str:
    """Return what a file calls the outcomes of events: ``correct`` if that is the event."""
    return OUTCOMES[contents.event == "correct"]


def _name_score_columns(contents: Contents) -> list[str]:
    if contents.task == "events" and contents.kind == "probs":
        return ["confidence" if contents.event == "correct" else "probability"]
    stem = "logit" if contents.kind == "logits" else "prob"
    if contents.scores.ndim == 1:
        return [stem]
    return [f"{stem}_{k}" for k in range(contents.scores.shape[1])]


def _small_columns(contents: Contents) -> dict[str, npt.NDArray[Any]]:
    """Return every column but the scores, by name."""
    columns: dict[str, Any] = {}
    if contents.labels is not None:
        labels = as_numpy(contents.labels)
        if contents.task == "multilabel":
            columns.update({f"label_{k}": labels[:, k] for k in range(labels.shape[1])})
        else:
            name = outcome_name(contents) if contents.task == "events" else "label"
            columns[name] = labels
    columns |= {
        "id": contents.ids,
        "weight": contents.weights,
        "cluster": contents.clusters,
        "num_options": contents.num_options,
    }
    return {name: np.asarray(column) for name, column in columns.items() if column is not None}


def _column_batches(
    contents: Contents, small: Mapping[str, npt.NDArray[Any]], *, widen: bool
) -> Iterator[list[npt.NDArray[Any]]]:
    start = 0
    rows = max(_LEAST_ROWS, rows_per_block(contents.scores.shape, _BATCH_VALUES))
    for scores in iterate_scores(contents.scores, rows):
        chunk = as_numpy(scores)
        if widen:
            # float64 text reads back as the same number; the shortest float32 text does not.
            chunk = chunk.astype(np.float64)
        stop = start + len(chunk)
        columns = [chunk] if chunk.ndim == 1 else list(np.ascontiguousarray(chunk.T))
        columns += [column[start:stop] for column in small.values()]
        start = stop
        yield columns


def _open_writer(path: Path, schema: Any, ending: str, stack: ExitStack) -> Any:
    if ending == ".parquet":
        from pyarrow import parquet

        # Scores rarely repeat, so a dictionary costs time and saves nothing.
        return parquet.ParquetWriter(path, schema, use_dictionary=["label"])
    if ending == ".jsonl":
        return _JsonLinesWriter(path)
    if ending == ".csv":
        from pyarrow import csv

        return csv.CSVWriter(path, schema)
    if ending == ".csv.gz":
        from pyarrow import csv

        # With no time in the header, equal predictions give equal files.
        file = stack.enter_context(path.open("wb"))
        packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        return csv.CSVWriter(packed, schema)
    from pyarrow import ipc

    return ipc.new_file(str(path), schema)


class _JsonLinesWriter:
    """Write record batches as one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _JsonLinesWriter:
        self._file = self._path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write_batch(self, batch: Any) -> None:
        """Write the rows of a batch; a logit of an absent option is null."""
        for record in batch.to_pylist():
            plain = {
                key: None if isinstance(value, float) and not math.isfinite(value) else value
                for key, value in record.items()
            }
            self._file.write(json.dumps(plain, ensure_ascii=False) + "\n")
