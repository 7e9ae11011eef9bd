"""Power, correlations and shares against integrals and simulations."""

from __future__ import annotations

import math
import statistics as standard

import numpy as np
import pytest

from replication.claims import power_analysis as ours
from tests.helpers.students_t import simpson, t_edge


def normal_tail(value):
    return 0.5 * math.erfc(value / math.sqrt(2))


def power(effect, deviation, count):
    """The t-test's power: Z + shift over a chi variable, integrated over the latter."""
    df, shift = count - 1, abs(effect) / deviation * math.sqrt(count)
    edge = t_edge(df)

    def part(u):  # u² df is chi-squared
        log = (df - 1) * math.log(u) - df * u * u / 2
        log += math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2)
        beyond = normal_tail(edge * u - shift) + normal_tail(edge * u + shift)
        return math.exp(log) * beyond

    return simpson(part, 1e-9, 8.0)


@pytest.mark.parametrize("count", [3, 5, 12])
@pytest.mark.parametrize("effect", [0.2, 1.0, 2.5])
def test_power_is_that_of_the_noncentral_t(count, effect):
    assert ours.compute_power(effect, 1.3, count) == pytest.approx(
        power(effect, 1.3, count), abs=1e-6
    )


def test_power_by_simulation():
    generator = np.random.default_rng(1)
    rows = generator.normal(0.9, 1.0, (20_000, 6))
    score = rows.mean(1) / (rows.std(1, ddof=1) / math.sqrt(6))
    share = (np.abs(score) > t_edge(5)).mean()
    assert ours.compute_power(0.9, 1.0, 6) == pytest.approx(share, abs=0.012)


@pytest.mark.parametrize("count", [3, 4, 6, 10, 51, 501])
def test_power_rises_with_the_effect(count):
    shifts = np.linspace(0.01, 45, 300)
    powers = [ours.compute_power(shift, math.sqrt(count), count) for shift in shifts]
    assert np.isfinite(powers).all()
    assert (np.diff(powers) > -1e-7).all()
    assert powers[-1] == pytest.approx(1.0)


def test_power_goes_to_one_and_to_the_level():
    assert ours.compute_power(1e6, 1.0, 3) == pytest.approx(1.0)
    assert ours.compute_power(1e-12, 1.0, 4) == pytest.approx(0.05, abs=1e-9)
    assert ours.compute_power(0.1, 0.0, 3) == 1.0


@pytest.mark.parametrize("count", [3, 4, 5, 10, 20])
def test_the_detectable_effect_is_seen_four_times_of_five(count):
    effect = ours.compute_detectable(0.02, count)
    assert power(effect, 0.02, count) == pytest.approx(0.8, abs=1e-5)


def test_two_pairs_show_nothing():
    assert ours.compute_detectable(0.1, 2) is None


def test_the_seeds_needed_are_the_fewest():
    for effect in (0.5, 1.0, 2.0):
        needed = ours.count_seeds_needed(effect, 1.0)
        brute = next(n for n in range(3, 60) if power(effect, 1.0, n) >= 0.8)
        assert needed == brute
    assert ours.count_seeds_needed(50.0, 1.0) == 3
    assert ours.count_seeds_needed(0.001, 1.0) is None
    assert ours.count_seeds_needed(0.0, 0.0) is None
    assert ours.count_seeds_needed(0.1, 0.0) == 3


def test_correlation_is_pearsons():
    first, second = [1.0, 2.0, 4.0, 3.0, 7.0], [2.0, 1.0, 5.0, 4.0, 6.0]
    z, variance = ours.compute_fisher_z(first, second)
    assert math.tanh(z) == pytest.approx(standard.correlation(first, second), rel=1e-12)
    assert variance == pytest.approx(1 / 2)
    assert ours.compute_fisher_z([1.0] * 5, second)[1] == math.inf
    assert ours.compute_fisher_z([1.0, 2.0], [1.0, 3.0])[1] == math.inf


def test_difference_of_correlations_has_its_stated_variance():
    generator = np.random.default_rng(2)
    scores = []
    for _ in range(400):
        common = generator.normal(size=60)
        first = 0.6 * common + generator.normal(size=60)
        second = 0.6 * common + generator.normal(size=60)
        gap, variance = ours.compare_correlations(list(first), list(second), list(common))
        scores.append(gap / math.sqrt(variance))
    assert np.mean(scores) == pytest.approx(0, abs=0.13)
    assert np.std(scores) == pytest.approx(1, abs=0.1)


def test_difference_of_correlations_has_the_right_sign():
    common = [float(i) for i in range(12)]
    close = [value + 0.1 * (-1) ** i for i, value in enumerate(common)]
    loose = [value + 6.0 * (-1) ** (i // 2) for i, value in enumerate(common)]
    assert ours.compare_correlations(close, loose, common)[0] > 0
    assert ours.compare_correlations(loose, close, common)[0] < 0


def test_estimates_are_combined_by_their_precision():
    value, variance = ours.combine_estimates([(1.0, 0.5), (4.0, 0.25), (math.nan, math.inf)])
    assert value == pytest.approx((2 * 1.0 + 4 * 4.0) / 6)
    assert variance == pytest.approx(1 / 6)
    assert ours.combine_estimates([])[1] == math.inf


@pytest.mark.parametrize(("wins", "count"), [(35, 42), (0, 5), (3, 3), (5, 10)])
def test_wilsons_interval_inverts_the_score_test(wins, count):
    share = wins / count
    for edge in ours.wilson(wins, count):
        if 1e-12 < edge < 1 - 1e-12:
            reach = 1.959963984540054 * math.sqrt(edge * (1 - edge) / count)
            assert abs(share - edge) == pytest.approx(reach, rel=1e-9)
