"""Predictions in many Parquet files, here or in a store of objects, read piece by piece.

A *piece* is some row groups of one file: what one worker sums. Files count in the order of their
paths and rows in the order of the files, so that every row has a number that no worker changes.
Paths may have a scheme: ``s3://``, ``gs://``, ``hdfs://`` and ``abfs://`` are opened by pyarrow,
any other by fsspec.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy.typing as npt

from calibrant.core.errors import InputError, first
from calibrant.core.extras import MissingExtra, require
from calibrant.functional.arrays import rows_per_block
from calibrant.functional.blocks import warn_of_probabilities
from calibrant.predictions.columns import ColumnNames, choose_columns
from calibrant.predictions.files import Paths, agree_kind, explain_read_errors, parse_notes
from calibrant.predictions.limits import check_parquet
from calibrant.predictions.read import find_files
from calibrant.predictions.tables import (
    ArrowTable,
    TableFile,
    TableSet,
    find_partitions,
    read_table,
)
from calibrant.predictions.value import Predictions

PIECE_ROWS = 1 << 22  # row groups of a file join one piece up to about so many rows
_CHUNK_VALUES = 1 << 22  # scores in memory at a time
_LEAST_ROWS = 4096
_BUFFER_BYTES = 1 << 16
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_ARROW_SCHEMES = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_MAGIC = re.compile(r"[*?\[]")


class File(NamedTuple):
    """A Parquet file, here or elsewhere."""

    name: str  # for messages: without keys or options of the address
    address: str | None  # what opens its file system; None for a file of this machine
    place: str  # its path there
    partitions: dict[str, str | None]  # ``key=value`` in the names of its folders


class Piece(NamedTuple):
    """Some row groups of one file."""

    file: File
    row_groups: tuple[int, ...]
    start: int  # the number of its first row among all rows
    num_rows: int

    @property
    def path(self) -> str:
        """Return the name of the file."""
        return self.file.name

    @property
    def partitions(self) -> dict[str, str | None]:
        """Return the ``key=value`` pairs in the names of the file's folders."""
        return self.file.partitions


@dataclass(frozen=True)
class Shards:
    """Parquet files that are one set of predictions."""

    name: str
    files: tuple[File, ...] = field(repr=False)
    pieces: tuple[Piece, ...] = field(repr=False)

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all files."""
        return sum(piece.num_rows for piece in self.pieces)

    @property
    def are_local(self) -> bool:
        """Return whether all files have plain paths."""
        return all(file.address is None for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read rows from shards.

    Args:
        columns: The columns that the caller names.
        kind: ``logits``, ``probs``, or None for what the files say.
        ignore_index: The label of rows that do not count; None for what the files say.
    """

    columns: ColumnNames
    kind: str | None = None
    ignore_index: int | None = None


class Chunk(NamedTuple):
    """Consecutive rows of a piece."""

    predictions: Predictions
    start: int  # the number of its first row among all rows
    num_rows: int  # with rows that were left out for want of a label
    extra: dict[str, npt.NDArray[Any]]
    has_positive: bool  # whether the label that means that the event happened was seen
    like_probabilities: bool  # whether these logits look like probabilities


def list_shards(path: Paths, *, piece_rows: int = PIECE_ROWS) -> Shards:
    """List Parquet files in the order of their paths, and cut them into pieces.

    Only the footers are read.

    Args:
        path: A file, a glob in which ``**`` stands for any folders, a folder, or a list of these;
            each may have a scheme.
        piece_rows: Row groups of a file join one piece up to so many rows.
    """
    entries = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not entries:
        raise InputError("give a file, a glob or a folder of Parquet files; found an empty list")
    texts = [os.fspath(entry) for entry in entries]
    files = [file for text in texts for file in _expand(text)]
    names = [file.name for file in files]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(texts) > 1 else []
    if twice:
        raise InputError(f"files are given twice: {first(twice)}")
    wrong = [name for name in names if not name.lower().endswith(".parquet")]
    if wrong:
        raise InputError(
            f"shards are Parquet files, found {first(wrong)}: convert them with "
            "calibrant.Predictions.read(FILE).write('FILE.parquet')"
        )
    pieces: list[Piece] = []
    start = 0
    for file in files:
        with _open_parquet(file) as (parquet, _):
            sizes = [
                parquet.metadata.row_group(number).num_rows
                for number in range(parquet.metadata.num_row_groups)
            ]
        for numbers in _join_groups(sizes, piece_rows):
            rows = sum(sizes[number] for number in numbers)
            pieces.append(Piece(file, numbers, start, rows))
            start += rows
    if start == 0:
        raise InputError(f"{_hide(texts[0])}: the files hold no rows")
    return Shards(_name(texts[0]), tuple(files), tuple(pieces))


def _name(text: str) -> str:
    """Return what reports call a path: its last part without a glob."""
    parts = [part for part in PurePosixPath(_hide(text)).parts if not _MAGIC.search(part)]
    return parts[-1].removesuffix(".parquet") if parts else "shards"


def _join_groups(sizes: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield consecutive row groups of together at most ``most`` rows, at least one each."""
    numbers: list[int] = []
    rows = 0
    for number, size in enumerate(sizes):
        if size == 0:
            continue
        if numbers and rows + size > most:
            yield tuple(numbers)
            numbers, rows = [], 0
        numbers.append(number)
        rows += size
    if numbers:
        yield tuple(numbers)


def _expand(text: str) -> list[File]:
    """Return the files of a path in order."""
    match = _SCHEME.match(text)
    if match is None or match[1] == "file":
        root, files = find_files(text if match is None else unquote(text[match.end() :]))
        return [
            File(str(file), None, str(file), dict(find_partitions(file, root))) for file in files
        ]
    system, place = open_filesystem(text)
    from pyarrow import fs

    shown, scheme = _hide(text), match[0]
    with _explain_remote(text):
        magic = _MAGIC.search(place)
        base = place.rstrip("/") if magic is None else place[: magic.start()].rpartition("/")[0]
        if magic is None:
            info = system.get_file_info(place)
            if info.type == fs.FileType.File:
                return [File(scheme + place, text, place, {})]
            if info.type == fs.FileType.NotFound:
                raise InputError(f"{shown}: no such file or folder")
        selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
        paths = [entry.path for entry in system.get_file_info(selector) if entry.is_file]
    if magic is None:
        paths = [path for path in paths if _is_data(path, base)]
    else:
        wanted = re.compile(_translate_glob(place))
        paths = [path for path in paths if wanted.fullmatch(path)]
    if not paths:
        raise InputError(f"{shown}: no {'file matches' if magic else '.parquet file lies there'}")
    return [
        File(scheme + path, text, path, dict(find_partitions(Path(path), Path(place))))
        for path in sorted(paths)
    ]


def _hide(text: str) -> str:
    """Return an address without its keys and options, which may be secret."""
    match = _SCHEME.match(text)
    if match is None:
        return text
    rest = text[match.end() :]
    if match[1] in _ARROW_SCHEMES:
        rest = rest.partition("?")[0]
    host, slash, path = rest.partition("/")
    return match[0] + host.rpartition("@")[2] + slash + path


def _is_data(path: str, base: str) -> bool:
    parts = path[len(base) :].strip("/").split("/")
    return path.lower().endswith(".parquet") and not any(p.startswith(("_", ".")) for p in parts)


def _translate_glob(pattern: str) -> str:
    """Return the regular expression of a glob in which ``**`` stands for any folders."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = ""
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^\]]+\]|.", pattern):
        if token.startswith("[") and len(token) > 1:
            text += token.replace("[!", "[^", 1)
        else:
            text += parts.get(token, re.escape(token))
    return text


def open_filesystem(text: str) -> tuple[Any, str]:
    """Return pyarrow's file system of an address, and the path in it, which may hold a glob.

    Args:
        text: An address, with its scheme.
    """
    fs = require("pyarrow.fs", extra="tables", purpose="reading Parquet")
    match = _SCHEME.match(text)
    assert match is not None
    if match[1] in _ARROW_SCHEMES:
        with _explain_remote(text):
            address, sign, options = text.partition("?")
            # A glob is no valid part of an address.
            magic = re.search(r"[*\[]", address)
            head, rest = (address, "") if magic is None else _split(address, magic.start())
            system, place = fs.FileSystem.from_uri(head + sign + options)
            return system, f"{place.rstrip('/')}/{rest}" if rest else place
    try:
        import fsspec
    except ImportError:
        raise MissingExtra(
            f"{_hide(text)}: reading {match[1]}:// needs fsspec and its library of {match[1]}: "
            f"pip install 'fsspec[{match[1]}]'"
        ) from None
    with _explain_remote(text):
        try:
            system, place = fsspec.core.url_to_fs(text)
        except ImportError as error:
            raise MissingExtra(f"{_hide(text)}: {error}") from None
        return fs.PyFileSystem(fs.FSSpecHandler(system)), place


def _split(path: str, end: int) -> tuple[str, str]:
    """Split an address before its first folder that holds a glob."""
    head, _, name = path[:end].rpartition("/")
    return head, name + path[end:]


@contextmanager
def _explain_remote(text: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:300] or type(error).__name__
        shown = _hide(text)
        raise InputError(f"{shown}: cannot be reached: {message.replace(text, shown)}") from error


@contextmanager
def _open_parquet(file: File) -> Iterator[tuple[Any, int]]:
    """Open a Parquet file; yield it with its size in bytes."""
    parquet = require("pyarrow.parquet", extra="tables", purpose="reading Parquet")
    is_local = file.address is None
    with explain_read_errors(Path(file.place)) if is_local else _explain_remote(file.name):
        from pyarrow import fs

        system = fs.LocalFileSystem() if file.address is None else open_filesystem(file.address)[0]
        # Far away few large reads are fast; here pre_buffer would read the whole file at once.
        buffer = _BUFFER_BYTES if is_local else 0
        with (
            system.open_input_file(file.place) as source,
            parquet.ParquetFile(source, buffer_size=buffer, pre_buffer=not is_local) as opened,
        ):
            yield opened, source.size()


class _ChunkTable(ArrowTable):
    """A record batch in memory."""

    may_stay = False

    def __init__(self, path: str, batch: Any) -> None:
        super().__init__(Path(path), batch.schema)
        self._batch = batch

    def _batches(self, names: list[str], rows: int) -> Iterator[Any]:
        yield self._batch.select(names)


def read_piece(piece: Piece, reading: Reading) -> Iterator[Iterator[Chunk]]:
    """Yield the chunks of each row group of a piece.

    Args:
        piece: Some row groups of a file.
        reading: The columns, and what they hold.
    """
    start = piece.start
    with _open_parquet(piece.file) as (file, size):
        schema = file.schema_arrow
        names = _choose_names(schema, piece, reading)
        check_parquet(file.metadata, names, size)
        rows = rows_per_block((file.metadata.num_rows, len(names)), _CHUNK_VALUES)
        for group in piece.row_groups:
            yield _read_group(file, group, max(rows, _LEAST_ROWS), names, start, piece, reading)
            start += file.metadata.row_group(group).num_rows


def read_first(shards: Shards, reading: Reading) -> Chunk:
    """Read the first rows of the first piece, to see what the shards hold.

    Args:
        shards: The shards.
        reading: The columns, and what they hold.
    """
    piece = shards.pieces[0]
    with _open_parquet(piece.file) as (file, size):
        names = _choose_names(file.schema_arrow, piece, reading)
        check_parquet(file.metadata, names, size)
        group = piece.row_groups[0]
        chunks = _read_group(file, group, _LEAST_ROWS, names, 0, piece, reading)
        return next(iter(chunks))


def _choose_names(schema: Any, piece: Piece, reading: Reading) -> list[str]:
    """Return the columns of the file that are needed."""
    partitions = [key for key in piece.partitions if key not in schema.names]
    notes = parse_notes((schema.metadata or {}).get(b"calibrant"))
    names = [*schema.names, *partitions]
    chosen = choose_columns(names, reading.columns, notes, piece.partitions)
    if chosen.task == "multilabel" or chosen.num_options is not None:
        what = "many labels a row" if chosen.task == "multilabel" else "rows with options"
        raise InputError(
            f"{piece.path}: shards hold classes or events, found {what}: evaluate them without "
            "--on (on=)"
        )
    wanted = {*chosen.scores, *chosen.small} - {chosen.id}
    return [name for name in schema.names if name in wanted]


def _read_group(
    file: Any,
    group: int,
    rows: int,
    names: list[str],
    start: int,
    piece: Piece,
    reading: Reading,
) -> Iterator[Chunk]:
    for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=names):
        if batch.num_rows:
            yield _read_chunk(batch, start, piece, reading)
            start += batch.num_rows


def _read_chunk(batch: Any, start: int, piece: Piece, reading: Reading) -> Chunk:
    columns, has_positive = reading.columns, True
    if columns.pos_label is not None:
        batch, columns, has_positive = _find_positives(batch, columns, piece)
    chunk = _ChunkTable(piece.path, batch)
    table: TableFile = chunk
    if piece.partitions:
        chunk.partitions = piece.partitions
        table = TableSet(Path(piece.path), [chunk])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        contents = read_table(table, columns, largest=sys.maxsize)
        contents.kind = agree_kind(contents.kind, reading.kind)
        predictions = Predictions._from_contents(
            contents, columns, reading.ignore_index, None, True
        )
        caught.clear()
        if predictions.is_logits:
            warn_of_probabilities(predictions.array, stacklevel=2)
        like_probabilities = bool(caught)
    return Chunk(
        predictions, start, batch.num_rows, contents.extra, has_positive, like_probabilities
    )


def _find_positives(
    batch: Any, columns: ColumnNames, piece: Piece
) -> tuple[Any, ColumnNames, bool]:
    """Replace the labels of events by whether they are the positive one.

    Not every piece needs to hold an event, which the reader of a whole file insists on.
    """
    import pyarrow

    notes = parse_notes((batch.schema.metadata or {}).get(b"calibrant"))
    names = [*batch.schema.names, *(k for k in piece.partitions if k not in batch.schema.names)]
    chosen = choose_columns(names, replace(columns, id=None), notes, piece.partitions)
    if chosen.task != "events":
        return batch, replace(columns, pos_label=None), True
    label = chosen.labels[0]
    place = batch.schema.names.index(label)
    column = batch.column(place)
    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    wanted = str(columns.pos_label)
    flags = [None if value is None else str(value) == wanted for value in column.to_pylist()]
    array = pyarrow.array(flags, type=pyarrow.bool_())
    # RecordBatch.set_column came with pyarrow 16.
    schema = batch.schema.set(place, pyarrow.field(label, pyarrow.bool_()))
    arrays = [*batch.columns[:place], array, *batch.columns[place + 1 :]]
    batch = pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
    return batch, replace(columns, pos_label=None), any(flags)
