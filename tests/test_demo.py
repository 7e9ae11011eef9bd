"""The demonstration shows what it says: real data, a true fault, the same every time."""

from __future__ import annotations

import contextlib
import io
import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import calibrant
from calibrant import losses
from calibrant.demo import OBJECTIVES, digits_split, predict, run_demo, train_network
from calibrant.report import words

METRICS = ("ece", "nll")


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """One run of the demonstration: its folder and what it returned."""
    folder, said = tmp_path_factory.mktemp("demo") / "made" / "on the way", io.StringIO()
    with contextlib.redirect_stdout(said):
        report = run_demo(folder)
    (folder / "said.txt").write_text(said.getvalue(), encoding="utf-8")
    return folder, report


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


def test_other_losses_are_trained_with_and_judged_on_the_same_half(shown):
    folder, report = shown
    before = calibrant.Predictions.read(folder / "predictions.npz").split(0.5)[1]
    text = report.read_text(encoding="utf-8")
    rows = {
        name: [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", row)]
        for name, row in re.findall(r'<tr data-model="(.*?)">(.*?)</tr>', text, re.S)
    }
    named = [f"trained with {name}" for name in OBJECTIVES]
    assert list(rows) == ["this model", "this model, repaired", *named]
    split = digits_split()
    for name in OBJECTIVES:
        network = train_network(split.train_images, split.train_labels, loss=losses.get(name))
        told = predict(network, split.test_images, split.test_labels, name=name).split(0.5)[1]
        np.testing.assert_array_equal(told.labels, before.labels)
        figures = calibrant.evaluate(told, metrics=("accuracy", "ece", "nll"))
        accuracy, ece, interval, nll, outcome = rows[f"trained with {name}"]
        assert accuracy == words.figure_text("accuracy", figures["accuracy"].value)
        assert ece == words.number(figures["ece"].value)
        low, high = (words.number(end) for end in (figures["ece"].low, figures["ece"].high))
        assert interval == f"{low} to {high}"
        assert nll == words.number(figures["nll"].value)
        # What the losses were chosen for on the other half holds on this one too.
        assert outcome == "better calibrated, lower NLL"
    assert "All 3 are better calibrated than this model; none is shown to be less accurate" in text


def test_losses_were_chosen_on_the_half_that_fits_the_repair():
    split = digits_split()
    for name, kept in [*((name, True) for name in OBJECTIVES), ("cross_entropy", False)]:
        network = train_network(split.train_images, split.train_labels, loss=losses.get(name))
        held = predict(network, split.test_images, split.test_labels, name=name).split(0.5)[0]
        ece, nll = (getattr(calibrant.metrics, one)(held.scores, held.labels) for one in METRICS)
        assert (ece < 0.05 and nll < 0.44) == kept


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


def test_quiet_is_silent(tmp_path, capsys, monkeypatch):
    split = digits_split()
    network = train_network(split.train_images, split.train_labels, epochs=5)
    monkeypatch.setattr("calibrant.demo.train_network", lambda *_, **__: network)
    plain = calibrant.calibrate
    quick = {"calibrate": lambda held, **_: plain(held, method="temperature")}
    quick |= {"OBJECTIVES": OBJECTIVES[:1], "_larger_network": lambda folder, *_: folder}
    quick |= {"_explain": lambda *_: "mended"}
    for name, value in quick.items():
        monkeypatch.setattr(f"calibrant.demo.{name}", value)
    capsys.readouterr()
    run_demo(tmp_path, quiet=True)
    assert capsys.readouterr() == ("", "")
    run_demo(tmp_path)
    assert "Training a small network" in capsys.readouterr().out


def test_it_tells_what_it_did(shown):
    folder, _ = shown
    told = " ".join((folder / "said.txt").read_text(encoding="utf-8").split())
    before = calibrant.Predictions.read(folder / "predictions.npz").split(0.5)[1]
    evaluation = calibrant.evaluate(before)
    for expected in [
        "300 handwritten digits",
        "1,497 digits",
        evaluation.verdict.headline,
        "Expected calibration error",
        "After the repair, on the same 748 digits",
        *(f"trained with {name}:" for name in OBJECTIVES),
        f"{folder / 'calibrator.safetensors'}",
        f"calibrant evaluate {folder / 'predictions.npz'}",
    ]:
        assert expected in told
