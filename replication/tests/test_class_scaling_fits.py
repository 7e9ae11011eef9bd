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
from replication.class_scaling_fits import fit_by_steps

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
