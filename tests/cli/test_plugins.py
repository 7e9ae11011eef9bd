"""--plugins: methods of the user's own, by name, in every command that names methods."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from calibrant import Predictions, metrics
from calibrant.cli import app
from calibrant.core.plugins import forget_plugins

METHODS = '''
import torch

import calibrant
from calibrant import calibrators, losses


@calibrant.metrics.register
def confident_errors(probs, labels):
    """The share of rows that are wrong with a confidence above 0.9."""
    return float(((probs.max(1) > 0.9) & (probs.argmax(1) != labels)).mean())


@calibrators.register
class Halve(calibrators.Calibrator):
    """Logits divided by two."""

    name = "halve"
    preserves_predictions = True

    def __init__(self, *, from_logits=True):
        super().__init__(from_logits=from_logits)
        self.register_buffer("factor", torch.ones(()))

    def _fit(self, logits, target):
        self.factor = torch.tensor(0.5).to(logits)

    def _map(self, logits):
        return logits * self.factor


@losses.register
class MeanConfidence(losses.SecondaryLoss):
    """The mean confidence."""

    name = "mean_confidence"

    def forward(self, input, target):
        return input.softmax(1).max(1).values.mean()
'''


@pytest.fixture
def folder(tmp_path):
    """Overconfident predictions, and a file that registers a method of three kinds."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(400, 3)) * 4
    chances = np.exp(logits / 2) / np.exp(logits / 2).sum(1, keepdims=True)
    labels = np.array([rng.choice(3, p=row) for row in chances])
    Predictions.from_logits(logits, labels).write(tmp_path / "val.npz")
    (tmp_path / "methods.py").write_text(METHODS)
    yield tmp_path
    forget_plugins()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_evaluate_compare_and_metrics_take_a_metric_of_ones_own(folder):
    file, plugin = folder / "val.npz", ("--plugins", folder / "methods.py")
    arguments = ("evaluate", file, "-m", "confident_errors", "--json", "--no-intervals")
    assert "no metric is called" in run(*arguments).stderr
    result = run(*arguments, *plugin)
    assert result.exit_code == 0, result.output
    held = np.load(file)
    probs = np.exp(held["logits"]) / np.exp(held["logits"]).sum(1, keepdims=True)
    expected = ((probs.max(1) > 0.9) & (probs.argmax(1) != held["labels"])).mean()
    value = json.loads(result.stdout)["figures"]["confident_errors"]["value"]
    assert value == pytest.approx(expected, rel=1e-12)
    compared = run("compare", file, file, "-m", "confident_errors,nll", "--json", *plugin)
    assert compared.exit_code == 0, compared.output
    listed = json.loads(run("metrics", "--json", *plugin).stdout)
    assert "confident_errors" in [record["name"] for record in listed]


def test_fit_rank_and_apply_take_a_calibrator_of_ones_own(folder):
    file, out = folder / "val.npz", folder / "halve.safetensors"
    plugin = ("--plugins", folder / "methods.py")
    assert "Did you mean" in run("fit", file, "--method", "halv", "-o", out, *plugin).stderr
    fitted = run("fit", file, "--method", "halve", "-o", out, *plugin)
    assert fitted.exit_code == 0, fitted.output
    ranked = run("rank", file, "--method", "halve", "--splits", 1, "--json", *plugin)
    assert [row["method"] for row in json.loads(ranked.stdout)] == ["halve"]
    after = folder / "after.npz"
    applied = run("apply", out, file, "-o", after, *plugin)
    assert applied.exit_code == 0, applied.output
    before, halved = (Predictions.read(path) for path in (file, after))
    assert metrics.nll(halved.array, halved.labels) == pytest.approx(
        metrics.nll(before.array / 2, before.labels), rel=1e-5
    )


def test_train_takes_a_loss_of_ones_own(folder):
    pytest.importorskip("lightning")
    arguments = ["train", "--data", "digits", "--model", "mlp", "--epochs", 1, "--device", "cpu"]
    arguments += ["--loss", "cross_entropy+0.1*mean_confidence", "-o", folder / "run"]
    arguments += ["--no-report", "-q"]
    result = run(*arguments, "--plugins", folder / "methods.py")
    assert result.exit_code == 0, result.output
    assert (folder / "run").is_dir()


def test_a_module_is_a_plugin_too(folder, monkeypatch):
    (folder / "methods.py").rename(folder / "my_own_methods.py")
    monkeypatch.syspath_prepend(str(folder))
    arguments = ("metrics", "--json", "--plugins", "my_own_methods")
    assert "confident_errors" in run(*arguments).stdout


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "there is no such file"),
        ("x = 1\n", "registers nothing"),
        ("def f(:\n", "line 1"),
    ],
)
def test_a_plugin_that_fails_is_one_line_and_code_2(folder, source, message):
    path = folder / "broken.py"
    if source is not None:
        path.write_text(source)
    result = run("evaluate", folder / "val.npz", "--plugins", path)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: plugin ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
