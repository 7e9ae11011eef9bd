"""Tests of single classes: exact tails, weights and clusters, and few false alarms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import binom

from calibrant import Predictions, evaluate
from calibrant.evaluation.class_tests import (
    ClassOddsState,
    run_class_tests,
    run_unit_class_tests,
)
from calibrant.evaluation.clustered import _exchangeable_p_value, _read_rows, slope_direction
from calibrant.evaluation.groups.poisson_binomial import error_count_tails
from calibrant.functional.blocks import blocks


def draw(seed, rows, classes, sharpness=2.0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, classes)) * sharpness
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random((rows, 1))).sum(1).clip(max=classes - 1)
    return probs, labels


def fill(probs, labels):
    state = ClassOddsState()
    for block in blocks(probs, labels, from_logits=False):
        state.update(block)
    return state


@pytest.mark.parametrize(("rows", "shift"), [(400, 0), (400, 3), (3000, -3), (60, 4)])
def test_totals_have_the_exact_poisson_binomial_tail(rows, shift):
    """The p-value of a class is that of the distribution of its number of rows."""
    probs, labels = draw(1, rows, 3)
    spread = np.sqrt((probs[:, 0] * (1 - probs[:, 0])).sum())
    seen = round(probs[:, 0].sum() + shift * spread)
    labels = np.where(np.arange(rows) < seen, 0, 1)
    tests = run_class_tests(fill(probs, labels))
    exact = min(1.0, 2 * min(error_count_tails(probs[:, 0], seen)))
    assert tests.total[0] == pytest.approx(exact, rel=0.06)
    assert tests.observed[0] == pytest.approx(seen / rows)
    assert tests.expected[0] == pytest.approx(probs[:, 0].mean())


def test_slope_scores_have_the_tail_of_many_draws():
    rows = 800
    probs, _ = draw(2, rows, 4, sharpness=1.0)
    rng = np.random.default_rng(3)
    x = np.log(probs[:, 1]) - np.log1p(-probs[:, 1])
    x = np.floor(2 * x) / 2 + 0.25  # the middle of its cell, half a unit wide
    spread = probs[:, 1] * (1 - probs[:, 1])
    leaning = x - (spread * x).sum() / spread.sum()
    labels = (probs.cumsum(1) < rng.random((rows, 1))).sum(1).clip(max=3)
    score = (leaning * ((labels == 1) - probs[:, 1])).sum()
    drawn = ((rng.random((20_000, rows)) < probs[:, 1]) - probs[:, 1]) @ leaning
    expected = 2 * min((drawn >= score).mean(), (drawn <= score).mean())
    tests = run_class_tests(fill(probs, labels))
    assert tests.slope[1] == pytest.approx(expected, abs=0.03)
    assert np.sign(tests.leaning[1]) == np.sign(score)


def test_batches_add_up_and_blocks_do_not_matter():
    probs, labels = draw(4, 500, 5)
    whole, parts = fill(probs, labels), fill(probs[:123], labels[:123])
    parts.merge(fill(probs[123:], labels[123:]))
    assert torch.allclose(whole.totals, parts.totals, atol=1e-9)
    wide, wide_labels = draw(5, 300, 80)
    tests = run_class_tests(fill(wide, wide_labels))
    state = fill(wide.astype(np.float32), wide_labels)
    assert run_class_tests(state).total == pytest.approx(tests.total, abs=1e-3)


def test_a_class_that_is_too_high_is_found_among_many_and_named_first():
    probs, labels = draw(6, 4000, 6)
    logits = np.log(probs)
    logits[:, 4] += 1.0
    wrong = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    tests = run_class_tests(fill(wrong, labels))
    assert tests.find_off(0.025)[0] == (4, "too high")
    steep = probs**1.6
    steep /= steep.sum(1, keepdims=True)
    faults = run_class_tests(fill(steep, labels)).find_off(0.025)
    assert {fault for _, fault in faults} == {"too extreme"}


def test_few_false_alarms_of_classes():
    """Of 300 calibrated sets with rare classes at most 5% have a class called off."""
    rng = np.random.default_rng(7)
    tail = np.log(100) * np.arange(20) / 19
    logits = rng.normal(size=(600, 20)) * 2.5 - tail
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    cumulative, alarms = probs.cumsum(1), 0
    for _ in range(300):
        labels = (cumulative < rng.random((600, 1))).sum(1).clip(max=19)
        alarms += run_class_tests(fill(probs, labels)).p_value < 0.05
    assert alarms <= binom.ppf(0.999, 300, 0.05)


def test_weights_are_free_of_scale_and_few_clusters_test_nothing():
    probs, labels = draw(8, 900, 3)
    weights = np.random.default_rng(9).gamma(2.0, size=900)
    clusters = np.arange(900) // 30

    def run(weights, clusters):
        rows = blocks(probs, labels, from_logits=False)
        return run_unit_class_tests(rows, weights, clusters, resamples=500)

    once, again = run(weights, clusters), run(10 * weights, clusters)
    assert once.adjusted == pytest.approx(again.adjusted)
    assert once.expected == pytest.approx(np.average(probs, axis=0, weights=weights))
    assert np.isnan(run(None, np.arange(900) // 200).adjusted).all()


def test_the_table_of_classes_counts_rows_whatever_the_scale_of_weights():
    probs, labels = draw(8, 900, 3)
    weights = np.random.default_rng(9).gamma(2.0, size=900)
    tables = [
        evaluate(Predictions.from_probs(probs, labels, weights=w), intervals=False).classes
        for w in (weights, weights / weights.sum())
    ]
    shares = [weights[labels == k].sum() / weights.mean() for k in range(3)]
    for table in tables:
        assert table["count"].tolist() == np.rint(shares).tolist()
        assert table["predicted"].sum() == pytest.approx(900, abs=1)
        assert table["frequency"].tolist() == pytest.approx([share / 900 for share in shares])


def test_clusters_of_like_rows_raise_no_alarm_where_independence_would():
    """Thirty copies of each row: the sums vary thirty times as much as independence says."""
    rng = np.random.default_rng(10)
    plain = robust = 0
    for seed in range(60):
        probs, labels = draw(100 + seed, 40, 3, sharpness=1.0)
        rows, truth = np.repeat(probs, 30, axis=0), np.repeat(labels, 30)
        plain += run_class_tests(fill(rows, truth)).p_value < 0.05
        found = run_unit_class_tests(
            blocks(rows, truth, from_logits=False),
            None,
            np.repeat(np.arange(40), 30),
            resamples=300,
            seed=int(rng.integers(1 << 30)),
        )
        robust += found.p_value < 0.05
    assert plain > 20
    assert robust <= binom.ppf(0.999, 60, 0.05)


def test_no_class_is_surer_than_the_law_of_equally_correlated_rows():
    """The law is written out in test_clustered; it counts where few clusters' scores are skewed."""
    rng = np.random.default_rng(14)
    clusters, counted = np.repeat(np.arange(15), 20), 0
    for seed in range(6):
        logits = rng.normal(size=(15, 3))[clusters] + rng.normal(size=(300, 3))
        probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        place = ndtr(np.sqrt(0.5) * (rng.normal(size=15)[clusters] + rng.normal(size=300)))
        labels = (probs.cumsum(1) < place[:, None]).sum(1).clip(max=2)
        weights = rng.uniform(0.5, 2, 300)
        found = run_unit_class_tests(
            blocks(probs, labels, from_logits=False), weights, clusters, resamples=300, seed=seed
        )
        rows = _read_rows(300, weights, clusters)
        for k, p in enumerate(probs.T):
            for p_value, direction in (
                (found.total[k], np.ones(300)),
                (found.slope[k], slope_direction(p, weights)),
            ):
                law = _exchangeable_p_value(rows, p, labels == k, direction)
                assert p_value >= law - 1e-9
                counted += p_value == pytest.approx(law, rel=1e-9)
        assert (found.adjusted >= np.stack((found.total, found.slope)) - 1e-12).all()
    assert 5 < counted < 36


def test_certain_classes_are_off_only_if_something_impossible_happens():
    probs = np.eye(4)[np.arange(40) % 4]
    sure = run_class_tests(fill(probs, np.arange(40) % 4))
    assert sure.total == pytest.approx(np.ones(4))
    assert np.isnan(sure.slope).all()
    labels = np.arange(40) % 4
    labels[0] = 3
    wrong = run_class_tests(fill(probs, labels))
    assert wrong.total[0] == wrong.total[3] == 0
    assert wrong.find_off(0.025)[0][1] in ("too high", "too low")
