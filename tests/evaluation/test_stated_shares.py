"""Rows are judged for the shares that their classes will have."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant
from calibrant import InputError, Predictions
from calibrant.evaluation.stated_shares import weight_to_shares


def draw(number, rate, seed=0):
    """Events that are calibrated where three in ten happen."""
    rng = np.random.default_rng(seed)
    happened = rng.random(number) < rate
    odds = 2 * (rng.normal(size=number) + 2 * happened) - 2 + np.log(3 / 7)
    return Predictions.from_events(odds, happened, is_logits=True, event="fraud")


ROWS = draw(4000, 0.3)


def test_a_model_that_holds_here_is_off_for_another_share():
    assert calibrant.evaluate(ROWS).verdict.state == "holds"
    verdict = calibrant.evaluate(ROWS, prevalence=0.05).verdict
    assert (verdict.state, verdict.direction) == ("off", "too high")
    assert verdict.headline.startswith("With fraud 5.0% instead of 29.9%")
    assert "label shift" in verdict.sentences[0]
    assert any("calibrant.adapt" in sentence for sentence in verdict.sentences)
    assert verdict.rate == pytest.approx(0.05)


def test_an_adapted_calibrator_holds_for_the_stated_share():
    adapted = calibrant.adapt(None, source=draw(4000, 0.3, seed=1), prevalence=0.05)
    after = calibrant.calibrators.apply(adapted, ROWS)
    verdict = calibrant.evaluate(after, prevalence=0.05).verdict
    assert verdict.state != "off"


def test_figures_are_those_of_rows_with_that_share():
    there = draw(100_000, 0.05, seed=2)
    names = ["brier", "nll", "oe_ratio", "calibration_slope", "auroc"]
    said = calibrant.evaluate(draw(100_000, 0.3, seed=3), metrics=names, prevalence=0.05)
    for name in names:
        true = calibrant.evaluate(there, metrics=[name], intervals=False)[name].value
        assert said[name].value == pytest.approx(true, rel=0.05)
    assert said.settings["prevalence"] == {"no": 0.95, "fraud": 0.05}


def test_the_share_that_rows_have_changes_nothing():
    rate = float(np.mean(np.asarray(ROWS.labels)))
    plain = calibrant.evaluate(ROWS, metrics=["ece", "brier"], intervals=False)
    stated = calibrant.evaluate(ROWS, metrics=["ece", "brier"], intervals=False, prevalence=rate)
    for name in ("ece", "brier"):
        assert stated[name].value == pytest.approx(plain[name].value, rel=1e-9)


def test_classes_by_name_and_rows_that_do_not_count():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 900)
    logits = rng.normal(size=(900, 3)) + 2 * np.eye(3)[labels]
    labels[:50] = -1
    rows = Predictions.from_logits(logits, labels, class_names=["a", "b", "c"], ignore_index=-1)
    shares = {"a": 0.8, "b": 0.1, "c": 0.1}
    stated = weight_to_shares(rows, shares)
    kept = labels >= 0
    sums = np.bincount(labels[kept], stated.predictions.weights[kept])
    np.testing.assert_allclose(sums / sums.sum(), [0.8, 0.1, 0.1])
    verdict = calibrant.evaluate(rows, prevalence=shares, resamples=100).verdict
    assert verdict.headline.startswith("With the stated shares: ")
    assert "a 80.0% instead of" in verdict.sentences[0]


def test_own_weights_count_and_stay_named():
    weights = np.where(np.asarray(ROWS.labels) == 1, 2.0, 1.0)
    rows = Predictions.from_events(
        ROWS.array, ROWS.labels, is_logits=True, event="fraud", weights=weights
    )
    stated = weight_to_shares(rows, 0.05)
    # Weights by class alone are undone by the stated share.
    plain = weight_to_shares(ROWS, 0.05).predictions.weights
    ratio = stated.predictions.weights / plain
    np.testing.assert_allclose(ratio, ratio[0])
    sentences = calibrant.evaluate(rows, prevalence=0.05, resamples=100).verdict.sentences
    assert any(text.startswith("Rows are weighted: sampling") for text in sentences)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Predictions.from_multilabel(np.zeros((9, 2)), np.zeros((9, 2), int)), "to_events"),
        (Predictions.from_logits(np.zeros((2, 3, 4)), np.zeros((2, 4), int)), "dense"),
        (Predictions.from_options([[0.0, 1.0], [0.0, 1.0, 2.0]], [0, 1]), "options"),
        (Predictions.from_events(np.full(9, 0.5), np.zeros(9, int)), "no row is of event"),
    ],
)
def test_rows_without_single_classes_are_refused(rows, message):
    with pytest.raises(InputError, match=message):
        calibrant.evaluate(rows, prevalence=0.05)
