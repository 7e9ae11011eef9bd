"""Student's t from its density, by Simpson's rule: nothing of scipy."""

from __future__ import annotations

import math
from functools import lru_cache


def simpson(function, low, high, steps=1000):
    width = (high - low) / steps
    total = function(low) + function(high)
    for step in range(1, steps):
        total += function(low + step * width) * (4 if step % 2 else 2)
    return total * width / 3


def t_tail(value, df):
    """P(T > value), by the density, with t = tan u so that the range is finite."""
    constant = math.gamma((df + 1) / 2) / (math.sqrt(df * math.pi) * math.gamma(df / 2))

    def density(u):
        t = math.tan(u)
        return constant * (1 + t * t / df) ** (-(df + 1) / 2) * (1 + t * t)

    return simpson(density, math.atan(value), math.pi / 2 - 1e-9)


@lru_cache
def t_edge(df):
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > 0.025 else (low, middle)
    return low
