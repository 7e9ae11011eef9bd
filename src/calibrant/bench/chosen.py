"""What a suite's ``tune:`` block chose, as tables and the page tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from calibrant.bench.figures import heading, label, number
from calibrant.bench.loss_texts import has_term
from calibrant.training.config import Config

if TYPE_CHECKING:
    from calibrant.bench.cells import Results

BESIDE = ("accuracy", "nll")  # figures of a candidate beside the one it is chosen by
COLUMNS = ("tuned", "tried", "tuned_by", "tuned_value", "tuned_accuracy", "tuned_nll")  # of CSV


class Step(NamedTuple):
    """One setting: the value it got, of how many, and that candidate's validation figures."""

    setting: str  # as in ``beta of s_avuc``
    value: str
    tried: int
    failed: int
    figures: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True)
class Choice:
    """What was chosen for one method's runs, which differ in their seed alone."""

    method: str
    config: Config
    rule: str  # in words
    steps: tuple[Step, ...]

    @classmethod
    def of(
        cls,
        method: str,
        config: Config,
        tune: Mapping[str, Any],
        written: Iterable[Mapping[str, Any]],
    ) -> Choice:
        """From the candidates in a choice's file; ``config`` is that of the runs it came to."""
        steps = tuple(_step(one, str(tune["metric"]), config) for one in written)
        return cls(method, config, _rule(tune), steps)


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


def _step(written: Mapping[str, Any], metric: str, config: Config) -> Step:
    candidates = written["candidates"]
    taken: Mapping[str, Any] = next(
        (one for one in candidates if one["value"] == written["chosen"]), {}
    )
    whose = [name for name in written.get("of") or () if has_term(config.loss, [name])]
    return Step(
        setting=" of ".join([str(written["setting"]), *([" and ".join(whose)] if whose else [])]),
        value=str(written["chosen"]),
        tried=len(candidates),
        failed=sum(one.get(metric) is None for one in candidates),
        figures=tuple((name, taken.get(name)) for name in dict.fromkeys((metric, *BESIDE))),
    )


def _rule(tune: Mapping[str, Any]) -> str:
    count, lost = len(tune["seeds"]), 100 * tune["accuracy_lost"]
    return (
        f"the lowest {label(tune['metric'])} of those at most {lost:g} point{'s' * (lost != 1)} "
        f"of accuracy below the most accurate, by {count} seed{'s' * (count > 1)}, one "
        "setting after another"
    )


def _tried(step: Step) -> str:
    return f"{step.tried} ({step.failed} failed)" if step.failed else str(step.tried)


def _figure(metric: str, value: float | None) -> str:
    text = number(metric, value)
    name, _, unit = heading(metric).rstrip(" ↑↓").partition(", ")
    return f"{name} {text}{unit}"
