"""`prediction_sets`: scores, thresholds, coverage, refusals, files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit

import calibrant
from calibrant import InputError, Predictions
from calibrant.decisions import NoThresholdError, PredictionSets, risk_tests
from calibrant.decisions.sets import find_marginal, measure_conformity

from .test_thresholds import make_classes, make_events


def softmax(logits):
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)


def test_lac_holds_the_classes_above_the_conformal_quantile():
    rows = make_classes(999)
    rule = calibrant.prediction_sets(rows, coverage=0.9)
    probs = softmax(rows.array)
    nonconformity = np.sort(1 - probs[np.arange(999), rows.labels])
    limit = nonconformity[int(np.ceil(1000 * 0.9)) - 1]
    assert np.array_equal(rule.sets(rows), 1 - probs <= limit + 1e-9)
    assert rule.parts[0].threshold == pytest.approx(1 - limit, rel=1e-4)


def test_aps_adds_the_more_likely_classes_and_a_share_of_its_own():
    rng = np.random.default_rng(0)
    probs, drawn = softmax(rng.normal(size=(50, 5)) * 2), rng.random(50)
    conformity = measure_conformity(
        torch.from_numpy(np.log(probs)), "aps", torch.from_numpy(drawn)
    ).numpy()
    for i in range(50):
        for k in range(5):
            total = probs[i][probs[i] > probs[i, k]].sum() + drawn[i] * probs[i, k]
            assert -conformity[i, k] == pytest.approx(total)


def test_lac_keeps_its_digits_near_certainty():
    logits = torch.tensor([[50.0, 0.0, 0.0], [60.0, 0.0, 0.0]], dtype=torch.float64)
    conformity = measure_conformity(logits, "lac")
    assert conformity[:, 0].tolist() == pytest.approx([50 - np.log(2), 60 - np.log(2)])
    probs = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    odds = measure_conformity(probs.log(), "lac")
    assert torch.allclose(odds, (probs / (1 - probs)).log())


@pytest.mark.parametrize("method", ["lac", "aps"])
@pytest.mark.parametrize("by", [None, "class"])
@pytest.mark.parametrize("guarantee", ["marginal", "pac"])
def test_coverage_holds_on_new_rows(method, by, guarantee):
    fresh = make_classes(60_000, seed=100)
    covered = []
    for seed in range(15):
        rule = calibrant.prediction_sets(
            make_classes(1_000, seed=seed), coverage=0.85, method=method, by=by, guarantee=guarantee
        )
        members = rule.sets(fresh, seed=seed if method == "aps" else None)
        inside = members[np.arange(len(fresh)), fresh.labels]
        if by == "class":
            covered.append([inside[fresh.labels == k].mean() for k in range(4)])
        else:
            covered.append([inside.mean()])
    shares = np.array(covered)
    if guarantee == "pac":
        assert (shares.min(1) < 0.85).sum() <= 3  # 5% expected of 15
    else:
        spread = shares.std(0) / 15**0.5
        assert (np.abs(shares.mean(0) - 0.85) < 4 * spread + 0.005).all()


def test_a_class_with_too_few_rows_is_in_every_set_and_that_is_said():
    rows = make_classes(2_000)
    rare = np.flatnonzero(rows.labels == 2)
    kept = np.setdiff1d(np.arange(2_000), rare[5:])
    rule = calibrant.prediction_sets(rows.take(kept), by="class", coverage=0.9)
    assert rule.sets(rows)[:, 2].all()
    part = rule.parts[2]
    assert (part.threshold, part.num_rows, part.more_rows) == (None, 5, 4)
    assert rule.promise.endswith(". 2 has too few rows and is in every set.")
    nine = calibrant.prediction_sets(
        rows.take(np.setdiff1d(np.arange(2_000), rare[9:])), by="class"
    )
    assert nine.parts[2].threshold is not None
    pac = calibrant.prediction_sets(rows.take(kept), by="class", guarantee="pac")
    assert pac.parts[2].more_rows == 37  # 0.9^42 is the first power below 0.05/4


def test_too_few_rows_for_any_set_raise():
    with pytest.raises(NoThresholdError, match="with these 30 rows; about 29 more would"):
        calibrant.prediction_sets(make_classes(30), coverage=0.95, guarantee="pac")
    assert calibrant.prediction_sets(make_classes(59), coverage=0.95, guarantee="pac").parts[0].size


def test_clusters_share_the_weight_of_one():
    scores = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    design = risk_tests.Design(None, np.array([0, 0, 1, 2, 2, 3]), None)
    # Weights: 1/5 for each cluster, halved in clusters of two.
    assert find_marginal(scores, 0.2, design) == 2.0
    assert find_marginal(scores, 0.4, design) == 3.0
    assert find_marginal(scores, 0.09, design) is None
    assert find_marginal(scores, 2 / 7, risk_tests.PLAIN) == 2.0


def test_clusters_and_weights_say_what_they_promise():
    clusters = np.arange(4_000) // 4
    rows = make_classes(clusters=clusters)
    assert "of a new cluster" in calibrant.prediction_sets(rows).promise
    rough = calibrant.prediction_sets(rows, guarantee="pac")
    assert rough.terms.test == "approximate"
    assert "approximate" in rough.promise
    exact = calibrant.prediction_sets(rows, guarantee="pac", max_cluster_size=4)
    assert exact.terms.test == "betting"
    assert exact.parts[0].size > calibrant.prediction_sets(rows).parts[0].size
    weighted = make_classes(weights=np.random.default_rng(0).uniform(1, 2, 4_000))
    with pytest.raises(InputError, match="use guarantee='pac'"):
        calibrant.prediction_sets(weighted)
    assert (
        calibrant.prediction_sets(weighted, guarantee="pac", max_weight=2).terms.test == "betting"
    )


def test_events_get_sets_of_no_and_yes():
    rows = make_events()
    rule = calibrant.prediction_sets(rows, coverage=0.9)
    members = rule.sets(rows)
    probability = expit(rows.array)
    limit = rule.parts[0].threshold
    assert np.array_equal(members, np.stack([1 - probability, probability], 1) >= limit - 1e-9)
    frame = rule.to_frame(replace(rows, labels=None))
    assert set(frame["set"]) <= {"", "no", "fraud", "no|fraud"}
    assert frame["size"].tolist() == members.sum(1).tolist()
    by_class = calibrant.prediction_sets(rows, by="class")
    assert by_class.terms.names == ("no", "fraud")


def test_options_that_a_row_does_not_have_are_never_in_its_set():
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=rng.integers(2, 5)) for _ in range(400)]
    rows = Predictions.from_options(scores, [int(s.argmax()) for s in scores])
    for method in ("lac", "aps"):
        rule = calibrant.prediction_sets(rows, method=method, coverage=0.9)
        members = rule.sets(rows, seed=0 if method == "aps" else None)
        assert not members[np.isneginf(rows.array)].any()
    with pytest.raises(InputError, match="positions"):
        calibrant.prediction_sets(rows, by="class")


def test_aps_takes_its_random_numbers_as_an_input():
    rows = make_classes(500)
    rule = calibrant.prediction_sets(rows, method="aps")
    drawn = np.random.default_rng(5).random(500)
    members = rule.sets(rows, random=drawn)
    assert np.array_equal(members, rule.sets(rows, seed=5))
    as_torch = rule.sets(torch.from_numpy(rows.array), random=torch.from_numpy(drawn))
    assert np.array_equal(members, as_torch.numpy())
    assert rule.sets(rows, random=np.zeros(500)).sum() > rule.sets(rows, random=np.ones(500)).sum()
    with pytest.raises(InputError, match="give random=, numbers in"):
        rule.sets(rows)
    with pytest.raises(InputError, match="random must hold"):
        rule.sets(rows, random=drawn[:3])
    with pytest.raises(InputError, match="leave random= out"):
        calibrant.prediction_sets(rows).sets(rows, random=drawn)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": 90}, "coverage must lie"),
        ({"method": "raps"}, "method must be 'lac' or 'aps'"),
        ({"guarantee": "sure"}, "guarantee must be"),
        ({"by": "group"}, "by must be None or 'class'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        calibrant.prediction_sets(make_classes(500), **options)


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_sets_are_saved_with_their_calibrator(method, tmp_path):
    rows = make_classes(1_000)
    calibrator = calibrant.calibrate(make_classes(2_000, seed=1), method="temperature")
    rule = calibrant.prediction_sets(rows, method=method, by="class", calibrator=calibrator)
    loaded = calibrant.load(rule.save(tmp_path / "sets.safetensors"))
    assert isinstance(loaded, PredictionSets)
    assert loaded.describe() == rule.describe()
    seed = 3 if method == "aps" else None
    assert np.array_equal(loaded.sets(rows, seed=seed), rule.sets(rows, seed=seed))
    with pytest.raises(InputError, match="that fitted this temperature"):
        calibrant.prediction_sets(make_classes(2_000, seed=1), calibrator=calibrator)
