"""Judge claims that two metrics correlate."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrant.bench import Cell, Results
from calibrant.bench.tables.statistics import FEWEST, LEVEL, mean_of
from replication.claims import power_analysis
from replication.claims.claim import Claim
from replication.claims.comparisons import is_about, list_methods
from replication.claims.costs import estimate_plan_cost, estimate_seeds_cost
from replication.claims.outcome import Outcome
from replication.claims.power_analysis import MOST, POWER
from replication.claims.verdicts import FAILS, HOLDS, OPEN


def judge_correlation(claim: Claim, results: Results) -> Outcome:
    """Correlate two metrics over methods and calibrators within each cell, and judge the claim.

    A point is a method after a calibrator; its figures are means over seeds. Each cell gives
    Fisher's z, and cells are combined with weights 1/variance. With ``against``, subtract the z
    of that third metric with the second. Points of the same network (a method in a cell) depend
    on each other, so the interval comes from a jackknife over networks and is never narrower
    than Fisher's.
    """
    from scipy.stats import t

    test, name = claim.test, results.suite.name
    first, second = test.metrics
    wanted = list_methods(test, results)
    places = [
        place
        for place in results.planned
        if place[1] in wanted and is_about(test, results, place[0])
    ]
    columns = [first, second] if test.against is None else [first, second, test.against]
    cells = list(dict.fromkeys(cell for cell, _ in places))
    points = {cell: _collect_points(claim, results, cell, columns) for cell in cells}
    z, variance = _combine_cells(points)
    metric = f"correlation of {first} and {second}"
    if not math.isfinite(variance):
        cost = estimate_plan_cost(results, places) if places else None
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
    cost = estimate_plan_cost(results, places) if few else None
    if status == OPEN and not few:
        shift = reach / spread + power_analysis.normal_quantile(POWER)
        detectable = shown(shift * spread)
        # How many times as many points would shrink the interval to the effect seen.
        factor = (shift * spread / abs(z)) ** 2 if z else math.inf
        beyond = factor >= MOST
        cost = estimate_seeds_cost(results, places, min(factor, MOST) - 1)
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


Points = dict[Cell, dict[str, list[tuple[float, ...]]]]  # by cell and method


def _combine_cells(points: Points) -> tuple[float, float]:
    """Combine Fisher's z over cells; its variance assumes independent points."""
    estimates = []
    for rows in points.values():
        flat = [point for each in rows.values() for point in each]
        first, second, *third = (
            (list(column) for column in zip(*flat, strict=True)) if flat else ([], [])
        )
        estimates.append(
            power_analysis.compare_correlations(first, third[0], second)
            if third
            else power_analysis.compute_fisher_z(first, second)
        )
    return power_analysis.combine_estimates(estimates)


def _jackknife(points: Points, networks: Sequence[tuple[Cell, str]]) -> float:
    """Estimate the variance of z by leaving out one network at a time."""
    count = len(networks)
    if count < 2:
        return math.inf
    left = []
    for cell, method in networks:
        rest = {name: each for name, each in points[cell].items() if name != method}
        left.append(_combine_cells({**points, cell: rest})[0])
    mean = math.fsum(left) / count
    return (count - 1) / count * math.fsum((z - mean) ** 2 for z in left)


def _collect_points(
    claim: Claim, results: Results, cell: Cell, metrics: list[str]
) -> dict[str, list[tuple[float, ...]]]:
    test = claim.test
    calibrators = test.left.calibrators
    names = results.calibrators if calibrators == ("*",) else calibrators
    points: dict[str, list[tuple[float, ...]]] = {}
    for calibrator in names:
        columns = [
            results.values(metric, calibrator=calibrator, part=test.left.part) for metric in metrics
        ]
        for method in sorted(list_methods(test, results)):
            runs = [column.get((cell, method), {}) for column in columns]
            seeds = set.intersection(*(set(by_seed) for by_seed in runs))
            point = tuple(
                mean_of([by_seed[seed] for seed in sorted(seeds)]).mean for by_seed in runs
            )
            if seeds and all(map(math.isfinite, point)):
                points.setdefault(method, []).append(point)
    return points
