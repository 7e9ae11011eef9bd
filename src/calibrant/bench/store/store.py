"""The store of results: Parquet files in a folder, which is merged by copying files.

Files are added, never changed. A file's name has the digest of its content: a damaged file is
renamed, and its run counts as not measured.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.bench.store.rows import SCHEMA, Row
from calibrant.bench.suite.spec import FAILED, MARK, SECONDS
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.core.files import hold_lock, write_file
from calibrant.predictions.limits import check_parquet

if TYPE_CHECKING:
    import pandas as pd

IDENTITY = ["key", "part", "calibrator", "metric"]
NUMBERS = ("value", "seconds")  # columns that hardly repeat
_TEXTS = [name for name, kind in SCHEMA.items() if kind == "string"]
# (part, calibrator, metric) of rows that record measurements, with their time and value.
Marks = dict[tuple[str, ...], tuple[str, float]]
ALL = "all"  # in place of a key, in the name of a file with many runs


class Store:
    """Rows of runs, in a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("pyarrow", extra="bench", purpose="the store of results")
        self.folder = Path(folder)
        self._tables: dict[str, Any] = {}  # files do not change: each is read once
        self._marks: dict[str, dict[str, Marks]] = {}
        self._whole: tuple[list[str], pd.DataFrame] | None = None

    def add(self, key: str, rows: Sequence[Row] | Sequence[Mapping[str, Any]]) -> Path:
        """Write rows of a run, all or none, as a new file."""
        strange = {str(row["key"]) for row in rows} - {key}
        if strange or not rows:
            raise InputError(f"rows of run {key} expected, found {sorted(strange) or 'none'}")
        return self._write(key, _table(rows))

    def frame(self) -> pd.DataFrame:
        """Return all results; of repeated results the latest."""
        read = dict(self._read())
        names = [path.name for path in read]
        if self._whole is None or self._whole[0] != names:
            self._whole = names, _frame(list(read.values()))
        return self._whole[1].copy()

    def done(self, key: str) -> set[tuple[str, str]]:
        """Return the (part, calibrator) pairs of a run marked as measured."""
        pairs: set[tuple[str, str]] = set()
        for path in self.files():
            if path.name.startswith((f"{key}-", f"{ALL}-")):
                marks = self._read_marks(path).get(key, {})
                pairs |= {
                    (part, calibrator) for part, calibrator, metric in marks if metric == MARK
                }
        return pairs

    def failed(self) -> dict[str, list[str]]:
        """Return the marks of measurements that failed when last tried, by run."""
        last: dict[str, dict[str, tuple[str, float]]] = {}
        for path in self.files():
            for key, marks in self._read_marks(path).items():
                for (_, mark, metric), row in marks.items():
                    if metric == FAILED:
                        before = last.setdefault(key, {}).get(mark, row)
                        last[key][mark] = max(before, row)
        failed = {
            key: [mark for mark, (_, bad) in marks.items() if bad] for key, marks in last.items()
        }
        return {key: marks for key, marks in failed.items() if marks}

    def files(self) -> list[Path]:
        """Return the files in order of name, without hidden and renamed ones."""
        paths = self.folder.glob("*.parquet")
        return sorted(path for path in paths if not path.name.startswith("."))

    def take(self, other: Store | str | os.PathLike[str]) -> int:
        """Copy another store's files; return the number of new files."""
        source = other if isinstance(other, Store) else Store(other)
        count = 0
        for path in source.files():
            content = source._read_content(path)
            if content is not None:
                count += self.take_file(path.name, content)
        return count

    def take_file(self, name: str, content: bytes) -> bool:
        """Copy a file of another store; return whether it is whole and new."""
        if not _is_whole(name, content):
            warnings.warn(f"{name} is damaged at its source, and was not copied", stacklevel=2)
            return False
        target = self.folder / name
        if target.is_file():
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(target, content)
        return True

    def compact(self, *, light: bool = False) -> Path | None:
        """Join all files into one; a kill meanwhile loses no row.

        With ``light``, figures have single precision and every run a single time, its last. This
        takes about a third of the bytes, for results that are published.
        """
        with hold_lock(self.folder / ".compact.lock", wait=True):
            read = list(self._read())
            if len(read) < 2 and not (read and light):
                return None
            frame = _frame([table for _, table in read])
            target = self._write(ALL, _to_table(_lighten(frame) if light else frame))
            for path, _ in read:
                if path != target:
                    path.unlink(missing_ok=True)
            return target

    def _write(self, key: str, table: Any) -> Path:
        import pyarrow.parquet as parquet

        sink = io.BytesIO()
        texts = [field.name for field in table.schema if field.name not in NUMBERS]
        encoding = dict.fromkeys(NUMBERS, "BYTE_STREAM_SPLIT")
        parquet.write_table(
            table, sink, compression="zstd", use_dictionary=texts, column_encoding=encoding
        )
        content = sink.getvalue()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}-{_digest(content)}.parquet"
        write_file(path, content)
        return path

    def _read(self) -> Iterator[tuple[Path, Any]]:
        for path in self.files():
            table = self._read_table(path)
            if table is not None:
                yield path, table

    def _read_table(self, path: Path) -> Any | None:
        if path.name not in self._tables:
            whole = self._read_whole(path)
            if whole is None:
                return None
            self._tables[path.name] = whole[1]
        return self._tables[path.name]

    def _read_marks(self, path: Path) -> dict[str, Marks]:
        """Return the marks of a file by run, both of finished and of failed measurements."""
        if path.name not in self._marks:
            table = self._read_table(path)
            if table is None:
                return {}
            import pyarrow
            import pyarrow.compute as compute

            by_key: dict[str, Marks] = {}
            metric = table.column("metric").cast(pyarrow.string())
            is_mark = compute.is_in(metric, pyarrow.array([MARK, FAILED]))
            columns = ["key", "part", "calibrator", "metric", "written", "value"]
            for row in table.select(columns).filter(is_mark).to_pylist():
                key, *place, written, value = row.values()
                marks, mark = by_key.setdefault(key, {}), (written, value)
                marks[tuple(place)] = max(marks.get(tuple(place), mark), mark)
            self._marks[path.name] = by_key
        return self._marks[path.name]

    def _read_content(self, path: Path) -> bytes | None:
        """Read a file; None if it is gone (compacted meanwhile) or damaged."""
        whole = self._read_whole(path)
        return None if whole is None else whole[0]

    def _read_whole(self, path: Path) -> tuple[bytes, Any] | None:
        """Read a file and its table; None if it is gone (compacted meanwhile) or damaged."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        table = _parse_whole(path.name, content)
        if table is not None:
            return content, table
        aside = path.with_name(f"{path.name}.damaged")
        try:
            os.replace(path, aside)
        except FileNotFoundError:
            return None  # another process set it aside
        warnings.warn(
            f"{path} is damaged and set aside as {aside.name}: its run will be measured again",
            stacklevel=3,
        )
        return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _is_whole(name: str, content: bytes) -> bool:
    return _parse_whole(name, content) is not None


def _parse_whole(name: str, content: bytes) -> Any | None:
    """Return the table of a file whose name has the digest of its content; None if damaged."""
    key, _, digest = name.removesuffix(".parquet").rpartition("-")
    return _parse_file(content) if key and digest == _digest(content) else None


def _parse_file(content: bytes) -> Any | None:
    """Parse a table with the columns of `SCHEMA`; None if it has others, or is no table.

    Texts stay places in a list of different texts: a run's settings stand in all of its rows.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        # A single thread, because a forked process must not start pyarrow's threads.
        with parquet.ParquetFile(
            io.BytesIO(content), pre_buffer=False, read_dictionary=_TEXTS
        ) as file:
            check_parquet(file.metadata, list(SCHEMA), len(content))
            table = file.read(use_threads=False)
        kinds = [_find_memory_type(table.schema.field(name)) for name in SCHEMA]
        schema = pyarrow.schema(list(zip(SCHEMA, kinds, strict=True)))
        return table.select(list(SCHEMA)).cast(schema)
    except (pyarrow.ArrowException, OSError, KeyError, ValueError):
        return None


def _schema() -> Any:
    import pyarrow

    return pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in SCHEMA.items()])


def _table(rows: Iterable[Mapping[str, Any]]) -> Any:
    import pyarrow

    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA}
    for row in rows:
        if set(row) != set(SCHEMA):
            odd = sorted(set(row) ^ set(SCHEMA))
            raise InputError(
                f"a row has the columns {', '.join(SCHEMA)}; missing or unknown here: {odd}"
            )
        for name, values in columns.items():
            values.append(row[name])
    return pyarrow.table(columns, schema=_schema())


def _to_table(frame: pd.DataFrame) -> Any:
    import pyarrow

    return pyarrow.Table.from_pandas(frame, schema=_schema(), preserve_index=False)


def _lighten(frame: pd.DataFrame) -> pd.DataFrame:
    single = {name: frame[name].astype("float32").astype("float64") for name in NUMBERS}
    # These times say which runs shared a machine.
    timed = frame["metric"].isin((SECONDS, "train_seconds"))
    last = frame.groupby("key")["written"].transform("max").where(~timed, frame["written"])
    return frame.assign(**single, written=last)


def _find_memory_type(field: Any) -> Any:
    """Return the type of a column in memory."""
    import pyarrow

    kind = getattr(pyarrow, SCHEMA[field.name])()
    is_text = field.name in _TEXTS and pyarrow.types.is_dictionary(field.type)
    return pyarrow.dictionary(pyarrow.int32(), kind) if is_text else kind


def _frame(tables: Sequence[Any]) -> pd.DataFrame:
    """Join tables, ordered by identity; of rows of one identity the latest stays."""
    import pandas as pd

    texts = {name: _join_texts(tables, name) for name in _TEXTS}
    numbers = {
        name: np.concatenate(
            [np.empty(0, dtype=kind), *(t.column(name).to_numpy() for t in tables)]
        )
        for name, kind in SCHEMA.items()
        if name not in _TEXTS
    }
    # Lists of texts are sorted: their places sort as they do. Equal times are ordered by value,
    # so that the order of files does not matter.
    identity = np.zeros(len(numbers["value"]), dtype=np.int64)
    for name in IDENTITY:
        names, place = texts[name]
        identity = identity * max(len(names), 1) + place
    order = np.lexsort((numbers["value"], texts["written"][1], identity))
    last = np.ones(len(order), dtype=bool)
    np.not_equal(identity[order[1:]], identity[order[:-1]], out=last[:-1])
    order = order[last]
    columns: dict[str, Any] = {}
    for name in SCHEMA:
        if name in _TEXTS:
            names, place = texts[name]
            # Objects: rows share their texts, which a column of text would copy.
            columns[name] = pd.Series(names[place[order]], dtype=object)
        else:
            columns[name] = numbers[name][order]
    return pd.DataFrame(columns)


def _join_texts(tables: Sequence[Any], name: str) -> tuple[Any, Any]:
    """Return the different texts of a column, sorted, and the place of each row in them."""
    import pyarrow

    chunks = [
        chunk if pyarrow.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        for table in tables
        for chunk in table.column(name).chunks
    ]
    lists = [chunk.dictionary.to_pylist() for chunk in chunks]
    names = sorted(set().union(*lists)) if lists else []
    number = {text: place for place, text in enumerate(names)}
    places = [np.empty(0, dtype=np.int32)]
    for chunk, chunk_texts in zip(chunks, lists, strict=True):
        moved = np.array([number[text] for text in chunk_texts], dtype=np.int32)
        places.append(moved[chunk.indices.to_numpy(zero_copy_only=False)])
    return np.array(names, dtype=object), np.concatenate(places)
