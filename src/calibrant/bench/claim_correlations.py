"""Claims that two figures go together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from calibrant.bench import statistics
from calibrant.bench.cells import Cell, Results
from calibrant.bench.claim_comparisons import is_about, methods_of
from calibrant.bench.costs import minutes_missing

if TYPE_CHECKING:
    from calibrant.bench.claim_tests import Outcome
    from calibrant.bench.claims import Claim


def correlated(claim: Claim, results: Results) -> Outcome:
    """The correlation of two metrics over methods and calibrators, within cells.

    A point is a method after a calibrator, its figures means over seeds. Each cell gives
    Fisher's z; cells are combined by weights of 1/variance. With ``against``, the z of that
    third metric with the second is taken off.
    """
    from calibrant.bench.claim_tests import FAILS, HOLDS, OPEN, Outcome

    test, name = claim.test, results.suite.name
    first, second = test.metrics
    wanted = methods_of(test, results)
    places = [
        place
        for place in results.planned
        if place[1] in wanted and is_about(test, results, place[0])
    ]
    columns = [first, second] if test.against is None else [first, second, test.against]
    cells = list(dict.fromkeys(cell for cell, _ in places))
    points = {cell: _points(claim, results, cell, columns) for cell in cells}
    estimates = []
    for rows in points.values():
        one, two, *third = (
            (list(column) for column in zip(*rows, strict=True)) if rows else ([], [])
        )
        estimates.append(
            statistics.correlation_difference(one, third[0], two)
            if third
            else statistics.correlation(one, two)
        )
    z, variance = statistics.combined(estimates)
    metric = f"correlation of {first} and {second}"
    if not math.isfinite(variance):
        minutes = minutes_missing(results, places) if places else None
        return Outcome(claim, name, OPEN, "no figures yet", metric, minutes=minutes)
    spread = math.sqrt(variance)
    reach = statistics.normal_quantile(1 - statistics.LEVEL / 2) * spread
    status = HOLDS if z > reach else FAILS if z < -reach else OPEN
    shown = (lambda value: value) if test.against else math.tanh
    count = sum(len(rows) for rows in points.values())
    settings = sum(bool(rows) for rows in points.values())
    reason = f"{count} methods and calibrators in {settings} setting{'s' * (settings > 1)}"
    detectable, minutes = None, None
    if status == OPEN:
        shift = reach / spread + statistics.normal_quantile(statistics.POWER)
        detectable = shown(shift * spread)
        # As many more points of the same kind as bring the interval down to the effect seen.
        factor = (shift * spread / abs(z)) ** 2 if z else math.inf
        seconds = [results.seconds.get(place) for place in places]
        if factor < statistics.MOST and all(one is not None for one in seconds):
            minutes = (factor - 1) * sum(one for one in seconds if one is not None) / 60
    return Outcome(
        claim,
        name,
        status,
        reason,
        metric if test.against is None else f"{metric}, less that of {test.against}",
        effect=shown(z),
        low=shown(z - reach),
        high=shown(z + reach),
        pairs=count,
        detectable=detectable,
        minutes=minutes,
    )


def _points(
    claim: Claim, results: Results, cell: Cell, metrics: list[str]
) -> list[tuple[float, ...]]:
    test = claim.test
    calibrators = test.left.calibrators
    names = results.calibrators if calibrators == ("*",) else calibrators
    found = []
    for calibrator in names:
        columns = [
            results.values(metric, calibrator=calibrator, part=test.left.part) for metric in metrics
        ]
        for method in sorted(methods_of(test, results)):
            runs = [column.get((cell, method), {}) for column in columns]
            seeds = set.intersection(*(set(one) for one in runs))
            point = tuple(
                statistics.mean_of([one[seed] for seed in sorted(seeds)]).mean for one in runs
            )
            if seeds and all(map(math.isfinite, point)):
                found.append(point)
    return found
