"""List the settings that a suite's ``tune:`` block chose, for tables and the page."""

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
    """A tuned setting of a method in a cell."""

    cell: tuple[Any, ...]
    where: str
    method: str
    rule: str
    step: Step


def list_lines(results: Results, methods: Sequence[str]) -> tuple[Line, ...]:
    """List the choices for methods, in the order of the suite's cells."""
    unordered: dict[Line, None] = {}
    for choice in results.suite.choices:
        cell = results.cell_of(choice.config)
        if choice.method in methods and cell in results.cells:
            where = (cell, results.name_of(cell), choice.method, choice.rule)
            unordered |= {Line(*where, step): None for step in choice.steps}
    places = {cell: place for place, cell in enumerate(results.cells)}
    return tuple(sorted(unordered, key=lambda line: places[line.cell]))


def describe_rules(choices: Sequence[Line]) -> str:
    """Describe the rules of the choices."""
    rules = dict.fromkeys(line.rule for line in choices)
    return f"Settings chosen on validation rows: {'; '.join(rules)}."


def format_markdown(choices: Sequence[Line]) -> list[str]:
    """Format the choices as lines of a Markdown table."""
    heads, rows = _make_rows(choices)
    body = [f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in rows]
    ruler = f"|---|---|---|---|{'---:|' * (len(heads) - 4)}"
    return [describe_rules(choices), "", f"| {' | '.join(heads)} |", ruler, *body, ""]


def format_html(choices: Sequence[Line]) -> str:
    """Format the choices as a ``table`` element below the rules."""
    heads, rows = _make_rows(choices)
    top = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(text)}</td>" for text in row[1:])
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<p class="legend-line">{escape(describe_rules(choices))}</p>\n'
        f'<div class="scroll"><table class="bench chosen"><thead><tr>{top}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def format_comments(choices: Sequence[Line]) -> list[str]:
    """Describe the choices in a line each, for the comments of a LaTeX file."""
    lines_of = [describe_rules(choices)]
    for line in choices:
        figures = ", ".join(_format_figure(*figure) for figure in line.step.figures)
        lines_of.append(
            f"{line.where}, {line.method}: {line.step.setting} = {line.step.value}, "
            f"of {_describe_tried(line.step)} tried ({figures})"
        )
    return lines_of


def list_cells(choices: Sequence[Line], cell: tuple[Any, ...], method: str) -> list[Any]:
    """Return a method's `COLUMNS` in a cell: its settings, and figures of the last choice."""
    steps = [line.step for line in choices if (line.cell, line.method) == (cell, method)]
    if not steps:
        return [None] * len(COLUMNS)
    figures = dict(steps[-1].figures)
    settings = "; ".join(f"{step.setting} = {step.value}" for step in steps)
    tried = sum(step.tried for step in steps)
    by = steps[-1].figures[0][0]
    return [settings, tried, by, figures[by], *(figures.get(name) for name in BESIDE)]


def _make_rows(choices: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a row for each setting."""
    metrics = list(dict.fromkeys(name for line in choices for name, _ in line.step.figures))
    heads = ["runs", "method", "setting", "value", "tried", *map(heading, metrics)]
    rows = []
    for line in choices:
        figures = dict(line.step.figures)
        shown = [number(metric, figures.get(metric)) for metric in metrics]
        rows.append(
            [
                line.where,
                line.method,
                line.step.setting,
                line.step.value,
                _describe_tried(line.step),
                *shown,
            ]
        )
    return heads, rows


def _describe_tried(step: Step) -> str:
    return f"{step.tried} ({step.failed} failed)" if step.failed else str(step.tried)


def _format_figure(metric: str, value: float | None) -> str:
    text = number(metric, value)
    name, _, unit = heading(metric).rstrip(" ↑↓").partition(", ")
    return f"{name} {text}{unit}"
