"""Estimates of shares agree with plain versions, and the fit test sees what it should."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.decisions import label_shift
from calibrant.decisions.label_shift import Rows
from tests.reference import label_shift as plain


def draw(number, shares, seed=0, distance=2.0, prior=None):
    """Normal rows around each class; logits of Bayes' rule, overconfident and biased."""
    rng = np.random.default_rng(seed)
    width = len(shares)
    labels = rng.choice(width, number, p=shares)
    features = rng.normal(size=(number, width)) + distance * np.eye(width)[labels]
    logits = 1.5 * (2.0 * features + np.log(shares if prior is None else prior))
    return logits + np.linspace(0, 1, width), labels


def make_rows(number, shares, seed=0, weighted=False, **options):
    logits, labels = draw(number, shares, seed, **options)
    rng = np.random.default_rng(seed + 1)
    weights = rng.uniform(0.5, 1.5, number) if weighted else np.ones(number)
    return Rows(logits, weights / weights.mean(), None, labels)


def fit(source, target):
    """Correction, probabilities of both samples, and shares in the source."""
    correction = label_shift.fit_correction(source.logits, source.labels, source.weights)
    probs = label_shift.apply_correction(source.logits, correction)
    new = label_shift.apply_correction(target.logits, correction)
    return correction, probs, new, source.weights @ probs / source.weights.sum()


EVENT = np.array([0.7, 0.3])
FOUR = np.array([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("shares", [EVENT, FOUR])
def test_correction_is_that_of_a_general_minimiser(shares):
    rows = make_rows(300, shares, weighted=True)
    fitted = label_shift.fit_correction(rows.logits, rows.labels, rows.weights)
    slope, intercept = plain.bias_corrected_temperature(rows.logits, rows.labels, rows.weights)
    assert fitted.slope == pytest.approx(slope, abs=1e-5)
    np.testing.assert_allclose(fitted.intercept, intercept, atol=1e-5)


def test_correction_from_a_start_ends_where_a_fresh_fit_does():
    rows = make_rows(400, FOUR)
    start = label_shift.fit_correction(rows.logits, rows.labels, rows.weights)
    weights = np.random.default_rng(3).standard_exponential(400)
    fresh = label_shift.fit_correction(rows.logits, rows.labels, weights)
    again = label_shift.fit_correction(rows.logits, rows.labels, weights, start)
    assert again.slope == pytest.approx(fresh.slope, abs=1e-3)
    np.testing.assert_allclose(again.intercept, fresh.intercept, atol=1e-3)


def test_correction_of_far_too_large_scores_converges():
    rows = make_rows(400, FOUR)
    fitted = label_shift.fit_correction(100 * rows.logits, rows.labels, rows.weights)
    wanted = label_shift.fit_correction(rows.logits, rows.labels, rows.weights)
    assert 100 * fitted.slope == pytest.approx(wanted.slope, rel=0.02)


@pytest.mark.parametrize("shares", [EVENT, FOUR])
@pytest.mark.parametrize("prior_rows", [0.0, 1.0])
def test_em_is_that_of_plain_loops(shares, prior_rows):
    source = make_rows(500, shares, weighted=True)
    target = make_rows(60, shares[::-1], seed=5, weighted=True, prior=shares)
    _, _, new, base = fit(source, target)
    found = label_shift.estimate_em(
        new, base, target.weights, prior_rows=prior_rows, tolerance=1e-13
    )
    wanted = plain.expectation_maximisation(new, base, target.weights, prior_rows=prior_rows)
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_em_of_the_source_itself_finds_no_shift():
    source = make_rows(500, FOUR, weighted=True)
    _, probs, _, base = fit(source, source)
    np.testing.assert_allclose(
        label_shift.estimate_em(probs, base, source.weights), base, atol=1e-6
    )


@pytest.mark.parametrize("shares", [EVENT, FOUR])
def test_bbse_is_a_linear_solve(shares):
    source = make_rows(500, shares, weighted=True)
    target = make_rows(400, shares[::-1], seed=5, weighted=True, prior=shares)
    _, probs, new, base = fit(source, target)
    guess, new_guess = (label_shift.predict_evenly(each, base) for each in (probs, new))
    wanted, confusion = plain.black_box(
        guess, source.labels, source.weights, new_guess, target.weights, len(shares)
    )
    table = label_shift.tabulate(guess, source.labels, source.weights, len(shares), len(shares))
    np.testing.assert_allclose(table, confusion, atol=1e-12)
    seen = np.bincount(new_guess, target.weights, len(shares)) / target.weights.sum()
    np.testing.assert_allclose(label_shift.estimate_bbse(table, seen), wanted, atol=1e-10)


def test_bbse_has_no_negative_share():
    shares = label_shift.estimate_bbse(np.array([[0.9, 0.3], [0.1, 0.7]]), np.array([0.95, 0.05]))
    np.testing.assert_allclose(shares, [1.0, 0.0])


@pytest.mark.parametrize("shares", [EVENT, FOUR])
def test_fit_test_warns_falsely_one_time_in_twenty(shares):
    off = 0
    for seed in range(100):
        source = make_rows(600, shares, seed=2 * seed)
        target = make_rows(300, shares[::-1], seed=2 * seed + 1, prior=shares)
        _, probs, new, base = fit(source, target)
        estimate = label_shift.estimate_em(new, base, target.weights)
        off += label_shift.test_fit(source, target, probs, new, estimate).is_off
    assert off <= 12  # 5 expected, five in ten thousand above 12


@pytest.mark.parametrize("shares", [EVENT, FOUR])
def test_fit_test_sees_rows_that_are_harder(shares):
    source = make_rows(3000, shares)
    target = make_rows(2000, shares[::-1], seed=1, distance=1.3, prior=shares)
    _, probs, new, base = fit(source, target)
    estimate = label_shift.estimate_em(new, base, target.weights)
    found = label_shift.test_fit(source, target, probs, new, estimate)
    assert found.p_value < 0.001
    assert found.num_bins > len(shares)
    assert found.is_refused


def test_fit_test_counts_clusters_not_rows():
    shares = EVENT
    once = make_rows(150, shares), make_rows(80, shares, seed=9)
    _, probs, new, base = fit(*once)
    estimate = label_shift.estimate_em(new, base, once[1].weights)
    alone = label_shift.test_fit(*once, probs, new, estimate)
    copied = [
        Rows(*(np.tile(part, (5, 1)) if part.ndim == 2 else np.tile(part, 5) for part in parts))
        for parts in ((r.logits, r.weights, np.arange(len(r.weights)), r.labels) for r in once)
    ]
    found = label_shift.test_fit(*copied, np.tile(probs, (5, 1)), np.tile(new, (5, 1)), estimate)
    naive = label_shift.test_fit(
        *(rows._replace(clusters=None) for rows in copied),
        np.tile(probs, (5, 1)),
        np.tile(new, (5, 1)),
        estimate,
    )
    assert alone.num_bins < found.num_bins or alone.p_value == pytest.approx(found.p_value)
    assert naive.p_value < found.p_value


def test_fit_is_not_tested_with_too_few_rows():
    source, target = make_rows(60, FOUR), make_rows(12, FOUR, seed=1)
    _, probs, new, base = fit(source, target)
    found = label_shift.test_fit(source, target, probs, new, base)
    assert found.p_value is None
    assert not found.is_off
    assert not found.is_refused


def test_intervals_hold_the_true_share_most_of_the_time():
    held, widths = 0, []
    truth = np.array([0.9, 0.1])
    for seed in range(40):
        source = make_rows(400, EVENT, seed=2 * seed)
        target = make_rows(200, truth, seed=2 * seed + 1, prior=EVENT)
        correction, _, new, base = fit(source, target)
        shares = label_shift.estimate_em(new, base, target.weights)
        draws = np.array(
            [
                drawn
                for _, drawn in label_shift.resample_shares(
                    source, target, correction, shares, 60, seed
                )
            ]
        )
        low, high = label_shift.bound_shares(shares, draws, 200, 0.95, seed)
        held += bool((low <= truth).all() and (truth <= high).all())
        widths.append(high[1] - low[1])
    assert held >= 33  # 38 expected
    assert np.mean(widths) < 0.15


def test_a_class_that_seems_absent_keeps_an_upper_bound():
    shares = np.array([1 - 1e-6, 1e-6])
    low, high = label_shift.bound_shares(shares, np.tile(shares, (400, 1)), 100, 0.95, 0)
    assert low[1] <= 1e-6
    assert 0.015 < high[1] < 0.035  # Jeffreys: 2.5 rows of 100


def test_few_resamples_are_drawn_where_rows_and_classes_are_many():
    small = make_rows(100, EVENT)
    assert label_shift.limit_resamples(small, small, 400) == 400
    wide = Rows(
        np.broadcast_to(np.zeros(1), (50_000, 1000)), np.ones(50_000), None, np.zeros(0, int)
    )
    assert label_shift.limit_resamples(wide, wide, 400) == 100


def test_fit_test_keeps_its_level_with_few_rows_of_a_class():
    prior = np.array([0.5, 0.39, 0.1, 0.01])
    off = 0
    for seed in range(60):
        source = make_rows(600, prior, seed=2 * seed)
        target = make_rows(500, FOUR, seed=2 * seed + 1, prior=prior)
        if np.bincount(source.labels, minlength=4).min() == 0:
            continue
        _, probs, new, base = fit(source, target)
        estimate = label_shift.estimate_em(new, base, target.weights)
        off += label_shift.test_fit(source, target, probs, new, estimate).is_off
    assert off <= 8  # 3 expected
