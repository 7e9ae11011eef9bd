"""Vector, matrix and Dirichlet scaling by objectives other than the likelihood."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from calibrant.calibrators import get
from calibrant.calibrators.methods.affine import fit_affine
from calibrant.calibrators.solvers.multinomial import Ridge
from calibrant.calibrators.solvers.objectives import OBJECTIVES, get_objective
from calibrant.core.errors import InputError
from calibrant.metrics import ece
from tests.calibrators.test_objectives import sample

NAMES = ("vector", "matrix", "dirichlet")
STRENGTH, OFF = 2.0, 5.0
quiet = pytest.mark.filterwarnings("ignore:the best temperature", "ignore:the weights of")


def options(name, times=1.0):
    off = {} if name == "vector" else {"off_diagonal": OFF * times}
    return {"strength": STRENGTH * times} | off


def pieces(name, z, beta, times=1.0):
    """Of NumPy alone: log-probabilities and penalty as functions of the saved numbers."""
    z = z.numpy()
    f = log_softmax(z, 1) if name == "dirichlet" else z - z.mean(1, keepdims=True)
    classes, size = z.shape[1], math.sqrt((f**2).mean())

    def split(flat):
        if name == "vector":
            return np.diag(flat[:classes]), flat[classes:]
        return flat[: classes**2].reshape(classes, classes), flat[classes**2 :]

    def logs(flat):
        weight, intercept = split(flat)
        return log_softmax(f @ weight.T + intercept, 1)

    def penalty(flat):
        weight, intercept = split(flat)
        moved = (weight - beta * np.eye(classes)) * size
        diagonal = (np.diag(moved) ** 2).sum() * (0.01 if name == "dirichlet" else 1.0)
        rest = (moved**2).sum() - (np.diag(moved) ** 2).sum()
        total = STRENGTH * ((intercept**2).sum() + diagonal) + OFF * rest
        return 0.5 * times * total / len(z)

    return logs, penalty


def saved(calibrator):
    weight = calibrator.scale_ if calibrator.name == "vector" else calibrator.weight_
    return torch.cat((weight.flatten(), calibrator.intercept_)).numpy()


def slopes(function, at, step=1e-5):
    each = np.eye(len(at)) * step
    return np.array([(function(at + e) - function(at - e)) / (2 * step) for e in each])


def focal(logs, y):
    true = logs[np.arange(len(y)), y]
    return float(np.mean(-((1 - np.exp(true)) ** 3) * true))


def smoothing(logs, y):
    true = logs[np.arange(len(y)), y]
    return float(np.mean(-0.95 * true - 0.05 * logs.mean(1)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("objective", "loss"), [("focal", focal), ("label_smoothing", smoothing)])
def test_it_is_scipys_optimum(name, objective, loss):
    z, y = sample(250, 3)
    calibrator = get(name, objective=objective, **options(name)).fit(z, y)
    beta = 1 / float(get("temperature", objective=objective).fit(z, y).temperature_)
    logs, penalty = pieces(name, z, beta)

    def value(flat):
        return loss(logs(flat), y.numpy()) + penalty(flat)

    at = saved(calibrator)
    assert np.abs(slopes(value, at)).max() < 1e-5
    best = minimize(value, at * 0 + 0.2, method="BFGS", options={"gtol": 1e-7})
    assert value(at) <= best.fun + 1e-8
    np.testing.assert_allclose(at, best.x, atol=1e-3)


def class_losses(logs, y):
    return np.array([-logs[y == k, k].mean() for k in np.unique(y)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["nd", "mm"])
def test_class_scaled_is_a_fixed_point(name, how):
    """Σ (1+w_i) ∂L_i / Σ (1+w_i) + ∂penalty = 0, w_i at the same place held constant.

    Of classes too different, and under a ridge too strong, for intercepts to make them lose the
    same: there the weights jump.
    """
    z, y = sample(500, 4, seed=4)
    times = 10_000 if name == "dirichlet" else 100  # of which its diagonal has a hundredth
    z[y == 0] = z[y == 0].roll(1, 0)[:, torch.tensor([1, 0, 3, 2])]  # says little
    given = {"objective": "class_scaled", "objective_options": {"normalisation": how}}
    calibrator = get(name, **given, **options(name, times)).fit(z, y)
    beta = 1 / float(get("temperature", **given).fit(z, y).temperature_)
    logs, penalty = pieces(name, z, beta, times)
    at = saved(calibrator)
    base = class_losses(logs(at), y.numpy())
    scaled = (base - base.mean()) / base.std(ddof=1)
    if how == "mm":
        scaled = (base - base.min()) / (base.max() - base.min())
    alpha, b = calibrator.facts_["alpha"], calibrator.facts_["beta"]
    weights = 1 + b / (1 + np.exp(-scaled / alpha)) - b / 2
    weights /= weights.sum()

    def value(flat):
        return weights @ class_losses(logs(flat), y.numpy()) + penalty(flat)

    assert np.abs(slopes(value, at)).max() < 1e-4
    plain = saved(get(name, **options(name, times)).fit(z, y))
    assert np.abs(slopes(value, plain)).max() > 1e-3  # the likelihood's is another place


@pytest.mark.parametrize("full", [False, True])
def test_the_likelihood_as_an_objective_is_the_fast_path(full):
    z, y = sample(300, 4)
    name = "matrix" if full else "vector"
    fast = get(name, **options(name)).fit(z, y)
    f = z - z.mean(1, keepdim=True)
    size = float(f.square().mean().sqrt())
    ridge = Ridge(STRENGTH, STRENGTH, OFF if full else math.inf)
    like = torch.zeros(5 if full else 2, 4, dtype=torch.float64)
    scale, c = fit_affine(f, y, size, get_objective("nll"), ridge, like)
    x = f / size
    out = scale * x + (x @ c[:-1] + c[-1] if full else x * c[0] + c[1])
    torch.testing.assert_close(torch.softmax(out, 1), fast.predict_proba(z), atol=1e-4, rtol=0)


@pytest.mark.sampled(count=6)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_infinite_ridge_is_the_objectives_temperature(name, objective):
    z, y = sample(200, 4)
    held = {"strength": math.inf} | ({} if name == "vector" else {"off_diagonal": math.inf})
    calibrator = get(name, objective=objective, **held).fit(z, y)
    plain = get("temperature", objective=objective).fit(z, y)
    if objective == "ece":  # two searches of a function with steps
        value = float(ece(calibrator(z), y))
        assert value == pytest.approx(float(ece(plain(z), y)), abs=1 / 200)
    else:
        torch.testing.assert_close(
            calibrator.predict_proba(z), plain.predict_proba(z), atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("name", NAMES)
def test_soft_binned_error_is_lower_than_at_its_temperature(name):
    z, y = sample(400, 4, seed=7)
    objective = get_objective("sb_ece")
    calibrator = get(name, objective="sb_ece", **options(name)).fit(z, y)
    temperature = get("temperature", objective="sb_ece").fit(z, y)
    beta = 1 / float(temperature.temperature_)
    _, penalty = pieces(name, z, beta)

    def value(mapped):
        from calibrant.calibrators.solvers.problem import rows_after

        return float(objective.loss(rows_after(mapped, y)))

    assert value(calibrator(z)) + penalty(saved(calibrator)) <= value(temperature(z)) + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_ece_is_the_likelihoods_map_at_one_temperature_and_not_higher(name):
    z, y = sample(400, 4, seed=7)
    plain = get(name, **options(name)).fit(z, y)
    calibrator = get(name, objective="ece", **options(name)).fit(z, y)
    ratio = saved(plain) / saved(calibrator)
    assert ratio == pytest.approx(ratio[0], rel=1e-6)
    assert float(ece(calibrator(z), y)) <= float(ece(plain(z), y)) + 1e-9
    assert calibrator.summary_["changed"] == plain.summary_["changed"]


@pytest.mark.sampled(count=7)
@quiet
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_small_sets_and_saved_options(name, objective):
    for z, y in (
        (torch.tensor([[1.0, 2.0]]), torch.tensor([0])),  # one row
        (torch.zeros(6, 3), torch.arange(6) % 3),  # constant
        (torch.eye(3).repeat(4, 1) * 3, torch.arange(3).repeat(4)),  # separable
        (torch.eye(3)[:2].repeat(6, 1), torch.tensor([0, 1, 1] * 4)),  # a class without rows
    ):
        calibrator = get(name, objective=objective).fit(z, y)
        assert calibrator.predict_proba(z).isfinite().all()
    fresh = get(name, **json.loads(json.dumps(calibrator.options())))
    fresh.load_state_dict(calibrator.state_dict())
    assert torch.equal(fresh(z), calibrator(z))
    assert fresh.objective == objective


def test_bad_objectives_are_refused_at_once():
    for name in NAMES:
        with pytest.raises(InputError, match="objective"):
            get(name, objective="mse")
        with pytest.raises(InputError, match="gama"):
            get(name, objective="focal", objective_options={"gama": 2})
