"""Print the groups of an evaluation as a table that fits a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant.cli.console import make_table
from calibrant.evaluation.clustered import FEWEST_CLUSTERS
from calibrant.evaluation.groups.value import (
    FEW,
    FEW_EVENTS,
    FEWEST,
    OVER,
    TOO_HIGH,
    TOO_LOW,
    UNDER,
    UNSHOWN,
    format_ratio,
)

if TYPE_CHECKING:
    from rich.console import Console

    from calibrant.evaluation.groups.value import Group, Groups

MOST_GROUPS = 30
_WITH_ECE = 73  # characters beside the group's name that a table with ECE takes
_WITH_PARTS = 57  # and one with confidence and accuracy beside the gap
_LONGEST_NAME = 30
_FINDINGS = {
    OVER: "too sure",
    UNDER: "too unsure",
    UNSHOWN: "no gap",
    FEW: "few",
    FEW_EVENTS: "few events",
    TOO_HIGH: TOO_HIGH,
    TOO_LOW: TOO_LOW,
}
_LEGEND = {
    "no gap": "no gap: no significant gap",
    "few events": f"few events: {FEW_EVENTS}",
    "few": f"few: {FEW}",
    "not tested": f"not tested: fewer than {FEWEST} rows, or {FEWEST_CLUSTERS} clusters or images",
    "looks off": "looks off: the interval excludes 0, but more rows are needed to test it",
    "≤": "≤: largest gap that the interval allows, in points",
}


def show_groups(groups: Groups, console: Console) -> None:
    """Print a row per group, the most overconfident first."""
    longest = min(_LONGEST_NAME, max(len(name) for name in (groups.name, *groups.keys())))
    room = console.width - longest
    has_ece, has_parts = room >= _WITH_ECE, room >= _WITH_PARTS
    has_tests = any(group.finding is not None for group in groups.groups)
    ordered = groups.in_order
    shown = _select_groups(ordered)
    table = make_table()
    table.add_column(groups.name, style="cyan", overflow="fold", min_width=6)
    parts = ("conf.", "acc.") if groups.event is None else ("mean prob.", "frequency")
    gap = "gap" if groups.event is None else "O/E"
    for heading in ("rows", *parts, gap) if has_parts else ("rows", gap):
        table.add_column(heading, justify="right", no_wrap=len(heading) < 10)
    if has_tests:
        table.add_column(f"{groups.level:.0%} interval", justify="right", no_wrap=True)
    if has_ece:
        for heading in ("ECE", "chance") if has_tests else ("ECE",):
            table.add_column(heading, justify="right", no_wrap=True)
    if has_tests:
        table.add_column("finding", no_wrap=True)
    rows = [_format_row(group, has_tests, has_ece, has_parts) for group in shown]
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    if len(shown) < len(ordered):
        console.print(
            f"{len(shown)} of {len(ordered):,} groups; --json and the report list all", style="dim"
        )
    if has_tests:
        chance = "; chance: the ECE that a calibrated group of this size may show"
        what = "gap: confidence minus accuracy, in points, tested"
        if groups.event is not None:
            what = "O/E: observed over expected events, whose total is tested"
        method = "Holm's correction" if groups.correction == "Holm" else "a correction (maxT)"
        console.print(
            f"{what} with {method} for the number of groups{chance if has_ece else ''}",
            style="dim",
        )
        terms = {row[-1].split(" ≤")[0] for row in rows}
        terms |= {"≤"} if any("≤" in row[-1] for row in rows) else set()
        notes = [note for term, note in _LEGEND.items() if term in terms]
        if notes:
            console.print("; ".join(notes), style="dim")
    if any("–" in row for row in rows):
        console.print("–: no rows to compute it from", style="dim")


def _select_groups(ordered: list[Group]) -> list[Group]:
    """Return the groups to show, in the given order; groups that are off come first in choice."""
    chosen = sorted(ordered, key=lambda group: not group.is_off)[:MOST_GROUPS]
    return [group for group in ordered if group in chosen]


def _format_row(group: Group, has_tests: bool, has_ece: bool, has_parts: bool) -> list[str]:
    from calibrant.report import formatting

    def points(value: float | None) -> str:
        return formatting.NOTHING if value is None or value != value else formatting.points(value)

    cells = [group.value, f"{group.num_rows:,}"]
    if has_parts:
        shares = (group.confidence, group.accuracy)
        cells += [formatting.figure_text("accuracy", share) for share in shares]
    if group.ratio is None:
        cells.append(points(group.gap))
        ends = f"{points(group.gap_low)} – {points(group.gap_high)}"
    else:
        known = group.ratio == group.ratio
        cells.append(format_ratio(group.ratio) if known else formatting.NOTHING)
        ends = f"{format_ratio(group.ratio_low)} – {format_ratio(group.ratio_high)}"
    if has_tests:
        cells.append(formatting.NOTHING if group.gap_low is None else ends)
    if has_ece:
        cells.append(formatting.number(group.ece))
        if has_tests:
            cells.append(formatting.number(group.chance_ece))
    if has_tests:
        cells.append(_format_finding(group, with_bound=has_parts))
    return cells


def _format_finding(group: Group, *, with_bound: bool) -> str:
    """Format what the test found; without a significant gap, add the largest possible one."""
    if group.looks_off:
        return "looks off"
    word = _FINDINGS.get(group.finding or "", "not tested")
    if with_bound and group.ratio is None and group.finding in (UNSHOWN, FEW):
        return f"{word} ≤ {100 * group.widest:.1f}"
    return word
