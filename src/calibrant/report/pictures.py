"""Matplotlib pictures of an evaluation.

Each function draws numbers that are already computed, by `calibrant.evaluate` or by
`calibrant.evaluation.curves`, on the given axes, and returns the axes.
Without axes it makes a figure that pyplot does not know (``ax.figure.savefig(...)`` writes it).
No global style is read, set or needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant.core.errors import InputError
from calibrant.evaluation import curves
from calibrant.evaluation.groups.value import OVER as OVERCONFIDENT
from calibrant.evaluation.groups.value import TOO_HIGH, TOO_LOW
from calibrant.evaluation.groups.value import UNDER as UNDERCONFIDENT
from calibrant.evaluation.verdict import name_event
from calibrant.predictions import Predictions
from calibrant.report.formatting import (
    Words,
    find_words,
    level,
    level_share,
    number,
    percent,
    shorten,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from calibrant.evaluation import Evaluation
    from calibrant.evaluation.curves import Cells, Floats, Scale


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


def find_cells(evaluation: Evaluation) -> Cells:
    """Return the pooled rows of an evaluation, which its curves are computed from."""
    cells = evaluation.tallies.cells
    if cells is None:
        raise InputError(f"{evaluation.name} holds no cells of rows: evaluate its predictions anew")
    return cells


def plot_reliability(
    data: Evaluation | Predictions,
    curve: Literal["corp", "kernel", "bins"] = "corp",
    scale: Literal["linear", "log"] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how often it happens against the probability given, as a curve or in bins.

    The judged probability is that of the event, or of the predicted class. The dashed diagonal is
    perfect calibration. ``"corp"`` is the isotonic curve (Dimitriadis, Gneiting & Jordan 2021)
    over a grey band that holds, at each probability by itself, 95% of the curves of a calibrated
    model; the curve is thick where it leaves the band. ``"kernel"`` is smoothed with the kernel of
    smooth ECE (Błasiok & Nakkiran 2023), is thick in proportion to the rows there, and lies on
    average smooth ECE from the diagonal; on a log scale it begins at one bandwidth. ``"bins"``
    are marks over boxes, as in `reliability_diagram`. The strip shows the share of rows along the
    scale. On a log scale what lies below the axis is drawn at its edge.

    Args:
        data: The result of :func:`calibrant.evaluate`, or predictions with labels.
        curve: ``"corp"``, ``"kernel"`` or ``"bins"``. Default: 'corp' (ours: it needs neither
            bins nor a bandwidth).
        scale: ``"linear"`` or ``"log"`` axes. Default: None (ours: log where the mean probability
            or the frequency is below 5%).
        ax: The axes to draw on. Default: None (ours: a new figure).
    """
    if curve not in ("corp", "kernel", "bins"):
        raise InputError(f'curve must be "corp", "kernel" or "bins", found {curve!r}')
    evaluation = _evaluate(data)
    cells = find_cells(evaluation)
    chosen = curves.choose_scale(cells, scale)
    if curve == "bins" and chosen == "linear" and evaluation.view != "events":
        return reliability_diagram(evaluation, ax)
    axes = ax if ax is not None else new_axes(5.2, 5.8)
    words, frame = find_words(evaluation), _Frame(cells, chosen)
    frame.draw(axes, words)
    share = level_share(evaluation.settings)
    if curve == "corp":
        _draw_corp(curves.prepare_corp(cells, level=share), frame, axes)
    elif curve == "kernel":
        _draw_kernel(curves.prepare_kernel(cells), frame, axes)
    else:
        size = int(evaluation.settings.get("num_bins", 15))
        table = curves.prepare_bins(cells, num_bins=size, scale=chosen, level=share)
        _draw_bins(table, frame, axes)
    metric, label = ("smooth_ece", "smooth ECE") if curve == "kernel" else ("ece", "ECE")
    add_title(axes, _make_heading(evaluation, metric, label))
    _add_curve_legend(axes, curve, words, level(evaluation.settings))
    return axes


def _evaluate(data: Evaluation | Predictions) -> Evaluation:
    """Return the evaluation; evaluate predictions, without intervals."""
    if not isinstance(data, Predictions):
        return data
    from calibrant.evaluation import evaluate

    return evaluate(data, metrics=("ece", "smooth_ece"), intervals=False)


class _Frame:
    """Axes of a reliability curve, linear or logarithmic, over a strip for the rows."""

    def __init__(self, cells: Cells, scale: Scale) -> None:
        self.cells, self.scale = cells, scale
        self.floor = curves.find_floor(cells) if scale == "log" else 0.0

    def clip(self, values: Floats) -> Floats:
        """Move values to the part of the axis that is shown."""
        clipped: Floats = np.clip(values, self.floor, 1.0)
        return clipped

    def draw(self, axes: Axes, words: Words) -> None:
        """Draw grid, diagonal, ticks, labels and the strip."""
        quiet_frame(axes)
        share = (STRIP + 0.04) / (1.06 + STRIP)  # of the height that lies below the floor
        if self.scale == "log":
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.minorticks_off()
            decades = round(-np.log10(self.floor))
            axes.set_xlim(self.floor, 1.0)
            axes.set_ylim(self.floor * 10 ** (-decades * share / (1 - share)), 1.15)
            ticks = 10.0 ** np.arange(-decades, 1)
            labels = [percent(float(tick)) for tick in ticks]
        else:
            axes.set_xlim(0, 1)
            axes.set_ylim(-STRIP - 0.04, 1.02)
            ticks = np.linspace(0, 1, 6)
            labels = [f"{100 * tick:.0f}%" for tick in ticks]
        axes.set_xticks(ticks, labels)
        axes.set_yticks(ticks, labels)
        axes.plot(
            [self.floor, 1],
            [self.floor, 1],
            ls=(0, (4, 3)),
            lw=1,
            color=MUTED,
            zorder=2,
            label="_diagonal",
        )
        axes.set_xlabel(words.claimed)
        axes.set_ylabel(words.happened, parse_math=False)
        self._draw_strip(axes, 0.9 * share)

    def _draw_strip(self, axes: Axes, height: float) -> None:
        """Draw the share of rows in bins of equal width on this scale, below the floor."""
        from matplotlib.patches import Rectangle

        distribution = curves.prepare_distribution(self.cells, scale=self.scale)
        rate = self.cells.mean_frequency
        rows = rate * distribution.events + (1 - rate) * distribution.others
        across = axes.get_xaxis_transform()
        ground = Rectangle((0, 0), 1, 1.06 * height, transform=axes.transAxes)
        ground.set(facecolor="white", linewidth=0, zorder=1.5)
        axes.add_patch(ground)
        bars = 0.82 * height * rows / max(float(rows.max()), 1e-12)
        axes.bar(
            distribution.edges[:-1],
            bars,
            np.diff(distribution.edges),
            align="edge",
            color="#9aa3af",
            edgecolor="white",
            lw=0.5,
            zorder=2,
            transform=across,
        )
        axes.text(
            0.985,
            height,
            f"share of rows, at most {percent(float(rows.max()))}",
            fontsize=8,
            color=MUTED,
            va="top",
            ha="right",
            zorder=6,
            transform=axes.transAxes,
        )


def _draw_corp(curve: curves.CorpCurve, frame: _Frame, axes: Axes) -> None:
    x, y = frame.clip(curve.probability), frame.clip(curve.frequency)
    if np.isfinite(curve.low).all():
        low, high = frame.clip(curve.low), frame.clip(curve.high)
        axes.fill_between(x, low, high, color=BAND, lw=0, zorder=1)
        for outside, colour in (
            (curve.frequency < curve.low, OVER),
            (curve.frequency > curve.high, UNDER),
        ):
            part = np.where(outside, y, np.nan)
            axes.plot(x, part, color=colour, lw=3.2, zorder=4, solid_capstyle="round")
            axes.scatter(x[outside], y[outside], s=9, color=colour, lw=0, zorder=4)
    axes.plot(x, y, color=INK, lw=1.4, zorder=5, label="_curve")
    if len(x) == 1:
        axes.plot(x, y, "o", color=INK, ms=5, clip_on=False, zorder=5)


def _draw_kernel(curve: curves.KernelCurve, frame: _Frame, axes: Axes) -> None:
    from matplotlib.collections import LineCollection

    place = np.flatnonzero(curves.find_supported(curve, frame.cells, frame.scale))
    x, y = curve.probability[place], frame.clip(curve.frequency[place])
    points = np.stack((x, y), axis=1)
    width = 0.8 + 4.2 * np.sqrt(curve.density[place] / curve.density[place].max())
    lines = np.stack((points[:-1], points[1:]), axis=1)
    axes.add_collection(
        LineCollection(list(lines), linewidths=width[1:], colors=UNDER, capstyle="round", zorder=4)
    )
    axes.plot(x, y, color=UNDER, lw=0.8, zorder=5, label="_curve")


def _draw_bins(bins: pd.DataFrame, frame: _Frame, axes: Axes) -> None:
    x, y, low, high, begin, end = (
        frame.clip(bins[name].to_numpy(float))
        for name in ("probability", "frequency", "band_low", "band_high", "low", "high")
    )
    bounded = np.isfinite(low)
    axes.bar(begin, high - low, end - begin, low, align="edge", color=BAND, lw=0, zorder=1)
    outside = bounded & (
        (bins["frequency"] < bins["band_low"]) | (bins["frequency"] > bins["band_high"])
    )
    colours = np.where(~outside, INSIDE, np.where(y < x, OVER, UNDER))
    count = bins["count"].to_numpy(float)
    axes.vlines(x, y, x, colors=list(colours), lw=3.5, alpha=0.28, zorder=3)
    axes.scatter(
        x,
        y,
        s=16 + 100 * np.sqrt(count / count.sum()),
        c=[colour if far else "white" for colour, far in zip(colours, outside, strict=True)],
        edgecolors=list(colours),
        linewidths=1.3,
        clip_on=False,
        zorder=5,
    )


def _add_curve_legend(axes: Axes, curve: str, words: Words, confidence_level: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if curve == "bins":
        _add_reliability_legend(axes, words, confidence_level)
    elif curve == "kernel":
        _add_legend(axes, [Line2D([], [], color=UNDER, lw=3, label="smoothed curve")])
    else:
        too = [(OVER, words.over), (UNDER, words.under)]
        _add_legend(
            axes,
            [
                Line2D([], [], color=INK, lw=1.4, label="isotonic curve (CORP)"),
                *(Line2D([], [], color=colour, lw=3.2, label=word) for colour, word in too),
                Patch(facecolor=BAND, label=f"{confidence_level} of a calibrated model"),
            ],
        )


def plot_decision_curve(data: Evaluation | Predictions, ax: Axes | None = None) -> Axes:
    """Draw the net benefit of acting on the probability, over the threshold to act from.

    Net benefit counts an event treated as 1 and a row treated in vain as t/(1 − t) less, where t
    is the threshold (Vickers & Elkin 2006). A model is of use where its curve lies above both
    treating all rows and treating none.

    Args:
        data: The result of :func:`calibrant.evaluate`, or predictions with labels, judged as
            events.
        ax: The axes to draw on. Default: None (ours: a new figure).
    """
    evaluation = _need_events(_evaluate(data), "a decision curve")
    table = curves.prepare_decision(find_cells(evaluation))
    axes = ax if ax is not None else new_axes(5.6, 4.0)
    quiet_frame(axes)
    threshold = table["threshold"].to_numpy(float)
    model = table["net_benefit"].to_numpy(float)
    top = max(float(model.max()), float(table["treat_all"].iloc[0]), 1e-12)
    axes.plot(threshold, model, color=UNDER, lw=1.9, zorder=4, label="act on the probability")
    axes.plot(
        threshold,
        table["treat_all"].to_numpy(float),
        color=MUTED,
        lw=1.2,
        ls=(0, (4, 3)),
        zorder=3,
        label="act on all rows",
    )
    axes.axhline(0, color=MUTED, lw=1.2, ls=":", zorder=2, label="act on none")
    axes.set_xlim(0, float(threshold[-1]))
    axes.set_ylim(-0.35 * top, 1.35 * top)
    axes.xaxis.set_major_formatter(lambda value, _: percent(value))
    axes.set_xlabel("threshold: act where the probability is at least this")
    axes.set_ylabel("net benefit")
    add_title(axes, f"{shorten(evaluation.name, 40)}: net benefit")
    legend = axes.legend(loc="upper right", fontsize=8.5, frameon=False, labelcolor=MUTED)
    legend.set_zorder(6)
    return axes


def plot_distribution(
    data: Evaluation | Predictions,
    scale: Literal["linear", "log"] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how the probability is distributed among events (up) and other rows (down).

    Args:
        data: The result of :func:`calibrant.evaluate`, or predictions with labels, judged as
            events.
        scale: ``"linear"`` or ``"log"`` axis. Default: None (ours: log where the mean probability
            or the frequency is below 5%).
        ax: The axes to draw on. Default: None (ours: a new figure).
    """
    evaluation = _need_events(_evaluate(data), "the distribution of events")
    cells = find_cells(evaluation)
    chosen = curves.choose_scale(cells, scale)
    distribution = curves.prepare_distribution(cells, scale=chosen)
    axes = ax if ax is not None else new_axes(5.6, 3.4)
    quiet_frame(axes)
    begin, width = distribution.edges[:-1], np.diff(distribution.edges)
    bars: dict[str, Any] = {"align": "edge", "edgecolor": "white", "lw": 0.5, "zorder": 2}
    event = shorten(name_event(evaluation.event or "event"), 30)
    axes.bar(begin, distribution.events, width, color=OVER, label=f"rows with {event}", **bars)
    axes.bar(
        begin, -distribution.others, width, color="#9aa3af", label=f"rows without {event}", **bars
    )
    axes.axhline(0, color=MUTED, lw=0.9, zorder=3)
    if chosen == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
        ticks = 10.0 ** np.arange(round(np.log10(distribution.edges[0])), 1)
        axes.set_xticks(ticks, [percent(float(tick)) for tick in ticks])
    else:
        _label_percents(axes, "x", np.linspace(0, 1, 6))
    axes.set_xlim(distribution.edges[0], 1)
    axes.yaxis.set_major_formatter(lambda value, _: percent(abs(value)))
    axes.set_xlabel("probability")
    axes.set_ylabel("share of these rows")
    add_title(axes, shorten(evaluation.name, 40))
    legend = axes.legend(loc="best", fontsize=8.5, frameon=False, labelcolor=MUTED)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return axes


def _need_events(evaluation: Evaluation, what: str) -> Evaluation:
    if evaluation.view != "events":
        raise InputError(
            f"{what} needs rows judged as events, but {evaluation.name} is judged by its predicted "
            "class: give Predictions.from_events, or two classes without view='top'"
        )
    return evaluation


def reliability_diagram(
    evaluation: Evaluation,
    ax: Axes | None = None,
    *,
    binning: Literal["width", "mass"] = "width",
) -> Axes:
    """Draw accuracy against confidence, bin by bin, over a histogram of the confidences.

    Rows judged as events show the frequency of the event against its probability.

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
    words = find_words(evaluation)
    axes.set_xlabel(words.claimed)
    axes.set_ylabel(words.happened, parse_math=False)
    axes.yaxis.set_label_coords(-0.115, (STRIP + 0.5) / (1 + STRIP))
    add_title(axes, _make_heading(evaluation, "ece", "ECE"))
    _add_reliability_legend(axes, words, level(evaluation.settings))
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


def _add_reliability_legend(axes: Axes, words: Words, confidence_level: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def mark(colour: str, fill: str, label: str) -> Line2D:
        return Line2D([], [], ls="", marker="o", ms=6, mec=colour, mfc=fill, mew=1.3, label=label)

    _add_legend(
        axes,
        [
            mark(OVER, OVER, words.over),
            mark(UNDER, UNDER, words.under),
            mark(INSIDE, "white", "could be chance"),
            Patch(facecolor=BAND, label=f"{confidence_level} of a calibrated model"),
        ],
    )


def _add_legend(axes: Axes, handles: Sequence[Artist]) -> None:
    axes.legend(
        handles=list(handles),
        loc="upper left",
        fontsize=8.5,
        facecolor="white",
        edgecolor="none",
        framealpha=0.85,
        labelcolor=MUTED,
        handletextpad=0.5,
    ).set_zorder(6)


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

    A filled mark is a group shown to be over- or underconfident, corrected for the number of
    groups. A hollow mark could be chance, or has too few rows. With more groups than ``top``, the
    groups shown to be off are kept first.

    Args:
        evaluation: The result of ``calibrant.evaluate(..., groups=...)``.
        ax: The axes to draw on; a new figure if None.
        top: The most groups to show.
    """
    if top < 1:
        raise InputError(f"top, the number of groups to show, must be at least 1, found {top}")
    if evaluation.groups is None:
        raise InputError("this evaluation has no groups: call evaluate(..., groups=...)")
    ordered = [group for group in evaluation.groups.in_order if group.num_rows]
    chosen = sorted(ordered, key=lambda group: not group.is_off)[:top]
    shown = [group for group in ordered if group in chosen]
    axes = ax if ax is not None else new_axes(6.4, 1.3 + 0.28 * len(shown))
    colour_of = {OVERCONFIDENT: OVER, TOO_HIGH: OVER, UNDERCONFIDENT: UNDER, TOO_LOW: UNDER}
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
