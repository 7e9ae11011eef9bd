"""Statistics over a few seeds: means, paired tests and ties.

Methods trained with the same seed share the split of the data and the order of the batches.
Comparisons are therefore paired: Student's t-test of the differences over common seeds. Fewer
than three pairs are not tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEWEST = 3  # pairs to test: with two, the 5% point of t is 12.7
LEVEL = 0.05


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard error s/√n; None for a single seed."""

    mean: float
    error: float | None
    count: int


@dataclass(frozen=True)
class Paired:
    """A mean difference of pairs, its 95% interval and the p-value of "no difference"."""

    mean: float
    count: int
    deviation: float | None = None  # of the differences, unbiased; None for one pair
    low: float | None = None
    high: float | None = None
    p: float | None = None  # None where there are fewer than FEWEST pairs

    @property
    def tested(self) -> bool:
        """Whether there were enough pairs for a test."""
        return self.p is not None


def mean_of(values: Sequence[float]) -> Mean:
    """Compute mean and standard error.

    >>> mean_of([1.0, 2.0, 3.0])
    Mean(mean=2.0, error=0.5773502691896258, count=3)
    >>> mean_of([4.0]).error is None
    True
    """
    count = len(values)
    mean = math.fsum(values) / count if count else math.nan
    deviation = _deviation(values, mean)
    return Mean(mean, None if deviation is None else deviation / math.sqrt(count), count)


def paired(differences: Sequence[float], *, level: float = LEVEL) -> Paired:
    """Test by a two-sided paired t-test whether the mean difference is 0.

    If all differences are equal, p is 1 if they are 0, else 0.
    """
    from scipy.stats import t

    mean = mean_of(differences)
    deviation = _deviation(differences, mean.mean)
    if deviation is None or mean.error is None:
        return Paired(mean.mean, mean.count)
    reach = float(t.ppf(1 - level / 2, mean.count - 1)) * mean.error
    if mean.count < FEWEST:
        p = None
    elif mean.error == 0:
        p = 1.0 if mean.mean == 0 else 0.0
    else:
        p = 2 * float(t.sf(abs(mean.mean) / mean.error, mean.count - 1))
    low, high = mean.mean - reach, mean.mean + reach
    return Paired(mean.mean, mean.count, deviation, low, high, p)


def paired_by_seed(left: Mapping[int, float], right: Mapping[int, float]) -> Paired:
    """Test left − right over common seeds: see `paired`."""
    return paired([left[seed] - right[seed] for seed in sorted(left.keys() & right.keys())])


def find_best_and_tied(
    values: Mapping[str, Mapping[int, float]], *, higher: bool, level: float = LEVEL
) -> tuple[str | None, set[str]]:
    """Return the name with the best mean, and names that a paired test cannot tell from it.

    If some have three seeds, the best is one of these. A method with fewer than three seeds in
    common with the best is never tied.
    """
    means = {name: mean_of(list(runs.values())).mean for name, runs in values.items() if runs}
    means = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if not means:
        return None, set()
    enough = [name for name in means if len(values[name]) >= FEWEST] or list(means)
    best = (max if higher else min)(enough, key=lambda name: means[name])
    tied = set()
    for name in means.keys() - {best}:
        test = paired_by_seed(values[name], values[best])
        if test.p is not None and test.p >= level:
            tied.add(name)
    return best, tied


def _deviation(values: Sequence[float], mean: float) -> float | None:
    if len(values) < 2:
        return None
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
