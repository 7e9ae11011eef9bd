"""Statistics that several rooms report: Holm's correction and Wilson's interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for their number by Holm's step-down rule (1979); None stays None.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    adjusted: list[float | None] = [None] * len(p_values)
    tested = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for rank, (p, place) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        adjusted[place] = largest
    return adjusted


def wilson(rate: Floats, count: Floats, level: float) -> tuple[Floats, Floats]:
    """Compute Wilson's score interval of a proportion: sound for few rows, and near 0 and 1.

    Args:
        rate: The observed proportions.
        count: The number of rows behind each proportion; NaN bounds where it is 0.
        level: The confidence level, such as 0.95.
    """
    from scipy.special import ndtri

    z2 = float(ndtri(0.5 + level / 2)) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = (rate + z2 / (2 * count)) / (1 + z2 / count)
        half = np.sqrt(z2 * rate * (1 - rate) / count + (z2 / (2 * count)) ** 2) / (1 + z2 / count)
    return np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)
