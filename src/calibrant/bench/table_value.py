"""A table of a suite as a value: columns, blocks of rows, and entries with how they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calibrant.bench import statistics
from calibrant.bench.cells import Cell
from calibrant.bench.chosen import Line
from calibrant.bench.figures import heading, without_source
from calibrant.bench.published import Figure


class Published(NamedTuple):
    """A paper's figure, its value, and where it is from in words."""

    figure: Figure
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
        plain = without_source(self.calibrator)
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

    @property
    def shown(self) -> tuple[tuple[str, tuple[Entry, ...]], ...]:
        """The rows that have a figure, ours or published."""
        found = [(name, entries) for name, entries in self.rows if _has_any(entries)]
        return tuple((without_source(name), entries) for name, entries in found)

    @property
    def waiting(self) -> str:
        """In words, the rows that have none."""
        names = [without_source(name) for name, entries in self.rows if not _has_any(entries)]
        lost = [name for name in names if name in self.diverged]
        names = [name for name in names if name not in self.diverged]
        told = [f"Diverged: {', '.join(lost)}."] if lost else []
        told += [f"No figures (not run yet, or failed): {', '.join(names)}."] if names else []
        return " ".join(told)


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
    chosen: tuple[Line, ...] = ()  # what was tuned
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
        from calibrant.bench.table_writers import markdown

        return markdown(self)

    def to_latex(self) -> str:
        """As LaTeX, for the package booktabs."""
        from calibrant.bench.table_writers import latex

        return latex(self)

    def to_csv(self) -> str:
        """As CSV: a line a figure, plain numbers in the units of the store."""
        from calibrant.bench.table_writers import comma_separated

        return comma_separated(self)

    def to_html(self) -> str:
        """As an HTML fragment."""
        from calibrant.bench.table_writers import html

        return html(self)


def in_words(part: str) -> str:
    """A part of the rows as a heading has it, beside others."""
    known = {"test": "clean", "test:*": "corrupted", "ood:*": "beside another set"}
    severity = re.fullmatch(r"test:\*:(\d)", part)
    return f"severity {severity[1]}" if severity else known.get(part, part)


def _has_any(entries: Sequence[Entry]) -> bool:
    return any(one.mean is not None or one.published is not None for one in entries)
