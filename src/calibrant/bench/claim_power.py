"""What our runs could have seen of a claim left open, and what it would take to decide it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from calibrant.bench import statistics
from calibrant.bench.cells import Cell, Results
from calibrant.bench.costs import minutes_for, minutes_missing
from calibrant.bench.statistics import FEWEST, Paired

if TYPE_CHECKING:
    from calibrant.bench.claim_verdicts import Verdict
    from calibrant.bench.claims import Test


def detectable(test: Test, unclear: Sequence[Paired]) -> float | None:
    """The effect that every one of the open comparisons would have shown, 4 times of 5.

    Of a count, the share of all comparisons.
    """
    if test.decide == "count":
        return statistics.detectable_share(len(unclear)) if unclear else None
    found = [
        statistics.detectable(one.deviation, one.count)
        for one in unclear
        if one.deviation is not None
    ]
    known = [one for one in found if one is not None]
    return max(known) if known and len(known) == len(unclear) else None


def expected(
    results: Results, test: Test, metric: str, places: Sequence[tuple[Cell, str]]
) -> float | None:
    """The effect that the planned runs would show, by how much others of the store spread.

    Of one comparison of two runs with independent seeds, each with the spread of the median
    setting (`spreads_of`): on the same data where there are some, else on any. Of as many
    seeds as are planned, or as a test needs.
    """
    planned = [
        (results.setting(cell, "data"), results.planned[cell, name]) for cell, name in places
    ]
    if test.pairs != "seeds" or test.decide == "count" or not planned:
        return None
    spreads = results.spreads.get(metric, {})
    here = [spreads[data] for data, _ in planned if data in spreads] or list(spreads.values())
    if not here:
        return None
    return statistics.detectable(max(here) * math.hypot(1, test.ratio), seeds_of(results, places))


def seeds_of(results: Results, places: Iterable[tuple[Cell, str]]) -> int:
    """How many seeds are planned, or where these are too few, how many a test needs."""
    return max(FEWEST, min((results.planned[place] for place in places), default=0))


def minutes_of(results: Results, places: Sequence[tuple[Cell, str]]) -> float | None:
    """GPU minutes of as many runs as a test needs; None where there are no such runs."""
    if not places:
        return None
    few = any(results.planned[place] < FEWEST for place in places)
    return minutes_for(results, places, FEWEST) if few else minutes_missing(results, places)


def to_decide(
    results: Results, test: Test, verdict: Verdict, lacking: Sequence[tuple[Cell, str]]
) -> tuple[int | None, float | None]:
    """Seeds in all, and GPU minutes for those we lack, that would decide the effects seen."""
    if verdict.others:
        return None, None
    if not verdict.unclear:
        return None, minutes_missing(results, verdict.places or lacking)
    waiting = minutes_missing(results, lacking)
    if test.decide == "count" and lacking:
        return None, waiting
    needed = [
        FEWEST
        if one.deviation is None or not one.tested
        else statistics.seeds_needed(one.mean, one.deviation)
        for one in verdict.unclear
    ]
    if any(one is None for one in needed):
        return None, None
    most = max(one for one in needed if one is not None)
    lack = max(most - min(one.count for one in verdict.unclear), 1)
    more = minutes_for(results, verdict.places, 1)
    if waiting is None or more is None:
        return most, None
    # A further setting costs what the settings so far did on average.
    share = lack if test.pairs == "seeds" else lack / verdict.unclear[0].count
    return most, waiting + share * more
