"""One scikit-learn estimator over every calibrator."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, ShuffleSplit, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from calibrant.calibrators import CalibrantClassifier, get
from calibrant.core.errors import InputError
from tests.helpers.calibrator_cases import ROWS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def data(rows=400, classes=3, seed=0):
    return make_classification(
        rows, 8, n_informative=6, n_classes=classes, flip_y=0.1, random_state=seed
    )


def expect_failures(estimator):
    """Folds are drawn by rows, so that repeated rows are other folds than weighted ones."""
    reason = "as for CalibratedClassifierCV: folds are drawn by rows"
    kinds = ("dense", "sparse")
    return {f"check_sample_weight_equivalence_on_{kind}_data": reason for kind in kinds}


# scikit-learn before 1.6 cannot be told which checks are expected to fail.
NAMES_FAILURES = "expected_failed_checks" in inspect.signature(check_estimator).parameters
CHECKED = [
    CalibrantClassifier(),
    CalibrantClassifier(LinearSVC(), method="identity", response="decision_function"),
]


@pytest.mark.sampled(count=55)
@(
    parametrize_with_checks(CHECKED, expected_failed_checks=expect_failures)
    if NAMES_FAILURES
    else pytest.mark.skip("needs scikit-learn 1.6")
)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@pytest.mark.parametrize("cv", [None, "prefit"])
def test_weights_reach_the_classifier_and_the_calibrator(cv):
    X, y = data(rows=300)
    w = np.random.default_rng(0).integers(0, 4, 300)  # some rows do not count
    base = GaussianNB().fit(X, y, w) if cv == "prefit" else GaussianNB()
    made = CalibrantClassifier(base, cv=cv).fit(X, y, sample_weight=w)
    np.testing.assert_allclose(made.estimator_.theta_, GaussianNB().fit(X, y, w).theta_)
    assert made.calibrator_.summary_["rows"] == (w > 0).sum()
    if cv == "prefit":
        twice = CalibrantClassifier(base, cv=cv).fit(X.repeat(w, 0), y.repeat(w))
        np.testing.assert_allclose(made.predict_proba(X), twice.predict_proba(X), atol=1e-8)
    with pytest.raises(InputError, match="cannot weigh rows"):
        CalibrantClassifier(GaussianNB(), method="levels").fit(X, y, sample_weight=w + 1)


def test_weights_can_be_routed():
    X, y = data(rows=300)
    w = np.random.default_rng(0).uniform(0.5, 3.0, 300)
    direct = CalibrantClassifier(GaussianNB()).fit(X, y, sample_weight=w)
    with config_context(enable_metadata_routing=True):
        inner = GaussianNB().set_fit_request(sample_weight=True)
        made = CalibrantClassifier(inner).set_fit_request(sample_weight=True)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), made)
        pipe.fit(X, y, sample_weight=w)
        made.fit(X, y, sample_weight=w)
        without = CalibrantClassifier(GaussianNB().set_fit_request(sample_weight=False))
        without.fit(X, y, sample_weight=w)
    np.testing.assert_allclose(made.predict_proba(X), direct.predict_proba(X))
    np.testing.assert_allclose(pipe[-1].estimator_.class_prior_, direct.estimator_.class_prior_)
    assert np.abs(without.estimator_.class_prior_ - direct.estimator_.class_prior_).max() > 1e-3


def test_clusters_are_never_split():
    X, y = data(rows=300)
    clusters = np.array([f"patient {k}" for k in np.random.default_rng(1).integers(0, 20, 300)])
    seen = []

    class Spy(GaussianNB):
        def fit(self, X, y):
            seen.append({tuple(row) for row in np.asarray(X)})
            return super().fit(X, y)

    made = CalibrantClassifier(Spy(), method="vector").fit(X, y, clusters=clusters)
    assert made.calibrator_.is_fitted
    assert len(seen) == 6  # five folds, then all rows
    for rows in seen[:5]:
        inside = np.array([tuple(row) in rows for row in X])
        assert not set(clusters[inside]) & set(clusters[~inside])
    with pytest.raises(InputError, match="one cluster"):
        CalibrantClassifier(GaussianNB()).fit(X, y, clusters=np.zeros(300, int))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_scikit_learn_accepts_it_with_every_method(name):
    estimator = CalibrantClassifier(GaussianNB(), method=name, cv=3)
    expected = expect_failures(estimator)
    if not get(name).takes_weights:
        refused = ("pandas_series", "not_an_array", "list", "all_ones", "not_overwritten")
        refused += ("shape",)
        expected |= {f"check_sample_weights_{kind}": "refuses weights" for kind in refused}
        expected["check_classifiers_one_label_sample_weights"] = "refuses weights"
    check_estimator(estimator, expected_failed_checks=expected)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("classes", [2, 3])
def test_every_method_is_an_estimator(name, classes):
    X, y = data(classes=classes)
    names = np.array(["ash", "birch", "cedar"])[y]
    made = CalibrantClassifier(GaussianNB(), method=name).fit(X, names)
    probs = made.predict_proba(X)
    assert probs.shape == (400, classes)
    np.testing.assert_allclose(probs.sum(1), 1.0, atol=1e-6)
    assert list(made.classes_) == ["ash", "birch", "cedar"][:classes]
    assert made.calibrator_.class_names_ == tuple(made.classes_)
    assert (made.predict(X) == made.classes_[probs.argmax(1)]).all()
    assert made.score(X, names) > 0.6
    if made.calibrator_.preserves_predictions:
        assert (made.predict(X) == made.estimator_.predict(X)).all()


@pytest.mark.parametrize(
    "base",
    [
        LinearSVC(),
        RidgeClassifier(),
        SVC(),
        RandomForestClassifier(20, random_state=0),
        KNeighborsClassifier(),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=lambda base: type(base).__name__,
)
@pytest.mark.parametrize("classes", [2, 3])
def test_any_classifier_can_be_wrapped(base, classes):
    X, y = data(classes=classes)
    plain = make_pipeline(StandardScaler(), clone(base)).fit(X, y)
    made = make_pipeline(StandardScaler(), CalibrantClassifier(base, cv=3)).fit(X, y)
    # A classifier's own rule for ties need not be the largest score.
    assert made.score(X, y) >= plain.score(X, y) - 0.02
    assert log_loss(y, made.predict_proba(X)) < np.log(classes)


def test_held_out_probabilities_improve():
    X, y = data(rows=2000)
    plain = GaussianNB().fit(X[:1000], y[:1000])
    made = CalibrantClassifier(GaussianNB()).fit(X[:1000], y[:1000])
    before = log_loss(y[1000:], plain.predict_proba(X[1000:]))
    assert log_loss(y[1000:], made.predict_proba(X[1000:])) < before


def test_it_agrees_with_scikit_learns_own_temperature():
    X, y = data(rows=1000)
    folds = StratifiedKFold(5)
    ours = CalibrantClassifier(LogisticRegression(), cv=folds).fit(X, y)
    try:
        peer = CalibratedClassifierCV(
            LogisticRegression(), method="temperature", cv=folds, ensemble=False
        ).fit(X, y)
    except ValueError:
        pytest.skip("this scikit-learn has no temperature scaling")
    np.testing.assert_allclose(ours.predict_proba(X), peer.predict_proba(X), atol=1e-4)


def test_a_fitted_classifier_is_used_as_it_is():
    X, y = data(rows=600)
    base = LinearSVC().fit(X[:300], y[:300])
    weights = base.coef_.copy()
    made = CalibrantClassifier(base, cv="prefit").fit(X[300:], y[300:])
    assert made.estimator_ is base
    np.testing.assert_array_equal(base.coef_, weights)
    # A class absent from the calibration rows is still one of its classes.
    some = y[300:] != 2
    less = CalibrantClassifier(base, cv="prefit").fit(X[300:][some], y[300:][some])
    assert less.predict_proba(X).shape == (600, 3)
    with pytest.raises(InputError, match="does not know: 7"):
        CalibrantClassifier(base, cv="prefit").fit(X[300:], np.where(some, y[300:], 7))
    with pytest.raises(ValueError, match="not fitted"):
        CalibrantClassifier(LinearSVC(), cv="prefit").fit(X, y)


def test_a_frozen_classifier_is_not_refitted():
    frozen = pytest.importorskip("sklearn.frozen").FrozenEstimator
    X, y = data(rows=600)
    base = LinearSVC().fit(X[:300], y[:300])
    made = CalibrantClassifier(frozen(base)).fit(X[300:], y[300:])
    prefit = CalibrantClassifier(base, cv="prefit").fit(X[300:], y[300:])
    np.testing.assert_allclose(made.predict_proba(X), prefit.predict_proba(X), atol=1e-5)


def test_the_rows_of_text_are_not_looked_at():
    words = np.array(["good fine", "bad poor", "fine good good", "poor bad bad"] * 10, dtype=object)
    y = np.array([1, 0, 1, 0] * 10)
    made = CalibrantClassifier(make_pipeline(CountVectorizer(), MultinomialNB())).fit(words, y)
    assert made.score(words, y) == 1.0


def test_options_reach_the_calibrator_and_searches_reach_the_options():
    X, y = data()
    made = CalibrantClassifier(GaussianNB(), options={"objective": "nll"}).fit(X, y)
    assert made.calibrator_.options()["objective"] == "nll"
    search = GridSearchCV(
        CalibrantClassifier(GaussianNB()),
        {"method": ["identity", "temperature"], "estimator__var_smoothing": [1e-9, 1e-2]},
        scoring="neg_log_loss",
        cv=3,
    ).fit(X, y)
    assert search.best_params_["method"] == "temperature"
    assert np.isfinite(cross_val_score(clone(made), X, y, cv=3)).all()


def test_probabilities_can_be_asked_for():
    X, y = data(classes=2)
    made = CalibrantClassifier(LogisticRegression(), response="predict_proba").fit(X, y)
    other = CalibrantClassifier(LogisticRegression()).fit(X, y)
    assert not made.calibrator_.from_logits
    assert other.calibrator_.from_logits
    np.testing.assert_allclose(made.predict_proba(X), other.predict_proba(X), atol=1e-4)


def test_many_labels_a_row_are_told_where_to_go():
    X, y = np.zeros((20, 2)), np.eye(2, dtype=int)[np.arange(20) % 2]
    with pytest.raises(InputError, match="MultiOutputClassifier"):
        CalibrantClassifier(GaussianNB()).fit(X, y)


def test_wrong_input_raises():
    X, y = data()
    with pytest.raises(InputError, match="no calibrator is called"):
        CalibrantClassifier(method="magic").fit(X, y)
    with pytest.raises(InputError, match="response must be"):
        CalibrantClassifier(response="transform").fit(X, y)
    with pytest.raises(InputError, match="has no decision_function"):
        CalibrantClassifier(GaussianNB(), response="decision_function").fit(X, y)
    with pytest.raises(InputError, match="smallest class has 1 of"):
        CalibrantClassifier(GaussianNB()).fit(X, np.where(np.arange(400) == 0, 5, y))
    with pytest.raises(InputError, match="smallest class"):
        CalibrantClassifier(GaussianNB(), cv=1).fit(X, y)
    with pytest.raises(InputError, match="no row of class 5"):
        CalibrantClassifier(GaussianNB(), cv=ShuffleSplit(50, random_state=0)).fit(
            X, np.where(np.arange(400) == 0, 5, y)
        )
    four, labels = data(classes=4)
    with pytest.raises(InputError, match="6 columns for 4 classes"):
        CalibrantClassifier(SVC(decision_function_shape="ovo")).fit(four, labels)


def test_few_rows_of_a_class_mean_fewer_folds():
    X, y = data(rows=60)
    keep = np.concatenate((np.flatnonzero(y != 2), np.flatnonzero(y == 2)[:3]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        made = CalibrantClassifier(GaussianNB()).fit(X[keep], y[keep])
    assert made.calibrator_.summary_["rows"] == len(keep)


@pytest.mark.parametrize("classes", [2, 3])
def test_auto_chooses_as_calibrate_does(classes):
    X, y = data(600, classes)
    chosen = CalibrantClassifier(GaussianNB(), method="auto").fit(X, y)
    plain = CalibrantClassifier(GaussianNB(), method="identity").fit(X, y)
    assert log_loss(y, chosen.predict_proba(X)) < log_loss(y, plain.predict_proba(X))
    assert "is chosen" in chosen.calibrator_.choice_.explanation
    assert chosen.calibrator_.class_names_ == tuple(map(str, range(classes)))
    keeping = CalibrantClassifier(
        GaussianNB(), method="auto", options={"preserve_predictions": True}
    ).fit(X, y)
    assert (keeping.predict(X) == plain.predict(X)).all()


@pytest.mark.slow
def test_scikit_learn_accepts_it_with_auto():
    check_estimator(
        CalibrantClassifier(method="auto"), expected_failed_checks=expect_failures(None)
    )
