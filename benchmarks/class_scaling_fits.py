"""The fits of ``class_scaling.py`` as one CSV file, and the statistics taken from its rows."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

KEY = ("set", "seed", "calibrator", "objective")
COLUMNS = (
    *KEY,
    "ece",
    "ece_mass_l2",
    "nll",
    "classwise_ece",
    "accuracy",
    "spread",
    "fit_nll",
    "fit_spread",
    "temperature",
    "alpha",
    "beta",
    "path_spread",
    "toward_spread",
    "toward_nll",
    "beyond_spread",
    "beyond_nll",
    "note",
    "failure",
)
TEXT = ("set", "calibrator", "objective", "note", "failure")
PAPER = ("TS", "ETS", "PTS", "CTS")
LIBRARY = ("ETS of probabilities", "CTS drawn to TS")
SCALED = "CS nd printed"
FOUR = ("NLL", "LS", "FL", SCALED)
VARIANTS = tuple(
    f"CS {how} {est}" for est in ("printed", "corrected") for how in ("nd", "mm", "cm")
)


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's, NaN where one of them does not vary."""
    mean_first, mean_second = fmean(first), fmean(second)
    across = math.fsum(
        (a - mean_first) * (b - mean_second) for a, b in zip(first, second, strict=True)
    )
    sizes = [
        math.fsum((a - m) ** 2 for a in x) for x, m in ((first, mean_first), (second, mean_second))
    ]
    if min(sizes) <= 1e-24 * max(mean_first * mean_first, mean_second * mean_second, 1e-300):
        return math.nan
    return across / math.sqrt(sizes[0] * sizes[1])


def ranks(values: Sequence[float]) -> list[float]:
    """1 to n, ties sharing their mean."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error; NaN where there is too little to say."""

    value: float
    error: float
    count: int

    @property
    def clear(self) -> int:
        """The sign of the mean where it is more than two standard errors from 0, else 0."""
        if not math.isfinite(self.error) or abs(self.value) <= 2 * self.error:
            return 0
        return 1 if self.value > 0 else -1

    def show(self, form: str = ".2f", scale: float = 1.0) -> str:
        """``value ± error``."""
        if math.isnan(self.value):
            return "-"
        if math.isnan(self.error):
            return f"{self.value * scale:{form}}"
        return f"{self.value * scale:{form}} ± {self.error * scale:{form.lstrip('+')}}"


def mean_of(values: Iterable[float]) -> Mean:
    """Over the values that are numbers."""
    kept = [value for value in values if not math.isnan(value)]
    if not kept:
        return Mean(math.nan, math.nan, 0)
    error = stdev(kept) / math.sqrt(len(kept)) if len(kept) > 1 else math.nan
    return Mean(fmean(kept), error, len(kept))


@dataclass(frozen=True)
class Difference:
    """A paired difference: each set over its splits, and the sets together."""

    sets: dict[str, Mean]

    @property
    def over_sets(self) -> Mean:
        """The mean of the sets' means, its error from how they differ."""
        return mean_of(mean.value for mean in self.sets.values())

    def count(self, sign: int) -> int:
        """Sets whose difference has this sign."""
        return sum(mean.value * sign > 0 for mean in self.sets.values())

    def show(self, form: str = "+.2f", scale: float = 1.0) -> str:
        """The mean over sets, and on how many of them it is lower."""
        return f"{self.over_sets.show(form, scale)} [{self.count(-1)}/{len(self.sets)}]"


class Fits:
    """The rows of the CSV file by cell."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.rows = list(rows)
        self.failed = [row for row in self.rows if row["failure"]]
        self._cells: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        for row in self.rows:
            if not row["failure"]:
                cell = (row["set"], row["calibrator"], row["objective"])
                self._cells[cell][int(row["seed"])] = row
        self.sets = sorted({cell[0] for cell in self._cells})
        self.seeds = sorted({seed for cell in self._cells.values() for seed in cell})

    def values(self, name: str, calibrator: str, objective: str, figure: str) -> dict[int, float]:
        """By seed."""
        found = self._cells.get((name, calibrator, objective), {})
        return {seed: row[figure] for seed, row in found.items() if not math.isnan(row[figure])}

    def mean(self, name: str, calibrator: str, objective: str, figure: str) -> Mean:
        """Over the splits."""
        return mean_of(self.values(name, calibrator, objective, figure).values())

    def difference(
        self, cell: tuple[str, str], base: tuple[str, str], figure: str, *, relative: bool = False
    ) -> Difference:
        """Of a (calibrator, objective) from another on the same splits."""
        found = {}
        for name in self.sets:
            values, base_values = (self.values(name, *which, figure) for which in (cell, base))
            both = sorted(values.keys() & base_values.keys())
            if both:
                gaps = [
                    (values[s] - base_values[s]) / (base_values[s] if relative else 1.0)
                    for s in both
                ]
                found[name] = mean_of(gaps)
        return Difference(found)

    def correlations(
        self, cells: Sequence[tuple[str, str]], figure: str, *, ranked: bool = False
    ) -> dict[str, Mean]:
        """Of a figure with ECE over cells, in each split by itself; mean over splits, by set.

        A fit that failed is left out; a split that lacks more than a quarter of them, too.
        """
        found = {}
        for name in self.sets:
            each = []
            for seed in self.seeds:
                rows = [self._cells.get((name, *cell), {}).get(seed) for cell in cells]
                kept = [row for row in rows if row is not None]
                if len(kept) >= 0.75 * len(cells):
                    pair = [row[figure] for row in kept], [row["ece"] for row in kept]
                    each.append(correlation(*(ranks(x) if ranked else x for x in pair)))
            if each:
                found[name] = mean_of(each)
        return found

    def across_splits(self, cells: Sequence[tuple[str, str]], figure: str) -> dict[str, float]:
        """Of a figure with ECE over splits: deviations from each cell's mean, cells pooled."""
        found = {}
        for name in self.sets:
            first: list[float] = []
            second: list[float] = []
            for cell in cells:
                figures, errors = (self.values(name, *cell, column) for column in (figure, "ece"))
                if len(figures) > 1:
                    first += [figures[seed] - fmean(figures.values()) for seed in figures]
                    second += [errors[seed] - fmean(errors.values()) for seed in figures]
            if first:
                found[name] = correlation(first, second)
        return found


def write(records: Iterable[dict[str, Any]], path: Path) -> None:
    """The cache's records in order, six digits each."""
    ordered = sorted(records, key=lambda record: tuple(record[name] for name in KEY))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([_cell(record.get(name, "")) for name in COLUMNS] for record in ordered)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of the CSV file; figures a fit has not are NaN."""
    with path.open(newline="") as file:
        return [
            {
                name: cell if name in TEXT else float(cell) if cell else math.nan
                for name, cell in row.items()
            }
            for row in csv.DictReader(file)
        ]


def short(name: str) -> str:
    """A set's name for a narrow column."""
    return name.replace("imagenet5k-efficientnet-", "imagenet ").replace("-", " ", 1)
