"""What every registered calibrator promises; a new one is tested by being in the registry."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from calibrant.calibrators import available, get
from calibrant.core.errors import InputError
from tests.helpers.calibrator_cases import (
    FEATURES,
    NAMES,
    ROWS,
    WIDTH,
    fit,
    fitted,
    overconfident,
    sample,
)

every = pytest.mark.parametrize("name", NAMES)
every_row = pytest.mark.parametrize("name", ROWS)
# Not convex: a rounding error may lead to another optimum, of about the same likelihood.
NETWORKS = {"parameterized_temperature", "intra_order", "local_temperature", *FEATURES}
PRESERVING = [name for name in ROWS if get(name).preserves_predictions]


def assert_probabilities(probs, shape):
    assert probs.shape == shape
    assert np.isfinite(probs).all()
    assert probs.min() >= 0
    assert probs.max() <= 1 + 1e-6
    if len(shape) > 1:
        np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-5)


def assert_preserved(scores, mapped):
    # Logits that differ in the last digit may be mapped to the same number, never reordered.
    kept = mapped.gather(1, scores.argmax(1, keepdim=True)).squeeze(1)
    assert torch.equal(kept, mapped.amax(1))


@every
def test_each_has_a_line_on_when_to_use_it(name):
    assert available()[name]
    assert type(get(name)).name == name
    assert type(get(name)).__doc__


@every
def test_options_are_plain_and_build_it_again(name):
    options = json.loads(json.dumps(get(name).options()))
    assert get(name, **options).options() == get(name).options()
    with pytest.raises(InputError, match="no_such_option"):
        get(name, no_such_option=1)


@every
def test_unfitted_calibrator_raises(name):
    logits, _ = sample(name, rows=3)
    fresh = get(name)
    assert not fresh.is_fitted
    for call in (fresh.calibrate, fresh.predict_proba):
        with pytest.raises(InputError, match="not fitted"):
            call(logits)
    with pytest.raises(InputError, match="not fitted"):
        fresh(torch.from_numpy(logits))


@every_row
def test_bad_input_is_refused_before_anything_is_fitted(name):
    logits, labels = overconfident(rows=20)
    broken = logits.copy()
    broken[3, 1] = np.nan
    fresh = get(name)
    with pytest.raises(InputError, match="NaN"):
        fresh.fit(broken, labels)
    with pytest.raises(InputError, match="labels must lie in"):
        fresh.fit(logits, labels + 1)
    with pytest.raises(InputError, match="need labels of shape"):
        fresh.fit(logits, labels[:-1])
    with pytest.raises(InputError, match="probabilities"):
        get(name, from_logits=False).fit(logits, labels)
    assert not fresh.is_fitted


@every
def test_the_summary_is_filled_and_plain(name):
    made = fitted(name)
    summary = json.loads(json.dumps(made.summary_, allow_nan=False))
    wanted = {"rows", "classes", "nll_after", "accuracy_after"}
    assert wanted <= summary.keys()
    assert (summary["rows"], summary["classes"]) == (240, 4)
    logits, labels = sample(name)
    log_probs = torch.from_numpy(made.calibrate(logits)).double().log_softmax(1)
    nll = torch.nn.functional.nll_loss(log_probs, torch.from_numpy(labels))
    assert summary["nll_after"] == pytest.approx(float(nll), abs=1e-5)
    if name in FEATURES:  # there is no logit before a head
        return
    assert {"nll_before", "accuracy_before", "changed"} <= summary.keys()
    assert summary["changed"] == 0 or not made.preserves_predictions
    changed = (made.calibrate(logits).argmax(1) != logits.argmax(1)).sum()
    assert summary["changed"] == changed


@every
def test_the_state_is_complete(name):
    made, fresh = fitted(name), get(name)
    fresh.load_state_dict(made.state_dict())
    logits, _ = sample(name, rows=50, seed=1)
    np.testing.assert_array_equal(fresh.calibrate(logits), made.calibrate(logits))
    # A fitted one takes another's state, of other shapes, as well.
    other = fit(name, *sample(name, classes=3, seed=2))
    other.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(other.calibrate(logits), made.calibrate(logits))
    np.testing.assert_array_equal(copy.deepcopy(made).calibrate(logits), made.calibrate(logits))


@every
def test_two_fits_agree_to_the_bit_and_leave_the_seed_alone(name):
    logits, labels = sample(name)
    kept = logits.copy(), labels.copy()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    again = fit(name, logits, labels)
    assert torch.equal(torch.random.get_rng_state(), before)
    for key, value in fitted(name).state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    np.testing.assert_array_equal(logits, kept[0])
    np.testing.assert_array_equal(labels, kept[1])


@pytest.mark.sampled(by="name")
@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_gives_numpy_and_torch_gives_torch(name, dtype):
    logits, labels = sample(name, dtype=dtype)
    made = fit(name, torch.from_numpy(logits), torch.from_numpy(labels))
    array, tensor = made.calibrate(logits), made.calibrate(torch.from_numpy(logits))
    assert isinstance(array, np.ndarray)
    assert isinstance(tensor, torch.Tensor)
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, tensor.numpy())
    assert torch.equal(made(torch.from_numpy(logits)), tensor)
    shape = (len(logits), 4) if name in FEATURES else logits.shape
    assert_probabilities(made.predict_proba(logits), shape)
    assert isinstance(made.predict_proba(torch.from_numpy(logits)), torch.Tensor)
    single = fitted(name)
    if name in NETWORKS:
        assert made.summary_["nll_after"] == pytest.approx(single.summary_["nll_after"], abs=0.02)
    else:
        alike = single.predict_proba(sample(name)[0])
        np.testing.assert_allclose(made.predict_proba(logits), alike, atol=2e-3)


@every
def test_half_precision_logits_are_taken(name):
    made = fitted(name)
    logits = torch.from_numpy(sample(name, rows=20)[0]).bfloat16()
    assert torch.equal(made(logits), made(logits.float()))


@every_row
def test_a_binary_score_is_a_pair_of_logits(name):
    logits, labels = overconfident(classes=2)
    score = logits[:, 1] - logits[:, 0]
    pair = np.stack((np.zeros_like(score), score), axis=1)
    single, double = fit(name, score, labels), fit(name, pair, labels)
    assert single.calibrate(score).shape == score.shape
    assert_probabilities(single.predict_proba(score), score.shape)
    assert_probabilities(double.predict_proba(logits), logits.shape)
    positive = double.predict_proba(pair)[:, 1]
    np.testing.assert_allclose(single.predict_proba(score), positive, atol=1e-6)


@every_row
def test_dense_predictions_keep_their_shape(name):
    logits, labels = overconfident(rows=3 * 8 * 10)
    dense = logits.reshape(3, 8, 10, 4).transpose(0, 3, 1, 2)
    where = labels.reshape(3, 8, 10)
    made = fit(name, dense, where)
    assert_probabilities(made.predict_proba(dense), dense.shape)
    flat = fitted(name).predict_proba(logits).reshape(3, 8, 10, 4).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(made.predict_proba(dense), flat, atol=1e-6)


@every_row
def test_ignored_rows_do_not_count(name):
    logits, labels = overconfident()
    more = np.concatenate((logits, -logits[:30]))
    marked = np.concatenate((labels, np.full(30, -100)))
    made = fit(name, more, marked, ignore_index=-100)
    np.testing.assert_array_equal(made.calibrate(logits), fitted(name).calibrate(logits))
    assert made.summary_["rows"] == 240


@every_row
def test_rows_do_not_depend_on_their_neighbours(name):
    made = fitted(name)
    logits, _ = overconfident(rows=40, seed=3)
    together = made.predict_proba(logits)
    alone = np.concatenate([made.predict_proba(logits[i : i + 1]) for i in range(40)])
    np.testing.assert_allclose(alone, together, atol=1e-6)
    assert made.calibrate(logits[:0]).shape == (0, 4)


@every
def test_another_number_of_classes_is_refused(name):
    shapes = ((5, 3, 3, 4),) if get(name).dense_only else ((5, 3), (5, 5), (5,), (5, 3, 2))
    says = f"fitted on {WIDTH} features of 4 classes" if name in FEATURES else "fitted on 4 classes"
    for shape in shapes:
        with pytest.raises(InputError, match=says):
            fitted(name).calibrate(np.zeros(shape, dtype=np.float32))


def separable():
    logits, _ = overconfident(rows=60)
    return logits, logits.argmax(1)


def absent_class():
    logits, labels = overconfident()
    return logits, np.where(labels == 2, 1, labels)


def one_label():
    logits, _ = overconfident(rows=30)
    return logits, np.zeros(30, dtype=np.int64)


def constant():
    return np.full((40, 4), 1.5, dtype=np.float32), np.arange(40) % 4


def constant_column():
    logits, labels = overconfident()
    logits[:, 1] = 0.0
    return logits, labels


def wrong_everywhere():
    logits, _ = overconfident(rows=60)
    return logits, logits.argmin(1)


def tied():
    logits, labels = overconfident()
    return np.round(logits / 3).astype(np.float32), labels


HARD = {
    "two classes": lambda: overconfident(classes=2),
    "two rows, two classes": lambda: overconfident(rows=2, classes=2),
    "one row": lambda: overconfident(rows=1),
    "one wrong row": lambda: (np.array([[3.0, 0.0, 1.0]], dtype=np.float32), np.array([1])),
    "fewer rows than classes": lambda: overconfident(rows=12, classes=30),
    "a class without rows": absent_class,
    "one label only": one_label,
    "constant logits": constant,
    "a constant column": constant_column,
    "separable": separable,
    "wrong everywhere": wrong_everywhere,
    "tied logits": tied,
    "huge logits": lambda: (1e4 * overconfident()[0], overconfident()[1]),
    "tiny logits": lambda: (1e-6 * overconfident()[0], overconfident()[1]),
    "shifted logits": lambda: (overconfident()[0] + 1e3, overconfident()[1]),
}


@pytest.mark.sampled(count=60)
@every_row
@pytest.mark.parametrize("case", HARD)
def test_hard_data_give_finite_calibrators(name, case):
    logits, labels = HARD[case]()
    made = fit(name, logits, labels)
    mapped = made.calibrate(logits)
    assert np.isfinite(mapped).all()
    assert_probabilities(made.predict_proba(logits), logits.shape)
    assert np.isfinite(made.summary_["nll_after"])
    for key, value in made.state_dict().items():
        assert not torch.isnan(value).any(), key
    # Rows unlike any it was fitted on.
    wild = np.array([[1e4, -1e4], [0.0, 0.0], [-1e-7, 1e-7]], dtype=np.float32)
    wild = np.concatenate((wild, np.zeros((3, logits.shape[1] - 2), dtype=np.float32)), axis=1)
    assert np.isfinite(made.calibrate(wild)).all()
    if made.preserves_predictions:
        for rows in (logits, overconfident(rows=200, classes=logits.shape[1], seed=9)[0]):
            assert_preserved(torch.from_numpy(rows), torch.from_numpy(made.calibrate(rows)))


@pytest.mark.sampled(by="name")
@every_row
@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_with_exact_zeros(name, classes):
    logits, labels = overconfident(classes=classes)
    probs = torch.from_numpy(logits).double().softmax(1)
    probs = torch.where(probs < 0.05, 0.0, probs)
    probs = (probs / probs.sum(1, keepdim=True)).numpy()
    assert (probs == 0).any()
    made = fit(name, probs, labels, from_logits=False)
    for kind in (np.float64, np.float32):
        assert_probabilities(made.predict_proba(probs.astype(kind)), probs.shape)
    assert np.isfinite(made.calibrate(probs)).all()
    assert np.isfinite(made.summary_["nll_after"])
    if classes == 2:
        single = fit(name, probs[:, 1], labels, from_logits=False)
        assert_probabilities(single.predict_proba(probs[:, 1]), labels.shape)


@every_row
def test_probabilities_are_their_logits(name):
    logits, labels = overconfident(dtype=np.float64)
    log_probs = torch.from_numpy(logits).log_softmax(1)
    given_logits = fit(name, log_probs, labels)
    given_probs = fit(name, log_probs.exp(), labels, from_logits=False)
    torch.testing.assert_close(
        given_probs.predict_proba(log_probs.exp()),
        given_logits.predict_proba(log_probs),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize("name", PRESERVING)
@settings(max_examples=60, deadline=None)
@given(
    logits=arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 8), st.just(4)),
        elements=st.one_of(
            st.floats(-40, 40, width=32),
            st.floats(-1e4, 1e4, width=32),
            st.sampled_from([0.0, 1.0, 1.0 + 2**-20]),
        ),
    ),
    single=st.booleans(),
)
def test_predictions_are_preserved(name, logits, single):
    scores = torch.from_numpy(logits)
    scores = scores.float() if single else scores
    mapped = fitted(name)(scores)
    assert torch.isfinite(mapped).all()
    assert_preserved(scores, mapped)


@every
def test_a_gradient_is_finite(name):
    logits = torch.from_numpy(sample(name, rows=10)[0]).requires_grad_()
    mapped = fitted(name)(logits)
    if mapped.requires_grad:  # a step function has none to give
        mapped.logsumexp(1).sum().backward()
        assert torch.isfinite(logits.grad).all()


def test_interrupted_fit_leaves_it_unfitted(monkeypatch):
    def fail(*_):
        raise InputError("did not converge: try another")

    made = fit("temperature", *overconfident())
    monkeypatch.setattr(made, "_fit", fail)
    with pytest.raises(InputError, match="did not converge"):
        made.fit(*overconfident())
    assert not made.is_fitted


def test_names_are_looked_up_kindly():
    with pytest.raises(InputError, match="Did you mean temperature"):
        get("temprature")
    assert list(available()) == list(NAMES)


def test_repr_names_options_and_fitted_numbers():
    made = get("temperature", objective="focal")
    assert repr(made) == "Temperature(objective='focal', not fitted)"
    z = torch.tensor([[2.0, 0.0]] * 4)
    made = get("temperature").fit(z, torch.tensor([0, 0, 0, 1]))
    assert repr(made) == "Temperature(temperature_=1.82, 2 classes)"  # 2 / ln 3
    assert repr(copy.deepcopy(made).to("meta")) == "Temperature()"
