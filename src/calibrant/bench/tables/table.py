"""A table of a suite as a value: columns, blocks of rows, and entries with how they stand."""

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
# What LaTeX reads as commands, and the signs of ours that its plain fonts lack.
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
    """A paper's figure, its value, and where it is from in words."""

    figure: PublishedFigure
    value: float
    source: str


@dataclass(frozen=True)
class Entry:
    """One figure of one method: ours over seeds, how it stands, and the published one."""

    mean: statistics.Mean | None  # None: no run has it
    planned: int  # runs the suite asks for
    best: bool = False
    tied: bool = False  # a paired test cannot tell it from the best
    difference: statistics.Paired | None = None  # to the baseline
    p: float | None = None  # of that difference, Holm-adjusted over the column; None: not tested
    better: bool | None = None  # than the baseline, where p is below the level
    published: Published | None = None

    @property
    def told(self) -> bool | None:
        """Better (True) or worse (False) than the baseline by the test; None: neither."""
        return self.better if self.p is not None and self.p < statistics.LEVEL else None


@dataclass(frozen=True)
class Column:
    """A metric after a calibrator, of one part of the rows."""

    metric: str
    calibrator: str = "none"
    has_published: bool = False
    part: str = "test"
    says_part: bool = False  # where others of the table are of other parts

    @property
    def heading(self) -> str:
        """Its name, unit and better way, the calibrator, and the part where it must be said."""
        plain = shown_calibrator(self.calibrator)
        after = "" if plain == "none" else f", after {plain}"
        after += f", {in_words(self.part)}" if self.says_part else ""
        text = heading(self.metric)
        arrow = text[-1] if text[-1] in "↑↓" else ""
        return f"{text[:-1].rstrip()}{after} {arrow}" if arrow else f"{text}{after}"


@dataclass(frozen=True)
class Block:
    """The rows of one cell."""

    cell: Cell
    name: str
    rows: tuple[tuple[str, tuple[Entry, ...]], ...]
    diverged: frozenset[str] = frozenset()  # methods of which runs ended without a result
    labels: Mapping[str, str] = field(default_factory=dict)  # of rows not shown by their name

    @property
    def shown(self) -> tuple[tuple[str, tuple[Entry, ...]], ...]:
        """The rows that have a figure, ours or published."""
        found = [(name, entries) for name, entries in self.rows if _has_any(entries)]
        return tuple((self._label(name), entries) for name, entries in found)

    @property
    def waiting(self) -> str:
        """In words, the rows that have none."""
        names = [name for name, entries in self.rows if not _has_any(entries)]
        lost = [self._label(name) for name in names if name in self.diverged]
        names = [self._label(name) for name in names if name not in self.diverged]
        told = [f"Diverged: {', '.join(lost)}."] if lost else []
        told += [f"No figures (not run yet, or failed): {', '.join(names)}."] if names else []
        return " ".join(told)

    def _label(self, name: str) -> str:
        return self.labels.get(name) or without_source(name)


@dataclass(frozen=True)
class Table:
    """Figures of a suite, ready to be written in any form."""

    title: str
    by: tuple[str, ...]
    down: str  # what the rows are: method or calibrator
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    baseline: str | None
    parts: tuple[str, ...] = ("test",)
    method: str | None = None  # whose calibrators the rows are
    chosen: tuple[tuning_table.Line, ...] = ()  # what was tuned
    more: tuple[str, ...] = ()  # calibrators that were measured and have no column

    @property
    def sources(self) -> dict[str, str]:
        """Where published figures are from, each with a letter, in the order they appear."""
        found = dict.fromkeys(
            entry.published.source
            for block in self.blocks
            for _, entries in block.rows
            for entry in entries
            if entry.published is not None
        )
        return {source: chr(ord("a") + place) for place, source in enumerate(found)}

    def to_markdown(self) -> str:
        """As Markdown."""
        return _write_markdown(self)

    def to_latex(self) -> str:
        """As LaTeX, for the package booktabs."""
        return _write_latex(self)

    def to_csv(self) -> str:
        """As CSV: a line a figure, plain numbers in the units of the store."""
        return _write_csv(self)

    def to_html(self) -> str:
        """As an HTML fragment."""
        return _write_html(self)


def in_words(part: str) -> str:
    """A part of the rows as a heading has it, beside others."""
    known = {"test": "clean", "test:*": "corrupted", "ood:*": "beside another set"}
    severity = re.fullmatch(r"test:\*:(\d)", part)
    return f"severity {severity[1]}" if severity else known.get(part, part)


def _has_any(entries: Sequence[Entry]) -> bool:
    return any(one.mean is not None or one.published is not None for one in entries)


def _write_markdown(table: Table) -> str:
    """Pipes and bars; the best in bold, those tied with it in italics."""

    def shown(entry: Entry, metric: str, note: str) -> str:
        text = _figure(entry, metric)
        text = f"**{text}**" if entry.best else f"*{text}*" if entry.tied else text
        return text + MARKS[entry.told] + note

    lines = []
    for block in table.blocks:
        lines += [f"**{_piped(block.name)}**", ""]
        heads = [table.down, *_headings(table)]
        if block.shown:
            lines.append(f"| {' | '.join(_piped(head) for head in heads)} |")
            lines.append(f"|---|{'---:|' * (len(heads) - 1)}")
        for name, entries in block.shown:
            cells = [_piped(name), *_cells(table, entries, shown)]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", block.waiting] if block.waiting and block.shown else [block.waiting]
        lines += [""] if block.waiting else []
    more = ["", _more(table, "`")] if table.more else []
    told = ["", *tuning_table.markdown(table.chosen)] if table.chosen else [""]
    return "\n".join([*lines, _legend(table), *more, *told])


def _write_latex(table: Table) -> str:
    """A ``tabular`` with booktabs' rules, all text escaped."""

    def shown(entry: Entry, metric: str, note: str) -> str:
        text = _escape_latex(_figure(entry, metric))
        if entry.best:
            text = rf"\textbf{{{text}}}"
        elif entry.tied:
            text = rf"\textit{{{text}}}"
        mark = MARKS[entry.told]
        return text + (f"$^{{{mark.replace('−', '-')}}}$" if mark else "") + note

    heads = [table.down, *_headings(table)]
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
            cells = [_escape_latex(name), *_cells(table, entries, shown, _escape_latex)]
            lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    told = [_legend(table), *(tuning_table.comments(table.chosen) if table.chosen else ())]
    return "\n".join([*lines, *(f"% {one}" for one in told), ""])


def _write_html(table: Table) -> str:
    """A ``table`` element for each cell; classes say best, tied, better and worse."""

    def shown(entry: Entry, metric: str, note: str) -> str:
        tag = "strong" if entry.best else "em" if entry.tied else "span"
        text = f"<{tag}>{escape(_figure(entry, metric))}</{tag}>"
        mark = {True: "better", False: "worse"}.get(entry.told) if entry.told is not None else None
        if mark:
            told = f"{mark} than {table.baseline}, p = {entry.p:.2g} (Holm)"
            sign = MARKS[entry.told]
            text += f'<sup class="{mark}" title="{escape(told)}">{sign}</sup>'
        return text + (f" <small>{escape(note.strip())}</small>" if note else "")

    parts = []
    for block in table.blocks:
        heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in _headings(table))
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th>'
            + "".join(f"<td>{cell}</td>" for cell in _cells(table, entries, shown, escape))
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
    notes = [_legend(table), *([_more(table)] if table.more else [])]
    parts += [f'<p class="legend-line">{escape(note)}</p>' for note in notes]
    return "\n".join([*parts, *([tuning_table.html(table.chosen)] if table.chosen else ())])


def _write_csv(table: Table) -> str:
    """A line a figure: plain numbers, shares as shares."""
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
                seen = (test.mean, test.low, test.high, test.p) if test else (None,) * 4
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
                        *seen,
                        entry.p,
                        *theirs,
                        *(tuning_table.cells(table.chosen, block.cell, method) if tuned else ()),
                    ]
                )
    return sink.getvalue()


def _escape_latex(text: str) -> str:
    """The text, with nothing left that LaTeX would read as a command."""
    return re.sub(".", lambda found: _LATEX.get(found[0], found[0]), text, flags=re.S)


def _headings(table: Table) -> list[str]:
    heads = []
    for column in table.columns:
        heads.append(column.heading)
        if column.has_published:
            heads.append("published")
    return heads


def _cells(
    table: Table,
    entries: tuple[Entry, ...],
    shown: Callable[[Entry, str, str], str],
    escaped: Callable[[str], str] = str,
) -> list[str]:
    cells: list[str] = []
    letters = table.sources
    first = _lacking(entries[0])
    for column, entry in zip(table.columns, entries, strict=True):
        # What is so of the whole row is said once.
        note = _lacking(entry)
        cells.append(shown(entry, column.metric, note if not cells or note != first else ""))
        if column.has_published:
            text = "–"
            if entry.published is not None:
                figure, value, source = entry.published
                text = with_error(column.metric, value, figure.error)
                text += f" [{letters[source]}]" if len(letters) > 1 else ""
            cells.append(escaped(text))
    return cells


def _figure(entry: Entry, metric: str) -> str:
    return (
        number(metric, None)
        if entry.mean is None
        else with_error(metric, entry.mean.mean, entry.mean.error)
    )


def _lacking(entry: Entry) -> str:
    """What a reader must know of the runs behind a figure, where it is not all of them."""
    count = entry.mean.count if entry.mean else 0
    if count < entry.planned:
        return f" ({count or 'none'} of {entry.planned} runs)"
    return " (1 seed)" if count == 1 else ""


def _legend(table: Table) -> str:
    level = f"{100 * statistics.LEVEL:g}%"
    counts = {
        entry.mean.count
        for block in table.blocks
        for _, entries in block.rows
        for entry in entries
        if entry.mean
    }
    seeds = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else str(min(counts, default=0))
    rows = "test rows" if "test" in table.parts else " and ".join(map(_rows, table.parts))
    text = (
        f"Mean ± standard error over seeds ({seeds}) on {rows}. Bold: the best mean; italics: a "
        f"paired t-test over seeds does not tell it from the best ({level})."
    )
    if table.baseline is not None:
        text += (
            f" + better, − worse than {table.baseline}: paired t-test, {level} after Holm's "
            "correction for the rows of the column."
        )
    if min(counts, default=0) < statistics.FEWEST:
        text += f" Fewer than {statistics.FEWEST} seeds are not tested."
    if any(column.has_published for column in table.columns):
        text += " Published: the papers' own figures, under their own protocols"
        letters = table.sources
        said = [f"[{sign}] {one}" if len(letters) > 1 else one for one, sign in letters.items()]
        text += f" ({'; '.join(said)})."
    return text


def _more(table: Table, quote: str = "") -> str:
    names = ", ".join(f"after {name}" for name in table.more)
    verb = "shows it" if len(table.more) == 1 else "shows them"
    return f"Also measured: {names} ({quote}--calibrator NAME{quote} {verb})."


def _rows(part: str) -> str:
    named = {"test:*": "corrupted test rows", "ood:*": "test rows and those of another data set"}
    return named.get(part, part)


def _piped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
