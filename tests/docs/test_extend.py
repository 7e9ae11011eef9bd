"""The tutorial docs/extend.md does what it says, in a fresh process and in a suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import calibrant
from calibrant import calibrators, data, losses, metrics, models
from calibrant.cli import app
from calibrant.core.plugins import forget_plugins, load_plugins
from calibrant.training import recipes

TEXT = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.M | re.S)
(SUITE,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.M | re.S)


@pytest.fixture
def folder(tmp_path):
    """The reader's two files; their names are unknown again afterwards."""
    (tmp_path / "my_methods.py").write_text("\n".join(CODE))
    (tmp_path / "own.yaml").write_text(SUITE)
    yield tmp_path
    forget_plugins()


def test_each_example_is_short():
    assert len(CODE) == 7
    for code in CODE:
        lines = [line for line in code.splitlines() if line and "import" not in line]
        assert len(lines) <= 20


def test_every_name_works_once_the_module_is_loaded(folder):
    load_plugins(["my_methods.py"], folder)
    logits, labels = torch.randn(200, 3), torch.randint(0, 3, (200,))
    hot = torch.nn.functional.one_hot(labels, 3).float()
    loss = losses.get("focal+0.5*mean_gap(power=2)")
    assert loss(logits, labels) == pytest.approx(float(loss(logits, hot)))
    assert metrics.available()["sure_errors"] == "Errors among rows of high confidence."
    predictions = calibrant.Predictions.from_logits(logits, labels)
    ignored = torch.where(torch.arange(200) < 100, labels, -100)
    squared = losses.get("squared_error")
    assert squared(logits, ignored) == pytest.approx(float(squared(logits[:100], labels[:100])))
    evaluation = calibrant.evaluate(predictions, metrics=["accuracy", "sure_errors"])
    assert np.isfinite(evaluation.figures["sure_errors"].value)
    fitted = calibrators.get("shrink", steps=20).fit(logits, labels)
    fitted.save(folder / "shrink.safetensors")
    again = calibrant.load(folder / "shrink.safetensors")
    assert torch.equal(again.predict_proba(logits), fitted.predict_proba(logits))
    forget_plugins()
    with pytest.raises(calibrant.InputError, match=r"'my_methods.py', which registered it, is not"):
        calibrant.load(folder / "shrink.safetensors")
    load_plugins(["my_methods.py"], folder)
    assert recipes.get("twice").name == "twice"
    assert data.load("stripes").train.num_classes == 2
    assert models.build("tiny_net", 3, channels=1)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


def test_names_are_unknown_without_the_module():
    for room, name in ((losses, "mean_gap"), (metrics, "sure_errors"), (calibrators, "shrink")):
        assert name not in room.available()


def test_importing_the_module_registers_in_a_process_of_its_own(folder):
    code = "import my_methods\nfrom calibrant import losses\nprint(losses.get('mean_gap').betas)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "(1.0,)"


def test_packages_announce_methods_by_entry_points(folder):
    about = folder / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[calibrant.plugins]\nmy_methods = my_methods\n")
    code = (
        "from calibrant import losses\nimport sys\nlosses.get('focal')\n"
        "assert 'my_methods' not in sys.modules\nprint(losses.get('mean_gap').betas)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "(1.0,)"


def test_its_suite_runs_and_is_shown(folder):
    pytest.importorskip("lightning")
    shown = re.findall(r"^\$ calibrant (.*(?:own\.yaml|shrink).*)$", TEXT, flags=re.M)
    commands = [line.split() for line in shown]
    assert [words[1] for words in commands] == ["run", "table"]
    out = folder / "bench"
    given = {"own.yaml": str(folder / "own.yaml"), "bench": str(out)}
    for words in commands:
        words = ["bench", *(given.get(word, word) for word in words[1:])]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    assert "Errors where sure ↓ | Errors where sure, after shrink ↓" in result.stdout
    for name in ("cross_entropy", "mean_gap", "mixed", "twice"):
        assert re.search(rf"^\| {name} \| .*\d", result.stdout, flags=re.M), name
