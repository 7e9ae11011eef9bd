"""The number of wrong rows by chance, where few uncertain rows stand among many certain ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from calibrant.evaluation.groups.poisson_binomial import error_count_tails


def convolve_binomials(parts, seen):
    """Compute both tails by convolution of binomial laws, each by its recurrence."""
    whole = np.ones(1)
    for rows, chance in parts:
        mass = [(1 - chance) ** rows]
        for hits in range(min(rows, 400)):
            mass.append(mass[-1] * (rows - hits) / (hits + 1) * chance / (1 - chance))
        whole = np.convolve(whole, mass)
    return whole[: seen + 1].sum(), whole[seen:].sum()


@pytest.mark.parametrize(
    ("parts", "seen"),
    [
        ([(100_000, 0.0), (40, 0.5)], 32),
        ([(100_000, 1e-7), (100, 0.45)], 57),
        ([(1_000_000, 1e-8), (60, 0.6)], 48),
        ([(5_000, 0.001), (300, 0.3), (200, 0.75)], 270),
    ],
)
def test_few_uncertain_rows_are_not_lost_among_many_certain_ones(parts, seen):
    chance = np.concatenate([np.full(rows, each) for rows, each in parts])
    np.random.default_rng(0).shuffle(chance)
    assert error_count_tails(chance, seen) == pytest.approx(
        convolve_binomials(parts, seen), rel=1e-5
    )


def enumerate_outcomes(chance):
    """Compute the distribution of the number of wrong rows, outcome by outcome."""
    mass = np.zeros(len(chance) + 1)
    for outcome in itertools.product((0, 1), repeat=len(chance)):
        mass[sum(outcome)] += np.prod(
            [q if o else 1 - q for q, o in zip(chance, outcome, strict=True)]
        )
    return mass


def test_the_number_of_wrong_rows_has_its_exact_distribution():
    chance = np.array([0.5, 0.01, 0.3, 0.99, 0.5, 1.0, 0.0])
    mass = enumerate_outcomes(chance)
    for seen in range(8):
        below, above = error_count_tails(chance, seen)
        assert below == pytest.approx(mass[: seen + 1].sum(), abs=1e-12)
        assert above == pytest.approx(mass[seen:].sum(), abs=1e-12)


@pytest.mark.parametrize(("rows", "chance"), [(300, 0.1), (5000, 0.001), (9000, 0.3), (30000, 0.4)])
def test_tails_of_equal_chances_are_binomial(rows, chance):
    from scipy.stats import binom

    spread = (rows * chance * (1 - chance)) ** 0.5
    for score in (-4, -2, 0, 2, 4):
        seen = max(0, round(rows * chance + score * spread))
        below, above = error_count_tails(np.full(rows, chance), seen)
        assert below == pytest.approx(binom.cdf(seen, rows, chance), rel=0.01)
        assert above == pytest.approx(binom.sf(seen - 1, rows, chance), rel=0.01)
