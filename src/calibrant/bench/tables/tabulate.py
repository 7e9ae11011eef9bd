"""Tables of a suite: methods down, figures across, ours beside the published ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
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
from calibrant.bench.tables.tuning_table import lines
from calibrant.core.errors import InputError, no_such
from calibrant.functional.statistics import holm

if TYPE_CHECKING:
    import pandas as pd

    from calibrant.bench.suite.suite import Suite

METRICS = ("accuracy", "nll", "ece")
OF_TWO_SETS = ("ood_auroc", "fpr95")  # test rows have them against those of another set only


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
    """A table of a suite's results.

    Args:
        suite: what was to be run.
        frame: the store's rows (`Store.frame()`).
        metrics: one or several; those of the suite when left out.
        by: the settings that make a cell; found from the suite when left out.
        calibrators: shown side by side, "none" being before any; "none" and temperature,
            where it was measured, when left out.
        methods: the rows, in this order; all when left out.
        part: the rows the figures are of: test, train, ``ood:cifar100``; or a pattern such
            as ``test:*:5``, whose parts are averaged; or several, side by side. Figures that
            tell two data sets apart are of ``ood:*`` where test is asked for.
        down: what the rows are, ``method`` or ``calibrator``; calibrators when left out and
            the suite has a single method.
        title: the suite's name when left out.
        tell_more: name below the table the calibrators that were measured and are not shown.
    """
    found = collect_results(suite, frame, by)
    names = tuple(methods) if methods is not None else suite.methods
    for name in names:
        if name not in suite.methods:
            raise InputError(f"{suite.name} has no method {name!r}: {', '.join(suite.methods)}")
    down = down or ("calibrator" if len(names) == 1 else "method")
    if down not in ("method", "calibrator"):
        raise InputError(f"down is method or calibrator, found {down!r}")
    if down == "calibrator" and len(names) != 1:
        raise InputError("a table of calibrators is of one method: say which with methods=")
    chosen = [check_metric(one) for one in _listed(metrics, suite.metrics or METRICS)]
    after = _calibrators(found, calibrators, down)
    parts = _listed(part, ())
    if found.done:
        _check_measured(found, after if calibrators is not None else [], parts)
    make = _by_method if down == "method" else _by_calibrator
    columns, blocks = make(found, names, chosen, after, parts)
    more = tell_more and calibrators is None and down == "method"
    return Table(
        title=title or suite.name,
        by=found.by,
        down=down,
        columns=columns,
        blocks=blocks,
        baseline=_baseline(suite, down, [name for block in blocks for name, _ in block.rows]),
        parts=tuple(parts),
        method=names[0] if down == "calibrator" else None,
        chosen=lines(found, names),
        more=_not_shown(found, names, chosen, after, parts) if more else (),
    )


class _Asked(NamedTuple):
    """A column to be: ``part`` is as it was asked for, ``of`` where the figures are."""

    metric: str
    calibrator: str
    part: str

    @property
    def of(self) -> str:
        name, _ = parts_of(self.metric)
        if self.part != "test":
            return self.part
        return "run" if name == "train_seconds" else "ood:*" if name in OF_TWO_SETS else "test"

    def values(self, found: Results) -> dict[tuple[Cell, str], Runs]:
        return found.values(self.metric, calibrator=self.calibrator, part=self.of, exact=True)

    def tells(self, found: Results, *, beside: bool = True) -> bool:
        """Whether it has figures, other ones than the column before any, where that is beside it.

        Accuracy after what keeps every prediction is the accuracy before.
        """
        values = self.values(found)
        before = self._replace(calibrator="none").values(found) if beside else None
        return any(values.values()) and values != before


def _not_shown(
    found: Results, names: Sequence[str], metrics: list[str], after: list[str], parts: list[str]
) -> tuple[str, ...]:
    """Calibrators, as people call them, that would have a column of these if asked for."""

    def tells(calibrator: str) -> bool:
        asked = (_Asked(metric, calibrator, part) for metric in metrics for part in parts)
        shown = (one for one in asked if one.tells(found))
        return any(
            runs and name in names for one in shown for (_, name), runs in one.values(found).items()
        )

    others = [one for one in found.calibrators if one not in after]
    # Figures of a plugin's earlier source cannot be asked for by name.
    current = [one for one in others if canonical_name(without_source(one)) == one]
    return tuple(shown_calibrator(one) for one in current if tells(one))


def _by_method(
    found: Results, names: Sequence[str], metrics: list[str], after: list[str], parts: list[str]
) -> tuple[tuple[Column, ...], tuple[Block, ...]]:
    asked = [
        _Asked(metric, calibrator, part)
        for metric in metrics
        for calibrator in after
        for part in parts
    ]
    values = {one: one.values(found) for one in asked}
    plain = "none" in after
    kept = [one for one in asked if one.calibrator == "none" or one.tells(found, beside=plain)]
    baseline = _baseline(found.suite, "method", names)
    rows: dict[Cell, dict[str, list[Entry]]] = {}
    for one in kept:
        for cell in found.cells:
            column = {
                name: values[one].get((cell, name), {})
                for name in names
                if (cell, name) in found.planned
            }
            planned = {name: found.planned[cell, name] for name in column}
            marks = {name: _published(found, cell, name, one) for name in column}
            entries = _judged(column, planned, one.metric, baseline, marks)
            for name in column:
                rows.setdefault(cell, {}).setdefault(name, []).append(entries[name])
    return _assembled(found, kept, rows, "method", several=len(parts) > 1)


def _by_calibrator(
    found: Results, names: Sequence[str], metrics: list[str], after: list[str], parts: list[str]
) -> tuple[tuple[Column, ...], tuple[Block, ...]]:
    (method,) = names
    asked = [_Asked(metric, "none", part) for metric in metrics for part in parts]
    rows: dict[Cell, dict[str, list[Entry]]] = {}
    for place in asked:
        each = {name: place._replace(calibrator=name) for name in after}
        values = {name: one.values(found) for name, one in each.items()}
        for cell in found.cells:
            column = {name: values[name].get((cell, method), {}) for name in after}
            planned = dict.fromkeys(after, found.planned.get((cell, method), 0))
            marks = {name: _published(found, cell, method, one) for name, one in each.items()}
            entries = _judged(column, planned, place.metric, "none", marks)
            for name in after:
                rows.setdefault(cell, {}).setdefault(name, []).append(entries[name])
    return _assembled(found, asked, rows, "calibrator", several=len(parts) > 1)


def _assembled(
    found: Results,
    columns: list[_Asked],
    rows: dict[Cell, dict[str, list[Entry]]],
    down: str,
    *,
    several: bool,
) -> tuple[tuple[Column, ...], tuple[Block, ...]]:
    entries = [each for cell in rows.values() for each in cell.values()]
    made = tuple(
        Column(
            one.metric,
            one.calibrator,
            any(each[place].published is not None for each in entries),
            one.of,
            several,
        )
        for place, one in enumerate(columns)
    )
    blocks = tuple(
        Block(
            cell,
            found.name_of(cell),
            tuple((name, tuple(each)) for name, each in part.items()),
            frozenset(method for where, method in found.diverged if where == cell),
            {name: _label(found, cell, name, down) for name in part},
        )
        for cell, part in rows.items()
    )
    return made, blocks


def _label(found: Results, cell: Cell, name: str, down: str) -> str:
    """Name a row, with the former defaults that its runs were made with."""
    if down == "calibrator":
        return shown_calibrator(name)
    former = found.former.get((cell, name))
    return f"{name} (former: {former})" if former else name


def _judged(
    column: dict[str, Runs],
    planned: dict[str, int],
    metric: str,
    baseline: str | None,
    marks: dict[str, Published | None],
) -> dict[str, Entry]:
    """A column of one cell: best, tied, and every row tested against the baseline."""
    higher = higher_is_better(metric)
    best: str | None = None
    tied: set[str] = set()
    if higher is not None and sum(map(bool, column.values())) > 1:  # alone is not best
        best, tied = statistics.best_and_tied(column, higher=higher)
    others = [name for name in column if name != baseline and higher is not None]
    base = column.get(baseline, {}) if baseline is not None else {}
    tests = {name: statistics.paired_by_seed(column[name], base) for name in others}
    adjusted = dict(zip(tests, holm([one.p for one in tests.values()]), strict=True))
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


def _published(found: Results, cell: Cell, method: str, asked: _Asked) -> Published | None:
    """The figure of the first of the suite's sources that has it."""
    names = dict.fromkeys((asked.calibrator, shown_calibrator(asked.calibrator)))
    for source, calibrator in itertools.product(found.suite.published, names):
        figure = source.figure(
            data=found.setting(cell, "data"),
            model=found.setting(cell, "model"),
            long_tail=found.setting(cell, "long_tail"),
            method=method,
            metric=asked.metric,
            calibrator=calibrator,
            part=_as_published(asked.of),
        )
        if figure is not None and figure.value is not None:
            return Published(figure, figure.value, source.describe(figure))
    return None


def _as_published(part: str) -> str:
    """Papers name neither the other set of a pair nor the rows that time is taken of."""
    return "ood:*" if part.startswith("ood:") else "test" if part == "run" else part


def _calibrators(found: Results, asked: Iterable[str] | None, down: str) -> list[str]:
    if asked is not None:
        return [found.find_calibrator(one) for one in _listed(asked, ())]
    if down == "calibrator":
        return list(found.own_calibrators or ("none",))
    return ["none", *(one for one in found.calibrators if one == "temperature")]


def _check_measured(found: Results, after: Iterable[str], parts: Iterable[str]) -> None:
    """An error for what no run has: a slip of the pen would make an empty table."""
    measured = {str(one) for one in found.rows["calibrator"].unique()}
    for name in after:
        if name not in measured:
            known = dict.fromkeys(map(shown_calibrator, found.calibrators))
            raise no_such("calibrator that was measured", without_source(name), known)
    there = dict.fromkeys(str(one) for one in found.rows["part"].unique())
    asked = list(parts)
    if not any(fnmatchcase(one, part) for one in there for part in asked):
        kinds = dict.fromkeys(one.partition("@")[0] for one in there if one != "run")
        raise no_such("part that was measured", ", ".join(asked), kinds)


def _baseline(suite: Suite, down: str, names: Sequence[str]) -> str | None:
    wanted = "none" if down == "calibrator" else suite.baseline
    return wanted if wanted in names else None


def _listed(given: str | Iterable[str] | None, usual: Iterable[str]) -> list[str]:
    if given is None:
        return list(usual)
    return [given] if isinstance(given, str) else list(given)
