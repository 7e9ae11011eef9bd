"""The contents of a file of predictions, and scores that stay in their file until they are read.

Readers return `Contents` and writers take them, so neither imports `Predictions`.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import Array, row_blocks, rows_per_block
from calibrant.predictions.checks import ScoreCheck

# A file, a glob, a folder of Parquet files, or a list of these.
Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
# About 4 MB of float32: large enough to read fast; decoders hold several at once.
CHUNK_VALUES = 1 << 20
# A view costs nothing, but its user may make an array of its size.
_VIEW_VALUES = 1 << 22


@contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Turn every error inside into an InputError that names the file."""
    try:
        yield
    except InputError as error:
        message = str(error)
        if not message.startswith(f"{path}: "):  # readers call each other
            message = f"{path}: {message}"
        raise InputError(message) from error
    except MemoryError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        message = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(
            f"{path}: damaged, cut short, or not the format of its ending {path.suffix}: {message}"
        ) from error


def check_file(path: str | os.PathLike[str], endings: tuple[str, ...]) -> Path:
    """Return the path if it is a file with one of the endings; raise if not."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{file}: is a directory, expected a file ({', '.join(endings)})")
    if not file.exists():
        raise InputError(f"{file}: no such file")
    if file.suffix.lower() not in endings and not file.name.lower().endswith(endings):
        advice = {
            ".json": "; write one object a line (.jsonl)",
            ".tsv": "; write commas for tabs (.csv)",
        }
        raise InputError(
            f"{file}: unsupported ending {file.suffix or '(none)'!r}, "
            f"expected {'one of ' * (len(endings) > 1)}{', '.join(endings)}"
            f"{advice.get(file.suffix.lower(), '')}"
        )
    return file


class FileScores(ABC):
    """Logits or probabilities in a file: shape and dtype are known, values are read on demand.

    Chunks are NumPy arrays in file order. Their values are checked while they are read once
    ``check`` was called.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self._make_check: Callable[[], ScoreCheck] | None = None

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def check(self, *, is_logits: bool, absent: bool = False, sums: bool = True) -> None:
        """Check the values of every chunk that is read from now on; see `ScoreCheck`."""
        self._make_check = partial(ScoreCheck, is_logits=is_logits, absent=absent, sums=sums)

    @abstractmethod
    def _chunks(self, rows: int) -> Iterator[npt.NDArray[Any]]:
        """Yield consecutive chunks of at most ``rows`` rows."""

    def chunks(self, rows: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """Yield all rows in file order, in chunks of at most ``rows`` rows."""
        start = 0
        with explain_read_errors(self.path):
            for chunk in self._chunks(rows or rows_per_block(self.shape, CHUNK_VALUES)):
                if self._make_check is not None:
                    check = self._make_check()
                    for offset, block in row_blocks(chunk):
                        check.update(block, start + offset)
                    check.finish()
                start += len(chunk)
                yield chunk
            if start != len(self):
                raise InputError(f"the file announces {len(self)} rows but holds {start}")

    def load(self) -> npt.NDArray[Any]:
        """Read all rows into one array."""
        whole = np.empty(self.shape, dtype=self.dtype)
        start = 0
        for chunk in self.chunks():
            whole[start : start + len(chunk)] = chunk
            start += len(chunk)
        return whole

    def take(self, indices: npt.NDArray[np.int64]) -> FileScores | npt.NDArray[Any]:
        """Take some rows: left in the file if ascending, else read in one pass."""
        if np.all(np.diff(indices) > 0):
            return FileRows(self, indices)
        ascending, back = np.unique(indices, return_inverse=True)
        rows: npt.NDArray[Any] = FileRows(self, ascending).load()[back.reshape(-1)]
        return rows


def iterate_scores(scores: Array | FileScores, rows: int | None = None) -> Iterator[Array]:
    """Yield consecutive rows, at most ``rows`` at a time: views of an array, chunks of a file."""
    if isinstance(scores, FileScores):
        yield from scores.chunks(rows)
        return
    step = rows or rows_per_block(scores.shape, _VIEW_VALUES)
    for start in range(0, len(scores), step):
        yield scores[start : start + step]


class FileRows(FileScores):
    """Ascending rows of other scores in a file."""

    def __init__(self, base: FileScores, indices: npt.NDArray[np.int64]) -> None:
        super().__init__(base.path, (len(indices), *base.shape[1:]), base.dtype)
        self._base, self._indices = base, indices

    def chunks(self, rows: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """Yield the chosen rows in chunks of at most ``rows``; the base checks them."""
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
            # Mapped again for each chunk, so that the system can drop pages already read.
            part = _map_npy(self.path)[start : start + rows]
            yield np.array(part, dtype=self.dtype, order="C")


def _map_npy(path: Path) -> npt.NDArray[Any]:
    mapped: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


KINDS = ("logits", "probs")
OPTIONAL_KEYS = ("class_names", "ids", "ignore_index")
# The names of the scores and of the outcomes of events; each pair but the first is for events.
EVENT_SCORES = ("probability", "confidence")
OUTCOMES = ("happened", "correct")
_NOTE_KEYS = ("task", "event")
# What else a file of arrays may hold for each row: one name per field of `Contents`.
ROW_KEYS = {"weights": "weights", "weight": "weights", "clusters": "clusters"}
ROW_KEYS |= {"cluster": "clusters", "num_options": "num_options"}

# What lies beside an .npy, as NAME.labels.npy.
SIDECARS = ("labels", *OUTCOMES, "multilabels", "weights", "clusters", "num_options")


@dataclass
class Contents:
    """The members of a file; ``kind`` is ``logits``, ``probs``, or None in a bare array's file."""

    scores: Array | FileScores
    kind: str | None
    labels: Any = None
    class_names: Any = None
    ids: Any = None
    ignore_index: Any = None
    name: str = "predictions"
    task: str = "classes"
    event: str | None = None
    weights: Any = None
    clusters: Any = None
    num_options: Any = None
    extra: dict[str, npt.NDArray[Any]] = field(default_factory=dict)  # other columns asked for
    label_column: str = "label"  # what the file calls its labels

    def take(self, rows: npt.NDArray[np.int64]) -> Contents:
        """Keep some rows, given in ascending order."""

        def pick(values: Any) -> Any:
            if values is None:
                return None
            if isinstance(values, FileScores):
                return values.take(rows)
            if isinstance(values, torch.Tensor):
                return values[torch.from_numpy(rows).to(values.device)]
            return np.asarray(values)[rows]

        fields = ("scores", "labels", "ids", "weights", "clusters", "num_options")
        taken = {name: pick(getattr(self, name)) for name in fields}
        return replace(
            self, **taken, extra={key: pick(column) for key, column in self.extra.items()}
        )


def find_keys(keys: Collection[str]) -> tuple[str, str | None, str]:
    """Return which keys hold scores and labels (None if none does), and the task they imply."""
    expected = (
        "expected 'logits' or 'probs' with 'labels', or 'probability' or 'confidence' with "
        "'happened' or 'correct', and optionally "
        + ", ".join(map(repr, (*OPTIONAL_KEYS, "weights", "clusters", "num_options")))
    )
    if not keys:
        raise InputError(f"the file is empty; {expected}")
    mismatch = f"found {first((repr(key) for key in sorted(keys)), 12)}; {expected}"
    scores = [key for key in (*KINDS, *EVENT_SCORES) if key in keys]
    outcomes = [key for key in ("labels", *OUTCOMES) if key in keys]
    for several in (scores, outcomes):
        if len(several) > 1:
            raise InputError(f"the file holds both {' and '.join(several)}: keep one of them")
    if not scores:
        raise InputError(f"the file holds neither logits nor probs: {mismatch}")
    known = {*scores, *outcomes, *OPTIONAL_KEYS, *ROW_KEYS, *_NOTE_KEYS}
    unknown = set(keys) - known
    if unknown:
        names = first(repr(key) for key in sorted(unknown))
        raise InputError(f"unknown keys {names}: rename or drop them; {mismatch}")
    outcome = outcomes[0] if outcomes else None
    is_event = scores[0] in EVENT_SCORES or outcome in OUTCOMES
    return scores[0], outcome, "events" if is_event else "classes"


def agree_kind(in_file: str | None, stated: str | None) -> str:
    """Return the kind that the file or the caller gives; raise if they contradict."""
    if stated is not None and stated not in KINDS:
        raise InputError(f"kind must be 'logits' or 'probs', found {stated!r}")
    kind = in_file or stated
    if kind is None:
        raise InputError(
            "nothing in the file says whether the scores are logits or probabilities: "
            "say kind='logits' or kind='probs'"
        )
    if stated not in (None, kind):
        raise InputError(
            f"kind={stated!r} was given, but the names in the file say {kind!r}: "
            f"rename them if they are wrong"
        )
    return kind


def format_notes(notes: Mapping[str, Any]) -> str:
    """Format class names and other notes as JSON, for formats with metadata."""
    return json.dumps({key: value for key, value in notes.items() if value is not None})


def parse_notes(text: str | bytes | None) -> dict[str, Any]:
    """Parse the JSON of `format_notes`; None gives no notes."""
    if text is None:
        return {}
    notes = json.loads(text)
    if not isinstance(notes, dict):
        raise InputError(f"the calibrant metadata must be a JSON object, found {notes!r}")
    return notes
