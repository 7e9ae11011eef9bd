"""Matplotlib pictures of an evaluation.

Each function draws numbers that are already computed on the given axes, and returns the axes.
Without axes it makes a figure that pyplot does not know (``ax.figure.savefig(...)`` writes it).
No global style is read, set or needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from calibrant.core.errors import InputError
from calibrant.evaluation.groups.value import OVER as OVERCONFIDENT
from calibrant.evaluation.groups.value import UNDER as UNDERCONFIDENT
from calibrant.report.formatting import level, number, percent, shorten

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from calibrant.evaluation import Evaluation


# Vermilion and blue differ in every common form of colour blindness; filled and hollow marks
# carry the same information without colour.
OVER = "#c2500f"
UNDER = "#1a67a8"
INSIDE = "#6b7280"
INK = "#1c1f23"
MUTED = "#5a616b"
GRID = "#e8e6e1"
BAND = "#d5d9df"
STRIP = 0.24  # height of the histogram strip, in units of accuracy


def reliability_diagram(
    evaluation: Evaluation,
    ax: Axes | None = None,
    *,
    binning: Literal["width", "mass"] = "width",
) -> Axes:
    """Draw accuracy against confidence, bin by bin, over a histogram of the confidences.

    The dashed diagonal is perfect calibration. The grey boxes hold 95% of the accuracies of a
    calibrated model with as many rows (Bröcker & Smith, 2007, "Increasing the reliability of
    reliability diagrams"). A mark is filled outside its box and hollow inside; its size shows
    the number of rows, its whiskers the 95% interval of the accuracy.

    Args:
        evaluation: The result of :func:`calibrant.evaluate`.
        ax: The axes to draw on; a new figure if None.
        binning: Bins of equal ``"width"``, or of equal ``"mass"`` (rows).
    """
    if binning not in ("width", "mass"):
        raise InputError(f'binning must be "width" or "mass", found {binning!r}')
    table = evaluation.bins if binning == "width" else evaluation.mass_bins
    axes = ax if ax is not None else new_axes(5.2, 5.8)
    bins = table[table["count"] > 0]
    low, high = bins["low"].to_numpy(float), bins["high"].to_numpy(float)
    count = bins["count"].to_numpy(float)
    x, y = bins["confidence"].to_numpy(float), bins["accuracy"].to_numpy(float)
    band_low, band_high = bins["band_low"].to_numpy(float), bins["band_high"].to_numpy(float)
    interval = bins[["accuracy_low", "accuracy_high"]].to_numpy(float)

    quiet_frame(axes)
    axes.bar(
        low, band_high - band_low, high - low, band_low, align="edge", color=BAND, lw=0, zorder=1
    )
    axes.plot([0, 1], [0, 1], ls=(0, (4, 3)), lw=1, color=MUTED, zorder=2)
    outside = (y < band_low) | (y > band_high)
    colours = np.where(~outside, INSIDE, np.where(y < x, OVER, UNDER))
    axes.vlines(x, y, x, colors=list(colours), lw=3.5, alpha=0.28, zorder=3)
    axes.vlines(x, interval[:, 0], interval[:, 1], colors=list(colours), lw=1.2, zorder=4)
    axes.scatter(
        x,
        y,
        s=16 + 100 * np.sqrt(count / max(count.sum(), 1)),
        c=[colour if far else "white" for colour, far in zip(colours, outside, strict=True)],
        edgecolors=list(colours),
        linewidths=1.3,
        clip_on=False,
        zorder=5,
    )
    _draw_confidence_strip(evaluation.bins, axes)
    axes.set_xlim(0, 1)
    axes.set_ylim(-STRIP - 0.04, 1.02)
    _label_percents(axes, "x", np.linspace(0, 1, 6))
    _label_percents(axes, "y", np.linspace(0, 1, 6))
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.yaxis.set_label_coords(-0.115, (STRIP + 0.5) / (1 + STRIP))
    add_title(axes, _make_heading(evaluation, "ece", "ECE"))
    _add_reliability_legend(axes, level(evaluation.settings))
    return axes


def class_calibration(evaluation: Evaluation, ax: Axes | None = None, *, top: int = 20) -> Axes:
    """Draw the calibration error of each class, the worst ``top`` classes first.

    The pale bar is the class-wise ECE of the class. It points right if the class gets too much
    probability on average, and left if it gets too little. The dark bar inside is that net gap,
    mean probability − frequency. A short dark bar means that errors cancel out over the range.

    Args:
        evaluation: The result of :func:`calibrant.evaluate`.
        ax: The axes to draw on; a new figure if None.
        top: The most classes to show.
    """
    if top < 1:
        raise InputError(f"top, the number of classes to show, must be at least 1, found {top}")
    worst = evaluation.classes.sort_values("ece", ascending=False, kind="stable").head(top)
    axes = ax if ax is not None else new_axes(6.4, 1.3 + 0.24 * len(worst))
    gap, ece = worst["gap"].to_numpy(float), worst["ece"].to_numpy(float)
    place = np.arange(len(worst))
    side = np.where(gap >= 0, 1.0, -1.0)
    colours = list(np.where(gap >= 0, OVER, UNDER))

    quiet_frame(axes)
    axes.barh(place, side * ece, height=0.68, color=colours, alpha=0.28, lw=0, zorder=2)
    axes.barh(place, gap, height=0.34, color=colours, lw=0, zorder=3)
    axes.axvline(0, color=MUTED, lw=0.9, zorder=4)
    axes.set_yticks(place, [shorten(str(name), 24) for name in worst["name"]], parse_math=False)
    axes.set_ylim(len(worst) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    reach = float(np.nanmax(np.abs([*ece, *gap, 1e-9])))
    axes.set_xlim(
        -1.12 * reach if (gap < 0).any() else -0.12 * reach,
        1.12 * reach if (gap >= 0).any() else 0.12 * reach,
    )
    axes.xaxis.set_major_formatter(lambda value, _: percent(abs(value)))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("◂ too little probability     class-wise ECE     too much probability ▸")
    count = evaluation.num_classes
    shown = f"worst {len(worst)} of {count:,} classes" if count > len(worst) else "worst first"
    add_title(axes, f"{shorten(evaluation.name, 40)}: {shown}")
    _add_class_legend(axes)
    return axes


def risk_coverage_curve(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw the error rate among the rows kept, as the least confident are rejected.

    The dashed line is a random order (the error rate of all rows). The dotted curve is the best
    possible order, which rejects every wrong row first.

    Args:
        evaluation: The result of :func:`calibrant.evaluate`.
        ax: The axes to draw on; a new figure if None.
    """
    axes = ax if ax is not None else new_axes(5.6, 4.0)
    curve = evaluation.risk_coverage
    coverage, risk = curve["coverage"].to_numpy(float), curve["risk"].to_numpy(float)
    error = float(risk[-1])
    grid = np.linspace(1e-3, 1, 400)

    quiet_frame(axes)
    axes.fill_between(coverage, risk, color=UNDER, alpha=0.10, lw=0, zorder=1)
    axes.plot(coverage, risk, color=UNDER, lw=1.9, zorder=4, label="this model's confidence")
    axes.plot(
        [0, 1], [error, error], color=MUTED, lw=1, ls=(0, (4, 3)), zorder=2, label="order by chance"
    )
    best = np.maximum(0, 1 - (1 - error) / grid)
    axes.plot(grid, best, color=MUTED, lw=1.2, ls=":", zorder=3, label="best possible order")
    if len(coverage) == 1:
        axes.plot(coverage, risk, "o", color=UNDER, ms=5, clip_on=False, zorder=5)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, max(1.32 * float(risk.max()), 0.01))
    _label_percents(axes, "x", np.linspace(0, 1, 6))
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    axes.set_xlabel("coverage: share of rows kept, most confident first")
    axes.set_ylabel("error rate among them")
    add_title(axes, _make_heading(evaluation, "aurc", "AURC"))
    legend = axes.legend(loc="upper left", fontsize=8.5, frameon=False, labelcolor=MUTED)
    legend.set_zorder(6)
    return axes


def new_axes(width: float, height: float) -> Axes:
    """Make axes in a figure of their own that pyplot does not know."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=144, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure.add_subplot()


def quiet_frame(axes: Axes) -> None:
    """Draw a pale grid and two spines, so that the data stands out."""
    axes.set_axisbelow(True)
    axes.grid(visible=True, color=GRID, lw=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(BAND)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=MUTED)
    axes.xaxis.label.set(color=INK, fontsize=9.5)
    axes.yaxis.label.set(color=INK, fontsize=9.5)


def add_title(axes: Axes, text: str) -> None:
    """Add a title at the left."""
    # A name may hold dollar signs, which matplotlib would read as mathematics.
    axes.set_title(text, loc="left", fontsize=10.5, color=INK, parse_math=False)


def _label_percents(axes: Axes, which: Literal["x", "y"], ticks: np.ndarray) -> None:
    labels = [f"{100 * tick:.0f}%" for tick in ticks]
    if which == "x":
        axes.set_xticks(ticks, labels)
    else:
        axes.set_yticks(ticks, labels)


def _make_heading(evaluation: Evaluation, metric: str, label: str) -> str:
    figure = evaluation.figures.get(metric)
    name = shorten(evaluation.name, 40)
    if figure is None:
        return name
    text = f"{name}: {label} {number(figure.value)}"
    if figure.low is not None and figure.high is not None:
        text += f" ({number(figure.low)} to {number(figure.high)})"
    return text


def _draw_confidence_strip(table: pd.DataFrame, axes: Axes) -> None:
    """Draw the share of rows in each equal-width bin, in a strip under the diagram."""
    share = table["count"].to_numpy(float)
    share = share / max(share.sum(), 1.0)
    tallest = max(share.max(initial=0), 1e-12)
    low, high = table["low"].to_numpy(float), table["high"].to_numpy(float)
    floor = -STRIP - 0.04
    axes.axhspan(floor, -0.02, color="white", lw=0, zorder=1.5)
    axes.axhline(-0.02, color=BAND, lw=0.8, zorder=2)
    width = (high - low) * 0.92
    axes.bar(
        (low + high) / 2, share / tallest * (STRIP - 0.08), width, floor, color="#9aa3af", zorder=2
    )
    axes.text(0.015, -0.045, "share of rows", fontsize=8, color=MUTED, va="top", zorder=6)
    fullest = int(share.argmax())
    axes.text(
        min(max((low[fullest] + high[fullest]) / 2, 0.04), 0.96),
        floor + STRIP - 0.07,
        percent(float(share[fullest])),
        ha="center",
        va="bottom",
        fontsize=8,
        color=MUTED,
        zorder=6,
    )


def _add_reliability_legend(axes: Axes, confidence_level: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def mark(colour: str, fill: str, label: str) -> Line2D:
        return Line2D([], [], ls="", marker="o", ms=6, mec=colour, mfc=fill, mew=1.3, label=label)

    axes.legend(
        handles=[
            mark(OVER, OVER, "overconfident"),
            mark(UNDER, UNDER, "underconfident"),
            mark(INSIDE, "white", "could be chance"),
            Patch(facecolor=BAND, label=f"{confidence_level} of a calibrated model"),
        ],
        loc="upper left",
        fontsize=8.5,
        facecolor="white",
        edgecolor="none",
        framealpha=0.85,
        labelcolor=MUTED,
        handletextpad=0.5,
    )


def _add_class_legend(axes: Axes) -> None:
    from matplotlib.patches import Patch

    axes.legend(
        handles=[
            Patch(facecolor=MUTED, alpha=0.28, label="class-wise ECE"),
            Patch(facecolor=MUTED, label="net gap"),
        ],
        loc="best",
        fontsize=8.5,
        frameon=False,
        labelcolor=MUTED,
    )


def group_gaps(evaluation: Evaluation, ax: Axes | None = None, *, top: int = 20) -> Axes:
    """Draw each group's mean confidence − accuracy with its interval, most overconfident first.

    A filled mark is a group shown to be over- or underconfident after Holm's correction. A
    hollow mark could be chance, or has too few rows. With more groups than ``top``, the groups
    shown to be off are kept first.

    Args:
        evaluation: The result of ``calibrant.evaluate(..., groups=...)``.
        ax: The axes to draw on; a new figure if None.
        top: The most groups to show.
    """
    if top < 1:
        raise InputError(f"top, the number of groups to show, must be at least 1, found {top}")
    if evaluation.groups is None:
        raise InputError("this evaluation has no groups: call evaluate(..., groups=...)")
    ordered = [group for group in evaluation.groups.by_gap if group.num_rows]
    chosen = sorted(ordered, key=lambda group: not group.is_off)[:top]
    shown = [group for group in ordered if group in chosen]
    axes = ax if ax is not None else new_axes(6.4, 1.3 + 0.28 * len(shown))
    colour_of = {OVERCONFIDENT: OVER, UNDERCONFIDENT: UNDER}
    colours = [colour_of.get(group.finding or "", INSIDE) for group in shown]
    place, gap = np.arange(len(shown)), np.array([group.gap for group in shown])

    quiet_frame(axes)
    axes.axvline(0, color=MUTED, lw=0.9, zorder=2)
    for y, group, colour in zip(place, shown, colours, strict=True):
        if group.gap_low is not None and group.gap_high is not None:
            axes.hlines(y, group.gap_low, group.gap_high, colors=colour, lw=3.5, alpha=0.28)
    fills = [c if group.is_off else "white" for c, group in zip(colours, shown, strict=True)]
    axes.scatter(gap, place, s=36, c=fills, edgecolors=colours, linewidths=1.3, zorder=4)
    axes.set_yticks(place, [shorten(group.value, 24) for group in shown], parse_math=False)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_formatter(lambda value, _: percent(abs(value)))
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("◂ too unsure     mean confidence − accuracy     too sure ▸")
    count = len(evaluation.groups)
    part = f"{len(shown)} of {count:,} groups" if count > len(shown) else "most sure first"
    add_title(
        axes, f"{shorten(evaluation.name, 30)} by {shorten(evaluation.groups.name, 20)}: {part}"
    )
    return axes
