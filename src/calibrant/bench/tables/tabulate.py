"""Make tables of a suite: methods down, figures across, beside published figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from calibrant.bench.tables import statistics
from calibrant.bench.tables.formatting import (
    canonical_name,
    check_metric,
    higher_is_better,
    parts_of,
    shown_calibrator,
    without_source,
)
from calibrant.bench.tables.results import Cell, Results, Runs, collect_results
from calibrant.bench.tables.table import Block, Column, Entry, Published, Table
from calibrant.bench.tables.tuning_table import list_lines
from calibrant.core.errors import InputError, no_such
from calibrant.functional.statistics import holm

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.bench.suite.suite import Suite

METRICS = ("accuracy", "nll", "ece")
OF_TWO_SETS = ("ood_auroc", "fpr95")  # compare test rows with rows of another data set


def table(
    suite: Suite,
    frame: pd.DataFrame,
    metrics: str | Iterable[str] | None = None,
    by: Iterable[str] | None = None,
    *,
    calibrators: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
    part: str | Iterable[str] = "test",
    down: str | None = None,
    title: str | None = None,
    tell_more: bool = False,
) -> Table:
    """Make a table of a suite's results.

    Args:
        suite: the suite.
        frame: the store's rows (`Store.frame()`).
        metrics: the columns. Default: None, those of the suite.
        by: the settings that make a cell. Default: None, those that tell runs apart.
        calibrators: shown side by side; "none" is uncalibrated. Default: None, "none" and
            temperature, if it was measured.
        methods: the rows, in this order. Default: None, all.
        part: the part of the rows: test, train, ``ood:cifar100``; a pattern such as ``test:*:5``,
            whose parts are averaged; or several, side by side. Metrics that compare two data sets
            use ``ood:*`` in place of test. Default: test.
        down: the kind of the rows, ``method`` or ``calibrator``. Default: None, calibrator if
            there is a single method.
        title: the title. Default: None, the suite's name.
        tell_more: whether to list measured calibrators without a column below the table.
            Default: False.
    """
    results = collect_results(suite, frame, by)
    names = tuple(methods) if methods is not None else suite.methods
    for name in names:
        if name not in suite.methods:
            raise InputError(f"{suite.name} has no method {name!r}: {', '.join(suite.methods)}")
    down = down or ("calibrator" if len(names) == 1 else "method")
    if down not in ("method", "calibrator"):
        raise InputError(f"down is method or calibrator, found {down!r}")
    if down == "calibrator" and len(names) != 1:
        raise InputError("a table of calibrators needs a single method: name it with methods=")
    chosen = [check_metric(metric) for metric in _as_list(metrics, suite.metrics or METRICS)]
    after = _list_calibrators(results, calibrators, down)
    parts = _as_list(part, ())
    if results.done:
        _check_measured(results, after if calibrators is not None else [], parts)
    make = _by_method if down == "method" else _by_calibrator
    columns, blocks = make(results, names, chosen, after, parts)
    more = tell_more and calibrators is None and down == "method"
    return Table(
        title=title or suite.name,
        by=results.by,
        down=down,
        columns=columns,
        blocks=blocks,
        baseline="none" if down == "calibrator" else suite.baseline,
        parts=tuple(parts),
        method=names[0] if down == "calibrator" else None,
        chosen=list_lines(results, names),
        more=_list_not_shown(results, names, chosen, after, parts) if more else (),
    )


def choose_error(suite: Suite) -> str:
    """Return the calibration error that a suite's page decides by.

    It is ``ece`` if the suite shows it, else the suite's first metric with "ece" in its name, or
    else ``ece`` again, which every run has.
    """
    shown = [check_metric(metric) for metric in suite.metrics or METRICS]
    if "ece" in shown:
        return "ece"
    errors = (name for name in shown if "ece" in parts_of(name)[0])
    return next((name for name in errors if higher_is_better(name) is False), "ece")


class _ColumnRequest(NamedTuple):
    """A requested column; figures are those of `source_part`, which can differ from ``part``."""

    metric: str
    calibrator: str
    part: str

    @property
    def source_part(self) -> str:
        name, _ = parts_of(self.metric)
        if self.part != "test":
            return self.part
        return "run" if name == "train_seconds" else "ood:*" if name in OF_TWO_SETS else "test"

    def values(self, results: Results) -> dict[tuple[Cell, str], Runs]:
        return results.values(
            self.metric, calibrator=self.calibrator, part=self.source_part, exact=True
        )

    def has_figures(self, results: Results, *, beside: bool = True) -> bool:
        """Return whether it has figures that differ from the uncalibrated column ``beside`` it.

        Accuracy does not differ after a calibrator that keeps every prediction.
        """
        values = self.values(results)
        before = self._replace(calibrator="none").values(results) if beside else None
        return any(values.values()) and values != before


def _list_not_shown(
    results: Results, names: Sequence[str], metrics: list[str], after: list[str], parts: list[str]
) -> tuple[str, ...]:
    """List the calibrators, as suites write them, that have figures but no column."""

    def has_figures(calibrator: str) -> bool:
        asked = (_ColumnRequest(metric, calibrator, part) for metric in metrics for part in parts)
        shown = (column for column in asked if column.has_figures(results))
        return any(
            runs and name in names
            for column in shown
            for (_, name), runs in column.values(results).items()
        )

    others = [name for name in results.calibrators if name not in after]
    # A plugin's earlier source cannot be named.
    current = [name for name in others if canonical_name(without_source(name)) == name]
    return tuple(shown_calibrator(name) for name in current if has_figures(name))


def _by_method(
    results: Results, names: Sequence[str], metrics: list[str], after: list[str], parts: list[str]
) -> tuple[tuple[Column, ...], tuple[Block, ...]]:
    asked = [
        _ColumnRequest(metric, calibrator, part)
        for metric in metrics
        for calibrator in after
        for part in parts
    ]
    values = {place: place.values(results) for place in asked}
    methods = results.suite.methods  # marks compare all of them, whichever are shown
    plain = "none" in after
    kept = [
        place
        for place in asked
        if place.calibrator == "none" or place.has_figures(results, beside=plain)
    ]
    rows: dict[Cell, dict[str, list[Entry]]] = {}
    for place in kept:
        for cell in results.cells:
            column = {
                name: values[place].get((cell, name), {})
                for name in methods
                if (cell, name) in results.planned
            }
            planned = {name: results.planned[cell, name] for name in column}
            marks = {name: _find_published(results, cell, name, place) for name in column}
            entries = _make_entries(column, planned, place.metric, results.suite.baseline, marks)
            for name in filter(column.__contains__, names):
                rows.setdefault(cell, {}).setdefault(name, []).append(entries[name])
    return _assemble(results, kept, rows, "method", several=len(parts) > 1)


def _by_calibrator(
    results: Results, names: Sequence[str], metrics: list[str], after: list[str], parts: list[str]
) -> tuple[tuple[Column, ...], tuple[Block, ...]]:
    (method,) = names
    asked = [_ColumnRequest(metric, "none", part) for metric in metrics for part in parts]
    rows: dict[Cell, dict[str, list[Entry]]] = {}
    for place in asked:
        own_calibrators = dict.fromkeys(["none", *results.own_calibrators])
        places = {name: place._replace(calibrator=name) for name in (*own_calibrators, *after)}
        values = {name: cell_place.values(results) for name, cell_place in places.items()}
        for cell in results.cells:
            column = {name: values[name].get((cell, method), {}) for name in places}
            planned = dict.fromkeys(places, results.planned.get((cell, method), 0))
            marks = {
                name: _find_published(results, cell, method, cell_place)
                for name, cell_place in places.items()
            }
            compared = {name: column[name] for name in own_calibrators}
            entries = _make_entries(compared, planned, place.metric, "none", marks)
            # Calibrators of another suite are compared with the suite's own.
            for name in places.keys() - own_calibrators:
                extended = {**compared, name: column[name]}
                entry = _make_entries(extended, planned, place.metric, "none", marks)[name]
                entries[name] = replace(entry, best=False)
            for name in after:
                rows.setdefault(cell, {}).setdefault(name, []).append(entries[name])
    return _assemble(results, asked, rows, "calibrator", several=len(parts) > 1)


def _assemble(
    results: Results,
    columns: list[_ColumnRequest],
    rows: dict[Cell, dict[str, list[Entry]]],
    down: str,
    *,
    several: bool,
) -> tuple[tuple[Column, ...], tuple[Block, ...]]:
    entries = [entry for cell in rows.values() for entry in cell.values()]
    shown = tuple(
        Column(
            column.metric,
            column.calibrator,
            any(entry[place].published is not None for entry in entries),
            column.source_part,
            several,
        )
        for place, column in enumerate(columns)
    )
    blocks = tuple(
        Block(
            cell,
            results.name_of(cell),
            tuple((name, tuple(entry)) for name, entry in part.items()),
            frozenset(method for where, method in results.diverged if where == cell),
            {name: _label_row(results, cell, name, down) for name in part},
        )
        for cell, part in rows.items()
    )
    return shown, blocks


def _label_row(results: Results, cell: Cell, name: str, down: str) -> str:
    """Name a row, with the former defaults that its runs were made with."""
    if down == "calibrator":
        return shown_calibrator(name)
    former = results.former.get((cell, name))
    return f"{name} (former: {former})" if former else name


def _make_entries(
    column: dict[str, Runs],
    planned: dict[str, int],
    metric: str,
    baseline: str | None,
    marks: dict[str, Published | None],
) -> dict[str, Entry]:
    """Make the entries of a cell's column: best, tied, and tests against the baseline.

    ``column`` holds every row that is compared, not only those shown, so that no mark depends on
    which rows a reader asked for.
    """
    higher = higher_is_better(metric)
    best: str | None = None
    tied: set[str] = set()
    if higher is not None and sum(map(bool, column.values())) > 1:  # a single row is not best
        best, tied = statistics.find_best_and_tied(column, higher=higher)
    others = [name for name in column if name != baseline and higher is not None]
    base = column.get(baseline, {}) if baseline is not None else {}
    tests = {name: statistics.paired_by_seed(column[name], base) for name in others}
    adjusted = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    return {
        name: Entry(
            mean=statistics.mean_of(list(runs.values())) if runs else None,
            planned=planned[name],
            best=name == best,
            tied=name in tied,
            difference=tests[name] if name in tests and tests[name].count else None,
            p=adjusted.get(name),
            better=(tests[name].mean > 0) == higher if name in tests else None,
            published=marks[name],
        )
        for name, runs in column.items()
    }


def _find_published(
    results: Results, cell: Cell, method: str, asked: _ColumnRequest
) -> Published | None:
    """Find a published figure in the first of the suite's sources that has it."""
    names = dict.fromkeys((asked.calibrator, shown_calibrator(asked.calibrator)))
    for source, calibrator in itertools.product(results.suite.published, names):
        figure = source.figure(
            data=results.setting(cell, "data"),
            model=results.setting(cell, "model"),
            long_tail=results.setting(cell, "long_tail"),
            method=method,
            metric=asked.metric,
            calibrator=calibrator,
            part=_published_part(asked.source_part),
        )
        if figure is not None and figure.value is not None:
            return Published(figure, figure.value, source.describe(figure))
    return None


def _published_part(part: str) -> str:
    """Return the name of a part in published figures."""
    return "ood:*" if part.startswith("ood:") else "test" if part == "run" else part


def _list_calibrators(results: Results, asked: Iterable[str] | None, down: str) -> list[str]:
    if asked is not None:
        return [results.find_calibrator(name) for name in _as_list(asked, ())]
    if down == "calibrator":
        return list(results.own_calibrators or ("none",))
    return ["none", *(name for name in results.calibrators if name == "temperature")]


def _check_measured(results: Results, after: Iterable[str], parts: Iterable[str]) -> None:
    """Raise an error for a calibrator or part that no run has."""
    measured = {str(name_there) for name_there in results.rows["calibrator"].unique()}
    for name in after:
        if name not in measured:
            known = dict.fromkeys(map(shown_calibrator, results.calibrators))
            raise no_such("calibrator that was measured", without_source(name), known)
    parts_measured = dict.fromkeys(str(name_there) for name_there in results.rows["part"].unique())
    asked = list(parts)
    if not any(fnmatchcase(part_name, part) for part_name in parts_measured for part in asked):
        kinds = dict.fromkeys(
            name_there.partition("@")[0] for name_there in parts_measured if name_there != "run"
        )
        raise no_such("part that was measured", ", ".join(asked), kinds)


def _as_list(names: str | Iterable[str] | None, usual: Iterable[str]) -> list[str]:
    if names is None:
        return list(usual)
    return [names] if isinstance(names, str) else list(names)
