"""Draw every picture that a suite's results can fill, as SVG text by title."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from calibrant.bench.measure.measurement import DIAGRAMS
from calibrant.bench.tables import pictures, series
from calibrant.bench.tables.formatting import label, shown_calibrator
from calibrant.bench.tables.results import Cell, Results, collect_results

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from calibrant.bench.suite.suite import Suite

METRICS = ("ece", "accuracy")
HIGHLIGHTED = 6  # methods with a colour in the pictures of the answer
LABELLED = 8  # methods up to which all have one
EPOCHS = 8  # the fewest for a picture by epoch
_SWEPT = re.compile(rf"(\w+)={series.NUMBER}$")
_GRID = re.compile(rf"(\w+)={series.NUMBER},(\w+)={series.NUMBER}$")

Drawing = tuple[str, Callable[[], "Axes"]]


def gallery(suite: Suite, frame: pd.DataFrame) -> dict[str, str]:
    """Draw a suite's results: sweeps, grids, epochs and severities that it has rows for."""
    results = collect_results(suite, frame)
    drawers = (draw_sweeps, draw_grids, draw_epochs, draw_severities)
    return render(drawing for draw in drawers for drawing in draw(results))


def draw_answer(results: Results, metric: str) -> dict[Cell, dict[str, str]]:
    """Draw accuracy against an error, and overlaid reliability diagrams: SVG text by cell."""
    single = len(results.suite.methods) == 1  # then its calibrators are compared
    calibrators = [name for name in DIAGRAMS if name in results.calibrators]
    if single:
        calibrators = list(results.own_calibrators)
    by_calibrator = {
        calibrator: series.diagrams(results, calibrator=calibrator)
        for calibrator in calibrators
        if calibrator in DIAGRAMS
    }
    drawn: dict[Cell, dict[str, str]] = {}
    for cell, points in series.points(results, metric, calibrators).items():
        if single:
            points = [
                replace(point, method=shown_calibrator(point.calibrator), calibrator="none")
                for point in points
            ]
        chosen = choose_highlighted(points, "none" if single else results.suite.baseline)
        title = f"Accuracy against {label(metric)}"
        axes = pictures.scatter(points, metric, highlighted=chosen, title=title)
        drawn[cell] = {title: pictures.svg(axes)}
        for calibrator, diagrams in by_calibrator.items():
            if cell in diagrams:
                after = "as trained" if calibrator == "none" else f"after {calibrator}"
                title = f"Reliability {after}"
                named = [calibrator] if single else chosen
                shown = [
                    replace(diagram, method=calibrator) if single else diagram
                    for diagram in diagrams[cell]
                ]
                axes = pictures.overlay(shown, highlighted=named, title=title)
                drawn[cell][title] = pictures.svg(axes)
    return drawn


def choose_highlighted(points: Sequence[series.Point], baseline: str | None) -> list[str]:
    """Choose the methods that get a colour: all of a few, else the baseline and the best.

    A method counts with its best calibrator. The result is in the order of the points.
    """
    best: dict[str, float] = {}
    for point in points:
        best[point.method] = min(best.get(point.method, point.error.mean), point.error.mean)
    order = sorted(best, key=lambda name: best[name])
    if len(order) > LABELLED:
        first = [name for name in order if name == baseline]
        order = list(dict.fromkeys([*first, *order]))[:HIGHLIGHTED]
    return [name for name in best if name in order]


def render(drawings: Iterator[Drawing]) -> dict[str, str]:
    """Return SVG text by title."""
    return {title: pictures.svg(draw()) for title, draw in drawings}


def title_of(results: Results, what: str, cell: Cell) -> str:
    """Return the title of a picture of one cell."""
    return f"{what}: {results.name_of(cell)}"


def draw_lines(title: str, lines: list[series.Series], metric: str, against: str) -> Drawing:
    """Return a picture of lines under its title."""
    return title, partial(pictures.lines, lines, metric, title=title, against=against)


def draw_sweeps(results: Results, names: Mapping[str, str] | None = None) -> Iterator[Drawing]:
    """Draw methods called ``name=NUMBER``, as in ``gamma=0.5``, against the number.

    Args:
        results: a suite's results.
        names: the swept names to draw, each with a description. Default: None, all.
    """
    if names is None:
        matches = filter(None, map(_SWEPT.match, results.suite.methods))
        names = {match[1]: match[1] for match in matches}
    for metric in METRICS:
        for name, what in names.items():
            for cell, line in series.by_method(results, name, metric).items():
                if len(line.points) > 1:
                    title = title_of(results, f"{label(metric)} against {what}", cell)
                    yield draw_lines(title, [line], metric, what)


def draw_grids(
    results: Results, names: Mapping[tuple[str, str], str] | None = None
) -> Iterator[Drawing]:
    """Draw methods called ``first=NUMBER,second=NUMBER`` as a table of colours.

    Args:
        results: a suite's results.
        names: the pairs of names to draw, and what each pair belongs to. Default: None, every
            pair.
    """
    if names is None:
        matches = filter(None, map(_GRID.match, results.suite.methods))
        names = {(match[1], match[3]): results.suite.name for match in matches}
    for pair, what in names.items():
        for metric in METRICS:
            for cell, table in series.grid(results, pair, metric).items():
                title = title_of(results, f"{label(metric)} of {what}, {' and '.join(pair)}", cell)
                yield title, partial(pictures.heat, table, metric, names=pair, title=title)


def draw_epochs(results: Results) -> Iterator[Drawing]:
    """Draw figures of validation rows against the epoch."""
    for metric in METRICS:
        for cell, lines in series.by_epoch(results, metric).items():
            long = [line for line in lines if len(line.points) >= EPOCHS]
            if long:
                title = title_of(results, f"{label(metric)} of validation rows by epoch", cell)
                yield draw_lines(title, long, metric, "epoch")


def draw_severities(results: Results) -> Iterator[Drawing]:
    """Draw ECE of corrupted test rows against the severity."""
    for part, what in series.CORRUPTIONS.items():
        for cell, lines in series.by_severity(results, "ece", part=part).items():
            title = title_of(results, f"ECE under {what}", cell)
            yield draw_lines(title, lines, "ece", "severity")
