"""The comparisons a claim comes to: every left against every right, in every cell."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from calibrant.bench import Cell, Results, Runs
from calibrant.bench.tables import statistics
from calibrant.bench.tables.statistics import Paired
from replication.claims.claim import Side, Test

# Of the others' accuracy: with less a network has not learned, and a low ECE is no merit of it.
LEARNED = 0.5
Place = tuple[Cell, str]  # with a method
Entry = tuple[str, str, Runs]  # method, calibrator, a figure for each seed
Figures = dict[str, dict[Place, Runs]]  # by calibrator


@dataclass(frozen=True)
class Comparison:
    """One left against one right in one cell: what left gains, for each seed both have."""

    cell: str
    left: str
    right: str
    metric: str
    gains: Runs
    margin: float
    places: tuple[Place, ...]  # the runs it is made of

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.left} against {self.right} ({self.metric}, {self.cell})"

    @cached_property
    def plain(self) -> Paired:
        """The mean gain."""
        return statistics.paired(list(self.gains.values()))

    @cached_property
    def shifted(self) -> Paired:
        """The mean gain with the margin the claim allows: what is tested."""
        return statistics.paired([gain + self.margin for gain in self.gains.values()])


def comparisons(test: Test, results: Results) -> Iterator[Comparison]:
    """Every comparison of a claim in a suite, also those without a seed in common."""
    for place in range(max(len(test.metrics), len(test.left.metrics))):
        left, right = (_figures(test, side, results, place) for side in (test.left, test.right))
        for cell in results.cells:
            if not is_about(test, results, cell):
                continue
            others = _entries(test, test.right, right, cell, results, place)
            for one in _entries(test, test.left, left, cell, results, place):
                for two in others:
                    if _meet(test, one, two):
                        yield _compared(
                            test, results, cell, _metric(test, test.left, place), one, two
                        )


def by_setting(found: Iterable[Comparison]) -> list[list[Comparison]]:
    """Comparisons of the same runs together: several calibrators of one network's outputs."""
    groups: dict[tuple[Place, ...], list[Comparison]] = {}
    for one in found:
        groups.setdefault(one.places, []).append(one)
    return list(groups.values())


def planned_comparisons(test: Test, results: Results) -> int:
    """How many comparisons a claim comes to once the suite is whole."""
    count = 0
    for cell in results.cells:
        if not is_about(test, results, cell):
            continue
        here = {method for place, method in results.planned if place == cell}
        one, two = (_expected(test, side, results, here) for side in (test.left, test.right))
        count += sum(_meet(test, left, right) for left in one for right in two)
    return count * max(len(test.metrics), len(test.left.metrics))


def _expected(test: Test, side: Side, results: Results, here: Container[str]) -> list[Entry]:
    entries: list[Entry] = [
        (method, calibrator, {})
        for calibrator in side.calibrators
        for method in _methods(test, side, results)
        if method in here
    ]
    return entries[:1] if side.best else entries


def _meet(test: Test, left: Entry, right: Entry) -> bool:
    """Whether two entries are compared: of one method where it is shared, and by position."""
    if test.methods and left[0] != right[0]:
        return False
    if not test.zipped:
        return True
    # One name may stand at several places of a list.
    methods = [*zip(test.left.methods, test.right.methods, strict=True)]
    calibrators = [*zip(test.left.calibrators, test.right.calibrators, strict=True)]
    return (not methods or (left[0], right[0]) in methods) and (left[1], right[1]) in calibrators


def methods_of(test: Test, results: Results) -> set[str]:
    """Every method a claim speaks of; all of the suite for ``*``."""
    shared = results.suite.methods if test.methods == ("*",) else test.methods
    return {*shared, *test.left.methods, *test.right.methods}


def absence(
    test: Test, results: Results, planned: Sequence[Place], every: Sequence[Comparison]
) -> tuple[list[Place], tuple[str, ...]]:
    """The places without the figures a claim asks for, and all that it lacks, by name.

    A method that has runs elsewhere is named with its setting.
    """
    there = _measured(test, results)
    lacking = [one for one in planned if one not in there]
    ran = {method for cell, method in planned if (cell, method) in there}
    names = [
        f"{method} ({results.name_of(cell)})" if method in ran else method
        for cell, method in lacking
    ]
    names += [
        f"a seed of both {one.left} and {one.right} ({one.cell})" for one in every if not one.gains
    ]
    return lacking, tuple(dict.fromkeys(names))


def _measured(test: Test, results: Results) -> set[Place]:
    """The cells and methods that have all figures a claim asks of them."""
    lacking: set[Place] = set()
    for place in range(max(len(test.metrics), len(test.left.metrics))):
        for side in (test.left, test.right):
            figures = _figures(test, side, results, place)
            lacking |= {
                one
                for one in results.planned
                if one[1] in _methods(test, side, results)
                and not any(one in runs for runs in figures.values())
            }
    return set(results.planned) - lacking


def is_about(test: Test, results: Results, cell: Cell) -> bool:
    """Whether the claim speaks of a cell."""
    return all(results.setting(cell, name) in values for name, values in test.only.items())


def _compared(
    test: Test, results: Results, cell: Cell, metric: str, left: Entry, right: Entry
) -> Comparison:
    (one, calibrated, mine), (two, otherwise, theirs) = left, right
    sign = -1.0 if test.lower else 1.0
    gains = {
        seed: sign * (mine[seed] - test.ratio * theirs[seed])
        for seed in sorted(mine.keys() & theirs.keys())
        if math.isfinite(mine[seed]) and math.isfinite(theirs[seed])
    }
    apart = test.left.part != test.right.part
    places = tuple(dict.fromkeys(((cell, one), (cell, two))))
    return Comparison(
        cell=results.name_of(cell),
        left=_named(one, calibrated, test.left.part if apart else None),
        right=_named(two, otherwise, test.right.part if apart else None),
        metric=metric,
        gains=gains,
        margin=test.margin,
        places=places,
    )


def _named(method: str, calibrator: str, part: str | None) -> str:
    text = method if calibrator == "none" else f"{method} after {calibrator}"
    return text if part is None else f"{text} on {part}"


def _metric(test: Test, side: Side, place: int) -> str:
    metrics = side.metrics or test.metrics
    return metrics[min(place, len(metrics) - 1)]


def _figures(
    test: Test, side: Side, results: Results, place: int, part: str | None = None
) -> Figures:
    return {
        one: results.values(_metric(test, side, place), calibrator=one, part=part or side.part)
        for one in side.calibrators
    }


def _methods(test: Test, side: Side, results: Results) -> Iterable[str]:
    named = side.methods or test.methods
    return results.suite.methods if named == ("*",) else named


def _entries(
    test: Test, side: Side, figures: Figures, cell: Cell, results: Results, place: int
) -> list[Entry]:
    """What a side has in a cell; of several methods the best one, where it picks."""
    entries = [
        (method, calibrator, runs[cell, method])
        for calibrator, runs in figures.items()
        for method in _methods(test, side, results)
        if (cell, method) in runs
    ]
    if not side.best or len(entries) < 2:
        return entries
    # Chosen on validation rows, so that the test rows judge a choice they had no part in.
    chosen_by = _figures(test, side, results, place, part="validation")
    sign = 1.0 if test.lower else -1.0
    scored = [
        (sign * statistics.mean_of(list(runs.values())).mean, entry)
        for entry in _learned(entries, cell, results)
        if (runs := chosen_by[entry[1]].get((cell, entry[0])))
    ]
    return [min(scored, key=lambda one: one[0])[1]] if scored else []


def _learned(entries: list[Entry], cell: Cell, results: Results) -> list[Entry]:
    """Those whose network learned: a low ECE of one that guesses is not the best of anything."""
    runs = results.values("accuracy", part="validation")
    accuracy = {
        method: statistics.mean_of(list(found.values())).mean
        for method, _, _ in entries
        if (found := runs.get((cell, method)))
    }
    enough = LEARNED * max(accuracy.values(), default=0.0)
    return [entry for entry in entries if accuracy.get(entry[0], enough) >= enough]
