"""Claims that two figures go together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrant.bench import Cell, Results
from calibrant.bench.tables.statistics import FEWEST, LEVEL, mean_of
from replication.claims import power_analysis
from replication.claims.claim import Claim
from replication.claims.comparisons import is_about, methods_of
from replication.claims.costs import cost_of_plan, cost_of_seeds
from replication.claims.outcome import Outcome
from replication.claims.power_analysis import MOST, POWER
from replication.claims.verdicts import FAILS, HOLDS, OPEN


def correlated(claim: Claim, results: Results) -> Outcome:
    """The correlation of two metrics over methods and calibrators, within cells.

    A point is a method after a calibrator, its figures means over seeds. Each cell gives
    Fisher's z; cells are combined by weights of 1/variance. With ``against``, the z of that
    third metric with the second is taken off. Points of one network, a method in a cell, go
    together by what it is: the interval is that of a jackknife over networks, and no narrower
    than Fisher's.
    """
    from scipy.stats import t

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
    z, variance = _combined(points)
    metric = f"correlation of {first} and {second}"
    if not math.isfinite(variance):
        cost = cost_of_plan(results, places) if places else None
        return Outcome(claim, name, OPEN, "no figures yet", metric, cost=cost)
    networks = [(cell, method) for cell, rows in points.items() for method in rows]
    count, settings = len(networks), sum(bool(rows) for rows in points.values())
    total = sum(len(each) for rows in points.values() for each in rows.values())
    reason = f"{total} points of {count} network{'s' * (count > 1)}"
    reason += f" in {settings} setting{'s' * (settings > 1)}"
    spread = math.sqrt(max(variance, _jackknife(points, networks)))
    few = count < FEWEST or not math.isfinite(spread)
    if few:
        reason += ", too few to test"
        spread = math.sqrt(variance)
    reach = float(t.ppf(1 - LEVEL / 2, max(count - 1, 1))) * spread
    status = OPEN if few or abs(z) <= reach else HOLDS if z > 0 else FAILS
    shown = (lambda value: value) if test.against else math.tanh
    detectable, beyond = None, False
    cost = cost_of_plan(results, places) if few else None
    if status == OPEN and not few:
        shift = reach / spread + power_analysis.normal_quantile(POWER)
        detectable = shown(shift * spread)
        # As many more points of the same kind as bring the interval down to the effect seen.
        factor = (shift * spread / abs(z)) ** 2 if z else math.inf
        beyond = factor >= MOST
        cost = cost_of_seeds(results, places, min(factor, MOST) - 1)
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
        beyond=beyond,
        cost=cost,
    )


Points = dict[Cell, dict[str, list[tuple[float, ...]]]]  # of each method in each cell


def _combined(points: Points) -> tuple[float, float]:
    """Fisher's z over all cells, and its variance were all points independent."""
    estimates = []
    for rows in points.values():
        flat = [point for each in rows.values() for point in each]
        one, two, *third = (
            (list(column) for column in zip(*flat, strict=True)) if flat else ([], [])
        )
        estimates.append(
            power_analysis.correlation_difference(one, third[0], two)
            if third
            else power_analysis.correlation(one, two)
        )
    return power_analysis.combined(estimates)


def _jackknife(points: Points, networks: Sequence[tuple[Cell, str]]) -> float:
    """The variance of z by leaving out one network after another."""
    count = len(networks)
    if count < 2:
        return math.inf
    left = []
    for cell, method in networks:
        rest = {name: each for name, each in points[cell].items() if name != method}
        left.append(_combined({**points, cell: rest})[0])
    mean = math.fsum(left) / count
    return (count - 1) / count * math.fsum((one - mean) ** 2 for one in left)


def _points(
    claim: Claim, results: Results, cell: Cell, metrics: list[str]
) -> dict[str, list[tuple[float, ...]]]:
    test = claim.test
    calibrators = test.left.calibrators
    names = results.calibrators if calibrators == ("*",) else calibrators
    found: dict[str, list[tuple[float, ...]]] = {}
    for calibrator in names:
        columns = [
            results.values(metric, calibrator=calibrator, part=test.left.part) for metric in metrics
        ]
        for method in sorted(methods_of(test, results)):
            runs = [column.get((cell, method), {}) for column in columns]
            seeds = set.intersection(*(set(one) for one in runs))
            point = tuple(mean_of([one[seed] for seed in sorted(seeds)]).mean for one in runs)
            if seeds and all(map(math.isfinite, point)):
                found.setdefault(method, []).append(point)
    return found
