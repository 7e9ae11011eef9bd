"""JSON of every command that has an outcome, and warnings wherever an evaluation is told."""

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
from test_select import draw


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


def test_metrics_as_json_are_those_of_the_registry():
    found = json.loads(run("metrics", "--json").stdout)
    assert {one["name"]: one["says"] for one in found} == metrics.available()
    assert {one["name"] for one in found if one["default"]} == set(DEFAULT_METRICS)
    assert {one["name"]: one["better"] for one in found}["accuracy"] == "higher"


def test_fit_as_json_says_what_was_fitted_and_where_it_is(folder):
    out = folder / "t.safetensors"
    arguments = ("fit", folder / "val.npz", "--method", "temperature", "-o", out, "--json")
    result = run(*arguments)
    found = json.loads(result.stdout)
    assert found["output"] == str(out)
    assert found["method"] == "temperature"
    assert found["choice"] is None
    made = calibrators.load(out)
    assert found["summary"]["nll_after"] == pytest.approx(made.summary_["nll_after"])
    assert found["summary"]["nll_after"] < found["summary"]["nll_before"]


def test_fit_as_json_says_why_a_method_was_chosen(folder):
    result = run("fit", folder / "val.npz", "-o", folder / "auto.safetensors", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    chosen = [one["method"] for one in found["choice"]["candidates"] if one["chosen"]]
    assert chosen == [found["choice"]["method"]]
    assert found["choice"]["explanation"]


def test_apply_as_json_says_what_was_written(folder):
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


def test_compare_as_json_says_what_holds_up_among_how_many(folder):
    result = run("compare", folder / "val.npz", folder / "val.npz", "--json", "--resamples", 100)
    found = json.loads(result.stdout)
    assert found["shown"] == []
    assert found["corrected_for"] == len(found["differences"])


def test_probabilities_given_as_logits_are_told_in_json_and_on_the_page(folder, tmp_path):
    page = tmp_path / "r.html"
    with pytest.warns(UserWarning, match="sums to one"):
        result = run(
            "evaluate", folder / "mistaken.npz", "--json", "--no-intervals", "--report", page
        )
    (said,) = json.loads(result.stdout)["warnings"]
    assert "sum to one: if they are probabilities" in said
    text = page.read_text(encoding="utf-8")
    assert "<strong>Warning:</strong> rows of these logits lie in [0, 1]" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = run("evaluate", folder / "val.npz", "--json", "--no-intervals")
    assert json.loads(fine.stdout)["warnings"] == []


def test_rows_that_stay_in_their_file_are_looked_at_as_well(folder, tmp_path):
    held = np.load(folder / "mistaken.npz")
    np.save(tmp_path / "p.npy", held["logits"])
    lazy = Predictions.read(tmp_path / "p.npy", labels=held["labels"], kind="logits", lazy=True)
    with pytest.warns(UserWarning, match="sums to one") as said:
        assert evaluate(lazy, intervals=False).warnings
    assert len(said) == 1  # by the reader, and not again
    unchecked = Predictions.from_logits(held["logits"], held["labels"], validate=False)
    assert evaluate(unchecked, intervals=False).warnings
    fine = Predictions.from_probs(held["logits"], held["labels"])
    assert evaluate(fine, intervals=False).warnings == ()
    assert "<strong>Warning:" not in render(evaluate(fine, intervals=False))


def test_the_page_of_a_comparison_says_what_its_headline_is_corrected_for():
    before = draw(800, temperature=2.5)
    after = Predictions.from_logits(np.asarray(before.array) / 2.5, before.labels, name="after")
    figures = {"resamples": 100, "metrics": ["accuracy", "nll", "brier", "ece"]}
    one, two = evaluate(before, **figures), evaluate(after, **figures)
    comparison = compare(before, after, metrics=["accuracy", "nll", "brier", "ece"], resamples=100)
    text = render(one, after=two, comparison=comparison)
    told = "holds up after a correction for their number (Holm)"
    assert f"Among {comparison.num_tested} figures" in text
    assert told in text
    alone = compare(before, after, metrics=["nll"], resamples=100)
    assert told not in render(one, after=two, comparison=alone)
    assert told not in render(one, after=two)


def test_a_winner_that_does_not_hold_up_is_a_hint_on_the_page():
    from dataclasses import replace

    before = draw(300, temperature=1.0)
    found = evaluate(before, metrics=["ece", "nll"], resamples=100)
    same = compare(before, before, metrics=["ece", "nll"], resamples=100)
    hinted = replace(same["ece"], difference=-0.01, low=-0.02, high=-0.001, p_value=0.04)
    comparison = replace(same, differences={**same.differences, "ece": hinted})
    assert comparison.shown == frozenset()
    text = render(found, after=found, comparison=comparison)
    assert "hint: better after" in text
    assert "These rows show no difference" in text
    sure = replace(hinted, p_value=0.001)
    comparison = replace(same, differences={**same.differences, "ece": sure})
    text = render(found, after=found, comparison=comparison)
    assert "hint:" not in text
    assert '<span class="winner after">better after</span>' in text
