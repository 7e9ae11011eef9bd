"""Published figures: read a CSV file, and select what a suite shows beside its own.

A suite names the file under ``published: file:``, relative to itself. Each row of the file is one
figure, under the names that suites and tables use; see `COLUMNS`.
"""

from __future__ import annotations

import csv
import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal  # 1.12 percent is 0.0112, not 0.011200000000000002
from functools import lru_cache
from pathlib import Path
from typing import Any

from calibrant.bench.suite.schema import PublishedEntry
from calibrant.bench.tables.formatting import canonical_name
from calibrant.core.errors import InputError, no_such
from calibrant.core.files import write_file

REQUIRED = ("paper", "table", "data", "model", "method", "metric", "value")
# Columns that may be missing or empty, with their defaults.
OPTIONAL = {
    "calibrator": "none",
    "part": "test",
    "long_tail": "",
    "variant": "",
    "stderr": "",
    "unit": "raw",
    "notes": "",
}
COLUMNS = (*REQUIRED, *OPTIONAL)
UNITS = {"percent": 100, "x100": 100, "raw": 1, "seconds": 1}
DESCRIPTION = ("paper", "data", "model", "method", "metric", "calibrator", "part", "long_tail")
COPIES = "published"  # below a folder of runs: copies of the files its suites name


@dataclass(frozen=True)
class PublishedFigure:
    """One published number, in the units of the store: shares, not percent.

    ``variant`` describes what no other column does, such as a swept setting; ``printed`` is the
    number as written in the file.
    """

    paper: str
    table: str
    data: str
    model: str
    method: str
    metric: str
    value: float | None  # None: the paper prints a dash
    error: float | None = None
    calibrator: str = "none"
    part: str = "test"
    variant: str = ""
    long_tail: float | None = None
    printed: str = ""
    notes: str = ""


def read_published(path: str | os.PathLike[str]) -> tuple[PublishedFigure, ...]:
    """Read a CSV file of published figures; its columns are `COLUMNS`.

    ``unit`` is percent or x100 (divided by 100), raw or seconds. An empty value is a dash in the
    paper.
    """
    return _File.read(Path(path)).figures


@dataclass(frozen=True)
class _File:
    """A file's figures; ``described`` indexes those with a value and no variant."""

    figures: tuple[PublishedFigure, ...]
    described: dict[tuple[Any, ...], list[PublishedFigure]] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> _File:
        """Read a file; an unchanged file is read once."""
        try:
            state = path.stat()
        except OSError:
            raise InputError(f"published: {path}: there is no such file") from None
        return _read_file(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _read_file(path: Path, _changed: int, _size: int) -> _File:
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        try:
            names = list(reader.fieldnames or ())
        except (csv.Error, ValueError) as error:
            raise InputError(f"published: {path} is no CSV file in UTF-8: {error}") from None
        missing = [name for name in REQUIRED if name not in names]
        if missing:
            raise InputError(f"published: {path} has no column {', '.join(missing)}")
        for name in names:
            if name not in COLUMNS:
                raise no_such(f"column of published figures ({path})", name, COLUMNS)
        try:
            figures = tuple(_parse_row(row) for row in reader)
        except (ArithmeticError, ValueError, csv.Error) as error:
            raise InputError(f"published: {path}, line {reader.line_num}: {error!r}") from None
    described: dict[tuple[Any, ...], list[PublishedFigure]] = {}
    for figure in figures:
        if not figure.variant and figure.value is not None:
            place = tuple(getattr(figure, name) for name in DESCRIPTION)
            described.setdefault(place, []).append(figure)
    return _File(figures, described)


def _parse_row(row: Mapping[str, str | None]) -> PublishedFigure:
    texts = {name: (row.get(name) or "").strip() or OPTIONAL.get(name, "") for name in COLUMNS}
    if texts["unit"] not in UNITS:
        raise no_such("unit of a published figure", texts["unit"], UNITS)
    scale = UNITS[texts["unit"]]
    return PublishedFigure(
        **{name: texts[name] for name in ("paper", "table", "data", "model", "method")},
        metric=canonical_name(texts["metric"]),
        value=float(Decimal(texts["value"]) / scale) if texts["value"] else None,
        error=float(Decimal(texts["stderr"]) / scale) if texts["stderr"] else None,
        calibrator=canonical_name(texts["calibrator"]),
        part=texts["part"],
        variant=texts["variant"],
        long_tail=float(texts["long_tail"]) if texts["long_tail"] else None,
        printed=texts["value"],
        notes=texts["notes"],
    )


@dataclass(frozen=True)
class Source:
    """Tables of one paper, shown for the suite's data, networks and methods.

    ``data`` and ``model`` are the paper's names in place of ours: one name for all of ours, or a
    mapping, as in ``model: {wrn_28_10: wrn_26_10}``. ``methods`` maps our methods to the paper's.
    ``note`` says how the figures differ from ours; the legend of a table has it.
    """

    paper: str
    tables: tuple[str, ...]
    path: Path
    file: str = ""  # as the suite writes it
    data: Mapping[str, str] | str | None = None
    model: Mapping[str, str] | str | None = None
    methods: Mapping[str, str] | None = None
    note: str = ""

    @property
    def figures(self) -> list[PublishedFigure]:
        """Every figure of the paper."""
        return [figure for figure in read_published(self.path) if figure.paper == self.paper]

    def figure(self, **description: str | float | None) -> PublishedFigure | None:
        """Find the published counterpart of our figure, in the first table that has it.

        Args:
            **description: data, model, method, metric, calibrator, part and long_tail of ours.
        """
        description["data"] = _replace(self.data, description["data"])
        description["model"] = _replace(self.model, description["model"])
        description["method"] = _replace(self.methods, description["method"])
        place = tuple({**description, "paper": self.paper}[name] for name in DESCRIPTION)
        described = _File.read(self.path).described.get(place, ())
        fits = [figure for figure in described if figure.table in self.tables]
        return min(fits, key=lambda figure: self.tables.index(figure.table), default=None)

    def describe(self, figure: PublishedFigure) -> str:
        """Describe a figure's source, and its data, model and method where ours differ."""
        sides = {"data": self.data, "model": self.model, "method": self.methods}
        others = [str(getattr(figure, side)) for side, names in sides.items() if names]
        text = f"{figure.paper}, {figure.table}" + (f", of {' '.join(others)}" if others else "")
        return f"{text}: {self.note}" if self.note else text


def read_sources(
    entries: Iterable[PublishedEntry], folder: Path, *, is_copy: bool = False
) -> tuple[Source, ...]:
    """Read the key ``published`` of a suite in that folder.

    If the suite is a copy in a folder of runs (``is_copy``), a source whose file is gone is left
    out with a warning: results can be shown without it.
    """
    sources = []
    for entry in entries:
        try:
            sources.append(_read_source(entry, folder))
        except InputError as error:
            if not is_copy:
                raise
            warnings.warn(f"published figures are not shown: {error}", stacklevel=2)
    return tuple(sources)


def _read_source(entry: PublishedEntry, folder: Path) -> Source:
    if not entry.file:
        raise InputError(f"published names no file: {PublishedEntry.form}")
    path = _find_file(entry.file, folder)
    figures = read_published(path)
    papers = dict.fromkeys(figure.paper for figure in figures)
    if entry.paper not in papers:
        raise no_such(f"paper in {entry.file}", entry.paper, papers)
    figures = tuple(figure for figure in figures if figure.paper == entry.paper)
    tables = entry.tables or dict.fromkeys(figure.table for figure in figures)
    source = Source(
        paper=entry.paper,
        tables=tuple(map(str, tables)),
        path=path,
        file=entry.file,
        data=entry.data,
        model=entry.model,
        methods=entry.methods,
        note=entry.note,
    )
    for side, names in (
        ("table", source.tables),
        ("data", _list_names(source.data)),
        ("model", _list_names(source.model)),
        ("method", _list_names(source.methods)),
    ):
        _check_names(side, names, source.paper, figures)
    return source


def _check_names(
    side: str, names: Iterable[str], paper: str, figures: Iterable[PublishedFigure]
) -> None:
    known = dict.fromkeys(getattr(figure, side) for figure in figures)
    for name in names:
        if name not in known:
            raise no_such(f"{side} in {paper}", name, known)


def copy_files(sources: Iterable[Source], folder: Path, out: Path) -> None:
    """Copy the files that a suite of another folder names to the folder of its runs."""
    if folder.resolve() == out.resolve():
        return
    for path, file in {(source.path, source.file) for source in sources}:
        target = out / COPIES / _name_copy(file)
        if target.resolve() != path.resolve():
            target.parent.mkdir(exist_ok=True)
            write_file(target, path.read_bytes())


def _find_file(file: str, folder: Path) -> Path:
    """Find a file by its path from the suite, or its copy if the suite is a copy itself."""
    copies = [place / COPIES / _name_copy(file) for place in (folder, folder.absolute().parent)]
    return next((copy for copy in copies if copy.is_file()), folder / Path(file).expanduser())


def _name_copy(file: str) -> str:
    return f"{hashlib.sha256(file.encode()).hexdigest()[:12]}-{Path(file).name}"


def _replace(names: Mapping[str, str] | str | None, ours: Any) -> Any:
    if isinstance(names, str):
        return names
    return ours if names is None else names.get(ours, ours)


def _list_names(names: Mapping[str, str] | str | None) -> list[str]:
    if names is None:
        return []
    return [names] if isinstance(names, str) else [str(name) for name in names.values()]
