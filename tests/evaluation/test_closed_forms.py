"""Intervals that need no resamples agree with resampling, and with slower forms of themselves."""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest
import torch

from calibrant import Predictions, evaluate, metrics
from calibrant.evaluation import intervals
from calibrant.evaluation.bootstrap import ClassCellState, mean_interval
from calibrant.evaluation.inversion import _LIMIT, _fold, _Moments, _Simulator, invert
from calibrant.metrics.base import compute_all
from calibrant.metrics.classwise import ClassBinState, classwise_error
from calibrant.metrics.rank_state import RankState
from calibrant.metrics.toplabel import (
    simulated_smooth_errors,
    smooth_calibration_error,
)


def skewed_rows(number, seed=0):
    return np.random.default_rng(seed).gamma(0.5, size=number)


def test_the_interval_of_a_mean_is_that_of_the_accelerated_bootstrap():
    """BCa with 40,000 resamples is the limit that the closed form approximates."""
    from scipy.stats import bootstrap

    rows = skewed_rows(300)
    word = "rng" if "rng" in inspect.signature(bootstrap).parameters else "random_state"
    seed = {word: np.random.default_rng(0)}  # renamed in SciPy 1.15
    found = bootstrap(
        (rows,), np.mean, n_resamples=40_000, method="BCa", **seed
    ).confidence_interval
    low, high = mean_interval(rows, 0.95)
    width = high - low
    assert low == pytest.approx(found.low, abs=0.03 * width)
    assert high == pytest.approx(found.high, abs=0.03 * width)
    assert high - rows.mean() > rows.mean() - low  # the longer tail gets the longer side


def test_the_interval_of_a_mean_keeps_its_order_for_extreme_rows():
    rows = np.zeros(50)
    rows[0] = 1.0
    low, high = mean_interval(rows, 0.999)
    assert low <= rows.mean() <= high < np.inf
    assert mean_interval(np.ones(5), 0.95) == (1.0, 1.0)


def test_the_interval_of_a_skewed_mean_covers_it():
    inside = 0
    for seed in range(600):
        low, high = mean_interval(skewed_rows(200, seed), 0.95)
        inside += low <= 0.5 <= high
    assert 0.925 <= inside / 600 <= 0.975


def tied_ranks(number=400, seed=0):
    rng = np.random.default_rng(seed)
    score = np.round(rng.beta(3, 1, number), 2)
    state = RankState()
    state.scores.append(torch.from_numpy(score))
    state.losses.append(torch.from_numpy(rng.random(number) > score))
    return state


@pytest.mark.parametrize("name", ["aurc", "e_aurc", "augrc", "failure_auroc"])
def test_influences_of_groups_are_those_of_their_rows(name):
    measure, state = metrics.measure(name), tied_ranks()
    by_row = measure.influence(state)
    by_group, numbers = measure.group_influence(state)
    assert numbers.sum() == pytest.approx(len(by_row))
    for power in (1, 2, 3):
        assert numbers @ by_group**power == pytest.approx((by_row**power).sum(), abs=1e-9)


@pytest.mark.parametrize("name", ["aurc", "e_aurc", "augrc", "failure_auroc"])
def test_the_interval_of_a_ranked_risk_is_as_wide_as_the_bootstrap_s(name):
    measure, state = metrics.measure(name), tied_ranks(2000)
    score, loss = state.concatenate("scores").numpy(), state.concatenate("losses").numpy()
    rng = np.random.default_rng(1)
    values = []
    for _ in range(400):
        rows = rng.integers(0, len(score), len(score))
        drawn = RankState()
        drawn.scores.append(torch.from_numpy(score[rows]))
        drawn.losses.append(torch.from_numpy(loss[rows]))
        values.append(float(measure.compute(drawn)))
    found = intervals.row_intervals({name: measure}, {name: state}, len(score), intervals.Plan())[
        name
    ]
    low, high = np.quantile(values, (0.025, 0.975))
    assert found.high - found.low == pytest.approx(high - low, rel=0.15)
    assert found.low == pytest.approx(low, abs=0.15 * (high - low))


def test_the_mean_of_a_binomials_distance_is_exact_where_rows_are_few():
    from scipy.stats import binom

    rng = np.random.default_rng(0)
    count = rng.integers(1, 60, 200).astype(float)
    chance = rng.random(200) ** 3
    said = count * np.clip(chance + rng.normal(0, 0.05, 200), 0, 1)
    said[:5], chance[:3] = count[:5], 1.0
    mean, second, _ = _fold(count, chance, said)
    few = count * chance * (1 - chance) <= _LIMIT
    assert few.all()
    for n, p, m, first, square in zip(count, chance, said, mean, second, strict=True):
        k = np.arange(n + 1)
        law = binom.pmf(k, n, p)
        assert first == pytest.approx(law @ np.abs(k - m), abs=1e-9)
        assert square == pytest.approx(law @ (k - m) ** 2, abs=1e-9)


def class_totals(number=4000, classes=40):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(number, classes)).astype(np.float32)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    state = ClassBinState(15)
    compute_all([], [(logits, labels)], extra=[state])
    return state.total("totals")


def test_the_law_of_a_sum_of_many_cells_is_that_of_its_draws():
    count, mass, _ = class_totals().numpy().transpose(2, 0, 1)
    mean = np.divide(mass, count, out=np.zeros_like(mass), where=count > 0)
    error = partial(classwise_error, order=1)
    law, draws = _Moments(count, mean, error), _Simulator(count, mean, error, 3000, 0)
    for factor in (1.0, 0.8):
        values = draws(mean * factor)
        assert law.spread(mean * factor) == pytest.approx(values.std(), rel=0.06)
        levels = (0.025, 0.5, 0.975)
        gaps = law.quantiles(mean * factor, levels) - np.quantile(values, levels)
        assert np.abs(gaps).max() < 0.2 * values.std()


def test_moments_and_draws_give_the_same_interval():
    totals, error = class_totals(), partial(classwise_error, order=1)
    by_law = invert(totals, error, additive=True)
    by_draws = invert(totals, error, resamples=1000)
    width = by_draws.high - by_draws.low
    assert by_law.low == pytest.approx(by_draws.low, abs=0.1 * width)
    assert by_law.high == pytest.approx(by_draws.high, abs=0.1 * width)


def test_simulated_smooth_errors_solve_the_same_equation():
    rng = np.random.default_rng(0)
    score = np.sort(rng.beta(3, 1, 240))
    for off in (0.0, 0.05):
        right = rng.normal(40 * (score - off), np.sqrt(40 * score * (1 - score)), (50, 240))
        residual = (40 * score - right) / 9600
        plain = smooth_calibration_error(score, residual, count=512, tolerance=1e-7)
        assert np.abs(simulated_smooth_errors(score, residual) - plain).max() < 5e-6


def test_a_sample_of_rows_shows_the_coupling_of_cells():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(40_000, 4)).astype(np.float32)
    logits[:, 0] += 1
    labels = (0.6 * logits + rng.gumbel(size=logits.shape)).argmax(1)
    whole, some, bins = ClassCellState(15), ClassCellState(15, every=5), ClassBinState(15)
    compute_all([], [(logits, labels)], extra=[whole, some, bins])
    totals = bins.total("totals")
    kept = len(some.concatenate("probs"))
    assert 7_000 < kept < 9_000
    assert some.coupling(totals) == pytest.approx(whole.coupling(totals), rel=0.02)
    assert whole.coupling(totals) > 1.05


def test_the_verdict_takes_the_interval_of_ece_that_a_figure_has(monkeypatch):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(800, 4))
    held = Predictions.from_logits(logits, (logits + rng.gumbel(size=logits.shape)).argmax(1))
    with_figure = evaluate(held, metrics=["ece", "accuracy"])
    without = evaluate(held, metrics=["accuracy"])
    assert with_figure.verdict == without.verdict
    calls = []
    module = evaluate.__globals__
    plain = module["invert"]
    monkeypatch.setitem(module, "invert", lambda *a, **k: calls.append(1) or plain(*a, **k))
    evaluate(held, metrics=["ece"])
    assert not calls
    evaluate(held, metrics={"ece": {"order": 2}})
    assert calls


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", [7, 11])
def test_the_smooth_error_of_probabilities_near_0_and_1_overflows_nowhere(seed):
    """Where both ends of false position differed by rounding alone, the next step was huge."""
    rng = np.random.default_rng(seed)
    happened = rng.random(200) < 0.4
    place = np.where(happened, 6.9, -6.3) + rng.normal(0, 0.02, 200)
    place[:8] *= -rng.random(8)
    rows = Predictions.from_events(1 / (1 + np.exp(-place)), happened)
    figure = evaluate(rows, metrics=["smooth_ece"], resamples=200)["smooth_ece"]
    assert 0 <= figure.low <= figure.high < 0.2
