"""The log-partition of rows by temperature: tabulated, it agrees with loops and exact passes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant.calibrators import get
from calibrant.calibrators.methods.ensemble_temperature import _problem_maker, mix, weights_of
from calibrant.calibrators.methods.temperature import temperature_problem
from calibrant.calibrators.solvers import problem
from calibrant.calibrators.solvers.objectives import get_objective
from calibrant.calibrators.solvers.problem import LOG_BOUNDS, Partition, Problem, rows_after


def wide(rows=60, classes=100, seed=0, dtype=torch.float64):
    """Half of the rows sure of one class, some of them wrongly."""
    random = np.random.default_rng(seed)
    z = random.normal(0, 2, (rows, classes))
    y = (z / 1.5 + random.gumbel(size=z.shape)).argmax(1)
    sure = random.integers(0, classes, rows // 2)
    z[np.arange(rows // 2), sure] += 14
    y[: rows // 2] = np.where(random.random(rows // 2) < 0.9, sure, y[: rows // 2])
    return torch.tensor(z, dtype=dtype), torch.tensor(y)


def naive(row, beta):
    """ln Σ exp(β(z − max)) and its derivative in ln β, in loops."""
    top = max(row)
    terms = [math.exp(beta * (value - top)) for value in row]
    slope = sum(t * beta * (value - top) for t, value in zip(terms, row, strict=True))
    return math.log(math.fsum(terms)), slope / math.fsum(terms)


@pytest.mark.parametrize("classes", [5, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_slope_are_those_of_the_loops(classes, dtype):
    z, y = wide(20, classes, dtype=dtype)
    partition = Partition(z, y)
    assert (partition._table is None) == (classes == 5)
    random = np.random.default_rng(1)
    places = np.concatenate((LOG_BOUNDS, random.uniform(*LOG_BOUNDS, 18)))
    at = torch.tensor(places, requires_grad=True)
    value = partition(at)
    (slope,) = torch.autograd.grad(value.sum(), at)
    wanted = [naive(row, math.exp(s)) for row, s in zip(z.tolist(), places, strict=True)]
    exact = 2e-6 if dtype == torch.float32 else 3e-7
    assert value.tolist() == pytest.approx([v for v, _ in wanted], abs=exact)
    assert slope.tolist() == pytest.approx([s for _, s in wanted], abs=20 * exact)


def test_the_sharpest_knee_is_followed():
    """One class 7 above 999 equal ones: all of L falls within a fraction of ln β."""
    z = torch.zeros(1, 1000, dtype=torch.float64)
    z[0, 0] = 7.0
    partition = Partition(z, torch.zeros(1, dtype=torch.int64))
    for s in np.linspace(*LOG_BOUNDS, 301):
        value = float(partition(torch.tensor([s])))
        assert value == pytest.approx(math.log1p(999 * math.exp(-7 * math.exp(s))), abs=5e-7)


@pytest.mark.parametrize("classes", [5, 100])
def test_rows_are_those_of_the_divided_logits(classes):
    z, y = wide(200, classes)
    log_beta = torch.linspace(-2, 2, 200, dtype=torch.float64)
    ours = Partition(z, y).rows(log_beta)
    wanted = rows_after(z * log_beta.exp().unsqueeze(1), y)
    for actual, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(actual, other, atol=3e-7, rtol=1e-9)


@pytest.mark.parametrize("name", ["nll", "focal", "label_smoothing", "sb_ece"])
def test_problems_of_temperature_agree_with_mapped_logits(name):
    z, y = wide(300)
    loss = get_objective(name).loss
    plain = Problem(lambda x, t: x * (-t).exp(), z, y, 1)
    ours = temperature_problem(z, y)
    for at in (-1.0, 0.0, 0.7):
        point = np.array([at])
        (value, slope), (wanted, exact) = (p.gradient(point, loss) for p in (ours, plain))
        assert value == pytest.approx(wanted, abs=1e-6)
        assert slope == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("name", ["nll", "focal", "sb_ece"])
@pytest.mark.parametrize("classes", [5, 100])
def test_problems_of_mixtures_agree_with_mapped_logits(name, classes):
    z, y = wide(300, classes)
    objective = get_objective(name)
    plain = Problem(lambda x, at: mix(x, at[0].exp(), weights_of(at[1:].exp())), z, y, 3)
    ours = _problem_maker(z, y, objective)(torch.exp)
    point = np.array([0.4, math.log(0.2), math.log(0.03)])
    (value, slope), (wanted, exact) = (p.gradient(point, objective.loss) for p in (ours, plain))
    assert value == pytest.approx(wanted, abs=1e-6)
    assert slope == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("name", ["ensemble_temperature", "parameterized_temperature"])
def test_fits_from_the_table_are_as_good_as_exact_ones(name, monkeypatch):
    z, y = wide(600)
    ours = get(name).fit(z, y)
    monkeypatch.setattr(problem, "_WIDE", 10_000)
    exact = get(name).fit(z, y)
    plain = get("temperature").fit(z, y)
    assert ours.summary_["nll_after"] < plain.summary_["nll_after"] - 1e-3
    # A network with corners may end in another place; three weights may not.
    slack = 1e-7 if name == "ensemble_temperature" else 5e-3
    assert ours.summary_["nll_after"] == pytest.approx(exact.summary_["nll_after"], abs=slack)


def test_only_nodes_that_are_needed_are_computed():
    z, y = wide(50)
    partition = Partition(z, y)
    partition(torch.zeros(1, dtype=torch.float64))
    assert sum(partition._known) == 2


def test_huge_and_tied_logits_stay_finite():
    z = torch.zeros(3, 80)
    z[0, 3], z[1, :2] = 1e8, 1e4
    partition = Partition(z, torch.tensor([3, 0, 7]))
    for s in LOG_BOUNDS:
        rows = partition.rows(torch.full((3,), s, dtype=torch.float64))
        assert all(column.isfinite().all() for column in rows[:5])
    assert rows.confidence.tolist() == pytest.approx([1.0, 0.5, 1 / 80], abs=1e-6)
