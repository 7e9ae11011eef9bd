"""`Predictions`, the value that flows through everything: scores and labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import Array, as_numpy
from calibrant.predictions import arrays
from calibrant.predictions.checks import check_labels, check_scores
from calibrant.predictions.files import (
    Contents,
    FileScores,
    explain_read_errors,
    iterate_scores,
)
from calibrant.predictions.split import split_rows


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Predictions:
    """The scores of a classifier on N rows, and the true labels.

    Make one with ``from_logits``, ``from_probs``, ``from_model`` or ``read``: the caller says
    whether the numbers are logits or probabilities, nothing guesses. Torch stays torch and NumPy
    stays NumPy; arrays are copied only where needed and the caller's arrays never change. Shapes
    and types are always checked, values unless ``validate=False``.

    Args:
        scores: Logits or probabilities of shape (N,K); or (N,), a binary classifier's score of
            class 1; or (N,K,...), dense.
        labels: Integer labels of shape (N,), or (N,...) if dense.
        is_logits: Whether the scores are logits (else probabilities).
        class_names: K different names.
        ids: A whole number or text for each row.
        ignore_index: The label of rows, or pixels, that do not count.
        name: The name shown in reports.

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
        """Make predictions from logits: unnormalised scores, or log-probabilities.

        Args:
            logits: Floating-point array or tensor of shape (N,K), (N,) or (N,K,...).
            labels: Integer labels of shape (N,), or (N,...) if dense.
            class_names: K different names. Default: None (ours: classes go by number).
            ids: A whole number or text for each row. Default: None (ours: rows go by number).
            ignore_index: The label of rows that do not count. Default: None (ours: all count).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
        """
        return cls._build(
            logits,
            labels,
            validate=validate,
            is_logits=True,
            class_names=class_names,
            ids=ids,
            ignore_index=ignore_index,
            name=name,
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
        """Make predictions from probabilities in [0, 1] that sum to one in each row.

        Args:
            probs: Floating-point array or tensor of shape (N,K), (N,) or (N,K,...).
            labels: Integer labels of shape (N,), or (N,...) if dense.
            class_names: K different names. Default: None (ours: classes go by number).
            ids: A whole number or text for each row. Default: None (ours: rows go by number).
            ignore_index: The label of rows that do not count. Default: None (ours: all count).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
        """
        return cls._build(
            probs,
            labels,
            validate=validate,
            is_logits=False,
            class_names=class_names,
            ids=ids,
            ignore_index=ignore_index,
            name=name,
        )

    @classmethod
    def _build(cls, scores: Any, labels: Any, *, validate: bool, **fields: Any) -> Predictions:
        predictions = cls(scores, labels, **fields)
        if validate:
            check_labels(predictions.labels, predictions.num_classes, predictions.ignore_index)
            if isinstance(predictions.scores, FileScores):
                predictions.scores.check(is_logits=predictions.is_logits)
            else:
                check_scores(predictions.scores, is_logits=predictions.is_logits)
        return predictions

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
        """Run a model over a loader and gather its outputs and the labels on the CPU.

        The model runs in evaluation mode without gradients; afterwards every submodule's mode
        and the device are restored.

        Args:
            model: A module or function. Its output is a tensor, a tuple whose first item is a
                tensor, or an object or mapping with ``logits`` (Hugging Face) or ``out``
                (torchvision). Outputs of shape (N,1) are a binary score.
            loader: Yields (input, target) pairs, or dicts with the target under ``label``,
                ``labels``, ``target`` or ``targets``.
            device: Where to run the model. Default: None (ours: where the model is).
            progress: Show a progress bar on a terminal. Default: True (ours).
            outputs: ``"logits"`` or ``"probs"``, what the model returns. Default: 'logits' (ours:
                networks give logits).
            class_names: K different names. Default: None (ours: classes go by number).
            ignore_index: The label of rows that do not count. Default: None (ours: all count).
            name: The name shown in reports. Default: 'predictions' (ours).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
        """
        from calibrant.predictions.model import collect

        if outputs not in ("logits", "probs"):
            raise InputError(f"outputs must be 'logits' or 'probs', found {outputs!r}")
        scores, labels = collect(model, loader, device=device, progress=progress, outputs=outputs)
        return cls._build(
            scores,
            labels,
            validate=validate,
            is_logits=outputs == "logits",
            class_names=class_names,
            ignore_index=ignore_index,
            name=name,
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

        Files of arrays have the keys ``logits`` or ``probs``, ``labels`` and optionally
        ``class_names``, ``ids`` and ``ignore_index``. Tables have the columns ``logit_k`` or
        ``prob_k`` (binary: ``logit`` or ``prob``), ``label`` and optionally ``id``. Pickled
        objects are never loaded.

        Args:
            path: The file; ``example:NAME`` or ``example:NAME/validation`` for one of `examples`.
            labels: A file of labels, or an array of them. Default: None (ours: those in the file).
            kind: ``"logits"`` or ``"probs"``; a bare array needs it. Default: None (ours: the
                names in the file say it).
            class_names: K different names. Default: None (ours: those in the file).
            ignore_index: The label of rows that do not count. Default: None (ours: the file's).
            name: The name shown in reports. Default: None (ours: the file's name).
            lazy: Whether scores stay in the file and are read, and checked, in chunks. ``.npz``
                is always read whole; ``.safetensors`` and ``.pt`` become memory-mapped tensors.
                Default: None (ours: above 1 GiB).
            validate: Check the values, not only shapes and types. Default: True (ours: failure is
                loud).
        """
        from calibrant.predictions.read import read_contents

        file = Path(path)
        with explain_read_errors(file):
            contents = read_contents(file, labels=labels, kind=kind, lazy=lazy)
            return cls._build(
                contents.scores,
                contents.labels,
                validate=validate,
                is_logits=contents.kind == "logits",
                class_names=contents.class_names if class_names is None else class_names,
                ids=contents.ids,
                ignore_index=contents.ignore_index if ignore_index is None else ignore_index,
                name=contents.name if name is None else name,
            )

    def write(self, path: str | os.PathLike[str], *, labels: bool = True) -> Path:
        """Write to the format of the ending, whole or not at all; see ``read``.

        Args:
            path: The file. An ``.npy`` holds the scores alone: the labels go beside it as
                ``NAME.labels.npy``, where ``read`` finds them.
            labels: Whether to write the labels. Default: True (ours).
        """
        from calibrant.predictions.write import write_contents

        contents = Contents(
            self.scores,
            "logits" if self.is_logits else "probs",
            self.labels if labels else None,
            self.class_names,
            self.ids,
            self.ignore_index,
        )
        return write_contents(contents, Path(path))

    @property
    def array(self) -> Array:
        """Return the scores as one array; raise an error while they are still in their file."""
        if isinstance(self.scores, FileScores):
            raise InputError("the scores are still in their file: use batches() or in_memory()")
        return self.scores

    @property
    def num_rows(self) -> int:
        """Return N, the number of rows, or of images if dense; ignored rows included."""
        return int(self.scores.shape[0])

    @property
    def num_classes(self) -> int:
        """Return K, the number of classes; 2 for a binary score."""
        return 2 if self.is_binary else int(self.scores.shape[1])

    @property
    def is_binary(self) -> bool:
        """Return whether scores are (N,): one number a row, the score of class 1."""
        return self.scores.ndim == 1

    @property
    def is_dense(self) -> bool:
        """Return whether scores are (N,K,...) and labels (N,...)."""
        return self.scores.ndim > 2

    @property
    def is_lazy(self) -> bool:
        """Return whether the scores are still in their file."""
        return isinstance(self.scores, FileScores)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        shape = " × ".join(str(size) for size in self.scores.shape[2:])
        kind = "logits" if self.is_logits else "probabilities"
        if isinstance(self.scores, FileScores):
            storage = f"{self.scores.dtype} in {self.scores.path.name}"
        elif isinstance(self.scores, torch.Tensor):
            storage = f"{self.scores.dtype} on {self.scores.device}"
        else:
            storage = f"numpy {self.scores.dtype}"
        parts = [
            f"{self.num_rows} row{'s' if self.num_rows > 1 else ''}{f' of {shape}' * bool(shape)}",
            "binary" if self.is_binary else f"{self.num_classes} classes",
            kind,
            storage,
        ]
        return f"Predictions({self.name!r}: {', '.join(parts)})"

    def batches(self, rows: int | None = None) -> Iterator[tuple[Array, Array]]:
        """Yield scores and int64 labels of consecutive rows.

        Arrays in memory give views; a file is read and checked chunk by chunk. Rows whose label
        is ``ignore_index`` are included.

        Args:
            rows: The most rows of a batch. Default: None (ours: about four million values).
        """
        if rows is not None and (isinstance(rows, bool) or rows < 1):
            raise InputError(f"rows must be at least 1, found {rows!r}")
        return self._batches(rows)

    def _batches(self, rows: int | None) -> Iterator[tuple[Array, Array]]:
        start = 0
        for chunk in iterate_scores(self.scores, rows):
            yield chunk, _int64(self.labels[start : start + len(chunk)])
            start += len(chunk)

    def split(
        self, fraction: float = 0.5, *, seed: int = 0, stratify: bool = True
    ) -> tuple[Predictions, Predictions]:
        """Split the rows into two disjoint parts, each in the original order.

        The same seed gives the same rows for torch and NumPy.

        Args:
            fraction: The share of rows in the first part, or their number if it is whole.
                Default: 0.5 (ours: halves).
            seed: The seed of the draw. Default: 0 (ours).
            stratify: Split each class as evenly as rounding allows. Dense predictions are split
                along N, never stratified. Default: True (ours: parts alike in their classes).
        """
        strata = as_numpy(self.labels) if stratify and not self.is_dense else None
        first_rows, second_rows = split_rows(self.num_rows, fraction, seed=seed, strata=strata)
        return self.take(first_rows), self.take(second_rows)

    def take(self, indices: object) -> Predictions:
        """Take some rows, in the order given.

        Scores in a file stay there if the row numbers ascend; if not, the rows are read now.

        Args:
            indices: Row numbers, or a truth value for each row.
        """
        numbers = self._row_numbers(indices)
        ids = None if self.ids is None else self.ids[numbers]
        scores: Array | FileScores
        if isinstance(self.scores, FileScores):
            scores = self.scores.take(numbers)
        else:
            scores = _take(self.scores, numbers)
        return replace(self, scores=scores, labels=_take(self.labels, numbers), ids=ids)

    def _row_numbers(self, indices: Any) -> npt.NDArray[np.int64]:
        given = as_numpy(indices) if isinstance(indices, torch.Tensor) else np.asarray(indices)
        if given.dtype == bool and given.shape == (self.num_rows,):
            given = np.flatnonzero(given)
        if given.size == 0:
            raise InputError("the indices are empty: give at least one row")
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise InputError(
                f"indices must be whole numbers of shape (n,), or a truth value for each of the "
                f"{self.num_rows} rows; found {given.dtype} of shape {given.shape}"
            )
        numbers = given.astype(np.int64)
        outside = numbers[(numbers < 0) | (numbers >= self.num_rows)]
        if len(outside):
            raise InputError(
                f"row numbers must lie in 0 to {self.num_rows - 1}, found {first(outside)}"
            )
        return numbers

    def in_memory(self) -> Predictions:
        """Read (and check) scores that are still in a file into memory."""
        if not isinstance(self.scores, FileScores):
            return self
        return replace(self, scores=self.scores.load())


def example(name: str, part: str = "test") -> Predictions:
    """Return the logits and labels of a real network, in half precision.

    ``cifar10-resnet18`` was trained with cross-entropy; other names end in their method. All come
    from one seed of the suite ``quick-cifar``. ``example:NAME`` and ``example:NAME/validation``
    stand for them wherever a file of predictions is read.

    Args:
        name: One of `examples`.
        part: ``"test"`` or ``"validation"``. Default: 'test' (ours).

    >>> len(example("cifar10-resnet18")), len(example("cifar10-resnet18", "validation"))
    (10000, 5000)
    """
    return Predictions.read(f"example:{name}/{part}")


def _take(array: Array, indices: npt.NDArray[np.int64]) -> Array:
    if isinstance(array, torch.Tensor):
        return array[torch.from_numpy(indices).to(array.device)]
    taken: npt.NDArray[Any] = array[indices]
    return taken


def _int64(labels: Array) -> Array:
    if isinstance(labels, torch.Tensor):
        return labels.to(torch.int64)
    return labels.astype(np.int64, copy=False)
