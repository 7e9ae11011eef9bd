"""Series of results to draw: against a setting, an epoch, a severity or another figure."""

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
    """A line: means over seeds at places of an axis, in order."""

    name: str
    points: dict[float, Mean] = field(default_factory=dict)

    @property
    def places(self) -> list[float]:
        """The places that have values."""
        return list(self.points)

    @property
    def means(self) -> list[float]:
        """The mean at each place."""
        return [mean.mean for mean in self.points.values()]

    @property
    def errors(self) -> list[float]:
        """The standard error at each place; 0 for a single seed."""
        return [mean.error or 0.0 for mean in self.points.values()]


def series_of(name: str, values: Mapping[float, Iterable[float]]) -> Series:
    """Make a line from values at places; places without values are left out."""
    kept = {place: list(numbers) for place, numbers in sorted(values.items())}
    return Series(name, {place: mean_of(numbers) for place, numbers in kept.items() if numbers})


def by_method(
    results: Results, prefix: str, metric: str, *, calibrator: str = "none", part: str = "test"
) -> dict[Cell, Series]:
    """Return a line for each cell of methods named ``prefix=NUMBER``, as in ``lambda=0.5``."""
    pattern = re.compile(rf"{re.escape(prefix)}={NUMBER}$")
    lines: dict[Cell, dict[float, Iterable[float]]] = {}
    for (cell, method), runs in results.values(metric, calibrator=calibrator, part=part).items():
        if match := pattern.match(method):
            lines.setdefault(cell, {})[float(match[1])] = runs.values()
    return {cell: series_of(prefix, values) for cell, values in lines.items()}


def by_option(
    results: Results,
    option: str,
    metric: str,
    *,
    method: str,
    only: str = "",
    but: str | None = None,
    part: str = "test",
) -> dict[Cell, Series]:
    """Return a line for each cell of calibrators with an option: ``mac_cal_head(gamma=0.9)``.

    The calibrator's name must contain ``only``, and must not contain ``but``.
    """
    pattern = re.compile(rf".*[(,]{re.escape(option)}={NUMBER}[,)]")
    lines: dict[Cell, dict[float, Iterable[float]]] = {}
    for calibrator in results.own_calibrators:
        match = pattern.match(calibrator)
        if match is None or only not in calibrator or (but is not None and but in calibrator):
            continue
        for (cell, name), runs in results.values(metric, calibrator=calibrator, part=part).items():
            if name == method:
                lines.setdefault(cell, {})[float(match[1])] = runs.values()
    return {cell: series_of(option, values) for cell, values in lines.items()}


def grid(
    results: Results, names: tuple[str, str], metric: str, *, part: str = "test"
) -> dict[Cell, dict[tuple[float, float], Mean]]:
    """Return means over both numbers of methods named ``first=NUMBER,second=NUMBER``."""
    first, second = (re.escape(name) for name in names)
    pattern = re.compile(rf"{first}={NUMBER},{second}={NUMBER}$")
    tables: dict[Cell, dict[tuple[float, float], Mean]] = {}
    for (cell, method), runs in results.values(metric, part=part).items():
        if match := pattern.match(method):
            place = (float(match[1]), float(match[2]))
            tables.setdefault(cell, {})[place] = mean_of(list(runs.values()))
    return {cell: dict(sorted(table.items())) for cell, table in tables.items()}


def by_epoch(
    results: Results, metric: str, *, part: str = "validation", calibrator: str = "none"
) -> dict[Cell, list[Series]]:
    """Return a line for each method against the epoch: parts such as ``validation@12``."""
    return _by_part(results, metric, re.compile(rf"{re.escape(part)}@(\d+)$"), calibrator)


def by_severity(
    results: Results, metric: str, *, calibrator: str = "none", part: str = "test"
) -> dict[Cell, list[Series]]:
    """Return a line for each method against severity, with clean rows at 0.

    Values are means over the kinds of corruption. Errors are over seeds, because kinds do not
    differ by chance (as in soft-calibration figure 2). Rows corrupted here are of the part
    ``test``, those of published files of the part ``official``.
    """
    shifted = _by_part(results, metric, re.compile(rf"{re.escape(part)}:\w+:(\d)$"), calibrator)
    clean = results.values(metric, calibrator=calibrator)
    return {
        cell: [
            Series(line.name, {0.0: mean_of(list(clean[cell, line.name].values())), **line.points})
            for line in lines
            if (cell, line.name) in clean
        ]
        for cell, lines in shifted.items()
    }


CORRUPTIONS = {"test": "corruptions", "official": "official corruptions"}  # by part


def _by_part(
    results: Results, metric: str, pattern: re.Pattern[str], calibrator: str
) -> dict[Cell, list[Series]]:
    """Return lines against the number in a part's name; a seed's parts are averaged."""
    rows = results.rows
    name = results.find_calibrator(calibrator)
    rows = rows[(rows["metric"] == metric) & (rows["calibrator"] == name)]
    matched = {part: pattern.match(str(part)) for part in rows["part"].unique()}
    places = {part: float(match[1]) for part, match in matched.items() if match}
    lines: dict[tuple[Cell, str], dict[float, dict[int, list[float]]]] = {}
    for row in rows[rows["part"].isin(places)].itertuples():
        for method, cell, seed in results.plan[str(row.key)]:
            line = lines.setdefault((cell, method), {}).setdefault(places[str(row.part)], {})
            line.setdefault(seed, []).append(float(str(row.value)))
    by_cell: dict[Cell, list[Series]] = {}
    for (cell, method), by_place in lines.items():
        means = {
            place: [math.fsum(numbers) / len(numbers) for numbers in seeds.values()]
            for place, seeds in by_place.items()
        }
        by_cell.setdefault(cell, []).append(series_of(method, means))
    order = {method: place for place, method in enumerate(results.suite.methods)}
    return {
        cell: sorted(lines, key=lambda series: order[series.name])
        for cell, lines in by_cell.items()
    }


@dataclass(frozen=True)
class Point:
    """A method after a calibrator: its error and its accuracy, each a mean over seeds."""

    method: str
    calibrator: str
    error: Mean
    accuracy: Mean


def points(results: Results, metric: str, calibrators: Iterable[str]) -> dict[Cell, list[Point]]:
    """Return accuracy and error of every method after each calibrator, by cell."""
    by_cell: dict[Cell, list[Point]] = {}
    for calibrator in calibrators:
        errors = results.values(metric, calibrator=calibrator, exact=True)
        accuracies = results.values("accuracy", calibrator=calibrator, exact=True)
        for (cell, method), runs in errors.items():
            right = accuracies.get((cell, method))
            if not runs or not right:
                continue
            point = Point(
                method, calibrator, mean_of(list(runs.values())), mean_of(list(right.values()))
            )
            if math.isfinite(point.error.mean) and math.isfinite(point.accuracy.mean):
                by_cell.setdefault(cell, []).append(point)
    return by_cell


@dataclass(frozen=True)
class Diagram:
    """A method's reliability diagram, the rows of all its seeds pooled."""

    method: str
    rows: list[float]
    confidences: list[float]
    accuracies: list[float]


def diagrams(results: Results, *, calibrator: str = "none") -> dict[Cell, list[Diagram]]:
    """Return each method's reliability diagram of test rows, by cell, in the suite's order.

    Runs made before version 0.2 have none.
    """
    rows = results.rows
    rows = rows[
        rows["part"].astype(str).str.startswith("reliability@")
        & (rows["calibrator"] == results.find_calibrator(calibrator))
        & rows["metric"].isin(("rows", "confidence", "accuracy"))
    ]
    pooled: dict[tuple[Cell, str], dict[int, list[float]]] = {}
    for (key, part), group in rows.groupby(["key", "part"], observed=True, sort=True):
        values = dict(zip(group["metric"], group["value"], strict=True))
        count = float(values["rows"])
        amounts = (count, count * float(values["confidence"]), count * float(values["accuracy"]))
        place = int(str(part).partition("@")[2])
        for method, cell, _ in results.plan[str(key)]:
            sums = pooled.setdefault((cell, method), {}).setdefault(place, [0.0, 0.0, 0.0])
            for at, amount in enumerate(amounts):
                sums[at] += amount
    by_cell: dict[Cell, list[Diagram]] = {}
    for cell, method in results.planned:  # in the order of the suite
        if bins := pooled.get((cell, method)):
            ordered = [bins[place] for place in sorted(bins)]
            by_cell.setdefault(cell, []).append(
                Diagram(
                    method,
                    [cell_sums[0] for cell_sums in ordered],
                    [cell_sums[1] / cell_sums[0] for cell_sums in ordered],
                    [cell_sums[2] / cell_sums[0] for cell_sums in ordered],
                )
            )
    return by_cell


def pairs(
    results: Results, first: str, second: str, *, part: str = "test"
) -> dict[Cell, list[tuple[str, str, float, float]]]:
    """Return (method, calibrator, first, second) by cell: means over common seeds."""
    by_cell: dict[Cell, list[tuple[str, str, float, float]]] = {}
    for calibrator in results.calibrators:
        left = results.values(first, calibrator=calibrator, part=part, exact=True)
        right = results.values(second, calibrator=calibrator, part=part, exact=True)
        for cell, method in left.keys() & right.keys():
            both = _both(left[cell, method], right[cell, method])
            if both is not None:
                by_cell.setdefault(cell, []).append((method, calibrator, *both))
    return {cell: sorted(both_means) for cell, both_means in by_cell.items()}


def _both(left: Runs, right: Runs) -> tuple[float, float] | None:
    seeds = sorted(left.keys() & right.keys())
    first, second = (mean_of([runs[seed] for seed in seeds]).mean for runs in (left, right))
    return (first, second) if math.isfinite(first) and math.isfinite(second) else None
