"""Refuse files that announce far more than they hold, before any memory is taken.

A compressed file of a few kilobytes can announce more values than the machine has memory for.
Real scores are noisy and hardly shrink, so what a file announces is held against its size.
"""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from calibrant.core.errors import InputError

FREE_BYTES = 1 << 28  # every file may announce as much
MOST_GROWTH = 200  # beyond that, bytes announced for each byte of the file
MOST_COLUMNS = 1 << 20
_PARTS = 1 << 20  # record batches or members of a file


def check_growth(announced: int, file_size: int, what: str = "the file") -> None:
    """Raise an error if so many bytes are too many for a file of this size.

    Args:
        announced: The bytes that reading takes.
        file_size: The size of the file.
        what: What announces them, for the error.
    """
    if announced > most_bytes(file_size):
        raise InputError(
            f"{what} announces {announced:,} bytes, but has {file_size:,}: more than "
            f"{MOST_GROWTH} times its size is refused; if it is yours, write it uncompressed, as "
            ".npy"
        )


def most_bytes(file_size: int) -> int:
    """Return how many bytes a file of this size may announce."""
    return max(FREE_BYTES, MOST_GROWTH * file_size)


class BoundedGzip(gzip.GzipFile):
    """A packed file that may not grow beyond all measure."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")
        self._size, self._read = path.stat().st_size, 0

    def read(self, size: int | None = -1) -> bytes:
        """Read and count."""
        most = most_bytes(self._size) - self._read + 1
        content = super().read(most if size is None or size < 0 else min(size, most))
        self._read += len(content)
        check_growth(self._read, self._size, "the packed content")
        return content


def check_zip(path: Path) -> None:
    """Raise an error if the members of a zip archive announce too much."""
    with zipfile.ZipFile(path) as packed:
        entries = packed.infolist()
    check_growth(sum(entry.file_size for entry in entries), path.stat().st_size, "the archive")


def check_arrow(content: memoryview, *, is_stream: bool) -> None:
    """Raise an error if the compressed record batches of an Arrow file announce too much.

    The library takes the memory that a buffer announces before it unpacks it.

    Args:
        content: The whole file.
        is_stream: Whether it has Arrow's stream format; else the file format.
    """
    announced = 0
    try:
        places = _list_stream(content) if is_stream else _list_blocks(content)
        for count, (start, metadata) in enumerate(places):
            if count > _PARTS:
                raise InputError(f"the file has more than {_PARTS:,} record batches")
            announced += _measure_message(content, start, metadata)
            check_growth(announced, len(content))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"damaged or cut short: {error}") from error


def _list_stream(content: memoryview) -> Iterator[tuple[int, int]]:
    """Yield where each message of a stream starts, and the length of its metadata."""
    place = 0
    while place + 4 <= len(content):
        start, length, prefix = place, _read(content, "<i", place), 4
        if length == -1:
            length, prefix = _read(content, "<i", place + 4), 8
        if length <= 0:
            return
        message = _Table.at_root(content, start + prefix)
        yield start, prefix + length
        place = start + prefix + length + max(0, message.number("<q", 3))


def _list_blocks(content: memoryview) -> Iterator[tuple[int, int]]:
    """Yield where each message of a file starts, and the length of its metadata."""
    length = _read(content, "<i", len(content) - 10)
    if not 0 < length <= len(content) - 10:
        raise InputError("damaged or cut short: the footer is not there")
    footer = _Table.at_root(content, len(content) - 10 - length)
    for field in (2, 3):  # dictionaries, record batches
        start, count = footer.vector(field)
        for number in range(count):
            place, metadata = struct.unpack_from("<qi", content, start + 24 * number)
            if place < 0 or metadata < 0:
                raise InputError("damaged: a block lies outside of the file")
            yield place, metadata


def _measure_message(content: memoryview, start: int, metadata: int) -> int:
    """Return the bytes that the record batch of a message takes in memory."""
    prefix = 8 if _read(content, "<i", start) == -1 else 4
    message = _Table.at_root(content, start + prefix)
    kind, batch = message.number("<B", 1), message.table(2)
    if kind == 2 and batch is not None:  # a dictionary holds a record batch
        batch = batch.table(1)
    if batch is None or kind not in (2, 3):
        return 0
    buffers, count = batch.vector(2)
    packed, total = batch.table(3) is not None, 0
    for number in range(count):
        place, length = struct.unpack_from("<qq", content, buffers + 16 * number)
        if packed and length >= 8 and place >= 0:
            unpacked = _read(content, "<q", start + metadata + place)
            length = length if unpacked == -1 else unpacked
        if length < 0:
            raise InputError("damaged: a buffer has a negative length")
        total += length
    return total


def _read(content: memoryview, form: str, place: int) -> int:
    if place < 0:
        raise InputError("damaged: it points outside of itself")
    value: int = struct.unpack_from(form, content, place)[0]
    return value


class _Table:
    """A table of Flatbuffers, the format of Arrow's metadata."""

    def __init__(self, content: memoryview, place: int) -> None:
        self._content, self._place = content, place
        self._fields = place - _read(content, "<i", place)
        self._size = _read(content, "<H", self._fields)

    @classmethod
    def at_root(cls, content: memoryview, place: int) -> _Table:
        return cls(content, place + _read(content, "<I", place))

    def _find(self, field: int) -> int | None:
        """Return where a field lies; None if it is left out."""
        if 4 + 2 * field + 2 > self._size:
            return None
        offset = _read(self._content, "<H", self._fields + 4 + 2 * field)
        return self._place + offset if offset else None

    def number(self, form: str, field: int) -> int:
        place = self._find(field)
        return 0 if place is None else _read(self._content, form, place)

    def table(self, field: int) -> _Table | None:
        place = self._find(field)
        if place is None:
            return None
        return _Table(self._content, place + _read(self._content, "<I", place))

    def vector(self, field: int) -> tuple[int, int]:
        """Return where the entries of a list start, and their number."""
        place = self._find(field)
        if place is None:
            return 0, 0
        place += _read(self._content, "<I", place)
        return place + 4, min(_read(self._content, "<I", place), len(self._content))


def check_parquet(metadata: Any, names: Sequence[str], file_size: int) -> None:
    """Raise an error if the footer of a Parquet file announces too many values.

    Repeated values take no room in such a file, so that 40 bytes can announce a billion.

    Args:
        metadata: The file's metadata, as pyarrow has it.
        names: The columns to read.
        file_size: The size of the file.
    """
    check_growth(8 * max(0, metadata.num_rows) * len(names), file_size)
    sizes = (metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
    check_growth(sum(max(0, size) for size in sizes), file_size)
