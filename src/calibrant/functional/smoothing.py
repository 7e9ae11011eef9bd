"""Gaussian smoothing on [0, 1], reflected at both ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def smooth_calibration_error(
    score: NDArray[np.float64],
    residual: NDArray[np.float64],
    *,
    count: int = 4096,
    tolerance: float = 1e-7,
) -> float:
    """smECE of Błasiok & Nakkiran (2023): the error that survives smoothing at its own scale.

    smECE_σ = ∫ |1/N Σ_i K_σ(t, c_i) (c_i − a_i)| dt with a Gaussian kernel reflected at 0
    and 1; the value is smECE_σ* where smECE_σ* = σ*, found by bisection (smECE_σ falls and
    σ grows). Residuals c_i − a_i, summed already over equal scores, are shared between
    neighbouring cells of a grid of ``count``, and a cosine transform applies the reflected
    kernel exactly: cosines are its eigenvectors.
    """
    from scipy.fft import dct, idct

    place = np.clip(score, 0.0, 1.0) * count - 0.5
    left = np.clip(np.floor(place).astype(np.int64), 0, count - 1)
    right = np.minimum(left + 1, count - 1)
    share = np.clip(place - left, 0.0, 1.0)
    mass = np.bincount(left, weights=residual * (1 - share), minlength=count)
    mass += np.bincount(right, weights=residual * share, minlength=count)
    spectrum = dct(mass, type=2, norm="ortho")
    frequency = np.pi * np.arange(count)

    def error(width: float) -> float:
        damped = spectrum * np.exp(-0.5 * (width * frequency) ** 2)
        return float(np.abs(idct(damped, type=2, norm="ortho")).sum())

    low, high = 0.0, 1.0
    while high - low > tolerance:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return error(0.5 * (low + high))
