"""The examples run, and train with the loss they name, as the same steps written out by hand do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import calibrant.metrics
from calibrant import losses

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = ("digits", "plain_loop", "lightning_module", "hugging_face_trainer")


@pytest.fixture
def example(monkeypatch):
    """Import an example as a script beside the others, and forget it afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


def by_hand(network, loader, loss, *, epochs, rate=3e-3):
    """The usual loop with Adam."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for _ in range(epochs):
        for images, labels in loader:
            value = loss(network(images), labels)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return network


def assert_same(first, second, **tolerance):
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def differs(first, second):
    return any(
        not torch.allclose(a, b, atol=1e-3)
        for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


# A plain loop.


def test_plain_loop_trains_with_the_loss_it_names(example):
    digits, plain = example("digits"), example("plain_loop")
    loader = lambda: digits.batches(digits.data()[0])  # noqa: E731
    trained = plain.train(digits.network(), loader(), epochs=3)
    composed = losses.compose(losses.Focal(), (0.5, losses.SoftAvUC()))
    assert_same(trained, by_hand(digits.network(), loader(), composed, epochs=3))
    usual = plain.train(digits.network(), loader(), objective="cross_entropy", epochs=3)
    assert_same(usual, by_hand(digits.network(), loader(), nn.CrossEntropyLoss(), epochs=3))
    assert differs(trained, usual)


def test_two_lines_of_the_plain_loop_are_ours():
    code = (FOLDER / "plain_loop.py").read_text(encoding="utf-8")
    lines = code[code.index("from calibrant") : code.index("def main")].splitlines()
    ours = [line for line in lines if "losses" in line.split('"""')[0]]
    assert [line.split("  #")[0].strip() for line in ours] == [
        "from calibrant import losses",
        "loss = losses.get(objective)",
    ]


@pytest.mark.slow
def test_plain_loop_tells_which_is_better(example, capsys):
    example("plain_loop").main(epochs=30)
    output = capsys.readouterr().out
    assert "cross_entropy: This classifier is" in output
    assert "focal+0.5*s_avuc: " in output
    assert "is better in" in output


# Lightning.


@pytest.mark.filterwarnings("ignore")
def test_lightning_takes_the_steps_of_a_plain_loop_and_logs_figures(example, tmp_path):
    lightning = pytest.importorskip("lightning")
    digits, module = example("digits"), example("lightning_module")
    rows, others = digits.data()
    classifier = module.Classifier(digits.network())
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[module.CalibrationCallback(tmp_path, method=None, picture_every=0)],
    )
    # In order: Lightning may draw from a generator of its own accord.
    loaders = [digits.batches(part, shuffle=False) for part in (rows, others)]
    trainer.fit(classifier, *loaders)
    composed = losses.compose(losses.Focal(), (0.5, losses.SoftAvUC()))
    expected = by_hand(digits.network(), loaders[0], composed, epochs=3)
    assert_same(classifier.network, expected)
    images, labels = others.tensors
    with torch.no_grad():
        logits = expected(images)
    for name in ("ece", "nll"):
        logged = float(trainer.callback_metrics[f"val_{name}"])
        assert logged == pytest.approx(float(getattr(calibrant.metrics, name)(logits, labels)))


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_lightning_example_runs(example, tmp_path, monkeypatch, capsys):
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    example("lightning_module").main(epochs=1)
    assert "test_calibrated_ece" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "calibration").iterdir()}
    assert {"report.html", "calibrator.safetensors"} < names


# Hugging Face.


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_trainer_example_runs(example, tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    example("hugging_face_trainer").main(epochs=2)
    assert "## Calibration" in capsys.readouterr().out
    assert (tmp_path / "run" / "README.md").exists()
    assert (tmp_path / "run" / "calibration" / "report.html").exists()
