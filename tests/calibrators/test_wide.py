"""32,000 classes: every method fits them, or names another that does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from calibrant.calibrators import get
from calibrant.calibrators.methods.beta import common_pairs, fit_beta
from calibrant.calibrators.solvers.one_vs_rest import log_odds
from calibrant.core.errors import InputError

CLASSES = 32_000
ROWS = 80
METHODS = (
    "temperature",
    "ensemble_temperature",
    "parameterized_temperature",
    "class_temperature",
    "vector",
    "isotonic",
    "beta",
    "histogram",
    "spline",
    "intra_order",
)


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    z = random.normal(0, 2, (ROWS, CLASSES)).astype(np.float32)
    sure = random.integers(0, CLASSES, ROWS)
    z[np.arange(ROWS), sure] += 12
    y = np.where(random.random(ROWS) < 0.75, sure, random.integers(0, CLASSES, ROWS))
    return torch.from_numpy(z), torch.from_numpy(y)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("name", METHODS)
def test_thousands_of_classes_are_fitted(data, name):
    z, y = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        calibrator = get(name).fit(z, y)
    assert calibrator.summary_["nll_after"] < calibrator.summary_["nll_before"] + 1e-6
    probs = calibrator.predict_proba(z[:20])
    assert probs.isfinite().all()
    assert probs.sum(1) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("name", ["matrix", "dirichlet"])
def test_methods_with_a_number_for_each_pair_of_classes_name_others(data, name):
    with pytest.raises(InputError, match="vector, temperature or isotonic"):
        get(name).fit(*data)


def test_a_fitted_state_is_small(data):
    """What is saved grows with K, not with N·K."""
    for name in ("vector", "ensemble_temperature", "parameterized_temperature"):
        calibrator = get(name).fit(*data)
        size = sum(v.numel() for v in calibrator.state_dict().values())
        assert size <= 2 * CLASSES + 100


class TestBetaPairs:
    def data(self):
        random = np.random.default_rng(1)
        z = torch.from_numpy(2 * random.normal(size=(700, 200)))
        y = torch.from_numpy((z.numpy() / 2 + random.gumbel(size=z.shape)).argmax(1))
        return log_odds(z), y

    def test_gathered_pairs_are_all_pairs(self):
        odds, y = self.data()
        places, hits, times = common_pairs(odds, y)
        assert float(times.sum()) == odds.numel()
        assert places.shape[1] < odds.numel() / 2
        assert float(hits.sum()) == len(y)
        assert float((places * times).sum()) == pytest.approx(float(odds.sum()), rel=1e-9)

    def test_their_fit_is_that_of_every_pair(self):
        odds, y = self.data()
        centre = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
        places, hits, times = common_pairs(odds, y)
        ours = fit_beta(places, hits, centre, ridge=0.1, sharing=0.0, times=times)
        every = torch.nn.functional.one_hot(y, 200).double().reshape(1, -1)
        exact = fit_beta(odds.reshape(1, -1), every, centre, ridge=0.1, sharing=0.0)
        torch.testing.assert_close(ours, exact, atol=1e-5, rtol=0)
        assert float((exact - centre).abs().max()) > 0.1


def test_one_curve_for_all_classes_keeps_predictions():
    assert get("isotonic", form="m2b").preserves_predictions
    assert not get("isotonic").preserves_predictions
    random = np.random.default_rng(2)
    z = torch.from_numpy(3 * random.normal(size=(300, 5)))
    y = torch.from_numpy((z.numpy() / 2 + random.gumbel(size=z.shape)).argmax(1))
    calibrator = get("isotonic", form="m2b").fit(z, y)
    assert torch.equal(calibrator(z).argmax(1), z.argmax(1))
    assert calibrator.summary_["changed"] == 0
    assert get("isotonic", **calibrator.options()).preserves_predictions
