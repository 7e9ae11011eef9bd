"""The demonstration: real data, an overconfident network, the same output every time."""

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
from calibrant.report import formatting


@contextlib.contextmanager
def count_steps(description, total, **_):
    """Stand for the progress bar: its steps must add up to what it was told."""
    done = []
    yield done.append
    assert sum(done) == total


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Run the demonstration once; return its folder and the path of the report."""
    folder, printed = tmp_path_factory.mktemp("demo") / "made" / "on the way", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr("calibrant.demo.progress_bar", count_steps)
        report = run_demo(folder)
    (folder / "printed.txt").write_text(printed.getvalue(), encoding="utf-8")
    return folder, report


def few_epochs(seed):
    split = digits_split()
    return train_network(split.train_images, split.train_labels, epochs=3, seed=seed).state_dict()


def are_same(first, second):
    return all(torch.equal(first[key], second[key]) for key in first)


def test_data_are_whole_unchanged_and_in_order():
    split, data = digits_split(), load_digits()
    images = torch.cat((split.train_images, split.test_images)).numpy()
    labels = torch.cat((split.train_labels, split.test_labels)).numpy()
    np.testing.assert_array_equal(images * 16, data.data)
    np.testing.assert_array_equal(labels, data.target)
    assert split.train_labels.bincount(minlength=10).min() >= 25


@pytest.mark.slow
def test_network_and_verdict_are_overconfident(shown):
    folder, report = shown
    predictions = calibrant.Predictions.read(folder / "predictions.npz")
    evaluation = calibrant.evaluate(predictions)
    assert evaluation.num_rows == 1497
    assert evaluation.verdict.direction == "overconfident"
    assert evaluation.verdict.gap_low > 0.05
    assert evaluation["ece"].low > 0.05
    assert 0.8 < evaluation["accuracy"].value < 0.92
    assert report == folder / "report.html"


@pytest.mark.slow
def test_calibrator_is_fitted_on_one_half_and_evaluated_on_the_other(shown):
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


@pytest.mark.slow
def test_other_losses_are_evaluated_on_the_same_half(shown):
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
        everything = predict(network, split.test_images, split.test_labels, name=name)
        half = everything.split(0.5)[1]
        np.testing.assert_array_equal(half.labels, before.labels)
        figures = calibrant.evaluate(half, metrics=("accuracy", "ece", "nll"))
        accuracy, ece, interval, nll, outcome = rows[f"trained with {name}"]
        assert accuracy == formatting.figure_text("accuracy", figures["accuracy"].value)
        assert ece == formatting.page_text("ece", figures["ece"].value)
        assert interval == formatting.page_interval("ece", figures["ece"].low, figures["ece"].high)
        assert nll == formatting.number(figures["nll"].value)
        # What the losses were chosen for on the other half holds on this one too.
        assert outcome == "better calibrated, lower NLL"
    assert "All 3 are better calibrated than this model; none is shown to be less accurate" in text


@pytest.mark.slow
def test_losses_qualify_on_the_half_that_fits_the_calibrator():
    split = digits_split()
    for name, kept in [*((name, True) for name in OBJECTIVES), ("cross_entropy", False)]:
        network = train_network(split.train_images, split.train_labels, loss=losses.get(name))
        held = predict(network, split.test_images, split.test_labels, name=name).split(0.5)[0]
        ece = calibrant.metrics.ece(held.scores, held.labels)
        nll = calibrant.metrics.nll(held.scores, held.labels)
        assert (ece < 0.05 and nll < 0.44) == kept


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_are_overconfident_too(seed):
    split = digits_split()
    network = train_network(split.train_images, split.train_labels, seed=seed)
    predictions = predict(network, split.test_images, split.test_labels, name="digits")
    accuracy = calibrant.metrics.accuracy(predictions.scores, predictions.labels)
    confidence = predictions.scores.softmax(1).amax(1).double().mean()
    assert confidence - accuracy > 0.05


@pytest.mark.slow
def test_predictions_are_of_the_test_rows_in_order(shown):
    predictions = calibrant.Predictions.read(shown[0] / "predictions.npz")
    assert predictions.is_logits
    assert predictions.class_names == tuple("0123456789")
    np.testing.assert_array_equal(predictions.labels, load_digits().target[300:])


def test_seed_decides_the_network_whatever_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        first = few_epochs(0)
        torch.set_num_threads(2)
        second = few_epochs(0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert are_same(first, second)
    assert not are_same(first, few_epochs(1))


def test_random_state_of_the_caller_is_unchanged():
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


@pytest.mark.slow
def test_quiet_is_silent(tmp_path, capsys, monkeypatch):
    split = digits_split()
    network = train_network(split.train_images, split.train_labels, epochs=5)
    monkeypatch.setattr("calibrant.demo.train_network", lambda *_, **__: network)
    plain = calibrant.calibrate
    quick = {"calibrate": lambda held, **_: plain(held, method="temperature")}
    quick |= {"OBJECTIVES": OBJECTIVES[:1], "_report_larger_network": lambda folder, *_: folder}
    quick |= {"_explain": lambda *_: "mended"}
    for name, value in quick.items():
        monkeypatch.setattr(f"calibrant.demo.{name}", value)
    capsys.readouterr()
    run_demo(tmp_path, quiet=True)
    assert capsys.readouterr() == ("", "")
    run_demo(tmp_path)
    assert "Training a small network" in capsys.readouterr().out


@pytest.mark.slow
def test_output_describes_every_step(shown):
    folder, _ = shown
    printed = " ".join((folder / "printed.txt").read_text(encoding="utf-8").split())
    before = calibrant.Predictions.read(folder / "predictions.npz").split(0.5)[1]
    evaluation = calibrant.evaluate(before)
    for expected in [
        "300 handwritten digits",
        "1,497 digits",
        evaluation.verdict.headline,
        "Expected calibration error",
        "After calibration, on the same 748 digits",
        *(f"trained with {name}:" for name in OBJECTIVES),
        f"{folder / 'calibrator.safetensors'}",
        f"calibrant evaluate {folder / 'predictions.npz'}",
    ]:
        assert expected in printed
