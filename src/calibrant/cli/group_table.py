"""The groups of an evaluation, as a table that fits a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibrant.cli.console import make_table
from calibrant.evaluation.groups import FEW, FEWEST, OVER, UNDER, UNSHOWN

if TYPE_CHECKING:
    from rich.console import Console

    from calibrant.evaluation.groups import Group, Groups

MOST_SHOWN = 30
# Columns beside a group's name, below which ECE, and the two that make the gap, are left out.
_WIDE, _NARROW, _LONGEST = 73, 57, 30
_JUDGED = {OVER: "too sure", UNDER: "too unsure", UNSHOWN: "no gap", FEW: "few"}
_LEGEND = {
    "no gap": "no gap: none is shown",
    "few": f"few: {FEW}",
    "not tested": f"not tested: fewer than {FEWEST} rows, or images",
    "looks off": "looks off: too few rows, and an interval without 0: more rows are needed",
    "≤": "≤: points by which it could at most be off, the wider end of the interval",
}


def show_groups(groups: Groups, console: Console) -> None:
    """Print the figures of the groups, the most overconfident first."""
    longest = min(_LONGEST, max(len(name) for name in (groups.name, *groups.keys())))
    left = console.width - longest
    narrow, narrower = left < _WIDE, left < _NARROW
    bounded = any(group.finding is not None for group in groups.groups)
    ordered = groups.by_gap
    shown = ordered if len(ordered) <= MOST_SHOWN else _kept(ordered)
    table = make_table()
    table.add_column(groups.name, style="cyan", overflow="fold", min_width=6)
    for heading in ("rows", "gap") if narrower else ("rows", "sure", "right", "gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    if bounded:
        table.add_column(f"{groups.level:.0%} interval", justify="right", no_wrap=True)
    if not narrow:
        for heading in ("ECE", "chance") if bounded else ("ECE",):
            table.add_column(heading, justify="right", no_wrap=True)
    if bounded:
        table.add_column("judged", no_wrap=True)
    cells = [_cells(group, bounded, narrow, narrower) for group in shown]
    for line in cells:
        table.add_row(*line)
    console.print()
    console.print(table)
    if len(shown) < len(ordered):
        console.print(
            f"{len(shown)} of {len(ordered):,} groups; --json and the report have all", style="dim"
        )
    if bounded:
        chance = "" if narrow else "; chance: the ECE that calibrated rows as many may show"
        console.print(
            "gap: confidence less accuracy, in points; judged with Holm's correction for the "
            f"number of groups{chance}",
            style="dim",
        )
        used = [said for word, said in _LEGEND.items() if any(word in one[-1] for one in cells)]
        if used:
            console.print("; ".join(used), style="dim")
    if any("–" in line for line in cells):
        console.print("–: no rows to compute it from", style="dim")


def _kept(ordered: list[Group]) -> list[Group]:
    """As many as are shown: those that are off before others, in the order they have."""
    chosen = sorted(ordered, key=lambda group: not group.is_off)[:MOST_SHOWN]
    return [group for group in ordered if group in chosen]


def _cells(group: Group, bounded: bool, narrow: bool, narrower: bool) -> list[str]:
    from calibrant.report import words

    def points(value: float | None) -> str:
        return words.NOTHING if value is None or value != value else words.points(value)

    cells = [group.value, f"{group.num_rows:,}"]
    if not narrower:
        cells += [words.figure_text("accuracy", one) for one in (group.confidence, group.accuracy)]
    cells.append(points(group.gap))
    if bounded:
        cells.append(
            words.NOTHING
            if group.gap_low is None
            else f"{points(group.gap_low)} – {points(group.gap_high)}"
        )
    if not narrow:
        cells.append(words.number(group.ece))
        if bounded:
            cells.append(words.number(group.chance_ece))
    if bounded:
        cells.append(_judged(group, narrower))
    return cells


def _judged(group: Group, narrower: bool) -> str:
    """What it was found to be, and where no gap is shown, by how much it could be off."""
    if group.looks_off:
        return "looks off"
    word = _JUDGED.get(group.finding or "", "not tested")
    bounded = group.finding in (UNSHOWN, FEW) and not narrower
    return f"{word} ≤ {100 * group.widest:.1f}" if bounded else word
