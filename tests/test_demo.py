"""The demonstration shows what it says: real data, a true fault, the same every time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import calibrant
from calibrant.demo import digits_split, predict, run_demo, train_network


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """One run of the demonstration: its folder and what it returned."""
    folder = tmp_path_factory.mktemp("demo") / "made" / "on the way"
    return folder, run_demo(folder, quiet=True)


def few_epochs(seed):
    split = digits_split()
    return train_network(split.train_images, split.train_labels, epochs=3, seed=seed).state_dict()


def same(one, two):
    return all(torch.equal(one[key], two[key]) for key in one)


def test_data_are_whole_unchanged_and_in_order():
    split, data = digits_split(), load_digits()
    images = torch.cat((split.train_images, split.test_images)).numpy()
    labels = torch.cat((split.train_labels, split.test_labels)).numpy()
    np.testing.assert_array_equal(images * 16, data.data)
    np.testing.assert_array_equal(labels, data.target)
    assert split.train_labels.bincount(minlength=10).min() >= 25


def test_network_is_overconfident_and_the_verdict_says_so(shown):
    folder, report = shown
    predictions = calibrant.Predictions.read(folder / "predictions.npz")
    evaluation = calibrant.evaluate(predictions)
    assert evaluation.num_rows == 1497
    assert evaluation.verdict.direction == "overconfident"
    assert evaluation.verdict.gap_low > 0.05
    assert evaluation["ece"].low > 0.05
    assert 0.8 < evaluation["accuracy"].value < 0.92
    assert report == folder / "report.html"


def test_repair_is_fitted_on_one_half_and_judged_on_the_other(shown):
    from calibrant.calibrators import load
    from calibrant.calibrators.rank import apply

    folder, report = shown
    held, before = calibrant.Predictions.read(folder / "predictions.npz").split(0.5)
    assert len(held) + len(before) == 1497
    calibrator = load(folder / "calibrator.safetensors")
    after = apply(calibrator, before)
    comparison = calibrant.compare(before, after)
    assert {comparison[name].winner for name in ("nll", "brier", "ece")} == {"b"}
    assert comparison["accuracy"].winner != "a"
    again = type(calibrator)(**calibrator.options()).fit(held.array, held.labels)
    np.testing.assert_allclose(again.calibrate(before.array), after.array, atol=1e-4)
    text = report.read_text(encoding="utf-8")
    for judged in (before, after):
        assert calibrant.evaluate(judged).verdict.headline in text
    assert 'id="repair"' in text
    assert 'id="temperature"' in text
    assert 'class="outcome helps"' in text


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_are_overconfident_too(seed):
    split = digits_split()
    network = train_network(split.train_images, split.train_labels, seed=seed)
    predictions = predict(network, split.test_images, split.test_labels, name="digits")
    accuracy = calibrant.metrics.accuracy(predictions.scores, predictions.labels)
    confidence = predictions.scores.softmax(1).amax(1).double().mean()
    assert confidence - accuracy > 0.05


def test_predictions_are_of_the_test_rows_in_order(shown):
    predictions = calibrant.Predictions.read(shown[0] / "predictions.npz")
    assert predictions.is_logits
    assert predictions.class_names == tuple("0123456789")
    np.testing.assert_array_equal(predictions.labels, load_digits().target[300:])


def test_seed_decides_the_network_whatever_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = few_epochs(0)
        torch.set_num_threads(2)
        two = few_epochs(0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert same(one, two)
    assert not same(one, few_epochs(1))


def test_caller_s_randomness_is_left_alone():
    state, mode = torch.get_rng_state(), torch.is_grad_enabled()
    few_epochs(7)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() is mode


def test_objective_can_be_replaced():
    split = digits_split()
    usual, smooth = (
        train_network(split.train_images, split.train_labels, loss=loss, epochs=20)
        for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.3))
    )
    confidences = [
        predict(network, split.test_images, split.test_labels, name="n").scores.softmax(1).amax(1)
        for network in (usual, smooth)
    ]
    assert confidences[1].mean() < confidences[0].mean() - 0.05


def test_quiet_is_silent_and_otherwise_it_tells_what_it_did(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("calibrant.demo.train_network", lambda *_, **__: network)
    split = digits_split()
    network = train_network(split.train_images, split.train_labels, epochs=5)
    capsys.readouterr()
    run_demo(tmp_path, quiet=True)
    assert capsys.readouterr() == ("", "")
    run_demo(tmp_path)
    told = " ".join(capsys.readouterr().out.split())
    before = calibrant.Predictions.read(tmp_path / "predictions.npz").split(0.5)[1]
    evaluation = calibrant.evaluate(before)
    for expected in [
        "300 handwritten digits",
        "1,497 digits",
        evaluation.verdict.headline,
        "Expected calibration error",
        "After the repair, on the same 748 digits",
        f"{tmp_path / 'calibrator.safetensors'}",
        f"calibrant evaluate {tmp_path / 'predictions.npz'}",
    ]:
        assert expected in told
