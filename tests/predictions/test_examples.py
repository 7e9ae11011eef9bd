"""Predictions of real networks that come with the package."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrant import Predictions, metrics
from calibrant.cli import app
from calibrant.core.errors import InputError
from calibrant.predictions import example, examples
from calibrant.predictions.examples import FOLDER

runner = CliRunner()
PLAIN = "cifar10-resnet18"


def test_all_are_small_together():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 1_500_000


@pytest.mark.parametrize("name", examples())
def test_each_is_a_network_of_cifar10_that_has_learnt(name):
    labels = {}
    for part, rows in (("test", 10_000), ("validation", 5_000)):
        predictions = example(name, part)
        assert predictions.array.shape == (rows, 10)
        assert predictions.array.dtype == np.float16
        assert np.bincount(predictions.labels).tolist() == [rows // 10] * 10
        assert 0.92 < float(metrics.accuracy(predictions.array, predictions.labels)) < 0.95
        labels[part] = predictions.labels
        assert (example(PLAIN, part).labels == predictions.labels).all()
    assert "airplane" in predictions.class_names


def test_cross_entropy_is_the_overconfident_one():
    ece = {
        name: float(metrics.ece(example(name).array, example(name).labels)) for name in examples()
    }
    assert 0.025 < ece[PLAIN] < 0.04
    assert ece[f"{PLAIN}-mac_cal"] < 0.7 * ece[PLAIN]


def test_they_stand_for_files():
    predictions = Predictions.read(f"example:{PLAIN}")
    validation = Predictions.read(f"example:{PLAIN}/validation")
    assert (predictions.array == example(PLAIN).array).all()
    assert len(validation) == 5_000


def test_options_of_read_hold_for_examples():
    predictions = Predictions.read(f"example:{PLAIN}", name="net", ignore_index=3)
    assert (predictions.name, predictions.ignore_index) == ("net", 3)
    with pytest.raises(InputError, match="leave one out"):
        Predictions.read(f"example:{PLAIN}", labels=np.zeros(10_000, int))
    with pytest.raises(InputError, match="names in the file say 'logits'"):
        Predictions.read(f"example:{PLAIN}", kind="probs")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("example:cifar11", "cifar10-resnet18"),
        (f"example:{PLAIN}/train", "validation, found 'train'"),
    ],
)
def test_mistakes_are_explained(text, says):
    with pytest.raises(InputError, match=says):
        Predictions.read(text)


def test_evaluate_takes_one_by_name():
    done = runner.invoke(app, ["evaluate", "--example", PLAIN, "-m", "ece", "--no-intervals"])
    assert done.exit_code == 0, done.output
    assert "0.03" in done.output


@pytest.mark.parametrize("arguments", [[], ["a.npz", "--example", PLAIN]])
def test_evaluate_wants_a_file_or_an_example(arguments):
    done = runner.invoke(app, ["evaluate", *arguments])
    assert done.exit_code == 2
    assert "--example NAME" in done.output
