"""fit, apply and rank on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import calibrant
from calibrant import Predictions, calibrators, metrics
from calibrant.cli import app
from tests.calibrators.test_choose import draw

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repair")
    draw(1500, temperature=2.5).write(folder / "val.npz")
    draw(1000, temperature=2.5, seed=1).write(folder / "test.npz")
    return folder


def test_fit_then_apply_improves_other_rows(folder):
    calibrator, out = folder / "calibrator.safetensors", folder / "after.npz"
    done = runner.invoke(app, ["fit", str(folder / "val.npz"), "-o", str(calibrator)])
    assert done.exit_code == 0, done.output
    assert "chosen" in done.output
    assert str(calibrator.name) in done.output
    arguments = ["apply", str(calibrator), str(folder / "test.npz"), "-o", str(out)]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    before, after = Predictions.read(folder / "test.npz"), Predictions.read(out)
    assert (before.labels == after.labels).all()
    assert metrics.nll(after.array, after.labels) < metrics.nll(before.array, before.labels)


@pytest.mark.parametrize("ending", [".npz", ".npy", ".safetensors", ".pt", ".parquet", ".csv"])
def test_apply_needs_no_labels(folder, ending):
    calibrator = folder / "for-unlabelled.safetensors"
    fit = ["fit", str(folder / "val.npz"), "--method", "temperature", "-o", str(calibrator), "-q"]
    assert runner.invoke(app, fit).exit_code == 0
    given = Predictions.read(folder / "test.npz")
    file, out = folder / f"unlabelled{ending}", folder / f"applied{ending}"
    given.write(file, labels=False)
    kind = ["--logits"] if ending == ".npy" else []
    done = runner.invoke(app, ["apply", str(calibrator), str(file), "-o", str(out), *kind])
    assert done.exit_code == 0, done.output
    assert Predictions.read(out, kind="logits").labels is None
    after = Predictions.read(out, labels=given.labels, kind="logits")
    expected = calibrators.apply(calibrators.load(calibrator), given)
    np.testing.assert_allclose(np.asarray(after.array), np.asarray(expected.array), rtol=1e-5)
    assert expected.name == f"{given.name} after temperature"


def test_apply_never_overwrites_its_input(folder):
    calibrator, file = folder / "for-itself.safetensors", folder / "val.npz"
    fit = ["fit", str(file), "--method", "temperature", "-o", str(calibrator), "-q"]
    assert runner.invoke(app, fit).exit_code == 0
    before = file.read_bytes()
    done = runner.invoke(app, ["apply", str(calibrator), str(file), "-o", str(file)])
    assert done.exit_code == 2
    assert "is the input file" in done.output
    assert file.read_bytes() == before


def test_few_rows_give_a_warning(tmp_path):
    draw(20, temperature=2.5).write(tmp_path / "few.npz")
    arguments = ["fit", str(tmp_path / "few.npz"), "-o", str(tmp_path / "c.safetensors"), "-q"]
    with pytest.warns(UserWarning, match="20 rows are too few to choose a calibrator"):
        assert runner.invoke(app, [*arguments, "--time-budget", "1"]).exit_code == 0


def test_a_ranking_in_a_file_is_whole(folder):
    arguments = ["rank", str(folder / "val.npz"), "--method", "temperature"]
    shown = runner.invoke(app, [*arguments, "--splits", "2"])
    assert "classwise_ece" in shown.stdout
    assert "…" not in shown.stdout
    assert shown.stderr == "fitting temperature\n"  # a log shows progress


def test_fit_takes_a_method_and_keeps_quiet(folder):
    out = folder / "t.safetensors"
    arguments = ["fit", str(folder / "val.npz"), "-o", str(out), "--method", "temperature", "-q"]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0
    assert done.output == ""
    assert out.exists()


def test_fit_takes_the_options_of_a_method(folder):
    fitted = {}
    for objective in ("nll", "sb_ece"):
        out = folder / f"{objective}.safetensors"
        arguments = ["fit", str(folder / "val.npz"), "-o", str(out), "--method", "temperature"]
        done = runner.invoke(app, [*arguments, "--option", f"objective={objective}"])
        assert done.exit_code == 0, done.output
        fitted[objective] = calibrant.load(out)
    assert fitted["sb_ece"].objective == "sb_ece"
    assert float(fitted["nll"].temperature_) != float(fitted["sb_ece"].temperature_)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "temperature", "--option", "objective"], "takes NAME=VALUE"),
        (["--method", "temperature", "--option", "colour=red"], "colour"),
        (["--option", "objective=ece"], "name one with --method"),
    ],
)
def test_fit_explains_options_it_cannot_take(folder, more, message):
    out = folder / "none.safetensors"
    done = runner.invoke(app, ["fit", str(folder / "val.npz"), "-o", str(out), *more])
    assert done.exit_code != 0
    assert message in done.output
    assert not out.exists()


def test_rank_lists_methods_by_likelihood(folder):
    arguments = ["rank", str(folder / "val.npz"), str(folder / "test.npz"), "--json"]
    for name in ("identity", "temperature", "vector"):
        arguments += ["--method", name]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    values = [row["nll"] for row in rows]
    assert values == sorted(values)
    assert rows[-1]["method"] == "identity"
    shown = runner.invoke(
        app, ["rank", str(folder / "val.npz"), "--method", "temperature", "--splits", "2"]
    )
    assert shown.exit_code == 0, shown.output
    assert "temperature" in shown.stdout


def test_bad_input_is_one_line(folder, tmp_path):
    for arguments, words in (
        (["fit", str(folder / "val.npz"), "-o", "x", "--method", "temprature"], "Did you mean"),
        (["apply", str(folder / "val.npz"), str(folder / "val.npz"), "-o", "y.npz"], "error"),
        (["rank", str(folder / "absent.npz")], "absent.npz"),
    ):
        done = runner.invoke(app, arguments)
        assert done.exit_code == 2, done.output
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_probabilities_are_calibrated(folder):
    probs = np.exp(draw(600, temperature=2.0).array)
    probs /= probs.sum(1, keepdims=True)
    file = folder / "probs.npz"
    Predictions.from_probs(probs, draw(600, temperature=2.0).labels).write(file)
    calibrator, out = folder / "p.safetensors", folder / "p.npz"
    command = ["fit", str(file), "-o", str(calibrator), "--method", "temperature"]
    assert runner.invoke(app, command).exit_code == 0
    assert runner.invoke(app, ["apply", str(calibrator), str(file), "-o", str(out)]).exit_code == 0
    assert Predictions.read(out).is_logits


@pytest.mark.parametrize("method", ["auto", "platt"])
def test_the_commands_take_events(method, tmp_path):
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.9, 300)
    y = rng.random(300) < p / 2
    clusters = np.arange(300) // 6
    val = Predictions.from_events(p, y, event="fraud", weights=1.0 + y, clusters=clusters)
    file, made, out = (tmp_path / name for name in ("val.parquet", "c.safetensors", "out.parquet"))
    val.write(file)
    done = runner.invoke(app, ["fit", str(file), "-o", str(made), "--method", method])
    assert done.exit_code == 0, done.output
    assert "on average before" in " ".join(done.output.split())
    if method == "auto":
        assert "in 50 clusters" in " ".join(done.output.split())
    done = runner.invoke(app, ["apply", str(made), str(file), "-o", str(out)])
    assert done.exit_code == 0, done.output
    after = Predictions.read(out)
    assert (after.task, after.event, after.is_logits) == ("events", "fraud", True)
    np.testing.assert_allclose(after.array, calibrators.apply(calibrators.load(made), val).array)


def test_the_command_fits_each_label(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 3))
    y = (rng.random(z.shape) < 0.3).astype(float)
    y[10:, 2] = np.nan
    file, made = tmp_path / "val.npz", tmp_path / "c.safetensors"
    Predictions.from_multilabel(z, y).write(file)
    arguments = ["fit", str(file), "-o", str(made), "--method", "platt"]
    with pytest.warns(UserWarning, match="1 of 3 labels"):
        done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "3 labels, 1 of which share one" in " ".join(done.output.split())
    assert calibrators.load(made).takes_labels
