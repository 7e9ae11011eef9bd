"""`compare` by group: differences in each, with one correction for all."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant import InputError, Predictions, compare
from calibrant.functional.statistics import holm

FAST = {"resamples": 100, "metrics": ["accuracy", "nll", "brier", "ece"]}


def draw(rng, rows=1600, groups=8, harmed=3, noise=2.5):
    """Two sets of one truth: the second is noisy in one group, and as good in the others."""
    logits = 2 * rng.normal(size=(rows, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random(rows)[:, None]).sum(1).clip(max=2)
    codes = rng.integers(0, groups, rows)
    first = logits + 0.3 * rng.normal(size=logits.shape)
    second = logits + 0.3 * rng.normal(size=logits.shape)
    second[codes == harmed] += noise * rng.normal(size=(int((codes == harmed).sum()), 3))
    ids = np.arange(rows)
    names = np.array([f"site {code}" for code in range(groups)])[codes]
    old = Predictions.from_logits(first, labels, ids=ids, name="old")
    return old, Predictions.from_logits(second, labels, ids=ids, name="new"), names


def test_a_harm_in_one_group_is_found_and_nothing_else():
    old, new, names = draw(np.random.default_rng(0))
    found = compare(old, new, groups=names, **FAST).groups
    assert found.metrics == ("accuracy", "nll", "brier")
    assert {group.value for group, _ in found.find_worse()} == {"site 3"}
    assert found.find_better() == []
    assert found.find_worse("nll")[0][0].may_be_worse("nll", 0.01)
    assert found.describe("new").startswith("By group, new is worse in 1 of 8 (")


def test_the_differences_of_a_group_are_those_of_its_rows_alone():
    old, new, names = draw(np.random.default_rng(1))
    comparison = compare(old, new, groups=names, **FAST)
    rows = np.flatnonzero(names == "site 2")
    alone = compare(old.take(rows), new.take(rows), **FAST)
    group = next(each for each in comparison.groups.groups if each.value == "site 2")
    assert group.num_rows == len(rows)
    for name in comparison.groups.metrics:
        assert group.differences[name].difference == pytest.approx(alone[name].difference)
    values = [
        each.differences[name].p_value
        for each in comparison.groups.groups
        for name in comparison.groups.metrics
    ]
    adjusted = [
        each.p_adjusted[name]
        for each in comparison.groups.groups
        for name in comparison.groups.metrics
    ]
    assert adjusted == pytest.approx(holm(values))
    assert comparison.groups.num_tested == 24
    plain = comparison.to_dict()["groups"]
    assert plain["groups"][3]["shown"]["nll"] == "a"


def test_groups_follow_their_rows_when_ids_are_joined():
    old, new, names = draw(np.random.default_rng(2))
    order = np.random.default_rng(3).permutation(1600)[:1500]
    whole = compare(
        old.take(np.sort(order)), new.take(np.sort(order)), groups=names[np.sort(order)]
    )
    joined = compare(old, new.take(order), groups=names, join="inner")
    for left, right in zip(whole.groups.groups, joined.groups.groups, strict=True):
        assert left.num_rows == right.num_rows
        assert left.differences["nll"].difference == pytest.approx(
            right.differences["nll"].difference
        )


def test_groups_of_few_rows_are_not_tested_and_may_be_worse():
    old, new, _ = draw(np.random.default_rng(4))
    names = np.where(np.arange(1600) < 12, "few", "many")
    few, many = compare(old, new, groups=names, **FAST).groups.groups
    assert (few.value, few.untested) == ("few", "fewer than 20 rows")
    assert few.find_winner("nll") == "neither"
    assert few.may_be_worse("nll", 0.5)
    assert many.untested is None


def test_groups_take_events_labels_and_clusters():
    rng = np.random.default_rng(5)
    said = rng.beta(2, 3, 1200)
    happened, places = rng.random(1200) < said, rng.choice(["a", "b"], 1200)
    clusters = np.arange(1200) // 4
    off = np.where(places == "a", np.clip(said * 1.6, 0, 0.99), said)
    pair = [Predictions.from_events(each, happened, clusters=clusters) for each in (said, off)]
    found = compare(*pair, groups=places, resamples=50).groups
    assert found.metrics == ("nll", "brier")
    assert {group.value for group, _ in found.find_worse()} == {"a"}
    many = rng.beta(2, 3, (600, 3))
    truth = rng.random((600, 3)) < many
    pair = [Predictions.from_multilabel(each, truth, is_logits=False) for each in (many, many**0.5)]
    found = compare(*pair, groups=places[:600], metrics=["nll"]).groups
    assert {group.value for group, _ in found.find_worse()} == {"a", "b"}


def test_wrong_group_metrics_are_refused():
    old, new, names = draw(np.random.default_rng(6))
    with pytest.raises(InputError, match="group_metrics needs groups"):
        compare(old, new, group_metrics=["nll"], **FAST)
    with pytest.raises(InputError, match="aurc"):
        compare(old, new, groups=names, group_metrics=["aurc"], **FAST)


def test_rarely_any_group_of_equal_models_is_called_different():
    alarms = 0
    for seed in range(60):
        old, new, names = draw(np.random.default_rng([7, seed]), rows=600, noise=0.0)
        found = compare(old, new, groups=names, metrics=["nll"], resamples=20).groups
        alarms += bool(found.find_worse() or found.find_better())
    assert alarms <= 8  # 3 of 60 are expected at most; 8 has a chance of 1%
