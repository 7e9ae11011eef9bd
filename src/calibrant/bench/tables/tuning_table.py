"""What a suite's ``tune:`` block chose, as tables and the page tell it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrant.bench.suite.tuning import BESIDE, Step
from calibrant.bench.tables.formatting import heading, number

if TYPE_CHECKING:
    from calibrant.bench.tables.results import Results

COLUMNS = ("tuned", "tried", "tuned_by", "tuned_value", "tuned_accuracy", "tuned_nll")  # of CSV


class Line(NamedTuple):
    """A setting that was tuned, of one method in one cell."""

    cell: tuple[Any, ...]
    where: str
    method: str
    rule: str
    step: Step


def lines(found: Results, methods: Sequence[str]) -> tuple[Line, ...]:
    """What was chosen for these methods, in the order of the suite's cells."""
    told: dict[Line, None] = {}
    for one in found.suite.choices:
        cell = found.cell_of(one.config)
        if one.method in methods and cell in found.cells:
            where = (cell, found.name_of(cell), one.method, one.rule)
            told |= {Line(*where, step): None for step in one.steps}
    places = {cell: place for place, cell in enumerate(found.cells)}
    return tuple(sorted(told, key=lambda line: places[line.cell]))


def lead(told: Sequence[Line]) -> str:
    """How these were chosen, in words."""
    rules = dict.fromkeys(line.rule for line in told)
    return f"Settings chosen on validation rows: {'; '.join(rules)}."


def markdown(told: Sequence[Line]) -> list[str]:
    """The choices as the lines of a table."""
    heads, rows = _grid(told)
    made = [f"| {' | '.join(one.replace('|', chr(92) + '|') for one in row)} |" for row in rows]
    ruler = f"|---|---|---|---|{'---:|' * (len(heads) - 4)}"
    return [lead(told), "", f"| {' | '.join(heads)} |", ruler, *made, ""]


def html(told: Sequence[Line]) -> str:
    """The choices as a ``table`` element under a line that says how."""
    heads, rows = _grid(told)
    top = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(one)}</td>" for one in row[1:])
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<p class="legend-line">{escape(lead(told))}</p>\n'
        f'<div class="scroll"><table class="bench chosen"><thead><tr>{top}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def comments(told: Sequence[Line]) -> list[str]:
    """The choices in words, a line each, for a file whose table has no room for them."""
    found = [lead(told)]
    for line in told:
        figures = ", ".join(_figure(*one) for one in line.step.figures)
        found.append(
            f"{line.where}, {line.method}: {line.step.setting} = {line.step.value}, "
            f"of {_tried(line.step)} tried ({figures})"
        )
    return found


def cells(told: Sequence[Line], cell: tuple[Any, ...], method: str) -> list[Any]:
    """`COLUMNS` of a method in a cell: all its settings, and the figures of the last choice."""
    steps = [line.step for line in told if (line.cell, line.method) == (cell, method)]
    if not steps:
        return [None] * len(COLUMNS)
    figures = dict(steps[-1].figures)
    settings = "; ".join(f"{one.setting} = {one.value}" for one in steps)
    tried = sum(one.tried for one in steps)
    by = steps[-1].figures[0][0]
    return [settings, tried, by, figures[by], *(figures.get(name) for name in BESIDE)]


def _grid(told: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row a setting."""
    metrics = list(dict.fromkeys(name for line in told for name, _ in line.step.figures))
    heads = ["runs", "method", "setting", "value", "tried", *map(heading, metrics)]
    rows = []
    for line in told:
        figures = dict(line.step.figures)
        shown = [number(one, figures.get(one)) for one in metrics]
        rows.append(
            [line.where, line.method, line.step.setting, line.step.value, _tried(line.step), *shown]
        )
    return heads, rows


def _tried(step: Step) -> str:
    return f"{step.tried} ({step.failed} failed)" if step.failed else str(step.tried)


def _figure(metric: str, value: float | None) -> str:
    text = number(metric, value)
    name, _, unit = heading(metric).rstrip(" ↑↓").partition(", ")
    return f"{name} {text}{unit}"
