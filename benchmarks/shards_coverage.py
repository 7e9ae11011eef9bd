"""Simulate the intervals of shards whose rows have weights and clusters, from their sums.

Streams of rows with a known truth are summed in several pieces, as workers would, and the share of
intervals that hold the truth is counted. The truth is the mean over a population of 10^6 rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
from copy import deepcopy
from pathlib import Path

import numpy as np

from calibrant import Predictions
from calibrant.evaluation.evaluate import choose_measures, row_options
from calibrant.evaluation.intervals import Plan
from calibrant.evaluation.shards import evaluate as entry
from calibrant.evaluation.shards.conclude import Judge
from calibrant.evaluation.shards.sums import Job, describe
from calibrant.predictions.shards import Chunk, File, Piece

NAMES = ["oe_ratio", "brier", "nll", "ece", "auroc", "calibration_slope", "brier_skill"]


def draw(generator: np.random.Generator, clusters: int, size: int) -> Predictions:
    """Draw clusters of rows that share part of their log-odds, with weights."""
    rows = clusters * size
    home = np.repeat(np.arange(clusters), size)
    shared = generator.normal(size=clusters)[home]
    place = generator.normal(size=rows) + shared - 1
    off = 0.4 * generator.normal(size=clusters)[home]  # what the model does not know
    chance = 1 / (1 + np.exp(-place))
    happened = generator.random(rows) < 1 / (1 + np.exp(-(0.8 * place + off)))
    weights = generator.gamma(4.0, 0.25, size=rows) + 0.05
    order = generator.permutation(rows)  # clusters span the pieces
    return Predictions.from_events(
        chance[order], happened[order], weights=weights[order], clusters=home[order]
    )


def judge(predictions: Predictions, pieces: int, *, intervals: bool = True) -> Judge:
    """Sum the rows in pieces, and merge."""
    options = row_options(predictions, 1)
    measures = choose_measures(NAMES, 15, event="event")
    plan = Plan(0.95, 200, 0) if intervals else None
    _, empty = entry._make_sums(predictions, measures, 15, plan, options, "event", exact=True)
    first = Chunk(predictions, 0, len(predictions), {}, True, False)
    job = Job(entry.make_reading(), empty, describe(first), options, 0)
    total = deepcopy(empty)
    bounds = np.linspace(0, len(predictions), pieces + 1).astype(int)
    file = File("rows", None, "rows", {})
    for start, stop in itertools.pairwise(bounds):
        part = deepcopy(empty)
        some = predictions.take(np.arange(start, stop))
        job._add(part, Chunk(some, start, stop - start, {}, True, False), Piece(file, (0,), 0, 0))
        total.merge(part)
    return Judge(total, measures, plan=plan, num_bins=15, event="event")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--clusters", type=int, default=150)
    parser.add_argument("--size", type=int, default=20)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/shards_coverage.json"))
    given = parser.parse_args()
    found = json.loads(given.results.read_text()) if given.results.exists() else {}
    key = f"{given.clusters}x{given.size}"
    mine = found.setdefault(key, {"repeats": 0, "held": dict.fromkeys(NAMES, 0)})
    whole = judge(draw(np.random.default_rng(10**6), 50_000, 20), 4, intervals=False)
    truth = whole.values
    # The error of the population itself: its plug-in value is not biased with so many rows.
    while mine["repeats"] < given.repeats:
        made = judge(draw(np.random.default_rng(mine["repeats"]), given.clusters, given.size), 5)
        bounds = made.intervals()
        for name in NAMES:
            low, high = bounds[name].low, bounds[name].high
            mine["held"][name] += int(low <= truth[name] <= high)
        mine["repeats"] += 1
        if mine["repeats"] % 20 == 0:
            given.results.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            print(mine, flush=True)
    given.results.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
