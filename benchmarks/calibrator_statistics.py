"""What the lines of ``calibrator_quality`` say: paired differences and counts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import synthetic
from calibrator_contestants import OURS
from calibrator_quality import Key, Line

AUTO = f"{OURS} auto"
BEFORE = f"{OURS} uncalibrated"
TEMPERATURE = f"{OURS} temperature"
RIVAL = "probmetrics logistic-mix"


@dataclass(frozen=True)
class Difference:
    """A mean of paired differences over splits, and its standard error."""

    mean: float
    error: float

    @property
    def at_or_below(self) -> bool:
        """Lower, or higher by no more than one standard error: a tie."""
        return self.mean <= 0 or self.mean <= self.error

    @property
    def significantly_above(self) -> bool:
        """Higher by more than two standard errors."""
        return self.mean > 0 and self.mean > 2 * self.error

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "-"
        error = f" ± {self.error:.4f}" if math.isfinite(self.error) else ""
        return f"{self.mean:+.4f}{error}"


def paired(left: Sequence[float], right: Sequence[float]) -> Difference:
    """Of left − right, split by split."""
    gaps = [a - b for a, b in zip(left, right, strict=True)]
    if len(gaps) < 2:
        return Difference(gaps[0] if gaps else math.nan, math.nan)
    return Difference(statistics.fmean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5)


class Results:
    """Lines by set and contestant; a contestant counts where it came through every split."""

    def __init__(self, lines: Mapping[Key, Line]) -> None:
        self.lines = dict(lines)
        self.seeds = sorted({seed for _, seed, _ in self.lines})
        self.contestants = list(dict.fromkeys(contestant for _, _, contestant in self.lines))
        self.sets = sorted({name for name, _, _ in self.lines})

    @property
    def real(self) -> list[str]:
        """Sets of real networks."""
        return [name for name in self.sets if name not in synthetic.NAMES]

    @property
    def made_up(self) -> list[str]:
        """Synthetic sets."""
        return [name for name in synthetic.NAMES if name in self.sets]

    def of(self, name: str, contestant: str) -> list[Line]:
        """Lines of every split, or none if one is missing or failed."""
        found = [self.lines.get((name, seed, contestant)) for seed in self.seeds]
        whole = [line for line in found if line and not line["failure"]]
        return whole if len(whole) == len(self.seeds) else []

    def values(self, name: str, contestant: str, figure: str = "nll") -> list[float]:
        """One value a split."""
        return [float(line[figure]) for line in self.of(name, contestant)]

    def mean(self, name: str, contestant: str, figure: str = "nll") -> float:
        """Over splits; NaN where one is missing."""
        found = self.values(name, contestant, figure)
        return statistics.fmean(found) if found else math.nan

    def difference(
        self, name: str, left: str, right: str | None, figure: str = "nll"
    ) -> Difference:
        """Left − right on one set; NaN where one is missing."""
        if right is None:
            return Difference(math.nan, math.nan)
        first, second = self.values(name, left, figure), self.values(name, right, figure)
        if not first or not second:
            return Difference(math.nan, math.nan)
        return paired(first, second)

    def is_peer(self, contestant: str) -> bool:
        """Whether it is another library's."""
        return not contestant.startswith(OURS + " ")

    def best_peer(self, name: str) -> str | None:
        """The peers' method of lowest mean test NLL on this set, in hindsight."""
        finished = [c for c in self.contestants if self.is_peer(c) and self.of(name, c)]
        return min(finished, key=lambda c: self.mean(name, c), default=None)

    def best_of(self, name: str) -> str | None:
        """The method of lowest mean test NLL, ours and the peers' alike."""
        finished = [c for c in self.contestants if self.of(name, c)]
        return min(finished, key=lambda c: self.mean(name, c), default=None)

    def finished_everywhere(self, names: Sequence[str]) -> list[str]:
        """Those that came through every split of these sets."""
        return [c for c in self.contestants if all(self.of(name, c) for name in names)]


@dataclass(frozen=True)
class Counts:
    """The figures the targets are about."""

    sets: int
    at_or_below_rival: int
    mean_auto: float
    mean_rival: float
    near_best_peer: int
    worse_nll: tuple[str, ...]
    worse_ece: tuple[str, ...]


def count(results: Results, names: Sequence[str]) -> Counts:
    """Over the sets on which the choosing calibrator and its rival both came through."""
    both = [n for n in names if results.of(n, AUTO) and results.of(n, RIVAL)]
    judged = [n for n in names if results.of(n, AUTO) and results.of(n, BEFORE)]
    mean = statistics.fmean if both else lambda _: math.nan
    return Counts(
        sets=len(both),
        at_or_below_rival=sum(results.difference(n, AUTO, RIVAL).at_or_below for n in both),
        mean_auto=mean([results.mean(n, AUTO) for n in both]),
        mean_rival=mean([results.mean(n, RIVAL) for n in both]),
        near_best_peer=sum(
            results.difference(n, AUTO, results.best_peer(n)).at_or_below for n in both
        ),
        worse_nll=tuple(
            n for n in judged if results.difference(n, AUTO, BEFORE, "nll").significantly_above
        ),
        worse_ece=tuple(
            n for n in judged if results.difference(n, AUTO, BEFORE, "ece").significantly_above
        ),
    )
