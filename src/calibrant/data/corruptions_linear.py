"""Blurs and changes of size that act on rows and columns alike: one matrix an axis."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """R·x·Cᵀ of every plane of (N,C,H,W)."""
    rows, columns = (matrix.to(images.device) for matrix in (rows, columns))
    return rows @ (images @ columns.T)


def gaussian_blur(images: Tensor, sigma: float, *, truncate: float, border: str) -> Tensor:
    """Every plane blurred by a Gaussian cut off at ``truncate`` deviations.

    ``border`` says what lies outside: ``nearest`` the edge pixel, ``reflect`` the mirror image,
    edge pixel included.
    """
    height, width = images.shape[2:]
    how = (float(sigma), truncate, border)
    return separable(images, gaussian_matrix(height, *how), gaussian_matrix(width, *how))


@lru_cache(maxsize=64)
def gaussian_matrix(size: int, sigma: float, truncate: float, border: str) -> Tensor:
    """A Gaussian's weights, of radius ⌊truncate·σ + ½⌋, folded back where they leave the line."""
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
    return _single(matrix)


def zoom(images: Tensor, factor: float) -> Tensor:
    """The middle of every plane, enlarged to the whole by linear interpolation."""
    height, width = images.shape[2:]
    return separable(images, zoom_matrix(height, factor), zoom_matrix(width, factor))


@lru_cache(maxsize=256)
def zoom_matrix(size: int, factor: float) -> Tensor:
    """The middle ⌈size/factor⌉ pixels, first to first and last to last, stretched and trimmed."""
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
    return _single(matrix)


@lru_cache(maxsize=64)
def box_matrix(size: int, new: int) -> Tensor:
    """Each new pixel the mean of the old ones whose centres it covers; one of them, enlarging."""
    scale = size / new
    centre = (np.arange(new)[:, None] + 0.5) * scale
    away = (np.arange(size)[None, :] + 0.5 - centre) / max(scale, 1.0)
    covered = ((away > -0.5) & (away <= 0.5)).astype(np.float64)
    return _single(covered / covered.sum(1, keepdims=True))


def _single(matrix: np.ndarray) -> Tensor:
    return torch.from_numpy(matrix).to(torch.float32)
