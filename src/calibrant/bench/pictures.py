"""The papers' pictures (methods.md, section 5), drawn on the axes they are given.

Each function draws numbers that `sweeps` or `series` computed. Without axes it makes a figure
pyplot never hears of; no global style is read or set. `svg` turns axes into text.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.bench.figures import heading, number, unit
from calibrant.bench.series import Series
from calibrant.bench.statistics import Mean, correlation
from calibrant.bench.sweeps import (
    loss_curves,
    membership_curves,
    probabilities,
    uncertainty_curves,
)
from calibrant.functional.errors import InputError
from calibrant.report.pictures import MUTED, OVER, UNDER, add_title, new_axes, quiet_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart in every common form of colour blindness (Okabe and Ito), and by their dashes.
COLOURS = ("#1a67a8", "#c2500f", "#1f8a5b", "#8a4fa3", "#b07d00", "#4b9fd5", "#5a616b", "#c44f86")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
R_AURC = ("cross_entropy", "focal(gamma=3)", "inverse_focal(gamma=1.5)", "r_aurc")
SHOWN = 12  # lines in one picture; more cannot be told apart


def _axes(ax: Axes | None, title: str, x: str, y: str) -> Axes:
    axes = ax if ax is not None else new_axes(5.2, 3.6)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    quiet_frame(axes)
    if title:
        add_title(axes, title)
    return axes


def _style(place: int) -> dict[str, Any]:
    return {
        "color": COLOURS[place % len(COLOURS)],
        "ls": DASHES[place // len(COLOURS) % len(DASHES)],
        "lw": 1.6,
    }


def _legend(axes: Axes) -> None:
    """Inside, or, of many lines, beside them."""
    if len(axes.get_legend_handles_labels()[0]) <= 4:
        axes.legend(frameon=False, fontsize=8, labelcolor=MUTED)
        return
    axes.legend(
        frameon=False, fontsize=8, labelcolor=MUTED, loc="center left", bbox_to_anchor=(1.0, 0.5)
    )


def loss_weights(ax: Axes | None = None, *, texts: Sequence[str] = R_AURC) -> Axes:
    """What multiplies cross-entropy against p, of mean 1 (r-aurc figure 1)."""
    axes = _axes(ax, "Weight of a row", "probability of the true class", "weight, of mean 1")
    p = probabilities().numpy()
    for place, (text, curve) in enumerate(loss_curves(texts).items()):
        axes.plot(p, curve.weight, label=text, **_style(place))
    axes.set_ylim(0, 5)
    axes.set_xlim(0, 1)
    _legend(axes)
    return axes


def loss_gradients(
    ax: Axes | None = None,
    *,
    texts: Sequence[str] = (
        "cross_entropy",
        "focal(gamma=3)",
        "inverse_focal(gamma=1.5)",
        "inverse_focal(gamma=3.5)",
        "r_aurc",
    ),
) -> Axes:
    """∂ℓ/∂p against p (r-aurc figure 3, by the losses' own derivatives)."""
    axes = _axes(ax, "Gradient of a row", "probability of the true class", "∂ℓ/∂p")
    p = probabilities().numpy()
    for place, (text, curve) in enumerate(loss_curves(texts).items()):
        # Ranks are whole numbers: at the ends theirs are not yet those of p.
        axes.plot(p[4:-4], curve.gradient[4:-4], label=text, **_style(place))
    axes.axhline(0, color=MUTED, lw=0.8)
    axes.set_ylim(-8, 1)
    axes.set_xlim(0, 1)
    _legend(axes)
    return axes


def soft_bins(ax: Axes | None = None, *, temperature: float = 0.01, num_bins: int = 5) -> Axes:
    """How much of a confidence belongs to each soft bin (soft-calibration figure 3)."""
    axes = _axes(ax, f"Soft bins, T = {temperature:g}", "confidence", "membership")
    table = membership_curves([temperature], num_bins=num_bins)[temperature]
    places = np.linspace(0, 1, len(table))
    for bin_ in range(num_bins):
        axes.plot(places, table[:, bin_], **_style(bin_))
        axes.axvline((bin_ + 0.5) / num_bins, color=COLOURS[bin_ % len(COLOURS)], lw=0.6, ls=":")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    return axes


def soft_threshold(
    ax: Axes | None = None,
    *,
    settings: Sequence[tuple[float, float]] = ((0.5, 1.0), (0.5, 0.1), (0.1, 1.0), (0.1, 0.1)),
) -> Axes:
    """t_κ,T against normalised entropy (soft-calibration figure 4)."""
    axes = _axes(ax, "Soft uncertainty", "entropy / ln K", "t")
    for place, ((kappa, temperature), curve) in enumerate(uncertainty_curves(settings).items()):
        label = f"κ = {kappa:g}, T = {temperature:g}"
        axes.plot(np.linspace(0, 1, len(curve)), curve, label=label, **_style(place))
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    _legend(axes)
    return axes


def lines(
    found: Sequence[Series],
    metric: str,
    ax: Axes | None = None,
    *,
    title: str = "",
    against: str = "",
    log: bool = False,
) -> Axes:
    """Means with standard errors against a setting, an epoch or a severity, a line a series."""
    if not found or not any(one.points for one in found):
        raise InputError(f"there is nothing to draw of {metric}")
    if len(found) > SHOWN:
        title = f"{title} ({SHOWN} of {len(found)})"
    axes = _axes(ax, title, against, heading(metric))
    scale = 100 if unit(metric) == "%" else 1
    for place, one in enumerate(found[:SHOWN]):
        mean, error = scale * np.array(one.means), scale * np.array(one.errors)
        style = _style(place)
        marker = "o" if len(mean) <= 12 else ""
        axes.plot(one.places, mean, marker=marker, ms=3.5, label=one.name, **style)
        if error.any():
            axes.fill_between(
                one.places, mean - error, mean + error, color=style["color"], alpha=0.16, lw=0
            )
    if log:
        axes.set_xscale("log")
    elif len(places := sorted({place for one in found for place in one.places})) <= 10:
        axes.set_xticks(places, [f"{place:g}" for place in places])
    if len(found) > 1:
        _legend(axes)
    return axes


def shares(
    lines: Sequence[Series], ax: Axes | None = None, *, title: str = "", against: str = ""
) -> Axes:
    """Each line as a share of where it begins (class-scaling figure 3)."""
    axes = _axes(ax, title, against, "share of the first value")
    for place, line in enumerate(lines):
        axes.plot(
            line.places,
            [one / line.means[0] for one in line.means],
            label=line.name,
            **_style(place),
        )
    _legend(axes)
    return axes


def heat(
    table: Mapping[tuple[float, float], Mean],
    metric: str,
    ax: Axes | None = None,
    *,
    names: tuple[str, str],
    title: str = "",
) -> Axes:
    """A figure over two settings, its numbers written in (r-aurc tables 9, 10; acls table A)."""
    rows, columns = (sorted({place[side] for place in table}) for side in (0, 1))
    axes = _axes(ax, title or heading(metric), names[1], names[0])
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
    axes.set_xticks(range(len(columns)), [f"{one:g}" for one in columns])
    axes.set_yticks(range(len(rows)), [f"{one:g}" for one in rows])
    return axes


def spread_against_error(
    points: Sequence[tuple[str, str, float, float]], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Class-wise loss spread against ECE, with Pearson's r (class-scaling figure 1)."""
    if not points:
        raise InputError("there is nothing to draw of the spread of class-wise losses")
    spread, error = (np.array([one[side] for one in points]) for side in (2, 3))
    z, _ = correlation(spread.tolist(), error.tolist())
    r = math.tanh(z)
    told = " ".join(filter(None, (title, f"(r = {r:.2f})" if math.isfinite(r) else "")))
    axes = _axes(ax, told, "standard deviation of class-wise losses", heading("ece"))
    plain = np.array([one[1] == "none" for one in points])
    for mask, colour, label in ((plain, OVER, "uncalibrated"), (~plain, UNDER, "calibrated")):
        if mask.any():
            axes.scatter(spread[mask], 100 * error[mask], s=14, color=colour, lw=0, label=label)
    _legend(axes)
    return axes


def effects(
    found: Mapping[str, Mapping[str, float]], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Cohen's d of each secondary loss, a group a primary (soft-calibration figure 1)."""
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    if not names:
        raise InputError("there is no secondary loss beside its primary to draw")
    axes = _axes(ax, title or "Effect on ECE", "", "Cohen's d, above 0: lower ECE")
    width = min(0.8 / len(found), 0.4)
    for place, (primary, each) in enumerate(found.items()):
        at = np.arange(len(names)) + (place - (len(found) - 1) / 2) * width
        heights = [each.get(name, np.nan) for name in names]
        axes.bar(at, heights, width * 0.92, color=COLOURS[place % len(COLOURS)], label=primary)
    axes.axhline(0, color=MUTED, lw=0.8)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, len(names) - 0.4)
    _legend(axes)
    return axes


def svg(axes: Axes) -> str:
    """The figure as SVG text: the same drawing gives the same text."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = axes.figure
    assert isinstance(figure, Figure)
    sink = io.StringIO()
    # Ids are drawn at random unless salted, and the date would differ every time.
    with rc_context({"svg.hashsalt": "calibrant", "svg.fonttype": "path"}):
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    return sink.getvalue()
