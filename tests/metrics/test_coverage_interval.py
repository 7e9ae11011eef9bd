"""The interval of the share acceptable at a risk holds the truth, however the share is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import beta, binom

from calibrant import Predictions, bootstrap_interval, evaluate, metrics
from calibrant.metrics import coverage_interval as acceptance
from calibrant.metrics.coverage_interval import coverage_interval
from calibrant.metrics.rank_state import RankState


def state_of(score, loss, kind="zero_one"):
    state = RankState(loss=kind)
    state.scores.append(torch.as_tensor(np.asarray(score, dtype=np.float64)))
    state.losses.append(torch.as_tensor(np.asarray(loss)))
    return state


def drawn(rng, num_rows, low=0.55):
    """Calibrated confidences low + (1 − low)·Beta(3, 1), and which rows are wrong."""
    confidence = low + (1 - low) * rng.beta(3, 1, size=num_rows)
    return confidence, rng.random(num_rows) > confidence


def true_share(low=0.55, risk=0.05):
    def excess(u):
        return (1 - low) * (1 - 0.75 * (1 - u**4) / (1 - u**3)) - risk

    return 1.0 if excess(0) <= 0 else 1 - brentq(excess, 0, 1 - 1e-9) ** 3


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("num_rows", [200, 1000])
@pytest.mark.parametrize("low", [0.55, 0.78, 0.9])
def test_the_interval_holds_the_true_share(num_rows, low):
    """Of 300 sets at least 95%."""
    rng = np.random.default_rng(num_rows)
    truth, inside = true_share(low), 0
    for _ in range(300):
        least, most = coverage_interval(state_of(*drawn(rng, num_rows, low)), 0.05, 0.95)
        inside += least <= truth <= most
    assert inside >= 285, inside


def test_the_interval_narrows_and_is_not_all_there_is():
    rng = np.random.default_rng(0)
    widths = []
    for num_rows in (200, 1000, 5000, 50_000):
        ends = [coverage_interval(state_of(*drawn(rng, num_rows)), 0.05, 0.95) for _ in range(20)]
        widths.append(np.mean([high - low for low, high in ends]))
    assert widths == sorted(widths, reverse=True)
    assert widths[2] < 0.3
    assert widths[3] < 0.1


def test_a_share_that_is_not_there_is_not_granted():
    """No threshold has a risk of 5% here, but of few rows the luckiest often shows it."""
    rng = np.random.default_rng(1)
    granted = shown = 0
    for _ in range(300):
        confidence, _ = drawn(rng, 300)
        wrong = rng.random(300) < 0.1
        state = state_of(confidence, wrong)
        granted += coverage_interval(state, 0.05, 0.95)[0] > 0
        shown += metrics.measure("coverage_at_risk").compute(state).item() > 0.02
    assert shown > 100
    assert granted <= 6


def by_hand(score, wrong, risk, level=0.95):
    """The same tests, candidate by candidate, for rows without ties."""
    order = np.argsort(-score)
    wrong, number, error = wrong[order], len(score), 1 - level
    few = [binom.cdf(wrong[:k].sum(), k, risk) for k in range(1, number + 1)]
    many = [binom.sf(wrong[:k].sum() - 1, k, risk) for k in range(1, number + 1)]
    grid = [float(number)]
    while (1 - risk) ** (0.65 * grid[-1]) <= 0.25 * error / (len(grid) + 1):
        grid.append(0.65 * grid[-1])
    granted = [k for k in np.ceil(grid).astype(int) if few[k - 1] <= 0.25 * error / len(grid)]
    refuted = []
    for k in range(number + 1):
        short = [k > 0 and few[k - 1] <= 0.2 * error, k < number and few[k] <= 0.2 * error]
        refuted.append(bool((k > 0 and many[k - 1] <= 0.35 * error) or all(short)))
    alone = list(refuted)
    for k in range(1, number):
        refuted[k] = alone[k - 1] and alone[k] and alone[k + 1]
    left = [k for k in range(number + 1) if not refuted[k] and k >= max(granted, default=0)]
    low = beta.ppf(0.1 * error, left[0], number - left[0] + 1) if left[0] else 0.0
    high = beta.ppf(1 - 0.1 * error, left[-1] + 1, number - left[-1]) if left[-1] < number else 1.0
    return low, high


@pytest.mark.parametrize(
    ("num_rows", "low", "risk"), [(60, 0.55, 0.2), (300, 0.8, 0.1), (900, 0.7, 0.05)]
)
def test_the_interval_is_that_of_the_tests_by_hand(num_rows, low, risk):
    rng = np.random.default_rng(num_rows)
    for _ in range(5):
        score, wrong = drawn(rng, num_rows, low)
        actual = coverage_interval(state_of(score, wrong), risk, 0.95)
        np.testing.assert_allclose(actual, by_hand(score, wrong, risk), atol=1e-9)


def test_the_plug_in_value_lies_within():
    rng = np.random.default_rng(2)
    for num_rows in (2, 5, 40, 200, 1000):
        for low in (0.3, 0.55, 0.9):
            state = state_of(*drawn(rng, num_rows, low))
            value = metrics.measure("coverage_at_risk").compute(state).item()
            least, most = coverage_interval(state, 0.05, 0.95)
            assert 0 <= least <= value <= most <= 1


def test_corners():
    ones = np.linspace(0.5, 1, 200)
    right, wrong = np.zeros(200, dtype=bool), np.ones(200, dtype=bool)
    low, high = coverage_interval(state_of(ones, right), 0.05, 0.95)
    assert high == 1
    assert low > 0.95  # of 200 rows none is wrong: all can be accepted
    assert coverage_interval(state_of(ones, right), 0.0, 0.95) == (0.0, 1.0)  # 0 is never shown
    low, high = coverage_interval(state_of(ones, wrong), 0.05, 0.95)
    assert low == 0
    assert high < 0.1
    assert coverage_interval(state_of(ones, wrong), 1.0, 0.95)[1] == 1
    tied = coverage_interval(state_of(np.ones(200), right), 0.05, 0.95)
    assert tied[1] == 1
    assert tied[0] > 0.9


def test_a_higher_level_gives_a_wider_interval():
    rng = np.random.default_rng(3)
    state = state_of(*drawn(rng, 2000))
    narrow, wide = (coverage_interval(state, 0.05, level) for level in (0.9, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_of_very_many_rows_some_thresholds_say_as_much(monkeypatch):
    rng = np.random.default_rng(4)
    state = state_of(*drawn(rng, 15_000))
    whole = coverage_interval(state, 0.05, 0.95)
    monkeypatch.setattr(acceptance, "_MOST", 3_000)
    np.testing.assert_allclose(coverage_interval(state, 0.05, 0.95), whole, atol=0.005)


def test_other_losses_have_an_interval_that_holds_the_truth():
    """Losses u uniform in [0, 2·(1 − score)]: the mean of the surest share s is s/2."""
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(200):
        score = rng.random(800)
        loss = 2 * (1 - score) * rng.random(800)
        low, high = coverage_interval(state_of(score, loss, "brier"), 0.2, 0.95)
        inside += low <= 0.4 <= high
        assert high - low < 0.5
    assert inside >= 186, inside


def test_evaluate_takes_it_and_says_where_rows_are_too_few():
    rng = np.random.default_rng(6)
    confidence, wrong = drawn(rng, 200)
    probs = np.stack((1 - confidence, confidence), axis=1)
    predictions = Predictions.from_probs(probs, 1 - wrong)
    few: dict = {"resamples": 100, "view": "top"}
    actual = evaluate(predictions, metrics=["coverage_at_risk"], **few)["coverage_at_risk"]
    expected = coverage_interval(state_of(confidence, wrong), 0.05, 0.95)
    assert (actual.low, actual.high) == pytest.approx(expected)
    assert actual.low == 0 < actual.value
    assert "too few rows to show" in actual.note
    looser = evaluate(predictions, metrics={"coverage_at_risk": {"risk": 0.3}}, **few)
    assert looser["coverage_at_risk"].label == "Coverage at 30% risk"
    assert looser["coverage_at_risk"].note is None
    assert looser["coverage_at_risk"].low > 0.9
    alone = bootstrap_interval(
        metrics.measure("coverage_at_risk"), probs, 1 - wrong, from_logits=False, resamples=100
    )
    assert (alone.low, alone.high) == pytest.approx(expected)
