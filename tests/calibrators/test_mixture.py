"""Stacking of calibrators: weights against a plain search, and the mixture by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant import InputError
from calibrant.calibrators import get
from calibrant.calibrators.methods.mixture import (
    HeldOut,
    assign_folds,
    hold_out,
    mix_held_out,
    mix_losses,
    stack_weights,
)


def drawn(rows=400, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(rows, classes))
    labels = (logits / 1.7 + [0.4, 0.0, -0.4][:classes] + rng.gumbel(size=logits.shape)).argmax(1)
    return torch.from_numpy(logits.astype(np.float32)), torch.from_numpy(labels)


def test_weights_are_the_least_of_a_grid():
    losses = np.random.default_rng(0).gamma(1.5, size=(3, 200))
    losses[0] *= 0.8
    weights = stack_weights(losses)
    assert weights.sum() == pytest.approx(1.0)

    def loss(w):
        return -sum(
            math.log(sum(w[m] * math.exp(-losses[m, n]) for m in range(3))) for n in range(200)
        )

    grid = [(a / 20, b / 20, 1 - (a + b) / 20) for a in range(21) for b in range(21 - a)]
    assert loss(weights) <= min(loss(w) for w in grid) + 1e-3
    assert float(mix_losses(losses, weights).sum()) == pytest.approx(loss(weights), rel=1e-9)


def test_a_worse_copy_gets_nothing_and_infinite_losses_are_met():
    losses = np.random.default_rng(1).gamma(1.5, size=(1, 300))
    weights = stack_weights(np.concatenate((losses, losses + 0.5)))
    assert weights[1] < 0.02
    certain = np.array([[0.0, 800.0], [0.7, 0.7]])
    assert np.isfinite(mix_losses(certain, stack_weights(certain))).all()


def test_a_mixture_is_measured_with_weights_of_other_folds():
    rng = np.random.default_rng(2)
    assigned = np.arange(60) % 3
    parts = [HeldOut(rng.gamma(1.0, size=60), []) for _ in range(2)]
    mixed = mix_held_out(parts, torch.zeros(60, dtype=torch.int64), assigned)
    assert mixed.errors == []  # without outputs no ECE
    both = np.stack([part.losses for part in parts])
    for fold in range(3):
        weights = stack_weights(both[:, assigned != fold])
        expected = [
            -math.log(sum(w * math.exp(-both[m, n]) for m, w in enumerate(weights)))
            for n in np.flatnonzero(assigned == fold)
        ]
        np.testing.assert_allclose(mixed.losses[assigned == fold], expected, rtol=1e-9)


def test_rows_held_out_are_not_fitted_on():
    x, y = drawn(90)
    assigned = assign_folds(y.numpy(), 3, 0)
    held_out = hold_out("temperature", x, y, assigned, keep_outputs=True)
    for fold in range(3):
        out, rest = assigned == fold, assigned != fold
        made = get("temperature").fit(x[rest], y[rest])
        logs = torch.log_softmax(made.calibrate(x[out]).double(), 1)
        expected = -logs.gather(1, y[out].unsqueeze(1)).squeeze(1).numpy()
        np.testing.assert_allclose(held_out.losses[out], expected, atol=1e-6)
        torch.testing.assert_close(held_out.outputs[out], logs.float())


def test_the_map_is_the_mean_of_its_members_probabilities():
    x, y = drawn()
    made = get("mixture", members=["temperature", "vector"], weights=[0.25, 0.75]).fit(x, y)
    parts = [get(name).fit(x, y).predict_proba(x) for name in ("temperature", "vector")]
    torch.testing.assert_close(
        made.predict_proba(x), 0.25 * parts[0] + 0.75 * parts[1], atol=1e-6, rtol=1e-5
    )


def test_fitted_weights_are_those_of_held_out_rows():
    x, y = drawn()
    made = get("mixture", members=["identity", "vector"], seed=3).fit(x, y)
    assigned = assign_folds(y.numpy(), 5, 3)
    each = [hold_out(name, x, y, assigned).losses for name in ("identity", "vector")]
    np.testing.assert_allclose(made.weights_.numpy(), stack_weights(np.stack(each)), atol=1e-8)


def test_a_mixture_of_methods_that_keep_predictions_keeps_them():
    x, y = drawn(seed=5)
    names = ["temperature", "ensemble_temperature", "identity"]
    made = get("mixture", members=names, weights=[0.5, 0.3, 0.2]).fit(x, y)
    assert made.preserves_predictions
    assert not get("mixture").preserves_predictions
    fresh, _ = drawn(3000, seed=6)
    assert bool((made.calibrate(fresh).argmax(1) == fresh.argmax(1)).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": []}, "one or more different names"),
        ({"members": ["beta", "beta"]}, "one or more different names"),
        ({"members": ["mixture"]}, "cannot be part"),
        ({"members": ["local_temperature"]}, "cannot be part"),
        ({"members": ["tempratur"]}, "Did you mean temperature"),
        ({"members": ["beta"], "weights": [0.5, 0.5]}, "as many weights"),
        ({"members": ["beta", "vector"], "weights": [0.5, 0.6]}, "sum to 1"),
        ({"members": ["beta", "vector"], "weights": [1.5, -0.5]}, "not be negative"),
        ({"folds": 1}, "at least 2"),
    ],
)
def test_members_that_cannot_be_mixed_raise(options, message):
    with pytest.raises(InputError, match=message):
        get("mixture", **options)
