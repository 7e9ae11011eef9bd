"""Parquet, arrow and csv as streams of record batches of chosen columns."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.functional.errors import InputError, first

# Small, because there is one such buffer for each of possibly a thousand columns.
_COLUMN_BUFFER_BYTES = 1 << 16
# The parser holds some thirty blocks at once; one must hold a line, however many columns.
_CSV_BLOCK_BYTES = 1 << 20
_CSV_VALUE_BYTES = 64
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")


def open_table(path: Path) -> TableFile:
    """The table file of this path's ending."""
    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return ParquetFile(path)
    return CsvFile(path) if suffix == ".csv" else ArrowFile(path)


class TableFile(ABC):
    """A file of columns: their names and types, and their rows in batches."""

    def __init__(self, path: Path, schema: Any) -> None:
        self.path, self._schema = path, schema
        self.names: list[str] = list(schema.names)

    @property
    def notes(self) -> bytes | None:
        """The JSON text this library keeps beside the columns."""
        metadata = self._schema.metadata or {}
        return metadata.get(b"calibrant")

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """NumPy's type for a column; ``object`` where it has none."""
        try:
            dtype: np.dtype[Any] = np.dtype(self._schema.field(name).type.to_pandas_dtype())
        except (NotImplementedError, TypeError):
            return np.dtype(object)
        return dtype

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """Record batches of these columns with at most ``rows`` rows."""
        for batch in self._batches(list(names), rows):
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def columns(self, names: Sequence[str]) -> tuple[int, dict[str, npt.NDArray[Any]]]:
        """How many rows there are, and these columns whole."""
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
        """Record batches of these columns, of any size."""


class ParquetFile(TableFile):
    """Read row group by row group."""

    def __init__(self, path: Path) -> None:
        with self._open(path) as file:
            super().__init__(path, file.schema_arrow)

    @staticmethod
    def _open(path: Path) -> Any:
        import pyarrow.parquet

        # Buffering ahead, the default of later versions, reads the whole file into memory.
        return pyarrow.parquet.ParquetFile(path, buffer_size=_COLUMN_BUFFER_BYTES, pre_buffer=False)

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        with self._open(self.path) as file:
            yield from file.iter_batches(batch_size=rows, columns=names)


class ArrowFile(TableFile):
    """Arrow's file format (also called feather) or its stream format, memory-mapped."""

    def __init__(self, path: Path) -> None:
        import pyarrow

        with pyarrow.memory_map(str(path)) as file:
            self._is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            super().__init__(path, self._open(file).schema)

    def _open(self, file: Any, names: Sequence[str] | None = None) -> Any:
        from pyarrow import ipc

        wanted = None if names is None else sorted(self.names.index(name) for name in names)
        options = ipc.IpcReadOptions(included_fields=wanted)
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
    """Read in blocks of bytes; a csv has no types, so the column names decide them."""

    def __init__(self, path: Path) -> None:
        import csv

        import pyarrow

        # The header by itself: a name given twice must be seen before a parser hides it.
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
                # Only text can hold a line break, and allowing for one is slower.
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
        """As of any table; ids are whole numbers when each is written just so, else text."""
        num_rows, read = super().columns(names)
        if "id" in read and all(map(_WHOLE_NUMBER.fullmatch, read["id"])):
            read["id"] = read["id"].astype(np.int64)
        return num_rows, read
