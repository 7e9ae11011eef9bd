"""Class-scaling's fits: pairs on the same rows, and steps of its optimiser."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from calibrant.bench import Spec
from calibrant.bench.measure.steps import measure_run
from calibrant.calibrators import get
from calibrant.predictions import Predictions
from calibrant.training import Config
from replication import class_scaling_fits
from replication.class_scaling_fits import fit_as_authors, fit_by_steps

pytestmark = pytest.mark.slow  # claims are judged by `make test-all`


def draw_rows(rows=3_000, classes=4, scale=3.0):
    """Overconfident logits with a long tail."""
    draw = np.random.default_rng(1)
    labels = draw.choice(classes, rows, p=[0.6, 0.2, 0.15, 0.05])
    logits = draw.normal(0, 1, (rows, classes))
    logits[np.arange(rows), labels] += 1.5
    return (scale * logits).astype(np.float32), labels


def write_rows(path):
    Predictions.from_logits(*draw_rows()).write(path)
    return str(path)


def measure(name, path, **options):
    config = Config(data="digits", model="mlp", device="cpu")
    spec = Spec(config, after=((name, json.dumps(options)),), logits=path)
    rows = measure_run(spec, None, {("run", "none")})
    return {(row["part"], row["calibrator"], row["metric"]): row["value"] for row in rows}


@pytest.mark.parametrize(
    ("objective", "library"),
    [
        ("nll", "nll"),
        ("label_smoothing", "label_smoothing"),
        ("class_scaled", "class_scaled"),
    ],
)
def test_enough_steps_end_at_the_exact_optimum(objective, library):
    z, y = (torch.as_tensor(part) for part in draw_rows())
    options = {} if objective != "class_scaled" else {"alpha": 0.5, "beta": 1.5}
    exact = get("temperature", objective=library, objective_options=options)
    exact.fit(z.numpy(), y.numpy())
    path = fit_by_steps(z.double(), y, objective, rates=((500, 0.05),), **options)
    assert path.shape == (501, 1)
    assert path[-1, 0] == pytest.approx(float(exact.temperature_), rel=1e-3)


def test_enough_steps_of_class_temperatures_end_there_too():
    z, y = (torch.as_tensor(part) for part in draw_rows())
    exact = get("class_temperature", spread=None).fit(z.numpy(), y.numpy())
    path = fit_by_steps(z.double(), y, "nll", by_class=True, rates=((800, 0.05),))
    np.testing.assert_allclose(path[-1], exact.temperatures_.numpy(), rtol=0.01)


def test_the_printed_rates_leave_a_known_share_of_the_way():
    z, y = (torch.as_tensor(part) for part in draw_rows())
    path = fit_by_steps(z.double(), y, "label_smoothing")
    end = float(
        get("temperature", objective="label_smoothing").fit(z.numpy(), y.numpy()).temperature_
    )
    assert len(path) == 1_001
    left = (end - path[-1]) / (end - 1)
    # Each epoch leaves about 1 − rate: over the last 400 at 0.001 about e^−0.4.
    assert (end - path[-1]) / (end - path[600]) == pytest.approx(math.exp(-0.4), abs=0.15)
    assert 0.02 < left < 0.3


def test_figures_of_the_optimiser_are_those_of_its_temperature(tmp_path):
    path = write_rows(tmp_path / "made-net.npz")
    figures = measure("optimiser", path, objectives=["nll"], by_class=[False], every=500)
    name = "optimiser:temperature:nll"
    assert {part for part, own, _ in figures if own == name} == {
        "test@0",
        "test@500",
        "test@1000",
        "test",
    }
    fitting, test = Predictions.read(path).split(0.5, seed=0)
    steps = fit_by_steps(
        torch.as_tensor(fitting.array).double(), torch.as_tensor(fitting.labels).long(), "nll"
    )
    T = figures["test", name, "parameter:temperature"]
    assert pytest.approx(steps[-1, 0], rel=1e-6) == T
    p = torch.softmax(torch.as_tensor(test.array).double() / T, 1)
    labels = torch.as_tensor(test.labels).long()
    losses = -p[torch.arange(len(labels)), labels].log()
    assert figures["test", name, "nll"] == pytest.approx(float(losses.mean()), rel=1e-6)
    by_class = [float(losses[labels == k].mean()) for k in range(4)]
    spread = np.std(by_class, ddof=1)
    assert figures["test", name, "classwise_nll_std"] == pytest.approx(spread, rel=1e-6)
    assert figures["test@0", name, "parameter:temperature"] == 1


def test_pairs_are_compared_on_the_same_rows(tmp_path):
    path = write_rows(tmp_path / "made-net.npz")
    figures = measure("paired", path, pairs=[["temperature", "none"]], resamples=200)
    name = "pair:temperature:none"
    fitting, test = Predictions.read(path).split(0.5, seed=0)
    T = float(get("temperature").fit(fitting.array, fitting.labels).temperature_)
    labels, logits = torch.as_tensor(test.labels).long(), torch.as_tensor(test.array).double()
    nll = [float(torch.nn.functional.cross_entropy(logits / each, labels)) for each in (T, 1)]
    assert figures["test", name, "nll"] == pytest.approx(nll[0] - nll[1], rel=1e-5)
    assert figures["test", name, "nll:high"] < 0  # a temperature helps such logits
    assert (
        figures["test", name, "ece:low"]
        < figures["test", name, "ece"]
        < figures["test", name, "ece:high"]
        < 0
    )
    assert class_scaling_fits.PAIR == "pair"


@pytest.mark.parametrize("calibrator", class_scaling_fits.CALIBRATORS)
def test_fits_as_the_authors_begin_at_their_start_and_lower_the_loss(calibrator):
    z, y = (torch.as_tensor(part) for part in draw_rows())
    fitted = fit_as_authors(z, y, calibrator, "nll")
    if calibrator != "parameterized_temperature":
        np.testing.assert_allclose(fitted.scale(z, 0).numpy(), z.numpy(), rtol=1e-6)
    first, last = (
        float(torch.nn.functional.cross_entropy(fitted.scale(z, place), y)) for place in (0, -1)
    )
    best = get("temperature").fit(z.numpy(), y.numpy())
    least = float(torch.nn.functional.cross_entropy(torch.as_tensor(best.calibrate(z.numpy())), y))
    assert last < first
    assert last < least + 0.002  # a temperature is the least that each of the four can do


def test_l_bfgs_ends_before_its_iterations_are_over_as_pytorchs_does():
    z, y = (torch.as_tensor(part) for part in draw_rows())
    fitted = fit_as_authors(z, y, "temperature", "nll")
    assert 100 < len(fitted.states) < 1_000
    exact = float(get("temperature").fit(z.numpy(), y.numpy()).temperature_)
    assert float(fitted.states[-1]["temperature"]) == pytest.approx(exact, rel=0.02)
    assert float(fitted.states[-1]["temperature"]) < exact  # it stops on the way up


def test_each_rate_begins_a_new_l_bfgs():
    z, y = (torch.as_tensor(part) for part in draw_rows())
    twice = fit_as_authors(z, y, "class_temperature", "focal", rates=((5, 0.01), (5, 0.01)))
    once = fit_as_authors(z, y, "class_temperature", "focal", rates=((10, 0.01),))
    assert len(twice.states) == len(once.states)  # ten evaluations each, and the end
    temperatures = [fit.states[5]["temperature"].numpy() for fit in (twice, once)]
    np.testing.assert_allclose(*temperatures, rtol=1e-6)
    ends = [fit.states[-1]["temperature"].numpy() for fit in (twice, once)]
    assert not np.allclose(*ends, rtol=1e-4)


def test_the_ensemble_fits_its_temperature_first_and_mixes_logits():
    z, y = (torch.as_tensor(part) for part in draw_rows())
    fitted = fit_as_authors(z, y, "ensemble_temperature", "label_smoothing", rates=((20, 0.05),))
    alone = fit_as_authors(z, y, "temperature", "label_smoothing", rates=((20, 0.05),))
    assert torch.equal(fitted.states[20]["temperature"], alone.states[-1]["temperature"])
    end = fitted.states[-1]
    assert torch.equal(end["temperature"], alone.states[-1]["temperature"])
    w = end["weights"]
    assert not torch.equal(w, fitted.states[0]["weights"])
    mixed = w[0] * z / end["temperature"] + w[1] * z + w[2] / 4
    np.testing.assert_allclose(fitted.scale(z).numpy(), mixed.numpy(), rtol=1e-5)


def test_alpha_and_beta_are_settled_after_the_first_step():
    z, y = (torch.as_tensor(part) for part in draw_rows())
    loss = class_scaling_fits._SettlingLoss()
    loss(z, y)
    assert (loss.alpha, loss.beta) == (1.0, 1.5)
    loss(z / 1.02, y)
    settled = loss.alpha, loss.beta
    assert settled != (1.0, 1.5)
    before, after = (
        np.array([float(torch.nn.functional.cross_entropy(x[y == k], y[y == k])) for k in range(4)])
        for x in (z, z / 1.02)
    )
    normalised = (after - after.mean()) / after.std(ddof=1)

    def spread(alpha, beta):
        weight = beta / (1 + np.exp(-normalised / alpha)) - beta / 2
        return np.linalg.norm(before - weight * (after - before) - after.mean())

    high = math.log(4) / 2
    grid = [spread(a, b) for a in np.linspace(0.1, high, 30) for b in np.linspace(1.5, 2, 30)]
    assert spread(*settled) <= min(grid) + 1e-5
    loss(z / 3, y)
    assert (loss.alpha, loss.beta) == settled


def test_figures_of_the_authors_code_are_those_of_its_parameters(tmp_path):
    path = write_rows(tmp_path / "made-net.npz")
    options = {"calibrators": ["class_temperature"], "objectives": ["focal"], "every": 400}
    figures = measure("authors_code", path, **options)
    name = "code:class_temperature:focal"
    parts = {part for part, own, _ in figures if own == name}
    assert parts == {"test@0", "test@400", "test@800", "test"}
    fitting, test = Predictions.read(path).split(0.5, seed=0)
    fitted = fit_as_authors(
        torch.as_tensor(fitting.array), torch.as_tensor(fitting.labels), name.split(":")[1], "focal"
    )
    assert figures["test", name, "parameter:evaluations"] == len(fitted.states) - 1
    p = torch.softmax(torch.as_tensor(test.array) / fitted.states[-1]["temperature"], 1).double()
    labels = torch.as_tensor(test.labels).long()
    nll = -p[torch.arange(len(labels)), labels].log().mean()
    assert figures["test", name, "nll"] == pytest.approx(float(nll), rel=1e-4)
