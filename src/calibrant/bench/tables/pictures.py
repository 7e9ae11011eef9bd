"""Draw results that `series` computed on given axes, or on a new figure outside pyplot.

No global style is read or set. `svg` turns axes into text.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.bench.tables.formatting import heading, number, shown_calibrator, unit
from calibrant.bench.tables.series import Diagram, Point, Series
from calibrant.bench.tables.statistics import Mean
from calibrant.core.errors import InputError
from calibrant.report.pictures import MUTED, add_title, new_axes, quiet_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinct in every common form of colour blindness (Okabe and Ito), and by their dashes.
COLOURS = ("#1a67a8", "#c2500f", "#1f8a5b", "#8a4fa3", "#b07d00", "#4b9fd5", "#5a616b", "#c44f86")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
SHOWN = 12  # lines in a picture; more are hard to tell apart
NAMED = 14  # methods in a scatter up to which grey marks have names, too
FAINT = "#b9bec6"  # of methods without a colour of their own
FEWEST_ROWS = 10  # in a bin of a reliability diagram that is drawn
_NICE = tuple(step * 10.0**power for power in range(-6, 4) for step in (1, 2, 5))
# Where a name may stand beside its mark, in points to the right and up, the best first.
_AROUND = (
    (8, 0),
    (8, 9),
    (8, -9),
    (-8, 0),
    (0, 12),
    (0, -12),
    (-8, 9),
    (-8, -9),
    (0, 22),
    (0, -22),
)


def start_axes(ax: Axes | None, title: str, x: str, y: str) -> Axes:
    """Return axes with a title and labels: those given, or new ones."""
    axes = ax if ax is not None else new_axes(5.2, 3.6)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    quiet_frame(axes)
    if title:
        add_title(axes, title)
    return axes


def line_style(place: int) -> dict[str, Any]:
    """Return colour, dashes and width of the line at that place."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "ls": DASHES[place // len(COLOURS) % len(DASHES)],
        "lw": 1.6,
    }


def add_legend(axes: Axes) -> None:
    """Add a legend inside the axes, or beside them if there are many lines."""
    if len(axes.get_legend_handles_labels()[0]) <= 4:
        axes.legend(frameon=False, fontsize=8, labelcolor=MUTED)
        return
    axes.legend(
        frameon=False, fontsize=8, labelcolor=MUTED, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )


def lines(
    series: Sequence[Series],
    metric: str,
    ax: Axes | None = None,
    *,
    title: str = "",
    against: str = "",
    log: bool = False,
) -> Axes:
    """Draw means with standard errors against a setting, epoch or severity; a line a series."""
    if not series or not any(line.points for line in series):
        raise InputError(f"there is nothing to draw of {metric}")
    if len(series) > SHOWN:
        title = f"{title} ({SHOWN} of {len(series)})"
    axes = start_axes(ax, title, against, heading(metric))
    scale = 100 if unit(metric) == "%" else 1
    for place, line in enumerate(series[:SHOWN]):
        mean, error = scale * np.array(line.means), scale * np.array(line.errors)
        style = line_style(place)
        marker = "o" if len(mean) <= 12 else ""
        axes.plot(line.places, mean, marker=marker, ms=3.5, label=line.name, **style)
        if error.any():
            axes.fill_between(
                line.places, mean - error, mean + error, color=style["color"], alpha=0.16, lw=0
            )
    if log:
        axes.set_xscale("log")
    elif len(places := sorted({place for line in series for place in line.places})) <= 10:
        axes.set_xticks(places, [f"{place:g}" for place in places])
    if len(series) > 1:
        add_legend(axes)
    return axes


def heat(
    table: Mapping[tuple[float, float], Mean],
    metric: str,
    ax: Axes | None = None,
    *,
    names: tuple[str, str],
    title: str = "",
) -> Axes:
    """Draw a metric over two settings, with numbers (r-aurc tables 9, 10; acls table A)."""
    rows, columns = (sorted({place[side] for place in table}) for side in (0, 1))
    axes = start_axes(ax, title or heading(metric), names[1], names[0])
    values = np.full((len(rows), len(columns)), np.nan)
    for (first, second), mean in table.items():
        values[rows.index(first), columns.index(second)] = mean.mean
    axes.grid(visible=False)
    axes.imshow(values, cmap="Blues", aspect="auto", alpha=0.75)
    low, high = np.nanmin(values), np.nanmax(values)
    for (row, column), value in np.ndenumerate(values):
        dark = np.isfinite(value) and high > low and (value - low) / (high - low) > 0.6
        colour = "white" if dark else "black"
        text = number(metric, float(value))
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
    axes.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
    return axes


def scatter(
    points: Sequence[Point],
    metric: str,
    ax: Axes | None = None,
    *,
    highlighted: Sequence[str] = (),
    title: str = "",
) -> Axes:
    """Draw accuracy against an error: a mark for each method after each calibrator.

    Args:
        points: the marks. The first calibrator's are filled, those of others hollow; a thin
            line joins the marks of a method.
        metric: the error.
        ax: axes to draw on. Default: None, new ones.
        highlighted: the methods with a colour and a name; others are grey. Default: ().
        title: the title. Default: '', none.
    """
    if not points:
        raise InputError(f"there is nothing to draw of {metric}")
    axes = start_axes(ax, title, heading(metric), heading("accuracy"))
    scale = 100 if unit(metric) == "%" else 1
    calibrators = list(dict.fromkeys(point.calibrator for point in points))
    colours = {name: line_style(place)["color"] for place, name in enumerate(highlighted)}
    floor = _find_floor([100 * point.accuracy.mean for point in points])
    by_method: dict[str, list[Point]] = {}
    below: list[str] = []
    for point in points:
        if 100 * point.accuracy.mean >= floor:
            by_method.setdefault(point.method, []).append(point)
        else:
            below.append(f"{point.method} ({number('accuracy', point.accuracy.mean)}%)")
    for method, method_points in by_method.items():
        colour, front = colours.get(method, FAINT), method in colours
        x = [scale * point.error.mean for point in method_points]
        y = [100 * point.accuracy.mean for point in method_points]
        axes.plot(x, y, color=colour, lw=0.8, alpha=0.6, zorder=2 + front)
        for place, point in enumerate(method_points):
            filled = point.calibrator == calibrators[0]
            axes.errorbar(
                x[place],
                y[place],
                xerr=scale * (point.error.error or 0.0),
                yerr=100 * (point.accuracy.error or 0.0),
                fmt="o",
                ms=5.5,
                color=colour,
                mfc=colour if filled else "white",
                elinewidth=0.8,
                zorder=3 + front,
            )
    shown = [point for method_points in by_method.values() for point in method_points]
    errors = [scale * point.error.mean for point in shown if point.error.mean > 0]
    if below:
        axes.set_ylim(bottom=floor - 0.04 * (axes.get_ylim()[1] - floor))
        names = ", ".join(dict.fromkeys(below))
        axes.set_xlabel(f"{axes.get_xlabel()}\nbelow the picture: {names}", parse_math=False)
    if errors and len(errors) == len(shown) and max(errors) > 6 * min(errors):
        axes.set_xscale("log")
        ticks = [at for at in _NICE if 0.8 * min(errors) <= at <= 1.25 * max(errors)]
        axes.set_xticks(ticks, [f"{at:g}" for at in ticks])
        axes.minorticks_off()
    _name_points(axes, by_method, colours, scale)
    if len(calibrators) > 1:
        _add_marker_legend(axes, calibrators)
    return axes


def _find_floor(accuracies: Sequence[float]) -> float:
    """Return the accuracy below which marks are left out: they would hide all differences."""
    top, middle = max(accuracies), float(np.median(accuracies))
    return top - max(3 * (top - middle), 1.5)


def _add_marker_legend(axes: Axes, calibrators: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    words = [
        "as trained" if name == "none" else f"after {shown_calibrator(name)}"
        for name in calibrators
    ]
    marks = [
        Line2D([], [], ls="", marker="o", ms=5.5, color=MUTED, mfc="white" if place else MUTED)
        for place in range(len(words))
    ]
    axes.legend(marks, words, frameon=False, fontsize=8, labelcolor=MUTED, loc="best")


def _name_points(
    axes: Axes, by_method: Mapping[str, Sequence[Point]], colours: Mapping[str, str], scale: float
) -> None:
    """Write the methods beside their first marks, where no other name stands."""
    axes.figure.canvas.draw()  # fixes the transform
    to_pixels = axes.transData.transform
    marks = [
        to_pixels((scale * point.error.mean, 100 * point.accuracy.mean))
        for points in by_method.values()
        for point in points
    ]
    taken: list[tuple[float, float, float, float]] = [
        (x - 5, y - 5, x + 5, y + 5) for x, y in marks
    ]
    per_point = axes.figure.dpi / 72
    every = len(by_method) <= NAMED
    for method in sorted(by_method, key=lambda name: name not in colours):
        if method not in colours and not every:
            continue
        point = by_method[method][0]
        place = (scale * point.error.mean, 100 * point.accuracy.mean)
        x, y = to_pixels(place)
        width, height = 4.9 * len(method) * per_point, 9 * per_point
        boxes = []
        for right, up in _AROUND:
            left = x + (right if right > 0 else right - width / per_point) * per_point
            if right == 0:
                left = x - width / 2
            low = y + up * per_point - height / 2
            box = (left, low, left + width, low + height)
            boxes.append((_count_overlaps(box, taken, axes.bbox.extents), box))
        _, box = min(boxes, key=lambda candidate: candidate[0])
        taken.append(box)
        axes.annotate(
            method,
            place,
            xytext=((box[0] - x) / per_point, (box[1] + height / 2 - y) / per_point),
            textcoords="offset points",
            fontsize=8,
            va="center",
            color=colours.get(method, MUTED),
            parse_math=False,
            zorder=6,
        )


def _count_overlaps(
    box: tuple[float, float, float, float],
    taken: Sequence[tuple[float, float, float, float]],
    bounds: Any,
) -> int:
    outside = box[0] < bounds[0] or box[1] < bounds[1] or box[2] > bounds[2] or box[3] > bounds[3]
    overlaps = sum(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in taken
    )
    return overlaps + 3 * outside


def overlay(
    diagrams: Sequence[Diagram],
    ax: Axes | None = None,
    *,
    highlighted: Sequence[str] = (),
    title: str = "",
) -> Axes:
    """Draw the reliability diagrams of several methods over each other.

    Args:
        diagrams: a diagram for each method; bins with fewer than `FEWEST_ROWS` rows are left out.
        ax: axes to draw on. Default: None, new ones.
        highlighted: the methods with a colour and a name; others are grey. Default: ().
        title: the title. Default: '', none.
    """
    if not diagrams:
        raise InputError("there is no reliability diagram to draw")
    axes = start_axes(ax, title, "confidence, %", "accuracy, %")
    axes.plot([0, 100], [0, 100], color=MUTED, lw=1, ls=(0, (4, 3)), zorder=2, label="_diagonal")
    styles = {name: line_style(place) for place, name in enumerate(highlighted)}
    others = sum(diagram.method not in styles for diagram in diagrams)
    floor, named_others = 100.0, False
    for diagram in sorted(diagrams, key=lambda diagram: _place_of(diagram.method, highlighted)):
        kept = np.array(diagram.rows) >= FEWEST_ROWS
        x, y = 100 * np.array(diagram.confidences)[kept], 100 * np.array(diagram.accuracies)[kept]
        if not len(x):
            continue
        floor = min(floor, float(x.min()), float(y.min()))
        style = styles.get(diagram.method)
        if style is None:
            name = "_other" if named_others else f"{others} other{'s' if others > 1 else ''}"
            named_others = True
            axes.plot(x, y, color=FAINT, lw=0.9, zorder=3, label=name)
        else:
            axes.plot(x, y, marker="o", ms=3.5, zorder=4, label=diagram.method, **style)
    low = max(0.0, 10 * np.floor(floor / 10))
    axes.set_xlim(low, 100.5)
    axes.set_ylim(low, 100.5)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, labelcolor=MUTED, loc="upper left")
    return axes


def _place_of(method: str, highlighted: Sequence[str]) -> int:
    return highlighted.index(method) if method in highlighted else len(highlighted)


def svg(axes: Axes) -> str:
    """Return a figure as SVG text; equal drawings give equal text."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = axes.figure
    assert isinstance(figure, Figure)
    sink = io.StringIO()
    # Ids are drawn at random unless salted, and the date would differ every time.
    with rc_context({"svg.hashsalt": "calibrant", "svg.fonttype": "path"}):
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    return sink.getvalue()
