"""Ranked rows: ties stay together and nothing depends on the order they came in."""

from __future__ import annotations

import pytest
import torch

from calibrant import InputError
from calibrant.functional.ranking import rank
from tests.helpers.metric_cases import DEVICES


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 50.0], ids=["packed", "argsort"])
def test_sums_at_the_ends_of_ties(dtype, spread, device):
    score = torch.tensor([0.5, 0.25, 0.5, 0.75, 0.25, 0.0, -0.0], dtype=dtype) * spread
    wrong = torch.tensor([True, False, False, True, True, True, False])
    ranked = rank(score.to(device), wrong.to(device))
    assert ranked.score.tolist() == [0.0, 0.25 * spread, 0.5 * spread, 0.75 * spread]
    assert ranked.bounds.tolist() == [0, 2, 4, 6, 7]
    assert ranked.values.tolist() == [0, 1, 2, 3, 4]
    assert ranked.num_rows == 7


def test_inside_a_tie_sums_grow_evenly():
    ranked = rank(torch.full((4,), 0.5), torch.tensor([True, False, False, False]))
    values, scores = ranked.up_to(torch.arange(5))
    assert values.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert scores.tolist() == [0, 0.5, 1, 1.5, 2]


def test_packed_and_plain_sorting_agree():
    generator = torch.Generator().manual_seed(0)
    score = torch.rand(5000, generator=generator).mul(500).round().div(500)
    wrong = torch.rand(5000, generator=generator) < 0.3
    packed, plain = rank(score, wrong), rank(score, wrong.double())
    for field in ("score", "bounds", "values"):
        assert torch.equal(getattr(packed, field), getattr(plain, field))
    torch.testing.assert_close(packed.scores, plain.scores, rtol=1e-13, atol=0)


def test_unrankable_inputs_raise():
    with pytest.raises(InputError, match="scores hold NaN, first in rows 1"):
        rank(torch.tensor([0.0, float("nan"), 1.0]), torch.tensor([True, False, True]))
    with pytest.raises(InputError, match="losses hold NaN or infinity, first in rows 0, 2"):
        rank(torch.rand(3), torch.tensor([float("inf"), 0.0, float("nan")]))
