"""Find the effect that our runs could detect for an open claim, and what would decide it."""

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
from replication.claims.comparisons import Place, count_planned, group_by_setting, list_comparisons
from replication.claims.costs import Cost, estimate_plan_cost, estimate_seeds_cost
from replication.claims.power_analysis import MOST
from replication.claims.spreads import estimate_spreads
from replication.claims.verdicts import Verdict


class Needed(NamedTuple):
    """Hold what would decide a claim: total pairs and the cost of the missing ones.

    None means unknown.
    """

    pairs: int | None = None
    cost: Cost | None = None
    beyond: bool = False  # more than ``MOST`` pairs; the cost is for ``MOST``


def find_detectable(test: Test, unclear: Sequence[Paired]) -> float | None:
    """Find the effect that each open comparison detects 4 times out of 5.

    For a count, find the share of all comparisons.
    """
    if test.decide == "count":
        return power_analysis.compute_detectable_share(len(unclear)) if unclear else None
    effects = [
        power_analysis.compute_detectable(gain.deviation, gain.count)
        for gain in unclear
        if gain.deviation is not None
    ]
    known = [effect for effect in effects if effect is not None]
    return max(known) if known and len(known) == len(unclear) else None


def predict_detectable(
    results: Results, test: Test, metric: str, places: Sequence[Place], others: Iterable[Results]
) -> tuple[float | None, int | None]:
    """Predict the effect that the planned runs would detect, from the spread of stored runs.

    Return it with the number of seeds or settings: the planned number, or the fewest that a test
    needs.
    """
    if test.decide == "count":
        count = count_planned(test, results)
        effect = power_analysis.compute_detectable_share(count) if count else None
        return effect, count_seeds(results, places)
    settings = test.pairs == "settings"
    spread = (
        _estimate_setting_spread(test, others)
        if settings
        else _estimate_seed_spread(results, test, metric, places)
    )
    if spread is None or not places:
        return None, None
    pairs = max(FEWEST, count_settings(test, places)) if settings else count_seeds(results, places)
    return power_analysis.compute_detectable(spread, pairs), pairs


def _estimate_seed_spread(
    results: Results, test: Test, metric: str, places: Sequence[Place]
) -> float | None:
    """Estimate the spread of a comparison of two runs with independent seeds.

    Each run has the spread of the median setting (`estimate_spreads`), on the same data if
    possible, else on any.
    """
    spreads = _get_spreads(results).get(metric, {})
    planned = [results.setting(cell, "data") for cell, _ in places]
    here = [spreads[data] for data in planned if data in spreads] or list(spreads.values())
    return max(here) * math.hypot(1, test.ratio) if here else None


@lru_cache(maxsize=64)
def _get_spreads(results: Results) -> dict[str, dict[str, float]]:
    return estimate_spreads(results.frame)


def _estimate_setting_spread(test: Test, others: Iterable[Results]) -> float | None:
    """Estimate the spread over settings, with any method, in the suite with most settings.

    Use only settings that have the largest number of the claim's comparisons.
    """
    asked = replace(test, methods=("*",)) if test.methods else test
    suites = [
        group_by_setting(
            comparison for comparison in list_comparisons(asked, each) if comparison.gains
        )
        for each in others
    ]
    most = max((len(each) for settings in suites for each in settings), default=0)
    whole = [[each for each in settings if len(each) == most] for settings in suites]
    settings = max(whole, key=len, default=[])
    if len(settings) < FEWEST:
        return None
    means = [mean_of([comparison.plain.mean for comparison in each]).mean for each in settings]
    return paired(means).deviation


def count_seeds(results: Results, places: Iterable[Place]) -> int:
    """Count the planned seeds; at least as many as a test needs."""
    return max(FEWEST, min((results.planned[place] for place in places), default=0))


def count_settings(test: Test, places: Iterable[Place]) -> int:
    """Count the planned settings: networks, or cells if methods are compared."""
    return len({(cell, name if test.methods else None) for cell, name in places})


def choose_pairs(test: Test, results: Results, planned: Sequence[Place]) -> Test:
    """Test over seeds if there are too few settings.

    Never use seeds of logit files as pairs: they split the same rows.
    """
    few = test.pairs == "settings" and 0 < count_settings(test, planned) < FEWEST
    trained = not any(spec.logits is not None for _, spec in results.suite.specs)
    if few and trained and min(results.planned[place] for place in planned) >= FEWEST:
        return replace(test, pairs="seeds")
    return test


def find_needed_to_begin(results: Results, test: Test, places: Sequence[Place]) -> Needed:
    """Find how many runs a first test needs, and their cost; empty if no runs are planned."""
    if not places:
        return Needed()
    if test.pairs == "settings":
        count, cost = count_settings(test, places), estimate_plan_cost(results, places)
        if count >= FEWEST or cost is None:
            return Needed(cost=cost)
        # Assume that a further setting costs the average of these.
        return Needed(FEWEST, cost.scale(FEWEST / count))
    return Needed(cost=_estimate_test_cost(results, test, places))


def _estimate_test_cost(results: Results, test: Test, places: Sequence[Place]) -> Cost | None:
    """Estimate the cost of the planned runs, or of the fewest that a test needs."""
    few = test.pairs == "seeds" and any(results.planned[place] < FEWEST for place in places)
    return (
        estimate_seeds_cost(results, places, FEWEST) if few else estimate_plan_cost(results, places)
    )


def find_needed_to_decide(
    results: Results, test: Test, verdict: Verdict, lacking: Sequence[Place]
) -> Needed:
    """Find what would decide the effects seen."""
    if verdict.others:
        return Needed()
    if not verdict.unclear:
        return Needed(cost=estimate_plan_cost(results, verdict.places or lacking))
    waiting = _estimate_test_cost(results, test, lacking)
    if test.decide == "count" and lacking:
        return Needed(cost=waiting)
    needed = [
        FEWEST
        if gain.deviation is None or not gain.tested
        else power_analysis.count_seeds_needed(gain.mean, gain.deviation)
        for gain in verdict.unclear
    ]
    known = [count for count in needed if count is not None]
    beyond = len(known) < len(needed)
    most = MOST if beyond else max(known)
    lack = max(most - min(gain.count for gain in verdict.unclear), 1)
    # Assume that a further setting costs the average of those so far.
    share = lack if test.pairs == "seeds" else lack / verdict.unclear[0].count
    more = estimate_seeds_cost(results, verdict.places, share)
    cost = None if waiting is None or more is None else waiting + more
    return Needed(None if beyond else most, cost, beyond)
