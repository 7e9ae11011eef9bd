"""Comparing sets of every kind, with weights and clusters, by ids, and failing on worse ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, ndtr
from scipy.stats import t as student

from calibrant import InputError, Predictions, compare, metrics
from calibrant.evaluation.intervals import Plan, Units
from calibrant.evaluation.permutation_test import permutation_spread

FAST = {"resamples": 100}


def draw_events(seed=0, clusters=30, size=20, correlation=0.3, noise=0.4):
    """Draw events alike within clusters (Gaussian copula), and two sets as good as each other."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(clusters), size)
    score = 1.5 * rng.normal(size=len(codes)) - 1
    latent = np.sqrt(correlation) * rng.normal(size=clusters)[codes]
    latent += np.sqrt(1 - correlation) * rng.normal(size=len(codes))
    happened = ndtr(latent) < expit(score)
    scores = [
        score + noise * (rng.normal(size=clusters)[codes] + rng.normal(size=len(codes)))
        for _ in "ab"
    ]
    return scores, happened, codes


def make_pair(scores, happened, **fields):
    return [
        Predictions.from_events(expit(score), happened, event="fraud", name=name, **fields)
        for score, name in zip(scores, "ab", strict=True)
    ]


def find_interval_by_hand(rows, clusters, weights):
    """The mean of rows with CR2 and t(G − 1), for clusters of equal weight."""
    share = weights / weights.sum()
    mean = share @ rows
    sums = np.bincount(clusters, share * (rows - mean))
    held = np.bincount(clusters, share)
    half = student.ppf(0.975, len(sums) - 1) * np.sqrt((sums**2 / (1 - held)).sum())
    return mean, mean - half, mean + half


@pytest.mark.parametrize("weighted", [False, True])
def test_a_mean_of_clustered_rows_has_the_interval_of_whole_clusters(weighted):
    scores, happened, codes = draw_events()
    weights = np.tile([1.0, 3.0], len(codes) // 2) if weighted else None
    a, b = make_pair([scores[0], 1.3 * scores[1]], happened, clusters=codes, weights=weights)
    comparison = compare(a, b, metrics=["nll", "brier"], **FAST)
    rows = [-np.log(np.where(happened, each.array, 1 - each.array)) for each in (a, b)]
    each = np.ones(len(codes)) if weights is None else weights
    expected = find_interval_by_hand(rows[1] - rows[0], codes, each)
    found = comparison["nll"]
    assert found.difference == pytest.approx(expected[0], rel=1e-9)
    # The interval may be stretched to 0, and no further, by the test of swaps.
    assert min(found.low, 0) == pytest.approx(min(expected[1], 0), rel=1e-6)
    assert found.high == pytest.approx(expected[2], rel=1e-6)
    assert (comparison.num_clusters, comparison.weighted) == (30, weighted)
    assert comparison.event == "fraud"


def test_clusters_keep_the_promise_that_rows_break():
    """Two sets, each better in some clusters, are as good as each other."""
    names, sets, alarms = ["auroc", "nll", "brier"], 40, {}
    for clustered in (True, False):
        wins = np.zeros(len(names))
        for seed in range(sets):
            scores, happened, codes = draw_events(seed, clusters=20, size=40, noise=0.5)
            a, b = make_pair(scores, happened, clusters=codes if clustered else None)
            comparison = compare(a, b, metrics=names, seed=seed, **FAST)
            wins += [comparison[name].winner != "neither" for name in names]
        alarms[clustered] = wins
    # 7 or more of 40 at 5%: once in 300 times. In 100 other sets: 2% with, 25% without clusters.
    assert (alarms[True] <= 6).all(), alarms
    assert (alarms[False] >= 5).all(), alarms


def test_swaps_move_whole_clusters_with_their_weights():
    scores, happened, codes = draw_events(3, clusters=12, size=10)
    weights = np.random.default_rng(0).gamma(2, size=len(codes))
    a, b = make_pair(scores, happened)
    measures = {name: metrics.measure(name) for name in ("ece", "adaptive_ece")}
    options = {"from_logits": False, "ignore_index": -1, "positive": 1}
    spreads = permutation_spread(
        [(a, options), (b, options)], measures, Plan(resamples=100, seed=5), Units(weights, codes)
    )
    stay = np.random.default_rng(5).integers(0, 2, size=(100, 12)).astype(bool)[:, codes]
    differences = [
        metrics.ece(
            np.where(line, b.array, a.array), happened * 1, from_logits=False, weights=weights
        )
        - metrics.ece(
            np.where(line, a.array, b.array), happened * 1, from_logits=False, weights=weights
        )
        for line in stay
    ]
    assert spreads["ece"] == pytest.approx(np.std(differences), rel=1e-9)
    assert spreads["adaptive_ece"] > 0


def test_equal_weights_and_rows_of_their_own_change_no_conclusion():
    scores, happened, codes = draw_events(1, clusters=300, size=3)
    plain, weighted = (
        compare(
            *make_pair([scores[0], 1.6 * scores[1]], happened, weights=weights),
            metrics=["nll", "auroc", "ece", "adaptive_ece", "log_ece"],
            resamples=300,
        )
        for weights in (None, np.full(len(codes), 7.0))
    )
    for name, difference in plain.differences.items():
        other = weighted[name]
        assert other.a == pytest.approx(difference.a, rel=1e-9), name
        assert other.winner == difference.winner, name
        width = difference.high - difference.low
        assert other.high - other.low == pytest.approx(width, rel=0.2), name


def test_fewer_than_ten_clusters_are_not_tested_and_it_says_why():
    scores, happened, codes = draw_events(0, clusters=9, size=60)
    comparison = compare(*make_pair([scores[0], 5 * scores[1]], happened, clusters=codes), **FAST)
    assert comparison.headline.startswith("Nothing was tested: the rows lie in 9 clusters")
    assert all(not each.is_tested for each in comparison.differences.values())
    assert comparison["nll"].difference > 0.1
    assert not comparison.is_worse("nll")
    assert comparison.may_be_worse("nll", 100.0)  # nothing rules it out


def test_an_image_is_a_cluster_of_its_pixels():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, size=(12, 6, 6))
    scores = [rng.normal(size=(12, 3, 6, 6)) for _ in "ab"]
    a, b = (
        Predictions.from_logits(each, labels, name=n) for each, n in zip(scores, "ab", strict=True)
    )
    comparison = compare(a, b, metrics=["accuracy"], **FAST)
    right = [(np.asarray(each.array).argmax(1) == labels) * 1.0 for each in (a, b)]
    image = np.repeat(np.arange(12), 36)
    expected = find_interval_by_hand((right[1] - right[0]).reshape(-1), image, np.ones(432))
    found = comparison["accuracy"]
    assert (found.difference, found.high) == pytest.approx((expected[0], expected[2]), rel=1e-6)
    few = compare(a.take(np.arange(9)), b.take(np.arange(9)), metrics=["accuracy"], **FAST)
    assert "9 images" in few.headline


# Kinds


def test_two_classes_are_compared_as_events_unless_asked():
    scores, happened, _ = draw_events()
    a, b = (
        Predictions.from_logits(np.stack((np.zeros(len(s)), s), 1), happened * 1, name=n)
        for s, n in zip(scores, "ab", strict=True)
    )
    as_events = compare(a, b, **FAST)
    assert (as_events.view, as_events.event) == ("events", "class 1")
    brier = np.mean((expit(scores[0]) - happened) ** 2)
    assert as_events["brier"].a == pytest.approx(brier, rel=1e-6)
    top = compare(a, b, view="top", metrics=["brier", "accuracy"], **FAST)
    assert top["brier"].a == pytest.approx(2 * brier, rel=1e-6)
    assert top.view == "top"
    other = compare(a, b, pos_label=0, metrics=["average_precision"], **FAST)
    assert other["average_precision"].a != as_events["average_precision"].a


def test_many_labels_are_pooled_with_a_row_as_a_cluster():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, size=(40, 4))
    labels[::7, 1] = -1
    a, b = (
        Predictions.from_multilabel(rng.normal(size=(40, 4)), labels, name=name) for name in "ab"
    )
    pooled = compare(a, b, metrics=["nll", "ece"], **FAST)
    events = compare(a.to_events(), b.to_events(), metrics=["nll", "ece"], **FAST)
    assert pooled.differences == events.differences
    assert (pooled.task, pooled.num_rows, pooled.num_clusters) == ("multilabel", 40, 40)
    assert "independent rows" in pooled.caveat  # rows may share a patient: only labels are grouped
    assert events.caveat is None


def test_the_caveat_on_independence_stands_where_no_clusters_are_given():
    scores, happened, codes = draw_events(clusters=12, size=5)
    alone = compare(*make_pair(scores, happened), metrics=["nll"], **FAST)
    assert "independent rows" in alone.to_dict()["caveat"]
    grouped = compare(*make_pair(scores, happened, clusters=codes), metrics=["nll"], **FAST)
    assert grouped.caveat is None


def test_questions_with_options_are_compared_by_the_predicted_option():
    rng = np.random.default_rng(0)
    counts = rng.integers(2, 6, 80)
    answers = rng.integers(0, counts)
    a, b = (
        Predictions.from_options([rng.normal(size=k) for k in counts], answers, name=name)
        for name in "ab"
    )
    comparison = compare(a, b, **FAST)
    assert "classwise_ece" not in comparison.differences
    assert np.isfinite([each.p_value for each in comparison.differences.values()]).all()
    with pytest.raises(InputError, match="same kind"):
        compare(a, Predictions.from_logits(np.zeros((80, 5)), answers))


def test_different_kinds_are_not_compared():
    scores, happened, _ = draw_events()
    a, _ = make_pair(scores, happened)
    with pytest.raises(InputError, match="a holds events, predictions classes"):
        compare(a, Predictions.from_logits(scores[1], happened * 1))


def test_a_finite_nll_is_better_than_an_infinite_one():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    probs = np.full((200, 4), 0.25)
    broken = probs.copy()
    broken[0] = np.eye(4)[(labels[0] + 1) % 4]
    a, b = (Predictions.from_probs(p, labels, name=n) for p, n in ((broken, "a"), (probs, "b")))
    comparison = compare(a, b, metrics=["nll", "brier"], **FAST)
    assert comparison["nll"].winner == "b"
    assert "b is better in nll" in comparison.headline
    assert comparison.notes == ("nll of a is infinite: 1 row gave what happened probability 0",)
    assert compare(b, a, metrics=["nll"], **FAST).is_worse("nll")


def test_the_difference_is_that_of_the_two_values_it_names():
    scores, happened, _ = draw_events()
    comparison = compare(*make_pair(scores, happened), metrics=["ece", "nll"], **FAST)
    for difference in comparison.differences.values():
        first, second = difference.compared
        assert difference.difference == pytest.approx(second - first, abs=1e-12)
    assert comparison["ece"].is_corrected
    assert comparison["ece"].corrected_a < comparison["ece"].a
    named = {name: d["compared"] for name, d in comparison.to_dict()["differences"].items()}
    assert named == {"ece": "corrected", "nll": "value"}


# Ids


def make_sets_with_ids(kind=str):
    scores, happened, codes = draw_events()
    ids = np.array([kind(10_000 + 7 * row) for row in range(len(codes))])
    return make_pair(scores, happened, ids=ids, clusters=codes)


def test_rows_are_joined_by_ids_in_any_order():
    a, b = make_sets_with_ids()
    order = np.random.default_rng(1).permutation(len(b))
    expected = compare(a, b, metrics=["nll", "ece"], **FAST)
    found = compare(a, b.take(order), metrics=["nll", "ece"], **FAST)
    assert found.differences == expected.differences
    assert found.notes == ()
    numbers = make_sets_with_ids(int)[1].take(order)  # ids as numbers in one file
    assert compare(a, numbers, metrics=["nll"], **FAST)["nll"] == expected["nll"]


def test_rows_missing_from_one_set_are_named_and_left_out_only_when_asked():
    a, b = make_sets_with_ids()
    order = np.random.default_rng(1).permutation(len(b))[:590]
    short = b.take(order)
    with pytest.raises(InputError, match=r"10 of 600 rows of a are not in b, ids .*join='inner'"):
        compare(a, short)
    kept = np.sort(order)
    expected = compare(a.take(kept), b.take(kept), metrics=["nll"], **FAST)
    found = compare(a, short, metrics=["nll"], join="inner", **FAST)
    assert found["nll"] == expected["nll"]
    assert found.num_rows == 590
    assert found.notes[0].startswith("left out: 10 of 600 rows of a are not in b, ids 1")


def test_ids_that_cannot_pair_rows_are_refused():
    a, b = make_sets_with_ids()
    twice = replace(b, ids=np.append(b.ids[:-1], b.ids[0]))
    with pytest.raises(InputError, match="1 ids of b occur more than once, first 10000"):
        compare(a, twice)
    with pytest.raises(InputError, match="these are not the same rows"):
        compare(a, replace(b, ids=np.arange(len(b))))
    with pytest.raises(InputError, match="needs ids in both sets: b has none"):
        compare(a, replace(b, ids=None), join="inner")
    with pytest.raises(InputError, match="join must be"):
        compare(a, b, join="outer")


def test_weights_and_clusters_of_one_set_hold_for_both_and_may_not_differ():
    scores, happened, codes = draw_events()
    a, b = make_pair(scores, happened, clusters=codes)
    expected = compare(a, b, metrics=["nll"], **FAST)
    assert compare(a, replace(b, clusters=None), metrics=["nll"], **FAST) == expected
    names = np.array([f"patient {code}" for code in codes])
    assert compare(a, replace(b, clusters=names), metrics=["nll"], **FAST) == expected
    with pytest.raises(InputError, match="the clusters of a and b differ"):
        compare(a, replace(b, clusters=codes // 2))


# Worse


def test_worse_is_shown_or_not_ruled_out():
    scores, happened, _ = draw_events(2, clusters=300, size=2)
    a, b = make_pair([scores[0], 2 * scores[1]], happened)
    comparison = compare(a, b, metrics=["nll", "auroc", "oe_ratio"])
    assert comparison.is_worse("nll")
    high = comparison["nll"].high
    assert comparison.may_be_worse("nll", 0.99 * high)
    assert not comparison.may_be_worse("nll", 1.01 * high)
    assert not compare(b, a, metrics=["nll"]).is_worse("nll")
    low = comparison["auroc"].low  # higher is better: B is worse by at most −low
    assert comparison.may_be_worse("auroc", 0.99 * -low)
    assert not comparison.may_be_worse("auroc", 1.01 * -low)
    with pytest.raises(InputError, match="oe_ratio has no better direction"):
        comparison.is_worse("oe_ratio")
    with pytest.raises(InputError, match="margin must be at least 0"):
        comparison.may_be_worse("nll", -1.0)
    with pytest.raises(InputError, match="no compared metric"):
        comparison.is_worse("ece")


def test_worse_among_many_metrics_needs_to_stand_after_holm():
    scores, happened, _ = draw_events()
    comparison = compare(*make_pair(scores, happened), metrics=["nll", "brier", "ece"], **FAST)
    hint = replace(comparison["nll"], difference=0.1, low=0.01, high=0.2, p_value=0.03)
    found = replace(comparison, differences={**comparison.differences, "nll": hint})
    assert found["nll"].winner == "a"
    assert not found.is_worse("nll")
    sure = replace(hint, p_value=0.001)
    assert replace(found, differences={**found.differences, "nll": sure}).is_worse("nll")


def test_events_of_two_names_are_refused_and_one_without_a_name_is_not():
    """A model of churn was compared with a model of fraud without a word."""
    rng = np.random.default_rng(0)
    p = rng.random(200)
    y = rng.random(200) < p
    fraud = Predictions.from_events(p, y, event="fraud", name="old")
    churn = Predictions.from_events(p, y, event="churn", name="new")
    with pytest.raises(InputError, match=r"old holds fraud, new churn.*event="):
        compare(fraud, churn, metrics=["nll"], resamples=100)
    unnamed = Predictions.from_events(p, y, name="new")
    assert compare(fraud, unnamed, metrics=["nll"], resamples=100).event == "fraud"
