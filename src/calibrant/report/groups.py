"""The report's section on groups: a row of the table and of the picture for each group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calibrant.evaluation.groups.value import LOOKS_OFF, OVER, TOO_HIGH, TOO_LOW, UNDER, UNSHOWN
from calibrant.report import formatting
from calibrant.report.formatting import CLASSES, Words

if TYPE_CHECKING:
    from calibrant.evaluation import Group, Groups

_MANY = 30  # groups from which on their picture scrolls
_SIDES = {OVER: "over", TOO_HIGH: "over", UNDER: "under", TOO_LOW: "under"}


class GroupRow(NamedTuple):
    """One group as text, and the places of its gap and interval on the line, in percent."""

    group: Group
    side: str  # "over", "under" or "inside"; decides the colour
    judged: str
    gap: str
    interval: str
    ece_interval: str
    corrected: str
    place: float
    low: float
    high: float
    cut_low: bool  # whether the interval extends beyond the line
    cut_high: bool


class GroupSection(NamedTuple):
    """The content of the section on groups."""

    title: str
    headline: str
    tone: str
    rows: list[GroupRow]
    drawn: list[GroupRow]  # those with rows
    order: str  # in words
    summary: str  # how many groups are off, in a sentence
    is_long: bool  # whether the picture scrolls
    limit: float
    level: str
    has_findings: bool
    correction: str  # for the number of groups
    cut: bool  # whether any drawn interval extends beyond the line


def make_group_section(groups: Groups, words: Words = CLASSES) -> GroupSection:
    """Make the section's text and places; dates come in their order, else the widest gap first.

    The line is long enough for the widest gap, and for the intervals of groups with enough rows.
    """
    ordered = groups.in_order
    ends = [
        abs(end)
        for group in ordered
        for end in (group.gap, *(() if group.is_few else (group.gap_low, group.gap_high)))
        if end is not None and end == end
    ]
    limit = formatting.choose_gap_limit(1.1 * max([*ends, 0.01]))
    rows = [_make_row(group, limit, words) for group in ordered]
    drawn = [row for row in rows if row.group.num_rows]
    off = {row.side for row in rows} - {"inside"}
    sound = any(group.finding == UNSHOWN for group in ordered)
    return GroupSection(
        title=groups.name,
        headline=groups.headline,
        tone="harms" if "over" in off else "mixed" if off or not sound else "helps",
        rows=rows,
        drawn=drawn,
        order="in order of time" if groups.are_dates else f"most {words.over} first",
        summary=_summarize(groups),
        is_long=len(drawn) > _MANY,
        limit=limit,
        level=formatting.percent(groups.level),
        has_findings=any(group.finding is not None for group in ordered),
        correction=groups.correction,
        cut=any(row.cut_low or row.cut_high for row in drawn),
    )


def _summarize(groups: Groups) -> str:
    count = len(groups.off)
    verb = "is" if count == 1 else "are"
    return (
        f"{count or 'None'} of the {len(groups):,} groups by {groups.name} {verb} shown to be off."
    )


def _make_row(group: Group, limit: float, words: Words) -> GroupRow:
    finding = {OVER: words.over, UNDER: words.under}.get(group.finding or "", group.finding or "")
    low = group.gap if group.gap_low is None else group.gap_low
    high = group.gap if group.gap_high is None else group.gap_high
    interval = ece_interval = formatting.NOTHING
    if group.gap_low is not None and group.gap_high is not None:
        interval = f"{formatting.points(group.gap_low)} to {formatting.points(group.gap_high)}"
    if group.ece_low is not None and group.ece_high is not None:
        ends = (formatting.error_points(end) for end in (group.ece_low, group.ece_high))
        ece_interval = " to ".join(ends)
    return GroupRow(
        group,
        _SIDES.get(group.finding or "", "inside"),
        f"{finding}; {LOOKS_OFF}" if group.looks_off else finding,
        formatting.points(group.gap) if group.num_rows else formatting.NOTHING,
        interval,
        ece_interval,
        formatting.NOTHING
        if group.p_adjusted is None
        else formatting.probability(group.p_adjusted),
        formatting.place_gap(group.gap, limit),
        formatting.place_gap(low, limit),
        formatting.place_gap(high, limit),
        group.gap_low is not None and group.gap_low < -limit,
        group.gap_high is not None and group.gap_high > limit,
    )
