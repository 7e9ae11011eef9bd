"""Intervals and tests of rows that have weights or come in clusters."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from calibrant import InputError, Predictions, bootstrap_interval, metrics
from calibrant.evaluation import clustered, evaluate
from calibrant.evaluation.clustered import (
    _exchangeable_p_value,
    _read_rows,
    calibration_test_clustered,
    count_clusters,
    gap_interval,
    has_few_clusters,
    influence_interval,
    jackknife_interval,
    leave_out_weights,
    make_cell_noise,
    mean_influence,
    offset_interval,
    paired_interval,
    proportion_interval,
    ratio_interval,
    sign_flip_test,
    sign_flip_tests,
    slope_direction,
    slope_test,
    swap_test,
    total_test,
)
from calibrant.metrics import event_statistics as statistics

RANKS = np.linspace(0, 1, 2001)[1:-1]
QUANTILES = RANKS, stats.beta.ppf(RANKS, 2, 3)


def draw_clusters(rng, groups=40, size=50, correlation=0.2):
    """Calibrated events whose rows are alike within clusters (Gaussian copula)."""
    clusters = np.repeat(np.arange(groups), size)
    latent = np.sqrt(correlation) * rng.standard_normal(groups)[clusters]
    latent += np.sqrt(1 - correlation) * rng.standard_normal(groups * size)
    p = rng.beta(2, 3, groups * size)
    return p, stats.norm.cdf(latent) < p, clusters


def test_the_mean_has_the_cr2_standard_error_of_the_regression_on_a_constant():
    """Bell and McCaffrey's matrices, written out: X a column of ones, (I − H_gg)^(−1/2)."""
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(6), [1, 2, 3, 5, 8, 13])
    x, w = rng.normal(size=len(clusters)) + clusters, rng.uniform(0.5, 3, len(clusters))
    mean, influence = mean_influence(x, w)
    found = influence_interval(mean, influence, clusters=clusters, weights=w)
    root = np.sqrt(w)  # weighted least squares: y and X multiplied by √w
    total, variance = w.sum(), 0.0
    for group in range(6):
        mine = clusters == group
        hat = np.outer(root[mine], root[mine]) / total
        values, vectors = np.linalg.eigh(np.eye(mine.sum()) - hat)
        adjust = vectors @ np.diag(values**-0.5) @ vectors.T
        residual = root[mine] * (x[mine] - mean)
        variance += (root[mine] @ adjust @ residual / total) ** 2
    assert found.standard_error == pytest.approx(np.sqrt(variance), rel=1e-9)
    assert found.num_clusters == 6
    assert 1 <= found.degrees < 5  # unequal clusters count for fewer


def test_equal_clusters_are_a_sample_of_their_means():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 7)) + rng.normal(size=(12, 1))
    mean, influence = mean_influence(x.ravel())
    found = influence_interval(mean, influence, clusters=np.repeat(np.arange(12), 7))
    means = x.mean(1)
    low, high = stats.t.interval(0.95, 11, means.mean(), stats.sem(means))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.degrees == pytest.approx(11)
    assert found.p_value(0) == pytest.approx(stats.ttest_1samp(means, 0).pvalue)


def test_intervals_of_shares_end_at_one():
    logits = np.array([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.5, 0.0]] * 3)
    labels = np.array([0, 0, 0, 1] * 2 + [0, 1, 1, 1])
    rows = Predictions.from_logits(logits, labels, clusters=np.arange(12))
    found = evaluate(rows, metrics=("failure_auroc", "aurc"), view="top", resamples=100)
    for figure in found.figures.values():
        assert 0 <= figure.low <= figure.value <= figure.high <= 1


def test_neither_scale_of_weights_nor_names_of_clusters_matter():
    rng = np.random.default_rng(2)
    p, y, clusters = draw_clusters(rng, 15, 10)
    w = rng.uniform(0.1, 4, len(p))
    names = np.array([f"patient {c:02d}" for c in clusters])
    for function in (gap_interval, ratio_interval):
        first = function(p, y, weights=w, clusters=clusters)
        second = function(p, y, weights=1e-6 * w, clusters=names)
        assert (second.low, second.high) == pytest.approx((first.low, first.high), rel=1e-9)
    for test in (total_test, slope_test, calibration_test_clustered):
        assert test(p, y, 1e5 * w, names) == pytest.approx(test(p, y, w, clusters), abs=1e-9)
    assert count_clusters(clusters, len(p)) == 15
    assert not has_few_clusters(clusters)
    assert has_few_clusters(clusters[:90])


def test_a_row_a_cluster_is_no_cluster():
    rng = np.random.default_rng(3)
    p = rng.beta(2, 3, 400)
    y, own = rng.random(400) < p, np.arange(400)
    mean, influence = mean_influence(p - y)
    plain, alone = (influence_interval(mean, influence, clusters=c) for c in (None, own))
    assert (alone.low, alone.high) == pytest.approx((plain.low, plain.high), rel=1e-9)
    assert alone.degrees == pytest.approx(plain.degrees)
    equal = influence_interval(mean, influence, weights=np.full(400, 3.0))
    assert (equal.low, equal.high) == pytest.approx((plain.low, plain.high), rel=1e-9)
    names = ("oe_ratio", "brier", "auroc", "calibration_slope", "ece", "ici")
    sets = [Predictions.from_events(p, y), Predictions.from_events(p, y, clusters=own)]
    first, second = (evaluate(each, metrics=names, resamples=300) for each in sets)
    for name in names:
        assert second[name].value == first[name].value
        scale = first[name].high - first[name].low
        assert second[name].low == pytest.approx(first[name].low, abs=0.25 * scale)
        assert second[name].high == pytest.approx(first[name].high, abs=0.25 * scale)


@pytest.mark.parametrize("name", ["calibration_slope", "auroc", "brier_skill", "oe_ratio"])
def test_influence_and_jackknife_of_clusters_agree(name):
    rng = np.random.default_rng(4)
    p, y, clusters = draw_clusters(rng, 60, 20)
    w = rng.uniform(0.5, 2, len(p))

    def value(weights):
        return float(getattr(metrics, name)(p, y.astype(int), from_logits=False, weights=weights))

    if name == "calibration_slope":
        rows = statistics.check_rows(p, y.astype(float), w)
        influence = statistics.line_influence(rows, statistics.fit_recalibration(*rows), 1)
    else:
        influence = getattr(statistics, f"{name}_influence")(p, y.astype(float), w)
    closed = influence_interval(value(w), influence, clusters=clusters, weights=w)
    tiny = 1e-9  # a weight of 0 is refused
    lines = leave_out_weights(len(p), weights=w, clusters=clusters, most=60)
    left = np.array([value(np.maximum(line, tiny)) for line in lines])
    jackknife = jackknife_interval(value(w), left)
    assert closed.standard_error == pytest.approx(jackknife.standard_error, rel=0.08)


def test_a_few_clusters_that_contribute_most_count_for_few_degrees():
    rng = np.random.default_rng(11)
    psi = rng.normal(size=400) * np.repeat(rng.pareto(2, 40), 10)
    psi, clusters = psi - psi.mean(), np.repeat(np.arange(40), 10)
    squares = np.array([psi[clusters == g].sum() ** 2 for g in range(40)])
    # Of a sum of 40 squares: variance 40 (mean fourth power − squared mean square).
    varies = 40 * squares.var() / squares.sum() ** 2
    heavy = influence_interval(0.0, psi, clusters=clusters, heavy_tails=True)
    assert heavy.degrees == pytest.approx(2 / varies)
    assert heavy.degrees < 20
    assert influence_interval(0.0, psi, clusters=clusters).degrees == pytest.approx(39)
    assert influence_interval(0.0, psi, heavy_tails=True) == influence_interval(0.0, psi)
    p, y, clusters = draw_clusters(rng)
    predictions = Predictions.from_events(p, y, clusters=clusters)
    figure = evaluate(predictions, metrics=["calibration_slope"], resamples=100).figures
    rows = statistics.check_rows(p, y.astype(float))
    fit = statistics.fit_recalibration(*rows)
    slope = influence_interval(
        fit.slope, statistics.line_influence(rows, fit, 1), clusters=clusters, heavy_tails=True
    )
    assert slope.degrees < 38
    assert figure["calibration_slope"].low == pytest.approx(slope.low)


def test_the_slope_test_knows_the_law_of_equally_correlated_rows():
    """Written out: the covariance of all rows, its correlation by moments within clusters."""
    p, y, clusters = draw_clusters(np.random.default_rng(3), 12, 15, 0.5)
    w = np.random.default_rng(4).uniform(0.5, 2, len(p))
    w /= w.mean()
    same = (clusters[:, None] == clusters) & ~np.eye(len(p), dtype=bool)
    root, residual = np.sqrt(p * (1 - p)), y - p
    correlation = (np.outer(w * residual, w * residual)[same]).sum()
    correlation /= (np.outer(w * root, w * root)[same]).sum()
    assert 0.05 < correlation < 1
    for test, direction in ((total_test, np.ones_like(p)), (slope_test, slope_direction(p, w))):
        factor = w * direction
        covariance = np.outer(root, root) * (np.eye(len(p)) + correlation * same)
        variance = factor @ covariance @ factor
        score = factor @ residual / np.sqrt(variance)
        skewness = (factor**3 * root**2 * (1 - 2 * p)).sum() / variance**1.5
        bend = skewness * (1 - score**2) * stats.norm.pdf(score) / 6
        tails = stats.norm.cdf(score) + bend, stats.norm.sf(score) - bend
        assert test(p, y, w, clusters, resamples=500) >= 2 * min(tails) - 1e-9
        rows = _read_rows(len(p), w, clusters)
        law = _exchangeable_p_value(rows, p, y, direction)
        assert law == pytest.approx(2 * min(tails), rel=1e-9)


def test_skewed_scores_of_few_clusters_raise_few_alarms_of_the_slope():
    """At 1.25%; flips alone reject 13 of these sets, nearly all for too low a slope."""
    rng, trials, alarms = np.random.default_rng(15), 400, 0
    clusters = np.repeat(np.arange(40), 50)
    for trial in range(trials):
        ranks = []
        for _ in range(2):  # probabilities are alike within clusters, as outcomes are
            common, own = rng.standard_normal(40), rng.standard_normal(2000)
            ranks.append(ndtr(np.sqrt(0.5) * (common[clusters] + own)))
        p = np.interp(ranks[0], *QUANTILES)
        alarms += slope_test(p, ranks[1] < p, None, clusters, resamples=200, seed=trial) < 0.0125
    assert alarms <= 7  # the 86th percentile of Binomial(400, 1.25%)


def test_the_error_of_clusters_may_be_as_large_as_the_gap():
    p, y, clusters = draw_clusters(np.random.default_rng(13), 20, 20, 0.5)
    predictions = Predictions.from_events(p, y, clusters=clusters)
    found = evaluate(predictions, metrics=["ece", "mean_gap"], resamples=100)
    gap = found.figures["mean_gap"]
    assert found.figures["ece"].high >= max(abs(gap.low), abs(gap.high))


def test_few_clusters_flip_every_pattern_of_signs():
    rng = np.random.default_rng(5)
    parts = rng.normal(size=(8, 3))

    def largest(sums):
        return np.abs(sums).max(1)

    patterns = np.array(list(product([1, -1], repeat=8)))
    values = largest(patterns @ parts)
    exact = float((values >= values[0] - 1e-12).mean())
    assert sign_flip_test(parts, largest, draws=1000) == pytest.approx(exact)
    drawn = sign_flip_test(np.tile(parts, (1, 1)), largest, draws=200)  # fewer than 256: drawn
    assert drawn == pytest.approx(exact, abs=0.15)
    alone, adjusted = sign_flip_tests(parts, draws=1000)
    studentised = np.abs(patterns @ (parts / np.sqrt((parts**2).sum(0))))
    assert alone == pytest.approx((studentised >= studentised[0] - 1e-12).mean(0))
    joint = (studentised.max(1)[:, None] >= studentised[0] - 1e-12).mean(0)
    assert adjusted == pytest.approx(joint)
    assert sign_flip_test(np.ones(1), lambda sums: sums[:, 0]) == 1.0
    assert swap_test(parts[:, 0], draws=1000) == pytest.approx(
        float((np.abs(patterns @ parts[:, 0]) >= abs(parts[:, 0].sum()) - 1e-12).mean())
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_comonotone_sums_have_the_law_of_one_number_a_cluster(weighted):
    """Its p-value beside sums of y = [u < p] drawn plainly; and by moments where they are many."""
    rng = np.random.default_rng(5)
    codes = rng.permutation(np.repeat(np.arange(30), 8))
    p, y = rng.beta(1, 4, 240), rng.random(240) < 0.1
    w = rng.uniform(0.5, 2, 240) if weighted else np.ones(240)
    drawn = []
    for _ in range(20_000):
        u = rng.random(30)[codes]
        drawn.append(((u < p) - p) @ w)
    seen = abs((y - p) @ w)
    plain = float((np.abs(drawn) >= seen).mean())
    found = clustered.comonotone_p_value(p, y, w if weighted else None, codes, draws=20_000)
    assert 0.01 < plain < 0.5
    assert found == pytest.approx(plain, abs=0.012)


def test_comonotone_sums_of_many_clusters_have_their_moments(monkeypatch):
    rng = np.random.default_rng(6)
    codes = rng.permutation(np.repeat(np.arange(600), 3))
    p = rng.beta(2, 3, 1800)
    y = rng.random(1800) < 0.94 * p
    drawn = clustered.comonotone_p_value(p, y, None, codes, draws=10_000)
    monkeypatch.setattr(clustered, "_MOST_DRAWN", 10)
    assert clustered.comonotone_p_value(p, y, None, codes) == pytest.approx(drawn, abs=0.015)
    uneven = np.minimum(codes, 20)  # one cluster outweighs the rest: there is no normal limit
    assert clustered.comonotone_p_value(p, ~y, None, uneven) == 1.0


def test_a_proportion_has_korn_and_graubards_interval():
    rng = np.random.default_rng(6)
    clusters = np.repeat(np.arange(25), 8)
    y = rng.random(200) < np.repeat(rng.beta(1, 6, 25), 8)
    rate, n = y.mean(), 200
    means = y.reshape(25, 8).mean(1)
    variance = means.var(ddof=1) / 25
    ratio = stats.t.ppf(0.975, n - 1) / stats.t.ppf(0.975, 24)
    effective = min(n, rate * (1 - rate) / variance * ratio**2)
    x = effective * rate
    low = stats.beta.ppf(0.025, x, effective - x + 1)
    high = stats.beta.ppf(0.975, x + 1, effective - x)
    found = proportion_interval(y, clusters=clusters)
    assert (found.low, found.high) == pytest.approx((low, high))
    plain = proportion_interval(y)
    exact = stats.binomtest(int(y.sum()), n).proportion_ci(method="exact")
    assert (plain.low, plain.high) == pytest.approx((exact.low, exact.high), rel=0.01)
    nothing = proportion_interval(np.zeros(200, dtype=bool), clusters=clusters)
    assert (nothing.value, nothing.low) == (0.0, 0.0)
    assert nothing.high == pytest.approx(1 - 0.025 ** (1 / 25))  # a cluster counts as one row


def test_no_event_at_all_still_bounds_the_ratio_and_the_offset():
    p, none = np.full(1000, 0.02), np.zeros(1000, dtype=bool)
    most = 1 - 0.025 ** (1 / 1000)
    ratio = ratio_interval(p, none)
    assert (ratio.low, ratio.high) == pytest.approx((0, most / 0.02))
    low, high = offset_interval(p, none)
    assert low == -np.inf
    assert high == pytest.approx(np.log(most / (1 - most)) - np.log(0.02 / 0.98))
    figures = evaluate(
        Predictions.from_events(p, none),
        metrics=["oe_ratio", "calibration_in_the_large", "brier_skill", "mean_gap"],
    ).figures
    assert figures["oe_ratio"].high == pytest.approx(ratio.high)
    for name in ("calibration_in_the_large", "brier_skill"):
        assert figures[name].low is None  # infinite: no interval, and no crash


def test_the_noise_of_cells_is_the_covariance_of_their_sums():
    rng = np.random.default_rng(7)
    home, clusters = rng.integers(0, 3, 90), np.repeat(np.arange(30), 3)
    residual, w = rng.normal(size=90), rng.uniform(0.5, 2, 90)
    noise = make_cell_noise(home, residual, (3,), weights=w, clusters=clusters)
    expected = np.zeros((30, 3))
    for cell in range(3):
        mine = home == cell
        gap = (w * residual)[mine].sum() / w[mine].sum()
        for group in range(30):
            rows = mine & (clusters == group)
            share = w[rows].sum() / w[mine].sum()
            expected[group, cell] = (w * (residual - gap))[rows].sum() / np.sqrt(1 - share)
    assert noise.factor == pytest.approx(expected)
    assert noise.rows == pytest.approx([(w[home == c] ** 2).sum() for c in range(3)])
    assert noise.degrees == 29


def test_a_pair_shares_what_its_rows_share():
    rng = np.random.default_rng(8)
    common, clusters = rng.normal(size=300), np.repeat(np.arange(30), 10)
    a, b = (common + 0.1 * rng.normal(size=300) for _ in range(2))
    found = paired_interval(*mean_influence(a), *mean_influence(b), clusters=clusters)
    means = (b - a).reshape(30, 10).mean(1)
    low, high = stats.t.interval(0.95, 29, means.mean(), stats.sem(means))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.high - found.low < 0.1


def test_calibrated_clusters_are_seldom_called_off_and_intervals_hold():
    """40 clusters of 50 rows, correlation 0.2: independent rows would be called off one in four."""
    rng = np.random.default_rng(9)
    trials, names = 150, ("total", "slope", "whole", "naive", "oe_ratio", "brier")
    counts = dict.fromkeys(names, 0)
    for trial in range(trials):
        p, y, clusters = draw_clusters(rng)
        how = {"resamples": 200, "seed": trial}
        counts["total"] += total_test(p, y, None, clusters, **how) < 0.05
        counts["slope"] += slope_test(p, y, None, clusters, **how) < 0.05
        if trial < 50:  # the slowest
            counts["whole"] += calibration_test_clustered(p, y, None, clusters, **how) < 0.05
        counts["naive"] += total_test(p, y, **how) < 0.05
        ratio = ratio_interval(p, y, clusters=clusters)
        counts["oe_ratio"] += ratio.low <= 1 <= ratio.high
        brier = influence_interval(*mean_influence((p - y) ** 2), clusters=clusters)
        counts["brier"] += brier.low <= 0.2 <= brier.high  # E p(1 − p) of Beta(2, 3)
    share = {n: count / (50 if n == "whole" else trials) for n, count in counts.items()}
    for name in ("total", "slope", "whole"):
        assert share[name] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials), share
    assert share["naive"] > 0.2, share
    for name in ("oe_ratio", "brier"):
        assert share[name] >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / trials), share


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"weights": [1.0, 2.0]}, "weights must hold one number for each of the 3 rows"),
        ({"weights": [1.0, 0.0, 2.0]}, "weights must be finite and positive"),
        ({"clusters": [0, 1]}, "clusters must hold one value for each of the 3 rows"),
    ],
)
def test_bad_units_are_named(how, message):
    with pytest.raises(InputError, match=message):
        influence_interval(0.0, np.zeros(3), **how)


def test_the_interval_of_arrays_with_units_is_that_of_evaluate():
    rng = np.random.default_rng(8)
    clusters, names = np.arange(300) // 10, ["ece", "brier", "auroc", "accuracy", "aurc"]
    logits, weights = rng.normal(size=(300, 3)), rng.uniform(0.5, 2, 300)
    labels = rng.integers(0, 3, 300)
    labels[::17] = 9
    units = {"weights": weights, "clusters": [f"patient {code}" for code in clusters]}
    rows = Predictions.from_logits(logits, labels, ignore_index=9, **units)
    found = evaluate(rows, metrics=names, resamples=100)
    for name in names:
        how = {"ignore_index": 9, "resamples": 100, **units}
        interval = bootstrap_interval(metrics.measure(name), logits, labels, **how)
        assert (interval.low, interval.high) == (found[name].low, found[name].high)
    plain = bootstrap_interval(metrics.measure("brier"), logits, labels, ignore_index=9)
    assert plain.low != found["brier"].low
    with pytest.raises(InputError, match="weights"):
        bootstrap_interval(metrics.measure("ece"), logits, labels, weights=weights[1:])
