"""Scorers, the display, and predictions of fitted classifiers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import config_context
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.naive_bayes import GaussianNB

import calibrant
from calibrant.core.errors import InputError
from calibrant.integrations.scikit_learn import (
    CalibrationScorer,
    ReliabilityDisplay,
    brier_scorer,
    classifier_predictions,
    ece_scorer,
    nll_scorer,
)

NAMES = np.array(["ant", "bee", "cat"])


def data(classes=3, rows=300):
    X, y = make_classification(
        rows, 8, n_informative=6, n_classes=classes, flip_y=0.1, random_state=0
    )
    return X, NAMES[y]


@pytest.mark.parametrize("classes", [2, 3])
def test_a_score_is_the_metric_negated_if_it_is_an_error(classes):
    X, y = data(classes)
    model = GaussianNB().fit(X[:200], y[:200])
    probs = model.predict_proba(X[200:])
    target = np.searchsorted(model.classes_, y[200:])
    scores = probs[:, 1] if classes == 2 else probs
    expected = calibrant.metrics.ece(scores, target, from_logits=False)
    assert ece_scorer(model, X[200:], y[200:]) == pytest.approx(-float(expected))
    assert nll_scorer(model, X[200:], y[200:]) == pytest.approx(-log_loss(y[200:], probs))
    accuracy = CalibrationScorer("accuracy")
    if classes == 3:
        assert accuracy(model, X[200:], y[200:]) == pytest.approx(model.score(X[200:], y[200:]))


def test_searches_take_scorers():
    X, y = data()
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [1e-4, 1.0]}, scoring=nll_scorer)
    assert search.fit(X, y).best_params_ == {"C": 1.0}
    several = cross_validate(GaussianNB(), X, y, cv=3, scoring={"e": ece_scorer, "b": brier_scorer})
    assert (several["test_e"] < 0).all()
    assert (several["test_b"] < several["test_e"]).all()


def test_a_class_that_a_fold_lacks_keeps_its_column():
    X, y = data()
    model = GaussianNB().fit(X, y)
    some = y != "ant"
    assert classifier_predictions(model, X[some], y[some]).num_classes == 3
    assert ece_scorer(model, X[some], y[some]) < 0


def test_weights_reach_the_score_by_hand_and_by_routing():
    X, y = data()
    weights = np.repeat([1.0, 0.0], 150)
    model = GaussianNB().fit(X, y)
    assert ece_scorer(model, X, y, sample_weight=weights) == pytest.approx(
        ece_scorer(model, X[:150], y[:150])
    )
    with config_context(enable_metadata_routing=True):
        scorer = CalibrationScorer("ece").set_score_request(sample_weight=True)
        options = {"cv": [(np.arange(300), np.arange(300))], "scoring": scorer}
        plain = GaussianNB().set_fit_request(sample_weight=False)
        routed = cross_val_score(plain, X, y, params={"sample_weight": weights}, **options)
    assert routed[0] == pytest.approx(ece_scorer(model, X[:150], y[:150]))


@pytest.mark.parametrize("classes", [2, 3])
def test_the_display_draws_an_estimator_and_its_predictions_alike(classes):
    X, y = data(classes)
    model = GaussianNB().fit(X, y)
    display = ReliabilityDisplay.from_estimator(model, X, y)
    same = ReliabilityDisplay.from_predictions(y, model.predict_proba(X), ax=display.ax_)
    assert same.ax_ is display.ax_
    assert same.figure_ is display.figure_
    assert same.evaluation.figures == display.evaluation.figures
    assert display.evaluation.name == "GaussianNB"
    if classes == 2:
        assert display.evaluation.event == "bee"
        third = ReliabilityDisplay.from_predictions(y, model.predict_proba(X)[:, 1], curve="bins")
        assert third.evaluation.figures == display.evaluation.figures


def test_wrong_input_says_what_to_do():
    X, y = data()
    with pytest.raises(InputError, match="no predict_proba; CalibrantClassifier"):
        classifier_predictions(RidgeClassifier().fit(X, y), X, y)
    model = GaussianNB().fit(X, y)
    with pytest.raises(InputError, match="does not know: dog; it knows ant, bee, cat"):
        classifier_predictions(model, X[:2], ["ant", "dog"])
    with pytest.raises(InputError, match="found 2 labels"):
        ReliabilityDisplay.from_predictions(y, model.predict_proba(X), labels=["ant", "bee"])
    with pytest.raises(InputError, match="no metric is called 'eec'"):
        CalibrationScorer("eec")
