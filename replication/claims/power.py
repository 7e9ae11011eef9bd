"""What our runs could have seen of a claim left open, and what it would take to decide it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from calibrant.bench import Results
from calibrant.bench.tables.statistics import FEWEST, Paired, mean_of, paired
from replication.claims import power_analysis
from replication.claims.claim import Test
from replication.claims.comparisons import Place, by_setting, comparisons, planned_comparisons
from replication.claims.costs import Cost, cost_of_plan, cost_of_seeds
from replication.claims.power_analysis import MOST
from replication.claims.spreads import spreads_of
from replication.claims.verdicts import Verdict


class Needed(NamedTuple):
    """What would decide a claim: pairs in all, and the cost of those we lack; None: not known."""

    pairs: int | None = None
    cost: Cost | None = None
    beyond: bool = False  # more than ``MOST`` pairs: the cost is that of so many


def detectable(test: Test, unclear: Sequence[Paired]) -> float | None:
    """The effect that every one of the open comparisons would have shown, 4 times of 5.

    Of a count, the share of all comparisons.
    """
    if test.decide == "count":
        return power_analysis.detectable_share(len(unclear)) if unclear else None
    found = [
        power_analysis.detectable(one.deviation, one.count)
        for one in unclear
        if one.deviation is not None
    ]
    known = [one for one in found if one is not None]
    return max(known) if known and len(known) == len(unclear) else None


def expected(
    results: Results, test: Test, metric: str, places: Sequence[Place], others: Iterable[Results]
) -> tuple[float | None, int | None]:
    """The effect that the planned runs would show, by how much others of the store spread.

    Of as many seeds or settings as are planned, or as a test needs, with their number.
    """
    if test.decide == "count":
        count = planned_comparisons(test, results)
        effect = power_analysis.detectable_share(count) if count else None
        return effect, seeds_of(results, places)
    settings = test.pairs == "settings"
    spread = (
        _over_settings(test, others) if settings else _over_seeds(results, test, metric, places)
    )
    if spread is None or not places:
        return None, None
    pairs = max(FEWEST, settings_of(test, places)) if settings else seeds_of(results, places)
    return power_analysis.detectable(spread, pairs), pairs


def _over_seeds(results: Results, test: Test, metric: str, places: Sequence[Place]) -> float | None:
    """The spread of one comparison of two runs with independent seeds.

    Each has that of the median setting (`spreads_of`): on the same data where there are some,
    else on any.
    """
    spreads = _spreads(results).get(metric, {})
    planned = [results.setting(cell, "data") for cell, _ in places]
    here = [spreads[data] for data in planned if data in spreads] or list(spreads.values())
    return max(here) * math.hypot(1, test.ratio) if here else None


@lru_cache(maxsize=64)
def _spreads(results: Results) -> dict[str, dict[str, float]]:
    return spreads_of(results.frame)


def _over_settings(test: Test, others: Iterable[Results]) -> float | None:
    """The spread over settings, of any method, of the suite that has most of them.

    Those count that have as many of the claim's comparisons as any setting has.
    """
    asked = replace(test, methods=("*",)) if test.methods else test
    suites = [by_setting(one for one in comparisons(asked, each) if one.gains) for each in others]
    most = max((len(each) for settings in suites for each in settings), default=0)
    whole = [[each for each in settings if len(each) == most] for settings in suites]
    settings = max(whole, key=len, default=[])
    if len(settings) < FEWEST:
        return None
    means = [mean_of([one.plain.mean for one in each]).mean for each in settings]
    return paired(means).deviation


def seeds_of(results: Results, places: Iterable[Place]) -> int:
    """How many seeds are planned, or where these are too few, how many a test needs."""
    return max(FEWEST, min((results.planned[place] for place in places), default=0))


def settings_of(test: Test, places: Iterable[Place]) -> int:
    """How many settings are planned: networks, or where methods are compared, their cells."""
    return len({(cell, name if test.methods else None) for cell, name in places})


def over_what_there_is(test: Test, results: Results, planned: Sequence[Place]) -> Test:
    """Over seeds, where a claim over settings meets a suite with too few of those to test.

    Seeds of files of logits are no such pairs: they split the same rows.
    """
    few = test.pairs == "settings" and 0 < settings_of(test, planned) < FEWEST
    trained = not any(spec.logits is not None for _, spec in results.suite.specs)
    if few and trained and min(results.planned[place] for place in planned) >= FEWEST:
        return replace(test, pairs="seeds")
    return test


def to_begin(results: Results, test: Test, places: Sequence[Place]) -> Needed:
    """As many runs as a test needs; nothing where there are no such runs."""
    if not places:
        return Needed()
    if test.pairs == "settings":
        count, cost = settings_of(test, places), cost_of_plan(results, places)
        if count >= FEWEST or cost is None:
            return Needed(cost=cost)
        # A further setting costs what these do on average.
        return Needed(FEWEST, cost.times(FEWEST / count))
    return Needed(cost=_to_test(results, test, places))


def _to_test(results: Results, test: Test, places: Sequence[Place]) -> Cost | None:
    """The runs that are planned at these places, or where those are too few, that a test needs."""
    few = test.pairs == "seeds" and any(results.planned[place] < FEWEST for place in places)
    return cost_of_seeds(results, places, FEWEST) if few else cost_of_plan(results, places)


def to_decide(results: Results, test: Test, verdict: Verdict, lacking: Sequence[Place]) -> Needed:
    """What would decide the effects seen."""
    if verdict.others:
        return Needed()
    if not verdict.unclear:
        return Needed(cost=cost_of_plan(results, verdict.places or lacking))
    waiting = _to_test(results, test, lacking)
    if test.decide == "count" and lacking:
        return Needed(cost=waiting)
    needed = [
        FEWEST
        if one.deviation is None or not one.tested
        else power_analysis.seeds_needed(one.mean, one.deviation)
        for one in verdict.unclear
    ]
    known = [one for one in needed if one is not None]
    beyond = len(known) < len(needed)
    most = MOST if beyond else max(known)
    lack = max(most - min(one.count for one in verdict.unclear), 1)
    # A further setting costs what the settings so far did on average.
    share = lack if test.pairs == "seeds" else lack / verdict.unclear[0].count
    more = cost_of_seeds(results, verdict.places, share)
    cost = None if waiting is None or more is None else waiting + more
    return Needed(None if beyond else most, cost, beyond)
