"""Vector, matrix and Dirichlet scaling: penalised optimum, limits, hard cases, real data."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from calibrant.calibrators import Calibrator, get
from calibrant.calibrators.methods.affine import AffineCalibrator
from calibrant.calibrators.solvers.multinomial import Ridge, RidgeProblem, minimise, to_blocks
from calibrant.core.errors import InputError

NAMES = ("vector", "matrix", "dirichlet")


def draw(rows: int, classes: int, seed: int = 0, tilt: float = 0.0) -> tuple[Any, Any]:
    """Logits twice too large, classes ``tilt`` apart in their intercepts."""
    generator = np.random.default_rng(seed)
    z = 2.0 * generator.normal(size=(rows, classes))
    true = z / 2 + tilt * np.arange(classes)
    noise = generator.gumbel(size=z.shape)
    return z, (true + noise).argmax(1)


def fitted(name: str, z: Any, y: Any, **options: Any) -> Calibrator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return get(name, **options).fit(z, y)


def features(name: str, z: Any) -> Any:
    return log_softmax(z, 1) if name == "dirichlet" else z - z.mean(1, keepdims=True)


def penalised(name: str, z: Any, y: Any, beta: float, strength: float, off: float) -> Any:
    """The objective of the docstring, in the parameters that are saved: weight, intercept."""
    f = features(name, z)
    classes = z.shape[1]
    size = math.sqrt((f**2).mean())
    share = 0.01 if name == "dirichlet" else 1.0

    def objective(flat: Any) -> float:
        if name == "vector":
            weight, intercept = np.diag(flat[:classes]), flat[classes:]
        else:
            weight = flat[: classes**2].reshape(classes, classes)
            intercept = flat[classes**2 :]
        out = f @ weight.T + intercept
        losses = -log_softmax(out, 1)[np.arange(len(y)), y]
        moved = (weight - beta * np.eye(classes)) * size
        diagonal = np.diag(moved)
        rest = moved - np.diag(diagonal)
        penalty = strength * ((intercept**2).sum() + share * (diagonal**2).sum())
        return float(losses.sum() + 0.5 * (penalty + off * (rest**2).sum()))

    return objective


def parameters(calibrator: Any) -> Any:
    weight = calibrator.scale_ if calibrator.name == "vector" else calibrator.weight_
    return torch.cat((weight.flatten(), calibrator.intercept_)).numpy()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("classes", [2, 4])
def test_it_is_scipys_optimum(name: str, classes: int) -> None:
    z, y = draw(300, classes, tilt=0.3)
    strength, off = 2.0, 5.0
    options = {} if name == "vector" else {"off_diagonal": off}
    calibrator = fitted(name, z, y, strength=strength, **options)
    beta = 1.0 / float(fitted("temperature", z, y).temperature_)  # type: ignore[arg-type]
    objective = penalised(name, z, y, beta, strength, off)
    mine = parameters(calibrator)
    best = minimize(objective, mine * 0 + 0.1, method="BFGS", options={"gtol": 1e-6})
    assert objective(mine) <= best.fun + 1e-5
    np.testing.assert_allclose(mine, best.x, atol=1e-3)


@pytest.mark.parametrize("full", [False, True])
def test_the_solver_reaches_the_optimum_to_1e_6(full: bool) -> None:
    z, y = draw(200, 3, tilt=0.5)
    x, target = torch.as_tensor(z), torch.as_tensor(y)
    problem = RidgeProblem(to_blocks(x, target), 0.4)
    ridge = Ridge(1.0, 3.0, 7.0)
    zero = torch.zeros(4 if full else 2, 3, dtype=torch.float64)
    weights = ridge.weights(zero)
    solution = minimise(problem, ridge, zero, tolerance=1e-17, most=500)

    def naive(flat: Any) -> float:
        c = flat.reshape(zero.shape)
        out = 0.4 * z + (z @ c[:3] + c[3] if full else z * c[0] + c[1])
        loss = -log_softmax(out, 1)[np.arange(len(y)), y].sum()
        return float(loss + 0.5 * (weights.numpy() * c**2).sum())

    best = minimize(naive, zero.numpy().ravel(), method="BFGS", options={"gtol": 1e-9})
    value, gradient = problem.value_and_gradient(solution, weights)
    assert value == pytest.approx(naive(solution.numpy().ravel()), rel=1e-12)
    assert float(gradient.abs().max()) < 1e-6  # the optimality condition
    np.testing.assert_allclose(solution.numpy().ravel(), best.x, atol=1e-6)


@pytest.mark.parametrize("full", [False, True])
def test_gradient_and_curvature_are_those_of_the_value(full: bool) -> None:
    z, y = draw(40, 3)
    problem = RidgeProblem(to_blocks(torch.as_tensor(z), torch.as_tensor(y)), 0.7)
    start = torch.zeros(4 if full else 2, 3, dtype=torch.float64)
    weights = Ridge(1.0, 2.0, 3.0).weights(start)
    actual = problem.curvature(start)
    curvature = actual.diagonal + weights
    _, gradient = problem.value_and_gradient(start, weights)
    for i in range(start.shape[0]):
        for j in range(3):
            step = torch.zeros_like(start)
            step[i, j] = 1e-5
            up, slope_up = problem.value_and_gradient(step, weights)
            down, slope_down = problem.value_and_gradient(-step, weights)
            assert float(gradient[i, j]) == pytest.approx((up - down) / 2e-5, abs=1e-6)
            second = float(slope_up[i, j] - slope_down[i, j]) / 2e-5
            assert float(curvature[i, j]) == pytest.approx(second, rel=1e-6)
            if i < start.shape[0] - 1:  # with the class's own intercept
                crossed = float(slope_up[-1, j] - slope_down[-1, j]) / 2e-5
                assert float(actual.crossed[i, j]) == pytest.approx(crossed, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_an_infinite_ridge_is_temperature(name: str) -> None:
    z, y = draw(200, 5, tilt=0.4)
    options = {} if name == "vector" else {"off_diagonal": math.inf}
    calibrator = fitted(name, z, y, strength=math.inf, **options)
    expected = fitted("temperature", z, y).predict_proba(z)
    np.testing.assert_allclose(calibrator.predict_proba(z), expected, atol=1e-9)
    assert calibrator.summary_["changed"] == 0


def test_an_infinite_off_diagonal_is_vector_scaling() -> None:
    z, y = draw(200, 5, tilt=0.4)
    matrix = fitted("matrix", z, y, strength=3.0, off_diagonal=math.inf)
    vector = fitted("vector", z, y, strength=3.0)
    np.testing.assert_allclose(matrix.predict_proba(z), vector.predict_proba(z), atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_shift_of_a_rows_logits_changes_nothing(name: str) -> None:
    z, y = draw(200, 4, tilt=0.4)
    shifted = z + np.linspace(-5, 5, len(z))[:, None]
    first, other = fitted(name, z, y), fitted(name, shifted, y)
    np.testing.assert_allclose(first.predict_proba(z), other.predict_proba(shifted), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_scale_of_logits_changes_nothing(name: str) -> None:
    z, y = draw(300, 4, tilt=0.4)
    options = {"strength": 2.0} if name == "vector" else {"strength": 2.0, "off_diagonal": 2.0}
    if name == "dirichlet":
        pytest.skip("ln softmax is not homogeneous")
    first, other = fitted(name, z, y, **options), fitted(name, 10 * z, y, **options)
    np.testing.assert_allclose(first.predict_proba(z), other.predict_proba(10 * z), atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_auto_finds_tilted_classes_and_leaves_calibrated_ones(name: str) -> None:
    z, y = draw(2000, 4, tilt=0.8)
    fresh_z, fresh_y = draw(4000, 4, seed=1, tilt=0.8)
    rows = np.arange(len(fresh_y))

    def nll(calibrator: Calibrator, scores: Any, labels: Any) -> float:
        return float(-np.log(calibrator.predict_proba(scores)[rows, labels]).mean())

    assert nll(fitted(name, z, y), fresh_z, fresh_y) < 0.97 * nll(
        fitted("temperature", z, y), fresh_z, fresh_y
    )
    z, y = draw(300, 10)
    fresh_z, fresh_y = draw(4000, 10, seed=1)
    before = nll(fitted("temperature", z, y), fresh_z, fresh_y)
    assert nll(fitted(name, z, y), fresh_z, fresh_y) < before + 0.01


HARD: dict[str, tuple[Any, Any]] = {
    "two classes": draw(50, 2),
    "one row": (np.array([[1.0, 2.0, 0.5]]), np.array([1])),
    "two rows": (np.array([[1.0, 2.0, 0.5], [0.0, 0.0, 1.0]]), np.array([1, 0])),
    "constant logits": (np.full((60, 3), 4.0), np.arange(60) % 3),
    "a class without rows": (draw(80, 4)[0], draw(80, 4)[1] % 3),
    "one class only": (draw(80, 4)[0], np.zeros(80, dtype=np.int64)),
    "separable": (draw(80, 4)[0], draw(80, 4)[0].argmax(1)),
    "wrong throughout": (draw(80, 4)[0], draw(80, 4)[0].argmin(1)),
    "huge logits": (1e6 * draw(80, 4)[0], draw(80, 4)[1]),
    "more classes than rows": draw(30, 60),
    "identical rows": (np.tile([[3.0, 1.0, 0.0]], (40, 1)), np.arange(40) % 3),
}


@pytest.mark.sampled(count=20)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", HARD)
def test_hard_data_stay_finite_and_no_worse_than_temperature(
    name: str, dtype: str, case: str
) -> None:
    z, y = HARD[case]
    z = z.astype(dtype)
    calibrator = fitted(name, z, y)
    assert all(bool(torch.isfinite(v).all()) for v in parameters_of(calibrator))
    probs = calibrator.predict_proba(z)
    assert np.isfinite(probs).all()
    assert calibrator.calibrate(z).dtype == z.dtype
    temperature = fitted("temperature", z, y)
    assert calibrator.summary_["nll_after"] <= temperature.summary_["nll_after"] + 1e-5


def parameters_of(calibrator: Calibrator) -> list[Any]:
    return [v for key, v in calibrator.state_dict().items() if key != "strengths_"]


@pytest.mark.parametrize("name", NAMES)
def test_the_ridge_bounds_separable_data(name: str) -> None:
    z, _ = draw(100, 4)
    options = {} if name == "vector" else {"off_diagonal": 1.0}
    with pytest.warns(UserWarning, match="every row may be right"):
        calibrator = get(name, strength=1.0, **options).fit(z, z.argmax(1))
    assert np.abs(parameters(calibrator)).max() <= 101.0


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_state_gives_the_same_outputs(name: str) -> None:
    z, y = draw(150, 4, tilt=0.5)
    old = fitted(name, z, y)
    fresh = get(name)
    fresh.load_state_dict(old.state_dict())
    np.testing.assert_array_equal(fresh.calibrate(z), old.calibrate(z))
    again = fitted(name, z, y)
    np.testing.assert_array_equal(again.calibrate(z), old.calibrate(z))
    assert get(name, **old.options()).options() == old.options()


@pytest.mark.parametrize("name", NAMES)
def test_it_exports(name: str) -> None:
    z, y = draw(60, 3)
    calibrator = fitted(name, z, y)
    x = torch.as_tensor(z, dtype=torch.float32)
    rows = torch.export.Dim("rows")
    exported = torch.export.export(calibrator, (x,), dynamic_shapes=({0: rows},))
    torch.testing.assert_close(exported.module()(x[:7]), calibrator(x[:7]))


@pytest.mark.parametrize("name", NAMES)
def test_binary_dense_and_probabilities(name: str) -> None:
    z, y = draw(200, 2)
    score = z[:, 1] - z[:, 0]
    first, second = fitted(name, score, y), fitted(name, z, y)
    np.testing.assert_allclose(first.predict_proba(score), second.predict_proba(z)[:, 1], atol=1e-6)
    z, y = draw(240, 3)
    dense = z.reshape(4, 6, 10, 3).transpose(0, 3, 1, 2)
    flat, deep = fitted(name, z, y), fitted(name, dense, y.reshape(4, 6, 10))
    np.testing.assert_allclose(
        deep.calibrate(dense).transpose(0, 2, 3, 1).reshape(-1, 3), flat.calibrate(z), atol=1e-9
    )
    probs = np.eye(3)[y]
    probs[::7] = [0.0, 0.5, 0.5]
    assert np.isfinite(fitted(name, probs, y, from_logits=False).predict_proba(probs)).all()


def test_wrong_options_and_too_many_classes_raise() -> None:
    for options in ({"strength": -1.0}, {"strength": "weak"}, {"folds": 1}):
        with pytest.raises(InputError):
            get("vector", **options)
    z = np.zeros((3, 2001), dtype=np.float32)
    for name in ("matrix", "dirichlet"):
        with pytest.raises(InputError, match="vector"):
            get(name).fit(z, np.zeros(3, dtype=np.int64))


def test_fit_that_does_not_converge_raises_with_advice() -> None:
    z, y = draw(100, 4)
    problem = RidgeProblem(to_blocks(torch.as_tensor(z), torch.as_tensor(y)), 1.0)
    zero = torch.zeros(5, 4, dtype=torch.float64)
    with pytest.raises(InputError, match="larger strength"):
        minimise(problem, Ridge(1.0, 1.0, 1.0), zero, tolerance=1e-9, most=1)


def test_vector_takes_thousands_of_classes() -> None:
    generator = np.random.default_rng(0)
    z = generator.normal(size=(40, 8000)).astype("float32")
    calibrator = fitted("vector", z, np.arange(40))
    assert isinstance(calibrator, AffineCalibrator)
    assert np.isfinite(calibrator.calibrate(z)).all()


@pytest.mark.sampled(count=3)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", ["agnews-gpt2", "cifar10-resnet20", "adrenalmnist-resnet50"])
def test_real_data_are_helped_or_left_alone(data_folder: Path, name: str, data: str) -> None:
    with np.load(data_folder / "logits" / f"{data}.npz") as file:
        z, y = file["logits"].astype("float32"), file["labels"].astype("int64")
    order = np.random.default_rng(0).permutation(len(y))
    fit, test = np.array_split(order, 2)

    def losses(calibrator: Calibrator) -> Any:
        out = log_softmax(calibrator.calibrate(z[test]).astype("float64"), 1)
        return -out[np.arange(len(test)), y[test]]

    gain = losses(fitted("temperature", z[fit], y[fit])) - losses(fitted(name, z[fit], y[fit]))
    assert gain.mean() > -2 * gain.std() / math.sqrt(len(test))
    if data == "agnews-gpt2":
        assert gain.mean() > 0.3
