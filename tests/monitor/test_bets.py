"""The formulas of the bets against plain ones, and what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from calibrant.monitor import bets


def naive_log_sum(values, stake, bound):
    return sum(math.log(1 + stake * (x - bound)) for x in values)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 5000])
def test_log_sums_are_those_of_single_factors(count):
    values = np.random.default_rng(count).uniform(-1, 1, count)
    found = bets.log_sums(values, 0.05, -1.0)
    for stake, each in zip(bets.stakes_at(0.05, -1.0), found, strict=True):
        assert each == pytest.approx(naive_log_sum(values, stake, 0.05), rel=1e-9, abs=1e-12)


def test_log_sums_are_finite_at_the_worst_values():
    assert np.isfinite(bets.log_sums(np.full(1000, -1.0), 0.02, -1.0)).all()
    assert np.isfinite(bets.log_sums(np.ones(1000), 1e-4, 0.0)).all()


def test_the_mixture_is_the_sum_over_every_start():
    sums = np.random.default_rng(0).normal(size=(6, 8))
    found = bets.mix(sums)
    for end in range(1, 7):
        total = 0.0
        for start in range(1, end + 1):
            weight = 0.5 / (start * (start + 1)) + (0.5 if start == 1 else 0.0)
            total += weight * np.mean(np.exp(sums[start - 1 : end].sum(0)))
        total += sum(0.5 / (start * (start + 1)) for start in range(end + 1, 200_000))
        assert found.log_value[end - 1] == pytest.approx(math.log(total), abs=1e-4)


def test_the_mixture_is_a_fair_game_at_the_hypothesis():
    """Where E x is the bound, the fortune is 1 on average, over all outcomes of six rows."""
    mean = np.zeros(2)
    for outcomes in itertools.product((0.0, 1.0), repeat=6):
        rows = np.array(outcomes).reshape(2, 3)
        chance = math.prod(0.3 if each else 0.7 for each in outcomes)
        logs = np.array([bets.log_sums(row, 0.3, 0.0) for row in rows])
        mean += chance * np.exp(bets.mix(logs).log_value)
    assert mean == pytest.approx([1, 1])


def test_bounds_cover():
    rng = np.random.default_rng(5)
    said = rng.beta(1, 9, (300, 250))
    gaps = said - (rng.random((300, 250)) < said)
    over = [bets.upper_bound(row, 0.05, -1.0, 1.0) < 0 for row in gaps]
    under = [bets.upper_bound(-row, 0.05, -1.0, 1.0) < 0 for row in gaps]
    assert np.mean(over) <= 0.09
    assert np.mean(under) <= 0.09


def test_a_bound_of_few_or_equal_values_is_exact():
    assert bets.upper_bound(np.empty(0), 0.05, -1.0, 1.0) == 1.0
    # Bets against m lose nothing of zeros: (1 + 0.95 m/(1 − m))^n reaches 1/alpha at the bound.
    found = bets.upper_bound(np.zeros(50), 0.05, 0.0, 1.0)
    stakes = bets.STAKES / (1 - found)
    assert np.mean((1 + stakes * found) ** 50) == pytest.approx(20, rel=0.02)
    assert bets.rate_upper_bound(0, 50, 0.05) == pytest.approx(1 - 0.05 ** (1 / 50))
    assert bets.rate_upper_bound(50, 50, 0.05) == 1.0


def test_confidence_sequences_hold_at_all_times():
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(200):
        rows = (rng.random((30, 40)) < 0.2).astype(float)
        low, high = bets.confidence_sequence(
            np.full(30, 40.0), rows.sum(1), (rows**2).sum(1), alpha=0.05, low=0, high=1, start=0.5
        )
        wrong += bool(((low > 0.2) | (high < 0.2)).any())
    assert wrong <= 0.08 * 200


def test_confidence_sequences_solve_their_equation():
    counts, sums, squares = np.array([50.0, 70.0]), np.array([10.0, 20.0]), np.array([9.0, 14.0])
    low, high = bets.confidence_sequence(
        counts, sums, squares, alpha=0.1, low=-1, high=1, start=0.1
    )
    spread = (9 - 2 * 0.1 * 10 + 50 * 0.01) + (14 - 2 * 0.2 * 20 + 70 * 0.04)
    rates = 0.45 * 2.0 ** -np.arange(12)
    cost = [(-math.log(1 - 2 * rate) - 2 * rate) / 4 for rate in rates]
    half = (high[1] - low[1]) / 2 * 120
    value = np.mean([math.exp(r * half - c * spread) for r, c in zip(rates, cost, strict=True)])
    assert value == pytest.approx(20, rel=1e-6)
    assert (high[1] + low[1]) / 2 == pytest.approx(30 / 120)
