"""Published figures beside a suite's own: a CSV file of them, and what of it a suite shows.

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
# Columns that may be missing or empty, and what they are then.
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

    ``variant`` is what the other columns cannot say of it, such as a setting that was swept;
    ``printed`` is the number as the file has it.
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

    ``unit`` is percent or x100 (divided by 100), raw or seconds. Without a value the paper
    prints a dash.
    """
    return _File.read(Path(path)).figures


@dataclass(frozen=True)
class _File:
    """A file's figures, and those with a value and no variant by their description."""

    figures: tuple[PublishedFigure, ...]
    described: dict[tuple[Any, ...], list[PublishedFigure]] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> _File:
        """Read a file, or return it as it was read before, if it has not changed since."""
        try:
            state = path.stat()
        except OSError:
            raise InputError(f"published: {path}: there is no such file") from None
        return _read_file(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _read_file(path: Path, _changed: int, _size: int) -> _File:
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        names = list(reader.fieldnames or ())
        missing = [name for name in REQUIRED if name not in names]
        if missing:
            raise InputError(f"published: {path} has no column {', '.join(missing)}")
        for name in names:
            if name not in COLUMNS:
                raise no_such(f"column of published figures ({path})", name, COLUMNS)
        try:
            figures = tuple(_parse_row(row) for row in reader)
        except (ArithmeticError, ValueError) as error:
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

    ``data`` and ``model`` name what the paper has in the place of ours, for all of ours or for
    each: ``model: {wrn_28_10: wrn_26_10}``. ``methods`` does so for each of ours.
    """

    paper: str
    tables: tuple[str, ...]
    path: Path
    file: str = ""  # as the suite writes it
    data: Mapping[str, str] | str | None = None
    model: Mapping[str, str] | str | None = None
    methods: Mapping[str, str] | None = None

    @property
    def figures(self) -> list[PublishedFigure]:
        """Every figure of the paper."""
        return [one for one in read_published(self.path) if one.paper == self.paper]

    def figure(self, **description: str | float | None) -> PublishedFigure | None:
        """Find the figure beside one of ours, in the first of the tables that has it.

        Args:
            **description: data, model, method, metric, calibrator, part and long_tail of ours.
        """
        description["data"] = _replace(self.data, description["data"])
        description["model"] = _replace(self.model, description["model"])
        description["method"] = _replace(self.methods, description["method"])
        place = tuple({**description, "paper": self.paper}[name] for name in DESCRIPTION)
        described = _File.read(self.path).described.get(place, ())
        fits = [one for one in described if one.table in self.tables]
        return min(fits, key=lambda one: self.tables.index(one.table), default=None)

    def describe(self, figure: PublishedFigure) -> str:
        """Say where a figure is from, and what it is of where that differs from ours."""
        sides = {"data": self.data, "model": self.model, "method": self.methods}
        others = [str(getattr(figure, side)) for side, names in sides.items() if names]
        return f"{figure.paper}, {figure.table}" + (f", of {' '.join(others)}" if others else "")


def read_sources(
    entries: Iterable[PublishedEntry], folder: Path, *, is_copy: bool = False
) -> tuple[Source, ...]:
    """Read the key ``published`` of a suite in that folder.

    Of a suite that was copied to a folder of runs, ``is_copy``, a source whose file is gone is
    left out with a warning: results can be shown without it.
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
        raise InputError(f"published names no file of figures: {PublishedEntry.form}")
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
    known = dict.fromkeys(getattr(one, side) for one in figures)
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
    copies = [one / COPIES / _name_copy(file) for one in (folder, folder.absolute().parent)]
    return next((one for one in copies if one.is_file()), folder / Path(file).expanduser())


def _name_copy(file: str) -> str:
    return f"{hashlib.sha256(file.encode()).hexdigest()[:12]}-{Path(file).name}"


def _replace(names: Mapping[str, str] | str | None, ours: Any) -> Any:
    if isinstance(names, str):
        return names
    return ours if names is None else names.get(ours, ours)


def _list_names(names: Mapping[str, str] | str | None) -> list[str]:
    if names is None:
        return []
    return [names] if isinstance(names, str) else [str(one) for one in names.values()]
