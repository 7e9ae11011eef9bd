"""Do intervals of clustered rows hold the truth, and are alarms rarely false?

    python benchmarks/interval_coverage.py --part clusters --trials 2000 --jobs 16 --write FILE

Rows of a cluster are alike by a Gaussian copula: with v = Φ(√ρ u + √(1 − ρ) e), u common to a
cluster, a row is an event where v < q(p), so that it is one with chance q(p) whatever ρ is.
Probabilities p are Beta(2, 3). A calibrated model has q(p) = p. One that is off has q(p) = 0.8 p,
whose ECE is 0.2 E p whatever the bins. Of five classes, v picks the class from the cumulated
probabilities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.special import betaincinv, ndtr, softmax

from calibrant import Predictions
from calibrant.evaluation import evaluate
from calibrant.evaluation.bootstrap import share_states
from calibrant.evaluation.clustered import total_test
from calibrant.evaluation.evaluate import choose_measures, find_units, row_options
from calibrant.evaluation.event_tests import EventTests, run_event_tests
from calibrant.evaluation.intervals import Plan as Resampling
from calibrant.evaluation.intervals import Units, figure_intervals, make_row_states
from calibrant.evaluation.verdict import OFF, Span, conclude_events
from calibrant.metrics.base import compute_all
from calibrant.metrics.rank_state import RankState
from coverage_parts import Plan, rate

SHAPES = ((40, 50), (200, 10))
CORRELATIONS = (0.05, 0.2, 0.5)
A, B = 2.0, 3.0
SMOOTH = (
    "accuracy",
    "brier",
    "brier_skill",
    "calibration_slope",
    "oe_ratio",
    "auroc",
    "average_precision",
)
ALARMS = ("total", "slope", "whole", "verdict", "verdict of classes")
CALIBRATED = ("ece", "adaptive_ece", "log_ece")
SHIFTED = {
    "ece": 1,
    "adaptive_ece": 1,
    "log_ece": 1,
    "ici": 5,
    "smooth_ece": 20,
}  # 1 set in so many
CLASSES, CHUNK = 5, 100  # sets a process draws at once
RESAMPLING = Resampling(resamples=200)
RANKS = np.linspace(0, 1, 20_001)[1:-1]
QUANTILES = betaincinv(A, B, RANKS)


def draw(
    groups: int, size: int, correlation: float, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw probabilities (half of their spread is the cluster's), outcomes and clusters."""
    clusters = np.repeat(np.arange(groups), size)
    # Probabilities are alike within clusters too, with the same margin: patients differ in risk.
    probability = np.interp(draw_ranks(clusters, 0.5, rng), RANKS, QUANTILES)
    return probability, draw_ranks(clusters, correlation, rng) < share * probability, clusters


def draw_ranks(clusters: np.ndarray, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """Draw uniform numbers that are alike within clusters."""
    common, own = rng.standard_normal(clusters[-1] + 1), rng.standard_normal(len(clusters))
    return ndtr(np.sqrt(correlation) * common[clusters] + np.sqrt(1 - correlation) * own)


def draw_classes(
    groups: int, size: int, correlation: float, rng: np.random.Generator
) -> Predictions:
    """Draw calibrated predictions of five classes."""
    clusters = np.repeat(np.arange(groups), size)
    common = rng.standard_normal((groups, CLASSES))[clusters]
    own = rng.standard_normal((groups * size, CLASSES))
    probs = softmax(1.5 * np.sqrt(0.5) * (common + own), axis=1)
    place = draw_ranks(clusters, correlation, rng)[:, None]
    labels = np.minimum((place > np.cumsum(probs, axis=1)).sum(1), CLASSES - 1)
    return Predictions.from_probs(probs, labels, clusters=clusters)


def find_truths() -> dict[str, float]:
    """Compute the true figures of the calibrated model by quadrature over its quantiles."""
    p = betaincinv(A, B, (np.arange(200_000) + 0.5) / 200_000)
    events, others = p / p.sum(), (1 - p) / (1 - p).sum()
    precision = (np.cumsum(p[::-1]) / np.arange(1, len(p) + 1))[::-1]
    brier, rate = float((p * (1 - p)).mean()), A / (A + B)
    return {
        "accuracy": float(np.maximum(p, 1 - p).mean()),
        "brier": brier,
        "brier_skill": 1 - brier / (rate * (1 - rate)),
        "calibration_slope": 1.0,
        "oe_ratio": 1.0,
        "auroc": float((events * (np.cumsum(others) - 0.5 * others)).sum()),
        "average_precision": float((events * precision).sum()),
        **dict.fromkeys(CALIBRATED, 0.0),
        # The gap keeps its sign, so that binning and smoothing leave its mean as it is.
        **{f"{name}, off": 0.2 * rate for name in SHIFTED},
    }


def find_intervals(
    probability: np.ndarray,
    happened: np.ndarray,
    clusters: np.ndarray,
    names: tuple[str, ...],
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Compute the intervals of `evaluate` of some metrics, without its tables and verdict."""
    predictions = Predictions.from_events(probability, happened, clusters=clusters)
    measures = choose_measures(names, 15, event="event")
    ranks, states = RankState(), {name: m.build() for name, m in measures.items()}
    rows = make_row_states(measures, classes=False)
    own = [state for several in states.values() for state in several]
    shared = share_states([ranks, *rows.values(), *own])
    options = row_options(predictions, 1)
    values = compute_all(
        list(measures.values()), predictions.batches(), extra=list(shared.values()), **options
    )
    found = figure_intervals(
        measures,
        dict(zip(measures, map(float, values), strict=True)),
        {name: [shared[s.options()] for s in several] for name, several in states.items()},
        {name: shared[state.options()] for name, state in rows.items()},
        ranks,
        predictions,
        replace(RESAMPLING, seed=seed),
        [],
        find_units(predictions),
        options,
    )
    return {name: (found[name].low, found[name].high) for name in names}


def run_tests(
    probability: np.ndarray, happened: np.ndarray, clusters: np.ndarray, seed: int
) -> tuple[EventTests, bool]:
    """Run the tests of the verdict; return them, and whether it calls the model off."""
    plan, units = replace(RESAMPLING, seed=seed), Units(clusters=clusters)
    tests = run_event_tests(RankState(), probability, happened, units, plan)
    nothing = Span(0.0, 0.0, 0.0)  # the state "off" follows from the p-values alone
    verdict = conclude_events(
        event="event",
        num_rows=len(happened),
        num_events=int(happened.sum()),
        mean=float(probability.mean()),
        gap=nothing,
        ratio=None,
        slope=None,
        error=nothing,
        p_total=tests.total,
        p_slope=tests.slope,
        p_local=tests.local,
        place=None,
        chance_ece=0.0,
        level=RESAMPLING.level,
        expected=float(probability.sum()),
        observed=int(happened.sum()),
    )
    return tests, verdict.state == OFF


def simulate_rows(
    groups: int, size: int, correlation: float, sets: int, chunk: int
) -> tuple[Counter[str], Counter[str]]:
    """Count the sets on which each test alarms and each interval holds the truth, and all sets."""
    rng = np.random.default_rng((groups, round(100 * correlation), chunk))
    truths, counts, tried = find_truths(), Counter[str](), Counter[str]()
    for trial in range(chunk * CHUNK, chunk * CHUNK + sets):
        drawn = draw(groups, size, correlation, 1.0, rng)
        tests, off = run_tests(*drawn, trial)
        alarms = dict(zip(ALARMS[:3], (p < 0.05 for p in tests), strict=True))
        rows = draw_classes(groups, size, correlation, rng)
        how = {"metrics": ["accuracy"], "resamples": RESAMPLING.resamples, "seed": trial}
        by_class = evaluate(rows, **how).verdict.state == OFF
        counts.update({**alarms, "verdict": off, "verdict of classes": by_class})
        tried.update(ALARMS)
        ends = find_intervals(*drawn, (*SMOOTH, *CALIBRATED), trial)
        again = find_intervals(*draw(groups, size, correlation, 1.0, rng), SMOOTH, trial)
        wanted = tuple(name for name, each in SHIFTED.items() if trial % each == 0)
        wrong = find_intervals(*draw(groups, size, correlation, 0.8, rng), wanted, trial)
        wrong = {f"{name}, off": span for name, span in wrong.items()}
        for name, (low, high) in [*ends.items(), *again.items(), *wrong.items()]:
            counts[name] += low <= truths[name] <= high
            tried[name] += 1
    return counts, tried


def clusters_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """Tests and intervals of clustered rows."""
    words = (
        f"{plan.trials:,} sets a line: clusters x rows, and the correlation ρ of a Gaussian copula "
        f"in clusters; {RESAMPLING.resamples} resamples. First how often a calibrated model raises "
        "an alarm at 5%: each test alone (as many events as said; slope 1; along the scale), the "
        f"verdict on events, which shares its 5% among them, and that on {CLASSES} classes. Then "
        f"how often 95% intervals hold the truth: smooth figures of twice as many sets, and "
        "calibration errors; *off* is a model whose events are a fifth rarer than said (of ici a "
        "fifth and of smooth_ece a twentieth of the sets)."
    )

    def lines() -> Iterator[list[str]]:
        columns = [*ALARMS, *find_truths()]
        yield ["clusters x rows", "ρ", *columns]
        cells = [
            (*shape, correlation)
            for shape in SHAPES
            for correlation in CORRELATIONS
            if plan.wants(f"{shape[0]} x {shape[1]}", f"{correlation:g}")
        ]
        sizes = [min(CHUNK, plan.trials - begin) for begin in range(0, plan.trials, CHUNK)]
        cases = [(*cell, size, chunk) for cell in cells for chunk, size in enumerate(sizes)]
        found = plan.share(simulate_rows, cases)
        for groups, size, correlation in cells:
            parts = [next(found) for _ in sizes]
            counts, tried = (sum(each, Counter[str]()) for each in zip(*parts, strict=True))
            shares = (f"{counts[name] / tried[name]:.1%}" for name in columns)
            yield [f"{groups} x {size}", f"{correlation:g}", *shares]

    return "Rows in clusters", words, lines()


TOTAL_SHAPES = ((12, 100), (40, 50), (200, 10))
TOTAL_CORRELATIONS = (0.05, 0.5, 0.99)
TOTAL_LAWS = {"40%": (2.0, 3.0), "10%": (1.0, 9.0), "1%": (0.5, 50.0)}


def simulate_totals(groups: int, size: int, correlation: float, mean: str, sets: int) -> int:
    """Count the sets on which the test of the total alarms, of a calibrated model."""
    rng = np.random.default_rng((groups, round(100 * correlation)))
    clusters, quantiles = np.repeat(np.arange(groups), size), betaincinv(*TOTAL_LAWS[mean], RANKS)
    alarms = 0
    for trial in range(sets):
        p = np.interp(draw_ranks(clusters, 0.5, rng), RANKS, quantiles)
        happened = draw_ranks(clusters, correlation, rng) < p
        how = {"weights": np.ones(len(p)), "clusters": clusters, "resamples": 400, "seed": trial}
        alarms += total_test(p, happened, **how) < 0.05
    return alarms


def totals_part(plan: Plan) -> tuple[str, str, Iterator[list[str]]]:
    """The test of the total of clustered rows, to very like rows."""
    words = (
        f"{plan.trials:,} sets a line (± one standard error), 400 resamples, drawn as above, all "
        "calibrated: how often the test of the total is below 5%. The verdict asks for 2.5%, and "
        "for ten expected events. At ρ = 0.99 nearly all rows of a cluster share their luck; then "
        "few events, or none, are common where few are expected. The test of independent rows "
        "that takes part is by the normal limit."
    )

    def lines() -> Iterator[list[str]]:
        yield ["mean probability", "clusters x rows", "ρ", "below 5%"]
        cells = [
            (*shape, correlation, mean, plan.trials)
            for mean in TOTAL_LAWS
            for shape in TOTAL_SHAPES
            for correlation in TOTAL_CORRELATIONS
            if plan.wants(mean, f"{shape[0]} x {shape[1]}", f"{correlation:g}")
        ]
        found = plan.share(simulate_totals, cells)
        for groups, size, correlation, mean, sets in cells:
            share = rate(next(found), sets)
            yield [mean, f"{groups} x {size}", f"{correlation:g}", share]

    return "The total of rows in clusters", words, lines()
