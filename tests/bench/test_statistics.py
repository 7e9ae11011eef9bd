"""Means, paired tests and power against references written out in plain Python."""

from __future__ import annotations

import itertools
import math
import statistics as standard

import numpy as np
import pytest

from calibrant.bench.tables import statistics as ours
from calibrant.functional.statistics import holm
from tests.helpers.students_t import t_edge, t_tail

SAMPLES = [
    [0.013, 0.011, 0.017],
    [-0.4, 1.2, 0.3, 0.9, -0.1],
    [2.0, 2.5, 1.5, 2.25, 2.75, 1.9, 2.2],
]


@pytest.mark.parametrize("values", SAMPLES)
def test_mean_and_standard_error(values):
    mean = ours.mean_of(values)
    assert mean.mean == pytest.approx(sum(values) / len(values), rel=1e-12)
    assert mean.error == pytest.approx(standard.stdev(values) / math.sqrt(len(values)), rel=1e-12)
    assert mean.count == len(values)


def test_one_value_has_no_error_and_none_has_no_mean():
    assert ours.mean_of([3.0]) == ours.Mean(3.0, None, 1)
    assert math.isnan(ours.mean_of([]).mean)


@pytest.mark.parametrize("values", SAMPLES)
def test_paired_test_is_students(values):
    difference = ours.paired(values)
    count, error = len(values), standard.stdev(values) / math.sqrt(len(values))
    mean = sum(values) / count
    assert difference.p == pytest.approx(2 * t_tail(abs(mean) / error, count - 1), rel=1e-4)
    assert difference.low == pytest.approx(mean - t_edge(count - 1) * error, rel=1e-5)
    assert difference.high == pytest.approx(mean + t_edge(count - 1) * error, rel=1e-5)


def test_fewer_than_three_pairs_are_not_tested():
    assert not ours.paired([0.1]).tested
    two = ours.paired([0.1, 0.2])
    assert not two.tested
    assert two.low is not None


def test_differences_all_alike_leave_no_doubt():
    assert ours.paired([0.0, 0.0, 0.0]).p == 1.0
    assert ours.paired([0.25, 0.25, 0.25]).p == 0.0


def test_pairs_are_of_common_seeds():
    difference = ours.paired_by_seed(
        {0: 3.0, 1: 5.0, 2: 9.0, 7: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0, 8: 0.0}
    )
    assert difference.count == 3
    assert difference.mean == pytest.approx(14 / 3)


def test_holm_is_the_closed_bonferroni_test():
    generator = np.random.default_rng(0)
    for _ in range(20):
        values = list(generator.uniform(0, 0.3, 5))
        for place, adjusted in enumerate(holm(values)):
            subsets = [
                subset
                for size in range(1, 6)
                for subset in itertools.combinations(range(5), size)
                if place in subset
            ]
            closed = max(min(1.0, len(s) * min(values[i] for i in s)) for s in subsets)
            assert adjusted == pytest.approx(closed, rel=1e-12)


def test_holm_leaves_what_was_not_tested():
    assert holm([None, 0.04, None]) == [None, 0.04, None]
    assert holm([]) == []


def test_best_and_those_not_told_from_it():
    runs = {
        "best": {0: 1.0, 1: 1.1, 2: 0.9},
        "near": {0: 1.2, 1: 1.0, 2: 1.05},
        "far": {0: 2.0, 1: 2.1, 2: 1.9},
        "few": {0: 1.0},
        "none": {},
    }
    assert ours.find_best_and_tied(runs, higher=False) == ("best", {"near"})
    best, tied = ours.find_best_and_tied(runs, higher=True)
    assert best == "far"
    assert not tied
    assert ours.find_best_and_tied({"none": {}}, higher=True) == (None, set())
    # A single lucky seed is no best where others have three.
    lucky = runs | {"lucky": {0: min(runs["best"].values()) - 1.0}}
    assert ours.find_best_and_tied(lucky, higher=False)[0] == "best"
    assert ours.find_best_and_tied({"one": {0: 2.0}, "two": {0: 1.0}}, higher=False)[0] == "two"
