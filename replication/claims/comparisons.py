"""List the comparisons that test a claim: every left against every right, in every cell."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from calibrant.bench import Cell, Results, Runs
from calibrant.bench.tables import statistics
from calibrant.bench.tables.statistics import Paired
from replication.claims.claim import Side, Test

# Smallest share of the highest accuracy. A network below it has not learned; its low ECE means
# nothing.
LEARNED = 0.5
Place = tuple[Cell, str]  # cell and method
Entry = tuple[str, str, Runs]  # method, calibrator, one figure per seed
Figures = dict[str, dict[Place, Runs]]  # by calibrator


@dataclass(frozen=True)
class Comparison:
    """Compare one left with one right in one cell: left's gain for each seed that both have."""

    cell: str
    left: str
    right: str
    metric: str
    gains: Runs
    margin: float
    places: tuple[Place, ...]  # cells and methods of the runs compared

    @property
    def name(self) -> str:
        """Name the comparison in words."""
        return f"{self.left} against {self.right} ({self.metric}, {self.cell})"

    @cached_property
    def plain(self) -> Paired:
        """Compute the mean gain."""
        return statistics.paired(list(self.gains.values()))

    @cached_property
    def shifted(self) -> Paired:
        """Compute the mean gain plus the claim's margin; this value is tested."""
        return statistics.paired([gain + self.margin for gain in self.gains.values()])


def list_comparisons(test: Test, results: Results) -> Iterator[Comparison]:
    """Yield every comparison of a claim in a suite, including those without a common seed."""
    for place in range(max(len(test.metrics), len(test.left.metrics))):
        left, right = (
            _collect_figures(test, side, results, place) for side in (test.left, test.right)
        )
        for cell in results.cells:
            if not is_about(test, results, cell):
                continue
            others = _list_entries(test, test.right, right, cell, results, place)
            for entry in _list_entries(test, test.left, left, cell, results, place):
                for other in others:
                    if _are_compared(test, entry, other):
                        yield _compare(
                            test, results, cell, _get_metric(test, test.left, place), entry, other
                        )


def group_by_setting(comparisons: Iterable[Comparison]) -> list[list[Comparison]]:
    """Group comparisons of the same runs, such as several calibrators of one network."""
    groups: dict[tuple[Place, ...], list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.places, []).append(comparison)
    return list(groups.values())


def count_planned(test: Test, results: Results) -> int:
    """Count a claim's comparisons once every run of the suite is made."""
    count = 0
    for cell in results.cells:
        if not is_about(test, results, cell):
            continue
        here = {method for place, method in results.planned if place == cell}
        lefts, rights = (
            _list_expected(test, side, results, here) for side in (test.left, test.right)
        )
        count += sum(_are_compared(test, left, right) for left in lefts for right in rights)
    return count * max(len(test.metrics), len(test.left.metrics))


def _list_expected(test: Test, side: Side, results: Results, here: Container[str]) -> list[Entry]:
    entries: list[Entry] = [
        (method, calibrator, {})
        for calibrator in side.calibrators
        for method in _list_side_methods(test, side, results)
        if method in here
    ]
    return entries[:1] if side.best else entries


def _are_compared(test: Test, left: Entry, right: Entry) -> bool:
    """Return whether two entries are compared, by shared method and by position."""
    if test.methods and left[0] != right[0]:
        return False
    if not test.zipped:
        return True
    # A name may appear at several positions of a list.
    methods = [*zip(test.left.methods, test.right.methods, strict=True)]
    calibrators = [*zip(test.left.calibrators, test.right.calibrators, strict=True)]
    return (not methods or (left[0], right[0]) in methods) and (left[1], right[1]) in calibrators


def list_methods(test: Test, results: Results) -> set[str]:
    """List every method that a claim names; ``*`` means all methods of the suite."""
    shared = results.suite.methods if test.methods == ("*",) else test.methods
    return {*shared, *test.left.methods, *test.right.methods}


def find_missing(
    test: Test, results: Results, planned: Sequence[Place], every: Sequence[Comparison]
) -> tuple[list[Place], tuple[str, ...]]:
    """Find the places that lack a claim's figures, and name everything that is missing.

    The name of a method that has runs elsewhere includes the setting.
    """
    measured = _find_measured(test, results)
    lacking = [place for place in planned if place not in measured]
    ran = {method for cell, method in planned if (cell, method) in measured}
    names = [
        f"{method} ({results.name_of(cell)})" if method in ran else method
        for cell, method in lacking
    ]
    names += [
        f"a seed of both {comparison.left} and {comparison.right} ({comparison.cell})"
        for comparison in every
        if not comparison.gains
    ]
    return lacking, tuple(dict.fromkeys(names))


def _find_measured(test: Test, results: Results) -> set[Place]:
    """Find the cells and methods that have every figure the claim needs."""
    lacking: set[Place] = set()
    for place in range(max(len(test.metrics), len(test.left.metrics))):
        for side in (test.left, test.right):
            figures = _collect_figures(test, side, results, place)
            lacking |= {
                planned
                for planned in results.planned
                if planned[1] in _list_side_methods(test, side, results)
                and not any(planned in runs for runs in figures.values())
            }
    return set(results.planned) - lacking


def is_about(test: Test, results: Results, cell: Cell) -> bool:
    """Return whether the claim covers a cell."""
    return all(results.setting(cell, name) in values for name, values in test.only.items())


def _compare(
    test: Test, results: Results, cell: Cell, metric: str, left: Entry, right: Entry
) -> Comparison:
    (left_method, calibrated, mine), (right_method, otherwise, theirs) = left, right
    sign = -1.0 if test.lower else 1.0
    gains = {
        seed: sign * (mine[seed] - test.ratio * theirs[seed])
        for seed in sorted(mine.keys() & theirs.keys())
        if math.isfinite(mine[seed]) and math.isfinite(theirs[seed])
    }
    apart = test.left.part != test.right.part
    places = tuple(dict.fromkeys(((cell, left_method), (cell, right_method))))
    return Comparison(
        cell=results.name_of(cell),
        left=_format_side(left_method, calibrated, test.left.part if apart else None),
        right=_format_side(right_method, otherwise, test.right.part if apart else None),
        metric=metric,
        gains=gains,
        margin=test.margin,
        places=places,
    )


def _format_side(method: str, calibrator: str, part: str | None) -> str:
    text = method if calibrator == "none" else f"{method} after {calibrator}"
    return text if part is None else f"{text} on {part}"


def _get_metric(test: Test, side: Side, place: int) -> str:
    metrics = side.metrics or test.metrics
    return metrics[min(place, len(metrics) - 1)]


def _collect_figures(
    test: Test, side: Side, results: Results, place: int, part: str | None = None
) -> Figures:
    return {
        calibrator: results.values(
            _get_metric(test, side, place), calibrator=calibrator, part=part or side.part
        )
        for calibrator in side.calibrators
    }


def _list_side_methods(test: Test, side: Side, results: Results) -> Iterable[str]:
    named = side.methods or test.methods
    return results.suite.methods if named == ("*",) else named


def _list_entries(
    test: Test, side: Side, figures: Figures, cell: Cell, results: Results, place: int
) -> list[Entry]:
    """List a side's entries in a cell; only the best method if the side picks one."""
    entries = [
        (method, calibrator, runs[cell, method])
        for calibrator, runs in figures.items()
        for method in _list_side_methods(test, side, results)
        if (cell, method) in runs
    ]
    if not side.best or len(entries) < 2:
        return entries
    # Choose on validation rows, so that test rows judge a choice made without them.
    chosen_by = _collect_figures(test, side, results, place, part="validation")
    sign = 1.0 if test.lower else -1.0
    scored = [
        (sign * statistics.mean_of(list(runs.values())).mean, entry)
        for entry in _keep_learned(entries, cell, results)
        if (runs := chosen_by[entry[1]].get((cell, entry[0])))
    ]
    return [min(scored, key=lambda pair: pair[0])[1]] if scored else []


def _keep_learned(entries: list[Entry], cell: Cell, results: Results) -> list[Entry]:
    """Drop entries whose network did not learn: the low ECE of a guessing network is no merit."""
    runs = results.values("accuracy", part="validation")
    accuracy = {
        method: statistics.mean_of(list(figures.values())).mean
        for method, _, _ in entries
        if (figures := runs.get((cell, method)))
    }
    enough = LEARNED * max(accuracy.values(), default=0.0)
    return [entry for entry in entries if accuracy.get(entry[0], enough) >= enough]
