"""Ensemble, class-based and parameterized temperature: optima, promises and edge cases."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from calibrant.calibrators import get
from calibrant.calibrators.solvers.objectives import OBJECTIVES
from calibrant.core.errors import InputError
from calibrant.metrics import ece, nll
from tests.calibrators.test_objectives import sample

FAMILY = ("ensemble_temperature", "class_temperature", "parameterized_temperature")
KEEP = ("ensemble_temperature", "parameterized_temperature")
quiet = pytest.mark.filterwarnings("ignore:the best temperature", "ignore:the weights of")


def load(folder, name):
    with np.load(folder / "logits" / f"{name}.npz") as file:
        z, y = torch.tensor(file["logits"]).float(), torch.tensor(file["labels"]).long()
    order = torch.tensor(np.random.default_rng(0).permutation(len(y)))
    half = len(y) // 2
    return (z[order[:half]], y[order[:half]]), (z[order[half:]], y[order[half:]])


def with_liars(rows=600, seed=0):
    """Certain rows of which a few are wrong: what the uniform part is for."""
    z, y = sample(rows, 4, seed)
    z[: rows // 2] = torch.nn.functional.one_hot(y[: rows // 2], 4) * 40.0
    y[: rows // 40] = (y[: rows // 40] + 1) % 4
    return z, y


class TestEnsemble:
    def test_weights_are_on_the_simplex_and_the_output_is_log_probabilities(self):
        z, y = with_liars()
        calibrator = get("ensemble_temperature").fit(z, y)
        assert float(calibrator.weights_.sum()) == pytest.approx(1, abs=1e-12)
        assert (calibrator.weights_ >= 0).all()
        assert calibrator(z).exp().sum(1) == pytest.approx(1, abs=1e-9)
        w, t = calibrator.weights_.numpy(), float(calibrator.temperature_)
        wanted = w[0] * softmax(z / t, 1) + w[1] * softmax(z.numpy(), 1) + w[2] / 4
        assert calibrator.predict_proba(z).numpy() == pytest.approx(wanted, abs=1e-12)
        assert w[2] > 0.005

    @pytest.mark.parametrize("joint", [True, False])
    def test_is_as_good_as_a_constrained_solver(self, joint):
        z, y = with_liars()
        calibrator = get("ensemble_temperature", joint=joint).fit(z, y)
        first = float(get("temperature").fit(z, y).temperature_)
        rows, numpy = np.arange(len(y)), z.numpy()

        def loss(at):
            t, *w = at
            p = w[0] * softmax(numpy / t, 1) + w[1] * softmax(numpy, 1) + w[2] / 4
            return -np.mean(np.log(p[rows, y.numpy()]))

        best = math.inf
        for start in ((0.9, 0.05, 0.05), (0.3, 0.4, 0.3), (0.3, 0.6, 0.1)):
            for t in (first, 1.5, 3.0) if joint else (first,):
                limits = (0.01, 100) if joint else (first, first)
                done = minimize(
                    loss,
                    (t, *start),
                    method="SLSQP",
                    bounds=[limits, *[(1e-9, 1)] * 3],
                    constraints={"type": "eq", "fun": lambda at: sum(at[1:]) - 1},
                    options={"ftol": 1e-12, "maxiter": 500},
                )
                best = min(best, done.fun)
        assert calibrator.summary_["nll_after"] <= best + 1e-6
        if not joint:
            assert float(calibrator.temperature_) == pytest.approx(first, rel=1e-12)

    @pytest.mark.parametrize("objective", OBJECTIVES)
    def test_in_the_space_of_logits_it_is_temperature(self, objective):
        z, y = sample(150)
        ours = get("ensemble_temperature", space="logits", objective=objective).fit(z, y)
        plain = get("temperature", objective=objective).fit(z, y)
        torch.testing.assert_close(ours(z), plain(z), rtol=0, atol=1e-9)
        assert ours.weights_.tolist() == [1.0, 0.0, 0.0]

    def test_never_worse_than_temperature_where_nothing_else_helps(self):
        z, y = sample(500)
        ours, plain = (get(name).fit(z, y) for name in ("ensemble_temperature", "temperature"))
        assert ours.summary_["nll_after"] <= plain.summary_["nll_after"] + 1e-9

    def test_bounds_the_loss_of_certain_and_wrong_rows(self):
        z, y = with_liars()
        calibrator = get("ensemble_temperature").fit(z, y)
        row = calibrator(torch.tensor([[1e4, 0.0, 0.0, 0.0]], dtype=torch.float64))
        assert float(-row.min()) <= math.log(4 / float(calibrator.weights_[2])) + 1e-9

    def test_ece_search_is_not_worse_than_its_temperature(self):
        z, y = sample(400)
        ours = get("ensemble_temperature", objective="ece").fit(z, y)
        plain = get("temperature", objective="ece").fit(z, y)
        assert float(ece(ours(z), y)) <= float(ece(plain(z), y)) + 1e-9


class TestClass:
    @pytest.mark.parametrize("spread", [None, 1.0, 0.3])
    def test_is_the_optimum(self, spread):
        """Of the penalised likelihood, by scipy from formulas of NumPy alone."""
        z, y = sample(400)
        calibrator = get("class_temperature", spread=spread).fit(z, y)
        shared = math.log(get("temperature").fit(z, y).temperature_)
        rows = np.arange(len(y))

        def loss(at):
            value = -np.mean(log_softmax(z.numpy() / np.exp(at), 1)[rows, y.numpy()])
            if spread is not None:
                value += 4 * np.sum((at - shared) ** 2) / (2 * spread**2 * len(y))
            return value

        wanted = minimize(loss, np.full(4, shared), method="BFGS", options={"gtol": 1e-8})
        at = calibrator.temperatures_.log().numpy()
        assert loss(at) <= wanted.fun + 1e-9
        assert at == pytest.approx(wanted.x, abs=1e-3)

    def test_narrower_spread_is_nearer_to_one_temperature(self):
        z, y = sample(300)
        reach = [
            float(get("class_temperature", spread=spread).fit(z, y).temperatures_.log().std())
            for spread in (None, 1.0, 0.1, 0.001)
        ]
        assert reach == sorted(reach, reverse=True)
        assert reach[-1] < 1e-3

    @pytest.mark.parametrize("spread", [None, 1.0])
    def test_a_class_without_rows_stays_near_the_shared_temperature(self, spread):
        z, y = sample(400)
        z, y = z[y != 1], y[y != 1]
        calibrator = get("class_temperature", spread=spread).fit(z, y)
        shared = float(get("temperature").fit(z, y).temperature_)
        if spread is None:
            assert float(calibrator.temperatures_[1]) == pytest.approx(shared, rel=1e-12)
        assert 0.01 <= float(calibrator.temperatures_[1]) <= 100

    def class_losses(self, z, y, at):
        each = -log_softmax(z.numpy() / np.exp(at), 1)[np.arange(len(y)), y.numpy()]
        return np.array([each[y.numpy() == k].mean() for k in range(z.shape[1])])

    def test_class_scaled_is_a_fixed_point(self):
        """Every ∂/∂T_k of Σ (1 + w_i) L_i is 0, w_i constant, by differences in NumPy."""
        z, y = sample(500, 5, seed=4)
        calibrator = get("class_temperature", spread=None, objective="class_scaled").fit(z, y)
        alpha, beta = calibrator.facts_["alpha"], calibrator.facts_["beta"]
        at = calibrator.temperatures_.log().numpy()
        base = self.class_losses(z, y, at)
        scaled = (base - base.mean()) / base.std(ddof=1)
        weights = 1 + beta / (1 + np.exp(-scaled / alpha)) - beta / 2
        for k in range(5):
            step = 1e-5 * (np.arange(5) == k)
            change = self.class_losses(z, y, at + step) - self.class_losses(z, y, at - step)
            assert weights @ change / 2e-5 == pytest.approx(0, abs=1e-3)

    def test_class_scaled_without_a_root_rests_where_the_classes_lose_the_same(self):
        """There the standardised losses jump, and with them the weights: a warning says so."""
        z, y = sample(500, 5, seed=4)
        options = {"alpha": 0.1, "beta": 2.0}
        ours = get(
            "class_temperature", spread=None, objective="class_scaled", objective_options=options
        )
        with pytest.warns(UserWarning, match="jump"):
            ours.fit(z, y)
        plain = get("class_temperature", spread=None).fit(z, y)
        reach = [
            self.class_losses(z, y, calibrator.temperatures_.log().numpy()).std()
            for calibrator in (ours, plain)
        ]
        assert reach[0] < 0.2 * reach[1]

    def test_changed_predictions_are_counted(self):
        z, y = sample(500)
        z[:, 0] += 2.0
        calibrator = get("class_temperature").fit(z, y)
        changed = int((calibrator(z).argmax(1) != z.argmax(1)).sum())
        assert not calibrator.preserves_predictions
        assert calibrator.summary_["changed"] == changed


class TestParameterized:
    @pytest.mark.parametrize("classes", [2, 4, 15])
    def test_never_worse_than_temperature_on_its_rows(self, classes):
        z, y = sample(300, classes)
        ours, plain = (get(name).fit(z, y) for name in (FAMILY[2], "temperature"))
        assert ours.summary_["nll_after"] <= plain.summary_["nll_after"] + 1e-6
        assert len(ours.network_) == 2 * min(10, classes) + 2 + 18 + 3

    def test_learns_a_temperature_that_differs_by_row(self):
        """Half of the rows say ten times as much as the others do."""
        z, y = sample(1000, 4)
        z[:500] *= 10.0
        ours, plain = (get(name).fit(z, y) for name in (FAMILY[2], "temperature"))
        assert ours.summary_["nll_after"] < plain.summary_["nll_after"] - 0.02
        each = (z / ours(z)).median(1).values
        assert each[:500].median() > 2 * each[500:].median()

    def test_a_seed_decides(self):
        z, y = sample(200)
        first, again, other = (
            get(FAMILY[2], restarts=1, weight_decay=0.1, seed=seed).fit(z, y).network_
            for seed in (0, 0, 1)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_much_decay_is_one_temperature(self):
        z, y = sample(300)
        ours = get(FAMILY[2], weight_decay=1e6).fit(z, y)
        plain = get("temperature").fit(z, y)
        torch.testing.assert_close(ours(z), plain(z), atol=1e-3, rtol=1e-3)


def fitted(name, objective="nll", rows=80, classes=4, dtype=torch.float64):
    z, y = sample(rows, classes, dtype=dtype)
    return get(name, objective=objective).fit(z, y)


@pytest.fixture(scope="module")
def calibrators():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        z, y = with_liars(300)
        made = {name: [get(name).fit(z, y), fitted(name, "ece"), fitted(name)] for name in KEEP}
    return made


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.01, 1.0, 10.0, 300.0]))
@pytest.mark.parametrize("name", KEEP)
def test_no_prediction_ever_changes(calibrators, name, seed, scale):
    z = torch.tensor(np.random.default_rng(seed).normal(0, scale, (50, 4)))
    for calibrator in calibrators[name]:
        for given_as, slack in ((z, 1e-12), (z.float(), 1e-5)):
            mapped = calibrator(given_as)
            assert mapped.isfinite().all()
            top = given_as.argmax(1, keepdim=True)
            short = mapped.amax(1) - mapped.gather(1, top).squeeze(1)
            assert (short <= slack).all()  # ties of rounding aside
            clear = given_as.topk(2).values.diff(dim=1).abs().squeeze(1) > 1e-2
            sure = clear & (mapped.topk(2).values.diff(dim=1).abs().squeeze(1) > 1e-5)
            assert torch.equal(mapped.argmax(1)[sure], top.squeeze(1)[sure])


@quiet
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", FAMILY)
class TestEveryObjective:
    @pytest.mark.sampled(by="objective")
    def test_small_sets_give_finite_probabilities(self, name, objective):
        for z, y in (
            (torch.tensor([[1.0, 2.0]]), torch.tensor([0])),  # one row
            (torch.zeros(6, 3), torch.arange(6) % 3),  # constant
            (torch.eye(3).repeat(4, 1) * 3, torch.arange(3).repeat(4)),  # separable
            (torch.eye(3)[:2].repeat(4, 1), torch.tensor([0, 1] * 4)),  # a class without rows
        ):
            calibrator = get(name, objective=objective).fit(z, y)
            probs = calibrator.predict_proba(z)
            assert probs.isfinite().all()
            assert probs.sum(1) == pytest.approx(1, abs=1e-5)

    @pytest.mark.sampled(by="objective")
    def test_saves_loads_and_tells_its_options(self, name, objective):
        old = fitted(name, objective, dtype=torch.float32)
        options = json.loads(json.dumps(old.options()))
        fresh = get(name, **options)
        fresh.load_state_dict(old.state_dict())
        z, _ = sample(20, seed=9)
        assert torch.equal(fresh(z), old(z))
        assert torch.equal(fitted(name, objective, dtype=torch.float32)(z), old(z))


@quiet
@pytest.mark.parametrize("name", FAMILY)
class TestEdges:
    def test_probabilities_with_zeros(self, name):
        z, y = sample(200)
        probs = torch.softmax(z, 1)
        probs[:50] = torch.nn.functional.one_hot(y[:50], 4).double()
        y[:3] = (y[:3] + 1) % 4
        calibrator = get(name, from_logits=False).fit(probs, y)
        assert calibrator.predict_proba(probs).isfinite().all()
        assert math.isfinite(calibrator.summary_["nll_after"])

    def test_binary_scores_and_dense_predictions(self, name):
        z, y = sample(120, 2)
        binary = get(name).fit(z[:, 1] - z[:, 0], y)
        assert binary.calibrate(z[:, 1] - z[:, 0]).shape == (120,)
        z, y = sample(120, 3)
        flat = get(name).fit(z, y)
        dense = get(name).fit(z.view(2, 5, 12, 3).movedim(3, 1), y.view(2, 5, 12))
        torch.testing.assert_close(flat(z), dense(z))

    def test_float32_and_float64_agree(self, name):
        z, y = sample(400, dtype=torch.float32)
        torch.testing.assert_close(
            get(name).fit(z, y).predict_proba(z).double(),
            get(name).fit(z.double(), y).predict_proba(z.double()),
            atol=2e-3,
            rtol=0,
        )

    def test_exports(self, name):
        calibrator = fitted(name, dtype=torch.float32)
        z, _ = sample(7, dtype=torch.float32)
        rows = torch.export.Dim("rows")
        program = torch.export.export(calibrator, (z,), dynamic_shapes=({0: rows},))
        more, _ = sample(11, dtype=torch.float32)
        torch.testing.assert_close(program.module()(more), calibrator(more))


def test_bad_options_are_refused_at_once():
    for name, options in (
        ("ensemble_temperature", {"space": "odds"}),
        ("class_temperature", {"spread": 0}),
        ("parameterized_temperature", {"restarts": 0}),
        ("parameterized_temperature", {"objective": "mse"}),
    ):
        with pytest.raises(InputError):
            get(name, **options)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("data", ["cifar10-resnet20", "pneumoniamnist-resnet50", "iemocap-wav2vec"])
def test_held_out_likelihood_on_real_sets(data_folder, name, data):
    (z, y), (test, labels) = load(data_folder, data)
    calibrator = get(name).fit(z, y)
    assert float(nll(calibrator.calibrate(test), labels)) <= float(nll(test, labels))
