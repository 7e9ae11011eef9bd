"""Arrays become tensors without copies, and rows are walked through once, in order."""

import warnings

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.functional.arrays import (
    as_numpy,
    row_blocks,
    row_slices,
    rows_per_block,
    to_tensor,
)


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8", "bool"])
def test_a_tensor_shares_the_arrays_memory_without_a_warning(dtype, writeable):
    array = np.ones((4, 3), dtype)
    array.flags.writeable = writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = to_tensor(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[::-1],
        np.arange(6.0).astype(">f8"),
        np.arange(6).astype(">i4"),
        np.arange(6, dtype=np.longdouble),
        np.arange(6, dtype=np.uint16),
    ],
)
def test_arrays_that_torch_cannot_share_are_copied(array):
    assert to_tensor(array).tolist() == array.tolist()


def test_wide_unsigned_integers_become_int64_unless_kept():
    labels = np.array([0, 40_000], np.uint16)
    assert to_tensor(labels).dtype == torch.int64
    assert to_tensor(labels, widen=False).dtype == torch.uint16


def test_tensors_are_detached_and_not_copied():
    values = torch.rand(3, requires_grad=True)
    assert to_tensor(values).data_ptr() == values.data_ptr()
    assert not to_tensor(values).requires_grad


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array([1j])])
def test_arrays_that_are_no_numbers_raise(array):
    with pytest.raises(InputError, match="expected an array of numbers"):
        to_tensor(array)


def test_bfloat16_becomes_float32_in_numpy():
    assert as_numpy(torch.tensor([1.5], dtype=torch.bfloat16)).dtype == np.float32
    array = np.ones(3)
    assert as_numpy(array) is array


@pytest.mark.parametrize("shape", [(1, 5), (10, 3), (7, 2, 2), (9,)])
@pytest.mark.parametrize("values", [1, 6, 1 << 20])
def test_slices_cover_every_row_once_in_blocks_of_about_the_values(shape, values):
    slices = list(row_slices(shape, values))
    assert [row for part in slices for row in range(shape[0])[part]] == list(range(shape[0]))
    size = int(np.prod(shape[1:]))
    assert all((part.stop - part.start) * size <= max(values, size) for part in slices)
    array = np.arange(np.prod(shape)).reshape(shape)
    starts, parts = zip(*row_blocks(array, values), strict=True)
    assert list(starts) == [part.start for part in slices]
    assert np.array_equal(np.concatenate(parts), array)
    assert rows_per_block(shape, values) == max(1, values // size)
