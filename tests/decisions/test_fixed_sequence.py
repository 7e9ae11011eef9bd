"""The search for thresholds keeps its promise, and its tests are those of the formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import beta, binom

from calibrant.decisions import fixed_sequence, risk_tests
from calibrant.decisions.risk_tests import Design


@pytest.mark.parametrize("limit", [0.01, 0.3])
@pytest.mark.parametrize(("errors", "count"), [(0, 1), (0, 500), (3, 500), (70, 200), (5, 5)])
def test_binomial_p_values_are_the_lower_tail(errors, count, limit):
    p_value = risk_tests.binomial_p_values(np.array([errors]), np.array([count]), limit)[0]
    assert p_value == pytest.approx(binom.cdf(errors, count, limit), rel=1e-10)


def test_betting_p_value_is_the_mean_fortune_over_stakes():
    rng = np.random.default_rng(0)
    losses = (rng.random(300) < 0.02).astype(float)
    weights, clusters = rng.uniform(0.5, 2, 300), rng.integers(0, 80, 300)
    bound, limit = 40.0, 0.1
    p_value = risk_tests.betting_p_value(losses, Design(weights, clusters, bound), limit)
    fortunes = []
    for share in risk_tests.STAKES:
        fortune = 1.0
        for cluster in range(80):
            own = clusters == cluster
            gain = float((weights[own] * (limit - losses[own])).sum())
            fortune *= 1 + share / ((1 - limit) * bound) * gain
        fortunes.append(fortune)
    assert p_value == pytest.approx(min(1, 1 / np.mean(fortunes)), rel=1e-9)


@pytest.mark.parametrize("kind", ["betting", "approximate"])
def test_clustered_tests_rarely_grant_a_risk_at_the_limit(kind):
    """Clusters of five rows that all err together: as rows they would look five times as many."""
    rng = np.random.default_rng(1)
    limit, granted, draws = 0.05, 0, 400
    codes = np.repeat(np.arange(200), 5)
    compute = getattr(risk_tests, f"{kind}_p_value")
    design = Design(None, codes, 5.0 if kind == "betting" else None)
    naive = 0
    for _ in range(draws):
        losses = np.repeat(rng.random(200) < limit, 5).astype(float)
        granted += compute(losses, design, limit) <= 0.05
        naive += binom.cdf(losses.sum(), 1000, limit) <= 0.05
    assert granted / draws <= 0.07
    assert naive / draws > 0.15  # what clusters do to a test that ignores them


def test_approximate_p_value_of_few_clusters_without_errors_grants_nothing():
    design = Design(None, np.repeat(np.arange(20), 500), None)
    assert risk_tests.approximate_p_value(np.zeros(10_000), design, 0.01) > 0.5


def test_grid_is_the_same_in_single_precision_and_holds_every_number():
    grid = fixed_sequence.GRID
    assert np.array_equal(grid, grid.astype(np.float32).astype(np.float64))
    assert (np.diff(grid) > 0).all()
    cells = fixed_sequence.find_cells(np.array([-np.inf, -1e9, grid[100], 0.3, 1e9, np.inf]))
    assert cells.tolist()[:3] == [0, 0, 100]
    assert grid[cells[3]] <= 0.3 < grid[cells[3] + 1]
    assert cells[4] == cells[5] == len(grid) - 1


def test_a_sequence_stops_at_the_first_failure_and_the_next_start_has_its_own_share():
    counts = np.arange(1.0, 101.0)
    p_values = np.full(100, 1e-9)

    def run(starts):
        return fixed_sequence.run_sequence(counts, starts, 0.04, lambda rows: p_values[rows])

    assert run([10, 50]) == 99
    p_values[30] = 0.9
    assert run([10]) == 29
    assert run([10, 50]) == 99  # the second start never saw the failure
    p_values[60] = 0.03
    assert run([10, 50]) == 59  # its share is 0.02
    p_values[30] = 1e-9
    assert run([10, 50]) == 99  # an unbroken sequence brings its share along
    p_values[:] = 0.5
    assert run([10, 50]) == -1


def test_starts_grow_from_the_fewest_rows_that_prove_anything():
    assert fixed_sequence.plan_starts(50, 0.05, 0.05) == []
    assert fixed_sequence.plan_starts(60, 0.05, 0.05) == [
        pytest.approx(np.log(0.05) / np.log(0.95))
    ]
    starts = fixed_sequence.plan_starts(10_000, 0.05, 0.05)
    assert len(starts) == 4
    assert starts[0] == pytest.approx(np.log(0.05 / 4) / np.log(0.95))
    ratios = np.array(starts[1:]) / starts[:-1]
    assert np.allclose(ratios, ratios[0])


def draw_rows(rng, num_rows):
    """Rows whose surest err more often than the next: a single sequence would stop at once."""
    scores = rng.normal(2, 1.5, num_rows)
    risk = 0.5 / (1 + np.exp(1.4 * scores)) + 0.1 * (scores > 5)
    return scores, (rng.random(num_rows) < risk).astype(float)


def test_a_granted_threshold_is_rarely_wrong():
    rng = np.random.default_rng(2)
    scores, losses = draw_rows(rng, 1_000_000)
    cells = fixed_sequence.find_cells(scores)
    used, (counts, errors) = fixed_sequence.count_above(cells, np.ones(len(cells)), losses)
    true_risk = dict(zip(used.tolist(), errors / counts, strict=True))
    best = counts[errors / counts <= 0.05].max() / len(scores)
    broken, shares, draws = 0, [], 300
    for _ in range(draws):
        own_scores, own_losses = draw_rows(rng, 2_000)
        cell = fixed_sequence.find_selective(
            fixed_sequence.find_cells(own_scores), own_losses, 0.05, 0.1, risk_tests.PLAIN
        )
        if cell is not None:
            nearest = used[np.abs(used - cell).argmin()]
            broken += true_risk[int(nearest)] > 0.05
            shares.append(float((scores >= fixed_sequence.GRID[cell]).mean()))
    assert broken / draws <= 0.1 + 3 * (0.1 * 0.9 / draws) ** 0.5
    assert len(shares) > 0.95 * draws
    assert np.mean(shares) > 0.8 * best


@pytest.mark.parametrize(("num_rows", "limit", "delta"), [(58, 0.05, 0.05), (59, 0.05, 0.05)])
def test_the_fewest_rows_of_a_quantile(num_rows, limit, delta):
    """0.95^59 is the first power below 0.05."""
    assert fixed_sequence.find_rank(num_rows, limit, delta) == (num_rows >= 59)


def test_the_rank_of_a_quantile_is_the_largest_whose_beta_law_fits():
    ranks = [j for j in range(1, 501) if beta.sf(0.1, j, 501 - j) <= 0.05]
    assert fixed_sequence.find_rank(500, 0.1, 0.05) == max(ranks)


@pytest.mark.parametrize("bound", [1.0, None])
def test_a_quantile_of_weighted_rows_is_no_higher_than_that_of_plain_ones(bound):
    rng = np.random.default_rng(3)
    scores = rng.normal(size=2_000)
    plain = fixed_sequence.find_quantile(scores, 0.1, 0.05, risk_tests.PLAIN)
    weighted = fixed_sequence.find_quantile(scores, 0.1, 0.05, Design(np.ones(2_000), None, bound))
    assert weighted is not None
    assert np.quantile(scores, 0.05) < weighted <= plain


def test_rows_needed_are_about_those_that_grant_a_threshold():
    rng = np.random.default_rng(4)

    def search(num_rows):
        scores = rng.normal(3, 1.5, num_rows)
        losses = (rng.random(num_rows) < expit(-scores)).astype(float)
        cells = fixed_sequence.find_cells(scores)
        sums = fixed_sequence.count_above(cells, np.ones(num_rows), losses, expit(-scores))[1]
        return sums, fixed_sequence.find_selective(cells, losses, 0.03, 0.05, risk_tests.PLAIN)

    granted = {0.5: 0, 2: 0}
    for _ in range(20):
        sums, cell = search(100)
        assert cell is None
        factor = fixed_sequence.rows_needed(*sums, 0.03, 0.05)
        for times in granted:
            granted[times] += search(round(100 * factor * times))[1] is not None
    assert granted[0.5] <= 16
    assert granted[2] >= 16
    assert fixed_sequence.rows_needed(sums[0], sums[0] / 2, sums[0] / 2, 0.03, 0.05) is None
