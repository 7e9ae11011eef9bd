"""A matplotlib picture of the groups of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibrant.evaluation.groups import OVER as OVERCONFIDENT
from calibrant.evaluation.groups import UNDER as UNDERCONFIDENT
from calibrant.functional.errors import InputError
from calibrant.report.pictures import INSIDE, MUTED, OVER, UNDER, add_title, new_axes, quiet_frame
from calibrant.report.words import percent, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from calibrant.evaluation import Evaluation


def group_gaps(evaluation: Evaluation, ax: Axes | None = None, *, top: int = 20) -> Axes:
    """Mean confidence − accuracy of each group with its interval, the most overconfident first.

    A filled mark is a group shown to be over- or underconfident among so many (Holm); a hollow
    one could be chance, or has too few rows. Of more groups than ``top``, those off come first.

    Args:
        evaluation: what :func:`calibrant.evaluate` returned of rows with ``groups``.
        ax: axes to draw on; a new figure when left out.
        top: how many groups to show at most.
    """
    if top < 1:
        raise InputError(f"top is the number of groups to show, at least 1, not {top}.")
    if evaluation.groups is None:
        raise InputError("this evaluation has no groups: give evaluate(..., groups=...) some")
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
    fills = [c if one.is_off else "white" for c, one in zip(colours, shown, strict=True)]
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
