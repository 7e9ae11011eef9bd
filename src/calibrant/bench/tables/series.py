"""Results as series to draw: against a setting, an epoch, a severity, or another figure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from calibrant.bench.tables.results import Cell, Results, Runs
from calibrant.bench.tables.statistics import Mean, mean_of

NUMBER = r"(-?[\d.]+(?:e-?\d+)?)"


@dataclass(frozen=True)
class Series:
    """A line: values over seeds at each place of one axis, in order."""

    name: str
    points: dict[float, Mean] = field(default_factory=dict)

    @property
    def places(self) -> list[float]:
        """Where there are values."""
        return list(self.points)

    @property
    def means(self) -> list[float]:
        """The mean at each place."""
        return [one.mean for one in self.points.values()]

    @property
    def errors(self) -> list[float]:
        """The standard error at each place; 0 where there is one seed only."""
        return [one.error or 0.0 for one in self.points.values()]


def series_of(name: str, values: Mapping[float, Iterable[float]]) -> Series:
    """A line from values at each place; places without any are left out."""
    kept = {place: list(each) for place, each in sorted(values.items())}
    return Series(name, {place: mean_of(each) for place, each in kept.items() if each})


def by_method(
    found: Results, prefix: str, metric: str, *, calibrator: str = "none", part: str = "test"
) -> dict[Cell, Series]:
    """Methods named ``prefix=NUMBER``, as in ``lambda=0.5``, a line a cell against the number."""
    pattern = re.compile(rf"{re.escape(prefix)}={NUMBER}$")
    lines: dict[Cell, dict[float, Iterable[float]]] = {}
    for (cell, method), runs in found.values(metric, calibrator=calibrator, part=part).items():
        if match := pattern.match(method):
            lines.setdefault(cell, {})[float(match[1])] = runs.values()
    return {cell: series_of(prefix, values) for cell, values in lines.items()}


def by_option(
    found: Results,
    option: str,
    metric: str,
    *,
    method: str,
    only: str = "",
    but: str | None = None,
    part: str = "test",
) -> dict[Cell, Series]:
    """Calibrators with an option, as in ``mac_cal_head(gamma=0.9)``, against its value.

    ``only``: other text the calibrator's name must hold; ``but``: text it must not.
    """
    pattern = re.compile(rf".*[(,]{re.escape(option)}={NUMBER}[,)]")
    lines: dict[Cell, dict[float, Iterable[float]]] = {}
    for calibrator in found.own_calibrators:
        match = pattern.match(calibrator)
        if match is None or only not in calibrator or (but is not None and but in calibrator):
            continue
        for (cell, name), runs in found.values(metric, calibrator=calibrator, part=part).items():
            if name == method:
                lines.setdefault(cell, {})[float(match[1])] = runs.values()
    return {cell: series_of(option, values) for cell, values in lines.items()}


def grid(
    found: Results, names: tuple[str, str], metric: str, *, part: str = "test"
) -> dict[Cell, dict[tuple[float, float], Mean]]:
    """Methods named ``first=NUMBER,second=NUMBER``, as in ``eps=0.05,lambda=0.5``."""
    first, second = (re.escape(name) for name in names)
    pattern = re.compile(rf"{first}={NUMBER},{second}={NUMBER}$")
    tables: dict[Cell, dict[tuple[float, float], Mean]] = {}
    for (cell, method), runs in found.values(metric, part=part).items():
        if match := pattern.match(method):
            place = (float(match[1]), float(match[2]))
            tables.setdefault(cell, {})[place] = mean_of(list(runs.values()))
    return {cell: dict(sorted(table.items())) for cell, table in tables.items()}


def by_epoch(
    found: Results, metric: str, *, part: str = "validation", calibrator: str = "none"
) -> dict[Cell, list[Series]]:
    """A line a method against the epoch: parts such as ``validation@12``."""
    return _by_part(found, metric, re.compile(rf"{re.escape(part)}@(\d+)$"), calibrator)


def by_severity(
    found: Results, metric: str, *, calibrator: str = "none"
) -> dict[Cell, list[Series]]:
    """A line a method against severity, clean rows at 0: means over the kinds of corruption.

    Errors are of seeds: kinds differ by what they are, and not by chance (soft-calibration
    figure 2 takes them out likewise).
    """
    shifted = _by_part(found, metric, re.compile(r"test:\w+:(\d)$"), calibrator)
    clean = found.values(metric, calibrator=calibrator)
    return {
        cell: [
            Series(one.name, {0.0: mean_of(list(clean[cell, one.name].values())), **one.points})
            for one in lines
            if (cell, one.name) in clean
        ]
        for cell, lines in shifted.items()
    }


def _by_part(
    found: Results, metric: str, pattern: re.Pattern[str], calibrator: str
) -> dict[Cell, list[Series]]:
    """A line a method against the number in a part's name; a seed's several parts averaged."""
    rows = found.rows
    name = found.find_calibrator(calibrator)
    rows = rows[(rows["metric"] == metric) & (rows["calibrator"] == name)]
    matched = {part: pattern.match(str(part)) for part in rows["part"].unique()}
    places = {part: float(match[1]) for part, match in matched.items() if match}
    lines: dict[tuple[Cell, str], dict[float, dict[int, list[float]]]] = {}
    for row in rows[rows["part"].isin(places)].itertuples():
        for method, cell, seed in found.plan[str(row.key)]:
            line = lines.setdefault((cell, method), {}).setdefault(places[str(row.part)], {})
            line.setdefault(seed, []).append(float(row.value))
    told: dict[Cell, list[Series]] = {}
    for (cell, method), by_place in lines.items():
        means = {
            place: [math.fsum(each) / len(each) for each in seeds.values()]
            for place, seeds in by_place.items()
        }
        told.setdefault(cell, []).append(series_of(method, means))
    order = {method: place for place, method in enumerate(found.suite.methods)}
    return {cell: sorted(lines, key=lambda one: order[one.name]) for cell, lines in told.items()}


def pairs(
    found: Results, first: str, second: str, *, part: str = "test"
) -> dict[Cell, list[tuple[str, str, float, float]]]:
    """(method, calibrator, first figure, second figure), means over seeds both have, by cell."""
    told: dict[Cell, list[tuple[str, str, float, float]]] = {}
    for calibrator in found.calibrators:
        one = found.values(first, calibrator=calibrator, part=part, exact=True)
        two = found.values(second, calibrator=calibrator, part=part, exact=True)
        for cell, method in one.keys() & two.keys():
            both = _both(one[cell, method], two[cell, method])
            if both is not None:
                told.setdefault(cell, []).append((method, calibrator, *both))
    return {cell: sorted(each) for cell, each in told.items()}


def _both(one: Runs, two: Runs) -> tuple[float, float] | None:
    seeds = sorted(one.keys() & two.keys())
    first, second = (mean_of([runs[seed] for seed in seeds]).mean for runs in (one, two))
    return (first, second) if math.isfinite(first) and math.isfinite(second) else None
