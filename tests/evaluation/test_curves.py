"""Curves are what naive float64 versions give, and their promises hold in simulation."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from calibrant import Predictions, evaluate, metrics
from calibrant.core.errors import InputError
from calibrant.evaluation import curves


def draw_events(number, *, seed=0, rare=False, factor=1.0, decimals=None):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 40, number) if rare else rng.beta(1, 2, number)
    if decimals is not None:
        p = np.round(p, decimals)
    return p, (rng.random(number) < np.clip(factor * p, 0, 1)).astype(int)


def smooth_naively(p, y, w, places, width):
    """Return Σ w K (y − p) / Σ w K with the kernel's reflections written out."""
    images = np.arange(-3, 4)
    centres = np.concatenate([2 * i + sign * p for i in images for sign in (1, -1)])
    count = 2 * len(images)
    kernel = np.exp(-0.5 * ((places[:, None] - centres) / width) ** 2)
    residual, weight = np.tile(w * (y - p), count), np.tile(w, count)
    return kernel @ residual / (kernel @ weight)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("decimals", [None, 2])
def test_isotonic_curve_is_that_of_scikit_learn(weighted, decimals):
    p, y = draw_events(800, decimals=decimals)
    w = np.random.default_rng(1).exponential(size=800) if weighted else np.ones(800)
    curve = curves.prepare_corp(curves.pool_rows(p, y, w if weighted else None), resamples=20)
    places = np.unique(p)
    expected = IsotonicRegression().fit(p, y, sample_weight=w).predict(places)
    np.testing.assert_allclose(curve.probability, places, atol=1e-15)
    np.testing.assert_allclose(curve.frequency, expected, atol=1e-12)


def test_band_is_that_of_isotonic_curves_of_rows_drawn_one_by_one():
    p, y = draw_events(300, decimals=2)
    curve = curves.prepare_corp(curves.pool_rows(p, y), resamples=4000)
    rng = np.random.default_rng(5)
    drawn = [
        IsotonicRegression().fit(p, rng.random(300) < p).predict(curve.probability)
        for _ in range(1500)
    ]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    spread = np.std(drawn, axis=0)
    assert np.abs(curve.low - low).max() < 0.35 * spread.max()
    assert np.abs(curve.high - high).max() < 0.35 * spread.max()
    assert np.abs(curve.high - high).mean() < 0.1 * spread.mean()


@pytest.mark.parametrize(
    ("kind", "least", "sets"),
    [("plain", 0.92, 40), ("weighted", 0.92, 40), ("clustered", 0.88, 100)],
)
def test_band_holds_the_curve_of_a_calibrated_model(kind, least, sets):
    rng = np.random.default_rng(2)
    inside = []
    for _ in range(sets):
        p, w, clusters = rng.beta(1, 2, 1500), None, None
        u = rng.random(1500)
        if kind == "weighted":
            w = rng.exponential(size=1500)
        if kind == "clustered":  # a Gaussian copula keeps each row calibrated
            from scipy.stats import norm

            clusters = np.repeat(np.arange(50), 30)
            shared = rng.normal(size=50)[clusters]
            u = norm.cdf(np.sqrt(0.4) * shared + np.sqrt(0.6) * rng.normal(size=1500))
        cells = curves.pool_rows(p, (u < p).astype(int), w, clusters)
        curve = curves.prepare_corp(cells, resamples=100)
        within = (curve.frequency >= curve.low) & (curve.frequency <= curve.high)
        inside.append(np.average(within, weights=cells.weight))
    assert least < np.mean(inside) < 0.985


def test_band_of_clusters_is_wider_and_needs_ten():
    p, y = draw_events(600)
    y = np.repeat(y[::20], 20)  # twenty rows that are all alike
    p = np.repeat(p[::20], 20)
    alone = curves.prepare_corp(curves.pool_rows(p, y), resamples=200)
    together = curves.pool_rows(p, y, None, np.repeat(np.arange(30), 20))
    whole = curves.prepare_corp(together, resamples=200)
    assert np.mean(whole.high - whole.low) > 1.5 * np.mean(alone.high - alone.low)
    few = curves.prepare_corp(curves.pool_rows(p, y, None, np.repeat(np.arange(6), 100)))
    assert np.isnan(few.low).all()
    assert np.isfinite(few.frequency).all()


def test_more_clusters_than_sums_are_joined_without_loss():
    p, y = draw_events(3000)
    w = np.random.default_rng(0).exponential(size=3000)
    clusters = np.arange(3000) // 4
    cells = curves.pool_rows(p, y, w, clusters)
    assert cells.excess.shape == (curves.MOST_CLUSTERS, len(cells.rows))
    np.testing.assert_allclose(
        cells.excess.sum(0), cells.weight * (cells.frequency - cells.probability), atol=1e-9
    )


@pytest.mark.parametrize("rare", [False, True])
def test_kernel_curve_lies_as_far_from_the_diagonal_as_smooth_ece(rare):
    p, y = draw_events(5000, rare=rare, factor=1.6)
    curve = curves.prepare_kernel(curves.pool_rows(p, y))
    far = np.mean(curve.density * np.abs(curve.frequency - curve.probability))
    metric = float(metrics.smooth_ece(p, y, from_logits=False, view="events"))
    assert metric > 0.005
    assert far == pytest.approx(metric, rel=1e-3)
    assert curve.bandwidth == pytest.approx(metric, rel=1e-3)
    assert curve.density.mean() == pytest.approx(1)


def test_kernel_curve_of_few_rows_is_the_reflected_kernel_ratio():
    p, y = draw_events(400, factor=1.5)
    w = np.random.default_rng(3).exponential(size=400)
    curve = curves.prepare_kernel(curves.pool_rows(p, y, w))
    places = np.arange(200, curves.GRID, 400)
    gap = smooth_naively(p, y, w, curve.probability[places], curve.bandwidth)
    expected = curve.probability[places] + gap
    dense = curve.density[places] > 1e-3
    assert dense.sum() > 5
    np.testing.assert_allclose(curve.frequency[places][dense], expected[dense], atol=1e-4)


def test_whole_weights_are_repetitions_to_the_curves_themselves():
    p, y = draw_events(300, decimals=2)
    times = np.random.default_rng(0).integers(1, 4, 300)
    weighted = curves.pool_rows(p, y, times.astype(float))
    repeated = curves.pool_rows(np.repeat(p, times), np.repeat(y, times))
    for name in ("probability", "frequency"):
        for prepare in (curves.prepare_kernel, lambda c: curves.prepare_corp(c, resamples=20)):
            a, b = (getattr(prepare(each), name) for each in (weighted, repeated))
            np.testing.assert_allclose(a, b, atol=1e-9)
    a, b = (curves.prepare_distribution(each) for each in (weighted, repeated))
    np.testing.assert_allclose(a.events, b.events, atol=1e-12)


def test_pooling_many_rows_loses_no_decision_and_hardly_any_curve():
    p, y = draw_events(60_000, rare=True)
    cells = curves.pool_rows(p, y)
    assert len(cells.rows) <= sum(curves.FINE) + 101
    table = metrics.decision_curve(p, y, from_logits=False)
    np.testing.assert_allclose(curves.prepare_decision(cells), table, atol=1e-10)
    order = np.argsort(cells.probability)
    assert (order == np.arange(len(order))).all()
    exact = IsotonicRegression().fit(p, y).predict(cells.probability)
    close = np.abs(curves.prepare_corp(cells, resamples=20).frequency - exact)
    assert np.average(close, weights=cells.weight) < 2e-4


def test_rare_events_are_read_on_a_log_scale():
    rare = curves.pool_rows(*draw_events(20_000, rare=True))
    common = curves.pool_rows(*draw_events(2_000))
    boastful = curves.pool_rows(np.full(1000, 0.25), np.arange(1000) < 9)
    assert [curves.choose_scale(each) for each in (rare, common, boastful)] == [
        "log",
        "linear",
        "log",
    ]
    assert curves.choose_scale(rare, "linear") == "linear"
    assert curves.find_floor(boastful) == pytest.approx(1e-3)
    with pytest.raises(InputError, match="'logarithmic'"):
        curves.choose_scale(rare, "logarithmic")


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_distribution_counts_every_row_once(scale):
    p, y = draw_events(4000, rare=True)
    found = curves.prepare_distribution(curves.pool_rows(p, y), scale=scale)
    assert found.events.sum() == pytest.approx(1)
    assert found.others.sum() == pytest.approx(1)
    inner = np.clip(p, found.edges[0] * (1 + 1e-9), None)
    expected = np.histogram(inner[y == 1], found.edges)[0] / y.sum()
    assert np.abs(found.events - expected).max() < 0.02
    none = curves.prepare_distribution(curves.pool_rows(p, np.zeros_like(y)), scale=scale)
    assert not none.events.any()


def test_evaluation_keeps_the_cells_of_what_it_judges():
    p, y = draw_events(500, decimals=2)
    cells = evaluate(Predictions.from_events(p, y), resamples=100).tallies.cells
    for a, b in zip(cells[:5], curves.pool_rows(p, y)[:5], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 4))
    top = evaluate(Predictions.from_logits(logits, rng.integers(0, 4, 400)), resamples=100)
    assert top.tallies.cells.mean_frequency == pytest.approx(top["accuracy"].value)
    clustered = Predictions.from_events(p, y, weights=1 + p, clusters=np.arange(500) % 20)
    found = evaluate(clustered, resamples=100).tallies.cells
    assert found.excess.shape[0] == 20
    assert found.mean_probability == pytest.approx(np.average(p, weights=1 + p))
