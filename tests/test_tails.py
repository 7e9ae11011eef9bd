"""The number of wrong rows by chance, where few uncertain rows stand among many certain ones."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.evaluation.tails import wrong_tails


def exact(parts, seen):
    """By convolution of binomial laws, each written out by its recurrence."""
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
    chance = np.concatenate([np.full(rows, one) for rows, one in parts])
    np.random.default_rng(0).shuffle(chance)
    assert wrong_tails(chance, seen) == pytest.approx(exact(parts, seen), rel=1e-5)
