"""The scalar root that temperature scaling is: safeguarded Newton on a logarithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Root:
    """Where a rising function crosses zero, or the bound it does not reach before."""

    value: float
    passes: int
    at_bound: bool


def rising_root(
    function: Callable[[float], tuple[float, float]],
    *,
    low: float,
    high: float,
    start: float = 1.0,
    tolerance: float = 1e-6,
    most: int = 60,
) -> Root:
    """The root of a function that rises with its positive argument, within [low, high].

    ``function`` gives value and derivative. Newton runs on the logarithm, where scales are
    steps; a step that leaves the bracket, or that is not finite, is replaced by bisection.
    Converged when the next step would move the logarithm by less than ``tolerance``.
    """
    left, right = math.log(low), math.log(high)
    place = min(max(math.log(start), left), right)
    for passes in range(1, most + 1):
        argument = math.exp(place)
        value, slope = function(argument)
        if value == 0:
            # Flat as well as zero: the function has run out of digits before it rises.
            return Root(argument, passes, at_bound=slope == 0)
        if value < 0:
            left = place
        else:
            right = place
        step = -value / (slope * argument) if slope > 0 else math.inf
        # A long first step from far away is halved in reach, not in direction.
        step = max(-3.0, min(3.0, step)) if math.isfinite(step) else math.inf
        following = place + step
        if not left < following < right:
            following = 0.5 * (left + right)
            at_edge = right - left < tolerance
            if at_edge:
                bound = math.log(low) == left or math.log(high) == right
                return Root(math.exp(following), passes, bound)
        elif abs(step) < tolerance:
            return Root(math.exp(following), passes, False)
        place = following
    return Root(math.exp(place), most, False)
