"""Convert the caller's input to arrays; check shapes and types, not values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from calibrant.core.errors import InputError, first, show
from calibrant.functional.arrays import (
    Array,
    as_numpy,
    as_texts,
    refuse_half_characters,
    refuse_large,
)
from calibrant.predictions.files import FileScores

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LABEL_TENSORS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# PyTorch has these types but few operations on them.
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def _as_array(value: object, what: str) -> Array:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise InputError(
                f"{what} must be a dense tensor, found {value.layout}: use .to_dense()"
            )
        return value.detach()
    parts = value if isinstance(value, (list, tuple)) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise InputError(f"{what} are a masked array: drop the masked rows or use ignore_index")
    if value is None or isinstance(value, (str, bytes, dict)):
        raise InputError(f"{what} must be an array or a tensor, found {type(value).__name__}")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{what} cannot be made an array: {error}") from error
    if array.dtype.kind in "iufc" and not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def as_scores(value: object, what: str, *, one_column: bool = False) -> Array | FileScores:
    """Return logits or probabilities as a floating-point array, (N,), (N,K) or (N,K,...).

    Args:
        value: The scores.
        what: What to call them in errors.
        one_column: Allow (N,1): many labels a row may be one label.
    """
    scores = value if isinstance(value, FileScores) else _as_array(value, what)
    shape = tuple(scores.shape)
    if isinstance(scores, torch.Tensor):
        is_float = scores.dtype in _FLOATS
    else:
        is_float = scores.dtype in (np.float16, np.float32, np.float64)
    if len(shape) == 0:
        raise InputError(f"{what} are a single number; expected shape (N,), (N,K) or (N,K,...)")
    if shape[0] == 0:
        raise InputError(f"{what} are empty: 0 rows (shape {shape})")
    if not is_float:
        advice = "convert to float32 or float64"
        if not isinstance(scores, FileScores) and _is_integer(scores):
            advice += "; predicted classes are not enough, give the scores behind them"
        raise InputError(f"{what} must be floating point, found dtype {scores.dtype}: {advice}")
    if len(shape) > 1 and shape[1] < 2 and not one_column:
        raise InputError(
            f"{what} have shape {shape}, {shape[1]} class: at least 2 are needed; for a binary "
            f"classifier with one output give shape (N,), for example with .squeeze(1)"
        )
    if 0 in shape:
        raise InputError(f"{what} are empty: shape {shape}")
    return scores


def as_labels(value: object, scores: Array | FileScores) -> Array:
    """Return integer labels, (N,) or (N,...), of the library and device of the scores."""
    labels = _as_array(value, "labels")
    _check_label_shape(labels, tuple(scores.shape))
    _check_label_type(labels)
    if labels.dtype in (np.uint64, torch.uint64):
        refuse_large(labels)
    if isinstance(scores, torch.Tensor):
        if not isinstance(labels, torch.Tensor):
            labels = torch.from_numpy(labels if labels.flags.writeable else labels.copy())
        if labels.dtype in _WIDE_UNSIGNED:
            labels = labels.to(torch.int64)
        return labels.to(scores.device)
    return as_numpy(labels)


def _is_integer(array: Array) -> bool:
    if isinstance(array, torch.Tensor):
        return array.dtype in _LABEL_TENSORS + _WIDE_UNSIGNED
    return array.dtype.kind in "iu"


def _check_label_shape(labels: Array, scores: tuple[int, ...]) -> None:
    expected, shape = (scores[0], *scores[2:]), tuple(labels.shape)
    if shape == expected:
        return
    if shape == scores or (len(scores) == 1 and shape == (*scores, 2)):
        raise InputError(_explain_class_scores(labels))
    message = f"labels have shape {shape}, expected {expected} for scores of shape {scores}"
    if shape == (*expected, 1):
        raise InputError(f"{message}: drop the last axis with labels.squeeze(-1)")
    if shape == (expected[0], 1, *expected[1:]):
        raise InputError(f"{message}: drop the second axis with labels.squeeze(1)")
    if len(scores) > 2 and shape == scores[:-1]:
        raise InputError(f"{message}: classes must be axis 1, move them there with movedim(-1, 1)")
    if len(shape) == 0:
        raise InputError(f"labels are a single number, expected shape {expected}")
    if shape[0] != expected[0]:
        transposed = len(scores) == 2 and shape == (scores[1],)
        hint = ": are the scores transposed? Rows must be axis 0" if transposed else ""
        raise InputError(
            f"lengths differ: {scores[0]} rows of scores but {shape[0]} of labels ({message}){hint}"
        )
    raise InputError(message)


def _explain_class_scores(labels: Array) -> str:
    """Word the error for labels with one number per class: one-hot, soft or multilabel."""
    sample = as_numpy(labels[:1000])
    message = f"labels have shape {tuple(labels.shape)}, one number per class"
    if sample.dtype.kind in "iufb":
        one_hot = ((sample == 0) | (sample == 1)).all() and (sample.sum(1) == 1).all()
        if one_hot:
            return f"{message}, and look one-hot: use labels.argmax(1)"
    return (
        f"{message}: give one class number a row; if each row may have several labels, use "
        "Predictions.from_multilabel; soft targets are not supported"
    )


def _check_label_type(labels: Array) -> None:
    if _is_integer(labels):
        return
    message = f"labels must be integers, found dtype {labels.dtype}"
    is_torch = isinstance(labels, torch.Tensor)
    cast = "labels.long()" if is_torch else "labels.astype('int64')"
    sample = as_numpy(labels[:100_000])
    if sample.dtype.kind == "f":
        if np.isfinite(sample).all() and (sample == np.floor(sample)).all():
            raise InputError(f"{message}, though they are whole numbers: convert with {cast}")
        raise InputError(f"{message} with values such as {first(_fractions(sample), 3)}")
    if sample.dtype.kind == "b":
        raise InputError(f"{message}: if True means class 1, convert with {cast}")
    flat = sample.reshape(-1)
    if sample.dtype.kind in "US" or (sample.dtype.kind == "O" and isinstance(flat[0], str)):
        raise InputError(
            f"labels are text ({first((repr(str(item)) for item in flat), 3)}): give class_names, "
            "in the order of the score columns, or labels 0 to K-1 (of options: the number of the "
            "true one)"
        )
    if sample.dtype.kind == "O":
        raise InputError(f"{message} (first: {flat[0]!r}): convert with {cast}")
    raise InputError(message)


def _fractions(sample: npt.NDArray[Any]) -> Iterable[object]:
    """Return the values that are not whole numbers."""
    fractions = sample[~(np.isfinite(sample) & (sample == np.floor(sample)))]
    return (float(value) for value in fractions.reshape(-1))


def as_class_names(value: object, num_classes: int) -> tuple[str, ...] | None:
    """Return K different names as a tuple."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InputError(f"class_names must be a list of {num_classes} names, found {value!r}")
    names = list(value)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise InputError(f"class_names must be text, found {first(map(repr, wrong))}")
    if len(names) != num_classes:
        raise InputError(
            f"class_names has {len(names)} names ({first(names)}), but there are "
            f"{num_classes} classes"
        )
    refuse_half_characters(names, "class_names")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"class_names must differ; found more than once: {first(twice)}")
    return tuple(str(name) for name in names)


def as_outcomes(value: object, shape: tuple[int, ...], what: str) -> npt.NDArray[np.int8]:
    """Return outcomes of 0 and 1, and −1 for missing ones, as int8 of this shape.

    Truth values and whole floating-point numbers are taken; NaN is a missing outcome.
    """
    outcomes = as_numpy(_as_array(value, what))
    if outcomes.shape != shape:
        raise InputError(f"{what} have shape {outcomes.shape}, expected {shape}, as the scores")
    if outcomes.dtype.kind == "f":
        outcomes = np.where(np.isnan(outcomes), -1, outcomes)
    elif outcomes.dtype.kind not in "biu":
        raise InputError(f"{what} must be 0 or 1 (or truth values), found dtype {outcomes.dtype}")
    wrong = outcomes[(outcomes != 0) & (outcomes != 1) & (outcomes != -1)]
    if len(wrong):
        raise InputError(
            f"{what} must be 0 or 1, or -1 where missing; found {first(np.unique(wrong).tolist())}"
        )
    return outcomes.astype(np.int8)


def check_outcomes(outcomes: npt.NDArray[np.int8]) -> None:
    """Raise if −1, which marks a missing outcome, seems to mean that the event did not happen."""
    if (outcomes == -1).any() and (outcomes == 1).any() and not (outcomes == 0).any():
        raise InputError(
            "outcomes are 1 or -1, never 0, and -1 marks a missing one: if -1 means that the event "
            "did not happen, give 0 for it; if not, leave these rows out, for then every outcome "
            "is 1"
        )


def as_weights(value: object, num_rows: int) -> npt.NDArray[np.float64] | None:
    """Return one positive weight per row, in float64."""
    if value is None:
        return None
    weights = as_numpy(_as_array(value, "weights"))
    if weights.dtype.kind not in "iuf":
        raise InputError(f"weights must be numbers, found dtype {weights.dtype}")
    if weights.shape != (num_rows,):
        raise InputError(
            f"weights have shape {weights.shape}, expected ({num_rows},): one weight per row"
        )
    weights = weights.astype(np.float64)
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
    if len(bad):
        raise InputError(
            f"weights must be positive and finite; found {weights[bad[0]]:g}, first in rows "
            f"{first(bad.tolist())}: drop rows that must not count"
        )
    return weights


def as_clusters(value: object, num_rows: int) -> npt.NDArray[Any] | None:
    """Return one cluster per row, whole numbers or text, as a NumPy array."""
    if value is None:
        return None
    clusters = as_numpy(_as_array(value, "clusters"))
    if clusters.dtype.kind in "Of":
        absent = clusters != clusters
        if clusters.dtype.kind == "O":
            absent = np.array([item is None or item != item for item in clusters.reshape(-1)])
        missing = np.flatnonzero(absent)
        if len(missing):
            raise InputError(
                f"clusters are missing in {len(missing):,} rows (first rows: "
                f"{first(missing.tolist())}): give each row one, or leave those rows out"
            )
    if clusters.dtype.kind == "O":
        clusters = as_texts(clusters, "clusters")
    if clusters.dtype.kind == "f" and (clusters == np.rint(clusters)).all():
        clusters = clusters.astype(np.int64)
    return _check_row_names(clusters, "cluster", num_rows)


def as_ids(value: object, num_rows: int) -> npt.NDArray[Any] | None:
    """Return one id per row, whole numbers or text, as a NumPy array."""
    if value is None:
        return None
    ids = as_numpy(_as_array(value, "ids"))
    if ids.dtype.kind == "O" and all(isinstance(item, str) for item in ids.reshape(-1)):
        ids = as_texts(ids, "ids")
    return _check_row_names(ids, "id", num_rows)


def _check_row_names(
    names: npt.NDArray[Any], what: Literal["cluster", "id"], num_rows: int
) -> npt.NDArray[Any]:
    """Return the names of rows; raise an error unless each row has a whole number or a text."""
    if names.dtype.kind not in "iuU":
        raise InputError(f"{what}s must be whole numbers or text, found dtype {names.dtype}")
    if names.shape != (num_rows,):
        raise InputError(
            f"{what}s have shape {names.shape}, expected ({num_rows},): one {what} per row"
        )
    if names.dtype.kind == "U":
        refuse_half_characters(names, f"{what}s")
    return names


def pad_options(
    scores: Any, *, is_logits: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the options of all questions as (N, K), and each question's number of options.

    K is the largest number; absent options have a logit of −inf, or probability 0. In an array
    (N, K) of logits, −inf at the end of a row is padding; in a list it is an option's score.
    """
    if not isinstance(scores, Iterable) or not getattr(scores, "shape", True):
        raise InputError("scores must be a list with an array for each question")
    rows = [np.asarray(as_numpy(_as_array(row, "scores")), dtype=np.float64) for row in scores]
    if not rows:
        raise InputError("scores are empty: give an array for each question")
    wrong = [n for n, row in enumerate(rows) if row.ndim != 1 or not len(row)]
    if wrong:
        raise InputError(
            "each question needs one score for each of its options; found "
            f"{rows[wrong[0]].shape} in rows {first(wrong)}"
        )
    if is_logits and hasattr(scores, "shape"):
        rows = [row[: _count_present(row)] for row in rows]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    if int(counts.max()) * len(rows) > 100 * int(counts.sum()) + 10_000_000:
        raise InputError(f"questions have 1 to {counts.max():,} options: numbers differ too much")
    padded = np.full((len(rows), max(2, int(counts.max()))), -np.inf if is_logits else 0.0)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = np.concatenate(rows)
    return padded, counts


def _count_present(logits: npt.NDArray[np.float64]) -> int:
    """Return the place after the last logit that is not −inf; at least 1."""
    if len(logits) < 2 or logits[-1] != -np.inf:
        return len(logits)
    return max(1, 1 + int(np.flatnonzero(logits != -np.inf).max(initial=0)))


def as_num_options(value: object, shape: tuple[int, ...]) -> npt.NDArray[np.int64] | None:
    """Return the number of options of each row, for scores of this shape (N,K)."""
    if value is None:
        return None
    counts = as_numpy(_as_array(value, "num_options"))
    if counts.dtype.kind not in "iu" or counts.shape != shape[:1] or len(shape) != 2:
        raise InputError(
            f"num_options must be one whole number per row of scores (N,K), found {counts.dtype} "
            f"of shape {counts.shape} for scores of shape {shape}"
        )
    wrong = np.flatnonzero((counts < 1) | (counts > shape[1]))
    if len(wrong):
        raise InputError(
            f"num_options must lie in 1 to {shape[1]}, found {counts[wrong[0]]} in rows "
            f"{first(wrong.tolist())}"
        )
    return counts.astype(np.int64)


def check_absent(scores: Array, counts: npt.NDArray[np.int64], *, is_logits: bool) -> None:
    """Raise if an option beyond a row's last has a score."""
    values = as_numpy(scores)
    absent = -np.inf if is_logits else 0.0
    beyond = np.arange(values.shape[1]) >= counts[:, None]
    wrong = np.flatnonzero((beyond & (values != absent)).any(1))
    if len(wrong):
        needed = "a logit of -inf" if is_logits else "probability 0"
        raise InputError(
            f"options beyond num_options must have {needed}, found others in rows "
            f"{first(wrong.tolist())}"
        )


def check_answers(
    labels: npt.NDArray[Any], counts: npt.NDArray[np.int64], ignore_index: int | None
) -> None:
    """Raise if some answer is beyond the last option of its question."""
    beyond = labels >= counts
    if ignore_index is not None:
        beyond &= labels != ignore_index
    if beyond.any():
        rows = np.flatnonzero(beyond)
        raise InputError(
            f"the answer is option {labels[rows[0]]}, but the question has {counts[rows[0]]} "
            f"options, numbered from 0, in rows {first(rows.tolist())}"
        )


def as_ignore_index(value: object) -> int | None:
    """Return the label that marks rows to leave out."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"ignore_index must be one whole number, found {value!r}")
    if not -(2**63) <= value < 2**63:
        raise InputError(f"ignore_index must fit 64 bits, found {show(int(value))}")
    return int(value)
