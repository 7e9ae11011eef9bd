"""Shares of classes, counted and stated."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant import InputError
from calibrant.predictions.shares import count_shares, read_shares


def test_shares_are_counted_with_weights():
    labels = np.array([0, 1, 1, 3])
    np.testing.assert_allclose(count_shares(labels, 4), [0.25, 0.5, 0, 0.25])
    weights = np.array([3.0, 1.0, 1.0, 5.0])
    np.testing.assert_allclose(count_shares(labels, 4, weights), [0.3, 0.2, 0, 0.5])


@pytest.mark.parametrize(
    ("given", "options", "shares"),
    [
        (0.05, {}, [0.95, 0.05]),
        (np.float32(0.25), {}, [0.75, 0.25]),
        (0.05, {"positive": 0}, [0.05, 0.95]),
        ({"yes": 0.05}, {"class_names": ["no", "yes"]}, [0.95, 0.05]),
        ({"no": 0.05}, {"class_names": ["no", "yes"]}, [0.05, 0.95]),
        ({"fraud": 0.05}, {"event": "fraud"}, [0.95, 0.05]),
        ({1: 0.4, 0: 0.6}, {}, [0.6, 0.4]),
        ([0.333, 0.333, 0.333], {"num_classes": 3}, [1 / 3] * 3),
        (np.array([0.2, 0.3, 0.5]), {"num_classes": 3}, [0.2, 0.3, 0.5]),
    ],
)
def test_stated_shares_are_read(given, options, shares):
    found = read_shares(given, **{"num_classes": 2, **options})
    np.testing.assert_allclose(found, shares, atol=1e-7)


@pytest.mark.parametrize("given", ["many", True, [0.5, True], {"yes": "x"}, np.inf, [0.5, np.nan]])
def test_what_is_no_share_is_refused(given):
    with pytest.raises(InputError, match="numbers between 0 and 1"):
        read_shares(given, num_classes=2, class_names=["no", "yes"])


def test_negative_shares_are_refused():
    with pytest.raises(InputError, match=r"above 0, found -0\.2 for no"):
        read_shares([-0.2, 0.9], num_classes=2, class_names=["no", "yes"])
