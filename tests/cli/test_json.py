"""JSON output of the commands, and warnings in JSON and in the report."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrant import Predictions, calibrators, compare, evaluate, metrics
from calibrant.cli import app
from calibrant.evaluation import DEFAULT_METRICS
from calibrant.report import render
from tests.calibrators.test_choose import draw


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("json")
    draw(1500, temperature=2.5).write(path / "val.npz")
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), size=400)
    labels = np.array([rng.choice(3, p=p) for p in probs])
    np.savez(path / "mistaken.npz", logits=probs, labels=labels)
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_metrics_json_lists_the_registry():
    records = json.loads(run("metrics", "--json").stdout)
    assert {record["name"]: record["says"] for record in records} == metrics.available()
    assert {record["name"] for record in records if record["default"]} == set(DEFAULT_METRICS)
    assert {record["name"]: record["better"] for record in records}["accuracy"] == "higher"


def test_fit_json_has_method_summary_and_output(folder):
    out = folder / "t.safetensors"
    arguments = ("fit", folder / "val.npz", "--method", "temperature", "-o", out, "--json")
    result = run(*arguments)
    outcome = json.loads(result.stdout)
    assert outcome["output"] == str(out)
    assert outcome["method"] == "temperature"
    assert outcome["choice"] is None
    fitted = calibrators.load(out)
    assert outcome["summary"]["nll_after"] == pytest.approx(fitted.summary_["nll_after"])
    assert outcome["summary"]["nll_after"] < outcome["summary"]["nll_before"]


def test_fit_json_explains_the_choice(folder):
    result = run("fit", folder / "val.npz", "-o", folder / "auto.safetensors", "--json")
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    chosen = [
        candidate["method"] for candidate in outcome["choice"]["candidates"] if candidate["chosen"]
    ]
    assert chosen == [outcome["choice"]["method"]]
    assert outcome["choice"]["explanation"]


def test_apply_json_describes_the_output(folder):
    calibrator, out = folder / "a.safetensors", folder / "after.npz"
    run("fit", folder / "val.npz", "--method", "temperature", "-o", calibrator, "-q")
    result = run("apply", calibrator, folder / "val.npz", "-o", out, "--json")
    assert json.loads(result.stdout) == {
        "output": str(out),
        "method": "temperature",
        "num_rows": 1500,
        "num_classes": Predictions.read(out).num_classes,
        "labels": True,
    }


def test_compare_json_has_significant_metrics_and_their_number(folder):
    result = run("compare", folder / "val.npz", folder / "val.npz", "--json", "--resamples", 100)
    outcome = json.loads(result.stdout)
    assert outcome["shown"] == []
    assert outcome["corrected_for"] == len(outcome["differences"])


def test_probabilities_given_as_logits_are_warned_of_in_json_and_report(folder, tmp_path):
    page = tmp_path / "r.html"
    with pytest.warns(UserWarning, match="sums to one"):
        result = run(
            "evaluate", folder / "mistaken.npz", "--json", "--no-intervals", "--report", page
        )
    (message,) = json.loads(result.stdout)["warnings"]
    assert "sum to one: if they are probabilities" in message
    text = page.read_text(encoding="utf-8")
    assert "<strong>Warning:</strong> rows of these logits lie in [0, 1]" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = run("evaluate", folder / "val.npz", "--json", "--no-intervals")
    assert json.loads(fine.stdout)["warnings"] == []


def test_lazy_and_unchecked_rows_are_warned_of_too(folder, tmp_path):
    held = np.load(folder / "mistaken.npz")
    np.save(tmp_path / "p.npy", held["logits"])
    lazy = Predictions.read(tmp_path / "p.npy", labels=held["labels"], kind="logits", lazy=True)
    with pytest.warns(UserWarning, match="sums to one") as warnings_given:
        assert evaluate(lazy, intervals=False).warnings
    assert len(warnings_given) == 1  # by the reader only
    unchecked = Predictions.from_logits(held["logits"], held["labels"], validate=False)
    assert evaluate(unchecked, intervals=False).warnings
    fine = Predictions.from_probs(held["logits"], held["labels"])
    assert evaluate(fine, intervals=False).warnings == ()
    assert "<strong>Warning:" not in render(evaluate(fine, intervals=False))


def test_report_of_a_comparison_names_the_correction():
    before = draw(800, temperature=2.5)
    after = Predictions.from_logits(np.asarray(before.array) / 2.5, before.labels, name="after")
    figures = {"resamples": 100, "metrics": ["accuracy", "nll", "brier", "ece"]}
    first, second = evaluate(before, **figures), evaluate(after, **figures)
    comparison = compare(before, after, metrics=["accuracy", "nll", "brier", "ece"], resamples=100)
    text = render(first, after=second, comparison=comparison)
    note = "remain after a correction for their number (Holm)"
    assert f"Among {comparison.num_tested} figures" in text
    assert note in text
    alone = compare(before, after, metrics=["nll"], resamples=100)
    assert note not in render(first, after=second, comparison=alone)
    assert note not in render(first, after=second)


def test_an_insignificant_winner_is_a_hint_in_the_report():
    from dataclasses import replace

    before = draw(300, temperature=1.0)
    evaluation = evaluate(before, metrics=["ece", "nll"], resamples=100)
    same = compare(before, before, metrics=["ece", "nll"], resamples=100)
    hinted = replace(same["ece"], difference=-0.01, low=-0.02, high=-0.001, p_value=0.04)
    comparison = replace(same, differences={**same.differences, "ece": hinted})
    assert comparison.shown == frozenset()
    text = render(evaluation, after=evaluation, comparison=comparison)
    assert "hint: better after" in text
    assert "These rows show no difference" in text
    sure = replace(hinted, p_value=0.001)
    comparison = replace(same, differences={**same.differences, "ece": sure})
    text = render(evaluation, after=evaluation, comparison=comparison)
    assert "hint:" not in text
    assert '<span class="winner after">better after</span>' in text
