"""The README and the files beside it are right: examples run, tables and links agree."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import calibrant
from calibrant import calibrators, data, losses, models
from calibrant.demo import digits_split, predict, train_network
from calibrant.evaluation import DEFAULT_METRICS
from calibrant.training import recipes
from tests.helpers.loss_names import PRIMARY, SECONDARY

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, flags=re.M | re.S)


def section(heading):
    return re.search(rf"^## {heading}\n(.*?)(?=^## )", README, flags=re.M | re.S)[1]


def table(heading):
    """Return the rows of a section's table, in order: name and summary."""
    return re.findall(r"^\| `(\w+)` \| (.*) \|$", section(heading), flags=re.M)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a reader after `make demo`, with predictions in calibrant-demo."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "calibrant-demo").mkdir()
    split = digits_split()
    network = train_network(split.train_images, split.train_labels)
    predictions = predict(network, split.test_images, split.test_labels, name="digits")
    predictions.write(folder / "calibrant-demo" / "predictions.npz")
    with torch.no_grad():
        features = network[:-1](split.train_images)
    save_file({"features": features, "labels": split.train_labels}, folder / "features.safetensors")
    return folder


def make_names():
    """Return the variables that the examples expect the reader to have."""
    rng = np.random.default_rng(0)
    logits, labels = 3 * rng.normal(size=(300, 4)), rng.integers(0, 4, 300)
    images, target = torch.randn(20, 8), torch.randint(0, 3, (20,))
    exponent = np.exp(logits)
    return {
        "logits": logits,
        "labels": labels,
        "probs": exponent / exponent.sum(1, keepdims=True),
        "pixels": torch.randn(2, 3, 5, 5),
        "masks": torch.randint(0, 3, (2, 5, 5)).index_fill_(1, torch.tensor([0]), 255),
        "model": nn.Linear(8, 3),
        "loader": [(images, target)] * 2,
        "class_weights": torch.tensor([1.0, 2.0, 3.0]),
        "dataset": TensorDataset(torch.randn(40, 8)),
        "index": torch.arange(20, 40),
    }


def test_python_examples_run_in_the_order_they_are_read(folder, monkeypatch, capsys):
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.chdir(folder)
    names = make_names()
    assert len(blocks("python")) >= 4
    for number, code in enumerate(blocks("python")):
        exec(compile(code, f"README.md, example {number + 1}", "exec"), names)  # noqa: S102
    assert "overconfident" in capsys.readouterr().out
    assert (folder / "report.html").stat().st_size > 10_000


def test_the_first_example_is_three_lines():
    assert len(blocks("python")[0].strip().splitlines()[2:]) == 3


def test_commands_run_and_print_what_is_shown(folder, monkeypatch):
    from calibrant.cli import app

    monkeypatch.chdir(folder)
    commands = re.findall(r"^\$ calibrant (.*)$", "".join(blocks("console")), flags=re.M)
    assert len(commands) >= 4
    for words in map(shlex.split, commands):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == (3 if "--fail-above" in words else 0), result.output
    # Figures differ in their last digits from one machine to the next; their names do not.
    shown = CliRunner().invoke(app, shlex.split(commands[0]), env={"COLUMNS": "88"}).stdout
    for name in ("overconfident", "95% interval", "corrected", *DEFAULT_METRICS):
        assert name in shown
        assert name in blocks("console")[0]


def test_table_of_metrics_agrees_with_the_registry():
    rows = dict(table("What is measured"))
    assert rows == calibrant.metrics.available()
    assert f"{len(rows)} metrics" in README
    assert "the usual twelve" in README
    assert len(DEFAULT_METRICS) == 12


def test_table_of_losses_agrees_with_the_registry():
    assert table("Train") == [*losses.available().items(), *recipes.available().items()]
    assert f"{len(losses.available())} losses" in README
    assert f"The first {len(PRIMARY)} are primary" in section("Train")
    assert f"The other {len(SECONDARY)} are secondary" in section("Train")


def test_networks_and_data_are_all_named():
    names = set(re.findall(r"`([\w:]+)`", section("Train")))
    assert set(models.available()) <= names
    assert set(data.available()) <= names


def test_losses_of_the_local_batch_are_named():
    sentence = re.search(r"With data parallelism, (.*?) are values", section("Train"), flags=re.S)[
        1
    ]
    objectives = [losses.make(name, num_samples=3) for name in losses.available()]
    assert re.findall(r"`(\w+)`", sentence) == [
        loss.name for loss in objectives if loss.local_batch
    ]


def test_number_of_calibrators_leaves_out_identity():
    assert f"{len(calibrators.available()) - 1} post-hoc calibrators" in " ".join(README.split())


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_resolve(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r'(?:\]\(|src=")([^)"#]+)', text)
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert missing == []


def test_picture_is_small_enough_to_clone():
    assert (ROOT / "docs" / "report.png").stat().st_size < 300_000


def test_citation_agrees_with_the_package_and_the_report():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == calibrant.__version__
    assert citation["license"] == "Apache-2.0"
    section = Path(calibrant.__file__).parent / "report/assets/sections/citing.html"
    bibtex = " ".join(section.read_text(encoding="utf-8").split())
    assert f"{{{citation['title']}}}" in bibtex
    assert citation["authors"] == [{"name": "The calibrant developers"}]
    assert citation["authors"][0]["name"] in bibtex


def test_changelog_has_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text
    assert f"## [{calibrant.__version__}]" in text
