"""What is known of a share after counting."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def wilson(rate: Floats, count: Floats, level: float) -> tuple[Floats, Floats]:
    """Wilson's score interval: sound for few rows and for rates near 0 and 1."""
    from scipy.special import ndtri

    z2 = float(ndtri(0.5 + level / 2)) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = (rate + z2 / (2 * count)) / (1 + z2 / count)
        half = np.sqrt(z2 * rate * (1 - rate) / count + (z2 / (2 * count)) ** 2) / (1 + z2 / count)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)
