"""The results: Parquet files in a folder, only ever added to, merged by copying files.

A file's name holds the digest of its content, so that a damaged one is known by sight: it is
set aside, and the run it was about counts as not measured.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.bench.run.locks import locked
from calibrant.bench.store.rows import SCHEMA, Row
from calibrant.bench.suite.spec import FAILED, MARK, SECONDS
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.core.files import write_file

if TYPE_CHECKING:
    import pandas as pd

IDENTITY = ["key", "part", "calibrator", "metric"]
NUMBERS = ("value", "seconds")  # columns that hardly repeat
# (part, calibrator, metric) of rows that say what was measured, with their time and value.
Marks = dict[tuple[str, ...], tuple[str, float]]
ALL = "all"  # in the place of a key, in the name of a file of many runs


class Store:
    """Rows of runs, in a folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        require("pyarrow", extra="bench", purpose="the store of results")
        self.folder = Path(folder)
        self._tables: dict[str, Any] = {}  # files do not change: each is read once
        self._marks: dict[str, dict[str, Marks]] = {}
        self._whole: tuple[list[str], pd.DataFrame] | None = None

    def add(self, key: str, rows: Sequence[Row] | Sequence[Mapping[str, Any]]) -> Path:
        """Write rows of one run, all or none, as a new file."""
        strange = {str(row["key"]) for row in rows} - {key}
        if strange or not rows:
            raise InputError(f"rows of run {key} expected, found {sorted(strange) or 'none'}")
        return self._write(key, _table(rows))

    def frame(self) -> pd.DataFrame:
        """Every result; of those of one figure the latest written."""
        read = dict(self._read())
        names = [path.name for path in read]
        if self._whole is None or self._whole[0] != names:
            self._whole = names, _frame(list(read.values()))
        return self._whole[1].copy()

    def done(self, key: str) -> set[tuple[str, str]]:
        """The (part, calibrator) pairs marked as measured."""
        found: set[tuple[str, str]] = set()
        for path in self.files():
            if path.name.startswith((f"{key}-", f"{ALL}-")):
                told = self._marks_of(path).get(key, {})
                found |= {(part, calibrator) for part, calibrator, metric in told if metric == MARK}
        return found

    def failed(self) -> dict[str, list[str]]:
        """By run, the marks of measurements that could not be made when last tried."""
        last: dict[str, dict[str, tuple[str, float]]] = {}
        for path in self.files():
            for key, told in self._marks_of(path).items():
                for (_, mark, metric), row in told.items():
                    if metric == FAILED:
                        before = last.setdefault(key, {}).get(mark, row)
                        last[key][mark] = max(before, row)
        found = {
            key: [mark for mark, (_, bad) in told.items() if bad] for key, told in last.items()
        }
        return {key: marks for key, marks in found.items() if marks}

    def files(self) -> list[Path]:
        """The files, in order of name; hidden ones and those set aside are none."""
        found = self.folder.glob("*.parquet")
        return sorted(path for path in found if not path.name.startswith("."))

    def take(self, other: Store | str | os.PathLike[str]) -> int:
        """Copy another store's files; the number of those that were new here."""
        source = other if isinstance(other, Store) else Store(other)
        count = 0
        for path in source.files():
            content = source._content(path)
            if content is not None:
                count += self.take_file(path.name, content)
        return count

    def take_file(self, name: str, content: bytes) -> bool:
        """Take in one file of another store; whether it is whole and was not here before."""
        if not _is_whole(name, content):
            warnings.warn(f"{name} is damaged where it comes from: not taken", stacklevel=2)
            return False
        target = self.folder / name
        if target.is_file():
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(target, content)
        return True

    def compact(self, *, light: bool = False) -> Path | None:
        """One file of many. A kill at any moment leaves every row in at least one file.

        ``light`` keeps figures in single precision and one time a run, its last: about a third
        of the bytes, for results that are published.
        """
        with locked(self.folder / ".compact.lock", wait=True):
            read = list(self._read())
            if len(read) < 2 and not (read and light):
                return None
            frame = _frame([table for _, table in read])
            target = self._write(ALL, _to_table(_lightened(frame) if light else frame))
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
            table = self._table_of(path)
            if table is not None:
                yield path, table

    def _table_of(self, path: Path) -> Any | None:
        if path.name not in self._tables:
            content = self._content(path)
            if content is None:
                return None
            self._tables[path.name] = _parsed(content)
        return self._tables[path.name]

    def _marks_of(self, path: Path) -> dict[str, Marks]:
        """By run, what a file says was measured, or could not be."""
        if path.name not in self._marks:
            table = self._table_of(path)
            if table is None:
                return {}
            import pyarrow
            import pyarrow.compute as compute

            found: dict[str, Marks] = {}
            said = compute.is_in(table.column("metric"), pyarrow.array([MARK, FAILED]))
            columns = ["key", "part", "calibrator", "metric", "written", "value"]
            for row in table.select(columns).filter(said).to_pylist():
                key, *place, written, value = row.values()
                told, here = found.setdefault(key, {}), (written, value)
                told[tuple(place)] = max(told.get(tuple(place), here), here)
            self._marks[path.name] = found
        return self._marks[path.name]

    def _content(self, path: Path) -> bytes | None:
        """A file's bytes; None of one that is gone (compacted meanwhile) or damaged."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        if _is_whole(path.name, content):
            return content
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
    key, _, digest = name.removesuffix(".parquet").rpartition("-")
    return bool(key) and digest == _digest(content) and _parsed(content) is not None


def _parsed(content: bytes) -> Any | None:
    """The table, in our columns; None of what is none, such as one of other columns."""
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        # One thread: a file is small, and a process may have been forked from one with threads.
        with parquet.ParquetFile(io.BytesIO(content), pre_buffer=False) as file:
            found = file.read(use_threads=False)
        return found.select(list(SCHEMA)).cast(_schema())
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
            raise InputError(f"a row has the columns {', '.join(SCHEMA)}; not so here: {odd}")
        for name, values in columns.items():
            values.append(row[name])
    return pyarrow.table(columns, schema=_schema())


def _to_table(frame: pd.DataFrame) -> Any:
    import pyarrow

    return pyarrow.Table.from_pandas(frame, schema=_schema(), preserve_index=False)


def _lightened(frame: pd.DataFrame) -> pd.DataFrame:
    single = {name: frame[name].astype("float32").astype("float64") for name in NUMBERS}
    # When a run ended says with what others it shared a machine.
    timed = frame["metric"].isin((SECONDS, "train_seconds"))
    last = frame.groupby("key")["written"].transform("max").where(~timed, frame["written"])
    return frame.assign(**single, written=last)


def _frame(tables: Sequence[Any]) -> pd.DataFrame:
    import pyarrow

    whole = pyarrow.concat_tables([_schema().empty_table(), *tables])
    frame: pd.DataFrame = whole.to_pandas()
    # Equal times are put in order by value, so that no order of files decides.
    frame = frame.sort_values(["written", *IDENTITY, "value"], kind="stable")
    frame = frame.drop_duplicates(IDENTITY, keep="last")
    return frame.sort_values(IDENTITY, kind="stable").reset_index(drop=True)
