"""Draw results that `series` computed on given axes, or on a new figure outside pyplot.

No global style is read or set. `svg` turns axes into text.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.bench.tables.formatting import heading, number, unit
from calibrant.bench.tables.series import Series
from calibrant.bench.tables.statistics import Mean
from calibrant.core.errors import InputError
from calibrant.report.pictures import MUTED, add_title, new_axes, quiet_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinct in every common form of colour blindness (Okabe and Ito), and by their dashes.
COLOURS = ("#1a67a8", "#c2500f", "#1f8a5b", "#8a4fa3", "#b07d00", "#4b9fd5", "#5a616b", "#c44f86")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
SHOWN = 12  # lines in a picture; more are hard to tell apart


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
