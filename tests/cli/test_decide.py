"""decide, sets and apply on the command line."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import calibrant
from calibrant import Predictions
from calibrant.cli import app
from tests.decisions.test_thresholds import make_classes, make_events


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decide")
    names = ["a", "b", "c", "d"]
    make_classes(seed=1, class_names=names).write(folder / "fit.npz")
    rows = make_classes(class_names=names)
    rows.write(folder / "rows.npz")
    rows.write(folder / "unlabelled.npz", labels=False)
    events = make_events()
    table = pd.DataFrame(
        {
            "score": 1 / (1 + np.exp(-events.array)),
            "fraud": events.labels.astype(int),
            "site": np.where(np.arange(len(events)) % 2, "east", "west"),
            "customer": np.arange(len(events)) // 4,
        }
    )
    table.to_csv(folder / "events.csv", index=False)
    done = run("fit", folder / "fit.npz", "--method", "temperature", "-o", folder / "c.safetensors")
    assert done.exit_code == 0
    return folder


EVENTS = ("--score-columns", "score", "--label-column", "fraud", "--probs")


def test_decide_then_apply_accepts_the_rows_that_the_rule_does(folder, tmp_path):
    rule, out = tmp_path / "rule.safetensors", tmp_path / "out.csv"
    done = run(
        *("decide", folder / "rows.npz", "--max-error", "0.1", "-c", folder / "c.safetensors"),
        *("-o", rule),
    )
    assert done.exit_code == 0, done.output
    words = " ".join(done.output.split())
    assert "With 95% confidence at most 10% of the accepted rows are wrong" in words
    done = run("apply", rule, folder / "unlabelled.npz", "-o", out)
    assert done.exit_code == 0, done.output
    loaded, rows = calibrant.load(rule), Predictions.read(folder / "rows.npz")
    table = pd.read_csv(out)
    assert np.array_equal(table["accepted"], loaded.accept(rows))
    assert set(table["prediction"]) == {"a", "b", "c", "d"}


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_a_rule_by_group_writes_each_table(folder, tmp_path, ending):
    rule, out = tmp_path / "rule.safetensors", tmp_path / f"out{ending}"
    events = folder / "events.csv"
    done = run(
        *("decide", events, *EVENTS, "--min-precision", "0.7", "--group-column", "site"),
        *("-o", rule),
    )
    assert done.exit_code == 0, done.output
    assert "east" in done.output
    done = run("apply", rule, events, *EVENTS, "--group-column", "site", "-o", out)
    assert done.exit_code == 0, done.output
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}.get(ending, pd.read_json)
    table = read(out, lines=True) if ending == ".jsonl" else read(out)
    limits = {part.name: part.threshold for part in calibrant.load(rule).parts}
    given = pd.read_csv(events)
    expected = given["score"] >= given["site"].map(limits)
    assert (table["accepted"] == expected).all()
    done = run("apply", rule, events, *EVENTS, "-o", out)
    assert done.exit_code == 2
    assert "--group-column" in done.output


def test_clusters_costs_and_recall_of_events(folder, tmp_path):
    events, rule = folder / "events.csv", tmp_path / "rule.safetensors"
    shared = ("decide", events, *EVENTS, "-o", rule, "--json")
    clustered = ("--cluster-column", "customer")
    done = run(*shared, "--min-recall", "0.9", *clustered)
    assert json.loads(done.stdout)["terms"]["test"] == "approximate"
    done = run(*shared, "--min-recall", "0.9", *clustered, "--max-cluster-size", "4")
    assert json.loads(done.stdout)["terms"]["test"] == "betting"
    done = run(*shared, "--cost", "false_alarm=1", "--cost", "miss=9")
    described = json.loads(done.stdout)
    assert described["parts"][0]["threshold"] == pytest.approx(0.1, rel=1e-6)
    assert described["made_on"]["num_rows"] == 4_000


def test_sets_are_written_and_applied(folder, tmp_path):
    rule, out = tmp_path / "sets.safetensors", tmp_path / "out.csv"
    done = run(
        *("sets", folder / "rows.npz", "--coverage", "0.8", "--method", "aps", "--by", "class"),
        *("--guarantee", "pac", "-c", folder / "c.safetensors", "-o", rule),
    )
    assert done.exit_code == 0, done.output
    assert "for all classes at once" in " ".join(done.output.split())
    done = run("apply", rule, folder / "rows.npz", "-o", out, "--seed", "3")
    assert done.exit_code == 0, done.output
    rows, table = Predictions.read(folder / "rows.npz"), pd.read_csv(out, keep_default_na=False)
    members = calibrant.load(rule).sets(rows, seed=3)
    assert table["size"].tolist() == members.sum(1).tolist()
    assert table["set"][0] == "|".join(np.array(["a", "b", "c", "d"])[members[0]])


def test_a_promise_that_cannot_be_kept_exits_with_3_and_writes_nothing(folder, tmp_path):
    rule = tmp_path / "rule.safetensors"
    done = run("decide", folder / "rows.npz", "--max-error", "0.0005", "-o", rule)
    assert done.exit_code == 3
    assert "more would" in done.output
    done = run("decide", folder / "rows.npz", "--max-error", "0.0005", "-o", rule, "--json")
    assert done.exit_code == 3
    assert json.loads(done.stdout)["promise"] is None
    assert not rule.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-error", "2"), "--max-error must lie between 0 and 1"),
        ((), "name one target of --max-error"),
        (("--min-recall", "0.9"), "use --max-error, with --by class"),
        (("--max-error", "0.1", "--max-weight", "3"), "--max-weight needs rows with weights"),
        (("--max-error", "0.1", "--cost", "x"), "--cost takes NAME=VALUE"),
    ],
)
def test_wrong_options_are_named_as_on_the_command_line(folder, tmp_path, arguments, message):
    done = run("decide", folder / "rows.npz", *arguments, "-o", tmp_path / "rule.safetensors")
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_the_default_output_replaces_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ("decide", folder / "rows.npz", "--max-error", "0.1", "-q")
    assert run(*arguments).exit_code == 0
    done = run(*arguments)
    assert done.exit_code == 2
    assert "rule.safetensors exists" in done.output


def test_apply_says_what_a_rule_needs(folder, tmp_path):
    rule = tmp_path / "rule.safetensors"
    run("decide", folder / "rows.npz", "--max-error", "0.1", "-o", rule)
    done = run("apply", rule, folder / "rows.npz", "-o", tmp_path / "out.npz")
    assert done.exit_code == 2
    assert "ends in .csv, .jsonl, .parquet" in " ".join(done.output.split())
    done = run(
        *("apply", folder / "c.safetensors", folder / "rows.npz", "--group-column", "x"),
        *("-o", tmp_path / "out.npz"),
    )
    assert done.exit_code == 2
    assert "are for rules" in done.output
