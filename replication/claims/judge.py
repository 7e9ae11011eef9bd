"""Claims put to the test: runs compared in pairs, and what would decide those left open."""

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
    absence,
    by_setting,
    comparisons,
    is_about,
    methods_of,
    planned_comparisons,
)
from replication.claims.conditions import compare_conditions, read_protocols
from replication.claims.correlations import correlated
from replication.claims.outcome import Outcome, stand
from replication.claims.power import (
    Needed,
    detectable,
    expected,
    over_what_there_is,
    to_begin,
    to_decide,
)
from replication.claims.power_analysis import wilson
from replication.claims.verdicts import (
    FAILS,
    HOLDS,
    OPEN,
    Verdict,
    listed,
    unless_others,
    unless_overturned,
)

if TYPE_CHECKING:
    import pandas as pd


def judge(claims: Iterable[Claim], frame: pd.DataFrame, suites: Iterable[Suite]) -> list[Outcome]:
    """Every claim's outcome in every suite of ours that it can be tested in.

    A suite whose runs are all among those of one before it has no outcome of its own. A claim none
    of whose suites has figures has one outcome, not decided, in the suite that costs least.
    """
    claims, frame = list(claims), code_columns(frame)
    given = {suite.name: suite for suite in suites}
    names = dict.fromkeys(name for claim in claims for name in claim.suites)
    found = {
        name: collect_results(joined([given[part] for part in name.split("+")]), frame)
        for name in names
        if all(part in given for part in name.split("+"))
    }
    outcomes = []
    for claim in claims:
        own = [tested(claim, found[name], found.values()) for name in claim.suites if name in found]
        begun: list[Outcome] = []
        # Runs that did not train the paper's method are shown only where there are no others.
        evidence = [one for one in own if one.begun and not one.conditions.disqualified]
        for one in evidence or own:
            if one.begun and not any(one.evidence <= other.evidence for other in begun):
                begun.append(one)
        waiting = sorted(own, key=lambda one: math.inf if one.minutes is None else one.minutes)
        outcomes += begun or waiting[:1]
    return outcomes


def joined(suites: Sequence[Suite]) -> Suite:
    """Suites of one protocol as one: the runs of all, each once."""
    first = suites[0]
    if len(suites) == 1:
        return first
    specs = {(method, spec.key): (method, spec) for one in suites for method, spec in one.specs}
    name = "+".join(one.name for one in suites)
    return replace(first, name=name, specs=tuple(specs.values()))


def tested(claim: Claim, results: Results, others: Iterable[Results]) -> Outcome:
    """A claim's outcome by the runs of one suite; ``others`` tell how far settings spread."""
    return with_conditions(compare_runs(claim, results, others), results)


def with_conditions(outcome: Outcome, results: Results) -> Outcome:
    """An outcome with how its runs differ from the paper's; unchanged where it has none."""
    claim, test = outcome.claim, outcome.claim.test
    if not outcome.begun:
        return outcome
    places = {place for one in outcome.comparisons for place in one.places}
    if test.correlation:
        wanted = methods_of(test, results)
        places = {place for place in results.planned if place[1] in wanted}
    by_seeds = test.pairs == "seeds" and not test.correlation
    conditions = compare_conditions(
        read_protocols()[claim.protocol],
        results,
        places,
        parts=(test.left.part, test.right.part),
        seeds=min(len(one.gains) for one in outcome.comparisons) if by_seeds else None,
        note=claim.here.get(outcome.suite, ""),
    )
    return replace(outcome, conditions=conditions)


def compare_runs(claim: Claim, results: Results, others: Iterable[Results]) -> Outcome:
    """What the comparisons of one suite's runs say, whatever the paper's conditions were."""
    if claim.test.correlation:
        return correlated(claim, results)
    wanted = methods_of(claim.test, results)
    planned = [
        place
        for place in results.planned
        if place[1] in wanted and is_about(claim.test, results, place[0])
    ]
    test = over_what_there_is(claim.test, results, planned)
    narrowed = test.pairs != claim.test.pairs
    claim = replace(claim, test=test)
    every = list(comparisons(test, results))
    found = [one for one in every if one.gains]
    absent = tuple(sorted(wanted - _known(results)))
    metric = (test.metrics or test.left.metrics)[0]
    lacking, missing = absence(test, results, planned, every)
    untuned = wanted & (_known(results) - set(results.suite.methods))
    if not found:
        told, pairs = expected(results, test, metric, planned, others)
        possible = _complete(test, results) and not untuned
        needed = to_begin(results, test, planned) if possible else Needed()
        return Outcome(
            claim,
            results.suite.name,
            OPEN,
            _why_none(test, results, absent, untuned),
            metric,
            missing=missing,
            absent=absent,
            detectable=told,
            expected=pairs,
            seeds=needed.pairs,
            cost=needed.cost,
        )
    overall = _overall(test, found)
    verdict = _VERDICTS[test.decide](test, found, overall, missing)
    verdict = unless_others(test, verdict, {*absent, *untuned}, lacking)
    if test.decide == "count":
        verdict = unless_overturned(verdict, found, planned_comparisons(test, results) - len(found))
    if narrowed:
        reason = f"{verdict.reason}, over seeds: its settings are too few to say more"
        verdict = replace(verdict, reason=reason)
    effect, pairs, needed = None, None, Needed()
    if verdict.status == OPEN:
        effect = detectable(test, verdict.unclear)
        needed = to_decide(results, test, verdict, lacking)
        if effect is None and not verdict.others:
            effect, pairs = expected(results, test, metric, planned, others)
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
        comparisons=tuple(found),
        missing=missing,
        absent=absent,
        detectable=effect,
        expected=pairs,
        elsewhere=verdict.others,
        seeds=needed.pairs,
        beyond=needed.beyond,
        cost=needed.cost,
    )


def _complete(test: Test, results: Results) -> bool:
    """Whether each side has a method that the suite has."""
    known = _known(results)
    shared = test.methods == ("*",) or bool(known & set(test.methods))
    return shared or all(known & set(side.methods) for side in (test.left, test.right))


def _known(results: Results) -> set[str]:
    """Methods of the suite, those among them whose settings are still to be tuned."""
    return {*results.suite.methods, *results.suite.named}


def _why_none(test: Test, results: Results, absent: Sequence[str], untuned: Collection[str]) -> str:
    if untuned:
        return f"settings are still to be tuned of {listed(sorted(untuned))}"
    if _complete(test, results):
        return "no figures yet"
    return f"{results.suite.name} does not have {listed(absent)}"


def _overall(test: Test, found: Sequence[Comparison]) -> Paired:
    """The mean gain of all comparisons, over seeds or over settings; without the margin.

    A setting is a network trained in a way: several calibrators of its outputs share what
    chance gave it, and count as one, by their mean.
    """
    if test.pairs == "settings":
        groups = by_setting(found)
        return statistics.paired(
            [statistics.mean_of([one.plain.mean for one in each]).mean for each in groups]
        )
    found, seeds = _aligned(found)
    return statistics.paired(
        [statistics.mean_of([one.gains[seed] for one in found]).mean for seed in seeds]
    )


def _aligned(found: Sequence[Comparison]) -> tuple[list[Comparison], list[int]]:
    """The seeds that most comparisons have, and the comparisons that have them all.

    A run that lacks, or has come to nothing, so costs a comparison and not a seed of all.
    """
    sets = Counter(frozenset(one.gains) for one in found)
    seeds = max(sets, key=lambda one: (sets[one], len(one)))
    return [one for one in found if seeds <= set(one.gains)], sorted(seeds)


def _every(
    test: Test, found: Sequence[Comparison], overall: Paired, missing: Sequence[str]
) -> Verdict:
    """All must come out for left, each at 5%; one against it, after Holm, is enough to fail."""
    adjusted = holm([one.shifted.p for one in found])
    lost = [
        one
        for one, p in zip(found, adjusted, strict=True)
        if p is not None and stand(one.shifted, p) < 0
    ]
    if lost:
        reason = f"against it: {listed([one.name for one in lost])}"
        return Verdict(FAILS, reason, by=tuple(lost))
    return _open_or(HOLDS, 1, found, missing)


def _some(
    test: Test, found: Sequence[Comparison], overall: Paired, missing: Sequence[str]
) -> Verdict:
    """One that comes out for left, after Holm, is enough; all against it, each at 5%, fail."""
    adjusted = holm([one.shifted.p for one in found])
    won = [
        one
        for one, p in zip(found, adjusted, strict=True)
        if p is not None and stand(one.shifted, p) > 0
    ]
    if won:
        return Verdict(HOLDS, f"seen in {listed([one.name for one in won])}", by=tuple(won))
    return _open_or(FAILS, -1, found, missing)


def _open_or(
    status: str, side: int, found: Sequence[Comparison], missing: Sequence[str]
) -> Verdict:
    open_ones = [one for one in found if stand(one.shifted) != side]
    if not open_ones and not missing:
        reason = f"all of {len(found)} comparisons{' come out against it' * (side < 0)}"
        return Verdict(status, reason, by=tuple(found))
    reason = f"{len(open_ones)} of {len(found)} comparisons are not clear"
    if missing:
        reason += f"; no runs yet of {listed(missing)}"
    untested = sum(not one.shifted.tested for one in open_ones)
    if untested:
        reason += f"; {untested} have fewer than {FEWEST} seeds"
    return Verdict(
        OPEN,
        reason,
        tuple(one.shifted for one in open_ones),
        tuple(place for one in open_ones for place in one.places),
    )


def _mean(
    test: Test, found: Sequence[Comparison], overall: Paired, missing: Sequence[str]
) -> Verdict:
    """The mean gain of all comparisons, by one paired test."""
    shifted = moved(overall, test.margin)
    taken = list(found) if test.pairs == "settings" else _aligned(found)[0]
    kept = len(taken)
    reason = f"mean of {kept} comparison{'s' * (kept > 1)}"
    if kept < len(found):
        reason += f" ({len(found) - kept} with fewer seeds left out)"
    if test.pairs == "settings" and overall.count < kept:
        reason += f" in {overall.count} settings"
    if missing:
        reason += f", without runs of {listed(missing)}"
    if not shifted.tested:
        reason += f"; {shifted.count} pair{'s' * (shifted.count != 1)} are too few to test"
    status = {1: HOLDS, -1: FAILS, 0: OPEN}[stand(shifted)]
    cells = {one.cell for one in taken}
    away = [one for one in found if one.cell not in cells]
    if away and status != OPEN:  # a mean over one data set says nothing of another
        told = listed(list(dict.fromkeys(one.cell for one in away)))
        places = tuple(place for one in away for place in one.places)
        return Verdict(OPEN, f"{reason}, none of them of {told}", places=places)
    places = tuple(place for one in found for place in one.places)
    return Verdict(status, reason, (shifted,), places, tuple(found))


def _count(
    test: Test, found: Sequence[Comparison], overall: Paired, missing: Sequence[str]
) -> Verdict:
    """The share of comparisons whose gain is above 0, against half, by Wilson's interval."""
    wins = sum(one.shifted.mean > 0 for one in found)
    low, high = wilson(wins, len(found))
    reason = f"ahead in {wins} of {len(found)} (95% interval of the share: {low:.0%} to {high:.0%})"
    few = sum(not one.shifted.tested for one in found)
    if few and test.pairs == "seeds":
        reason += f", {few} by fewer than {FEWEST} seeds"
    if missing:
        reason += f", without runs of {listed(missing)}"
    status = HOLDS if low > 0.5 else FAILS if high < 0.5 else OPEN
    places = tuple(place for one in found for place in one.places)
    return Verdict(status, reason, tuple(one.shifted for one in found), places, tuple(found))


_VERDICTS = {"every": _every, "some": _some, "mean": _mean, "count": _count}


def moved(paired: Paired, margin: float) -> Paired:
    """The same differences, each ``margin`` larger, tested anew."""
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
