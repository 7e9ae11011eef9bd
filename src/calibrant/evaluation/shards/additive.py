"""Intervals of means, gaps and ratios from sums: in closed form, without the rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from calibrant.evaluation.bootstrap import moment_interval
from calibrant.evaluation.clustered import (
    RobustInterval,
    Scale,
    correct_leverage,
    student_interval,
)
from calibrant.evaluation.shards.sums import Sums
from calibrant.functional.statistics import korn_graubard, wilson

Floats: TypeAlias = NDArray[np.float64]


class Additive:
    """The means of quantities of rows, and how much they vary.

    The influence of a row on a smooth function of means is Σ_j a_j x_j of the row's quantities x,
    which sums to 0. Its variance needs Σ w² x x' of independent rows, and Σ_{i∈g} w_i x_i of every
    cluster else (`clustered.influence_interval`).

    Args:
        sums: The sums of all rows.
    """

    def __init__(self, sums: Sums) -> None:
        moments = sums.moments
        self.names = moments.quantities
        self.number = sums.num_rows
        self.first = moments.total("first").numpy()
        self.second = moments.total("second").numpy()
        self.third = moments.total("third").numpy()
        self.fourth = float(moments.total("fourth"))
        self.weight = float(self.first[0])
        self.clusters: Floats | None = None
        if sums.units is not None and sums.units.clustered:
            self.clusters = sums.units.clusters.whole()[1]

    @property
    def weighted(self) -> bool:
        """Return whether rows have different weights."""
        return self.weight != self.number or self.second[0, 0] != self.number

    def mean(self, name: str) -> float:
        """Return the weighted mean of a quantity."""
        return float(self.first[self.names.index(name)] / self.weight)

    @cached_property
    def num_units(self) -> int:
        """Return the number of independent units: rows, or clusters."""
        return self.number if self.clusters is None else len(self.clusters)

    def _vector(self, influence: Mapping[str, float]) -> Floats:
        vector = np.zeros(len(self.names))
        for name, factor in influence.items():
            vector[self.names.index(name)] += factor
        vector[0] -= float(vector @ self.first) / self.weight  # sums to 0
        return vector

    def error(self, influence: Mapping[str, float]) -> tuple[float, float]:
        """Return a standard error and its degrees of freedom.

        Args:
            influence: The factor of each quantity in the influence; a constant is added so that
                it sums to 0.
        """
        a = self._vector(influence)
        alone = max(float(a @ self.second @ a), 0.0)
        squares, number = float(self.second[0, 0]), self.num_units
        if number < 2:
            return np.inf, 0.0
        if self.clusters is None:
            variance = alone / self.weight**2 * number / (number - 1)
            return variance**0.5, (number - 1) / number * squares**2 / self.fourth
        mass, single = self.clusters[:, 0], self.clusters[:, -1]
        parts = self.clusters[:, :-1] @ a
        corrected = parts / self.weight * correct_leverage(mass / self.weight)
        pairs = np.maximum(mass**2 - single, 0.0)
        spread = alone / squares * float(pairs.sum())
        excess = float(parts @ parts) - alone
        correlation = min(max(excess / spread, 0.0), 1.0) if spread > 0 else 0.0
        expected = single + correlation * pairs
        share = expected / expected.sum()
        degrees = max(1.0, float((number - 1) / number / (share**2).sum()))
        return float(corrected @ corrected) ** 0.5, degrees

    def interval(
        self,
        value: float,
        influence: Mapping[str, float],
        level: float,
        scale: Scale = "identity",
    ) -> RobustInterval:
        """Compute the interval of a smooth function of means.

        Args:
            value: The figure.
            influence: As in `error`.
            level: The confidence level.
            scale: Where the interval is symmetric.
        """
        error, degrees = self.error(influence)
        if not np.isfinite(error):
            return RobustInterval(value, -np.inf, np.inf, np.inf, self.num_units, 0.0)
        return student_interval(value, error, self.num_units, degrees, level, scale)

    def mean_interval(self, name: str, level: float) -> tuple[float, float]:
        """Compute the interval of a mean; see `bootstrap.mean_interval` for plain rows.

        Args:
            name: The quantity.
            level: The confidence level.
        """
        mean = self.mean(name)
        if self.weighted or self.clusters is not None:
            interval = self.interval(mean, {name: 1.0}, level)
            return interval.low, interval.high
        place = self.names.index(name)
        first, second, third = self.first[place], self.second[place, place], self.third[place]
        squares = float(second - mean * first)
        if not squares > 1e-12 * second:
            return mean, mean
        cubes = float(third - 3 * mean * second + 3 * mean**2 * first - self.number * mean**3)
        return moment_interval(self.number, mean, squares, cubes, level)

    def rate_interval(self, name: str, level: float) -> tuple[float, float]:
        """Compute Korn and Graubard's interval of a share, such as the rate of events."""
        rate = self.mean(name)
        error, degrees = self.error({name: 1.0})
        count = float(self.number)
        if not 0 < rate < 1 and self.clusters is not None:
            count = self.weight**2 / float((self.clusters[:, 0] ** 2).sum())
        elif not 0 < rate < 1:
            count = self.weight**2 / float(self.second[0, 0])
        return korn_graubard(rate, error**2, count, degrees, level)

    def gap(self, level: float, *, few: bool) -> RobustInterval:
        """Compute the interval of mean probability less frequency; see `clustered.gap_interval`.

        Args:
            level: The confidence level.
            few: Whether there are under ten events, or rows without.
        """
        mean, rate = self.mean("confidence"), self.mean("correct")
        gap = self.mean("gap")
        interval = self.interval(gap, {"gap": 1.0}, level)
        low, high = max(interval.low, -1.0), min(interval.high, 1.0)
        common = rate > 0.5
        frequency, claimed = (1 - rate, 1 - mean) if common else (rate, mean)
        if 0 < rate < 1 and claimed > 0:
            ratio = frequency / claimed
            sign = -1.0 if common else 1.0
            parts = {"correct": sign / claimed, "confidence": -sign * ratio / claimed}
            ends = self.interval(ratio, parts, level, "log")
            signed = sign * claimed
            reach = [signed * (1 - end) for end in (ends.low, ends.high)]
            low, high = min(low, *reach), max(high, *reach)
        if few:
            least, most = self.rate_interval("correct", level)
            low, high = min(low, mean - most), max(high, mean - least)
        low, high = max(low, -1.0), min(high, 1.0)
        return RobustInterval(
            gap, low, high, interval.standard_error, interval.num_clusters, interval.degrees
        )

    def class_gap(self, level: float, *, few: bool) -> tuple[float, float]:
        """Compute the interval of mean confidence less accuracy of plain rows of classes.

        Args:
            level: The confidence level.
            few: Whether rows, errors or right rows are few: it then holds Wilson's of the accuracy.
        """
        low, high = self.mean_interval("gap", level)
        if few:
            rate, count = np.array([self.mean("correct")]), np.array([float(self.number)])
            least, most = (float(end[0]) for end in wilson(rate, count, level))
            mean = self.mean("confidence")
            low, high = min(low, mean - most), max(high, mean - least)
        return low, high

    def ratio(self, level: float, *, few: bool) -> RobustInterval:
        """Compute the interval of observed over expected events, symmetric in its logarithm.

        Args:
            level: The confidence level.
            few: Whether there are under ten events, or rows without.
        """
        mean, rate = self.mean("confidence"), self.mean("correct")
        value = rate / mean
        interval = self.interval(
            value, {"correct": 1 / mean, "confidence": -value / mean}, level, "log"
        )
        low, high = interval.low, interval.high
        if few:
            least, most = self.rate_interval("correct", level)
            low, high = min(low, least / mean), max(high, most / mean)
        return RobustInterval(
            value, low, high, interval.standard_error, interval.num_clusters, interval.degrees
        )
