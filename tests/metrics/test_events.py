"""Metrics of events: views, weights, options, documented values, against plain float64 code."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from calibrant import InputError, metrics
from calibrant.metrics import event_statistics, measure, modules
from calibrant.metrics.base import compute_all
from calibrant.metrics.registry import METRICS, label_of
from calibrant.metrics.selective import SELECTIVE
from tests.helpers.metric_cases import CURVES, OOD, SLOPES, module_class
from tests.reference import events
from tests.reference import metrics as ref

UNWEIGHTED = {"debiased_ece", "chance_ece", "kde_ece", *OOD}
TESTS = {"spiegelhalter", "hosmer_lemeshow"}
BINARY = sorted(
    name for name in METRICS if "view" in inspect.signature(getattr(metrics, name)).parameters
)


def rare(num_rows=400, seed=0, digits=None):
    """Over-extreme probabilities, outcomes and weights."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.7, 4, size=num_rows)
    p = p if digits is None else p.round(digits)
    y = (rng.random(num_rows) < 0.6 * p + 0.03).astype(int)
    return p, y, rng.uniform(0.2, 3, num_rows)


@pytest.mark.parametrize("digits", [None, 1], ids=["distinct", "tied"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", events.METRICS)
def test_every_metric_of_events_is_its_formula(name, weighted, digits):
    p, y, w = rare(digits=digits)
    w = w if weighted else None
    expected = events.METRICS[name](p, y, w)
    tolerance = 1e-6 if name in (*SLOPES, *CURVES) else 1e-9
    for scale in (1.0, 1e-5):  # weights are free of scale
        given = None if w is None else scale * w
        actual = getattr(metrics, name)(p, y, from_logits=False, weights=given)
        assert actual == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("name", ["ece", "brier", "mce", "adaptive_ece", "ks_error", "smooth_ece"])
def test_two_classes_are_events_of_the_positive_one(name):
    """(N,) and (N, 2) mean the same; pos_label names the event; view="top" judges as before."""
    p, y, _ = rare()
    function, pair = getattr(metrics, name), np.stack((1 - p, p), 1)
    plain = {"brier": events.brier, "adaptive_ece": ref.adaptive_ece}.get(name) or getattr(
        ref, name
    )
    tolerance = 2e-5 if name == "smooth_ece" else 1e-9
    expected = plain(p.tolist(), y.astype(float).tolist())
    for preds in (p, pair, torch.from_numpy(pair)):
        assert function(preds, y, from_logits=False) == pytest.approx(expected, abs=tolerance)
    other = plain((1 - p).tolist(), (1.0 - y).tolist())
    assert function(pair, y, from_logits=False, pos_label=0) == pytest.approx(other, abs=tolerance)
    former = ref.brier(pair, y) if name == "brier" else plain(*ref.top(pair, y))
    assert function(pair, y, from_logits=False, view="top") == pytest.approx(former, abs=tolerance)
    assert expected != pytest.approx(former, abs=1e-4)  # or this test shows nothing


def test_the_fraud_that_the_predicted_class_hides():
    """Fraud is given 25% and is 0.9%: confidence 75% hides 24 points of error."""
    rng = np.random.default_rng(0)
    p, y = rng.beta(5, 15, 20_000), rng.random(20_000) < 0.009
    assert metrics.ece(p, y, from_logits=False) == pytest.approx(0.24, abs=0.01)
    assert metrics.oe_ratio(p, y, from_logits=False) < 0.05
    assert metrics.calibration_in_the_large(p, y, from_logits=False) < -3


@pytest.mark.parametrize("name", BINARY)
def test_views_that_make_no_sense_are_refused(name):
    logits, labels = np.zeros((4, 3)), np.array([0, 1, 2, 1])
    function = getattr(metrics, name)
    with pytest.raises(InputError, match="view='events' needs one probability a row or two"):
        function(logits, labels, view="events")
    with pytest.raises(InputError, match="pos_label names the positive one of two classes"):
        function(logits, labels, pos_label=1)
    with pytest.raises(InputError, match="pos_label must be 0 or 1"):
        function(logits[:, :2], labels % 2, pos_label=2)
    with pytest.raises(InputError, match="view must be 'top' or 'events'"):
        function(logits, labels, view="binary")


def weighted_value(name, preds, target, weights):
    (value,) = compute_all([measure(name)], [(preds, target, weights)])
    return float(value)


@pytest.mark.parametrize("name", [name for name in METRICS if name not in UNWEIGHTED])
def test_weights_are_minded_and_free_of_scale(name):
    """A row of weight 3 counts like three rows of weight 1, to the width of a rank."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(1500, 4)) * 1.5
    labels = (logits + 2 * rng.normal(size=logits.shape)).argmax(1)
    weights = np.where(rng.random(1500) < 0.3 + 0.3 * (labels == 0), 3.0, 1.0)
    again = np.repeat(np.arange(1500), weights.astype(int))
    actual = weighted_value(name, logits, labels, weights)
    for scale in (1e-4, 100.0):
        same = weighted_value(name, logits, labels, scale * weights)
        assert same == pytest.approx(actual, rel=1e-9, abs=1e-9)
    if name in TESTS:
        return  # three equal rows are more evidence than one of weight 3
    repeated = weighted_value(name, logits[again], labels[again], None)
    assert actual == pytest.approx(repeated, abs=3e-3)
    if name not in ("e50", "mean_entropy", "sweep_ece"):
        assert actual != pytest.approx(weighted_value(name, logits, labels, None), abs=1e-6)


@pytest.mark.parametrize("name", sorted(UNWEIGHTED))
def test_metrics_without_weights_refuse_them(name):
    p, y, w = rare(40)
    with pytest.raises(InputError, match=f"{name} is not defined for rows with weights"):
        weighted_value(name, np.stack((1 - p, p), 1), y, w)
    with pytest.raises(InputError, match=f"{name} is not defined for rows with weights"):
        module_class(name)().update(np.stack((1 - p, p), 1), y, weights=w)


def test_a_users_metric_of_rows_refuses_weights():
    METRICS.register(lambda: measure("kde_ece"), name="my_kernel", summary="")
    try:
        with pytest.raises(InputError, match="not defined for rows with weights"):
            weighted_value("my_kernel", np.zeros((4, 3)), np.array([0, 1, 2, 0]), np.ones(4))
    finally:
        METRICS.unregister("my_kernel")


@pytest.mark.parametrize("name", ["aurc", "e_aurc"])
@pytest.mark.parametrize("kind", ["empirical", "log"])
def test_equal_weights_leave_selective_values_alone(name, kind):
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(300, 3)).round(1), rng.integers(0, 3, 300)
    for loss in ("zero_one", "brier"):
        how = {"weights": kind, "loss": loss}
        expected = getattr(metrics, name)(logits, labels, **how)
        actual = getattr(metrics, name)(logits, labels, row_weights=np.full(300, 7.0), **how)
        assert actual == pytest.approx(expected, rel=1e-9)


def numeric_influence(value, w):
    """N times the derivative of a figure by each weight, over the sum of the weights."""
    found = np.empty(len(w))
    for i in range(len(w)):
        step = np.zeros(len(w))
        step[i] = 1e-5 * w[i]
        found[i] = (value(w + step) - value(w - step)) / (2 * step[i])
    return found * w.sum()


@pytest.mark.parametrize("digits", [None, 1], ids=["distinct", "tied"])
@pytest.mark.parametrize(
    "name", [name for name in METRICS if measure(name).influence and name not in SELECTIVE]
)
def test_influences_are_derivatives_by_the_weights(name, digits):
    p, y, w = rare(60, seed=3, digits=digits)
    (state,) = measure(name).build()
    compute_all([measure(name)], [(p, y, w)], from_logits=False, positive=1, extra=[state])
    actual = measure(name).influence(state)

    def value(weights):
        return getattr(metrics, name)(p, y, from_logits=False, weights=weights)

    assert actual == pytest.approx(numeric_influence(value, w), rel=1e-4, abs=1e-4)
    assert actual @ w == pytest.approx(0, abs=1e-9 * len(w) * max(1, np.abs(actual).max()))


@pytest.mark.parametrize("name", ["aurc", "e_aurc", "augrc", "failure_auroc"])
def test_influences_of_selective_metrics_have_the_jackknife_s_spread(name):
    rng = np.random.default_rng(4)
    logits, labels = rng.normal(size=(300, 4)), rng.integers(0, 4, 300)
    labels = np.where(rng.random(300) < 0.6, logits.argmax(1), labels)
    (state,) = measure(name).build()
    compute_all([measure(name)], [(logits, labels)], extra=[state])
    influence = measure(name).influence(state)
    whole, keep = getattr(metrics, name)(logits, labels), np.arange(300)
    left = np.array(
        [getattr(metrics, name)(logits[keep != i], labels[keep != i]) for i in range(300)]
    )
    assert influence.mean() == pytest.approx(0, abs=1e-9)
    assert np.corrcoef(influence, 299 * (whole - left))[0, 1] > 0.99
    error = np.sqrt(influence @ influence) / 300
    assert error == pytest.approx(np.sqrt(299 / 300 * ((left - left.mean()) ** 2).sum()), rel=0.1)


def test_the_decision_curve_is_net_benefit_at_every_threshold():
    p, y, w = rare(digits=2)
    table = metrics.decision_curve(p, y, from_logits=False, weights=w)
    assert len(table) == 100
    rate = events.mean(y, w)
    for line in table.iloc[::9].itertuples():
        threshold = line.threshold
        expected = events.net_benefit(p, y, w, threshold)
        assert line.net_benefit == pytest.approx(expected, abs=1e-12)
        assert line.treat_all == pytest.approx(events.net_benefit(np.ones(len(p)), y, w, threshold))
        assert line.treat_none == 0
        assert line.treated == pytest.approx(w[p >= threshold].sum() / w.sum())
    assert table.threshold.iloc[-1] == pytest.approx(max(0.05, 4 * rate))
    few = metrics.decision_curve(p, y, from_logits=False, thresholds=[0.0, 0.3])
    assert few.threshold.tolist() == [0.0, 0.3]
    with pytest.raises(InputError, match=r"threshold must lie in \[0, 1\)"):
        metrics.decision_curve(p, y, from_logits=False, thresholds=[1.0])


def test_documented_values_where_one_outcome_is_missing():
    p, none = np.array([0.1, 0.2, 0.6]), np.zeros(3, dtype=int)
    how = {"from_logits": False}
    assert metrics.calibration_in_the_large(p, none, **how) == -np.inf
    assert metrics.calibration_in_the_large(p, none + 1, **how) == np.inf
    assert metrics.oe_ratio(p, none, **how) == 0
    assert metrics.oe_ratio(np.zeros(3), none, **how) == 1
    assert metrics.oe_ratio(np.zeros(3), none + 1, **how) == np.inf
    assert metrics.brier_skill(p, none, **how) == -np.inf
    assert metrics.brier_skill(np.zeros(3), none, **how) == 0
    assert metrics.auroc(p, none, **how) == 0.5
    assert metrics.average_precision(p, none, **how) == 0
    with pytest.raises(InputError, match="found no events among 3 rows"):
        metrics.calibration_slope(p, none, **how)
    assert metrics.calibration_slope(p, np.array([0, 0, 1]), **how) == np.inf
    assert metrics.calibration_slope(p, np.array([1, 0, 0]), **how) == -np.inf
    with pytest.raises(InputError, match="its intercept undefined"):
        metrics.calibration_intercept(p, np.array([0, 0, 1]), **how)
    certain = np.array([0.0, 1.0, 1.0])
    assert metrics.spiegelhalter(certain, np.array([0, 1, 1]), **how) == 1.0
    assert metrics.spiegelhalter(certain, np.array([1, 1, 1]), **how) == 0.0


def test_certain_probabilities_are_clipped_and_counted():
    p, y, _ = rare(200)
    sure = np.concatenate((p, [0.0, 1.0, 1e-12]))
    truth = np.concatenate((y, [0, 1, 0]))
    assert event_statistics.count_clipped(sure) == 3
    assert event_statistics.count_clipped(p) == 0
    for name in ("calibration_in_the_large", *SLOPES):
        expected = events.METRICS[name](sure, truth)
        actual = getattr(metrics, name)(sure, truth, from_logits=False)
        assert actual == pytest.approx(expected, rel=1e-6)
        wider = getattr(metrics, name)(sure, truth, from_logits=False, eps=1e-3)
        clipped = np.clip(sure, 1e-3, 1 - 1e-3)
        assert wider == pytest.approx(events.METRICS[name](clipped, truth), rel=1e-6)
    with pytest.raises(InputError, match="eps must lie in"):
        metrics.calibration_slope(p, y, from_logits=False, eps=0.5)


def test_hosmer_lemeshow_on_held_out_rows_is_uniform():
    """As many degrees of freedom as bins: not two fewer, as on training rows."""
    rng = np.random.default_rng(5)
    values = []
    for _ in range(400):
        p = rng.beta(1, 2, 300)
        values.append(metrics.hosmer_lemeshow(p, rng.random(300) < p, from_logits=False))
    assert 0.02 < np.mean(np.array(values) < 0.05) < 0.085
    assert np.mean(values) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("name", sorted(events.METRICS))
def test_modules_stream_weighted_events_and_merge(name):
    p, y, w = rare(300)
    whole = getattr(metrics, name)(p, y, from_logits=False, weights=w)
    first, second = (module_class(name)(from_logits=False) for _ in range(2))
    first.update(torch.from_numpy(p[:100]), torch.from_numpy(y[:100]), weights=w[:100])
    second.update(p[100:], y[100:], weights=w[100:])
    first.merge_state(second)
    assert first.compute().item() == pytest.approx(whole, rel=1e-7, abs=1e-9)
    flipped = module_class(name)(from_logits=False, pos_label=0)
    flipped.update(np.stack((1 - p, p), 1), y)
    expected = getattr(metrics, name)(p, y, from_logits=False, view="events", pos_label=0)
    assert flipped.compute().item() == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_modules_refuse_what_has_no_meaning():
    p, y, w = rare(40)
    with pytest.raises(InputError, match="ClasswiseECE judges classes, not events"):
        modules.ClasswiseECE(num_classes=2, view="events")
    metric = modules.AUROC(from_logits=False)
    metric.update(p, y)
    with pytest.raises(InputError, match="some batches had weights and some had none"):
        metric.update(p, y, weights=w)
    metric.reset()
    metric.update(p, y, weights=w)
    with pytest.raises(InputError, match="some batches had weights and some had none"):
        compute_all([measure("nll")], [(p, y, w), (p, y)], from_logits=False)
    correct = modules.AURC(from_logits=False, view="events")  # p is that an answer is correct
    correct.update(p, y)
    pair = np.stack((1 - p, p), 1)
    assert correct.compute().item() != pytest.approx(metrics.aurc(pair, y, from_logits=False))


@pytest.mark.parametrize(
    ("text", "label", "same"),
    [
        ("coverage_at_risk(risk=0.01)", "Coverage at 1% risk", {"risk": 0.01}),
        ("coverage_at_risk", "Coverage at 5% risk", {}),
        ("risk_at_coverage(coverage=0.995)", "Risk at 99.5% coverage", {"coverage": 0.995}),
        ("net_benefit(threshold=0.1)", "Net benefit at 10%", {"threshold": 0.1}),
        ("ece(num_bins=5)", "Expected calibration error (num_bins=5)", {"num_bins": 5}),
    ],
)
def test_options_may_stand_in_the_name(text, label, same):
    rng = np.random.default_rng(6)
    logits, labels = rng.normal(size=(500, 2)) * 2, rng.integers(0, 2, 500)
    labels = np.where(rng.random(500) < 0.9, logits.argmax(1), labels)
    name = text.partition("(")[0]
    (actual,) = compute_all([measure(text)], [(logits, labels)])
    (expected,) = compute_all([measure(name, **same)], [(logits, labels)])
    assert actual == expected
    assert label_of(text) == label
    assert label_of(name, **same) == label


def test_bad_method_texts_are_named():
    with pytest.raises(InputError, match="given twice"):
        measure("ece(num_bins=5)", num_bins=6)
    with pytest.raises(InputError, match="has no option 'bins'; its options: num_bins"):
        measure("ece(bins=5)")
    with pytest.raises(InputError, match="a metric is written name"):
        measure("ece(5)")
