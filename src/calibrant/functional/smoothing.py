"""Gaussian smoothing on [0, 1], reflected at both ends."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]


def smooth_calibration_error(
    score: Floats, residual: Floats, *, count: int = 4096, tolerance: float = 1e-7
) -> Floats:
    """smECE of Błasiok & Nakkiran (2023): the error that survives smoothing at its own scale.

    smECE_σ = ∫ |1/N Σ_i K_σ(t, c_i) (c_i − a_i)| dt with a Gaussian kernel reflected at 0
    and 1; the value is smECE_σ* where smECE_σ* = σ*, found by bisection (smECE_σ falls and
    σ grows). Residuals (c_i − a_i)/N of each score, (..., G), are shared between
    neighbouring cells of a grid of ``count``, and a cosine transform applies the reflected
    kernel exactly: cosines are its eigenvectors.
    """
    from scipy.fft import dct, idct

    spectrum = dct(_on_grid(score, residual, count), type=2, norm="ortho")
    frequency = np.pi * np.arange(count)

    def error(width: Floats) -> Floats:
        damped = spectrum * np.exp(-0.5 * (width[..., None] * frequency) ** 2)
        total: Floats = np.abs(idct(damped, type=2, norm="ortho")).sum(-1)
        return total

    low = np.zeros(residual.shape[:-1])
    high = np.ones_like(low)
    for _ in range(int(np.ceil(-np.log2(tolerance)))):
        middle = 0.5 * (low + high)
        above = error(middle) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return error(0.5 * (low + high))


def _on_grid(score: Floats, residual: Floats, count: int) -> Floats:
    """Residuals shared linearly between the two cells next to each score: (..., count)."""
    place = np.clip(score, 0.0, 1.0) * count - 0.5
    left = np.clip(np.floor(place).astype(np.int64), 0, count - 1)
    right = np.minimum(left + 1, count - 1)
    share = np.clip(place - left, 0.0, 1.0)
    if residual.ndim == 1:
        grid = np.zeros(count)
        grid += np.bincount(left, weights=residual * (1 - share), minlength=count)
        grid += np.bincount(right, weights=residual * share, minlength=count)
        return grid
    table = np.zeros((len(score), count))
    table[np.arange(len(score)), left] += 1 - share
    table[np.arange(len(score)), right] += share
    return residual @ table
