"""adapt and evaluate --prevalence on the command line."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibrant
from calibrant import Predictions
from calibrant.calibrators.methods.prior_shift import ASSUMPTION
from calibrant.cli import app
from tests.decisions.test_adapt import NEW_CLASSES, RARE, make_classes, make_events

FEW = ("--resamples", 100)


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapt")
    for name, rows in (("source", make_events()), ("new", make_events(1500, RARE, seed=1))):
        table = pd.DataFrame({"confidence": 1 / (1 + np.exp(-rows.array))})
        if name == "source":
            table["happened"] = rows.labels.astype(int)
        table.to_csv(folder / f"{name}.csv", index=False)
    make_classes().write(folder / "classes.npz")
    NEW_CLASSES.write(folder / "new_classes.npz", labels=False)
    make_classes(seed=5).write(folder / "fit.npz")
    done = run("fit", folder / "fit.npz", "--method", "temperature", "-o", folder / "c.safetensors")
    assert done.exit_code == 0
    return folder


def test_adapt_then_apply_gives_adapted_probabilities(folder, tmp_path):
    made, out = tmp_path / "made.safetensors", tmp_path / "out.npz"
    done = run(
        "adapt", folder / "source.csv", folder / "new.csv", "--event", "fraud", "-o", made, *FEW
    )
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == ASSUMPTION
    assert "fraud" in done.output
    assert "BBSE" in done.output
    assert "ECE, in points" in done.output
    done = run("apply", made, folder / "new.csv", "-o", out)
    assert done.exit_code == 0, done.output
    written = Predictions.read(out)
    assert (1 / (1 + np.exp(-written.array))).mean() == pytest.approx(0.05, abs=0.02)


def test_classes_with_a_calibrator_and_json(folder, tmp_path):
    made = tmp_path / "made.safetensors"
    given = ("-c", folder / "c.safetensors", "-o", made, "--json", *FEW)
    done = run("adapt", folder / "classes.npz", folder / "new_classes.npz", *given)
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)
    assert next(iter(values)) == "assumption"
    assert values["shift"]["names"] == ["a", "b", "c", "d"]
    assert values["after"]["accuracy"]["value"] > values["before"]["accuracy"]["value"]
    loaded = calibrant.load(made)
    assert loaded.part.name == "temperature"
    assert list(loaded.shift_.target) == values["shift"]["target"]


def test_known_shares_by_name(folder, tmp_path):
    made = tmp_path / "made.safetensors"
    shares = [part for name in "abcd" for part in ("--prevalence", f"{name}=0.25")]
    done = run("adapt", folder / "classes.npz", *shares, "-o", made, *FEW)
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(calibrant.load(made).shift_.target, 0.25)


def test_shares_alone_need_no_rows(folder, tmp_path):
    fitted, made = tmp_path / "f.safetensors", tmp_path / "made.safetensors"
    calibrant.calibrators.get("platt").fit(make_events()).save(fitted)
    done = run(
        *("adapt", "-c", fitted, "--source-prevalence", 0.3, "--prevalence", 0.05, "-o", made)
    )
    assert done.exit_code == 0, done.output
    assert "fraud 5.0% instead of 30.0%" in done.output


def test_a_refusal_exits_with_three(folder, tmp_path):
    logits = make_events(2000, seed=1).array
    table = pd.DataFrame({"confidence": 1 / (1 + np.exp(-3 * logits))})
    table.to_csv(tmp_path / "odd.csv", index=False)
    made = tmp_path / "made.safetensors"
    done = run("adapt", folder / "source.csv", tmp_path / "odd.csv", "-o", made)
    assert done.exit_code == 3
    assert "refused: label shift does not explain" in done.output
    assert "--force" in done.output
    assert not made.exists()
    done = run("adapt", folder / "source.csv", tmp_path / "odd.csv", "-o", made, "--force", *FEW)
    assert done.exit_code == 0
    assert made.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give SOURCE"),
        (("source.csv",), "give TARGET"),
        (("source.csv", "new.csv", "--prevalence", "0.1"), "not both"),
        (("source.csv", "--prevalence", "5"), "--prevalence takes shares such as 0.05"),
        (("source.csv", "--prevalence", "rare"), "takes a share such as 0.05"),
        (("new.csv", "--prevalence", "0.1"), "--label-column"),
        (("--source-prevalence", "0.3", "--prevalence", "0.1"), "give a calibrator"),
    ],
)
def test_errors_say_what_to_do(folder, tmp_path, arguments, message):
    given = [folder / each if each.endswith(".csv") else each for each in arguments]
    done = run("adapt", *given, "-o", tmp_path / "made.safetensors")
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert "Traceback" not in done.output


def test_evaluate_takes_the_share_in_use(folder):
    file = folder / "source.csv"
    done = run("evaluate", file, "--event", "fraud", "--prevalence", 0.05, "--resamples", 100)
    assert done.exit_code == 0, done.output
    assert "With fraud 5.0% instead of" in done.output
    done = run("evaluate", file, "--prevalence", 0.05, "--fail-verdict", "--quiet")
    assert done.exit_code == 3
