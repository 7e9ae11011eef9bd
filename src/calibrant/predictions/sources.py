"""Scores that stay in their file and are read in chunks of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.functional.errors import InputError
from calibrant.functional.rows import row_blocks, rows_per_block
from calibrant.predictions.checks import ScoreCheck

# About 4 MB of float32: large enough to read well, and what decodes a format holds several.
CHUNK_VALUES = 1 << 20


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong inside into an InputError that names the file."""
    try:
        yield
    except InputError as error:
        # Readers call one another; the file is named once.
        told = str(error)
        raise InputError(told if told.startswith(f"{path}: ") else f"{path}: {told}") from error
    except MemoryError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(
            f"{path}: damaged, cut short, or not the format of its ending {path.suffix}: {told}"
        ) from error


class FileScores(ABC):
    """Logits or probabilities in a file: shape and dtype known, values read as they are asked for.

    Chunks are NumPy arrays of at most the rows asked for, in file order. Their values are
    checked on the way once ``check`` has said what they are.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self._is_logits: bool | None = None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def check(self, *, is_logits: bool) -> None:
        """From now on, check the values of every chunk that is read."""
        self._is_logits = is_logits

    @abstractmethod
    def _chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Consecutive chunks of at most ``rows`` rows."""

    def chunks(self, rows: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """All rows in file order, in chunks of at most ``rows`` rows."""
        start = 0
        with reading(self.path):
            for chunk in self._chunks(rows or rows_per_block(self.shape, CHUNK_VALUES)):
                if self._is_logits is not None:
                    check = ScoreCheck(is_logits=self._is_logits)
                    for offset, block in row_blocks(chunk):
                        check.update(block, start + offset)
                    check.finish()
                start += len(chunk)
                yield chunk
            if start != len(self):
                raise InputError(f"{len(self)} rows were announced, {start} found")

    def load(self) -> npt.NDArray[Any]:
        """All rows as one array in memory."""
        whole = np.empty(self.shape, dtype=self.dtype)
        start = 0
        for chunk in self.chunks():
            whole[start : start + len(chunk)] = chunk
            start += len(chunk)
        return whole

    def take(self, indices: npt.NDArray[np.int64]) -> FileScores | npt.NDArray[Any]:
        """Some rows: still in the file when ascending, else gathered in one pass."""
        if np.all(np.diff(indices) > 0):
            return RowsOf(self, indices)
        ascending, back = np.unique(indices, return_inverse=True)
        gathered: npt.NDArray[Any] = RowsOf(self, ascending).load()[back.reshape(-1)]
        return gathered


class RowsOf(FileScores):
    """Ascending rows of a larger source."""

    def __init__(self, base: FileScores, indices: npt.NDArray[np.int64]) -> None:
        super().__init__(base.path, (len(indices), *base.shape[1:]), base.dtype)
        self._base, self._indices = base, indices

    def chunks(self, rows: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """The chosen rows, in chunks of at most ``rows``; the base checks and names the file."""
        start = 0
        for chunk in self._base.chunks(rows):
            stop = start + len(chunk)
            low, high = np.searchsorted(self._indices, (start, stop))
            if high > low:
                yield chunk[self._indices[low:high] - start]
            start = stop

    def _chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        return self.chunks(rows)


class NpyScores(FileScores):
    """A memory-mapped ``.npy``."""

    def __init__(self, path: Path) -> None:
        array = _map_npy(path)
        super().__init__(path, array.shape, array.dtype.newbyteorder("="))

    def _chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        for start in range(0, len(self), rows):
            # Mapped anew for each chunk, so that pages already read can be given back.
            part = _map_npy(self.path)[start : start + rows]
            yield np.array(part, dtype=self.dtype, order="C")


def _map_npy(path: Path) -> npt.NDArray[Any]:
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped
