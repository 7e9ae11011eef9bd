"""Walking through the rows of a large array in blocks, torch and NumPy alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Array: TypeAlias = "torch.Tensor | npt.NDArray[Any]"

# Half a million values stay in the cache of one core and amortise a call's overhead.
BLOCK_VALUES = 1 << 19


def rows_per_block(shape: Sequence[int], values: int = BLOCK_VALUES) -> int:
    """How many rows of an array of this shape hold about ``values`` values; at least one."""
    return max(1, values // max(1, math.prod(shape[1:])))


def row_blocks(array: Array, values: int = BLOCK_VALUES) -> Iterator[tuple[int, Array]]:
    """Views of consecutive rows, each with the index of its first row."""
    rows = rows_per_block(array.shape, values)
    for start in range(0, len(array), rows):
        yield start, array[start : start + rows]


def as_tensor(block: Array) -> torch.Tensor:
    """The block as a tensor, sharing its memory where PyTorch can."""
    if isinstance(block, torch.Tensor):
        return block.detach()
    # PyTorch warns on read-only arrays and refuses negative strides; a block is small to copy.
    if not block.flags.writeable or any(stride < 0 for stride in block.strides):
        block = np.array(block, order="C")
    return torch.from_numpy(block)


def as_numpy(array: Array) -> npt.NDArray[Any]:
    """The array as NumPy on the CPU; bfloat16, which NumPy lacks, becomes float32 (exact)."""
    if isinstance(array, np.ndarray):
        return array
    array = array.detach().cpu()
    if array.dtype == torch.bfloat16:
        array = array.float()
    return array.numpy()
