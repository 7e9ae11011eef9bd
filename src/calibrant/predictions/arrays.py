"""Convert the caller's input to arrays; check shapes and types, not values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from calibrant.core.errors import InputError, first
from calibrant.functional.arrays import Array, as_numpy
from calibrant.predictions.files import FileScores

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LABEL_TENSORS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# PyTorch has these types but few operations on them.
_WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def _as_array(given: object, what: str) -> Array:
    if isinstance(given, torch.Tensor):
        if given.layout != torch.strided or given.is_quantized:
            raise InputError(
                f"{what} must be a dense tensor, found {given.layout}: use .to_dense()"
            )
        return given.detach()
    if isinstance(given, np.ma.MaskedArray):
        raise InputError(f"{what} are a masked array: drop the masked rows or use ignore_index")
    if given is None or isinstance(given, (str, bytes, dict)):
        raise InputError(f"{what} must be an array or a tensor, found {type(given).__name__}")
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{what} cannot be made an array: {error}") from error
    if array.dtype.kind in "iufc" and not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def as_scores(given: object, what: str) -> Array | FileScores:
    """Return logits or probabilities as a floating-point array, (N,), (N,K) or (N,K,...)."""
    scores = given if isinstance(given, FileScores) else _as_array(given, what)
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
    if len(shape) > 1 and shape[1] < 2:
        raise InputError(
            f"{what} have shape {shape}, {shape[1]} class: at least 2 are needed; for a binary "
            f"classifier with one output give shape (N,), for example with .squeeze(1)"
        )
    if 0 in shape:
        raise InputError(f"{what} are empty: shape {shape}")
    return scores


def as_labels(given: object, scores: Array | FileScores) -> Array:
    """Return integer labels, (N,) or (N,...), of the library and device of the scores."""
    labels = _as_array(given, "labels")
    _check_label_shape(labels, tuple(scores.shape))
    _check_label_type(labels)
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
    return f"{message}: soft and multilabel targets are not supported; give one class number a row"


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
            f"labels are text ({first((repr(str(item)) for item in flat), 3)}): "
            f"give class numbers 0 to K-1, and the names as class_names"
        )
    if sample.dtype.kind == "O":
        raise InputError(f"{message} (first: {flat[0]!r}): convert with {cast}")
    raise InputError(message)


def _fractions(sample: npt.NDArray[Any]) -> Iterable[object]:
    """Return the values that are not whole numbers."""
    fractions = sample[~(np.isfinite(sample) & (sample == np.floor(sample)))]
    return (float(value) for value in fractions.reshape(-1))


def as_class_names(given: object, num_classes: int) -> tuple[str, ...] | None:
    """Return K different names as a tuple."""
    if given is None:
        return None
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InputError(f"class_names must be a list of {num_classes} names, found {given!r}")
    names = list(given)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise InputError(f"class_names must be text, found {first(map(repr, wrong))}")
    if len(names) != num_classes:
        raise InputError(
            f"class_names has {len(names)} names ({first(names)}), but there are "
            f"{num_classes} classes"
        )
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"class_names must differ; found more than once: {first(twice)}")
    return tuple(str(name) for name in names)


def as_ids(given: object, num_rows: int) -> npt.NDArray[Any] | None:
    """Return one id per row, whole numbers or text, as a NumPy array."""
    if given is None:
        return None
    ids = as_numpy(_as_array(given, "ids"))
    if ids.dtype.kind == "O" and all(isinstance(item, str) for item in ids.reshape(-1)):
        ids = ids.astype(np.str_)
    if ids.dtype.kind not in "iuU":
        raise InputError(f"ids must be whole numbers or text, found dtype {ids.dtype}")
    if ids.shape != (num_rows,):
        raise InputError(f"ids have shape {ids.shape}, expected ({num_rows},): one id per row")
    return ids


def as_ignore_index(given: object) -> int | None:
    """Return the label that marks rows to leave out."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise InputError(f"ignore_index must be one whole number, found {given!r}")
    return int(given)
