"""Arrays of NumPy and PyTorch: conversion, and a walk through their rows in blocks."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.core.errors import InputError, first, show

Array: TypeAlias = "Tensor | NDArray[Any]"

# Half a million values stay in the cache of one core and amortise a call's overhead.
BLOCK_VALUES = 1 << 19


def rows_per_block(shape: Sequence[int], values: int = BLOCK_VALUES) -> int:
    """Return how many rows of an array of this shape hold about ``values`` values; at least 1."""
    return max(1, values // max(1, math.prod(shape[1:])))


def row_slices(shape: Sequence[int], values: int = BLOCK_VALUES) -> Iterator[slice]:
    """Cut the rows of an array of this shape into slices of about ``values`` values each."""
    step = rows_per_block(shape, values)
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def row_blocks(array: Array, values: int = BLOCK_VALUES) -> Iterator[tuple[int, Array]]:
    """Yield views of consecutive rows, each with the index of its first row."""
    for rows in row_slices(array.shape, values):
        yield rows.start, array[rows]


def to_tensor(values: Array, *, widen: bool = True) -> Tensor:
    """Return a tensor that shares the array's memory wherever PyTorch can; never write to it.

    Args:
        values: A tensor (returned detached) or a NumPy array of numbers.
        widen: Convert 16- to 64-bit unsigned integers, for which PyTorch lacks most operations,
            to int64. Without it they keep their dtype.
    """
    if isinstance(values, Tensor):
        if widen and values.dtype == torch.uint64:
            refuse_large(values)
        return values.detach()
    _refuse_mask(values)
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"expected an array of numbers, found dtype {array.dtype}; convert it first, "
            "for example with .astype('float32')"
        )
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    if widen and array.dtype in (np.uint16, np.uint32, np.uint64):
        if array.dtype == np.uint64:
            refuse_large(array)
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():  # of a read-only array, such as a memory map
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def refuse_large(values: Array) -> None:
    """Raise for 64-bit unsigned integers that int64 cannot hold: they would become negative.

    A label of 2**64 − 100 would then count as ``ignore_index=-100``.
    """
    numbers = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    large = numbers >= 2**63
    if large.any():
        raise InputError(
            f"labels must be below 2^63, found {first(numbers[large].tolist(), 3)}: "
            "they are unsigned 64-bit integers; were negative labels converted to these?"
        )


_MOST_TEXT = 1 << 31  # bytes


def _refuse_mask(values: object) -> None:
    """Raise for a masked array: as a plain array, its masked values would count."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError("found a masked array: drop the masked rows or use ignore_index")


def as_array(values: Any) -> Array:
    """Return tensors and arrays as they are, and lists and columns of tables as arrays."""
    return values if isinstance(values, (Tensor, np.ndarray)) else as_numpy(values)


def as_numpy(array: Any) -> NDArray[Any]:
    """Return the values as NumPy on the CPU; bfloat16, which NumPy lacks, becomes float32."""
    if isinstance(array, np.ndarray):
        _refuse_mask(array)
        return array
    if not isinstance(array, Tensor):  # a list, or a column of pandas or polars
        try:
            return np.asarray(array)
        except ValueError as error:
            if "inhomogeneous" not in str(error):
                raise
            raise InputError(
                "rows of different lengths make no array: give (N,K) scores; for questions with "
                "different numbers of options make predictions (Predictions.from_options) and use "
                "calibrators.apply"
            ) from error
    array = array.detach().cpu()
    if array.dtype == torch.bfloat16:
        array = array.float()
    return array.numpy()


def refuse_half_characters(texts: NDArray[np.str_] | Sequence[str], what: str) -> None:
    """Raise for text that no file can hold: a surrogate, half of a character in UTF-16.

    Args:
        texts: The texts.
        what: What to call them in the error.
    """
    if isinstance(texts, np.ndarray):
        if not texts.size or not texts.dtype.itemsize:
            return
        codes = np.ascontiguousarray(texts.astype(texts.dtype.newbyteorder("="))).view(np.uint32)
        halves = ((codes >= 0xD800) & (codes <= 0xDFFF)).reshape(texts.size, -1).any(1)
        bad = texts.reshape(-1)[halves].tolist()
    else:  # as an array every text would take the room of the longest
        bad = [text for text in texts if re.search("[\ud800-\udfff]", text)]
    if bad:
        raise InputError(
            f"{what} hold half a character (a surrogate) in {first(map(show, bad), 3)}: "
            "decode the text again, with the encoding that it was written in"
        )


def as_texts(values: NDArray[Any], what: str) -> NDArray[np.str_]:
    """Return values as an array of text, in which every text takes the room of the longest.

    Args:
        values: The values.
        what: What to call them in the error.
    """
    if values.dtype.kind == "O":
        longest = max((len(str(item)) for item in values.reshape(-1).tolist()), default=0)
        if 4 * longest * values.size > _MOST_TEXT:
            raise InputError(
                f"{what} have a text of {longest:,} characters, so that {values.size:,} rows would "
                "take over 2 GB: give short texts or whole numbers"
            )
    return values.astype(np.str_)
