"""Tables of predictions (parquet, arrow, csv), read and written in batches of rows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.core.errors import InputError, first
from calibrant.core.extras import require
from calibrant.functional.arrays import as_numpy, rows_per_block
from calibrant.predictions.files import (
    Contents,
    FileScores,
    format_notes,
    iterate_scores,
    parse_notes,
)

TABLE_ENDINGS = (".parquet", ".arrow", ".feather", ".csv")
_INDEX = ("", "Unnamed: 0", "__index_level_0__")  # pandas' names of row numbers
_COLUMN = re.compile(r"(logit|prob)(?:_(0|[1-9]\d*))?")
_KIND = {"logit": "logits", "prob": "probs"}
_EXPECTED = (
    "expected logit_0, logit_1, ... or prob_0, prob_1, ... (or one column logit or prob for a "
    "binary score), label, and optionally id"
)
# Small: there may be a thousand columns, each with a buffer.
_COLUMN_BUFFER_BYTES = 1 << 16
# The parser holds about thirty blocks; each must hold a whole line.
_CSV_BLOCK_BYTES = 1 << 20
_CSV_VALUE_BYTES = 64
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
# A batch becomes a row group; each column of a group costs a hundred bytes of footer.
_BATCH_VALUES = 1 << 22
_LEAST_ROWS = 10_000


def read_table(path: Path) -> Contents:
    """Read labels and ids, which are small; leave the scores in the file."""
    table = open_table(path)
    kind, columns, is_binary = find_score_columns(table.names)
    small = [name for name in ("label", "id") if name in table.names]
    num_rows, read = table.columns(small or columns[:1])
    if num_rows == 0:
        raise InputError("the table is empty: 0 rows")
    notes = parse_notes(table.notes)
    return Contents(
        scores=TableScores(table, columns, num_rows, is_binary=is_binary),
        kind=kind,
        labels=read["label"] if "label" in small else None,
        class_names=notes.get("class_names"),
        ids=read["id"] if "id" in small else None,
        ignore_index=notes.get("ignore_index"),
    )


def find_score_columns(names: Sequence[str]) -> tuple[str, list[str], bool]:
    """Return the kind, the score columns in class order, and whether one column is binary."""
    mismatch = f"found columns {first((repr(name) for name in names), 12)}; {_EXPECTED}"
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"columns found more than once: {first(twice)}")
    matches = {name: _COLUMN.fullmatch(name) for name in names}
    scores = {name: match for name, match in matches.items() if match}
    kinds = sorted({match[1] for match in scores.values()})
    if len(kinds) == 2:
        raise InputError("the table holds both logits and probs: keep the columns of one")
    if not kinds:
        raise InputError(f"no columns of logits or probabilities: {mismatch}")
    known = ("label", "id", *_INDEX)
    unknown = [name for name in names if name not in scores and name not in known]
    if unknown:
        shown = first(repr(name) for name in unknown)
        raise InputError(f"unknown columns {shown}: rename or drop them; {mismatch}")
    stem = kinds[0]
    if stem in scores:
        if len(scores) > 1:
            raise InputError(f"column {stem!r} (binary) beside {stem}_k: keep one form; {mismatch}")
        return _KIND[stem], [stem], True
    present = {int(match[2]) for match in scores.values()}
    missing = [f"{stem}_{k}" for k in range(max(present) + 1) if k not in present]
    if missing:
        raise InputError(
            f"columns missing between {stem}_0 and {stem}_{max(present)}: {first(missing)}"
        )
    return _KIND[stem], [f"{stem}_{k}" for k in range(len(present))], False


class TableScores(FileScores):
    """The score columns of a table."""

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
            raise InputError(f"score columns must be numbers, found {first(wrong)}")
        dtype = np.result_type(*types)
        super().__init__(table.path, shape, dtype if dtype.kind == "f" else np.dtype(np.float64))
        self._table, self._columns, self._is_binary = table, columns, is_binary

    def _chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        for batch in self._table.batches(self._columns, rows):
            chunk = np.empty((len(self._columns), batch.num_rows), dtype=self.dtype)
            for row, name in zip(chunk, self._columns, strict=True):
                row[:] = batch.column(name).to_numpy(zero_copy_only=False)
            yield chunk[0] if self._is_binary else np.ascontiguousarray(chunk.T)


def open_table(path: Path) -> TableFile:
    """Open a table; the ending chooses the format."""
    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return ParquetFile(path)
    return CsvFile(path) if suffix == ".csv" else ArrowFile(path)


class TableFile(ABC):
    """A file of named, typed columns, read in batches of rows."""

    def __init__(self, path: Path, schema: Any) -> None:
        self.path, self._schema = path, schema
        self.names: list[str] = list(schema.names)

    @property
    def notes(self) -> bytes | None:
        """Return the JSON notes in the metadata, or None."""
        metadata = self._schema.metadata or {}
        return metadata.get(b"calibrant")

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return NumPy's dtype of a column; ``object`` where NumPy has none."""
        try:
            dtype: np.dtype[Any] = np.dtype(self._schema.field(name).type.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            return np.dtype(object)
        return dtype

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield record batches of these columns with at most ``rows`` rows."""
        for batch in self._batches(list(names), rows):
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def columns(self, names: Sequence[str]) -> tuple[int, dict[str, npt.NDArray[Any]]]:
        """Read whole columns; return the number of rows and the columns by name."""
        parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        num_rows = 0
        for batch in self.batches(names, 1 << 20):
            for name in names:
                column = batch.column(name)
                if column.null_count:
                    empty = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
                    rows = first(empty + num_rows)
                    raise InputError(f"column {name!r} has missing values (first rows: {rows})")
                parts[name].append(np.array(column.to_numpy(zero_copy_only=False)))
            num_rows += batch.num_rows
        return num_rows, {name: np.concatenate(part) for name, part in parts.items() if part}

    @abstractmethod
    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        """Yield record batches of these columns, of any size."""


class ParquetFile(TableFile):
    """A parquet file, read by row group."""

    def __init__(self, path: Path) -> None:
        with self._open(path) as file:
            super().__init__(path, file.schema_arrow)

    @staticmethod
    def _open(path: Path) -> Any:
        pyarrow_parquet = require("pyarrow.parquet", extra="tables", purpose="reading Parquet")
        # pre_buffer, the default of later versions, reads the whole file into memory.
        return pyarrow_parquet.ParquetFile(path, buffer_size=_COLUMN_BUFFER_BYTES, pre_buffer=False)

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        with self._open(self.path) as file:
            yield from file.iter_batches(batch_size=rows, columns=names)


class ArrowFile(TableFile):
    """Arrow's file format (feather) or stream format, memory-mapped."""

    def __init__(self, path: Path) -> None:
        pyarrow = require("pyarrow", extra="tables", purpose="reading Arrow files")
        with pyarrow.memory_map(str(path)) as file:
            self._is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            super().__init__(path, self._open(file).schema)

    def _open(self, file: Any, names: Sequence[str] | None = None) -> Any:
        from pyarrow import ipc

        fields = None if names is None else sorted(self.names.index(name) for name in names)
        options = ipc.IpcReadOptions(included_fields=fields)
        return (ipc.open_stream if self._is_stream else ipc.open_file)(file, options=options)

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        import pyarrow

        with pyarrow.memory_map(str(self.path)) as file:
            reader = self._open(file, names)
            if self._is_stream:
                yield from reader
            else:
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)


class CsvFile(TableFile):
    """A csv, read in blocks of bytes; the column names decide the types."""

    def __init__(self, path: Path) -> None:
        import csv

        pyarrow = require("pyarrow", extra="tables", purpose="reading CSV")
        # Read the header here: the parser would hide a name given twice.
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
        fields = []
        for name in header:
            is_score = name.startswith(("logit", "prob"))
            whole = pyarrow.string() if name == "id" else pyarrow.int64()
            fields.append((name, pyarrow.float64() if is_score else whole))
        super().__init__(path, pyarrow.schema(fields))

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        from pyarrow import ArrowInvalid, csv

        types = {name: self._schema.field(name).type for name in names}
        block = max(_CSV_BLOCK_BYTES, _CSV_VALUE_BYTES * len(self.names))
        try:
            yield from csv.open_csv(
                self.path,
                read_options=csv.ReadOptions(block_size=block),
                # Only text can hold a line break, and the option is slow.
                parse_options=csv.ParseOptions(newlines_in_values="id" in self.names),
                convert_options=csv.ConvertOptions(column_types=types, include_columns=names),
            )
        except ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
            raise InputError(
                f"labels must be whole numbers (3, not 3.0) and scores numbers: {error}"
            ) from error

    def columns(self, names: Sequence[str]) -> tuple[int, dict[str, npt.NDArray[Any]]]:
        """Read whole columns; ids become whole numbers if every id is written as one."""
        num_rows, read = super().columns(names)
        if "id" in read and all(map(_WHOLE_NUMBER.fullmatch, read["id"])):
            read["id"] = read["id"].astype(np.int64)
        return num_rows, read


def write_table(contents: Contents, path: Path, ending: str) -> None:
    """Write columns logit_k or prob_k (or logit, prob), label, and id where there are ids."""
    pyarrow = require("pyarrow", extra="tables", purpose="writing tables")
    stem = "logit" if contents.kind == "logits" else "prob"
    names = [stem]
    if contents.scores.ndim > 1:
        names = [f"{stem}_{k}" for k in range(contents.scores.shape[1])]
    if contents.labels is not None:
        names.append("label")
    if contents.ids is not None:
        names.append("id")
    notes = {"class_names": contents.class_names, "ignore_index": contents.ignore_index}
    metadata = {b"calibrant": format_notes(notes).encode()}
    writer, schema = None, None
    with ExitStack() as stack:
        for columns in _column_batches(contents, widen=ending == ".csv"):
            arrays = [pyarrow.array(column) for column in columns]
            if writer is None:
                fields = [(name, array.type) for name, array in zip(names, arrays, strict=True)]
                schema = pyarrow.schema(fields, metadata=metadata)
                writer = stack.enter_context(_open_writer(path, schema, ending))
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def _column_batches(contents: Contents, *, widen: bool) -> Iterator[list[npt.NDArray[Any]]]:
    start = 0
    labels = None if contents.labels is None else as_numpy(contents.labels)
    rows = max(_LEAST_ROWS, rows_per_block(contents.scores.shape, _BATCH_VALUES))
    for scores in iterate_scores(contents.scores, rows):
        chunk = as_numpy(scores)
        if widen:
            # float64 text reads back as the same number; the shortest float32 text does not.
            chunk = chunk.astype(np.float64)
        stop = start + len(chunk)
        columns = [chunk] if chunk.ndim == 1 else list(np.ascontiguousarray(chunk.T))
        columns += [each[start:stop] for each in (labels, contents.ids) if each is not None]
        start = stop
        yield columns


def _open_writer(path: Path, schema: Any, ending: str) -> Any:
    if ending == ".parquet":
        from pyarrow import parquet

        # Scores rarely repeat, so a dictionary costs time and saves nothing.
        return parquet.ParquetWriter(path, schema, use_dictionary=["label"])
    if ending == ".csv":
        from pyarrow import csv

        return csv.CSVWriter(path, schema)
    from pyarrow import ipc

    return ipc.new_file(str(path), schema)
