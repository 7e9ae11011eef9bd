"""Newton's method for vector scaling of few classes: derivatives, optimum, and the search."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.calibrators import get
from calibrant.calibrators.solvers.multinomial import (
    NarrowFits,
    NarrowSearch,
    Ridge,
    RidgeProblem,
    Search,
    cut_folds,
    minimise,
    to_blocks,
)


def rows(count, classes, seed=0, shift=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, classes))
    scores = 1.3 * x + shift * rng.normal(size=classes) + rng.gumbel(size=(count, classes))
    return torch.from_numpy(x), torch.from_numpy(scores.argmax(1))


def penalised(x, y, keep, scale, coefficients, ridge):
    """The loss of the rows kept, by loops over rows and classes."""
    d, b = coefficients
    total = 0.0
    for n in range(len(y)):
        if not keep[n]:
            continue
        out = [(scale + d[k]) * x[n, k] + b[k] for k in range(x.shape[1])]
        total = total + torch.logsumexp(torch.stack(out), 0) - out[int(y[n])]
    return total + 0.5 * (ridge.diagonal * (d**2).sum() + ridge.intercept * (b**2).sum())


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_derivatives_are_those_of_the_loss(classes):
    x, y = rows(40, classes)
    keep = torch.from_numpy(np.random.default_rng(1).random((3, 40)) < 0.7).double()
    at = 0.3 * torch.randn(3, 2, classes, generator=torch.Generator().manual_seed(0)).double()
    fits = NarrowFits(x.t().contiguous(), y, 0.8, keep)
    derivatives = fits.at(at)
    none = Ridge(0.0, 0.0)
    for f in range(3):
        here = at[f].clone().requires_grad_()

        def loss(c, f=f):
            return penalised(x, y, keep[f], 0.8, c, none)

        value = loss(here)
        (gradient,) = torch.autograd.grad(value, here)
        hessian = torch.autograd.functional.hessian(loss, at[f]).reshape(2 * classes, -1)
        assert float((derivatives.losses[f] * keep[f]).sum()) == pytest.approx(
            value.item(), rel=1e-12
        )
        torch.testing.assert_close(
            derivatives.gradient[f], gradient.flatten(), atol=1e-10, rtol=1e-10
        )
        torch.testing.assert_close(derivatives.hessian[f], hessian, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_the_optimum_is_that_of_the_general_solver(strength):
    x, y = rows(600, 6)
    ridge = Ridge(strength, 0.5 * strength)
    start = torch.zeros(2, 6, dtype=torch.float64)
    solution, _ = NarrowFits(x.t().contiguous(), y, 0.7).minimise(
        ridge, start.unsqueeze(0), tolerance=1e-13
    )
    expected = minimise(
        RidgeProblem(to_blocks(x, y), 0.7), ridge, start, tolerance=1e-14, most=2000
    )
    torch.testing.assert_close(solution[0], expected, atol=1e-5, rtol=1e-5)


def test_far_starts_and_separable_rows_are_met_by_shorter_steps():
    x = torch.eye(3, dtype=torch.float64).repeat(30, 1) * 40
    y = torch.arange(3).repeat(30)
    y[0] = 1  # certain and wrong
    ridge = Ridge(0.01, 0.01)
    start = torch.tensor([[[30.0, -30, 30], [50, 0, -50]]], dtype=torch.float64)
    fits = NarrowFits(x.t().contiguous(), y, 1.0)
    solution, seen = fits.minimise(ridge, start, tolerance=1e-10)
    gradient = seen.gradient + 0.01 * solution.flatten(1)
    assert float(gradient.abs().max()) < 1e-3
    assert bool(torch.isfinite(solution).all())


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.5])
def test_all_folds_at_once_find_what_each_alone_does(shift):
    x, y = rows(900, 4, shift=shift)
    folds = cut_folds(x, y, 1.0, 5)
    tries = [Ridge(10.0 ** (3 - i / 2), 10.0 ** (3 - i / 2)) for i in range(11)]
    zero = torch.zeros(2, 4)
    states = []
    for kind in (Search, NarrowSearch):
        search = kind(folds, 1.1, 5, 1e-7)
        states.append(search.down(search.begin(Ridge(math.inf, math.inf), zero), tries))
    alone, all_at_once = states
    assert alone.ridge == all_at_once.ridge
    assert len(alone.losses) == len(y)
    torch.testing.assert_close(alone.losses, all_at_once.losses, atol=2e-3, rtol=0)
    torch.testing.assert_close(alone.mean(), all_at_once.mean(), atol=5e-3, rtol=0)


@pytest.mark.parametrize("method", ["vector", "matrix", "dirichlet"])
def test_the_narrow_way_changes_no_fit(method, monkeypatch):
    x, y = rows(700, 5, seed=2)
    # Compared loosely, strengths that do alike may fall either way.
    monkeypatch.setattr("calibrant.calibrators.methods.affine._LOOSE", 1e-8)
    fast = get(method).fit(x.float(), y)
    monkeypatch.setattr("calibrant.calibrators.methods.affine.MOST_NARROW", 1)
    slow = get(method).fit(x.float(), y)
    torch.testing.assert_close(fast.strengths_, slow.strengths_)
    torch.testing.assert_close(fast.calibrate(x), slow.calibrate(x), atol=1e-3, rtol=0)


def test_a_ridge_too_weak_for_single_precision_is_fitted_all_the_same():
    x, y = rows(300, 3, seed=4)
    made = get("vector", strength=1e-9).fit(x.float(), y)
    near = get("vector", strength=1e-3).fit(x.float(), y)
    probs, expected = made.predict_proba(x), near.predict_proba(x)
    assert float((probs - expected).abs().max()) < 1e-3
