"""Blurs, changes of size and brightness that several corruptions share.

A separable filter is one matrix for the rows and one for the columns.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)


def to_grey(images: Tensor) -> Tensor:
    """Compute the brightness (N,1,H,W) of colours; return grey planes unchanged."""
    if images.shape[1] != 3:
        return images
    return (images * images.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True)


def filter_separably(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Compute R·x·Cᵀ of every plane of (N,C,H,W)."""
    rows, columns = (matrix.to(images.device) for matrix in (rows, columns))
    return rows @ (images @ columns.T)


def gaussian_blur(images: Tensor, sigma: float, *, truncate: float, border: str) -> Tensor:
    """Blur every plane by a Gaussian.

    Args:
        images: (N,C,H,W).
        sigma: The standard deviation in pixels.
        truncate: The deviations at which the Gaussian is cut off.
        border: What lies outside: ``nearest`` for the edge pixel, ``reflect`` for the mirror
            image including the edge pixel.
    """
    height, width = images.shape[2:]
    options = (float(sigma), truncate, border)
    return filter_separably(
        images, gaussian_matrix(height, *options), gaussian_matrix(width, *options)
    )


@lru_cache(maxsize=64)
def gaussian_matrix(size: int, sigma: float, truncate: float, border: str) -> Tensor:
    """Return Gaussian weights of radius ⌊truncate·σ + ½⌋; fold back those beyond the border."""
    radius = int(truncate * sigma + 0.5)
    steps = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2) if radius else np.ones(1)
    matrix = np.zeros((size, size))
    place = np.arange(size)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        source = place + step
        if border == "nearest":
            source = source.clip(0, size - 1)
        else:
            source = source % (2 * size)
            source = np.where(source < size, source, 2 * size - 1 - source)
        np.add.at(matrix, (place, source), weight)
    return _to_float32(matrix)


def zoom(images: Tensor, factor: float) -> Tensor:
    """Enlarge the middle of every plane to the whole by linear interpolation."""
    height, width = images.shape[2:]
    return filter_separably(images, zoom_matrix(height, factor), zoom_matrix(width, factor))


@lru_cache(maxsize=256)
def zoom_matrix(size: int, factor: float) -> Tensor:
    """Stretch the middle ⌈size/factor⌉ pixels, first to first and last to last, then trim."""
    kept = int(np.ceil(size / factor))
    stretched = round(kept * factor)
    trimmed = np.arange(size) + (stretched - size) // 2
    at = trimmed * ((kept - 1) / max(stretched - 1, 1))
    low = np.minimum(at.astype(int), kept - 1)
    high = np.minimum(low + 1, kept - 1)
    first = (size - kept) // 2
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size), first + low), 1.0 - (at - low))
    np.add.at(matrix, (np.arange(size), first + high), at - low)
    return _to_float32(matrix)


@lru_cache(maxsize=64)
def box_matrix(size: int, new: int) -> Tensor:
    """Average the old pixels whose centres a new pixel covers; take the nearest if enlarging."""
    scale = size / new
    centre = (np.arange(new)[:, None] + 0.5) * scale
    away = (np.arange(size)[None, :] + 0.5 - centre) / max(scale, 1.0)
    covered = ((away > -0.5) & (away <= 0.5)).astype(np.float64)
    return _to_float32(covered / covered.sum(1, keepdims=True))


def _to_float32(matrix: np.ndarray) -> Tensor:
    return torch.from_numpy(matrix).to(torch.float32)
