"""The value that flows through everything: scores and labels, with what is known of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from calibrant.functional.errors import InputError, first
from calibrant.functional.rows import Array, as_numpy, rows_per_block
from calibrant.predictions import arrays
from calibrant.predictions.checks import check_labels, check_scores
from calibrant.predictions.sources import FileScores, reading
from calibrant.predictions.splitting import split_rows

# A view costs nothing, but whoever takes it may make an array of its size.
_VIEW_VALUES = 1 << 22


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Predictions:
    """What a classifier said of N rows, and what was true.

    Make one with ``from_logits``, ``from_probs``, ``from_model`` or ``read``: whether the
    numbers are logits or probabilities is always said, never guessed. Scores are (N,K); or
    (N,), a binary classifier's logit or probability of class 1; or dense, (N,K,...) with
    labels (N,...). Torch stays torch and NumPy stays NumPy; nothing is copied without need
    and the caller's arrays are never changed. Shapes and types are checked whenever one is
    made, values unless ``validate=False``.

    >>> import numpy as np
    >>> logits = np.array([[2.0, 0.1, -1.0], [0.3, 0.2, 0.9]])
    >>> Predictions.from_logits(logits, np.array([0, 2]), name="tiny")
    Predictions('tiny': 2 rows, 3 classes, logits, numpy float64)
    """

    scores: torch.Tensor | npt.NDArray[Any] | FileScores
    labels: torch.Tensor | npt.NDArray[Any]
    is_logits: bool = field(kw_only=True)
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)
    ids: npt.NDArray[Any] | None = field(default=None, kw_only=True)
    ignore_index: int | None = field(default=None, kw_only=True)
    name: str = field(default="predictions", kw_only=True)

    def __post_init__(self) -> None:
        scores = arrays.as_scores(self.scores, "logits" if self.is_logits else "probabilities")
        num_rows, num_classes = scores.shape[0], 2 if scores.ndim == 1 else scores.shape[1]
        for key, value in (
            ("scores", scores),
            ("labels", arrays.as_labels(self.labels, scores)),
            ("class_names", arrays.as_class_names(self.class_names, num_classes)),
            ("ids", arrays.as_ids(self.ids, num_rows)),
            ("ignore_index", arrays.as_ignore_index(self.ignore_index)),
        ):
            object.__setattr__(self, key, value)  # frozen for everyone else

    @classmethod
    def from_logits(
        cls,
        logits: object,
        labels: object,
        *,
        class_names: Sequence[str] | None = None,
        ids: object = None,
        ignore_index: int | None = None,
        name: str = "predictions",
        validate: bool = True,
    ) -> Predictions:
        """From logits: unnormalised scores, or log-probabilities."""
        return cls._checked(
            logits, labels, True, class_names, ids, ignore_index, name, validate=validate
        )

    @classmethod
    def from_probs(
        cls,
        probs: object,
        labels: object,
        *,
        class_names: Sequence[str] | None = None,
        ids: object = None,
        ignore_index: int | None = None,
        name: str = "predictions",
        validate: bool = True,
    ) -> Predictions:
        """From probabilities: in [0, 1], each row summing to one."""
        return cls._checked(
            probs, labels, False, class_names, ids, ignore_index, name, validate=validate
        )

    @classmethod
    def _checked(
        cls,
        scores: Any,
        labels: Any,
        is_logits: bool,
        class_names: Any,
        ids: Any,
        ignore_index: int | None,
        name: str,
        *,
        validate: bool,
    ) -> Predictions:
        made = cls(
            scores,
            labels,
            is_logits=is_logits,
            class_names=class_names,
            ids=ids,
            ignore_index=ignore_index,
            name=name,
        )
        if validate:
            check_labels(made.labels, made.num_classes, made.ignore_index)
            if isinstance(made.scores, FileScores):
                made.scores.check(is_logits=is_logits)
            else:
                check_scores(made.scores, is_logits=is_logits)
        return made

    @classmethod
    def from_model(
        cls,
        model: Callable[..., Any],
        loader: Iterable[Any],
        *,
        device: str | torch.device | None = None,
        progress: bool = True,
        outputs: Literal["logits", "probs"] = "logits",
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        name: str = "predictions",
        validate: bool = True,
    ) -> Predictions:
        """Run a model over a loader of (input, target) pairs or dicts, and gather on the CPU.

        The model runs in evaluation mode, without gradients, where it is or on ``device``;
        afterwards every submodule's mode, and the device, are as they were. A dict batch has
        its target under ``label``, ``labels``, ``target`` or ``targets``. An output may be a
        tensor, a tuple whose first item is the tensor, or have ``logits`` (Hugging Face) or
        ``out`` (torchvision). Outputs of shape (N,1) are a binary score.
        """
        from calibrant.predictions.model import collect

        if outputs not in ("logits", "probs"):
            raise InputError(f"outputs must be 'logits' or 'probs', found {outputs!r}")
        scores, labels = collect(model, loader, device=device, progress=progress, outputs=outputs)
        is_logits = outputs == "logits"
        return cls._checked(
            scores, labels, is_logits, class_names, None, ignore_index, name, validate=validate
        )

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        labels: object = None,
        kind: Literal["logits", "probs"] | None = None,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        name: str | None = None,
        lazy: bool | None = None,
        validate: bool = True,
    ) -> Predictions:
        """Read ``.npz .npy .safetensors .pt .parquet .arrow .feather`` or ``.csv``.

        Keys are ``logits`` or ``probs``, and ``labels`` (optional ``class_names``, ``ids``,
        ``ignore_index``); columns ``logit_k`` or ``prob_k`` (binary: ``logit``, ``prob``),
        ``label`` and optional ``id``. A bare array needs ``kind``. ``labels`` names a file of
        labels, or is an array of them. Above 1 GiB, or with ``lazy=True``, scores stay in the
        file and are read, and checked, in chunks; labels are in memory. Of the others, ``.npz``
        is always read whole, and ``.safetensors`` and ``.pt`` are memory-mapped torch tensors.
        Pickled objects are never loaded. ``example:NAME`` is one of `examples`.
        """
        from calibrant.predictions.reading import ENDINGS, existing_file, read_contents

        if str(path).startswith("example:"):
            from calibrant.predictions.examples import of_path

            return of_path(str(path))
        file = existing_file(path, ENDINGS)
        with reading(file):
            found = read_contents(file, labels=labels, kind=kind, lazy=lazy)
            return cls._checked(
                found.scores,
                found.labels,
                found.kind == "logits",
                found.class_names if class_names is None else class_names,
                found.ids,
                found.ignore_index if ignore_index is None else ignore_index,
                file.stem if name is None else name,
                validate=validate,
            )

    def write(self, path: str | os.PathLike[str], *, labels: bool = True) -> Path:
        """Write to the format of the ending, whole or not at all; see ``read``.

        An ``.npy`` holds the scores alone: the labels go beside it as ``NAME.labels.npy``,
        where ``read`` finds them. ``labels=False`` leaves them out.
        """
        from calibrant.predictions.writing import write

        return write(self, path, labels=labels)

    @property
    def array(self) -> Array:
        """The scores as one array; an error while they are still in their file."""
        if isinstance(self.scores, FileScores):
            raise InputError("the scores are still in their file: use batches() or in_memory()")
        return self.scores

    @property
    def num_rows(self) -> int:
        """N: rows, or images of dense predictions; rows to be ignored included."""
        return int(self.scores.shape[0])

    @property
    def num_classes(self) -> int:
        """K; 2 for a binary score."""
        return 2 if self.is_binary else int(self.scores.shape[1])

    @property
    def is_binary(self) -> bool:
        """Whether scores are (N,): one number a row, for class 1."""
        return self.scores.ndim == 1

    @property
    def is_dense(self) -> bool:
        """Whether scores are (N,K,...) and labels (N,...)."""
        return self.scores.ndim > 2

    @property
    def is_lazy(self) -> bool:
        """Whether the scores are still in their file."""
        return isinstance(self.scores, FileScores)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        shape = " × ".join(str(size) for size in self.scores.shape[2:])
        kind = "logits" if self.is_logits else "probabilities"
        if isinstance(self.scores, FileScores):
            held = f"{self.scores.dtype} in {self.scores.path.name}"
        elif isinstance(self.scores, torch.Tensor):
            held = f"{self.scores.dtype} on {self.scores.device}"
        else:
            held = f"numpy {self.scores.dtype}"
        parts = [
            f"{self.num_rows} row{'s' if self.num_rows > 1 else ''}{f' of {shape}' * bool(shape)}",
            "binary" if self.is_binary else f"{self.num_classes} classes",
            kind,
            held,
        ]
        return f"Predictions({self.name!r}: {', '.join(parts)})"

    def batches(self, rows: int | None = None) -> Iterator[tuple[Array, Array]]:
        """Scores and int64 labels of consecutive rows, at most ``rows`` at a time.

        Arrays in memory give views; a file is read, and checked, as it goes. Rows whose label
        is ``ignore_index`` are there like any other.
        """
        if rows is not None and (isinstance(rows, bool) or rows < 1):
            raise InputError(f"rows must be at least 1, found {rows!r}")
        return self._batches(rows)

    def _batches(self, rows: int | None) -> Iterator[tuple[Array, Array]]:
        scores = self.scores
        if isinstance(scores, FileScores):
            start = 0
            for chunk in scores.chunks(rows):
                yield chunk, _int64(self.labels[start : start + len(chunk)])
                start += len(chunk)
            return
        step = rows or rows_per_block(scores.shape, _VIEW_VALUES)
        for start in range(0, self.num_rows, step):
            yield scores[start : start + step], _int64(self.labels[start : start + step])

    def split(
        self, fraction: float = 0.5, *, seed: int = 0, stratify: bool = True
    ) -> tuple[Predictions, Predictions]:
        """Two disjoint parts that together are all rows, each in the original order.

        The first part has ``fraction`` of the rows, or that many rows if it is a whole number.
        Stratified, each class is shared as evenly as rounding allows; dense predictions are
        split along N, unstratified. The same seed gives the same rows for torch and NumPy.
        """
        strata = as_numpy(self.labels) if stratify and not self.is_dense else None
        one, two = split_rows(self.num_rows, fraction, seed=seed, strata=strata)
        return self.take(one), self.take(two)

    def take(self, indices: object) -> Predictions:
        """Some rows, by number (or by a truth value for each row), in the order given.

        Scores in a file stay there if the numbers ascend, else those rows are read now.
        """
        wanted = self._row_numbers(indices)
        ids = None if self.ids is None else self.ids[wanted]
        scores: Array | FileScores
        if isinstance(self.scores, FileScores):
            scores = self.scores.take(wanted)
        else:
            scores = _take(self.scores, wanted)
        return replace(self, scores=scores, labels=_take(self.labels, wanted), ids=ids)

    def _row_numbers(self, indices: Any) -> npt.NDArray[np.int64]:
        given = as_numpy(indices) if isinstance(indices, torch.Tensor) else np.asarray(indices)
        if given.dtype == bool and given.shape == (self.num_rows,):
            given = np.flatnonzero(given)
        if given.size == 0:
            raise InputError("no rows were asked for: the indices are empty")
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise InputError(
                f"indices must be whole numbers of shape (n,), or a truth value for each of the "
                f"{self.num_rows} rows; found {given.dtype} of shape {given.shape}"
            )
        numbers = given.astype(np.int64)
        outside = numbers[(numbers < 0) | (numbers >= self.num_rows)]
        if len(outside):
            raise InputError(
                f"fewer rows than asked for: {self.num_rows} rows, asked for {first(outside)}"
            )
        return numbers

    def in_memory(self) -> Predictions:
        """The same, with scores still in a file read (and checked) into memory."""
        if not isinstance(self.scores, FileScores):
            return self
        return replace(self, scores=self.scores.load())


def _take(array: Array, indices: npt.NDArray[np.int64]) -> Array:
    if isinstance(array, torch.Tensor):
        return array[torch.from_numpy(indices).to(array.device)]
    taken: npt.NDArray[Any] = array[indices]
    return taken


def _int64(labels: Array) -> Array:
    if isinstance(labels, torch.Tensor):
        return labels.to(torch.int64)
    return labels.astype(np.int64, copy=False)
