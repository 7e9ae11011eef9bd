"""Do intervals of clustered rows hold the truth, and are alarms rarely false?

    python benchmarks/event_coverage.py --trials 2000

Rows of a cluster are alike by a Gaussian copula: with v = Φ(√ρ u + √(1 − ρ) e), u common to a
cluster, a row is an event where v < q(p), so that it is one with chance q(p) whatever ρ is.
Probabilities p are Beta(2, 3). A calibrated model has q(p) = p. One that is off has q(p) = 0.8 p,
whose ECE is 0.2 E p whatever the bins. Of five classes, v picks the class from the cumulated
probabilities.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
from scipy.special import betaincinv, ndtr, softmax

from calibrant import Predictions
from calibrant.evaluation import evaluate
from calibrant.evaluation.bootstrap import share_states
from calibrant.evaluation.evaluate import choose_measures, find_units, row_options
from calibrant.evaluation.event_tests import EventTests, run_event_tests
from calibrant.evaluation.intervals import Plan, Units, figure_intervals, make_row_states
from calibrant.evaluation.verdict import OFF, Span, conclude_events
from calibrant.metrics.base import compute_all
from calibrant.metrics.rank_state import RankState

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
MORE = 3  # times as many sets more for the smooth figures, which are cheap
ALARMS = ("total", "slope", "whole", "verdict", "verdict of classes")
CLASSES, CLASS_TRIALS = 5, 500
PLAN = Plan(resamples=200)
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
        "ece": 0.0,
        "ece, off": 0.2 * rate,
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
        replace(PLAN, seed=seed),
        [],
        find_units(predictions),
        options,
    )
    return {name: (found[name].low, found[name].high) for name in names}


def run_tests(
    probability: np.ndarray, happened: np.ndarray, clusters: np.ndarray, seed: int
) -> tuple[EventTests, bool]:
    """Run the tests of the verdict; return them, and whether it calls the model off."""
    plan, units = replace(PLAN, seed=seed), Units(clusters=clusters)
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
        level=PLAN.level,
        expected=float(probability.sum()),
    )
    return tests, verdict.state == OFF


def one_cell(groups: int, size: int, correlation: float, trials: int) -> dict[str, float]:
    """Return the share of sets on which each test alarms and each interval holds the truth."""
    rng = np.random.default_rng(groups + round(100 * correlation))
    truths = find_truths()
    counts = dict.fromkeys((*ALARMS, *truths), 0)
    for trial in range(trials):
        drawn = draw(groups, size, correlation, 1.0, rng)
        tests, off = run_tests(*drawn, trial)
        for name, p_value in zip(ALARMS[:3], tests, strict=True):
            counts[name] += p_value < 0.05
        counts["verdict"] += off
        found = find_intervals(*drawn, (*SMOOTH, "ece"), trial)
        wrong = find_intervals(*draw(groups, size, correlation, 0.8, rng), ("ece",), trial)
        for name, (low, high) in [*found.items(), ("ece, off", wrong["ece"])]:
            counts[name] += low <= truths[name] <= high
    for name, count in count_more(groups, size, correlation, MORE * trials).items():
        counts[name] += count
    some = min(trials, CLASS_TRIALS)
    for trial in range(some):
        rows = draw_classes(groups, size, correlation, rng)
        how = {"metrics": ["accuracy"], "resamples": PLAN.resamples, "seed": trial}
        counts["verdict of classes"] += evaluate(rows, **how).verdict.state == OFF
    sets = {**dict.fromkeys(SMOOTH, (1 + MORE) * trials), "verdict of classes": some}
    return {name: count / sets.get(name, trials) for name, count in counts.items()}


def count_more(groups: int, size: int, correlation: float, trials: int) -> dict[str, int]:
    """Count on how many more sets the interval of each smooth figure holds the truth."""
    rng = np.random.default_rng((groups, round(100 * correlation)))
    truths, counts = find_truths(), dict.fromkeys(SMOOTH, 0)
    for trial in range(trials):
        drawn = draw(groups, size, correlation, 1.0, rng)
        for name, (low, high) in find_intervals(*drawn, SMOOTH, trial).items():
            counts[name] += low <= truths[name] <= high
    return counts


def clusters_part(trials: int) -> tuple[str, str, Iterator[list[str]]]:
    """Tests and intervals of clustered rows."""
    words = (
        f"{trials:,} sets a line: clusters x rows, and the correlation ρ of a Gaussian copula in "
        f"clusters; {PLAN.resamples} resamples. First how often a calibrated model raises an alarm "
        "at 5%: each test alone (as many events as said; slope 1; along the scale), the verdict on "
        f"events, which shares its 5% among them, and that on {CLASSES} classes (of "
        f"{min(trials, CLASS_TRIALS):,} sets). Then how often 95% intervals hold the truth: smooth "
        f"figures of {(1 + MORE) * trials:,} sets, and ECE; the last column is for a model whose "
        "events are a fifth rarer than said."
    )

    def lines() -> Iterator[list[str]]:
        yield ["clusters x rows", "ρ", *ALARMS, *find_truths()]
        cells = [(*shape, correlation) for shape in SHAPES for correlation in CORRELATIONS]
        with ProcessPoolExecutor(min(len(cells), os.cpu_count() or 1)) as pool:
            found = pool.map(one_cell, *zip(*cells, strict=True), [trials] * len(cells))
            for (groups, size, correlation), shares in zip(cells, found, strict=True):
                numbers = map("{:.1%}".format, shares.values())
                yield [f"{groups} x {size}", f"{correlation:g}", *numbers]

    return "Rows in clusters", words, lines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000)
    heading, words, lines = clusters_part(parser.parse_args().trials)
    print(f"## {heading}\n\n{words}\n")
    for number, line in enumerate(lines):
        print("| " + " | ".join(line) + " |", flush=True)
        if number == 0:
            print("|" + "---|" * len(line), flush=True)


if __name__ == "__main__":
    main()
