"""The groups of an evaluation on the page: a row each of a table and of a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calibrant.evaluation.groups import LOOKS_OFF, OVER, UNDER, UNSHOWN
from calibrant.report import words

if TYPE_CHECKING:
    from calibrant.evaluation import Group, Groups

MOST_DRAWN = 30
_STEPS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75)
_SIDES = {OVER: "over", UNDER: "under"}


class Row(NamedTuple):
    """One group, in words, and where its gap and interval lie on the line, in percent."""

    group: Group
    side: str  # "over", "under" or "inside", which is its colour
    judged: str
    gap: str
    interval: str
    ece_interval: str
    corrected: str
    place: float
    low: float
    high: float
    cut_low: bool  # whether the interval goes on beyond the line
    cut_high: bool


class GroupSection(NamedTuple):
    """What the section on groups shows."""

    title: str
    headline: str
    tone: str
    rows: list[Row]
    drawn: list[Row]
    limit: float
    level: str
    judged: bool
    cut: bool  # whether any interval drawn goes on beyond the line


def group_section(groups: Groups) -> GroupSection:
    """The section's words and places; the most overconfident group first.

    The line reaches the widest gap, and the intervals of groups that have rows enough.
    """
    ordered = groups.by_gap
    ends = [
        abs(end)
        for group in ordered
        for end in (group.gap, *(() if group.is_few else (group.gap_low, group.gap_high)))
        if end is not None and end == end
    ]
    reach = 1.1 * max([*ends, 0.01])
    limit = next((step for step in _STEPS if step >= reach), 1.0)
    rows = [_row(group, limit) for group in ordered]
    if len(rows) > MOST_DRAWN:
        first = sorted(rows, key=lambda row: row.side == "inside")[:MOST_DRAWN]
        drawn = [row for row in rows if row in first]
    else:
        drawn = rows
    drawn = [row for row in drawn if row.group.num_rows]
    off = {row.side for row in rows} - {"inside"}
    sound = any(group.finding == UNSHOWN for group in ordered)
    return GroupSection(
        title=groups.name,
        headline=groups.headline,
        tone="harms" if "over" in off else "mixed" if off or not sound else "helps",
        rows=rows,
        drawn=drawn,
        limit=limit,
        level=words.percent(groups.level),
        judged=any(group.finding is not None for group in ordered),
        cut=any(row.cut_low or row.cut_high for row in drawn),
    )


def _row(group: Group, limit: float) -> Row:
    def place(value: float | None) -> float:
        value = group.gap if value is None else value
        value = 0.0 if value != value else min(max(value, -limit), limit)
        return round(50 + 50 * value / limit, 2)

    def span(low: float | None, high: float | None, points: bool) -> str:
        if low is None or high is None:
            return words.NOTHING
        ends = (words.points(low), words.points(high)) if points else map(words.number, (low, high))
        return " to ".join(ends)

    return Row(
        group,
        _SIDES.get(group.finding or "", "inside"),
        f"{group.finding}; {LOOKS_OFF}" if group.looks_off else group.finding or "",
        words.points(group.gap) if group.num_rows else words.NOTHING,
        span(group.gap_low, group.gap_high, points=True),
        span(group.ece_low, group.ece_high, points=False),
        words.NOTHING if group.p_adjusted is None else words.probability(group.p_adjusted),
        place(group.gap),
        place(group.gap_low),
        place(group.gap_high),
        group.gap_low is not None and group.gap_low < -limit,
        group.gap_high is not None and group.gap_high > limit,
    )
