"""Training that is watched: test rows by epoch, and gradients of losses on training rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant import losses, metrics
from calibrant.bench import Store, Suite, collect_results, run_suite
from calibrant.core.errors import InputError
from calibrant.core.plugins import forget_plugins
from calibrant.training import Config, train
from calibrant.training.recipes import RECIPES
from replication import gallery

pytestmark = pytest.mark.slow  # claims are judged by `make test-all`

CONFIG = Config(data="digits", model="mlp", epochs=3, device="cpu", validation=300, batch_size=64)
GRADIENTS = {"plain": "cross_entropy", "ranked": "r_aurc(lam=1.0, strength=0.05)"}


@pytest.fixture(scope="module", autouse=True)
def watching():
    """The module, imported late: its recipe is none of the package's, which other tests count."""
    from replication import watched_training

    yield watched_training
    forget_plugins()
    RECIPES.unregister("watched")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, watching):
    """The same run, plain and watched."""
    options = {"gradients": GRADIENTS, "gradients_every": 2, "rows": 500}
    watched = CONFIG.changed(recipe="watched", recipe_options=options)
    folder = tmp_path_factory.mktemp("runs")
    return [train(config, folder / config.recipe) for config in (CONFIG, watched)]


def test_looks_leave_training_as_it_is(runs):
    plain, watched = (run.weights() for run in runs)
    assert {name for name in plain if name.startswith("network.")} <= set(watched)
    for name, weight in plain.items():
        assert torch.equal(weight, watched[name]), name


def test_test_rows_are_measured_after_every_epoch(runs):
    lines = runs[1].metrics
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    rows = runs[1].predictions("test")
    assert lines[-1]["test_ece"] == pytest.approx(float(metrics.ece(rows.array, rows.labels)))
    assert lines[-1]["test_accuracy"] == pytest.approx(
        float(metrics.accuracy(rows.array, rows.labels))
    )
    assert lines[0]["test_nll"] > lines[-1]["test_nll"]
    assert not any(name.startswith("test_") for name in runs[0].metrics[0])


def test_gradients_are_means_of_bins_of_the_true_probability(runs, watching):
    bins, lines = watching.BINS, runs[1].metrics
    with_gradients = [line["epoch"] for line in lines if "gradient:rows:0" in line]
    assert with_gradients == [1, 2, 3]  # the first, every second, and the last
    shares = {n: v for n, v in lines[-1].items() if n.startswith("gradient:rows:")}
    assert math.fsum(shares.values()) == pytest.approx(1)
    for at in range(bins):
        value = lines[-1].get(f"gradient:plain:{at}")
        if value is not None:  # −1/p is between the bin's ends
            assert -bins / max(at, 1e-9) - 1e-6 <= value <= -bins / (at + 1) + 1e-6
            assert f"gradient:ranked:{at}" in lines[-1]


@pytest.mark.parametrize(
    "text",
    ["cross_entropy", "focal(gamma=3)", "r_aurc(lam=1.0, strength=0.2, csf='neg_entropy')"],
)
def test_slopes_are_those_of_small_moves_along_the_simplex(text, watching):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    slopes = watching.compute_slopes(logits, labels, text, batch_size=6)
    loss, p = losses.get(text, reduction="none"), torch.softmax(logits, 1)
    for row in range(6):
        values = []
        for move in (-1e-6, 1e-6):
            moved, own = p.clone(), labels[row]
            moved[row] *= (1 - p[row, own] - move) / (1 - p[row, own])
            moved[row, own] = p[row, own] + move
            values.append(float(loss(moved.log(), labels).sum()))
        assert float(slopes[row]) == pytest.approx((values[1] - values[0]) / 2e-6, rel=1e-4)


def test_ranks_are_those_of_a_batch(watching):
    compute_slopes = watching.compute_slopes
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(8, 3, generator=generator), torch.arange(8) % 3
    text = "r_aurc(lam=1.0, strength=0.05)"
    whole = compute_slopes(logits, labels, text, batch_size=8)
    halves = compute_slopes(logits, labels, text, batch_size=4)
    assert torch.equal(halves[:4], compute_slopes(logits[:4], labels[:4], text, batch_size=4))
    assert not torch.allclose(whole[:4], halves[:4])


def test_certain_rows_have_finite_slopes(watching):
    logits = torch.tensor([[200.0, 0.0, 0.0], [0.0, 0.0, 200.0]])
    slopes = watching.compute_slopes(logits, torch.tensor([0, 0]), "cross_entropy", batch_size=2)
    assert float(slopes[0]) == pytest.approx(-1, rel=1e-4)
    assert torch.isfinite(slopes).all()


def test_options_are_checked_before_training(tmp_path, watching):
    with pytest.raises(InputError, match="every must be a whole number"):
        watching.Watched(every=0)
    with pytest.raises(InputError, match="no loss is called 'focl'"):
        watching.Watched(gradients={"focal": "focl"})
    config = CONFIG.changed(recipe="watched", average="ema")
    with pytest.raises(InputError, match="looks at plain weights"):
        train(config, tmp_path / "averaged")


SUITE = """
name: watched
plugins: [watched_training.py]
defaults: {data: digits, model: mlp, device: cpu, epochs: 3, recipe: watched}
methods:
  cross_entropy: {recipe_options: {gradients: {plain: cross_entropy}, gradients_every: 3}}
  lambda=0.9: {loss: "r_aurc(lam=0.9)"}
  "eps=0.05,lambda=0.5": {loss: "r_aurc(lam=0.5, strength=0.05)"}
  "eps=0.01,lambda=0.5": {loss: "r_aurc(lam=0.5, strength=0.01)"}
after:
  - metrics: {names: ["kde_ece(form=top, bandwidth=0.05)"]}
"""


def test_a_suite_of_watched_runs_is_drawn(tmp_path):
    source = gallery.__file__.replace("gallery", "watched_training")
    path = tmp_path / "watched.yaml"
    path.write_text(SUITE.replace("watched_training.py", source))
    suite = Suite.read(path)
    run_suite(suite, tmp_path / "out")
    results = collect_results(suite, Store(tmp_path / "out" / "store").frame())
    drawn = {title: draw() for title, draw in gallery.list_drawings(results)}
    ((_, by_epoch),) = ((t, axes) for t, axes in drawn.items() if "ECE of test rows" in t)
    names = [line.get_label() for line in by_epoch.get_lines()]
    # Those of one strength, as in the paper's figure.
    assert names == ["cross_entropy", "lambda=0.9", "eps=0.05,lambda=0.5"]
    ((_, slopes),) = ((t, axes) for t, axes in drawn.items() if "Gradient of plain" in t)
    assert [line.get_label() for line in slopes.get_lines()][:2] == ["epoch 1", "epoch 3"]
    x, y = slopes.get_lines()[0].get_xydata().T
    np.testing.assert_allclose(y * x, -1, atol=0.6)
    ((_, kernel),) = ((t, axes) for t, axes in drawn.items() if "against ε" in t)
    ((line),) = kernel.get_lines()
    assert line.get_xydata()[:, 0].tolist() == [0.01, 0.05]
