"""Hard binning: the bin of a confidence, and sums over bins.

Bins are right-closed, (a, b]; the first also holds 0 and the last holds 1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from calibrant.core.errors import InputError, show

_MOST_BINS = 1 << 24

_EXACT_BINS = 4096


def check_bins(num_bins: int) -> int:
    """Return the number of bins as an integer, or raise if it is not whole and at least 1.

    Every bin takes memory, so that there may be 16,777,216 at most.
    """
    if not 1 <= num_bins <= _MOST_BINS or int(num_bins) != num_bins:
        raise InputError(
            f"num_bins must be a whole number of at least 1 (and at most {_MOST_BINS:,}), found "
            f"{show(num_bins)}"
        )
    return int(num_bins)


def edges(num_bins: int) -> Tensor:
    """Return the num_bins + 1 edges of equal-width bins on [0, 1], float64."""
    return torch.arange(num_bins + 1, dtype=torch.float64) / num_bins


def bin_index(values: Tensor, num_bins: int) -> Tensor:
    """Return the equal-width bin of each value, as if compared in float64 with the exact edges."""
    if values.dtype == torch.float32 and num_bins <= _EXACT_BINS:
        # The product is exact in float64, and no float32 lies within rounding of an inexact edge.
        scaled = values.double().mul_(num_bins).ceil_().sub_(1.0)
        return scaled.clamp_(0.0, num_bins - 1.0).long()
    scaled = values.double() * num_bins
    index = scaled.ceil().long().sub_(1).clamp_(0, num_bins - 1)
    # The product may round across an edge: values that close are compared with the edges.
    close = ((scaled - scaled.round()).abs_() < 1e-9 * num_bins) & (scaled < num_bins - 0.5)
    near = close.nonzero().squeeze(1)
    if near.numel():
        inner = edges(num_bins)[1:-1].to(values.device)
        index[near] = torch.bucketize(values[near].double(), inner, right=False)
    return index


def bin_sums(index: Tensor, size: int, weights: Tensor | None = None) -> Tensor:
    """Sum the weights, or count the values, of each index 0..size−1, in float64."""
    if index.device.type == "cpu":
        return torch.bincount(index, weights=weights, minlength=size).double()
    # On an accelerator index_add has a deterministic form, if PyTorch is set to use it.
    values = torch.ones_like(index, dtype=torch.float64) if weights is None else weights
    total = torch.zeros(size, dtype=torch.float64, device=index.device)
    return total.index_add_(0, index, values)


def find_true(mask: Tensor) -> Tensor:
    """Return the positions at which a vector is true; on a CPU by NumPy, which is faster."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero().squeeze(1)


def nonzero_above(values: Tensor, threshold: float) -> Tensor:
    """Return the flat positions of the values strictly above a float64 threshold."""
    bound = threshold
    if values.dtype == torch.float32:
        # The largest float32 not above the threshold, so that rounding moves no value.
        single = np.float32(threshold)
        bound = float(np.nextafter(single, np.float32(0)) if float(single) > threshold else single)
    if values.device.type == "cpu":  # NumPy compares several times faster than torch
        return torch.from_numpy(np.flatnonzero(values.detach().numpy() > bound))
    return (values > bound).flatten().nonzero().squeeze(1)


def mass_bounds(num_rows: int, num_bins: int) -> Tensor:
    """Return the positions floor(jN/M), j = 0..M, that cut sorted rows into bins of equal mass."""
    return torch.arange(num_bins + 1, dtype=torch.int64) * num_rows // num_bins
