"""Bins are right-closed and compared with their edges exactly."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from calibrant import InputError
from calibrant.functional.binning import bin_index, bin_sums, check_bins, mass_bounds, nonzero_above
from tests.helpers.metric_cases import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_bins", [1, 2, 3, 10, 15, 49, 100, 997])
def test_an_edge_belongs_to_the_bin_below_it(num_bins, device):
    edge = torch.arange(num_bins + 1, dtype=torch.float64) / num_bins
    on = bin_index(edge.to(device), num_bins).cpu()
    assert on.tolist() == [0, *range(num_bins)]
    above = torch.nextafter(edge[:-1], torch.tensor(1.0, dtype=torch.float64))
    assert bin_index(above.to(device), num_bins).cpu().tolist() == list(range(num_bins))


@pytest.mark.parametrize("num_bins", [3, 10, 15, 100])
def test_float32_values_are_compared_with_float64_edges(num_bins):
    near = (np.arange(num_bins + 1) / num_bins).astype(np.float32)
    values = np.concatenate(
        [near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(1))]
    ).clip(0, 1)
    edges = [Fraction(j / num_bins) for j in range(1, num_bins)]
    expected = [sum(Fraction(float(v)) > edge for edge in edges) for v in values]
    assert bin_index(torch.from_numpy(values), num_bins).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_lies_above_a_threshold_is_found_whatever_its_precision(dtype):
    for num_bins in range(1, 200):
        edge = torch.tensor(1.0 / num_bins, dtype=torch.float64)
        values = torch.stack([edge.to(dtype), torch.nextafter(edge.to(dtype), edge.to(dtype) * 2)])
        expected = (values.double() > edge).nonzero().squeeze(1)
        assert torch.equal(nonzero_above(values, float(edge)), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_over_bins_are_float64(device):
    index = torch.tensor([0, 2, 2], device=device)
    weights = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, device=device)
    assert bin_sums(index, 4).tolist() == [1, 0, 2, 0]
    assert bin_sums(index, 4, weights).tolist() == [0.5, 0, 3.0, 0]
    assert bin_sums(index, 4).dtype == bin_sums(index, 4, weights).dtype == torch.float64


@pytest.mark.parametrize(("num_rows", "num_bins"), [(10, 3), (2, 5), (1, 1), (100, 7)])
def test_bins_of_equal_mass_differ_by_one_row(num_rows, num_bins):
    sizes = mass_bounds(num_rows, num_bins).diff()
    assert sizes.sum() == num_rows
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("wrong", [0, -1, 1.5])
def test_a_number_of_bins_is_a_whole_one(wrong):
    with pytest.raises(InputError, match="num_bins must be a whole number"):
        check_bins(wrong)
