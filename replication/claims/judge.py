"""Judge claims by paired comparisons of runs, and say what would decide the open ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from calibrant.bench import Results, Suite, code_columns, collect_results
from calibrant.bench.tables import statistics
from calibrant.bench.tables.statistics import FEWEST, Paired
from calibrant.functional.statistics import holm
from replication.claims.claim import Claim, Test
from replication.claims.comparisons import (
    Comparison,
    count_planned,
    find_missing,
    group_by_setting,
    is_about,
    list_comparisons,
    list_methods,
)
from replication.claims.conditions import compare_conditions, read_protocols
from replication.claims.correlations import judge_correlation
from replication.claims.outcome import Outcome, decide_sign
from replication.claims.power import (
    Needed,
    choose_pairs,
    find_detectable,
    find_needed_to_begin,
    find_needed_to_decide,
    predict_detectable,
)
from replication.claims.power_analysis import wilson
from replication.claims.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    Verdict,
    join_names,
    reopen_for_planned,
    reopen_for_rivals,
)

if TYPE_CHECKING:
    import pandas as pd


def judge(claims: Iterable[Claim], frame: pd.DataFrame, suites: Iterable[Suite]) -> list[Outcome]:
    """Judge every claim in each suite that can test it.

    Skip a suite whose runs all belong to an earlier suite. If no suite has figures, give one
    undecided outcome, for the cheapest suite.
    """
    claims, frame = list(claims), code_columns(frame)
    suite_by_name = {suite.name: suite for suite in suites}
    names = dict.fromkeys(name for claim in claims for name in claim.suites)
    results_by_suite = {
        name: collect_results(join_suites([suite_by_name[part] for part in name.split("+")]), frame)
        for name in names
        if all(part in suite_by_name for part in name.split("+"))
    }
    outcomes = []
    for claim in claims:
        own = [
            judge_in_suite(claim, results_by_suite[name], results_by_suite.values())
            for name in claim.suites
            if name in results_by_suite
        ]
        begun: list[Outcome] = []
        # Show runs that did not train the paper's method only if there are no others.
        evidence = [
            outcome for outcome in own if outcome.begun and not outcome.conditions.disqualified
        ]
        for outcome in evidence or own:
            if outcome.begun and not any(outcome.evidence <= other.evidence for other in begun):
                begun.append(outcome)
        waiting = sorted(
            own, key=lambda outcome: math.inf if outcome.minutes is None else outcome.minutes
        )
        outcomes += begun or waiting[:1]
    return outcomes


def join_suites(suites: Sequence[Suite]) -> Suite:
    """Join suites with the same protocol into one, with each run once."""
    first = suites[0]
    if len(suites) == 1:
        return first
    specs = {(method, spec.key): (method, spec) for suite in suites for method, spec in suite.specs}
    name = "+".join(suite.name for suite in suites)
    return replace(first, name=name, specs=tuple(specs.values()))


def judge_in_suite(claim: Claim, results: Results, others: Iterable[Results]) -> Outcome:
    """Judge a claim by the runs of one suite; ``others`` give the spread over settings."""
    return add_conditions(compare_runs(claim, results, others), results)


def add_conditions(outcome: Outcome, results: Results) -> Outcome:
    """Add how the runs differ from the paper's; return an outcome without runs unchanged."""
    claim, test = outcome.claim, outcome.claim.test
    if not outcome.begun:
        return outcome
    places = {place for comparison in outcome.comparisons for place in comparison.places}
    if test.correlation:
        wanted = list_methods(test, results)
        places = {place for place in results.planned if place[1] in wanted}
    by_seeds = test.pairs == "seeds" and not test.correlation
    conditions = compare_conditions(
        read_protocols()[claim.protocol],
        results,
        places,
        parts=(test.left.part, test.right.part),
        seeds=min(len(comparison.gains) for comparison in outcome.comparisons)
        if by_seeds
        else None,
        note=claim.here.get(outcome.suite, ""),
    )
    return replace(outcome, conditions=conditions)


def compare_runs(claim: Claim, results: Results, others: Iterable[Results]) -> Outcome:
    """Judge a claim by one suite's comparisons, whatever the paper's conditions were."""
    if claim.test.correlation:
        return judge_correlation(claim, results)
    wanted = list_methods(claim.test, results)
    planned = [
        place
        for place in results.planned
        if place[1] in wanted and is_about(claim.test, results, place[0])
    ]
    test = choose_pairs(claim.test, results, planned)
    narrowed = test.pairs != claim.test.pairs
    claim = replace(claim, test=test)
    every = list(list_comparisons(test, results))
    measured = [comparison for comparison in every if comparison.gains]
    absent = tuple(sorted(wanted - _list_known_methods(results)))
    metric = (test.metrics or test.left.metrics)[0]
    lacking, missing = find_missing(test, results, planned, every)
    untuned = wanted & (_list_known_methods(results) - set(results.suite.methods))
    if not measured:
        effect_shown, pairs = predict_detectable(results, test, metric, planned, others)
        possible = _has_both_sides(test, results) and not untuned
        needed = find_needed_to_begin(results, test, planned) if possible else Needed()
        return Outcome(
            claim,
            results.suite.name,
            OPEN,
            _explain_no_figures(test, results, absent, untuned),
            metric,
            missing=missing,
            absent=absent,
            detectable=effect_shown,
            expected=pairs,
            seeds=needed.pairs,
            cost=needed.cost,
        )
    overall = _average_gains(test, measured)
    verdict = _DECIDERS[test.decide](test, measured, overall, missing)
    verdict = reopen_for_rivals(test, verdict, {*absent, *untuned}, lacking)
    if test.decide == "count":
        verdict = reopen_for_planned(
            verdict, measured, count_planned(test, results) - len(measured)
        )
    if narrowed:
        reason = f"{verdict.reason}, over seeds because there are too few settings"
        verdict = replace(verdict, reason=reason)
    effect, pairs, needed = None, None, Needed()
    if verdict.status == OPEN:
        effect = find_detectable(test, verdict.unclear)
        needed = find_needed_to_decide(results, test, verdict, lacking)
        if effect is None and not verdict.others:
            effect, pairs = predict_detectable(results, test, metric, planned, others)
    return Outcome(
        claim,
        results.suite.name,
        verdict.status,
        verdict.reason,
        metric,
        effect=overall.mean,
        low=overall.low,
        high=overall.high,
        pairs=overall.count,
        comparisons=tuple(measured),
        missing=missing,
        absent=absent,
        detectable=effect,
        expected=pairs,
        elsewhere=verdict.others,
        seeds=needed.pairs,
        beyond=needed.beyond,
        cost=needed.cost,
    )


def _has_both_sides(test: Test, results: Results) -> bool:
    """Return whether the suite has a method of each side."""
    known = _list_known_methods(results)
    shared = test.methods == ("*",) or bool(known & set(test.methods))
    return shared or all(known & set(side.methods) for side in (test.left, test.right))


def _list_known_methods(results: Results) -> set[str]:
    """List the suite's methods, including those whose settings must still be tuned."""
    return {*results.suite.methods, *results.suite.named}


def _explain_no_figures(
    test: Test, results: Results, absent: Sequence[str], untuned: Collection[str]
) -> str:
    if untuned:
        return f"settings not tuned yet: {join_names(sorted(untuned))}"
    if _has_both_sides(test, results):
        return "no figures yet"
    return f"{results.suite.name} does not have {join_names(absent)}"


def _average_gains(test: Test, comparisons: Sequence[Comparison]) -> Paired:
    """Average the gains of all comparisons over seeds or settings, without the margin.

    A setting is one trained network. Several calibrators of its outputs depend on each other, so
    they count once, by their mean.
    """
    if test.pairs == "settings":
        groups = group_by_setting(comparisons)
        return statistics.paired(
            [
                statistics.mean_of([comparison.plain.mean for comparison in each]).mean
                for each in groups
            ]
        )
    comparisons, seeds = _align_seeds(comparisons)
    return statistics.paired(
        [
            statistics.mean_of([comparison.gains[seed] for comparison in comparisons]).mean
            for seed in seeds
        ]
    )


def _align_seeds(comparisons: Sequence[Comparison]) -> tuple[list[Comparison], list[int]]:
    """Find the set of seeds that most comparisons have, and the comparisons that have them all.

    A missing or failed run then costs one comparison, not a seed of every comparison.
    """
    sets = Counter(frozenset(comparison.gains) for comparison in comparisons)
    seeds = max(sets, key=lambda seeds: (sets[seeds], len(seeds)))
    return [comparison for comparison in comparisons if seeds <= set(comparison.gains)], sorted(
        seeds
    )


def _decide_every(
    test: Test, comparisons: Sequence[Comparison], overall: Paired, missing: Sequence[str]
) -> Verdict:
    """Require every comparison to favour left at 5%; fail if one is against it after Holm."""
    adjusted = holm([comparison.shifted.p for comparison in comparisons])
    lost = [
        comparison
        for comparison, p in zip(comparisons, adjusted, strict=True)
        if p is not None and decide_sign(comparison.shifted, p) < 0
    ]
    if lost:
        reason = f"against it: {join_names([comparison.name for comparison in lost])}"
        return Verdict(FAILS, reason, deciding=tuple(lost))
    return _require_all(HOLDS, 1, comparisons, missing)


def _decide_some(
    test: Test, comparisons: Sequence[Comparison], overall: Paired, missing: Sequence[str]
) -> Verdict:
    """Require one comparison to favour left after Holm; fail if all are against it at 5%."""
    adjusted = holm([comparison.shifted.p for comparison in comparisons])
    won = [
        comparison
        for comparison, p in zip(comparisons, adjusted, strict=True)
        if p is not None and decide_sign(comparison.shifted, p) > 0
    ]
    if won:
        return Verdict(
            HOLDS,
            f"seen in {join_names([comparison.name for comparison in won])}",
            deciding=tuple(won),
        )
    return _require_all(FAILS, -1, comparisons, missing)


def _require_all(
    status: str, side: int, comparisons: Sequence[Comparison], missing: Sequence[str]
) -> Verdict:
    unclear = [comparison for comparison in comparisons if decide_sign(comparison.shifted) != side]
    if not unclear and not missing:
        reason = f"all of {len(comparisons)} comparisons{' are against it' * (side < 0)}"
        return Verdict(status, reason, deciding=tuple(comparisons))
    reason = f"{len(unclear)} of {len(comparisons)} comparisons are not clear"
    if missing:
        reason += f"; no runs yet: {join_names(missing)}"
    untested = sum(not comparison.shifted.tested for comparison in unclear)
    if untested:
        reason += f"; {untested} have fewer than {FEWEST} seeds"
    return Verdict(
        OPEN,
        reason,
        tuple(comparison.shifted for comparison in unclear),
        tuple(place for comparison in unclear for place in comparison.places),
    )


def _decide_mean(
    test: Test, comparisons: Sequence[Comparison], overall: Paired, missing: Sequence[str]
) -> Verdict:
    """Test the mean gain of all comparisons with one paired test."""
    shifted = shift_paired(overall, test.margin)
    taken = list(comparisons) if test.pairs == "settings" else _align_seeds(comparisons)[0]
    kept = len(taken)
    reason = f"mean of {kept} comparison{'s' * (kept > 1)}"
    if kept < len(comparisons):
        reason += f" ({len(comparisons) - kept} with fewer seeds left out)"
    if test.pairs == "settings" and overall.count < kept:
        reason += f" in {overall.count} settings"
    if missing:
        reason += f", without runs of {join_names(missing)}"
    if not shifted.tested:
        reason += f"; {shifted.count} pair{'s' * (shifted.count != 1)} are too few to test"
    status = {1: HOLDS, -1: FAILS, 0: OPEN}[decide_sign(shifted)]
    cells = {comparison.cell for comparison in taken}
    away = [comparison for comparison in comparisons if comparison.cell not in cells]
    if away and status != OPEN:  # a mean over one data set says nothing about another
        cells_text = join_names(list(dict.fromkeys(comparison.cell for comparison in away)))
        places = tuple(place for comparison in away for place in comparison.places)
        return Verdict(OPEN, f"{reason}, none of them in {cells_text}", places=places)
    places = tuple(place for comparison in comparisons for place in comparison.places)
    return Verdict(status, reason, (shifted,), places, tuple(comparisons))


def _decide_count(
    test: Test, comparisons: Sequence[Comparison], overall: Paired, missing: Sequence[str]
) -> Verdict:
    """Compare the share of comparisons with a gain above 0 with half, by Wilson's interval."""
    wins = sum(comparison.shifted.mean > 0 for comparison in comparisons)
    low, high = wilson(wins, len(comparisons))
    share = f"95% interval of the share: {low:.0%} to {high:.0%}"
    reason = f"ahead in {wins} of {len(comparisons)} ({share})"
    few = sum(not comparison.shifted.tested for comparison in comparisons)
    if few and test.pairs == "seeds":
        reason += f", {few} with fewer than {FEWEST} seeds"
    if missing:
        reason += f", without runs of {join_names(missing)}"
    status = HOLDS if low > 0.5 else FAILS if high < 0.5 else OPEN
    places = tuple(place for comparison in comparisons for place in comparison.places)
    return Verdict(
        status,
        reason,
        tuple(comparison.shifted for comparison in comparisons),
        places,
        tuple(comparisons),
    )


_DECIDERS = {
    "every": _decide_every,
    "some": _decide_some,
    "mean": _decide_mean,
    "count": _decide_count,
}


def shift_paired(paired: Paired, margin: float) -> Paired:
    """Add ``margin`` to every difference and repeat the test."""
    from scipy.stats import t

    if not margin or paired.deviation is None or paired.low is None or paired.high is None:
        return Paired(paired.mean + margin, paired.count) if margin else paired
    mean, p = paired.mean + margin, paired.p
    if p is not None and paired.deviation == 0:
        p = 1.0 if mean == 0 else 0.0
    elif p is not None:
        error = paired.deviation / paired.count**0.5
        p = 2 * float(t.sf(abs(mean) / error, paired.count - 1))
    ends = (paired.low + margin, paired.high + margin)
    return Paired(mean, paired.count, paired.deviation, *ends, p)
