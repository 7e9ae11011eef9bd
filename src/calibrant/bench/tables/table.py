"""A table of a suite: columns, blocks of rows and entries; and its four formats."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from calibrant.bench.suite.published import PublishedFigure
from calibrant.bench.tables import statistics, tuning_table
from calibrant.bench.tables.formatting import (
    heading,
    number,
    shown_calibrator,
    with_error,
    without_source,
)
from calibrant.bench.tables.results import Cell

MARKS = {True: "+", False: "−", None: ""}
# Characters that LaTeX reads as commands, or that its plain fonts lack.
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "∞": r"$\infty$",
    "<": r"$<$",
    ">": r"$>$",
}


class Published(NamedTuple):
    """A paper's figure, its value, and a description of its source."""

    figure: PublishedFigure
    value: float
    source: str


@dataclass(frozen=True)
class Entry:
    """A figure of a method: the mean over seeds, its tests, and the published figure."""

    mean: statistics.Mean | None  # None: no run has it
    planned: int  # number of runs of the suite
    best: bool = False
    tied: bool = False  # a paired test cannot tell it from the best
    difference: statistics.Paired | None = None  # to the baseline
    p: float | None = None  # of that difference, Holm-adjusted over the column; None: not tested
    better: bool | None = None  # than the baseline, where p is below the level
    published: Published | None = None

    @property
    def verdict(self) -> bool | None:
        """Whether the test says better (True) or worse (False) than the baseline, or neither."""
        return self.better if self.p is not None and self.p < statistics.LEVEL else None


@dataclass(frozen=True)
class Column:
    """A metric after a calibrator on a part of the rows."""

    metric: str
    calibrator: str = "none"
    has_published: bool = False
    part: str = "test"
    says_part: bool = False  # where others of the table are of other parts

    @property
    def heading(self) -> str:
        """Its name, unit and better direction, the calibrator, and the part if needed."""
        plain = shown_calibrator(self.calibrator)
        after = "" if plain == "none" else f", after {plain}"
        after += f", {describe_part(self.part)}" if self.says_part else ""
        text = heading(self.metric)
        arrow = text[-1] if text[-1] in "↑↓" else ""
        return f"{text[:-1].rstrip()}{after} {arrow}" if arrow else f"{text}{after}"


@dataclass(frozen=True)
class Block:
    """The rows of a cell."""

    cell: Cell
    name: str
    rows: tuple[tuple[str, tuple[Entry, ...]], ...]
    diverged: frozenset[str] = frozenset()  # methods of which runs ended without a result
    labels: Mapping[str, str] = field(default_factory=dict)  # of rows not shown by their name

    @property
    def shown(self) -> tuple[tuple[str, tuple[Entry, ...]], ...]:
        """The rows that have a figure, ours or published."""
        filled = [(name, entries) for name, entries in self.rows if _has_any(entries)]
        return tuple((self._label(name), entries) for name, entries in filled)

    @property
    def waiting(self) -> str:
        """In words, the rows that have none."""
        names = [name for name, entries in self.rows if not _has_any(entries)]
        lost = [self._label(name) for name in names if name in self.diverged]
        names = [self._label(name) for name in names if name not in self.diverged]
        sentences = [f"Diverged: {', '.join(lost)}."] if lost else []
        sentences += [f"No figures (not run yet, or failed): {', '.join(names)}."] if names else []
        return " ".join(sentences)

    def _label(self, name: str) -> str:
        return self.labels.get(name) or without_source(name)


@dataclass(frozen=True)
class Table:
    """A table of a suite, which can be written in four formats."""

    title: str
    by: tuple[str, ...]
    down: str  # kind of the rows: method or calibrator
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    baseline: str | None
    parts: tuple[str, ...] = ("test",)
    method: str | None = None  # the method, if rows are calibrators
    chosen: tuple[tuning_table.Line, ...] = ()  # tuned settings
    more: tuple[str, ...] = ()  # measured calibrators without a column

    @property
    def sources(self) -> dict[str, str]:
        """The sources of published figures, each with a letter, in order of appearance."""
        sources = dict.fromkeys(
            entry.published.source
            for block in self.blocks
            for _, entries in block.rows
            for entry in entries
            if entry.published is not None
        )
        return {source: chr(ord("a") + place) for place, source in enumerate(sources)}

    def to_markdown(self) -> str:
        """Format as Markdown."""
        return _write_markdown(self)

    def to_latex(self) -> str:
        """Format as LaTeX, for the package booktabs."""
        return _write_latex(self)

    def to_csv(self) -> str:
        """Format as CSV: a line for each figure, in the units of the store."""
        return _write_csv(self)

    def to_html(self) -> str:
        """Format as an HTML fragment."""
        return _write_html(self)


def describe_part(part: str) -> str:
    """Describe a part of the rows for a heading."""
    known = {
        "test": "clean",
        "test:*": "corrupted",
        "official:*": "official corruptions",
        "ood:*": "beside another set",
    }
    severity = re.fullmatch(r"(test|official):\*:(\d)", part)
    if severity is None:
        return known.get(part, part)
    return f"{'official ' * (severity[1] == 'official')}severity {severity[2]}"


def _has_any(entries: Sequence[Entry]) -> bool:
    return any(entry.mean is not None or entry.published is not None for entry in entries)


def _write_markdown(table: Table) -> str:
    """Format as Markdown; the best in bold, those tied with it in italics."""

    def shown(entry: Entry, metric: str, note: str) -> str:
        text = _format_figure(entry, metric)
        text = f"**{text}**" if entry.best else f"*{text}*" if entry.tied else text
        return text + MARKS[entry.verdict] + note

    lines = []
    for block in table.blocks:
        lines += [f"**{_escape_markdown(block.name)}**", ""]
        heads = [table.down, *_list_headings(table)]
        if block.shown:
            lines.append(f"| {' | '.join(_escape_markdown(head) for head in heads)} |")
            lines.append(f"|---|{'---:|' * (len(heads) - 1)}")
        for name, entries in block.shown:
            cells = [_escape_markdown(name), *_format_cells(table, entries, shown)]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", block.waiting] if block.waiting and block.shown else [block.waiting]
        lines += [""] if block.waiting else []
    more = ["", _list_more(table, "`")] if table.more else []
    choices = ["", *tuning_table.format_markdown(table.chosen)] if table.chosen else [""]
    return "\n".join([*lines, _make_legend(table), *more, *choices])


def _write_latex(table: Table) -> str:
    """Format as a ``tabular`` with booktabs' rules; all text is escaped."""

    def shown(entry: Entry, metric: str, note: str) -> str:
        text = _escape_latex(_format_figure(entry, metric))
        if entry.best:
            text = rf"\textbf{{{text}}}"
        elif entry.tied:
            text = rf"\textit{{{text}}}"
        mark = MARKS[entry.verdict]
        return text + (f"$^{{{mark.replace('−', '-')}}}$" if mark else "") + note

    heads = [table.down, *_list_headings(table)]
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"\toprule",
        " & ".join(_escape_latex(head) for head in heads) + r" \\",
    ]
    for block in table.blocks:
        title = rf"\multicolumn{{{len(heads)}}}{{l}}{{\textbf{{{_escape_latex(block.name)}}}}} \\"
        lines += [r"\midrule", title]
        for name, entries in block.shown:
            cells = [_escape_latex(name), *_format_cells(table, entries, shown, _escape_latex)]
            lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    notes = [
        _make_legend(table),
        *(tuning_table.format_comments(table.chosen) if table.chosen else ()),
    ]
    return "\n".join([*lines, *(f"% {note}" for note in notes), ""])


def _write_html(table: Table) -> str:
    """Format as a ``table`` element for each cell, with classes better and worse."""

    def shown(entry: Entry, metric: str, note: str) -> str:
        tag = "strong" if entry.best else "em" if entry.tied else "span"
        figure, _, error = _format_figure(entry, metric).partition(" ± ")
        text = f"<{tag}>{escape(figure)}</{tag}>"
        mark = (
            {True: "better", False: "worse"}.get(entry.verdict)
            if entry.verdict is not None
            else None
        )
        if mark:
            reason = f"{mark} than {table.baseline}, p = {entry.p:.2g} (Holm)"
            sign = MARKS[entry.verdict]
            text += f'<sup class="{mark}" title="{escape(reason)}">{sign}</sup>'
        text += f" <small>± {escape(error)}</small>" if error else ""
        return text + (f" <small>{escape(note.strip())}</small>" if note else "")

    def show_heading(text: str) -> str:
        name, comma, after = text.partition(", after ")
        arrow = after[-1] if after[-1:] in ("↑", "↓") else ""
        below = f" <small>after {_escape_html(after.rstrip('↑↓ '))}</small>" if comma else ""
        return f'<th scope="col">{escape(name)}{f" {arrow}" if arrow else ""}{below}</th>'

    parts = []
    for block in table.blocks:
        heads = "".join(map(show_heading, _list_headings(table)))
        rows = "".join(
            f'<tr><th scope="row">{_escape_html(name)}</th>'
            + "".join(f"<td>{cell}</td>" for cell in _format_cells(table, entries, shown, escape))
            + "</tr>\n"
            for name, entries in block.shown
        )
        waiting = f'<p class="legend-line">{escape(block.waiting)}</p>' if block.waiting else ""
        caption = f"<caption>{escape(block.name)}</caption>"
        parts.append(
            f'<div class="scroll"><table class="bench">{caption}'
            f'<thead><tr><th scope="col">{table.down}</th>{heads}</tr></thead>\n'
            f"<tbody>\n{rows}</tbody></table></div>{waiting}"
        )
    notes = [_make_legend(table), *([_list_more(table)] if table.more else [])]
    parts += [f'<p class="legend-line">{escape(note)}</p>' for note in notes]
    return "\n".join([*parts, *([tuning_table.format_html(table.chosen)] if table.chosen else ())])


def _escape_html(name: str) -> str:
    """Escape a name, and let it break where its words end."""
    return re.sub(r"([_(,])", r"\1<wbr>", escape(name))


def _write_csv(table: Table) -> str:
    """Format as CSV with a line for each figure, in the units of the store."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    names = ["metric", "calibrator", "part", "mean", "standard_error", "seeds", "planned"]
    names += ["best", "tied"]
    against = ["difference", "difference_low", "difference_high", "p", "p_holm"]
    papers = ["published", "published_error", "paper", "table", "paper_data", "paper_model"]
    tuned = tuning_table.COLUMNS if table.chosen else ()
    writer.writerow([*table.by, "method", *names, *against, *papers, *tuned])
    for block in table.blocks:
        for name, entries in block.rows:
            for column, entry in zip(table.columns, entries, strict=True):
                mean, test = entry.mean, entry.difference
                method, after = (name, column.calibrator)
                if table.method is not None:
                    method, after = table.method, name
                ours = (mean.mean, mean.error, mean.count) if mean else (None, None, 0)
                comparison = (test.mean, test.low, test.high, test.p) if test else (None,) * 4
                theirs: tuple[Any, ...] = (None,) * 6
                if entry.published is not None:
                    figure = entry.published.figure
                    theirs = (figure.value, figure.error, figure.paper, figure.table)
                    theirs += (figure.data, figure.model)
                flags = (entry.planned, int(entry.best), int(entry.tied))
                writer.writerow(
                    [
                        *block.cell,
                        method,
                        column.metric,
                        after,
                        column.part,
                        *ours,
                        *flags,
                        *comparison,
                        entry.p,
                        *theirs,
                        *(
                            tuning_table.list_cells(table.chosen, block.cell, method)
                            if tuned
                            else ()
                        ),
                    ]
                )
    return sink.getvalue()


def _escape_latex(text: str) -> str:
    """Escape every character that LaTeX would read as a command."""
    return re.sub(".", lambda match: _LATEX.get(match[0], match[0]), text, flags=re.S)


def _list_headings(table: Table) -> list[str]:
    heads = []
    for column in table.columns:
        heads.append(column.heading)
        if column.has_published:
            heads.append("published")
    return heads


def _format_cells(
    table: Table,
    entries: tuple[Entry, ...],
    shown: Callable[[Entry, str, str], str],
    escaped: Callable[[str], str] = str,
) -> list[str]:
    cells: list[str] = []
    letters = table.sources
    first = _note_missing(entries[0])
    for column, entry in zip(table.columns, entries, strict=True):
        # A note that holds for the whole row is shown once.
        note = _note_missing(entry)
        cells.append(shown(entry, column.metric, note if not cells or note != first else ""))
        if column.has_published:
            text = "–"
            if entry.published is not None:
                figure, value, source = entry.published
                text = with_error(column.metric, value, figure.error)
                text += f" [{letters[source]}]" if len(letters) > 1 else ""
            cells.append(escaped(text))
    return cells


def _format_figure(entry: Entry, metric: str) -> str:
    return (
        number(metric, None)
        if entry.mean is None
        else with_error(metric, entry.mean.mean, entry.mean.error)
    )


def _note_missing(entry: Entry) -> str:
    """Return a note if a figure rests on a single seed, or on a part of the runs."""
    count = entry.mean.count if entry.mean else 0
    if count < entry.planned:
        return f" ({count or 'none'} of {entry.planned} runs)"
    return " (1 seed)" if count == 1 else ""


def _make_legend(table: Table) -> str:
    level = f"{100 * statistics.LEVEL:g}%"
    counts = {
        entry.mean.count
        for block in table.blocks
        for _, entries in block.rows
        for entry in entries
        if entry.mean
    }
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(min(counts, default=0))
    rows = "test rows" if "test" in table.parts else " and ".join(map(_name_rows, table.parts))
    text = (
        f"Mean ± standard error over seeds ({seeds}) on {rows}. Bold: the best mean; italics: a "
        f"paired t-test over seeds does not tell it from the best ({level}). Marks compare all "
        f"{table.down}s of the suite, shown or not."
    )
    if table.baseline is not None:
        text += (
            f" + better, − worse than {table.baseline}: paired t-test, {level} after Holm's "
            f"correction for the {table.down}s."
        )
    if min(counts, default=0) < statistics.FEWEST:
        text += f" Fewer than {statistics.FEWEST} seeds are not tested."
    if any(column.has_published for column in table.columns):
        text += " Published: the papers' own figures, under their own protocols"
        letters = table.sources
        named = [
            f"[{sign}] {source}" if len(letters) > 1 else source for source, sign in letters.items()
        ]
        text += f" ({'; '.join(named)})."
    return text


def _list_more(table: Table, quote: str = "") -> str:
    names = ", ".join(f"after {name}" for name in table.more)
    verb = "shows it" if len(table.more) == 1 else "shows them"
    return f"Also measured: {names} ({quote}--calibrator NAME{quote} {verb})."


def _name_rows(part: str) -> str:
    named = {
        "test:*": "corrupted test rows",
        "official:*": "official corrupted rows",
        "ood:*": "test rows and those of another data set",
    }
    return named.get(part, part)


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
